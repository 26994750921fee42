//! One measurement: a prompt and an answer at a depth, timed from outside and phase by phase from inside.
//!
//! The wall time is read here, at the call, at the first token and at the return; the phases come from the library. That
//! the two agree is shown in the report and checked by a test.

use std::time::{Duration, Instant};

use coldpress::{
    EngineError, ExpertStatistics, FinishReason, GenerateObserver, GenerateOptions, Generation, PhaseTimes,
    Runtime, Session,
};

use crate::interrupt;

/// Prefill or decode of one run.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Tokens that passed the model.
    pub tokens: usize,
    /// Wall time.
    pub wall: Duration,
    /// The same time by phase.
    pub phases: PhaseTimes,
    /// Hits, misses and reads; all zero for dense models.
    pub experts: ExpertStatistics,
}

impl Part {
    /// Tokens per second.
    pub fn rate(&self) -> f64 {
        self.tokens as f64 / self.wall.as_secs_f64().max(1e-9)
    }
}

/// A prompt and its answer.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Until the first token was chosen.
    pub prefill: Part,
    /// From there to the end: one forward pass per further token.
    pub decode: Part,
}

/// Tokens of a run.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Forward passes after it.
    pub generated: usize,
}

/// When the first token came.
#[derive(Default)]
struct FirstToken(Option<Instant>);

impl GenerateObserver for FirstToken {
    fn token(&mut self, _id: u32) {
        self.0.get_or_insert_with(Instant::now);
    }

    fn should_stop(&mut self) -> bool {
        interrupt::asked()
    }
}

/// Makes `session` hold the first `depth` of `ids`, from nothing; `None` if the user stopped it.
///
/// # Errors
/// As [`Runtime::generate`].
pub fn fill(
    runtime: &mut Runtime,
    session: &mut Session,
    ids: &[u32],
    depth: usize,
) -> Result<Option<Part>, EngineError> {
    session.clear();
    Ok(timed(runtime, session, &ids[..depth], 1)?.map(|run| run.prefill))
}

/// One run at `depth`: the prompt is what follows there in `ids`. `None` if the user stopped it.
///
/// # Errors
/// As [`Runtime::generate`].
pub fn run(
    runtime: &mut Runtime,
    session: &mut Session,
    ids: &[u32],
    depth: usize,
    sizes: Sizes,
) -> Result<Option<Run>, EngineError> {
    session.truncate(depth);
    // The first token comes from the prompt; only those after it are passes of their own.
    timed(runtime, session, &ids[..depth + sizes.prompt], sizes.generated + 1)
}

fn timed(
    runtime: &mut Runtime,
    session: &mut Session,
    prompt: &[u32],
    max_tokens: usize,
) -> Result<Option<Run>, EngineError> {
    let options =
        GenerateOptions { max_tokens, ignore_eos: true, continuation: true, ..GenerateOptions::default() };
    let mut first = FirstToken::default();
    let started = Instant::now();
    let answer = runtime.generate(session, prompt, &options, &mut first)?;
    let ended = Instant::now();
    let (Some(first), FinishReason::Length) = (first.0, answer.finish_reason) else { return Ok(None) };
    Ok(Some(parts(&answer, first - started, ended - first)))
}

fn parts(answer: &Generation, prefill_wall: Duration, decode_wall: Duration) -> Run {
    let all = answer.experts.unwrap_or_default();
    let prefill_experts = answer.prefill_experts.unwrap_or_default();
    Run {
        prefill: Part {
            tokens: answer.prompt_tokens - answer.cached_tokens,
            wall: prefill_wall,
            phases: answer.prefill_phases,
            experts: prefill_experts,
        },
        decode: Part {
            tokens: answer.tokens.len() - 1,
            wall: decode_wall,
            phases: answer.decode_phases,
            experts: all.since(&prefill_experts),
        },
    }
}
