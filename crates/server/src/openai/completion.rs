//! What chat completions and completions have in common: everything around their choices, whole and in chunks.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::answer::{Delta, Usage};
use crate::backend::Backend;
use crate::collect::Collected;
use crate::errors::{ApiError, Shape};
use crate::prepare::Call;
use crate::sse::{data, progress_comment, progress_value};

/// What every part of a reply needs.
pub struct Completion {
    pub(super) id: String,
    /// Seconds since 1970.
    pub(super) created: u64,
    /// Names of the reply: whole, and of a chunk.
    pub(super) objects: (&'static str, &'static str),
    /// The model.
    pub backend: Arc<dyn Backend>,
    /// Whether a last chunk tells the usage.
    pub include_usage: bool,
    /// Whether progress is told in chunks of our own.
    pub progress: bool,
    /// Whether log probabilities were asked for.
    pub logprobs: bool,
}

impl Completion {
    /// A reply to `call` with an identifier that begins with `prefix`. `objects` are its names, whole and of a chunk.
    pub fn new(call: &Call, prefix: &str, objects: (&'static str, &'static str)) -> Self {
        Self {
            id: call.state.identifier(prefix),
            created: crate::state::unix_seconds(),
            objects,
            backend: call.backend.clone(),
            include_usage: false,
            progress: false,
            logprobs: false,
        }
    }

    fn envelope(&self, object: &str, choices: Value) -> Map<String, Value> {
        let Value::Object(envelope) = json!({
            "id": self.id, "object": object, "created": self.created,
            "model": self.backend.model().name, "system_fingerprint": "coldpress", "choices": choices
        }) else {
            return Map::new();
        };
        envelope
    }

    /// The whole reply with these choices.
    pub fn whole(&self, choices: Vec<Value>, collected: &[Collected]) -> Value {
        let mut value = self.envelope(self.objects.0, choices.into());
        let total = Usage::joined(collected.iter().map(|one| &one.outcome.usage));
        value.insert("usage".to_owned(), usage(&total));
        value.into()
    }

    /// Before anything is known.
    pub fn begin(out: &mut String) {
        out.push_str(": coldpress\n\n");
    }

    /// Writes a chunk with these choices.
    pub fn chunk(&self, choices: Value, out: &mut String) {
        self.send(choices, Value::Null, out);
    }

    fn send(&self, choices: Value, total: Value, out: &mut String) {
        let mut value = self.envelope(self.objects.1, choices);
        if self.include_usage {
            value.insert("usage".to_owned(), total);
        }
        data(out, &value.into());
    }

    /// Writes what a step says of the progress, if it says anything of it.
    pub fn progress(&self, delta: &Delta, out: &mut String) {
        match progress_value(delta).filter(|_| self.progress) {
            Some(progress) => {
                let mut value = self.envelope(self.objects.1, json!([]));
                value.insert("coldpress".to_owned(), progress);
                data(out, &value.into());
            }
            None => progress_comment(out, delta),
        }
    }

    /// Ends a stream whose choices took this.
    pub fn end(&self, usages: &[Usage], out: &mut String) {
        if self.include_usage {
            self.send(json!([]), usage(&Usage::joined(usages)), out);
        }
        out.push_str("data: [DONE]\n\n");
    }

    /// Ends a stream that failed.
    pub fn failed(error: &ApiError, out: &mut String) {
        data(out, &error.body(Shape::OpenAi));
        out.push_str("data: [DONE]\n\n");
    }
}

/// Usage as both tell it.
fn usage(usage: &Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": { "cached_tokens": usage.cached_tokens },
        "completion_tokens_details": { "reasoning_tokens": usage.reasoning_tokens },
        "coldpress": usage.extension(),
    })
}
