//! The OpenAI protocols: chat completions, completions, responses, models.
//!
//! One file per protocol; `sampling.rs` and `messages.rs` hold what they share.

pub mod chat;
mod chat_reply;
pub mod completions;
mod logprobs;
mod messages;
pub mod models;
pub mod responses;
mod responses_input;
mod responses_stream;
mod sampling;

pub use logprobs::chat as chat_logprobs;
pub use messages::{read_tools, role_for, template_call, text_content};
pub use sampling::HARMLESS;
use serde_json::{Value, json};

use crate::answer::Usage;

/// Usage as chat completions and completions tell it.
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
