//! `POST /v1/chat/completions`: reading the request. What is sent back is in `chat_reply.rs`.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, Response};
use serde_json::{Map, Value};

use super::chat_reply::{ChatForm, OBJECTS};
use super::completion::Completion;
use super::messages::{read_choice, read_messages, read_tools};
use super::sampling::{read_chat_logprobs, read_common, read_extension, read_stream};
use crate::backend::Backend;
use crate::errors::ApiError;
use crate::fields::Fields;
use crate::format::read_format;
use crate::prepare::{Call, ChatRequest};
use crate::reply::Started;
use crate::state::ServerState;

/// Answers a request.
///
/// # Errors
/// If the request is refused, or the answer fails before anything was sent.
pub async fn handle(state: Arc<ServerState>, request: Request<Body>) -> Result<Response<Body>, ApiError> {
    let (call, started) = Call::handle(state, request, start).await?;
    started.respond(&call).await
}

fn start(call: &Call, body: Value) -> Result<Started<ChatForm>, ApiError> {
    let mut fields = Fields::new(body, "")?;
    read_model(&mut fields, &*call.backend)?;
    let common = read_common(&mut fields, &call.state.settings)?;
    let messages = fields.list("messages")?.ok_or_else(|| fields.error("messages", "is missing"))?;
    let mut ignored = Vec::new();
    let messages = read_messages(&*call.backend, messages, &mut ignored)?;
    let mut chat = ChatRequest::new(messages, common);
    chat.common.logprobs = read_chat_logprobs(&mut fields)?;
    chat.tools = read_tools(fields.list("tools")?.unwrap_or_default())?;
    chat.choice = read_choice(&mut fields, &chat.tools)?;
    chat.parallel_calls = fields.flag("parallel_tool_calls")?.unwrap_or(true);
    if let Some(format) = fields.object("response_format")? {
        chat.format = read_format(format)?.map(|format| ("response_format", format));
    }
    read_thinking(&mut fields, &*call.backend, &mut chat)?;
    chat.continue_last = fields.flag("continue_final_message")?.unwrap_or(false);
    if chat.continue_last && chat.messages.last().is_none_or(|message| message["role"] != "assistant") {
        return Err(fields.error("continue_final_message", "needs a last message of the assistant"));
    }
    let (stream, include_usage) = read_stream(&mut fields)?;
    let progress = read_extension(&mut fields)?;
    refuse_unsupported(&mut fields)?;
    ignored.extend(fields.finish()?);
    let form = ChatForm(Completion {
        include_usage,
        progress,
        logprobs: chat.common.logprobs.is_some(),
        ..Completion::new(call, "chatcmpl-", OBJECTS)
    });
    let answers = chat.start(call)?;
    Ok(Started { answers, stream, form, ignored })
}

fn refuse_unsupported(fields: &mut Fields) -> Result<(), ApiError> {
    fields.refuse("functions", "is the form before tools and is not supported: use tools")?;
    fields.refuse("function_call", "is the form before tools and is not supported: use tool_choice")?;
    fields.refuse("audio", "is not supported: this model writes text only")?;
    fields.refuse("web_search_options", "is not supported: this server searches nothing")?;
    fields.refuse("grammar", "is not supported here: use response_format with type grammar")?;
    fields.refuse("json_schema", "is not supported here: use response_format with type json_schema")?;
    fields.refuse("best_of", "is not supported: use n")?;
    if let Some(modalities) = fields.list("modalities")?
        && modalities.iter().any(|modality| modality != "text")
    {
        return Err(fields.error("modalities", "may hold text only: this model writes nothing else"));
    }
    Ok(())
}

/// Reads `model`. There is one model, so any name means it; a name that is not its own is told in the header.
///
/// # Errors
/// If it is not a text.
pub fn read_model(fields: &mut Fields, backend: &dyn Backend) -> Result<(), ApiError> {
    if let Some(name) = fields.string("model")?
        && name != backend.model().name
    {
        fields.ignored.push("model".to_owned());
    }
    Ok(())
}

/// Reads how the model is told to think: `reasoning_effort`, `chat_template_kwargs`, `enable_thinking`.
fn read_thinking(fields: &mut Fields, backend: &dyn Backend, chat: &mut ChatRequest) -> Result<(), ApiError> {
    if let Some(effort) = read_effort(fields, "reasoning_effort")? {
        set_effort(effort, chat);
    }
    let variables: Map<String, Value> = match fields.take("chat_template_kwargs") {
        None => Map::new(),
        Some(Value::Object(variables)) => variables,
        Some(_) => return Err(fields.error("chat_template_kwargs", "must be an object")),
    };
    for (name, value) in variables {
        match (name.as_str(), value.as_bool()) {
            ("enable_thinking" | "thinking", Some(on)) => chat.thinking = Some(on),
            ("enable_thinking" | "thinking", None) => {
                let place = format!("chat_template_kwargs.{name}");
                return Err(ApiError::field(&place, format!("{place} must be true or false")));
            }
            _ => {
                if backend.template_reads(&name) == Some(false) {
                    fields.ignored.push(format!("chat_template_kwargs.{name}"));
                }
                chat.variables.insert(name, value);
            }
        }
    }
    if let Some(on) = fields.flag("enable_thinking")? {
        chat.thinking = Some(on);
    }
    Ok(())
}

/// Reads an effort.
///
/// # Errors
/// If it is not one of the words.
pub fn read_effort(fields: &mut Fields, name: &'static str) -> Result<Option<&'static str>, ApiError> {
    fields.word(name, &["none", "minimal", "low", "medium", "high", "xhigh", "max"])
}

/// Sets thinking by effort. Models that know efforts read the word; the others are told on or off.
pub fn set_effort(effort: &'static str, chat: &mut ChatRequest) {
    chat.thinking = Some(effort != "none");
    if effort != "none" {
        chat.variables.insert("reasoning_effort".to_owned(), effort.into());
    }
}
