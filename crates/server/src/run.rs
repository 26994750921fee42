//! Listening: the accept loop, one task per connection, an orderly end.
//!
//! Owns [`Server`] (for callers without a runtime) and [`serve`] (for callers with one). A connection that closes drops
//! what it was doing, which ends its requests. Hyper sees that by itself only where nothing was sent behind the request,
//! so the socket is watched as well; that is why a client that shuts down only its sending half counts as gone.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tower_service::Service;

use crate::errors::{ApiError, ErrorKind, Shape};
use crate::limits::{PacedStream, client_left};
use crate::prepare::Peer;
use crate::router::router;
use crate::settings::ServerSettings;
use crate::state::ServerState;

/// Threads that move bytes; the engine has its own.
const ASYNC_THREADS: usize = 2;
/// Threads that parse and encode requests; bounds the memory that this takes.
const BLOCKING_THREADS: usize = 4;
/// Rest after a failed accept, when files have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Ends a server from any thread.
#[derive(Clone)]
pub struct StopHandle(Arc<watch::Sender<bool>>);

impl StopHandle {
    /// Accepts no further connection, gives answers their time to end, then returns from [`Server::run`].
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

/// A server that has its address and serves nobody yet.
pub struct Server {
    listener: std::net::TcpListener,
    state: Arc<ServerState>,
    stop: StopHandle,
}

impl Server {
    /// Takes the address of the settings. The model may come later: [`ServerState::ready`].
    ///
    /// # Errors
    /// If the address cannot be had.
    pub fn bind(settings: ServerSettings) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind((settings.host, settings.port))?;
        listener.set_nonblocking(true)?;
        Ok(Self {
            listener,
            state: ServerState::new(settings),
            stop: StopHandle(Arc::new(watch::Sender::new(false))),
        })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// If the system does not tell.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// What the caller tells about the model.
    pub fn state(&self) -> Arc<ServerState> {
        self.state.clone()
    }

    /// How the caller ends it.
    pub fn stop_handle(&self) -> StopHandle {
        self.stop.clone()
    }

    /// Serves until stopped, on threads of its own.
    ///
    /// # Errors
    /// If the system gives no threads.
    pub fn run(self) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(ASYNC_THREADS)
            .max_blocking_threads(BLOCKING_THREADS)
            .thread_name("http")
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let listener = TcpListener::from_std(self.listener)?;
            serve(listener, self.state, self.stop.0.subscribe()).await
        })?;
        // Work of clients that are gone must not hold the program.
        runtime.shutdown_timeout(Duration::from_millis(200));
        Ok(())
    }
}

/// Serves connections of `listener` until `stop` turns true.
///
/// # Errors
/// None at present; a failed accept is tried again.
pub async fn serve(
    listener: TcpListener,
    state: Arc<ServerState>,
    mut stop: watch::Receiver<bool>,
) -> io::Result<()> {
    let router = router(state.clone());
    let (open, mut all_closed) = tokio::sync::mpsc::channel::<()>(1);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        let Ok((stream, peer)) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        if state.counters.connections.load(Ordering::Relaxed) >= state.settings.connections_max {
            state.counters.connections_refused.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(turn_away(stream));
            continue;
        }
        state.counters.connections.fetch_add(1, Ordering::Relaxed);
        let (state, router, stop, open) = (state.clone(), router.clone(), stop.clone(), open.clone());
        tokio::spawn(async move {
            let counted = Counted(state.clone());
            connection(stream, peer, router, &state, stop).await;
            drop((counted, open));
        });
    }
    drop((listener, open));
    // Nothing is ever sent: the channel ends with its last connection.
    let _ = tokio::time::timeout(state.settings.stop_grace, all_closed.recv()).await;
    Ok(())
}

struct Counted(Arc<ServerState>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.counters.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    router: Router,
    state: &ServerState,
    mut stop: watch::Receiver<bool>,
) {
    // Tokens are small and must not wait for each other.
    let _ = stream.set_nodelay(true);
    let socket = Arc::new(stream);
    let stream = TokioIo::new(PacedStream::new(socket.clone(), state.settings.write_timeout));
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Peer(peer));
        router.clone().call(request.map(Body::new))
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(state.settings.header_timeout)
        .serve_connection(stream, service);
    let mut connection = pin!(connection);
    tokio::select! {
        // How a client leaves is its own business.
        _ = connection.as_mut() => return,
        () = client_left(&socket) => return,
        _ = stop.wait_for(|stop| *stop) => connection.as_mut().graceful_shutdown(),
    }
    let _ = tokio::time::timeout(state.settings.stop_grace, connection).await;
}

/// Tells a client that there are too many connections.
async fn turn_away(mut stream: TcpStream) {
    let body = ApiError::new(ErrorKind::Unavailable, "too many connections: try again later")
        .body(Shape::OpenAi)
        .to_string();
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         retry-after: 1\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    let written = async {
        stream.write_all(answer.as_bytes()).await?;
        stream.shutdown().await
    };
    let _ = tokio::time::timeout(Duration::from_secs(1), written).await;
}
