//! What the HTTP layer needs of the engine, and nothing more.
//!
//! Owns [`Backend`] and the plain values that pass through it. The engine's service is one implementation
//! (`service.rs`), a script in the tests is another, so that every protocol is tested without a model.
//! Nothing here knows HTTP. Read next: `answer.rs`, which turns [`Event`]s into what protocols send.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

pub use coldpress::ChatOptions;
pub use coldpress::service::{Ending as FinishReason, TokenLogprob};
pub use coldpress::text::GrammarSource;
use coldpress::{Message, Sampling};
use serde_json::{Map, Value};

/// A model that answers requests, several at once. All methods may be called from any thread; those that encode or
/// compile may take as long as their input is large.
pub trait Backend: Send + Sync + 'static {
    /// Puts a request into the queue. `sink` is called on a thread of the backend and must not block. Dropping the
    /// ticket ends the request, wherever it is.
    ///
    /// # Errors
    /// When the request is refused at once; then `sink` is never called.
    fn submit(&self, request: Request, sink: Sink) -> Result<Box<dyn Ticket>, SubmitError>;

    /// Ids of a text. With `parse_special`, control tokens that are spelled out become their ids.
    ///
    /// # Errors
    /// When the text is longer than any context.
    fn encode(&self, text: &str, parse_special: bool) -> Result<Vec<u32>, BackendError>;

    /// Text of ids; control tokens are written out.
    fn decode(&self, ids: &[u32]) -> String;

    /// Bytes of one token, which may be part of a character.
    fn token_bytes(&self, id: u32) -> Vec<u8>;

    /// Whether the model brings a chat template.
    fn has_chat_template(&self) -> bool;

    /// Ids of a conversation, rendered by the model's template.
    ///
    /// # Errors
    /// When the template fails or refuses, or the result is longer than any context.
    fn encode_chat(&self, messages: &[Message], options: &ChatOptions) -> Result<Vec<u32>, BackendError>;

    /// Whether the chat template reads this variable; `None` if that is not known.
    fn template_reads(&self, variable: &str) -> Option<bool> {
        let _ = variable;
        None
    }

    /// Name of the way in which the model writes reasoning and tool calls.
    fn dialect_name(&self) -> &str;

    /// A parser of answers in the model's dialect.
    fn parser(&self, options: ParserOptions) -> Box<dyn AnswerParser>;

    /// Whether an answer to this prompt begins inside the model's reasoning.
    fn starts_in_reasoning(&self, prompt: &[u32]) -> bool;

    /// Prepares a grammar for one answer. With `after_reasoning` the answer begins inside the model's reasoning, and the
    /// grammar where that ends; without, at once.
    ///
    /// # Errors
    /// When the grammar cannot be enforced; the message names the place.
    fn compile_grammar(
        &self,
        source: &GrammarSource,
        after_reasoning: bool,
    ) -> Result<Constraint, BackendError>;

    /// Positions of the context: prompt and answer together.
    fn context(&self) -> usize;

    /// The model, in figures.
    fn model(&self) -> &ModelDescription;

    /// Why nothing is answered any more, if the engine has failed.
    fn failure(&self) -> Option<String> {
        None
    }

    /// State of queue, memory and experts now.
    fn status(&self) -> BackendStatus;

    /// Uses and hits of every expert, as `telemetry` of `/v1/status` shows them on request; `None` where they are not counted.
    fn experts(&self) -> Option<Value> {
        None
    }

    /// Number of tokens of the vocabulary; `None` if that is not known.
    fn vocabulary(&self) -> Option<usize> {
        None
    }

    /// Remembers the reasoning that led to an answer with this content and these calls.
    fn learn_reasoning(&self, content: &str, calls: &str, reasoning: &str) {
        let _ = (content, calls, reasoning);
    }

    /// The reasoning that led to such an answer, if it is remembered.
    fn reasoning_of(&self, content: &str, calls: &str) -> Option<String> {
        let _ = (content, calls);
        None
    }

    /// Sets memory of the budget aside for what belongs to a request, such as its body.
    ///
    /// # Errors
    /// So much is not left.
    fn hold(&self, bytes: u64) -> Result<Box<dyn Held>, SubmitError> {
        let _ = bytes;
        Ok(Box::new(Unbounded))
    }
}

/// Memory set aside; dropping it gives it back.
pub trait Held: Send {
    /// Sets more aside.
    ///
    /// # Errors
    /// So much is not left.
    fn grow(&mut self, more: u64) -> Result<(), SubmitError>;
}

/// Of a backend that does not bound the memory of requests.
struct Unbounded;

impl Held for Unbounded {
    fn grow(&mut self, _more: u64) -> Result<(), SubmitError> {
        Ok(())
    }
}

/// Receives the events of one request.
pub type Sink = Box<dyn FnMut(Event) + Send>;

/// The right to an answer; dropping it ends the request within one layer.
pub trait Ticket: Send {
    /// Ends the request; [`Event::Finished`] follows with [`FinishReason::Cancelled`].
    fn cancel(&self);
}

/// What one answer is to be.
pub struct Request {
    /// Ids of the prompt.
    pub prompt: Vec<u32>,
    /// Whose request it is, for a fair queue.
    pub client: String,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Most tokens of the answer.
    pub max_tokens: usize,
    /// Texts that end the answer and do not appear in it.
    pub stop: Vec<String>,
    /// Added to the logits of tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Whether log probabilities are wanted, and of how many likely tokens beside the chosen one.
    pub logprobs: Option<usize>,
    /// What the answer must match.
    pub constraint: Option<Constraint>,
    /// Write control tokens into the text, for a parser of the dialect.
    pub show_control: bool,
    /// The answer continues the text of the prompt: a first space is part of it.
    pub continuation: bool,
}

/// A compiled grammar; only the backend that made it knows what is inside.
pub struct Constraint(pub Box<dyn Any + Send>);

/// A function that the model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolDefinition {
    /// Its name.
    pub name: String,
    /// What it does.
    pub description: Option<String>,
    /// JSON schema of its arguments.
    pub parameters: Value,
}

impl ToolDefinition {
    /// As chat templates expect it.
    pub fn for_template(&self) -> Value {
        let mut function = Map::new();
        function.insert("name".to_owned(), self.name.as_str().into());
        if let Some(description) = &self.description {
            function.insert("description".to_owned(), description.as_str().into());
        }
        function.insert("parameters".to_owned(), self.parameters.clone());
        serde_json::json!({ "type": "function", "function": function })
    }
}

/// What a parser of answers needs to know.
#[derive(Clone, Debug, Default)]
pub struct ParserOptions {
    /// The functions that may be called; none: calls stay text.
    pub tools: Arc<[ToolDefinition]>,
    /// The prompt ended inside the reasoning.
    pub starts_in_reasoning: bool,
}

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerEvent {
    /// Text of the reasoning.
    Reasoning(String),
    /// Text of the answer.
    Content(String),
    /// A call begins.
    ToolCallBegin {
        /// Number of the call in this answer, from 0.
        index: usize,
        /// Name of the call, unique in the conversation.
        id: String,
        /// Name of the function.
        name: String,
    },
    /// A piece of the arguments.
    ToolCallArguments {
        /// Number of the call.
        index: usize,
        /// Part of a JSON object.
        json: String,
    },
    /// The call is complete.
    ToolCallEnd {
        /// Number of the call.
        index: usize,
    },
}

/// Takes an answer apart while it is written.
pub trait AnswerParser: Send {
    /// Takes further text.
    fn push(&mut self, text: &str, events: &mut Vec<AnswerEvent>);
    /// The answer ended.
    fn finish(&mut self, events: &mut Vec<AnswerEvent>);
}

/// What happens to a request, in this order; the last event is `Finished` or `Failed`.
#[derive(Clone, Debug)]
pub enum Event {
    /// It waits.
    Queued {
        /// Requests before it.
        ahead: usize,
    },
    /// Its prompt is being computed.
    Started {
        /// Leading tokens that were computed before.
        cached_tokens: usize,
    },
    /// A part of the prompt is done.
    Prefill {
        /// Tokens done.
        done: usize,
        /// Tokens in all.
        total: usize,
    },
    /// A token was chosen.
    Token {
        /// The token.
        id: u32,
        /// Whole characters that are complete with it; may be empty.
        text: String,
        /// How likely it was, if that was asked for.
        logprob: Option<TokenLogprob>,
    },
    /// The answer is complete.
    Finished(Finished),
    /// There will be no further token.
    Failed(BackendError),
}

/// An answer in figures.
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    /// Why it ended.
    pub reason: FinishReason,
    /// Characters that became certain only at the end.
    pub text: String,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Leading tokens of the prompt that were not computed again.
    pub cached_tokens: usize,
    /// Tokens of the answer.
    pub completion_tokens: usize,
    /// Time in the queue.
    pub queue_time: Duration,
    /// Time of the prompt.
    pub prefill_time: Duration,
    /// Time from the first token to the last.
    pub decode_time: Duration,
    /// Bytes of experts read from the disk.
    pub bytes_read: u64,
    /// Share of expert uses that were in memory, 0 to 1.
    pub hit_rate: f64,
    /// Time in which the disk was waited for.
    pub disk_wait: Duration,
    /// Most memory of the process so far, in bytes.
    pub peak_bytes: u64,
}

/// Why a request was not taken.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SubmitError {
    /// Too many wait.
    #[error("{waiting} requests wait and the queue holds {limit}: try again later")]
    QueueFull {
        /// Waiting now.
        waiting: usize,
        /// Most that may wait.
        limit: usize,
    },
    /// The prompt does not fit.
    #[error("the prompt has {prompt} tokens and the context holds {context}")]
    TooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens of the context.
        context: usize,
    },
    /// The request is larger than all memory that is set aside for requests.
    #[error("the request takes {needed} bytes of memory and {pool} are set aside for requests")]
    NoRoom {
        /// Bytes that it needs.
        needed: u64,
        /// Bytes that there are.
        pool: u64,
    },
    /// The memory set aside for requests is taken at the moment.
    #[error(
        "the request takes {needed} bytes while it waits, and the budget has {free} left for that: try again later"
    )]
    NoRoomNow {
        /// Bytes that it takes.
        needed: u64,
        /// Bytes that are left.
        free: u64,
    },
    /// A value is out of range.
    #[error("{0}")]
    BadOption(String),
    /// The engine ends.
    #[error("the engine is shutting down")]
    Stopped,
    /// The engine ended by a defect.
    #[error("{0}")]
    Failed(String),
}

/// What can go wrong, by what the client can do.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum BackendError {
    /// The chat template refuses the messages or fails on them.
    #[error("{0}")]
    Template(String),
    /// The prompt does not fit.
    #[error("the prompt has {prompt} tokens and the context holds {context}")]
    TooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens of the context.
        context: usize,
    },
    /// The text is longer than any prompt that fits.
    #[error("{0}")]
    TextTooLong(String),
    /// The grammar or schema cannot be enforced.
    #[error("{0}")]
    Grammar(String),
    /// A value is out of range.
    #[error("{0}")]
    BadOption(String),
    /// The budget has no room.
    #[error("{0}")]
    OutOfBudget(String),
    /// The engine ends.
    #[error("the engine is shutting down")]
    Stopped,
    /// The engine ended by a defect.
    #[error("{0}")]
    Failed(String),
    /// Anything else.
    #[error("{0}")]
    Internal(String),
}

/// The model, in figures.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct ModelDescription {
    /// Name under which it is served.
    pub name: String,
    /// Architecture.
    pub family: String,
    /// Number of weights, as people write it (`26M`).
    pub parameter_size: String,
    /// Format of most weights.
    pub quantization: String,
    /// Bytes of the model's files.
    pub file_bytes: u64,
    /// Longest context the file states.
    pub trained_context: usize,
    /// Width of the hidden state.
    pub embedding_length: usize,
    /// The chat template's source, if there is one.
    pub template: Option<String>,
    /// Whether it can call tools.
    pub tools: bool,
    /// Whether it can think before it answers.
    pub thinking: bool,
    /// What makes its answers differ from those of exact settings, in words such as `kv q4`.
    pub lossy: Vec<String>,
    /// Seconds since 1970 when it was loaded.
    pub loaded_at: u64,
}

/// State of a backend at one moment.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct BackendStatus {
    /// Requests that compute.
    pub running: usize,
    /// Requests that wait.
    pub waiting: usize,
    /// Bytes of the budget.
    pub budget_bytes: u64,
    /// Bytes held now.
    pub held_bytes: u64,
    /// Most bytes held so far.
    pub peak_bytes: u64,
    /// Bytes held, by purpose.
    pub memory: Vec<(String, u64)>,
    /// Expert uses that were in memory.
    pub expert_hits: u64,
    /// Expert uses that were not.
    pub expert_misses: u64,
    /// Bytes of experts read.
    pub bytes_read: u64,
    /// Everything the engine tells, as it stands in `/v1/status`.
    pub detail: Value,
}
