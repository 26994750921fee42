//! `POST /v1/responses`: reading the request, and the whole response. The stream is in `responses_stream.rs`.
//!
//! Nothing is kept between requests: `previous_response_id` is refused by name, and a prompt that repeats the conversation
//! is answered from the prefix cache at no cost.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, Response};
use serde_json::{Value, json};

use super::chat::{read_effort, read_model, set_effort};
use super::logprobs;
use super::messages::read_choice;
use super::responses_input::{read_input, read_tools};
use super::responses_stream::ResponseStream;
use super::sampling::{HARMLESS, read_drawing, read_extension};
use crate::answer::{Outcome, Usage};
use crate::backend::{Backend, FinishReason};
use crate::collect::{Collected, LoggedToken, Part, ToolCall};
use crate::errors::ApiError;
use crate::fields::Fields;
use crate::format::read_format;
use crate::prepare::{Call, ChatRequest, Common};
use crate::reply::{Form, Started};
use crate::state::ServerState;

/// What every form of the response needs.
pub struct Reply {
    /// Its number in identifiers.
    pub id: String,
    /// Fields that repeat the request.
    pub request: Value,
    /// The model.
    pub backend: Arc<dyn Backend>,
    /// Whether log probabilities were asked for.
    pub logprobs: bool,
    /// Whether progress is told in events of our own.
    pub progress: bool,
}

impl Form for Reply {
    type Stream = ResponseStream;

    fn stream(self) -> ResponseStream {
        ResponseStream::new(self)
    }

    fn whole(&self, collected: &[Collected]) -> Value {
        whole(self, &collected[0])
    }
}

/// Answers a request.
///
/// # Errors
/// If the request is refused, or the answer fails before anything was sent.
pub async fn handle(state: Arc<ServerState>, request: Request<Body>) -> Result<Response<Body>, ApiError> {
    let (call, started) = Call::handle(state, request, start).await?;
    started.respond(&call).await
}

fn start(call: &Call, body: Value) -> Result<Started<Reply>, ApiError> {
    let mut fields = Fields::new(body, "")?;
    let id = call.state.identifier("");
    let mut request = repeated(&body_fields(&fields), &id, &*call.backend);
    read_model(&mut fields, &*call.backend)?;
    let mut common = Common::new(1.0, 0, 1.0);
    read_drawing(&mut fields, &mut common)?;
    let limit = fields.integer("max_output_tokens", 1, i64::from(u32::MAX))?;
    common.max_tokens = limit.and_then(|limit| usize::try_from(limit).ok());
    let stop = fields.strings("stop")?;
    common.set_stop("stop", stop)?;
    let top = fields.integer("top_logprobs", 0, 20)?;
    let include = fields.strings("include")?;
    for wanted in include {
        match wanted.as_str() {
            "message.output_text.logprobs" => common.logprobs = Some(0),
            other => fields.ignored.push(format!("include ({other})")),
        }
    }
    common.logprobs =
        top.filter(|&top| top > 0).and_then(|top| usize::try_from(top).ok()).or(common.logprobs);
    let messages = read_input(&mut fields, &*call.backend)?;
    let mut chat = ChatRequest::new(messages, common);
    chat.tools = read_tools(&mut fields)?;
    chat.choice = read_choice(&mut fields, &chat.tools)?;
    chat.parallel_calls = fields.flag("parallel_tool_calls")?.unwrap_or(true);
    read_text(&mut fields, &mut chat)?;
    read_reasoning(&mut fields, &mut chat)?;
    let stream = fields.flag("stream")?.unwrap_or(false);
    let progress = read_extension(&mut fields)?;
    refuse_unsupported(&mut fields)?;
    let ignored = fields.finish()?;
    request["parallel_tool_calls"] = chat.parallel_calls.into();
    let logprobs = chat.common.logprobs.is_some();
    let form = Reply { id, request, backend: call.backend.clone(), logprobs, progress };
    let answers = chat.start(call)?;
    Ok(Started { answers, stream, form, ignored })
}

fn read_text(fields: &mut Fields, chat: &mut ChatRequest) -> Result<(), ApiError> {
    let Some(mut text) = fields.object("text")? else { return Ok(()) };
    if let Some(format) = text.object("format")? {
        chat.format = read_format(format)?.map(|format| ("text.format", format));
    }
    text.ignore(&["verbosity"]);
    fields.ignored.extend(text.finish()?);
    Ok(())
}

fn read_reasoning(fields: &mut Fields, chat: &mut ChatRequest) -> Result<(), ApiError> {
    let Some(mut reasoning) = fields.object("reasoning")? else { return Ok(()) };
    if let Some(effort) = read_effort(&mut reasoning, "effort")? {
        set_effort(effort, chat);
    }
    // Reasoning is sent as it is, never as a summary.
    reasoning.ignore(&["summary", "generate_summary", "context"]);
    fields.ignored.extend(reasoning.finish()?);
    Ok(())
}

fn refuse_unsupported(fields: &mut Fields) -> Result<(), ApiError> {
    let unkept = "is not supported: responses are not kept; send the conversation as input";
    fields.refuse("previous_response_id", unkept)?;
    fields.refuse("conversation", unkept)?;
    fields.refuse("background", "is not supported: answers are sent while the client waits")?;
    fields.refuse("prompt", "is not supported: there are no stored prompts")?;
    if fields.word("truncation", &["auto", "disabled"])? == Some("auto") {
        return Err(fields.error("truncation", "may not be auto: input is never cut"));
    }
    fields.ignore(&HARMLESS);
    fields.ignore(&["max_tool_calls", "stream_options", "client_metadata", "context_management"]);
    Ok(())
}

fn body_fields(fields: &Fields) -> Value {
    let field = |name: &str| fields.peek(name).cloned().unwrap_or_default();
    json!({
        "instructions": field("instructions"), "max_output_tokens": field("max_output_tokens"),
        "temperature": field("temperature"), "top_p": field("top_p"), "text": field("text"),
        "tools": field("tools"), "tool_choice": field("tool_choice"), "reasoning": field("reasoning"),
        "metadata": field("metadata"), "user": field("user")
    })
}

/// The fields of a response that repeat the request, with what was meant where it said nothing.
fn repeated(asked: &Value, id: &str, backend: &dyn Backend) -> Value {
    let or = |name: &str, default: Value| if asked[name].is_null() { default } else { asked[name].clone() };
    json!({
        "id": format!("resp_{id}"), "object": "response", "created_at": crate::state::unix_seconds(),
        "status": "in_progress", "background": false, "error": null, "incomplete_details": null,
        "instructions": asked["instructions"], "max_output_tokens": asked["max_output_tokens"],
        "model": backend.model().name, "output": [], "parallel_tool_calls": true,
        "previous_response_id": null, "reasoning": or("reasoning", json!({ "effort": null, "summary": null })),
        "service_tier": "default", "store": false, "temperature": or("temperature", json!(1.0)),
        "text": or("text", json!({ "format": { "type": "text" } })), "tool_choice": or("tool_choice", json!("auto")),
        "tools": or("tools", json!([])), "top_p": or("top_p", json!(1.0)), "truncation": "disabled",
        "usage": null, "user": asked["user"], "metadata": or("metadata", json!({}))
    })
}

/// Usage as this API tells it.
fn usage(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": { "cached_tokens": usage.cached_tokens },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": { "reasoning_tokens": usage.reasoning_tokens },
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "coldpress": usage.extension(),
    })
}

impl Reply {
    /// Identifier of item `number`.
    pub fn item_id(&self, prefix: &str, number: usize) -> String {
        format!("{prefix}_{}{number:04x}", self.id)
    }

    /// The response with these items, ended this way.
    pub fn ended(&self, output: Vec<Value>, outcome: &Outcome) -> Value {
        let mut response = self.request.clone();
        let cut = outcome.reason == FinishReason::Length;
        response["status"] = if cut { "incomplete" } else { "completed" }.into();
        if cut {
            response["incomplete_details"] = json!({ "reason": "max_output_tokens" });
        }
        response["output"] = output.into();
        response["usage"] = usage(&outcome.usage);
        response
    }

    /// A reasoning item.
    pub fn reasoning(&self, number: usize, text: Option<&str>) -> Value {
        let content = text.map(|text| json!([{ "type": "reasoning_text", "text": text }]));
        json!({
            "id": self.item_id("rs", number), "type": "reasoning", "summary": [],
            "content": content.unwrap_or_else(|| json!([])), "encrypted_content": null,
            "status": if text.is_some() { "completed" } else { "in_progress" }
        })
    }

    /// A part of text.
    pub fn text_part(&self, text: &str, tokens: &[LoggedToken]) -> Value {
        let logged = if self.logprobs { logprobs::chat(&*self.backend, tokens) } else { json!([]) };
        json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": logged })
    }

    /// A message item; without a part it has just begun.
    pub fn message(&self, number: usize, part: Option<Value>) -> Value {
        json!({
            "id": self.item_id("msg", number), "type": "message", "role": "assistant",
            "status": if part.is_some() { "completed" } else { "in_progress" },
            "content": part.map_or_else(|| json!([]), |part| json!([part]))
        })
    }

    /// A call item.
    pub fn call(&self, number: usize, call: &ToolCall, done: bool) -> Value {
        json!({
            "id": self.item_id("fc", number), "type": "function_call", "call_id": call.id, "name": call.name,
            "arguments": call.arguments, "status": if done { "completed" } else { "in_progress" }
        })
    }
}

fn whole(reply: &Reply, collected: &Collected) -> Value {
    let mut output = Vec::with_capacity(collected.parts.len());
    for (number, part) in collected.parts.iter().enumerate() {
        output.push(match part {
            Part::Reasoning(text) => reply.reasoning(number, Some(text)),
            Part::Content(text) => reply.message(number, Some(reply.text_part(text, &collected.logprobs))),
            Part::Call(call) => reply.call(number, call, true),
        });
    }
    reply.ended(output, &collected.outcome)
}
