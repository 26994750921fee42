//! What chat completions send back: whole answers and chunks.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::{logprobs, usage};
use crate::answer::{Delta, Outcome, Usage};
use crate::backend::{Backend, FinishReason};
use crate::collect::{Collected, LoggedToken};
use crate::errors::{ApiError, Shape};
use crate::sse::{StreamWriter, data, progress_comment, progress_value};

/// What every part of a reply needs.
pub struct Reply {
    /// Identifier of the completion.
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    /// The model.
    pub backend: Arc<dyn Backend>,
    /// Whether a last chunk tells the usage.
    pub include_usage: bool,
    /// Whether progress is told in chunks of our own.
    pub progress: bool,
    /// Whether log probabilities were asked for.
    pub logprobs: bool,
}

impl Reply {
    fn envelope(&self, object: &str) -> Map<String, Value> {
        let Value::Object(envelope) = json!({
            "id": self.id, "object": object, "created": self.created,
            "model": self.backend.model().name, "system_fingerprint": "coldpress"
        }) else {
            return Map::new();
        };
        envelope
    }
}

/// The word for how an answer ended.
fn finish_reason(outcome: &Outcome) -> &'static str {
    match outcome.reason {
        FinishReason::Length => "length",
        _ if outcome.tool_calls => "tool_calls",
        _ => "stop",
    }
}

/// The whole reply.
pub fn whole(reply: &Reply, collected: &[Collected]) -> Value {
    let choices: Vec<Value> =
        collected.iter().enumerate().map(|(index, one)| choice(reply, index, one)).collect();
    let mut value = reply.envelope("chat.completion");
    value.insert("choices".to_owned(), choices.into());
    let total = Usage::joined(collected.iter().map(|one| &one.outcome.usage));
    value.insert("usage".to_owned(), usage(&total));
    value.into()
}

fn choice(reply: &Reply, index: usize, one: &Collected) -> Value {
    let (reasoning, content) = (one.reasoning(), one.content());
    let calls: Vec<Value> = one
        .calls()
        .iter()
        .map(|call| {
            json!({
                "id": call.id, "type": "function",
                "function": { "name": call.name, "arguments": call.arguments }
            })
        })
        .collect();
    let text: Value = if content.is_empty() && !calls.is_empty() { Value::Null } else { content.into() };
    let mut message = json!({ "role": "assistant", "content": text, "refusal": null });
    if !reasoning.is_empty() {
        message["reasoning_content"] = reasoning.into();
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    let logged = if reply.logprobs {
        json!({ "content": logprobs::chat(&*reply.backend, &one.logprobs), "refusal": null })
    } else {
        Value::Null
    };
    json!({
        "index": index, "message": message, "logprobs": logged, "finish_reason": finish_reason(&one.outcome)
    })
}

/// Writes chunks.
pub struct ChatStream {
    reply: Reply,
    /// Per choice: tokens whose log probabilities were not sent yet, and whether the role was.
    choices: Vec<(Vec<LoggedToken>, bool)>,
    usages: Vec<Usage>,
}

impl ChatStream {
    /// A stream with this reply.
    pub fn new(reply: Reply) -> Self {
        Self { reply, choices: Vec::new(), usages: Vec::new() }
    }

    fn state(&mut self, choice: usize) -> &mut (Vec<LoggedToken>, bool) {
        while self.choices.len() <= choice {
            self.choices.push((Vec::new(), false));
        }
        &mut self.choices[choice]
    }

    fn chunk(&mut self, choice: usize, mut delta: Value, finish: Option<&str>, out: &mut String) {
        let (tokens, begun) = self.state(choice);
        let tokens = std::mem::take(tokens);
        if !std::mem::replace(begun, true) {
            delta["role"] = "assistant".into();
        }
        let logged = if tokens.is_empty() {
            Value::Null
        } else {
            json!({ "content": logprobs::chat(&*self.reply.backend, &tokens), "refusal": null })
        };
        let choices =
            json!([{ "index": choice, "delta": delta, "logprobs": logged, "finish_reason": finish }]);
        self.send(choices, None, out);
    }

    fn send(&self, choices: Value, total: Option<Value>, out: &mut String) {
        let mut value = self.reply.envelope("chat.completion.chunk");
        value.insert("choices".to_owned(), choices);
        if self.reply.include_usage {
            value.insert("usage".to_owned(), total.unwrap_or_default());
        }
        data(out, &value.into());
    }
}

impl StreamWriter for ChatStream {
    fn begin(&mut self, out: &mut String) {
        out.push_str(": coldpress\n\n");
    }

    fn delta(&mut self, choice: usize, delta: Delta, out: &mut String) {
        match delta {
            Delta::Queued(_) | Delta::Started(_) | Delta::Prefill { .. } => {
                if let (true, Some(progress)) = (self.reply.progress, progress_value(&delta)) {
                    let mut value = self.reply.envelope("chat.completion.chunk");
                    value.insert("choices".to_owned(), json!([]));
                    value.insert("coldpress".to_owned(), progress);
                    data(out, &value.into());
                } else {
                    progress_comment(out, &delta);
                }
            }
            Delta::Token(Some(token), text) => self.state(choice).0.push((token, text)),
            Delta::Token(None, _) | Delta::ToolEnd { .. } | Delta::Failed(_) => {}
            Delta::Reasoning(text) => self.chunk(choice, json!({ "reasoning_content": text }), None, out),
            Delta::Content(text) => self.chunk(choice, json!({ "content": text }), None, out),
            Delta::ToolBegin { index, id, name } => {
                let call = json!({
                    "index": index, "id": id, "type": "function", "function": { "name": name, "arguments": "" }
                });
                self.chunk(choice, json!({ "tool_calls": [call] }), None, out);
            }
            Delta::ToolArguments { index, json } => {
                let call = json!({ "index": index, "function": { "arguments": json } });
                self.chunk(choice, json!({ "tool_calls": [call] }), None, out);
            }
            Delta::Finished(outcome) => {
                self.chunk(choice, json!({}), Some(finish_reason(&outcome)), out);
                self.usages.push(outcome.usage);
            }
        }
    }

    fn end(&mut self, out: &mut String) {
        if self.reply.include_usage {
            let total = usage(&Usage::joined(&self.usages));
            self.send(json!([]), Some(total), out);
        }
        out.push_str("data: [DONE]\n\n");
    }

    fn failed(&mut self, error: &ApiError, out: &mut String) {
        data(out, &error.body(Shape::OpenAi));
        out.push_str("data: [DONE]\n\n");
    }
}
