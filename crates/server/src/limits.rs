//! What clients may cost: size and pace of bodies, number of JSON values, pace of reading answers.
//!
//! Owns [`read_body`], [`parse_json`] and [`PacedStream`]. A body counts against a total of all bodies until it is
//! parsed, and its values are counted before they are made: a list of zeros takes sixteen times its text in memory.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

use crate::backend::{Backend, Held};
use crate::errors::{ApiError, ErrorKind};
use crate::settings::ServerSettings;

/// Most JSON values of one body. A prompt of 100,000 token ids is far below; the values take at most 100 MB.
pub const JSON_VALUES_MAX: usize = 500_000;

/// Bytes that a JSON value takes beside its text: the value, and its place in a map or list that doubles as it grows.
const VALUE_BYTES: usize = 160;

/// Time in which a body that is too large is still taken, so that the client reads the refusal instead of a reset.
const DRAIN_TIME: Duration = Duration::from_secs(5);

/// A body in memory, counted as long as it lives.
pub struct BodyBytes {
    bytes: Vec<u8>,
    total: Arc<AtomicUsize>,
    counted: usize,
    /// The budget's share.
    held: Box<dyn Held>,
}

impl BodyBytes {
    /// Parses the body.
    ///
    /// # Errors
    /// If it is not JSON, holds too many values, or the budget has no room for them.
    pub fn parse(&mut self) -> Result<Value, ApiError> {
        let values = count_values(&self.bytes).min(JSON_VALUES_MAX);
        self.held.grow((self.bytes.len() + values * VALUE_BYTES) as u64)?;
        parse_json(&self.bytes)
    }

    fn grow(&mut self, piece: &[u8], total_max: usize) -> Result<(), ApiError> {
        let total = self.total.fetch_add(piece.len(), Ordering::Relaxed) + piece.len();
        self.counted += piece.len();
        self.held.grow(piece.len() as u64)?;
        if total > total_max {
            return Err(ApiError {
                retry_after_s: Some(5),
                ..ApiError::new(
                    ErrorKind::Unavailable,
                    "too many large bodies are being received at once: try again later",
                )
            });
        }
        self.bytes.extend_from_slice(piece);
        Ok(())
    }
}

impl Drop for BodyBytes {
    fn drop(&mut self) {
        self.total.fetch_sub(self.counted, Ordering::Relaxed);
    }
}

async fn next_piece(body: &mut Body) -> Option<Result<Vec<u8>, axum::Error>> {
    loop {
        let frame = std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await?;
        match frame {
            Err(error) => return Some(Err(error)),
            Ok(frame) => {
                // Trailers carry nothing for us.
                if let Ok(data) = frame.into_data() {
                    return Some(Ok(data.to_vec()));
                }
            }
        }
    }
}

/// Reads a body within the limits.
///
/// # Errors
/// If it is too large (413), too slow (408), cut off (400), or if all bodies together are too large (503).
pub async fn read_body(
    mut body: Body,
    backend: &dyn Backend,
    total: &Arc<AtomicUsize>,
    settings: &ServerSettings,
) -> Result<BodyBytes, ApiError> {
    let limit = settings.body_bytes_max;
    let stated = body.size_hint().lower();
    let too_large = |bytes: u64| {
        ApiError::new(
            ErrorKind::TooLarge,
            format!("the body has {bytes} bytes or more and may have {limit}: shorten the request"),
        )
    };
    if stated > limit as u64 {
        drain(&mut body).await;
        return Err(too_large(stated));
    }
    let mut read = BodyBytes { bytes: Vec::new(), total: total.clone(), counted: 0, held: backend.hold(0)? };
    // Address space only; pages are used as they are filled.
    read.bytes.reserve_exact(usize::try_from(stated).unwrap_or(0).min(limit));
    let end = Instant::now() + settings.body_timeout;
    loop {
        let until = end.min(Instant::now() + settings.body_idle_timeout);
        let piece = match tokio::time::timeout_at(until, next_piece(&mut body)).await {
            Err(_) => {
                let received = read.bytes.len();
                let message = format!("the body came too slowly: {received} bytes were received");
                return Err(ApiError::new(ErrorKind::Timeout, message));
            }
            Ok(None) => return Ok(read),
            Ok(Some(Err(_))) => return Err(ApiError::new(ErrorKind::Invalid, "the body was cut off")),
            Ok(Some(Ok(piece))) => piece,
        };
        if read.bytes.len() + piece.len() > limit {
            let seen = (read.bytes.len() + piece.len()) as u64;
            drop(read);
            drain(&mut body).await;
            return Err(too_large(seen));
        }
        read.grow(&piece, settings.bodies_bytes_max)?;
    }
}

async fn drain(body: &mut Body) {
    let all = async { while let Some(Ok(_)) = next_piece(body).await {} };
    // Whoever sends for longer finds the connection closed.
    let _ = tokio::time::timeout(DRAIN_TIME, all).await;
}

/// Parses JSON; errors tell line and column.
fn parse_json(bytes: &[u8]) -> Result<Value, ApiError> {
    let values = count_values(bytes);
    if values > JSON_VALUES_MAX {
        return Err(ApiError::new(
            ErrorKind::TooLarge,
            format!("the body holds about {values} JSON values and may hold {JSON_VALUES_MAX}"),
        ));
    }
    serde_json::from_slice(bytes)
        .map_err(|error| ApiError::new(ErrorKind::Invalid, format!("the body is not valid JSON: {error}")))
}

/// Number of values of well-formed JSON, or more: one per separator and bracket outside of strings.
fn count_values(bytes: &[u8]) -> usize {
    let (mut values, mut in_string, mut escaped) = (1, false, false);
    for &byte in bytes {
        if in_string {
            (in_string, escaped) = (escaped || byte != b'"', !escaped && byte == b'\\');
        } else {
            in_string = byte == b'"';
            values += usize::from(matches!(byte, b',' | b'[' | b'{'));
        }
    }
    values
}

/// A connection that fails when the other side takes no byte for too long. Otherwise a client that stops reading would
/// hold its answer for ever. The socket is shared with whoever waits for the client's leaving.
pub struct PacedStream {
    stream: Arc<TcpStream>,
    write_timeout: Duration,
    /// Set while a write waits.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl PacedStream {
    /// Watches over this connection.
    pub fn new(stream: Arc<TcpStream>, write_timeout: Duration) -> Self {
        Self { stream, write_timeout, waiting: None }
    }

    /// Whether the wait for room has lasted too long.
    fn timed_out(&mut self, context: &mut Context<'_>) -> bool {
        let timeout = self.write_timeout;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        waiting.as_mut().poll(context).is_ready()
    }

    fn poll_written(
        &mut self,
        context: &mut Context<'_>,
        write: impl Fn(&TcpStream) -> std::io::Result<usize>,
    ) -> Poll<std::io::Result<usize>> {
        loop {
            match self.stream.poll_write_ready(context) {
                Poll::Pending if self.timed_out(context) => {
                    return Poll::Ready(Err(std::io::ErrorKind::TimedOut.into()));
                }
                Poll::Pending => return Poll::Pending,
                Poll::Ready(ready) => ready?,
            }
            match write(&self.stream) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                result => {
                    self.waiting = None;
                    return Poll::Ready(result);
                }
            }
        }
    }
}

/// Time between two looks at a connection whose client has sent more than was read yet.
const LOOK: Duration = Duration::from_millis(50);

/// Waits until the client has closed the connection or its sending half, also behind bytes that nobody has read yet.
pub async fn client_left(stream: &TcpStream) {
    while let Ok(ready) = stream.ready(Interest::READABLE).await {
        if ready.is_read_closed() {
            return;
        }
        tokio::time::sleep(LOOK).await;
    }
}

impl AsyncRead for PacedStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        loop {
            match self.stream.poll_read_ready(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(ready) => ready?,
            }
            match self.stream.try_read(buffer.initialize_unfilled()) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
                Ok(bytes) => {
                    buffer.advance(bytes);
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

impl AsyncWrite for PacedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        self.poll_written(context, |stream| stream.try_write(bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        self.poll_written(context, |stream| stream.try_write_vectored(slices))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match socket2::SockRef::from(&*self.stream).shutdown(std::net::Shutdown::Write) {
            // It is closed already.
            Err(error) if error.kind() == std::io::ErrorKind::NotConnected => Poll::Ready(Ok(())),
            result => Poll::Ready(result),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_outside_of_strings() {
        assert_eq!(count_values(br#"{"a": "[,,\",\\", "b": [1, 2]}"#), 5);
        assert_eq!(count_values(b"1"), 1);
    }

    #[test]
    fn a_list_of_too_many_zeros_is_refused_before_it_is_made() {
        let text = format!("[{}0]", "0,".repeat(JSON_VALUES_MAX));
        assert_eq!(parse_json(text.as_bytes()).expect_err("too many").kind, ErrorKind::TooLarge);
    }
}
