//! Health, status, metrics, tokens and the page.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::body::Body;
use axum::http::{HeaderValue, Request, Response, StatusCode, header};
use serde_json::{Value, json};

use crate::errors::ApiError;
use crate::fields::{Fields, whole};
use crate::prepare::Call;
use crate::reply;
use crate::state::{Health, ServerState};

/// Whether the model answers; 200 only when it does.
///
/// # Errors
/// None.
pub async fn health(state: Arc<ServerState>, _request: Request<Body>) -> Result<Response<Body>, ApiError> {
    let health = state.health();
    let mut value = json!({ "status": health.name() });
    if let Health::Failed(reason) = &health {
        value["reason"] = reason.as_str().into();
    }
    let status = if health == Health::Ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    Ok(reply::json(status, &value))
}

/// The state of server and engine. With `?experts=1` also uses and hits of every expert.
///
/// # Errors
/// None: while there is no model, its part is null.
pub async fn status(state: Arc<ServerState>, request: Request<Body>) -> Result<Response<Body>, ApiError> {
    let counters = &state.counters;
    let mut value = json!({
        "health": state.health().name(),
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_seconds": state.started.elapsed().as_secs_f64(),
        "server": {
            "connections": counters.connections.load(Ordering::Relaxed),
            "answers_open": counters.answers_open.load(Ordering::Relaxed),
            "answers_finished": counters.answers_finished.load(Ordering::Relaxed),
            "answers_abandoned": counters.answers_abandoned.load(Ordering::Relaxed),
            "prompt_tokens": counters.prompt_tokens.load(Ordering::Relaxed),
            "cached_tokens": counters.cached_tokens.load(Ordering::Relaxed),
            "completion_tokens": counters.completion_tokens.load(Ordering::Relaxed)
        },
        "model": null, "context": null, "engine": null
    });
    if let Health::Failed(reason) = state.health() {
        value["reason"] = reason.into();
    }
    if let Ok(backend) = state.backend() {
        let model = backend.model();
        value["model"] = json!({
            "name": model.name, "family": model.family, "parameter_size": model.parameter_size,
            "quantization": model.quantization, "file_bytes": model.file_bytes,
            "dialect": backend.dialect_name()
        });
        value["context"] = backend.context().into();
        value["engine"] = serde_json::to_value(backend.status()).unwrap_or_default();
        let asked = request.uri().query().unwrap_or_default().split('&').any(|part| part == "experts=1");
        if let (true, Some(experts)) = (asked, backend.experts()) {
            value["engine"]["detail"]["telemetry"] = experts;
        }
    }
    Ok(reply::json(StatusCode::OK, &value))
}

/// Everything countable, for Prometheus.
///
/// # Errors
/// None.
pub async fn metrics(state: Arc<ServerState>, _request: Request<Body>) -> Result<Response<Body>, ApiError> {
    let text = crate::metrics::text(&state);
    Ok(reply::with_type(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text))
}

/// Ids of a text.
///
/// # Errors
/// If the request is malformed or the text too long.
pub async fn tokenize(state: Arc<ServerState>, request: Request<Body>) -> Result<Response<Body>, ApiError> {
    let work = |call: &Call, body: Value| {
        let mut fields = Fields::new(body, "")?;
        let mut text = fields.string("content")?;
        for name in ["prompt", "text"] {
            text = text.or(fields.string(name)?);
        }
        let text = text.ok_or_else(|| fields.error("content", "is missing"))?;
        let parse_special = fields.flag("parse_special")?.unwrap_or(true);
        let pieces = fields.flag("with_pieces")?.unwrap_or(false);
        fields.ignore(&["model", "add_special", "add_special_tokens"]);
        let ignored = fields.finish()?;
        let ids = call.backend.encode(&text, parse_special)?;
        let tokens: Value = match pieces {
            false => json!(ids),
            true => {
                let piece = |&id: &u32| {
                    let bytes = call.backend.token_bytes(id);
                    // Part of a character has no text; its bytes say what it is.
                    let piece =
                        String::from_utf8(bytes).map_or_else(|error| json!(error.as_bytes()), Value::from);
                    json!({ "id": id, "piece": piece })
                };
                ids.iter().map(piece).collect::<Vec<Value>>().into()
            }
        };
        Ok((
            json!({ "tokens": tokens, "count": ids.len(), "max_model_len": call.backend.context() }),
            ignored,
        ))
    };
    let (_, (value, ignored)) = Call::handle(state, request, work).await?;
    Ok(crate::router::noting(reply::json(StatusCode::OK, &value), &ignored))
}

/// Text of ids.
///
/// # Errors
/// If the request is malformed.
pub async fn detokenize(state: Arc<ServerState>, request: Request<Body>) -> Result<Response<Body>, ApiError> {
    let work = |call: &Call, body: Value| {
        let mut fields = Fields::new(body, "")?;
        let tokens = fields.list("tokens")?.ok_or_else(|| fields.error("tokens", "is missing"))?;
        fields.ignore(&["model"]);
        let ids: Option<Vec<u32>> =
            tokens.iter().map(|value| whole(value).and_then(|id| u32::try_from(id).ok())).collect();
        let ids = ids.ok_or_else(|| fields.error("tokens", "must be a list of token ids"))?;
        if let Some(vocabulary) = call.backend.vocabulary()
            && let Some(id) = ids.iter().find(|&&id| id as usize >= vocabulary)
        {
            return Err(
                fields.error("tokens", &format!("holds {id}, outside the vocabulary of {vocabulary}"))
            );
        }
        let ignored = fields.finish()?;
        let text = call.backend.decode(&ids);
        Ok((json!({ "content": text, "prompt": text }), ignored))
    };
    let (_, (value, ignored)) = Call::handle(state, request, work).await?;
    Ok(crate::router::noting(reply::json(StatusCode::OK, &value), &ignored))
}

/// The page. It loads nothing from elsewhere, and is told not to.
///
/// # Errors
/// None.
pub async fn dashboard(
    _state: Arc<ServerState>,
    _request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
        connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    let page = include_str!("dashboard.html");
    let mut response = reply::with_type(StatusCode::OK, "text/html; charset=utf-8", page);
    response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    Ok(response)
}
