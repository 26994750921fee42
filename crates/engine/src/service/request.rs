//! What is asked of a service and what it tells while it answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use coldpress_experts::ExpertStatistics;
use coldpress_memory::Bytes;
use coldpress_text::DecodeOptions;

use super::client::Constrained;

use crate::error::EngineError;
use crate::sampling::Sampling;

/// One answer that is asked for.
pub struct Request {
    /// The prompt's ids, at least one.
    pub prompt: Vec<u32>,
    /// Who asks: requests of different clients take turns. Any text; requests with the same text wait in one line.
    pub client: String,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Most tokens of the answer; the context bounds it too.
    pub max_tokens: usize,
    /// Go on after a stop token.
    pub ignore_eos: bool,
    /// Texts that end the answer; they are not part of it.
    pub stop: Vec<String>,
    /// Added to the logits of some tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Report the log probability of each token, and of so many of the most likely ones.
    pub logprobs: Option<usize>,
    /// What the answer has to look like.
    pub constraint: Option<Constrained>,
    /// How tokens become text.
    pub decode: DecodeOptions,
}

impl Request {
    /// A greedy answer of at most `max_tokens` tokens to `prompt`.
    pub fn new(prompt: Vec<u32>, max_tokens: usize) -> Self {
        Self {
            prompt,
            client: String::new(),
            sampling: Sampling::default(),
            max_tokens,
            ignore_eos: false,
            stop: Vec::new(),
            logit_bias: Vec::new(),
            logprobs: None,
            constraint: None,
            decode: DecodeOptions::default(),
        }
    }
}

/// A token's log probability, before temperature, penalties, bias and constraint.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The chosen token.
    pub id: u32,
    /// Natural logarithm of the chosen token's probability.
    pub logprob: f32,
    /// The most likely tokens with theirs, most likely first.
    pub top: Vec<(u32, f32)>,
}

/// What happens to a request, in this order: [`Event::Queued`], [`Event::Started`], any number of [`Event::Prefill`],
/// [`Event::Token`] each, then one of the last two. A request that had to make room for others for a while gets further
/// [`Event::Prefill`] between its tokens.
#[derive(Clone, Debug)]
pub enum Event {
    /// It waits.
    Queued {
        /// Requests that come first if no other client asks.
        ahead: usize,
    },
    /// It is being computed.
    Started {
        /// Leading tokens of the prompt whose keys and values were there.
        cached_tokens: usize,
    },
    /// A part of the prompt is computed.
    Prefill {
        /// Tokens of the prompt that are done, those that were there included.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// A token of the answer was chosen.
    Token {
        /// The token.
        id: u32,
        /// Characters that became certain with it; may be empty, and may belong to earlier tokens.
        text: String,
        /// Where log probabilities were asked for.
        logprob: Option<TokenLogprob>,
    },
    /// The answer is complete.
    Finished(Box<Finished>),
    /// There will be no answer.
    Failed(Arc<EngineError>),
}

/// Why an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The model produced a stop token.
    Stop,
    /// One of the request's stop texts came.
    StopString(String),
    /// The token limit or the end of the context was reached.
    Length,
    /// Nobody wanted it any more.
    Cancelled,
}

/// The end of an answer, and what it took.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Why it ended.
    pub ending: Ending,
    /// Characters that came after the last token's.
    pub text: String,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Leading ones whose keys and values were there.
    pub cached_tokens: usize,
    /// Tokens of the answer, without the stop token.
    pub completion_tokens: usize,
    /// From the request to its first pass.
    pub queued: Duration,
    /// From there to the first token.
    pub prefill: Duration,
    /// From the first token to the last.
    pub decode: Duration,
    /// This request's share of what its passes read and waited for: by its part of their rows.
    pub share: Share,
    /// The most resident memory of the process until now.
    pub peak: Bytes,
}

impl Finished {
    /// The end of a request that was never computed.
    pub(super) fn never_begun(prompt_tokens: usize, queued: Duration) -> Self {
        Self {
            ending: Ending::Cancelled,
            text: String::new(),
            prompt_tokens,
            cached_tokens: 0,
            completion_tokens: 0,
            queued,
            prefill: Duration::ZERO,
            decode: Duration::ZERO,
            share: Share::default(),
            peak: Bytes::ZERO,
        }
    }
}

/// A part of what some forward passes took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Share {
    /// Bytes of experts read from the disk.
    pub bytes_read: f64,
    /// Experts that were in memory.
    pub hits: f64,
    /// Experts that were not.
    pub misses: f64,
    /// Time without anything to compute because the disk had not delivered.
    pub disk_wait: Duration,
}

impl Share {
    /// Adds a part of what a pass took.
    pub(super) fn add(&mut self, pass: &ExpertStatistics, part: f64) {
        self.bytes_read += pass.bytes_read as f64 * part;
        self.hits += pass.hits as f64 * part;
        self.misses += pass.misses as f64 * part;
        self.disk_wait += Duration::from_micros(pass.disk_wait_us).mul_f64(part);
    }

    /// Experts found in memory, as a fraction of those used; 1 where none were used.
    pub fn hit_rate(&self) -> f64 {
        let used = self.hits + self.misses;
        if used == 0.0 { 1.0 } else { self.hits / used }
    }
}

/// The right to an answer: dropping it cancels the request within one layer, whether it waits, reads its prompt or answers.
#[derive(Debug)]
pub struct Ticket {
    pub(super) cancelled: Arc<AtomicBool>,
    pub(super) bell: super::client::Bell,
}

impl Ticket {
    /// Ends the request; its last event is [`Event::Finished`] with [`Ending::Cancelled`].
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
        self.bell.ring();
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.cancel();
    }
}

/// Why a request was not taken.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// Too many wait already.
    #[error("{waiting} requests are waiting and the limit is {limit}: try again later")]
    QueueFull {
        /// Requests that wait.
        waiting: usize,
        /// Most that may.
        limit: usize,
    },
    /// The prompt leaves no room for an answer.
    #[error(
        "the prompt has {prompt} tokens and the context holds {context}: shorten it or serve with a larger --ctx"
    )]
    TooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Positions of the context.
        context: usize,
    },
    /// The memory set aside for waiting requests is taken.
    #[error(
        "the request takes {needed} while it waits and {free} of the budget are left for that: try again later"
    )]
    NoRoom {
        /// Memory it takes.
        needed: Bytes,
        /// Memory that is left.
        free: Bytes,
    },
    /// A setting is outside its range.
    #[error("{0}")]
    BadOption(String),
    /// The service has ended.
    #[error("the service has ended")]
    Stopped,
    /// The service ended by a defect; see [`EngineError::Defect`].
    #[error("the engine failed and answers nothing any more ({reason}): restart it")]
    Failed {
        /// What its thread said last.
        reason: String,
    },
}
