//! The OpenAI protocols: chat completions, completions, responses, models.
//!
//! One file per protocol; `sampling.rs` and `messages.rs` hold what they share.

pub mod chat;
mod chat_reply;
mod completion;
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
