//! Many requests, one model: a thread that owns a [`Runtime`] and computes requests as one batch.
//!
//! Requests wait in a queue in which clients take turns (`queue`). Up to `parallel` of them are computed at once: every
//! forward pass carries the latest token of each answer and a part of the prompts that are being read (`schedule`, `pace`),
//! so experts that several rows need are read and visited once, and running answers keep moving while a long prompt is
//! read. A row's result does not depend on the rows beside it, so each request gets the bits of a run of its own.
//!
//! Keys and values lie in pages of one pool that the plan has set aside. What a request has computed stays in the prefix tree
//! (`prefix`) until its pages are needed, and in snapshots on disk where there is a folder for them (`snapshots`). A request that finds no free
//! page takes one from the tree; if there is none, the youngest request makes room and continues later from its tokens.
//! Nothing is allocated beyond the plan: prompts that wait come out of a pot (`pot`).
//!
//! The caller's end is [`ServiceClient`]. Dropping a [`Ticket`] cancels: in the queue at once, else after the current layer.
//! Read next: `worker.rs`, the loop.

mod access;
mod answer;
mod answer_memory;
mod client;
mod keeping;
mod pace;
mod pass;
mod pot;
mod prefix;
mod queue;
mod request;
mod schedule;
mod snapshot_file;
mod snapshots;
mod worker;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;

use coldpress_memory::{Bytes, Purpose, sys};
use coldpress_text::Dialect;

use crate::error::EngineError;
use crate::keeper::lock;
use crate::runtime::Runtime;
use crate::sampling::AnswerSampler;

pub use client::{
    Constrained, ConstraintError, PrefixStatus, RequestMemory, RunningStatus, ServiceClient, ServiceStatus,
    Sink, Totals,
};
pub use pot::{Held, RequestPot};
pub use request::{Ending, Event, Finished, Request, Share, SubmitError, Ticket, TokenLogprob};

use client::{Bell, Figures, Shared};
use pot::RequestPot as Pot;
use queue::FairQueue;
use worker::Worker;

/// Most requests that can be computed at once.
pub const PARALLEL_MAX: usize = 32;

/// Connections, the threads that read them, and what small things requests leave behind.
const CONNECTION_BYTES: usize = 24 << 20;

/// Memory of one compiled grammar or schema: more than usual ones take. The largest that was found by trying took 28 MiB.
pub(crate) const CONSTRAINT_BYTES: u64 = 16 << 20;

/// Memory of the tables that grammars need of a vocabulary, while they are made.
pub(crate) fn grammar_bytes(vocabulary: usize) -> u64 {
    (4 << 20) + 512 * vocabulary as u64
}

/// What a service takes beside samplers, staging and the pot.
fn small_bytes(vocabulary: usize, keeps_answers: bool) -> u64 {
    // They are copied to be written.
    let answers = answer_memory::BYTES_MAX << usize::from(keeps_answers);
    (answers + CONNECTION_BYTES) as u64 + grammar_bytes(vocabulary)
}

/// What a server adds to a plan; see [`LoadConfiguration::serving`](crate::LoadConfiguration::serving).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Serving {
    /// Requests that are computed at once, 1 to [`PARALLEL_MAX`].
    pub parallel: usize,
    /// Requests that may wait.
    pub queue: usize,
    /// Positions of keys and values for all requests and the prefix cache together; `None` for one context.
    pub kv_positions: Option<u32>,
    /// Memory of requests beside that: bodies, prompts, parsed messages.
    pub request_bytes: Bytes,
    /// Where keys and values are kept for later, and how large the folder may become.
    pub snapshots: Option<(std::path::PathBuf, Bytes)>,
}

impl Default for Serving {
    fn default() -> Self {
        Self { parallel: 4, queue: 64, kv_positions: None, request_bytes: Bytes(96 << 20), snapshots: None }
    }
}

impl Serving {
    /// Memory beside keys and values, for a vocabulary and pages of this size.
    pub(crate) fn bytes(&self, vocabulary: usize, page_bytes: usize) -> Bytes {
        let page = sys::page_size() as u64;
        let samplers = self.parallel as u64 * AnswerSampler::bytes(vocabulary);
        let staging = match self.snapshots {
            Some(_) => snapshots::STAGING_BUFFERS as u64 * (page_bytes as u64).next_multiple_of(page),
            None => 0,
        };
        let small = small_bytes(vocabulary, self.snapshots.is_some());
        Bytes(samplers + staging + small).saturating_add(self.request_bytes)
    }
}

/// A running service; see the module header. Dropping it cancels what is running and waits for the thread.
pub struct Service {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    /// Starts to answer requests with `runtime`, which was loaded with a configuration for serving.
    ///
    /// # Errors
    /// The runtime was not planned for it, the snapshot folder cannot be used, the system gives no thread.
    pub fn start(runtime: Runtime) -> Result<Self, EngineError> {
        let Some(serving) = runtime.configuration.serving.clone() else {
            let reason = "the model was loaded without a place for requests: use LoadConfiguration::serving";
            return Err(EngineError::BadOption(reason.to_owned()));
        };
        let paid = runtime.ledger.reserve(Purpose::Scratch, serving.request_bytes)?;
        let small = small_bytes(runtime.vocabulary(), serving.snapshots.is_some());
        let small = runtime.ledger.reserve(Purpose::Scratch, Bytes(small))?;
        let encoder = runtime.prompts().clone();
        let source = encoder.template().map(|template| template.source().to_owned());
        let tokenizer = Arc::clone(encoder.tokenizer());
        let dialect = Dialect::detect(source.as_deref(), &|token| tokenizer.special_id(token).is_some());
        let shared = Arc::new(Shared {
            queue: Mutex::new(FairQueue::new(serving.queue)),
            bell: Bell::default(),
            stop: AtomicBool::new(false),
            failure: OnceLock::new(),
            figures: Mutex::new(Figures::default()),
            handle: runtime.handle(),
            plan: runtime.report.clone(),
            pot: Pot::new(paid),
            parallel_max: serving.parallel,
            vocabulary: runtime.vocabulary(),
            dialect,
            grammars: OnceLock::new(),
            encoder,
            answers: Mutex::default(),
            _small: small,
        });
        let worker = Worker::new(runtime, Arc::clone(&shared), &serving)?;
        let builder = std::thread::Builder::new().name("coldpress-service".to_owned());
        let thread = builder.spawn(move || worker.guarded_run()).map_err(|error| {
            EngineError::BadOption(format!("the system gives no thread to answer requests with: {error}"))
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// The caller's end; any number of them.
    pub fn client(&self) -> ServiceClient {
        ServiceClient { shared: Arc::clone(&self.shared) }
    }

    /// Takes no further request and cancels those that wait or run. Returns when the model is gone.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        {
            let _queue = lock(&self.shared.queue);
            self.shared.stop.store(true, Ordering::Relaxed);
        }
        self.shared.bell.ring();
        if let Some(thread) = self.thread.take() {
            // What it was computing has been told to the requests.
            let _ = thread.join();
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.end();
    }
}
