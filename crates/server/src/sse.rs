//! Streams: the deltas of answers written by a protocol's writer, with a sign of life by the wall clock.
//!
//! Owns [`EventBody`], the body of every streamed response. It is polled by the connection itself: when the client
//! leaves, the connection drops the body, the body drops its answers, and their tickets end the requests. Headers
//! leave before the first poll. Read next: the writers (`openai/chat.rs`, `anthropic/stream.rs`, …).

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::{HeaderValue, Response, StatusCode, header};
use hyper::body::Frame;
use serde_json::Value;
use tokio::time::{Instant, Sleep};

use crate::answer::{Answer, Delta};
use crate::errors::ApiError;

/// Time between two notes of progress, so that fast prefill does not flood a client.
const PROGRESS_EVERY: Duration = Duration::from_millis(200);
/// A frame is sent when it has so many bytes, even if more is ready.
const FRAME_BYTES: usize = 16 << 10;

/// Writes one protocol's stream.
pub trait StreamWriter: Send + Unpin + 'static {
    /// Before anything is known.
    fn begin(&mut self, out: &mut String);
    /// A step of choice `choice`; never `Failed`.
    fn delta(&mut self, choice: usize, delta: Delta, out: &mut String);
    /// All choices are complete.
    fn end(&mut self, out: &mut String);
    /// A choice failed; nothing follows.
    fn failed(&mut self, error: &ApiError, out: &mut String);
    /// Nothing was sent for a while.
    fn keep_alive(&mut self, out: &mut String) {
        out.push_str(": keep-alive\n\n");
    }
}

/// Writes an event without a name.
pub fn data(out: &mut String, value: &Value) {
    out.push_str("data: ");
    out.push_str(&value.to_string());
    out.push_str("\n\n");
}

/// Writes an event with a name.
pub fn event(out: &mut String, name: &str, value: &Value) {
    out.push_str("event: ");
    out.push_str(name);
    out.push('\n');
    data(out, value);
}

/// Writes a comment about the queue or the prompt, which clients ignore.
pub fn progress_comment(out: &mut String, delta: &Delta) {
    let text = match delta {
        Delta::Queued(ahead) => format!(": queued behind {ahead}\n\n"),
        Delta::Started(cached) => format!(": started, {cached} prompt tokens cached\n\n"),
        Delta::Prefill { done, total } => format!(": prefill {done}/{total}\n\n"),
        _ => return,
    };
    out.push_str(&text);
}

/// The same as an object, for clients that asked for it.
pub fn progress_value(delta: &Delta) -> Option<Value> {
    match delta {
        Delta::Queued(ahead) => Some(serde_json::json!({ "queued_behind": ahead })),
        Delta::Started(cached) => Some(serde_json::json!({ "cached_tokens": cached })),
        Delta::Prefill { done, total } => {
            Some(serde_json::json!({ "prefill": { "done": done, "total": total } }))
        }
        _ => None,
    }
}

/// See the module header.
pub struct EventBody<W> {
    writer: W,
    /// One per choice; `None` when it is complete.
    answers: Vec<Option<Answer>>,
    keep_alive: Duration,
    silence: Pin<Box<Sleep>>,
    last_progress: Option<Instant>,
    begun: bool,
    ended: bool,
}

impl<W: StreamWriter> EventBody<W> {
    /// A stream of these answers; after `keep_alive` without output it gives a sign of life.
    pub fn new(writer: W, answers: Vec<Answer>, keep_alive: Duration) -> Self {
        Self {
            writer,
            answers: answers.into_iter().map(Some).collect(),
            keep_alive,
            silence: Box::pin(tokio::time::sleep(keep_alive)),
            last_progress: None,
            begun: false,
            ended: false,
        }
    }

    /// The response, with headers that keep proxies from holding it back.
    pub fn response(self, content_type: &'static str) -> Response<Body> {
        let mut response = Response::new(Body::new(self));
        *response.status_mut() = StatusCode::OK;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
        response
    }

    fn wants(&mut self, delta: &Delta) -> bool {
        let Delta::Prefill { done, total } = delta else { return true };
        let now = Instant::now();
        let due = self.last_progress.is_none_or(|last| now - last >= PROGRESS_EVERY);
        if due || done == total {
            self.last_progress = Some(now);
            return true;
        }
        false
    }

    fn fill(&mut self, context: &mut Context<'_>, out: &mut String) {
        if !self.begun {
            self.begun = true;
            self.writer.begin(out);
        }
        for choice in 0..self.answers.len() {
            while let Some(answer) = &mut self.answers[choice] {
                if out.len() >= FRAME_BYTES {
                    return;
                }
                match answer.poll_delta(context) {
                    Poll::Pending => break,
                    Poll::Ready(None) => self.answers[choice] = None,
                    Poll::Ready(Some(Delta::Failed(error))) => {
                        self.writer.failed(&error, out);
                        self.answers.clear();
                        self.ended = true;
                        return;
                    }
                    Poll::Ready(Some(delta)) => {
                        if self.wants(&delta) {
                            self.writer.delta(choice, delta, out);
                        }
                    }
                }
            }
        }
        if self.answers.iter().all(Option::is_none) {
            self.writer.end(out);
            self.ended = true;
        }
    }

    fn poll_text(&mut self, context: &mut Context<'_>) -> Poll<Option<String>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let mut out = String::new();
        self.fill(context, &mut out);
        if out.is_empty() && !self.ended && self.silence.as_mut().poll(context).is_ready() {
            self.writer.keep_alive(&mut out);
        }
        if out.is_empty() {
            return if self.ended { Poll::Ready(None) } else { Poll::Pending };
        }
        self.silence.as_mut().reset(Instant::now() + self.keep_alive);
        Poll::Ready(Some(out))
    }
}

impl<W: StreamWriter> HttpBody for EventBody<W> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.poll_text(context).map(|text| text.map(|text| Ok(Frame::data(Bytes::from(text)))))
    }
}
