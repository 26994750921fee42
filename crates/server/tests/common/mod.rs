//! A server with a model that follows a script, and a client of plain sockets that sees every byte and every moment.

#![allow(dead_code, unused_imports, reason = "every test file uses a part of it")]

pub mod client;
pub mod scripted;

use std::sync::Arc;
use std::time::{Duration, Instant};

use coldpress_server::{Server, ServerSettings, ServerState, StopHandle};

pub use client::{Events, Reply, Socket};
pub use scripted::{Scripted, Step};

/// A running server; it ends with this value.
pub struct Running {
    pub address: std::net::SocketAddr,
    pub state: Arc<ServerState>,
    pub model: Arc<Scripted>,
    stop: StopHandle,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// Settings that listen at any free port.
pub fn settings() -> ServerSettings {
    ServerSettings { port: 0, stop_grace: Duration::from_millis(200), ..ServerSettings::default() }
}

impl Running {
    /// A server whose model is ready.
    pub fn with(settings: ServerSettings, model: Scripted) -> Self {
        let running = Self::loading(settings, model);
        running.state.ready(running.model.clone());
        running
    }

    /// A server whose model is not there yet.
    pub fn loading(settings: ServerSettings, model: Scripted) -> Self {
        let server = Server::bind(settings).expect("a free port");
        let (address, state, stop) =
            (server.address().expect("an address"), server.state(), server.stop_handle());
        let thread = std::thread::spawn(move || server.run().expect("a server"));
        Self { address, state, model: Arc::new(model), stop, thread: Some(thread) }
    }

    /// A server that says these words.
    pub fn saying(words: &[&str]) -> Self {
        Self::with(settings(), Scripted::saying(words))
    }

    pub fn connect(&self) -> Socket {
        Socket::connect(self.address)
    }

    pub fn get(&self, path: &str) -> Reply {
        self.connect().request("GET", path, &[], b"")
    }

    pub fn post(&self, path: &str, body: &serde_json::Value) -> Reply {
        self.connect().request(
            "POST",
            path,
            &[("content-type", "application/json")],
            body.to_string().as_bytes(),
        )
    }

    pub fn stream(&self, path: &str, body: &serde_json::Value) -> Events {
        let mut socket = self.connect();
        socket.send("POST", path, &[("content-type", "application/json")], body.to_string().as_bytes());
        socket.events()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Waits until something holds; panics after five seconds.
pub fn eventually(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(5), "{what} did not happen within 5 s");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A conversation of one message.
pub fn hello() -> serde_json::Value {
    serde_json::json!([{ "role": "user", "content": "hello" }])
}
