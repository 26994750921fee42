//! The side of a service that other threads see: requests in, figures out.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Instant;

use coldpress_experts::TelemetrySnapshot;
use coldpress_memory::{Bytes, Reservation};
use coldpress_text::{Constraint, Dialect, GrammarCompiler, GrammarSource, Message};

use super::answer_memory::AnswerMemory;
use super::pot::{Held, RequestPot};
use super::queue::FairQueue;
use super::request::{Event, Request, SubmitError, Ticket};
use super::{CONSTRAINT_BYTES, grammar_bytes};
use crate::error::EngineError;
use crate::keeper::{LiveStatus, RuntimeHandle, lock};
use crate::plan::PlanReport;
use crate::prompt::{ChatOptions, PromptEncoder};

/// Receives the events of a request, on the thread that computes: it must not wait for anything.
pub type Sink = Box<dyn FnMut(Event) + Send>;

/// Wakes the service.
#[derive(Clone, Debug, Default)]
pub(super) struct Bell(Arc<(Mutex<bool>, Condvar)>);

impl Bell {
    pub fn ring(&self) {
        *lock(&self.0.0) = true;
        self.0.1.notify_all();
    }

    /// Waits until somebody rings, or has rung since the last wait.
    pub fn wait(&self) {
        let mut rung = lock(&self.0.0);
        while !*rung {
            rung = self.0.1.wait(rung).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        *rung = false;
    }
}

/// A request that waits.
pub(super) struct Waiting {
    pub request: Request,
    pub sink: Sink,
    pub cancelled: Arc<AtomicBool>,
    pub since: Instant,
    /// Pays for the prompt while it waits and while it is computed.
    pub held: Held,
}

/// Counted since the service began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Totals {
    /// Requests that were taken.
    pub requests: u64,
    /// Those that ended with an answer.
    pub finished: u64,
    /// Those that were cancelled.
    pub cancelled: u64,
    /// Those that failed.
    pub failed: u64,
    /// Those that were refused because the queue was full.
    pub refused: u64,
    /// Tokens of prompts.
    pub prompt_tokens: u64,
    /// Those whose keys and values were there.
    pub cached_tokens: u64,
    /// Those that were computed.
    pub prefill_tokens: u64,
    /// Tokens of answers.
    pub completion_tokens: u64,
    /// Forward passes.
    pub passes: u64,
    /// Requests that had to make room for older ones for a while.
    pub preemptions: u64,
    /// Time in which passes had nothing to compute because the disk had not delivered, in microseconds.
    pub disk_wait_us: u64,
}

/// One request that is being computed.
#[derive(Clone, Debug, serde::Serialize)]
pub struct RunningStatus {
    /// Counts requests.
    pub id: u64,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Leading ones whose keys and values were there.
    pub cached_tokens: usize,
    /// Tokens of the prompt that are done.
    pub prefilled_tokens: usize,
    /// Tokens of the answer so far.
    pub completion_tokens: usize,
    /// Since it was taken out of the queue.
    pub running_ms: u64,
}

/// What the prefix cache holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct PrefixStatus {
    /// Pages of the KV pool.
    pub pages: usize,
    /// Pages that nobody uses.
    pub free_pages: usize,
    /// Pages that the prefix tree knows, also those in use.
    pub cached_pages: usize,
    /// Bytes of a page.
    pub page_bytes: Bytes,
    /// Slots for recurrent states; 0 for models without any.
    pub state_slots: usize,
    /// Slots that nobody uses.
    pub free_state_slots: usize,
    /// States that the prefix tree knows.
    pub cached_states: usize,
    /// Bytes of a state.
    pub state_bytes: Bytes,
    /// Bytes in the snapshot folder; absent without one.
    pub snapshot_bytes: Option<Bytes>,
}

/// Memory of requests that wait or are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct RequestMemory {
    /// Bytes held now.
    pub held: Bytes,
    /// Bytes set aside.
    pub most: Bytes,
}

/// What the service tells about itself after every pass.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    pub running: Vec<RunningStatus>,
    pub totals: Totals,
    pub prefix: PrefixStatus,
    pub telemetry: Option<TelemetrySnapshot>,
    /// Tokens per second of the latest passes.
    pub prefill_rate: f64,
    pub decode_rate: f64,
}

/// The state of a service at one moment.
#[derive(Clone, Debug, serde::Serialize)]
pub struct ServiceStatus {
    /// Memory, expert store and pressure.
    pub runtime: LiveStatus,
    /// What makes answers differ from those of exact settings, in words such as `kv q4`.
    pub lossy: Vec<String>,
    /// Requests that wait.
    pub waiting: usize,
    /// Most that may wait.
    pub waiting_max: usize,
    /// Requests that are being computed.
    pub running: Vec<RunningStatus>,
    /// Most that are computed at once.
    pub running_max: usize,
    /// Counters since the service began.
    pub totals: Totals,
    /// Pages of keys and values.
    pub prefix: PrefixStatus,
    /// Memory of requests.
    pub requests: RequestMemory,
    /// Uses and hits of every expert, where they are counted.
    pub telemetry: Option<TelemetrySnapshot>,
    /// Prompt tokens per second in the latest passes.
    pub prefill_tokens_per_second: f64,
    /// Answer tokens per second, of all answers together, in the latest passes.
    pub decode_tokens_per_second: f64,
}

/// What both sides share.
pub(super) struct Shared {
    pub queue: Mutex<FairQueue<Waiting>>,
    pub bell: Bell,
    pub stop: AtomicBool,
    /// Why the thread that answers ended, if it did not end because it was asked to.
    pub failure: OnceLock<String>,
    pub figures: Mutex<Figures>,
    pub handle: RuntimeHandle,
    pub encoder: PromptEncoder,
    pub plan: PlanReport,
    pub pot: RequestPot,
    pub parallel_max: usize,
    pub vocabulary: usize,
    pub dialect: Dialect,
    /// Made when the first request asks for a grammar.
    pub grammars: OnceLock<Result<GrammarCompiler, String>>,
    /// How the model wrote its latest answers.
    pub answers: Mutex<AnswerMemory>,
    pub _small: Reservation,
}

/// What an answer has to look like, with the memory that this takes.
pub struct Constrained {
    pub(super) constraint: Constraint,
    _held: Held,
}

impl Constrained {
    /// As [`Constraint::after_reasoning`].
    #[must_use]
    pub fn after_reasoning(mut self, marker: Option<&str>) -> Self {
        self.constraint = self.constraint.after_reasoning(marker);
        self
    }
}

/// Why there is no constraint.
#[derive(Debug, thiserror::Error)]
pub enum ConstraintError {
    /// It cannot be enforced.
    #[error(transparent)]
    Refused(EngineError),
    /// The memory of requests is taken.
    #[error(transparent)]
    NoRoom(#[from] SubmitError),
}

/// Sends requests to a service and looks at it, from any thread.
#[derive(Clone)]
pub struct ServiceClient {
    pub(super) shared: Arc<Shared>,
}

impl ServiceClient {
    /// Puts a request into the queue. `sink` receives its events.
    ///
    /// # Errors
    /// The queue is full, the prompt does not fit the context, a setting is out of range, the service has ended.
    pub fn submit(&self, request: Request, mut sink: Sink) -> Result<Ticket, SubmitError> {
        let shared = &*self.shared;
        self.check(&request)?;
        let positions = request.prompt.len().saturating_add(request.max_tokens).min(shared.encoder.context());
        let bytes = positions * size_of::<u32>() + size_of::<Waiting>();
        let held = shared.pot.take(Bytes(bytes as u64))?;
        let cancelled = Arc::new(AtomicBool::new(false));
        let client = request.client.clone();
        let mut queue = lock(&shared.queue);
        // Under the lock: afterwards nobody looks into the queue again.
        if let Some(reason) = shared.failure.get() {
            return Err(SubmitError::Failed { reason: reason.clone() });
        }
        if shared.stop.load(Ordering::Relaxed) {
            return Err(SubmitError::Stopped);
        }
        if queue.len() >= queue.limit() {
            lock(&shared.figures).totals.refused += 1;
            return Err(SubmitError::QueueFull { waiting: queue.len(), limit: queue.limit() });
        }
        let ahead = queue.ahead_of_new(&client);
        sink(Event::Queued { ahead });
        let since = Instant::now();
        let waiting = Waiting { request, sink, cancelled: Arc::clone(&cancelled), since, held };
        queue.push(&client, waiting);
        drop(queue);
        shared.bell.ring();
        Ok(Ticket { cancelled, bell: shared.bell.clone() })
    }

    fn check(&self, request: &Request) -> Result<(), SubmitError> {
        let (prompt, context) = (request.prompt.len(), self.context());
        if prompt == 0 {
            return Err(SubmitError::BadOption(
                "the prompt is empty: the model needs at least one token".to_owned(),
            ));
        }
        if prompt > context {
            return Err(SubmitError::TooLong { prompt, context });
        }
        let vocabulary = self.shared.vocabulary;
        if let Some(id) = request.prompt.iter().find(|&&id| id as usize >= vocabulary) {
            return Err(SubmitError::BadOption(format!(
                "token {id} is outside the vocabulary of {vocabulary}"
            )));
        }
        if let Some((id, _)) = request.logit_bias.iter().find(|&&(id, _)| id as usize >= vocabulary) {
            return Err(SubmitError::BadOption(format!(
                "logit_bias names token {id}, which is outside the vocabulary of {vocabulary}"
            )));
        }
        request.sampling.validate().map_err(SubmitError::BadOption)
    }

    /// Sets memory aside for something that belongs to a request, such as its body.
    ///
    /// # Errors
    /// So much is not left.
    pub fn hold(&self, bytes: Bytes) -> Result<Held, SubmitError> {
        self.shared.pot.take(bytes)
    }

    /// Why the service answers nothing any more, if a defect of the program has ended it.
    pub fn failure(&self) -> Option<&str> {
        self.shared.failure.get().map(String::as_str)
    }

    /// Makes prompts.
    pub fn encoder(&self) -> &PromptEncoder {
        &self.shared.encoder
    }

    /// Ids of a conversation, as [`PromptEncoder::encode_chat`] gives them, except that answers of this service have the ids
    /// the model wrote them with.
    ///
    /// # Errors
    /// As [`PromptEncoder::encode_chat`].
    pub fn encode_chat(&self, messages: &[Message], options: &ChatOptions) -> Result<Vec<u32>, EngineError> {
        let mut known = |text: &str| lock(&self.shared.answers).ids(text).map(<[u32]>::to_vec);
        self.shared.encoder.encode_chat_with(messages, options, &mut known)
    }

    /// Remembers the reasoning that led to an answer: clients leave it away when they send the answer back.
    pub fn learn_reasoning(&self, content: &str, tool_calls: &str, reasoning: &str) {
        lock(&self.shared.answers).learn_reasoning(content, tool_calls, reasoning);
        // The service may rest already: it writes what was learnt beside its snapshots.
        self.shared.bell.ring();
    }

    /// The reasoning that led to an answer with this content and these tool calls, if it is remembered.
    pub fn reasoning_of(&self, content: &str, tool_calls: &str) -> Option<String> {
        lock(&self.shared.answers).reasoning(content, tool_calls).map(str::to_owned)
    }

    /// Positions of a request's context.
    pub fn context(&self) -> usize {
        self.shared.encoder.context()
    }

    /// The plan the model was loaded with.
    pub fn plan(&self) -> &PlanReport {
        &self.shared.plan
    }

    /// How the model writes reasoning and tool calls.
    pub fn dialect(&self) -> Dialect {
        self.shared.dialect
    }

    /// Watches and steers the runtime.
    pub fn runtime(&self) -> &RuntimeHandle {
        &self.shared.handle
    }

    /// What an answer has to look like, ready to be used once. It takes its memory from that of requests.
    ///
    /// # Errors
    /// The grammar or schema is malformed or asks for what is not supported, and the message says where; the memory of
    /// requests has no room.
    pub fn constraint(&self, source: &GrammarSource) -> Result<Constrained, ConstraintError> {
        let held = self.shared.pot.take(Bytes(CONSTRAINT_BYTES))?;
        let refused = |reason: &String| ConstraintError::Refused(EngineError::BadOption(reason.clone()));
        let compiler = self.shared.grammars.get_or_init(|| self.compiler()).as_ref().map_err(refused)?;
        let constraint = compiler
            .compile(source)
            .map_err(|error| ConstraintError::Refused(EngineError::Grammar(error)))?;
        Ok(Constrained { constraint, _held: held })
    }

    /// The tables of a tokenizer, which the plan has set memory aside for.
    fn compiler(&self) -> Result<GrammarCompiler, String> {
        let tokenizer = self.shared.encoder.tokenizer();
        let (takes, planned) = (GrammarCompiler::bytes(tokenizer), grammar_bytes(self.shared.vocabulary));
        if takes > planned {
            return Err(format!(
                "grammars of this tokenizer take {} and {} are set aside for them: answers cannot be constrained",
                Bytes(takes),
                Bytes(planned)
            ));
        }
        GrammarCompiler::new(tokenizer).map_err(|error| error.to_string())
    }

    /// The state now.
    pub fn status(&self) -> ServiceStatus {
        let shared = &*self.shared;
        let figures = lock(&shared.figures).clone();
        let (waiting, waiting_max) = {
            let queue = lock(&shared.queue);
            (queue.len(), queue.limit())
        };
        ServiceStatus {
            runtime: shared.handle.status(),
            lossy: shared.plan.lossy.clone(),
            waiting,
            waiting_max,
            running: figures.running,
            running_max: shared.parallel_max,
            totals: figures.totals,
            prefix: figures.prefix,
            requests: RequestMemory { held: shared.pot.taken(), most: shared.pot.size() },
            telemetry: figures.telemetry,
            prefill_tokens_per_second: figures.prefill_rate,
            decode_tokens_per_second: figures.decode_rate,
        }
    }
}
