//! What all handlers share: the model once it is there, its health until then, settings and counters.
//!
//! The server listens before the model is loaded, so that `/health` can tell how far it is. Handlers get the backend
//! from [`ServerState::backend`] or an error that says why there is none.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::answer::Usage;
use crate::backend::Backend;
use crate::errors::{ApiError, ErrorKind, without_paths};
use crate::settings::ServerSettings;

/// How far the model is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// Weights are being read.
    Loading,
    /// The first token is being computed.
    Probing,
    /// It answers.
    Ready,
    /// It never will.
    Failed(String),
}

impl Health {
    /// The word in `/health`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Loading => "loading",
            Self::Probing => "probing",
            Self::Ready => "ready",
            Self::Failed(_) => "failed",
        }
    }
}

/// Counters of the HTTP layer since its start.
#[derive(Default)]
pub struct Counters {
    /// Answered requests by route and status.
    responses: Mutex<BTreeMap<(String, u16), u64>>,
    /// Open connections.
    pub connections: AtomicUsize,
    /// Connections turned away at the limit.
    pub connections_refused: AtomicU64,
    /// Answers that clients are waiting for.
    pub answers_open: AtomicUsize,
    /// Answers whose client left before they were complete.
    pub answers_abandoned: AtomicU64,
    /// Answers that were completed.
    pub answers_finished: AtomicU64,
    /// Tokens of prompts of completed answers.
    pub prompt_tokens: AtomicU64,
    /// Those of them that were not computed again.
    pub cached_tokens: AtomicU64,
    /// Tokens of completed answers.
    pub completion_tokens: AtomicU64,
    /// Microseconds in which completed answers waited for the disk.
    pub disk_wait_us: AtomicU64,
}

impl Counters {
    /// Counts an answered request.
    pub fn answered(&self, route: &str, status: u16) {
        let mut responses = self.responses.lock().unwrap_or_else(PoisonError::into_inner);
        *responses.entry((route.to_owned(), status)).or_default() += 1;
    }

    /// Answered requests by route and status.
    pub fn responses(&self) -> BTreeMap<(String, u16), u64> {
        self.responses.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Counts a completed answer.
    pub fn finished(&self, usage: &Usage) {
        self.answers_finished.fetch_add(1, Ordering::Relaxed);
        self.prompt_tokens.fetch_add(usage.prompt_tokens as u64, Ordering::Relaxed);
        self.cached_tokens.fetch_add(usage.cached_tokens as u64, Ordering::Relaxed);
        self.completion_tokens.fetch_add(usage.completion_tokens as u64, Ordering::Relaxed);
        let disk_wait = usage.finished.as_ref().map_or(0, |finished| finished.disk_wait.as_micros());
        self.disk_wait_us.fetch_add(u64::try_from(disk_wait).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

/// See the module header.
pub struct ServerState {
    /// The settings.
    pub settings: ServerSettings,
    /// The counters.
    pub counters: Arc<Counters>,
    /// Bytes of request bodies in memory.
    pub body_bytes: Arc<AtomicUsize>,
    /// When the server started.
    pub started: Instant,
    health: Mutex<Health>,
    backend: OnceLock<Arc<dyn Backend>>,
    identifiers: AtomicU64,
    /// Starts the identifiers of this run, so that those of two runs differ.
    run: u64,
}

impl ServerState {
    /// A server whose model is being loaded.
    pub fn new(settings: ServerSettings) -> Arc<Self> {
        Arc::new(Self {
            settings,
            counters: Arc::default(),
            body_bytes: Arc::default(),
            started: Instant::now(),
            health: Mutex::new(Health::Loading),
            backend: OnceLock::new(),
            identifiers: AtomicU64::new(0),
            run: random(),
        })
    }

    /// Tells how far the model is. `Ready` is told by [`ServerState::ready`].
    pub fn set_health(&self, health: Health) {
        let health = match health {
            Health::Failed(reason) => Health::Failed(without_paths(&reason)),
            health => health,
        };
        *self.health.lock().unwrap_or_else(PoisonError::into_inner) = health;
    }

    /// The model answers from now on. A second call changes nothing but the health.
    pub fn ready(&self, backend: Arc<dyn Backend>) {
        // Only the first is kept: answers under way hold on to it.
        let _ = self.backend.set(backend);
        self.set_health(Health::Ready);
    }

    /// How far the model is, or why it answers no more.
    pub fn health(&self) -> Health {
        let told = self.health.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let failure = self.backend.get().and_then(|backend| backend.failure());
        match (told, failure) {
            (Health::Ready, Some(reason)) => Health::Failed(without_paths(&reason)),
            (told, _) => told,
        }
    }

    /// The model.
    ///
    /// # Errors
    /// While it is loaded, and when that failed.
    pub fn backend(&self) -> Result<Arc<dyn Backend>, ApiError> {
        let unavailable = |message: String, retry_after_s| ApiError {
            retry_after_s,
            ..ApiError::new(ErrorKind::Unavailable, message)
        };
        match self.health() {
            Health::Ready => {
                let backend = self.backend.get().cloned();
                backend.ok_or_else(|| unavailable("the model is loading".to_owned(), Some(2)))
            }
            Health::Loading => Err(unavailable("the model is loading".to_owned(), Some(2))),
            Health::Probing => Err(unavailable("the model computes its first token".to_owned(), Some(1))),
            Health::Failed(reason) if self.backend.get().is_some() => Err(ApiError::new(
                ErrorKind::EngineFailed,
                format!("the engine failed and answers nothing any more ({reason}): restart it"),
            )),
            Health::Failed(reason) => Err(unavailable(format!("the model failed: {reason}"), None)),
        }
    }

    /// A new identifier with this prefix, not used before.
    pub fn identifier(&self, prefix: &str) -> String {
        let number = self.identifiers.fetch_add(1, Ordering::Relaxed);
        format!("{prefix}{:016x}{:08x}", self.run, number)
    }
}

/// Seconds since 1970.
pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// A number that nobody can foresee: the standard library seeds its hash tables with it.
pub fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}
