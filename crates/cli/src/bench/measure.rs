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

/// Some tokens in a row and the time between the one before them and the last of them.
#[derive(Clone, Copy, Debug)]
pub struct Stretch {
    /// At least one.
    pub tokens: usize,
    /// Wall time.
    pub wall: Duration,
}

impl Stretch {
    /// Tokens per second.
    pub fn rate(&self) -> f64 {
        self.tokens as f64 / self.wall.as_secs_f64().max(1e-9)
    }
}

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
    /// The first, the middle and the last third of an answer's tokens; the middle one takes what three does not divide.
    /// `None` for prompts and answers of less than three further tokens.
    pub thirds: Option<[Stretch; 3]>,
}

impl Part {
    /// Tokens per second.
    pub fn rate(&self) -> f64 {
        self.tokens as f64 / self.wall.as_secs_f64().max(1e-9)
    }

    /// The share of requested experts that were in memory; `None` when none was requested.
    pub fn hit_rate(&self) -> Option<f64> {
        let requests = self.experts.hits + self.experts.misses;
        (requests > 0).then(|| self.experts.hits as f64 / requests as f64)
    }

    /// Bytes asked of the device per token.
    pub fn device_bytes_per_token(&self) -> f64 {
        self.experts.device_bytes_read as f64 / self.tokens.max(1) as f64
    }

    /// Wall time that is neither waiting for the disk nor making records of what was read.
    pub fn computing(&self) -> Duration {
        self.wall.saturating_sub(self.phases.disk_wait + self.phases.arrange)
    }
}

/// A prompt and its answer.
#[derive(Clone, Debug)]
pub struct Run {
    /// Whether nothing had passed the model since it was loaded.
    pub cold: bool,
    /// Until the first token was chosen.
    pub prefill: Part,
    /// From there to the end: one forward pass per further token.
    pub decode: Part,
    /// The answer's token ids.
    pub tokens: Vec<u32>,
}

/// Tokens of a run.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Forward passes after it.
    pub generated: usize,
}

/// When each token came; has room for all of them before the first one, so that noting a time allocates nothing.
struct TokenTimes(Vec<Instant>);

impl GenerateObserver for TokenTimes {
    fn token(&mut self, _id: u32) {
        self.0.push(Instant::now());
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

/// One run at `depth`: the prompt is what follows there in `ids`. The caller says whether it is a cold one. `None` if the user stopped it.
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
    let mut times = TokenTimes(Vec::with_capacity(max_tokens));
    let started = Instant::now();
    let answer = runtime.generate(session, prompt, &options, &mut times)?;
    let ended = Instant::now();
    let (Some(&first), FinishReason::Length) = (times.0.first(), answer.finish_reason) else {
        return Ok(None);
    };
    Ok(Some(parts(answer, first - started, ended - first, thirds(&times.0))))
}

fn parts(
    answer: Generation,
    prefill_wall: Duration,
    decode_wall: Duration,
    thirds: Option<[Stretch; 3]>,
) -> Run {
    let all = answer.experts.unwrap_or_default();
    let prefill_experts = answer.prefill_experts.unwrap_or_default();
    Run {
        cold: false,
        prefill: Part {
            tokens: answer.prompt_tokens - answer.cached_tokens,
            wall: prefill_wall,
            phases: answer.prefill_phases,
            experts: prefill_experts,
            thirds: None,
        },
        decode: Part {
            tokens: answer.tokens.len() - 1,
            wall: decode_wall,
            phases: answer.decode_phases,
            experts: all.since(&prefill_experts),
            thirds,
        },
        tokens: answer.tokens,
    }
}

/// The thirds of the passes between the first of these times and the last.
fn thirds(times: &[Instant]) -> Option<[Stretch; 3]> {
    let passes = times.len().checked_sub(1).filter(|passes| *passes >= 3)?;
    let third = passes / 3;
    let bounds = [0, third, passes - third, passes];
    Some(std::array::from_fn(|index| {
        let (begin, end) = (bounds[index], bounds[index + 1]);
        Stretch { tokens: end - begin, wall: times[end] - times[begin] }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thirds_share_out_all_tokens_and_all_time() {
        let start = Instant::now();
        let times = |passes: u32| (0..=passes).map(|index| start + Duration::from_millis(1) * index * index);
        assert!(thirds(&times(2).collect::<Vec<_>>()).is_none());
        for passes in 3..20 {
            let all: Vec<Instant> = times(passes).collect();
            let thirds = thirds(&all).expect("three tokens or more");
            assert_eq!(thirds.iter().map(|third| third.tokens).sum::<usize>(), passes as usize);
            assert_eq!(thirds[0].tokens, thirds[2].tokens);
            assert_eq!(thirds.iter().map(|third| third.wall).sum::<Duration>(), all[all.len() - 1] - start);
            assert!(thirds[0].rate() > thirds[2].rate(), "later tokens took longer");
        }
    }
}
