//! Errors of the HTTP layer: one value, written in the shape of the API that was called.
//!
//! Owns [`ApiError`], how errors of the backend become one, and [`Shape`]. Refuses to show absolute paths: what the
//! engine says about files is cut to their names. Read next: `guard.rs`, which answers before a handler is reached.

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};

use crate::backend::{BackendError, SubmitError};

/// Whose errors a client expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// `{"error": {"message", "type", "param", "code"}}`
    OpenAi,
    /// `{"type": "error", "error": {"type", "message"}}`
    Anthropic,
    /// `{"error": "message"}`
    Ollama,
}

impl Shape {
    /// The shape of errors below this path.
    pub fn of_path(path: &str) -> Self {
        if path == "/v1/messages" || path.starts_with("/v1/messages/") {
            Self::Anthropic
        } else if path == "/api" || path.starts_with("/api/") {
            Self::Ollama
        } else {
            Self::OpenAi
        }
    }
}

/// What kind of error it is; decides status and names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request is wrong.
    Invalid,
    /// The prompt does not fit the context.
    ContextLength,
    /// The chat template refuses.
    Template,
    /// The schema or grammar cannot be enforced.
    Grammar,
    /// No valid key.
    Unauthorised,
    /// Wrong host or origin.
    Forbidden,
    /// No such thing.
    NotFound,
    /// The path does not know this method.
    MethodNotAllowed,
    /// The body took too long.
    Timeout,
    /// The body is too large.
    TooLarge,
    /// The queue is full.
    QueueFull,
    /// The budget has no room, now or ever.
    OutOfBudget,
    /// The model is not there yet, or no longer.
    Unavailable,
    /// The engine has failed and answers nothing until it is restarted.
    EngineFailed,
    /// Our fault.
    Internal,
}

/// Status, type for OpenAI, code for OpenAI, type for Anthropic.
type Names = (StatusCode, &'static str, Option<&'static str>, &'static str);

impl ErrorKind {
    fn names(self) -> Names {
        const INVALID: &str = "invalid_request_error";
        match self {
            Self::Invalid => (StatusCode::BAD_REQUEST, INVALID, None, INVALID),
            Self::ContextLength => {
                (StatusCode::BAD_REQUEST, INVALID, Some("context_length_exceeded"), INVALID)
            }
            Self::Template => (StatusCode::BAD_REQUEST, INVALID, Some("chat_template_refused"), INVALID),
            Self::Grammar => (StatusCode::BAD_REQUEST, INVALID, Some("unsupported_schema"), INVALID),
            Self::Unauthorised => {
                (StatusCode::UNAUTHORIZED, INVALID, Some("invalid_api_key"), "authentication_error")
            }
            Self::Forbidden => (StatusCode::FORBIDDEN, "permission_error", None, "permission_error"),
            Self::NotFound => (StatusCode::NOT_FOUND, INVALID, Some("not_found"), "not_found_error"),
            Self::MethodNotAllowed => {
                (StatusCode::METHOD_NOT_ALLOWED, INVALID, Some("method_not_allowed"), INVALID)
            }
            Self::Timeout => (StatusCode::REQUEST_TIMEOUT, INVALID, Some("request_timeout"), INVALID),
            Self::TooLarge => {
                (StatusCode::PAYLOAD_TOO_LARGE, INVALID, Some("request_too_large"), "request_too_large")
            }
            Self::QueueFull => {
                (StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", Some("queue_full"), "rate_limit_error")
            }
            Self::OutOfBudget => (
                StatusCode::SERVICE_UNAVAILABLE,
                "out_of_memory_budget",
                Some("out_of_memory_budget"),
                "out_of_memory_budget",
            ),
            Self::Unavailable => {
                (StatusCode::SERVICE_UNAVAILABLE, "server_error", Some("not_ready"), "overloaded_error")
            }
            Self::EngineFailed => {
                (StatusCode::INTERNAL_SERVER_ERROR, "engine_failed", Some("engine_failed"), "engine_failed")
            }
            Self::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "server_error", None, "api_error"),
        }
    }
}

/// An error on its way to the client.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// What kind.
    pub kind: ErrorKind,
    /// A sentence for the person in front of the client.
    pub message: String,
    /// The field at fault.
    pub param: Option<String>,
    /// Seconds after which it is worth trying again.
    pub retry_after_s: Option<u32>,
    /// Overrides the status of the kind.
    pub status: Option<StatusCode>,
}

impl ApiError {
    /// An error of this kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), param: None, retry_after_s: None, status: None }
    }

    /// The request is wrong at this field.
    pub fn field(param: &str, message: impl Into<String>) -> Self {
        Self { param: Some(param.to_owned()), ..Self::new(ErrorKind::Invalid, message) }
    }

    /// The prompt does not fit the context; both counts are told.
    pub fn context_length(prompt: usize, context: usize) -> Self {
        Self::new(
            ErrorKind::ContextLength,
            format!(
                "the prompt has {prompt} tokens and the context holds {context}, of which at least 1 is for the \
                 answer: shorten the prompt or serve with a larger context"
            ),
        )
    }

    /// Status of the answer.
    pub fn status(&self) -> StatusCode {
        self.status.unwrap_or(self.kind.names().0)
    }

    /// The JSON body in this shape.
    pub fn body(&self, shape: Shape) -> Value {
        let (_, openai, code, anthropic) = self.kind.names();
        match shape {
            Shape::OpenAi => json!({ "error": {
                "message": self.message, "type": openai, "param": self.param, "code": code
            } }),
            Shape::Anthropic => {
                json!({ "type": "error", "error": { "type": anthropic, "message": self.message } })
            }
            Shape::Ollama => json!({ "error": self.message }),
        }
    }

    /// The whole answer in this shape.
    pub fn response(&self, shape: Shape) -> Response<Body> {
        let mut response = crate::reply::json(self.status(), &self.body(shape));
        if let Some(seconds) = self.retry_after_s {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.kind == ErrorKind::Unauthorised {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        // Clients of the OpenAI package retry on 5xx unless they are told not to; neither memory nor a failed engine comes
        // back by asking.
        let lasts = matches!(self.kind, ErrorKind::OutOfBudget | ErrorKind::EngineFailed);
        if lasts && self.retry_after_s.is_none() {
            response.headers_mut().insert("x-should-retry", HeaderValue::from_static("false"));
        }
        response
    }
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> Self {
        let message = error.to_string();
        match error {
            SubmitError::QueueFull { .. } => {
                Self { retry_after_s: Some(5), ..Self::new(ErrorKind::QueueFull, message) }
            }
            SubmitError::TooLong { prompt, context } => Self::context_length(prompt, context),
            // It can never fit, so the request is at fault and 503 would invite another try.
            SubmitError::NoRoom { .. } => Self {
                status: Some(StatusCode::BAD_REQUEST),
                ..Self::new(
                    ErrorKind::OutOfBudget,
                    format!(
                        "{message}: shorten it, ask for fewer tokens, or serve with more --request-memory"
                    ),
                )
            },
            SubmitError::NoRoomNow { .. } => {
                Self { retry_after_s: Some(5), ..Self::new(ErrorKind::OutOfBudget, message) }
            }
            SubmitError::BadOption(message) => Self::new(ErrorKind::Invalid, without_paths(&message)),
            SubmitError::Stopped => Self::new(ErrorKind::Unavailable, message),
            SubmitError::Failed(message) => Self::new(ErrorKind::EngineFailed, without_paths(&message)),
        }
    }
}

impl From<BackendError> for ApiError {
    fn from(error: BackendError) -> Self {
        match error {
            BackendError::Template(message) => {
                Self::new(ErrorKind::Template, format!("the chat template refuses the messages: {message}"))
            }
            BackendError::TooLong { prompt, context } => Self::context_length(prompt, context),
            BackendError::TextTooLong(message) => {
                Self::new(ErrorKind::ContextLength, without_paths(&message))
            }
            BackendError::Grammar(message) => Self::new(ErrorKind::Grammar, message),
            BackendError::BadOption(message) => Self::new(ErrorKind::Invalid, without_paths(&message)),
            BackendError::OutOfBudget(message) => Self::new(ErrorKind::OutOfBudget, without_paths(&message)),
            BackendError::Stopped => Self::new(ErrorKind::Unavailable, "the engine is shutting down"),
            BackendError::Failed(message) => Self::new(ErrorKind::EngineFailed, without_paths(&message)),
            BackendError::Internal(message) => Self::new(ErrorKind::Internal, without_paths(&message)),
        }
    }
}

/// The message with absolute paths cut to the name of the file: where a user keeps models is nobody's business.
pub fn without_paths(message: &str) -> String {
    let mut out = String::with_capacity(message.len());
    let mut rest = message;
    let begins = |before: Option<char>| {
        before.is_none_or(|before| before.is_whitespace() || "\"'`(=[<,:".contains(before))
    };
    while let Some(character) = rest.chars().next() {
        let length = if begins(out.chars().next_back()) { path_length(rest) } else { 0 };
        if length > 0 {
            let path = rest[..length].trim_end_matches(['/', '\\']);
            out.push_str("…/");
            out.push_str(path.rsplit(['/', '\\']).next().unwrap_or_default());
            rest = &rest[length..];
        } else {
            out.push(character);
            rest = &rest[character.len_utf8()..];
        }
    }
    out
}

/// Bytes of the absolute path that `text` begins with, 0 if it begins with none.
fn path_length(text: &str) -> usize {
    let bytes = text.as_bytes();
    let unix = bytes.len() > 1 && bytes[0] == b'/' && bytes[1] != b'/' && !bytes[1].is_ascii_whitespace();
    let windows = bytes.len() > 2 && bytes[0].is_ascii_alphabetic() && bytes[1] == b':' && bytes[2] == b'\\';
    if !unix && !windows {
        return 0;
    }
    // A folder with a space in its name goes on where a later word holds a further separator.
    let stop = |text: &str| {
        text.find(|character: char| character.is_whitespace() || "\"'`)]>,;".contains(character))
            .unwrap_or(text.len())
    };
    let mut end = stop(text);
    while text[end..].starts_with(' ') {
        let next = end + 1 + stop(&text[end + 1..]);
        if next == end + 1 || text[end + 1..].starts_with('/') || !text[end + 1..next].contains(['/', '\\']) {
            break;
        }
        end = next;
    }
    text[..end].trim_end_matches([':', '.']).len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absolute_paths_are_cut_to_the_name_of_the_file() {
        let cases = [
            ("/home/me/models/a.gguf was changed while in use", "…/a.gguf was changed while in use"),
            ("cannot open \"/srv/my models/b.gguf\": gone", "cannot open \"…/b.gguf\": gone"),
            ("C:\\models\\c.gguf: tensor x", "…/c.gguf: tensor x"),
            ("read 3/4 of and/or", "read 3/4 of and/or"),
            ("12 / 13", "12 / 13"),
            ("see (/var/lib/x/)", "see (…/x)"),
        ];
        for (message, wanted) in cases {
            assert_eq!(without_paths(message), wanted);
        }
    }

    #[test]
    fn a_request_that_can_never_fit_is_not_worth_a_retry() {
        let error = ApiError::from(SubmitError::NoRoom { needed: 10, pool: 5 });
        assert_eq!(error.status(), StatusCode::BAD_REQUEST);
        assert_eq!(error.body(Shape::OpenAi)["error"]["type"], "out_of_memory_budget");
        assert_eq!(error.response(Shape::OpenAi).headers()["x-should-retry"], "false");
    }
}
