//! Small building blocks of answers: JSON bodies, plain text, the header that names ignored fields.

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use serde_json::Value;

/// Names fields that were accepted and had no effect.
pub const IGNORED_HEADER: &str = "x-coldpress-ignored";

/// Most bytes of the header that names ignored fields; some clients refuse headers of 8 KiB.
const IGNORED_BYTES_MAX: usize = 2000;

/// An answer of JSON.
pub fn json(status: StatusCode, value: &Value) -> Response<Body> {
    with_type(status, "application/json", value.to_string())
}

/// An answer with a body of this type.
pub fn with_type(status: StatusCode, content_type: &'static str, body: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// Names the fields that were ignored.
pub fn note_ignored(response: &mut Response<Body>, ignored: &[String]) {
    if ignored.is_empty() {
        return;
    }
    let mut names: String = ignored.join(", ").escape_default().take(IGNORED_BYTES_MAX).collect();
    names.retain(|character| !character.is_ascii_control());
    if let Ok(value) = HeaderValue::from_str(&names) {
        response.headers_mut().insert(IGNORED_HEADER, value);
    }
}
