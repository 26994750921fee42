//! What a request is answered with: a protocol's [`Form`] of its answers, JSON bodies, plain text, the header that names
//! ignored fields and the one that names lossy settings.

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use serde_json::Value;

use crate::answer::Answer;
use crate::collect::{Collected, collect_all};
use crate::errors::ApiError;
use crate::prepare::Call;
use crate::sse::{EventBody, StreamWriter};

/// How a protocol writes the answers of one request.
pub trait Form: Sized {
    /// Writes them as they come.
    type Stream: StreamWriter;
    /// Media type of the stream.
    const STREAM_TYPE: &'static str = "text/event-stream";
    /// Begins to write them as they come.
    fn stream(self) -> Self::Stream;
    /// All of them at once; there is at least one.
    fn whole(&self, answers: &[Collected]) -> Value;
}

/// A request that computes.
pub struct Started<F> {
    /// One per choice.
    pub answers: Vec<Answer>,
    /// Whether the client wants them as they come.
    pub stream: bool,
    /// How they are written.
    pub form: F,
    /// Fields that have no effect.
    pub ignored: Vec<String>,
}

impl<F: Form> Started<F> {
    /// The response to `call`.
    ///
    /// # Errors
    /// An answer fails before anything was sent.
    pub async fn respond(self, call: &Call) -> Result<Response<Body>, ApiError> {
        let Self { answers, stream, form, ignored } = self;
        let mut response = if stream {
            EventBody::new(form.stream(), answers, call.state.settings.keep_alive).response(F::STREAM_TYPE)
        } else {
            let collected = collect_all(answers).await?;
            json(StatusCode::OK, &form.whole(&collected))
        };
        note_ignored(&mut response, &ignored);
        if let Ok(backend) = call.state.backend() {
            note_lossy(&mut response, &backend.model().lossy);
        }
        Ok(response)
    }
}

/// Names fields that were accepted and had no effect.
pub const IGNORED_HEADER: &str = "x-coldpress-ignored";

/// Names what makes an answer differ from that of exact settings.
pub const LOSSY_HEADER: &str = "x-coldpress-lossy";

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

/// Names the settings that are lossy; without any there is no such header.
fn note_lossy(response: &mut Response<Body>, lossy: &[String]) {
    if lossy.is_empty() {
        return;
    }
    if let Ok(value) = HeaderValue::from_str(&lossy.join(", ")) {
        response.headers_mut().insert(LOSSY_HEADER, value);
    }
}
