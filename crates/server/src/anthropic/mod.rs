//! The Anthropic protocol: `POST /v1/messages` and `POST /v1/messages/count_tokens`.
//!
//! Owns the handlers and the whole message; `input.rs` reads requests, `stream.rs` writes events. Marks for caching are
//! accepted without effect: every prefix is reused anyway, and usage tells how much was.

mod input;
mod stream;

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, Response, StatusCode};
use serde_json::{Value, json};

use crate::answer::{Outcome, Usage};
use crate::backend::{Backend, FinishReason};
use crate::collect::{Collected, Part};
use crate::errors::ApiError;
use crate::fields::Fields;
use crate::prepare::Call;
use crate::reply::{self, Form, Started};
use crate::router::noting;
use crate::state::ServerState;

/// What every part of a reply needs.
pub(crate) struct Reply {
    id: String,
    backend: Arc<dyn Backend>,
    progress: bool,
    /// Tokens of the prompt, which the first event tells before anything is computed.
    prompt_tokens: usize,
}

impl Form for Reply {
    type Stream = stream::MessageStream;

    fn stream(self) -> stream::MessageStream {
        stream::MessageStream::new(self)
    }

    fn whole(&self, collected: &[Collected]) -> Value {
        whole(self, &collected[0])
    }
}

/// Answers a request.
///
/// # Errors
/// If the request is refused, or the answer fails before anything was sent.
pub async fn handle(state: Arc<ServerState>, request: Request<Body>) -> Result<Response<Body>, ApiError> {
    let (call, started) = Call::handle(state, request, start).await?;
    started.respond(&call).await
}

fn start(call: &Call, body: Value) -> Result<Started<Reply>, ApiError> {
    let mut fields = Fields::new(body, "")?;
    let limit = fields.integer("max_tokens", 1, i64::from(u32::MAX))?;
    let limit = limit.ok_or_else(|| fields.error("max_tokens", "is missing"))?;
    let stream = fields.flag("stream")?.unwrap_or(false);
    let progress = input::read_progress(&mut fields)?;
    let mut chat = input::read_chat(&mut fields, &*call.backend)?;
    chat.common.max_tokens = usize::try_from(limit).ok();
    let ignored = fields.finish()?;
    let (prompt_tokens, answers) = chat.start_counted(call)?;
    let id = call.state.identifier("msg_");
    let form = Reply { id, backend: call.backend.clone(), progress, prompt_tokens };
    Ok(Started { answers, stream, form, ignored })
}

/// Counts the tokens of a request without answering it.
///
/// # Errors
/// If the request is refused.
pub async fn count_tokens(
    state: Arc<ServerState>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let count = |call: &Call, body: Value| {
        let mut fields = Fields::new(body, "")?;
        let chat = input::read_chat(&mut fields, &*call.backend)?;
        for name in ["max_tokens", "stream"] {
            drop(fields.take(name));
        }
        let ignored = fields.finish()?;
        Ok((chat.encode(&*call.backend)?.len(), ignored))
    };
    let (_, (tokens, ignored)) = Call::handle(state, request, count).await?;
    Ok(noting(reply::json(StatusCode::OK, &json!({ "input_tokens": tokens })), &ignored))
}

/// Usage as this API tells it: cached tokens are not part of the input tokens.
fn usage(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens - usage.cached_tokens.min(usage.prompt_tokens),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "coldpress": usage.extension(),
    })
}

/// The word for how an answer ended, and the stop text that ended it.
fn stop_reason(outcome: &Outcome) -> (&'static str, Value) {
    match &outcome.reason {
        FinishReason::Length => ("max_tokens", Value::Null),
        FinishReason::StopString(text) => ("stop_sequence", text.as_str().into()),
        _ if outcome.tool_calls => ("tool_use", Value::Null),
        _ => ("end_turn", Value::Null),
    }
}

fn whole(reply: &Reply, collected: &Collected) -> Value {
    let block = |part: &Part| match part {
        Part::Reasoning(text) => json!({ "type": "thinking", "thinking": text, "signature": "" }),
        Part::Content(text) => json!({ "type": "text", "text": text }),
        Part::Call(call) => match call.input() {
            Some(input) => json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": input }),
            None => json!({ "type": "text", "text": call.as_text() }),
        },
    };
    let content: Vec<Value> = collected.parts.iter().map(block).collect();
    let (reason, sequence) = stop_reason(&collected.outcome);
    json!({
        "id": reply.id, "type": "message", "role": "assistant", "model": reply.backend.model().name,
        "content": content, "stop_reason": reason, "stop_sequence": sequence,
        "usage": usage(&collected.outcome.usage)
    })
}
