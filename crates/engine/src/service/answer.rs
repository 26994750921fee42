//! One request while it is computed: its tokens, its pages, how its next token is chosen, and what it has been told.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use arrayvec::ArrayVec;
use coldpress_memory::Bytes;
use coldpress_model::{KEPT_STATES_MAX, PAGE_POSITIONS, Sequence};
use coldpress_text::{StopStrings, StreamDecoder, TextError, Tokenizer};

use super::client::{Constrained, RunningStatus, Sink, Waiting};
use super::pot::Held;
use super::request::{Ending, Event, Finished, Share, TokenLogprob};
use crate::error::EngineError;
use crate::sampling::{AnswerSampler, Sampler};
use crate::shared_kv::kept_length;

/// Chooses the next token of one answer.
pub(super) struct Chooser {
    pub sampler: AnswerSampler,
    constraint: Option<Constrained>,
    logprobs: Option<usize>,
    /// What the latest pass chose.
    pub chosen: Option<Result<Chosen, TextError>>,
}

/// A token with its log probability, where that was asked for.
pub(super) struct Chosen {
    pub id: u32,
    pub logprob: Option<TokenLogprob>,
}

impl Chooser {
    /// Looks at the logits of the answer's next position; they are overwritten.
    pub fn choose(&mut self, sampler: &mut Sampler, logits: &mut [f32]) {
        self.chosen = Some(self.next(sampler, logits));
    }

    fn next(&mut self, sampler: &mut Sampler, logits: &mut [f32]) -> Result<Chosen, TextError> {
        if self.logprobs.is_some() {
            sampler.keep(logits);
        }
        if let Some(constraint) = &mut self.constraint {
            constraint.constraint.mask(logits)?;
        }
        let id = sampler.sample(&mut self.sampler, logits);
        if let Some(constraint) = &mut self.constraint {
            constraint.constraint.accept(id)?;
        }
        let logprob = self.logprobs.map(|top| TokenLogprob {
            id,
            logprob: sampler.log_probability(id),
            top: sampler.most_likely(top),
        });
        Ok(Chosen { id, logprob })
    }
}

/// Tells a request what happens to it. Dropped before its end was told, it tells that the engine failed: whoever waits
/// for an answer must not wait for ever.
pub(super) struct Told {
    sink: Sink,
    ended: bool,
    prompt_tokens: usize,
    started: bool,
    /// Tokens of the prompt that were reported as done.
    prefilled: usize,
}

impl Told {
    pub fn tell(&mut self, event: Event) {
        self.ended |= matches!(event, Event::Finished(_) | Event::Failed(_));
        (self.sink)(event);
    }

    /// The first `done` tokens of prompt and answer are computed.
    pub fn prefill(&mut self, done: usize) {
        let done = done.min(self.prompt_tokens);
        if done > self.prefilled {
            self.prefilled = done;
            self.tell(Event::Prefill { done, total: self.prompt_tokens });
        }
    }

    /// Keys and values of the first `cached` tokens were there; returns whether this is news.
    fn started(&mut self, cached: usize) -> bool {
        let news = !std::mem::replace(&mut self.started, true);
        if news {
            self.prefilled = cached;
            self.tell(Event::Started { cached_tokens: cached });
        }
        news
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        if !self.ended {
            tell_defect(&mut self.sink, "its thread ended in the middle of the answer");
        }
    }
}

/// Tells a request that a defect has ended the service. The sink may be what is defective: its panic goes no further.
pub(super) fn tell_defect(sink: &mut Sink, reason: &str) {
    let error = Arc::new(EngineError::Defect { reason: reason.to_owned() });
    let _ = catch_unwind(AssertUnwindSafe(|| sink(Event::Failed(error))));
}

/// See the module header.
pub(super) struct Answer<'t> {
    pub id: u64,
    pub told: Told,
    pub cancelled: Arc<AtomicBool>,
    /// It made room for older requests, and waits for one of them to end.
    pub paused: bool,
    _held: Held,
    /// The prompt, then the answer.
    pub tokens: Vec<u32>,
    prompt_tokens: usize,
    cached_tokens: usize,
    pub sequence: Sequence,
    /// Lengths of the prompt after which its recurrent state is worth keeping, in order.
    states: ArrayVec<usize, KEPT_STATES_MAX>,
    pub chooser: Chooser,
    decoder: StreamDecoder<'t>,
    stops: StopStrings,
    /// Positions that prompt and answer may take.
    tokens_max: usize,
    ignore_eos: bool,
    asked: Instant,
    started: Instant,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
    pub share: Share,
}

impl<'t> Answer<'t> {
    /// Begins to compute a request. `sequence` is empty.
    pub fn begin(
        id: u64,
        waiting: Waiting,
        sequence: Sequence,
        mut sampler: AnswerSampler,
        tokenizer: &'t Tokenizer,
        context: usize,
    ) -> Self {
        let Waiting { request, sink, cancelled, since, held } = waiting;
        sampler.restart(request.sampling, &request.prompt, &request.logit_bias);
        let prompt_tokens = request.prompt.len();
        let tokens_max = prompt_tokens.saturating_add(request.max_tokens).min(context);
        let mut tokens = request.prompt;
        tokens.reserve_exact(tokens_max + 1 - prompt_tokens);
        let chooser =
            Chooser { sampler, constraint: request.constraint, logprobs: request.logprobs, chosen: None };
        Self {
            id,
            told: Told { sink, ended: false, prompt_tokens, started: false, prefilled: 0 },
            cancelled,
            paused: false,
            _held: held,
            tokens,
            prompt_tokens,
            cached_tokens: 0,
            sequence,
            states: ArrayVec::new(),
            chooser,
            decoder: tokenizer.stream_decoder_with(request.decode),
            stops: StopStrings::new(request.stop),
            tokens_max,
            ignore_eos: request.ignore_eos,
            asked: since,
            started: Instant::now(),
            first_token: None,
            last_token: None,
            share: Share::default(),
        }
    }

    /// Keys and values of the first `cached` tokens are there.
    pub fn told_started(&mut self, cached: usize) {
        if self.told.started(cached) {
            self.cached_tokens = cached;
        }
    }

    /// The recurrent state is worth keeping where prompts go on in different ways: `agreed` tokens were seen in an earlier one. And near
    /// the end, for a prompt whose last words are edited.
    pub fn ask_for_states(&mut self, agreed: usize) {
        self.want_state(agreed / PAGE_POSITIONS * PAGE_POSITIONS);
        self.want_state(kept_length(self.prompt_tokens));
    }

    /// The recurrent state after `length` tokens of the prompt is worth keeping.
    pub fn want_state(&mut self, length: usize) {
        if let Err(place) = self.states.binary_search(&length)
            && !self.states.is_full()
        {
            self.states.insert(place, length);
        }
    }

    /// The lengths of [`Answer::want_state`] that are not reached yet, in order.
    pub fn next_states(&self) -> impl Iterator<Item = usize> {
        self.states.iter().copied().filter(|&length| length > self.sequence.len())
    }

    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// Tokens whose keys and values are not computed yet; one in an answer that is being written.
    pub fn remaining(&self) -> usize {
        self.tokens.len() - self.sequence.len()
    }

    pub fn is_decoding(&self) -> bool {
        self.tokens.len() > self.prompt_tokens && self.remaining() == 1
    }

    pub fn completion_tokens(&self) -> usize {
        self.tokens.len() - self.prompt_tokens
    }

    pub fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    pub fn cached_tokens(&self) -> usize {
        self.cached_tokens
    }

    /// Takes what the latest pass chose, tells it, and says whether the answer ends with it.
    pub fn take_chosen(&mut self, tokenizer: &Tokenizer) -> Result<Option<Ending>, EngineError> {
        let Some(chosen) = self.chooser.chosen.take() else { return Ok(None) };
        let Chosen { id, logprob } = chosen.map_err(EngineError::Grammar)?;
        let now = Instant::now();
        self.first_token.get_or_insert(now);
        if self.tokens.len() >= self.tokens_max {
            return Ok(Some(Ending::Length));
        }
        if !self.ignore_eos && tokenizer.stop_tokens().contains(&id) {
            return Ok(Some(Ending::Stop));
        }
        self.last_token = Some(now);
        self.tokens.push(id);
        let (mut decoded, mut text) = (String::new(), String::new());
        self.decoder.push_to(id, &mut decoded);
        let stopped = self.stops.push(&decoded, &mut text);
        self.told.tell(Event::Token { id, text, logprob });
        if stopped {
            let text = self.stops.found().unwrap_or_default().to_owned();
            return Ok(Some(Ending::StopString(text)));
        }
        Ok((self.tokens.len() == self.tokens_max).then_some(Ending::Length))
    }

    /// Tells the end of the answer; gives back what others can use.
    pub fn finish(mut self, ending: Ending, peak: Bytes) -> (Vec<u32>, Sequence, AnswerSampler) {
        let mut text = String::new();
        if !matches!(ending, Ending::StopString(_)) {
            let rest = self.decoder.finish();
            if !self.stops.push(&rest, &mut text) {
                self.stops.finish(&mut text);
            }
        }
        let end = self.last_token.unwrap_or(self.started);
        let first = self.first_token.unwrap_or_else(Instant::now);
        let finished = Finished {
            ending,
            text,
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached_tokens,
            completion_tokens: self.tokens.len() - self.prompt_tokens,
            queued: self.started - self.asked,
            prefill: first - self.started,
            decode: end.saturating_duration_since(first),
            share: self.share,
            peak,
        };
        self.told.tell(Event::Finished(Box::new(finished)));
        (self.tokens, self.sequence, self.chooser.sampler)
    }

    /// Tells that there will be no answer.
    pub fn fail(mut self, error: Arc<EngineError>) -> (Vec<u32>, Sequence, AnswerSampler) {
        self.told.tell(Event::Failed(error));
        (self.tokens, self.sequence, self.chooser.sampler)
    }

    pub fn status(&self) -> RunningStatus {
        RunningStatus {
            id: self.id,
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached_tokens,
            prefilled_tokens: self.sequence.len().min(self.prompt_tokens),
            completion_tokens: self.completion_tokens(),
            running_ms: self.started.elapsed().as_millis() as u64,
        }
    }
}
