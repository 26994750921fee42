//! Sessions and generation: prompt in, text out, with progress and a way to stop.
//!
//! A [`Session`] is one conversation: the token ids whose keys and values are in the KV cache, which all sessions of a runtime
//! share. A new prompt that starts with the same ids reuses that part. The loop below asks for a stop after every layer, so
//! cancelling takes at most one layer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use coldpress_experts::{ExpertStatistics, ExpertStore};
use coldpress_model::{
    ForwardEngine, ForwardObserver, LogitsWanted, ModelError, Phase, PhaseClock, PhaseTimes, Segment,
};
use coldpress_text::DecodeOptions;

use crate::error::EngineError;
use crate::runtime::Runtime;
use crate::sampling::{AnswerSampler, Sampler, Sampling};

/// Room made for the text of an answer: more than tokens of common languages take, so that it rarely has to grow.
const TEXT_BYTES_PER_TOKEN: usize = 8;

/// What to generate.
#[derive(Clone, Debug)]
pub struct GenerateOptions {
    /// Most tokens of the answer.
    pub max_tokens: usize,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Go on after a stop token.
    pub ignore_eos: bool,
    /// The answer continues the text of the prompt: a space at its beginning is part of it.
    pub continuation: bool,
}

impl Default for GenerateOptions {
    fn default() -> Self {
        Self { max_tokens: 256, sampling: Sampling::default(), ignore_eos: false, continuation: false }
    }
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FinishReason {
    /// The model produced a stop token.
    Stop,
    /// The token limit or the end of the context was reached.
    Length,
    /// The caller asked to stop.
    Cancelled,
}

/// A finished answer.
#[derive(Clone, Debug)]
pub struct Generation {
    /// Token ids, without the stop token.
    pub tokens: Vec<u32>,
    /// The text.
    pub text: String,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Leading tokens of the prompt that were in the cache already.
    pub cached_tokens: usize,
    /// Time from the call to the first token.
    pub time_to_first_token: Duration,
    /// Time of the prompt's forward passes.
    pub prefill_time: Duration,
    /// Time from the first token to the last.
    pub decode_time: Duration,
    /// Time inside forward passes, prompt and answer.
    pub forward_time: Duration,
    /// The time until the first token was chosen, by phase. Together with `decode_phases` it is `total_time`.
    pub prefill_phases: PhaseTimes,
    /// The time after that, by phase.
    pub decode_phases: PhaseTimes,
    /// Time of the whole call.
    pub total_time: Duration,
    /// Expert hits, misses and reads of this call; absent for dense models.
    pub experts: Option<ExpertStatistics>,
    /// The part of `experts` that belongs to the prompt.
    pub prefill_experts: Option<ExpertStatistics>,
}

impl Generation {
    /// What nothing has been generated for yet; `tokens_max` bounds the answer.
    fn begin(prompt_tokens: usize, cached_tokens: usize, tokens_max: usize) -> Self {
        Self {
            tokens: Vec::with_capacity(tokens_max),
            text: String::with_capacity(tokens_max * TEXT_BYTES_PER_TOKEN),
            finish_reason: FinishReason::Length,
            prompt_tokens,
            cached_tokens,
            time_to_first_token: Duration::ZERO,
            prefill_time: Duration::ZERO,
            decode_time: Duration::ZERO,
            forward_time: Duration::ZERO,
            prefill_phases: PhaseTimes::default(),
            decode_phases: PhaseTimes::default(),
            total_time: Duration::ZERO,
            experts: None,
            prefill_experts: None,
        }
    }

    /// Prompt tokens computed per second; 0 when nothing was computed.
    pub fn prefill_tokens_per_second(&self) -> f64 {
        rate(self.prompt_tokens - self.cached_tokens, self.prefill_time)
    }

    /// Tokens per second after the first one; 0 for answers of one token.
    pub fn decode_tokens_per_second(&self) -> f64 {
        rate(self.tokens.len().saturating_sub(1), self.decode_time)
    }
}

fn rate(count: usize, time: Duration) -> f64 {
    if count == 0 || time.is_zero() { 0.0 } else { count as f64 / time.as_secs_f64() }
}

/// Receives what happens during a generation. All methods have defaults.
pub trait GenerateObserver {
    /// A part of the prompt is done: `done` of `total` tokens, counted in fractions of layers.
    fn prefill_progress(&mut self, done: f64, total: usize) {
        let _ = (done, total);
    }

    /// A token of the answer was chosen.
    fn token(&mut self, id: u32) {
        let _ = id;
    }

    /// Some characters of the answer became complete; never empty, never a part of a character.
    fn text(&mut self, text: &str) {
        let _ = text;
    }

    /// Asked after every layer; `true` ends the generation with [`FinishReason::Cancelled`].
    fn should_stop(&mut self) -> bool {
        false
    }
}

/// Observes nothing.
pub struct Silent;

impl GenerateObserver for Silent {}

/// One conversation.
pub struct Session {
    /// What the KV cache knows the session by.
    key: Arc<()>,
    context: usize,
    tokens: Vec<u32>,
}

impl Session {
    /// Ids of the conversation so far. A next prompt that begins with them computes only the rest, unless their place in the KV
    /// cache was given back (after an idle time, or to another session): then all of it is computed.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Positions the session can hold.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.truncate(0);
    }

    /// Keeps the first `length` ids and forgets the others; a longer length changes nothing.
    pub fn truncate(&mut self, length: usize) {
        // The KV cache follows when it is next computed with.
        self.tokens.truncate(length);
    }
}

/// Joins the forward pass with the sampler and the caller's observer.
struct Step<'a> {
    observer: &'a mut dyn GenerateObserver,
    sampler: &'a mut Sampler,
    answer: &'a mut AnswerSampler,
    /// Prompt progress: tokens done before this chunk, tokens in it, tokens in all; `None` in decode.
    prefill: Option<(usize, usize, usize)>,
    chosen: Option<u32>,
}

impl ForwardObserver for Step<'_> {
    fn layer_done(&mut self, layer: usize, layers: usize) -> bool {
        if let Some((before, chunk, total)) = self.prefill {
            let done = before as f64 + chunk as f64 * (layer + 1) as f64 / layers as f64;
            self.observer.prefill_progress(done, total);
        }
        !self.observer.should_stop()
    }

    fn logits(&mut self, _segment: usize, _row: usize, logits: &mut [f32]) {
        self.chosen = Some(self.sampler.sample(self.answer, logits));
    }
}

impl Runtime {
    /// Starts an empty conversation of the planned context. All conversations share the planned positions of the KV cache
    /// ([`LoadConfiguration::kv_positions`](crate::LoadConfiguration::kv_positions)): where they are full, the one that rested longest
    /// gives up its place and computes its tokens again when it is asked next. No answer depends on that.
    ///
    /// # Errors
    /// The budget has no room for the KV cache, which comes with the first conversation.
    pub fn session(&mut self) -> Result<Session, EngineError> {
        let context = self.report.plan.context as usize;
        if self.scratch.is_some() {
            self.ready_kv()?;
        } else {
            self.keeper.ready_parked_kv(|| self.new_kv())?;
        }
        Ok(Session { key: Arc::default(), context, tokens: Vec::with_capacity(context) })
    }

    /// The session computes from now on. Where its place in the KV cache was given back, it has forgotten its tokens.
    fn begin_session(&mut self, session: &mut Session) -> Result<(), EngineError> {
        self.ready_kv()?;
        let kv = self.kv.as_mut().expect("made ready before");
        let there = kv.begin(&session.key, session.tokens.len(), session.context);
        session.tokens.truncate(there);
        Ok(())
    }

    /// Answers `prompt`, which replaces what the session held except for a common beginning.
    ///
    /// # Errors
    /// Settings out of range, a prompt that does not fit, a failed read, damaged weights. The session keeps the tokens
    /// whose keys and values are in its cache and can be used again.
    pub fn generate(
        &mut self,
        session: &mut Session,
        prompt: &[u32],
        options: &GenerateOptions,
        observer: &mut dyn GenerateObserver,
    ) -> Result<Generation, EngineError> {
        let started = Instant::now();
        let answer = self.wake().and_then(|()| self.answer(started, session, prompt, options, observer));
        self.rest();
        answer
    }

    fn answer(
        &mut self,
        started: Instant,
        session: &mut Session,
        prompt: &[u32],
        options: &GenerateOptions,
        observer: &mut dyn GenerateObserver,
    ) -> Result<Generation, EngineError> {
        self.clock.restart();
        options.sampling.validate().map_err(EngineError::BadOption)?;
        if prompt.is_empty() {
            return Err(EngineError::BadOption(
                "the prompt is empty: the model needs at least one token".to_owned(),
            ));
        }
        if prompt.len() > session.context() {
            return Err(EngineError::PromptTooLong { prompt: prompt.len(), context: session.context() });
        }
        self.check_files()?;
        self.begin_session(session)?;
        let common = session.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        // The last prompt token is computed in any case: its logits choose the first token of the answer.
        let cached = common.min(prompt.len() - 1);
        // Less where a recurrent state of that length is not kept.
        let cached = self.kv.as_mut().expect("made ready before").truncate(cached);
        session.truncate(cached);
        self.kv.as_mut().expect("made ready before").keep_state();
        self.answer_sampler.restart(options.sampling, prompt, &[]);

        let mut answer = Generation::begin(prompt.len(), cached, options.max_tokens.min(session.context()));
        let before = self.experts.as_ref().map(ExpertStore::statistics);
        let first = self.prefill(session, prompt, observer)?;
        answer.prefill_time = started.elapsed();
        answer.time_to_first_token = answer.prefill_time;
        answer.forward_time = answer.prefill_time;
        answer.prefill_phases = self.clock.take(Phase::Host);
        answer.prefill_experts = self.experts_since(before.as_ref());
        match first {
            Some(first) => self.decode(session, first, options, observer, &mut answer)?,
            None => answer.finish_reason = FinishReason::Cancelled,
        }
        self.sample_memory();
        answer.experts = self.experts_since(before.as_ref());
        answer.decode_phases = self.clock.take(Phase::Host);
        answer.total_time = started.elapsed();
        Ok(answer)
    }

    fn experts_since(&self, before: Option<&ExpertStatistics>) -> Option<ExpertStatistics> {
        Some(self.experts.as_ref()?.statistics().since(before?))
    }

    /// Fills the cache with the rest of the prompt; returns the first token of the answer, or `None` if stopped.
    fn prefill(
        &mut self,
        session: &mut Session,
        prompt: &[u32],
        observer: &mut dyn GenerateObserver,
    ) -> Result<Option<u32>, EngineError> {
        let from = session.tokens.len();
        let total = prompt.len() - from;
        let mut chosen = None;
        for chunk in prompt[from..].chunks(self.report.plan.chunk_tokens as usize) {
            let before = session.tokens.len() - from;
            let last = before + chunk.len() == total;
            let wanted = if last { LogitsWanted::Last } else { LogitsWanted::None };
            match self.step(session, chunk, wanted, Some((before, chunk.len(), total)), observer)? {
                Some(token) => chosen = token,
                None => return Ok(None),
            }
            self.sample_memory();
        }
        Ok(chosen)
    }

    /// One forward pass of one session. `None`: stopped. `Some(token)`: what the sampler chose, if logits were wanted.
    fn step(
        &mut self,
        session: &mut Session,
        tokens: &[u32],
        logits: LogitsWanted,
        prefill: Option<(usize, usize, usize)>,
        observer: &mut dyn GenerateObserver,
    ) -> Result<Option<Option<u32>>, EngineError> {
        let Self { workers, model, kernels, experts, scratch, kv, sampler, answer_sampler, clock, .. } = self;
        let scratch = scratch.as_mut().expect("a runtime is awake while it computes");
        let kv = kv.as_mut().expect("a session began to compute");
        kv.extend(tokens.len()).map_err(ModelError::from).map_err(EngineError::Forward)?;
        if let Some((before, _, total)) = prefill {
            kv.keep_state_of_prompt(session.tokens.len() - before + total, tokens.len());
        }
        let (pool, sequence) = kv.computing();
        let mut step = Step { observer, sampler, answer: answer_sampler, prefill, chosen: None };
        let result = workers.enter(|team| {
            let experts = experts.as_mut();
            let mut engine = ForwardEngine { team, kernels: *kernels, experts, pool, scratch, clock };
            let segment = Segment { tokens, sequence, logits };
            model.forward(&mut engine, &mut [segment], &mut step)
        });
        match result {
            Ok(()) => {
                session.tokens.extend_from_slice(tokens);
                Ok(Some(step.chosen))
            }
            Err(ModelError::Cancelled) => Ok(None),
            Err(error) => Err(EngineError::Forward(error)),
        }
    }

    fn decode(
        &mut self,
        session: &mut Session,
        first: u32,
        options: &GenerateOptions,
        observer: &mut dyn GenerateObserver,
        answer: &mut Generation,
    ) -> Result<(), EngineError> {
        let tokenizer = Arc::clone(&self.tokenizer);
        let decoding = DecodeOptions { continuation: options.continuation, ..DecodeOptions::default() };
        let mut characters = tokenizer.stream_decoder_with(decoding);
        let started = Instant::now();
        self.token_ended(None);
        let mut token = first;
        answer.finish_reason = loop {
            if answer.tokens.len() == options.max_tokens {
                break FinishReason::Length;
            }
            if !options.ignore_eos && tokenizer.stop_tokens().contains(&token) {
                break FinishReason::Stop;
            }
            observer.token(token);
            answer.tokens.push(token);
            let said = answer.text.len();
            characters.push_to(token, &mut answer.text);
            if said < answer.text.len() {
                observer.text(&answer.text[said..]);
            }
            answer.decode_time = started.elapsed();
            if answer.tokens.len() == options.max_tokens || session.tokens.len() == session.context() {
                break FinishReason::Length;
            }
            let before = Instant::now();
            let next = self.step(session, &[token], LogitsWanted::Last, None, observer)?;
            answer.forward_time += before.elapsed();
            self.token_ended(Some(answer.tokens.len()));
            match next.flatten() {
                Some(next) => token = next,
                None => break FinishReason::Cancelled,
            }
        };
        let rest = characters.finish();
        if !rest.is_empty() {
            observer.text(&rest);
            answer.text.push_str(&rest);
        }
        Ok(())
    }

    /// Teacher-forced logits of every position of `tokens` in a fresh session, in chunks of the planned length. `sink`
    /// receives position and logits `[vocabulary]`; returning `false` stops after the chunk.
    ///
    /// # Errors
    /// As [`Runtime::generate`].
    pub fn logits(
        &mut self,
        tokens: &[u32],
        sink: &mut dyn FnMut(usize, &[f32]) -> bool,
    ) -> Result<(), EngineError> {
        self.check_files()?;
        self.wake()?;
        let result = self.teacher_forced(tokens, sink);
        self.rest();
        result
    }

    fn teacher_forced(
        &mut self,
        tokens: &[u32],
        sink: &mut dyn FnMut(usize, &[f32]) -> bool,
    ) -> Result<(), EngineError> {
        let mut session = self.session()?;
        self.begin_session(&mut session)?;
        if tokens.len() > session.context() {
            return Err(EngineError::PromptTooLong { prompt: tokens.len(), context: session.context() });
        }
        let chunk = self.report.plan.chunk_tokens as usize;
        let Self { workers, model, kernels, experts, scratch, kv, clock, .. } = self;
        let scratch = scratch.as_mut().expect("a runtime is awake while it computes");
        let kv = kv.as_mut().expect("a session began to compute");
        for (index, tokens) in tokens.chunks(chunk).enumerate() {
            let mut collect = Collect { first: index * chunk, sink: &mut *sink, go_on: true };
            let (experts, scratch, model) = (experts.as_mut(), &mut *scratch, &mut *model);
            let clock: &mut PhaseClock = &mut *clock;
            kv.extend(tokens.len()).map_err(ModelError::from).map_err(EngineError::Forward)?;
            let (pool, sequence) = kv.computing();
            workers
                .enter(|team| {
                    let mut engine = ForwardEngine { team, kernels: *kernels, experts, pool, scratch, clock };
                    let segment = Segment { tokens, sequence, logits: LogitsWanted::All };
                    model.forward(&mut engine, &mut [segment], &mut collect)
                })
                .map_err(EngineError::Forward)?;
            if !collect.go_on {
                break;
            }
        }
        Ok(())
    }
}

/// Hands every position's logits to a closure.
struct Collect<'a> {
    first: usize,
    sink: &'a mut dyn FnMut(usize, &[f32]) -> bool,
    go_on: bool,
}

impl ForwardObserver for Collect<'_> {
    fn layer_done(&mut self, _layer: usize, _layers: usize) -> bool {
        true
    }

    fn logits(&mut self, _segment: usize, row: usize, logits: &mut [f32]) {
        self.go_on = self.go_on && (self.sink)(self.first + row, logits);
    }
}
