//! Answers of the Ollama protocol: lines, and the same as one object.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::info::rfc3339_now;
use super::input::Head;
use crate::answer::{Delta, Outcome};
use crate::backend::{Backend, FinishReason};
use crate::collect::{Collected, LoggedToken, ToolCall};
use crate::errors::{ApiError, Shape};
use crate::prepare::Call;
use crate::reply::Form;
use crate::sse::StreamWriter;

/// Which of the two it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `/api/chat`
    Chat,
    /// `/api/generate`
    Generate,
}

/// What every line needs.
pub struct Reply {
    kind: Kind,
    model: String,
    backend: Arc<dyn Backend>,
    logprobs: bool,
    started: Instant,
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Reply {
    /// A reply to this request.
    pub fn new(kind: Kind, call: &Call, head: &Head) -> Self {
        Self {
            kind,
            model: head.model.clone(),
            backend: call.backend.clone(),
            logprobs: head.logprobs(),
            started: Instant::now(),
        }
    }

    fn line(&self, content: &str, thinking: &str, calls: Vec<Value>, tokens: &[LoggedToken]) -> Value {
        let mut line = Map::new();
        line.insert("model".to_owned(), self.model.as_str().into());
        line.insert("created_at".to_owned(), rfc3339_now().into());
        let mut part = Map::new();
        if self.kind == Kind::Chat {
            part.insert("role".to_owned(), "assistant".into());
        }
        part.insert(if self.kind == Kind::Chat { "content" } else { "response" }.to_owned(), content.into());
        if !thinking.is_empty() {
            part.insert("thinking".to_owned(), thinking.into());
        }
        if !calls.is_empty() {
            part.insert("tool_calls".to_owned(), calls.into());
        }
        match self.kind {
            Kind::Chat => drop(line.insert("message".to_owned(), part.into())),
            Kind::Generate => line.append(&mut part),
        }
        line.insert("done".to_owned(), false.into());
        if self.logprobs && !tokens.is_empty() {
            let logprobs = crate::openai::chat_logprobs(&*self.backend, tokens);
            line.insert("logprobs".to_owned(), logprobs);
        }
        line.into()
    }

    fn finish(&self, line: &mut Value, outcome: &Outcome) {
        line["done"] = true.into();
        line["done_reason"] = if outcome.reason == FinishReason::Length { "length" } else { "stop" }.into();
        let usage = &outcome.usage;
        let times =
            usage.finished.as_ref().map_or((Duration::ZERO, Duration::ZERO, Duration::ZERO), |finished| {
                (finished.queue_time, finished.prefill_time, finished.decode_time)
            });
        line["total_duration"] = nanoseconds(self.started.elapsed()).into();
        line["load_duration"] = nanoseconds(times.0).into();
        line["prompt_eval_count"] = usage.prompt_tokens.into();
        line["prompt_eval_duration"] = nanoseconds(times.1).into();
        line["eval_count"] = usage.completion_tokens.into();
        line["eval_duration"] = nanoseconds(times.2).into();
        let mut extension = usage.extension();
        extension["cached_tokens"] = usage.cached_tokens.into();
        line["coldpress"] = extension;
    }

    /// The answer to a request without a prompt: the model is there.
    pub fn loaded(&self) -> Value {
        let mut line = self.line("", "", Vec::new(), &[]);
        line["done"] = true.into();
        line["done_reason"] = "load".into();
        line
    }

    fn whole_answer(&self, collected: &Collected) -> Value {
        let (mut calls, mut content) = (Vec::new(), collected.content());
        for (index, call) in collected.calls().into_iter().enumerate() {
            match call_value(index, call) {
                Some(value) => calls.push(value),
                None => content.push_str(&call.as_text()),
            }
        }
        let mut line = self.line(&content, &collected.reasoning(), calls, &collected.logprobs);
        self.finish(&mut line, &collected.outcome);
        line
    }
}

impl Form for Reply {
    type Stream = LineStream;
    const STREAM_TYPE: &'static str = "application/x-ndjson";

    fn stream(self) -> LineStream {
        LineStream { reply: self, tokens: Vec::new(), call: ToolCall::default() }
    }

    fn whole(&self, collected: &[Collected]) -> Value {
        self.whole_answer(&collected[0])
    }
}

/// A call: this protocol sends arguments as an object, whole.
fn call_value(index: usize, call: &ToolCall) -> Option<Value> {
    let function = json!({ "index": index, "name": call.name, "arguments": call.input()? });
    Some(json!({ "id": call.id, "function": function }))
}

/// Writes lines.
pub struct LineStream {
    reply: Reply,
    tokens: Vec<LoggedToken>,
    call: ToolCall,
}

impl LineStream {
    fn send(&mut self, content: &str, thinking: &str, calls: Vec<Value>, out: &mut String) {
        let tokens = std::mem::take(&mut self.tokens);
        push_line(out, &self.reply.line(content, thinking, calls, &tokens));
    }
}

fn push_line(out: &mut String, line: &Value) {
    out.push_str(&line.to_string());
    out.push('\n');
}

impl StreamWriter for LineStream {
    fn begin(&mut self, _out: &mut String) {}

    fn delta(&mut self, _choice: usize, delta: Delta, out: &mut String) {
        match delta {
            Delta::Reasoning(text) => self.send("", &text, Vec::new(), out),
            Delta::Content(text) => self.send(&text, "", Vec::new(), out),
            Delta::Token(Some(token), text) => self.tokens.push((token, text)),
            Delta::ToolBegin { id, name, .. } => self.call = ToolCall { id, name, arguments: String::new() },
            Delta::ToolArguments { json, .. } => self.call.arguments.push_str(&json),
            Delta::ToolEnd { index } => {
                let call = std::mem::take(&mut self.call);
                if let Some(value) = call_value(index, &call) {
                    self.send("", "", vec![value], out);
                }
            }
            Delta::Finished(outcome) => {
                let cut = std::mem::take(&mut self.call);
                if !cut.name.is_empty() {
                    self.send(&cut.as_text(), "", Vec::new(), out);
                }
                let tokens = std::mem::take(&mut self.tokens);
                let mut line = self.reply.line("", "", Vec::new(), &tokens);
                self.reply.finish(&mut line, &outcome);
                push_line(out, &line);
            }
            Delta::Queued(_)
            | Delta::Started(_)
            | Delta::Prefill { .. }
            | Delta::Token(None, _)
            | Delta::Failed(_) => {}
        }
    }

    fn end(&mut self, _out: &mut String) {}

    fn failed(&mut self, error: &ApiError, out: &mut String) {
        push_line(out, &error.body(Shape::Ollama));
    }

    fn keep_alive(&mut self, out: &mut String) {
        // Lines have no comments; an empty piece of the answer changes nothing.
        self.send("", "", Vec::new(), out);
    }
}
