//! The Ollama protocol: `POST /api/chat` and `POST /api/generate`, by lines of JSON.
//!
//! `input.rs` reads requests, `stream.rs` writes lines and whole answers, `info.rs` answers questions about the model.

pub mod info;
mod input;
mod stream;

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, Response, StatusCode};
use serde_json::Value;

use crate::errors::ApiError;
use crate::fields::Fields;
use crate::prepare::Call;
use crate::reply::{self, Started};
use crate::router::noting;
use crate::state::ServerState;
use stream::{Kind, Reply};

/// Answers `/api/chat`.
///
/// # Errors
/// If the request is refused, or the answer fails before anything was sent.
pub async fn chat(state: Arc<ServerState>, request: Request<Body>) -> Result<Response<Body>, ApiError> {
    answer(Call::handle(state, request, start_chat).await?).await
}

/// Answers `/api/generate`.
///
/// # Errors
/// If the request is refused, or the answer fails before anything was sent.
pub async fn generate(state: Arc<ServerState>, request: Request<Body>) -> Result<Response<Body>, ApiError> {
    answer(Call::handle(state, request, start_generate).await?).await
}

async fn answer((call, started): (Call, Started<Reply>)) -> Result<Response<Body>, ApiError> {
    // Without a prompt the client only asked whether the model is there.
    if started.answers.is_empty() {
        return Ok(noting(reply::json(StatusCode::OK, &started.form.loaded()), &started.ignored));
    }
    started.respond(&call).await
}

fn start_chat(call: &Call, body: Value) -> Result<Started<Reply>, ApiError> {
    let mut fields = Fields::new(body, "")?;
    let head = input::read_head(&mut fields, &*call.backend)?;
    let messages = input::read_messages(&mut fields, &*call.backend)?;
    let tools = crate::openai::read_tools(fields.list("tools")?.unwrap_or_default())?;
    let ignored = fields.finish()?;
    let form = Reply::new(Kind::Chat, call, &head);
    let stream = head.stream;
    let answers = match messages.is_empty() {
        true => Vec::new(),
        false => {
            let mut chat = head.chat(messages);
            chat.tools = tools;
            chat.start(call)?
        }
    };
    Ok(Started { answers, stream, form, ignored })
}

fn start_generate(call: &Call, body: Value) -> Result<Started<Reply>, ApiError> {
    let mut fields = Fields::new(body, "")?;
    let head = input::read_head(&mut fields, &*call.backend)?;
    let prompt = fields.string("prompt")?.unwrap_or_default();
    let system = fields.string("system")?;
    let raw = fields.flag("raw")?.unwrap_or(false);
    fields.refuse("suffix", "is not supported: this model continues text and does not fill gaps")?;
    fields.refuse("template", "is not supported: the model's own template is used, or none with raw")?;
    fields.refuse("images", "is not supported: this model reads text only")?;
    fields.refuse("context", "is not supported: repeat the text; its prefix is not computed again")?;
    let ignored = fields.finish()?;
    let form = Reply::new(Kind::Generate, call, &head);
    let stream = head.stream;
    let answers = if prompt.is_empty() {
        Vec::new()
    } else if raw || !call.backend.has_chat_template() {
        if system.is_some() {
            return Err(ApiError::field("system", "system needs a chat template, which raw leaves away"));
        }
        head.text(call.backend.encode(&prompt, true)?).start(call)?
    } else {
        head.chat(input::prompt_messages(system, prompt)).start(call)?
    };
    Ok(Started { answers, stream, form, ignored })
}
