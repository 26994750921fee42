//! The stream of the Anthropic protocol: a message, its blocks one after the other, its end.

use serde_json::{Value, json};

use super::{Reply, stop_reason, usage};
use crate::answer::Delta;
use crate::errors::{ApiError, Shape};
use crate::sse::{StreamWriter, event, progress_comment, progress_value};

/// The block that is being written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Open {
    Nothing,
    Thinking,
    Text,
    Call,
}

/// Writes events.
pub struct MessageStream {
    reply: Reply,
    open: Open,
    /// Number of the open block, or of the next one.
    index: usize,
}

impl MessageStream {
    /// A stream with this reply.
    pub(crate) fn new(reply: Reply) -> Self {
        Self { reply, open: Open::Nothing, index: 0 }
    }

    fn send(&self, kind: &str, mut value: Value, out: &mut String) {
        value["type"] = kind.into();
        event(out, kind, &value);
    }

    fn close(&mut self, out: &mut String) {
        if self.open == Open::Nothing {
            return;
        }
        if self.open == Open::Thinking {
            self.block_delta(json!({ "type": "signature_delta", "signature": "" }), out);
        }
        self.send("content_block_stop", json!({ "index": self.index }), out);
        self.open = Open::Nothing;
        self.index += 1;
    }

    fn begin_block(&mut self, open: Open, block: Value, out: &mut String) {
        if self.open == open && open != Open::Call {
            return;
        }
        self.close(out);
        self.open = open;
        let value = json!({ "index": self.index, "content_block": block });
        self.send("content_block_start", value, out);
    }

    fn block_delta(&self, delta: Value, out: &mut String) {
        self.send("content_block_delta", json!({ "index": self.index, "delta": delta }), out);
    }
}

impl StreamWriter for MessageStream {
    fn begin(&mut self, out: &mut String) {
        let message = json!({
            "id": self.reply.id, "type": "message", "role": "assistant", "content": [],
            "model": self.reply.backend.model().name, "stop_reason": null, "stop_sequence": null,
            "usage": {
                "input_tokens": self.reply.prompt_tokens, "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 0, "output_tokens": 0
            }
        });
        self.send("message_start", json!({ "message": message }), out);
        self.send("ping", json!({}), out);
    }

    fn delta(&mut self, _choice: usize, delta: Delta, out: &mut String) {
        match delta {
            Delta::Reasoning(text) => {
                let block = json!({ "type": "thinking", "thinking": "", "signature": "" });
                self.begin_block(Open::Thinking, block, out);
                self.block_delta(json!({ "type": "thinking_delta", "thinking": text }), out);
            }
            Delta::Content(text) => {
                self.begin_block(Open::Text, json!({ "type": "text", "text": "" }), out);
                self.block_delta(json!({ "type": "text_delta", "text": text }), out);
            }
            Delta::ToolBegin { id, name, .. } => {
                let block = json!({ "type": "tool_use", "id": id, "name": name, "input": {} });
                self.begin_block(Open::Call, block, out);
            }
            Delta::ToolArguments { json, .. } => {
                self.block_delta(json!({ "type": "input_json_delta", "partial_json": json }), out);
            }
            Delta::ToolEnd { .. } => self.close(out),
            Delta::Finished(outcome) => {
                self.close(out);
                let (reason, sequence) = stop_reason(&outcome);
                let delta = json!({ "stop_reason": reason, "stop_sequence": sequence });
                let value = json!({ "delta": delta, "usage": usage(&outcome.usage) });
                self.send("message_delta", value, out);
                self.send("message_stop", json!({}), out);
            }
            other => match progress_value(&other).filter(|_| self.reply.progress) {
                Some(progress) => self.send("ping", json!({ "coldpress": progress }), out),
                None => progress_comment(out, &other),
            },
        }
    }

    fn end(&mut self, _out: &mut String) {}

    fn failed(&mut self, error: &ApiError, out: &mut String) {
        event(out, "error", &error.body(Shape::Anthropic));
    }

    fn keep_alive(&mut self, out: &mut String) {
        // A comment for those who watch bytes, an event for those who watch events.
        out.push_str(": keep-alive\n\n");
        self.send("ping", json!({}), out);
    }
}
