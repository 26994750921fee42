//! `GET /v1/models`, `GET /v1/models/{id}`, and the refusal of `POST /v1/embeddings`.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, Response, StatusCode};
use serde_json::{Value, json};

use crate::backend::Backend;
use crate::errors::{ApiError, ErrorKind};
use crate::prepare::Call;
use crate::reply;
use crate::state::ServerState;

fn entry(backend: &dyn Backend) -> Value {
    let model = backend.model();
    // The fields of OpenAI's list and of Anthropic's, which live at the same path.
    json!({
        "id": model.name, "object": "model", "type": "model", "created": model.loaded_at,
        "created_at": crate::ollama::info::rfc3339(model.loaded_at), "owned_by": "coldpress",
        "display_name": model.name, "max_model_len": backend.context(), "context_length": backend.context()
    })
}

/// All models: there is one.
///
/// # Errors
/// While there is none yet.
pub async fn list(state: Arc<ServerState>, _request: Request<Body>) -> Result<Response<Body>, ApiError> {
    let backend = state.backend()?;
    let name = &backend.model().name;
    let list = json!({
        "object": "list", "data": [entry(&*backend)], "has_more": false, "first_id": name, "last_id": name
    });
    Ok(reply::json(StatusCode::OK, &list))
}

/// One model.
///
/// # Errors
/// If it has another name.
pub async fn one(state: Arc<ServerState>, request: Request<Body>) -> Result<Response<Body>, ApiError> {
    let backend = state.backend()?;
    let path = request.uri().path();
    let wanted = percent_decoded(path.strip_prefix("/v1/models/").unwrap_or_default());
    if wanted == backend.model().name {
        return Ok(reply::json(StatusCode::OK, &entry(&*backend)));
    }
    let message =
        format!("there is no model {wanted:?}; the one that is served is {:?}", backend.model().name);
    Err(ApiError::new(ErrorKind::NotFound, message))
}

/// `%20` and the like become what they stand for.
fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let hex = after.get(..2).filter(|_| *first == b'%').and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Refuses embeddings.
///
/// # Errors
/// Always.
pub async fn embeddings(state: Arc<ServerState>, request: Request<Body>) -> Result<Response<Body>, ApiError> {
    Call::handle(state, request, |_, _| -> Result<(), ApiError> { Err(no_embeddings()) }).await?;
    Err(no_embeddings())
}

/// Why there are no embeddings.
pub fn no_embeddings() -> ApiError {
    ApiError::new(ErrorKind::Invalid, "this model has no embedding head: it writes text and gives no vectors")
}
