//! What chat completions send back: whole answers and chunks.

use serde_json::{Value, json};

use super::completion::Completion;
use super::logprobs;
use crate::answer::{Delta, Outcome, Usage};
use crate::backend::FinishReason;
use crate::collect::{Collected, LoggedToken};
use crate::errors::ApiError;
use crate::reply::Form;
use crate::sse::StreamWriter;

/// The names of its objects, whole and of a chunk.
pub const OBJECTS: (&str, &str) = ("chat.completion", "chat.completion.chunk");

/// How chat completions are written.
pub struct ChatForm(pub Completion);

impl Form for ChatForm {
    type Stream = ChatStream;

    fn stream(self) -> ChatStream {
        ChatStream { completion: self.0, choices: Vec::new(), usages: Vec::new() }
    }

    fn whole(&self, collected: &[Collected]) -> Value {
        let choices = collected.iter().enumerate().map(|(index, one)| choice(&self.0, index, one));
        self.0.whole(choices.collect(), collected)
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

fn choice(completion: &Completion, index: usize, one: &Collected) -> Value {
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
    let logged = if completion.logprobs {
        json!({ "content": logprobs::chat(&*completion.backend, &one.logprobs), "refusal": null })
    } else {
        Value::Null
    };
    json!({
        "index": index, "message": message, "logprobs": logged, "finish_reason": finish_reason(&one.outcome)
    })
}

/// Writes chunks.
pub struct ChatStream {
    completion: Completion,
    /// Per choice: tokens whose log probabilities were not sent yet, and whether the role was.
    choices: Vec<(Vec<LoggedToken>, bool)>,
    usages: Vec<Usage>,
}

impl ChatStream {
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
            json!({ "content": logprobs::chat(&*self.completion.backend, &tokens), "refusal": null })
        };
        let choices =
            json!([{ "index": choice, "delta": delta, "logprobs": logged, "finish_reason": finish }]);
        self.completion.chunk(choices, out);
    }
}

impl StreamWriter for ChatStream {
    fn begin(&mut self, out: &mut String) {
        Completion::begin(out);
    }

    fn delta(&mut self, choice: usize, delta: Delta, out: &mut String) {
        match delta {
            Delta::Queued(_) | Delta::Started(_) | Delta::Prefill { .. } => {
                self.completion.progress(&delta, out);
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
        self.completion.end(&self.usages, out);
    }

    fn failed(&mut self, error: &ApiError, out: &mut String) {
        Completion::failed(error, out);
    }
}
