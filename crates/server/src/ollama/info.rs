//! What the Ollama protocol tells about the model and the server.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, Response, StatusCode};
use serde_json::{Map, Value, json};

use crate::backend::{Backend, ModelDescription};
use crate::errors::{ApiError, ErrorKind};
use crate::fields::Fields;
use crate::prepare::Call;
use crate::reply;
use crate::router::noting;
use crate::state::{ServerState, unix_seconds};

/// A time in the form `2026-01-31T12:00:00Z`.
pub fn rfc3339(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Days to a date of the Gregorian calendar, counted in eras of 400 years from 1 March 0000 (Howard Hinnant,
    // chrono-Compatible Low-Level Date Algorithms).
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// The time now.
pub fn rfc3339_now() -> String {
    rfc3339(unix_seconds())
}

fn details(model: &ModelDescription) -> Value {
    json!({
        "parent_model": "", "format": "gguf", "family": model.family, "families": [model.family],
        "parameter_size": model.parameter_size, "quantization_level": model.quantization
    })
}

/// A name for the model's bytes. It is made of name and size: files are not read through for it.
fn digest(model: &ModelDescription) -> String {
    blake3::hash(format!("{} {}", model.name, model.file_bytes).as_bytes()).to_hex().to_string()
}

fn entry(backend: &dyn Backend) -> Value {
    let model = backend.model();
    json!({
        "name": model.name, "model": model.name, "modified_at": rfc3339(model.loaded_at),
        "size": model.file_bytes, "digest": digest(model), "details": details(model)
    })
}

/// All models: there is one.
///
/// # Errors
/// While there is none yet.
pub async fn tags(state: Arc<ServerState>, _request: Request<Body>) -> Result<Response<Body>, ApiError> {
    let backend = state.backend()?;
    Ok(reply::json(StatusCode::OK, &json!({ "models": [entry(&*backend)] })))
}

/// The model in memory.
///
/// # Errors
/// While there is none yet.
pub async fn running(state: Arc<ServerState>, _request: Request<Body>) -> Result<Response<Body>, ApiError> {
    let backend = state.backend()?;
    let mut model = entry(&*backend);
    model["expires_at"] = "9999-12-31T23:59:59Z".into();
    model["size_vram"] = 0.into();
    model["context_length"] = backend.context().into();
    Ok(reply::json(StatusCode::OK, &json!({ "models": [model] })))
}

/// The version of the server.
///
/// # Errors
/// None.
pub async fn version(_state: Arc<ServerState>, _request: Request<Body>) -> Result<Response<Body>, ApiError> {
    Ok(reply::json(StatusCode::OK, &json!({ "version": env!("CARGO_PKG_VERSION") })))
}

/// The model in detail.
///
/// # Errors
/// If the request is malformed or names another model.
pub async fn show(state: Arc<ServerState>, request: Request<Body>) -> Result<Response<Body>, ApiError> {
    let read = |call: &Call, body: Value| {
        let mut fields = Fields::new(body, "")?;
        let mut name = fields.string("model")?;
        name = name.or(fields.string("name")?);
        let name = name.ok_or_else(|| fields.error("model", "is missing"))?;
        fields.ignore(&["verbose", "system", "template", "options"]);
        let ignored = fields.finish()?;
        let served = &call.backend.model().name;
        if name.strip_suffix(":latest").unwrap_or(&name) != served.strip_suffix(":latest").unwrap_or(served) {
            let message = format!("there is no model {name:?}; the one that is served is {served:?}");
            return Err(ApiError::new(ErrorKind::NotFound, message));
        }
        Ok(ignored)
    };
    let (call, ignored) = Call::handle(state, request, read).await?;
    let (backend, model) = (&call.backend, call.backend.model());
    let mut info = Map::new();
    info.insert("general.architecture".to_owned(), model.family.as_str().into());
    info.insert(format!("{}.context_length", model.family), model.trained_context.into());
    info.insert(format!("{}.embedding_length", model.family), model.embedding_length.into());
    info.insert("coldpress.context_length".to_owned(), backend.context().into());
    info.insert("coldpress.dialect".to_owned(), backend.dialect_name().into());
    let optional = [("tools", model.tools), ("thinking", model.thinking)];
    let capabilities: Vec<&str> = ["completion"]
        .into_iter()
        .chain(optional.into_iter().filter(|&(_, has)| has).map(|(name, _)| name))
        .collect();
    let value = json!({
        "modelfile": "", "parameters": "", "template": model.template.as_deref().unwrap_or_default(),
        "details": details(model), "model_info": info, "capabilities": capabilities,
        "modified_at": rfc3339(model.loaded_at)
    });
    Ok(noting(reply::json(StatusCode::OK, &value), &ignored))
}

/// Refuses embeddings.
///
/// # Errors
/// Always.
pub async fn embed(state: Arc<ServerState>, request: Request<Body>) -> Result<Response<Body>, ApiError> {
    crate::openai::models::embeddings(state, request).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_dates() {
        // Compared with `date -u -d @SECONDS`.
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(951_827_696), "2000-02-29T12:34:56Z");
        assert_eq!(rfc3339(4_102_444_799), "2099-12-31T23:59:59Z");
    }
}
