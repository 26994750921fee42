//! The stream of the Responses API: numbered events, one item open at a time.

use serde_json::{Value, json};

use super::logprobs;
use super::responses::Reply;
use crate::answer::Delta;
use crate::collect::{LoggedToken, ToolCall};
use crate::errors::{ApiError, Shape};
use crate::sse::{StreamWriter, event, progress_comment, progress_value};

/// The item that is being written.
enum Open {
    Nothing,
    Reasoning(String),
    Message { text: String, tokens: Vec<LoggedToken> },
    Call(ToolCall),
}

/// Writes events.
pub struct ResponseStream {
    reply: Reply,
    sequence: u64,
    open: Open,
    /// Items that are complete.
    output: Vec<Value>,
    /// Tokens whose log probabilities were not sent yet.
    waiting: Vec<LoggedToken>,
}

impl ResponseStream {
    /// A stream with this reply.
    pub fn new(reply: Reply) -> Self {
        Self { reply, sequence: 0, open: Open::Nothing, output: Vec::new(), waiting: Vec::new() }
    }

    fn send(&mut self, kind: &str, mut value: Value, out: &mut String) {
        value["type"] = kind.into();
        value["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        event(out, kind, &value);
    }

    /// Number of the open item, or of the next one.
    fn number(&self) -> usize {
        self.output.len()
    }

    fn begin_item(&mut self, item: Value, out: &mut String) {
        let number = self.number();
        self.send("response.output_item.added", json!({ "output_index": number, "item": item }), out);
    }

    fn end_item(&mut self, item: Value, out: &mut String) {
        let number = self.number();
        self.send("response.output_item.done", json!({ "output_index": number, "item": item }), out);
        self.output.push(item);
    }

    fn close(&mut self, out: &mut String) {
        let number = self.number();
        match std::mem::replace(&mut self.open, Open::Nothing) {
            Open::Nothing => {}
            Open::Reasoning(text) => {
                let item = self.reply.reasoning(number, Some(&text));
                let place = json!({ "item_id": item["id"], "output_index": number, "content_index": 0 });
                let done = with(&place, "text", text.as_str().into());
                self.send("response.reasoning_text.done", done, out);
                let part = json!({ "type": "reasoning_text", "text": text });
                self.send("response.content_part.done", with(&place, "part", part), out);
                self.end_item(item, out);
            }
            Open::Message { text, tokens } => {
                let part = self.reply.text_part(&text, &tokens);
                let item = self.reply.message(number, Some(part.clone()));
                let place = json!({ "item_id": item["id"], "output_index": number, "content_index": 0 });
                let done = with(&place, "text", text.into());
                self.send(
                    "response.output_text.done",
                    with(&done, "logprobs", part["logprobs"].clone()),
                    out,
                );
                self.send("response.content_part.done", with(&place, "part", part), out);
                self.end_item(item, out);
            }
            Open::Call(call) => {
                let item = self.reply.call(number, &call, true);
                let done = json!({
                    "item_id": item["id"], "output_index": number, "name": call.name, "arguments": call.arguments
                });
                self.send("response.function_call_arguments.done", done, out);
                self.end_item(item, out);
            }
        }
    }

    fn reasoning(&mut self, text: &str, out: &mut String) {
        if !matches!(self.open, Open::Reasoning(_)) {
            self.close(out);
            let item = self.reply.reasoning(self.number(), None);
            let place = json!({ "item_id": item["id"], "output_index": self.number(), "content_index": 0 });
            self.begin_item(item, out);
            let part = json!({ "type": "reasoning_text", "text": "" });
            self.send("response.content_part.added", with(&place, "part", part), out);
            self.open = Open::Reasoning(String::new());
        }
        let id = self.reply.item_id("rs", self.number());
        if let Open::Reasoning(all) = &mut self.open {
            all.push_str(text);
        }
        self.waiting.clear();
        let delta =
            json!({ "item_id": id, "output_index": self.number(), "content_index": 0, "delta": text });
        self.send("response.reasoning_text.delta", delta, out);
    }

    fn content(&mut self, text: &str, out: &mut String) {
        if !matches!(self.open, Open::Message { .. }) {
            self.close(out);
            let item = self.reply.message(self.number(), None);
            let place = json!({ "item_id": item["id"], "output_index": self.number(), "content_index": 0 });
            self.begin_item(item, out);
            let part = self.reply.text_part("", &[]);
            self.send("response.content_part.added", with(&place, "part", part), out);
            self.open = Open::Message { text: String::new(), tokens: Vec::new() };
        }
        let logged = logprobs::chat(&*self.reply.backend, &self.waiting);
        if let Open::Message { text: all, tokens } = &mut self.open {
            all.push_str(text);
            tokens.append(&mut self.waiting);
        }
        let id = self.reply.item_id("msg", self.number());
        let place = json!({ "item_id": id, "output_index": self.number(), "content_index": 0 });
        let delta = with(&with(&place, "delta", text.into()), "logprobs", logged);
        self.send("response.output_text.delta", delta, out);
    }
}

/// The object with a further field.
fn with(object: &Value, name: &str, value: Value) -> Value {
    let mut object = object.clone();
    object[name] = value;
    object
}

impl StreamWriter for ResponseStream {
    fn begin(&mut self, out: &mut String) {
        let response = self.reply.request.clone();
        self.send("response.created", json!({ "response": response }), out);
        self.send("response.in_progress", json!({ "response": response }), out);
    }

    fn delta(&mut self, _choice: usize, delta: Delta, out: &mut String) {
        match delta {
            Delta::Reasoning(text) => self.reasoning(&text, out),
            Delta::Content(text) => self.content(&text, out),
            Delta::Token(Some(token), text) => self.waiting.push((token, text)),
            Delta::ToolBegin { id, name, .. } => {
                self.close(out);
                self.waiting.clear();
                let call = ToolCall { id, name, arguments: String::new() };
                let item = self.reply.call(self.number(), &call, false);
                self.begin_item(item, out);
                self.open = Open::Call(call);
            }
            Delta::ToolArguments { json, .. } => {
                let id = self.reply.item_id("fc", self.number());
                if let Open::Call(call) = &mut self.open {
                    call.arguments.push_str(&json);
                }
                let delta = json!({ "item_id": id, "output_index": self.number(), "delta": json });
                self.send("response.function_call_arguments.delta", delta, out);
            }
            Delta::ToolEnd { .. } => self.close(out),
            Delta::Finished(outcome) => {
                self.close(out);
                let response = self.reply.ended(std::mem::take(&mut self.output), &outcome);
                let kind = if response["status"] == "completed" { "completed" } else { "incomplete" };
                self.send(&format!("response.{kind}"), json!({ "response": response }), out);
            }
            other => match progress_value(&other).filter(|_| self.reply.progress) {
                Some(progress) => self.send("coldpress.progress", json!({ "coldpress": progress }), out),
                None => progress_comment(out, &other),
            },
        }
    }

    fn end(&mut self, _out: &mut String) {}

    fn failed(&mut self, error: &ApiError, out: &mut String) {
        let body = error.body(Shape::OpenAi);
        let code = match &body["error"]["code"] {
            Value::Null => json!("server_error"),
            code => code.clone(),
        };
        let mut response = self.reply.request.clone();
        response["status"] = "failed".into();
        response["error"] = json!({ "code": code, "message": error.message });
        response["output"] = std::mem::take(&mut self.output).into();
        self.send("response.failed", json!({ "response": response }), out);
    }
}
