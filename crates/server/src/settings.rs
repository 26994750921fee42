//! Settings of the server: addresses, who may ask, and every limit, in one place.

use std::net::IpAddr;
use std::time::Duration;

/// How the server listens and what it bears.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// Address to listen at.
    pub host: IpAddr,
    /// Port to listen at; 0 lets the system choose.
    pub port: u16,
    /// Key that clients must send; without one, anybody who reaches the port may ask.
    pub api_key: Option<String>,
    /// Origins of web pages that may ask (`https://chat.example`), beside those of this machine; `*` allows all.
    pub cors_origins: Vec<String>,
    /// Further host names under which clients may reach a server that listens on loopback without a key.
    pub allowed_hosts: Vec<String>,
    /// Largest request body.
    pub body_bytes_max: usize,
    /// Bytes of all request bodies that are being read or parsed at once.
    pub bodies_bytes_max: usize,
    /// Connections at once; further ones are told so and closed.
    pub connections_max: usize,
    /// Time for the headers of a request, and for the next request on a connection that rests.
    pub header_timeout: Duration,
    /// Longest silence while a body is read.
    pub body_idle_timeout: Duration,
    /// Longest time for a whole body.
    pub body_timeout: Duration,
    /// Longest time in which a client takes no byte of its answer.
    pub write_timeout: Duration,
    /// Longest silence on a stream, by the wall clock; below the 5 s that clients count on.
    pub keep_alive: Duration,
    /// Time that answers have to end after the server was told to stop.
    pub stop_grace: Duration,
    /// Most choices (`n`) of one request.
    pub choices_max: usize,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self {
            host: IpAddr::from([127, 0, 0, 1]),
            port: 8080,
            api_key: None,
            cors_origins: Vec::new(),
            allowed_hosts: Vec::new(),
            body_bytes_max: 64 << 20,
            bodies_bytes_max: 160 << 20,
            connections_max: 2048,
            header_timeout: Duration::from_secs(30),
            body_idle_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(300),
            write_timeout: Duration::from_secs(60),
            keep_alive: Duration::from_secs(4),
            stop_grace: Duration::from_secs(5),
            choices_max: 16,
        }
    }
}

impl ServerSettings {
    /// Whether only this machine can reach the server and nothing else protects it.
    pub fn relies_on_loopback(&self) -> bool {
        self.host.is_loopback() && self.api_key.is_none()
    }
}
