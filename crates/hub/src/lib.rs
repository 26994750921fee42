//! Models from a Hugging Face-compatible hub, in the hub's own cache layout, so that other programs find them and nothing is fetched twice.
//!
//! [`pull`] lists a repository, chooses the files of one model, downloads what the cache lacks, checks every byte against the hub's hash
//! and links it into the snapshot; [`plan`] says what that would be. Names, lengths, hashes, redirects and answers of the hub are hostile
//! until shown otherwise. Refuses: knowing what is inside a model, printing, reading the environment (but for the
//! variables of proxies, which the HTTP crate reads).
//!
//! Read next: `pull.rs` (the whole), `choose.rs` (which files), `transfer.rs` (one file), `cache.rs` (the layout), `client.rs` (requests).

#![forbid(unsafe_code)]

mod address;
mod cache;
mod choose;
mod client;
mod digest;
mod error;
mod listing;
mod local;
mod lock;
mod names;
mod pull;
mod refusal;
mod retry;
mod transfer;

use std::path::PathBuf;
use std::time::Duration;

pub use address::PUBLIC_ENDPOINT;
pub use error::HubError;
pub use names::ModelName;
pub use pull::{FileReport, FileState, PullReport, plan, pull};

/// Where the hub and the cache are, and how patient a pull is.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Address of the hub, such as [`PUBLIC_ENDPOINT`].
    pub endpoint: String,
    /// Token of the user; goes to the endpoint alone.
    pub token: Option<String>,
    /// Folder of the cache, which holds `models--ORGANISATION--NAME`.
    pub cache: PathBuf,
    /// Whether nothing may be fetched.
    pub offline: bool,
    /// Certificates to trust instead of those in the program, in PEM form.
    pub certificates: Option<PathBuf>,
    /// Failures in a row before a pull ends.
    pub retries: u32,
    /// First wait after a failure; each further one is twice as long.
    pub backoff: Duration,
    /// Longest wait, whoever asks for it.
    pub longest_wait: Duration,
    /// A server that is silent for this long is as good as cut off.
    pub silence: Duration,
    /// Bytes of one request; larger files take several, because servers in between refuse answers above 50 GB.
    pub request_bytes: u64,
}

impl Settings {
    /// The public hub with this cache, and usual patience.
    pub fn new(cache: PathBuf) -> Self {
        Self {
            endpoint: PUBLIC_ENDPOINT.to_owned(),
            token: None,
            cache,
            offline: false,
            certificates: None,
            retries: 6,
            backoff: Duration::from_secs(1),
            longest_wait: Duration::from_secs(310),
            silence: Duration::from_secs(30),
            request_bytes: 32 << 30,
        }
    }

    /// Whether the token goes to the endpoint: on the open network only over HTTPS.
    fn sends_token(&self, endpoint: &address::Origin) -> bool {
        endpoint.secure || endpoint.is_loopback()
    }
}

/// Who watches a pull.
pub trait Observer {
    /// `done` of `total` bytes of the model are there.
    fn progress(&mut self, done: u64, total: u64);
    /// Something the user should know.
    fn note(&mut self, text: &str);
    /// Whether to stop; asked ten times a second or more.
    fn should_stop(&mut self) -> bool;
}
