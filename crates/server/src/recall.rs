//! Reasoning that clients leave away when they send an answer back.
//!
//! A template renders the reasoning of recent turns again. A client that drops it makes another prompt of the same
//! conversation, and everything after that place is computed anew. The backend remembers; here is when it is told and asked.

use serde_json::Value;

use crate::backend::Backend;
use crate::collect::ToolCall;

/// What is heard of an answer until it is complete.
#[derive(Default)]
pub struct Heard {
    reasoning: String,
    content: String,
    calls: Vec<ToolCall>,
}

impl Heard {
    /// Reasoning came.
    pub fn reasoning(&mut self, text: &str) {
        self.reasoning.push_str(text);
    }

    /// Content came.
    pub fn content(&mut self, text: &str) {
        self.content.push_str(text);
    }

    /// A call began.
    pub fn call(&mut self, name: &str) {
        self.calls.push(ToolCall { name: name.to_owned(), ..ToolCall::default() });
    }

    /// Arguments of the latest call came.
    pub fn arguments(&mut self, json: &str) {
        if let Some(call) = self.calls.last_mut() {
            call.arguments.push_str(json);
        }
    }

    /// The answer is complete: the backend may remember it.
    pub fn tell(&self, backend: &dyn Backend) {
        if !self.reasoning.is_empty() {
            let calls = self.calls.iter().map(|call| key(&call.name, &parsed(&call.arguments)));
            backend.learn_reasoning(&self.content, &calls.collect::<String>(), &self.reasoning);
        }
    }
}

/// A call as it is compared: spaces in its arguments do not count.
fn key(name: &str, arguments: &Value) -> String {
    format!("{name}\n{arguments}\n")
}

fn parsed(arguments: &str) -> Value {
    serde_json::from_str(arguments).unwrap_or_else(|_| arguments.into())
}

/// Puts remembered reasoning into messages of the assistant that have none.
pub fn restore_reasoning(messages: &mut [Value], backend: &dyn Backend) {
    for message in messages.iter_mut().filter(|message| message["role"] == "assistant") {
        let Some(fields) = message.as_object_mut() else { continue };
        if fields.contains_key("reasoning_content") {
            continue;
        }
        let content = fields.get("content").and_then(Value::as_str).unwrap_or_default();
        let calls = fields.get("tool_calls").and_then(Value::as_array).into_iter().flatten();
        let calls: String = calls
            .map(|call| {
                let function = &call["function"];
                key(function["name"].as_str().unwrap_or_default(), &function["arguments"])
            })
            .collect();
        if let Some(reasoning) = backend.reasoning_of(content, &calls) {
            fields.insert("reasoning_content".to_owned(), reasoning.into());
        }
    }
}
