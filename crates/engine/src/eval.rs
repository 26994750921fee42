//! Two ways to compute the same text, compared token by token: what a lossy setting costs.
//!
//! One loaded model reads a text in windows, teacher-forced, twice: as exactly as it can and as it was asked to. The window is the planned
//! context. Both ways go through a window in groups of positions, so that the logits of one group are all that is kept
//! ([`kept_rows`]), and both KV caches are part of the plan ([`LoadConfiguration::comparing`]). The loss of a position is the
//! Kullback-Leibler divergence of its two distributions over the next token, in nats, summed in f64: equal logits give exactly
//! 0. A preference for experts in memory is asked for token by token, as in answers, and before the exact way computes the same
//! group, so that what is in memory is what earlier text has left there. Refuses: judging; settings that would need the model to be loaded twice.

use coldpress_memory::{Buffer, Bytes, Purpose};
use coldpress_model::{
    ForwardEngine, ForwardObserver, KvPool, KvType, LogitsWanted, ModelError, ModelSpec, Segment, Sequence,
    check_kv_type, kv_bytes_per_token,
};
use coldpress_text::{ParseSpecial, Tokenizer};

use crate::configuration::LoadConfiguration;
use crate::error::EngineError;
use crate::expert_types;
use crate::lossy::LossyRouting;
use crate::runtime::Runtime;
use crate::settings::SettingKey;

/// Context, which is the window, where nobody asks for another one.
pub(crate) const WINDOW_DEFAULT: u32 = 512;
/// Logits that are kept while the other way computes its own: as many positions as this holds.
const KEPT_BYTES: usize = 64 << 20;
/// Positions of a group: fewer would read each expert for few rows, more are of no use.
const GROUP_ROWS: std::ops::RangeInclusive<usize> = 16..=512;
/// Fewer compared positions say nothing.
const POSITIONS_MIN: usize = 16;

/// Positions whose logits are kept.
fn kept_rows(vocabulary: usize) -> usize {
    (KEPT_BYTES / size_of::<f32>() / vocabulary.max(1)).clamp(*GROUP_ROWS.start(), *GROUP_ROWS.end())
}

/// Memory for the logits that are kept.
fn kept_bytes(vocabulary: usize) -> Bytes {
    Bytes((kept_rows(vocabulary) * vocabulary * size_of::<f32>()) as u64)
}

/// One of the two ways to compute.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct ComparedSide {
    /// Precision of the KV cache.
    pub kv_type: &'static str,
    /// Bytes of the KV cache for one token.
    pub kv_bytes_per_token: usize,
    /// Experts that a token uses in each layer.
    pub experts_per_token: usize,
    /// Bytes of experts that were read.
    pub expert_bytes_read: u64,
    /// `exp` of the mean negative logarithm of the probability of the token that follows.
    pub perplexity: f64,
}

/// What a comparison found.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Comparison {
    /// Compared positions: all of a window but its last, whose next token is not in it.
    pub tokens: usize,
    /// Windows the text was cut into.
    pub windows: usize,
    /// Most tokens of a window.
    pub window_tokens: usize,
    /// The exact way.
    pub exact: ComparedSide,
    /// The way that was asked for.
    pub asked: ComparedSide,
    /// What is lossy about the way that was asked for.
    pub lossy: Vec<String>,
    /// Preference for experts in memory of the way that was asked for; 0 for none.
    pub cache_bias: f32,
    /// Mean divergence of a position, in nats.
    pub kl_mean: f64,
    /// 99 of 100 positions diverge by at most this.
    pub kl_p99: f64,
    /// The largest divergence.
    pub kl_max: f64,
    /// Share of the positions at which both ways have the same most likely token.
    pub top1_agreement: f64,
}

/// Follows a comparison. All methods have defaults.
pub trait ComparisonObserver {
    /// `done` of `total` tokens were computed in both ways.
    fn progress(&mut self, done: f64, total: usize) {
        let _ = (done, total);
    }

    /// Asked after every layer; `true` ends the work with [`EngineError::Cancelled`].
    fn should_stop(&mut self) -> bool {
        false
    }
}

impl ComparisonObserver for crate::Silent {}

/// Sums over the compared positions.
#[derive(Default)]
struct Sums {
    divergences: Vec<f64>,
    /// Negative logarithms of the probability of the next token, exact and asked.
    surprise: [f64; 2],
    /// Bytes of experts read, exact and asked.
    bytes_read: [u64; 2],
    agreed: usize,
}

/// Logarithm of the sum of `exp` of some logits, and the place of the largest.
fn normaliser(logits: &[f32]) -> (f64, usize) {
    let largest = |best: usize, place: usize| if logits[place] > logits[best] { place } else { best };
    let best = (0..logits.len()).fold(0, largest);
    let maximum = f64::from(logits[best]);
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - maximum).exp()).sum();
    (maximum + sum.ln(), best)
}

impl Sums {
    fn add(&mut self, exact: &[f32], asked: &[f32], next: u32) {
        let ((exact_norm, exact_best), (asked_norm, asked_best)) = (normaliser(exact), normaliser(asked));
        let divergence: f64 = exact
            .iter()
            .zip(asked)
            .map(|(&p, &q)| {
                let (p, q) = (f64::from(p) - exact_norm, f64::from(q) - asked_norm);
                p.exp() * (p - q)
            })
            .sum();
        // The divergence is never negative; a sum of roundings can be.
        self.divergences.push(divergence.max(0.0));
        let next = next as usize;
        self.surprise[EXACT] += exact_norm - f64::from(exact[next]);
        self.surprise[ASKED] += asked_norm - f64::from(asked[next]);
        self.agreed += usize::from(exact_best == asked_best);
    }
}

/// What one forward pass does with its logits.
enum Sink<'a> {
    Keep(&'a mut [f32]),
    Compare { kept: &'a [f32], next: &'a [u32], sums: &'a mut Sums },
}

/// Places of the two ways in what is kept of both.
const EXACT: usize = 0;
const ASKED: usize = 1;

struct Pass<'a> {
    sink: Sink<'a>,
    vocabulary: usize,
    observer: &'a mut dyn ComparisonObserver,
    /// Tokens done before this pass, tokens it adds (half of its rows), all tokens.
    progress: (f64, f64, usize),
}

impl ForwardObserver for Pass<'_> {
    fn layer_done(&mut self, layer: usize, layers: usize) -> bool {
        let (before, rows, total) = self.progress;
        self.observer.progress(before + rows * (layer + 1) as f64 / layers as f64, total);
        !self.observer.should_stop()
    }

    fn logits(&mut self, _segment: usize, row: usize, logits: &mut [f32]) {
        let place = row * self.vocabulary..(row + 1) * self.vocabulary;
        match &mut self.sink {
            Sink::Keep(kept) => kept[place].copy_from_slice(logits),
            Sink::Compare { kept, next, sums } => {
                if let Some(&next) = next.get(row) {
                    sums.add(logits, &kept[place], next);
                }
            }
        }
    }
}

/// A KV cache of one way to compute.
struct Side {
    pool: KvPool,
    sequence: Sequence,
    /// How its tokens are routed.
    routing: LossyRouting,
    /// Most tokens of one pass.
    rows: usize,
    expert_bytes_read: u64,
}

impl Runtime {
    /// Ids of a text cut into windows for [`Runtime::compare`], `tokens_max` in all: each begins as the model's prompts do.
    fn windows(&self, text: &str, tokens_max: usize) -> Result<Vec<Vec<u32>>, EngineError> {
        let tokenizer: &Tokenizer = &self.tokenizer;
        let ids = tokenizer.encode(text, ParseSpecial::No);
        let begin = tokenizer.encode_prompt("", ParseSpecial::No);
        let begin = begin.first().copied().filter(|&id| tokenizer.bos() == Some(id));
        let content = (self.report.plan.context as usize).saturating_sub(usize::from(begin.is_some()));
        let ids = &ids[..ids.len().min(tokens_max)];
        if ids.len() < POSITIONS_MIN || content < POSITIONS_MIN {
            return Err(EngineError::BadOption(format!(
                "there is too little to compare: {} tokens of text in windows of {content}; {POSITIONS_MIN} of each are the \
                 least that says anything",
                ids.len()
            )));
        }
        let windows = ids.chunks(content).map(|window| begin.into_iter().chain(window.iter().copied()));
        // A window of one token has no next one.
        Ok(windows.map(Iterator::collect).filter(|window: &Vec<u32>| window.len() > 1).collect())
    }

    /// Most bytes of a text of which `tokens` tokens are to be compared: beyond that nothing need be read.
    pub fn comparison_text_bytes(tokens: usize) -> usize {
        // Tokens of prose have 4 bytes or 5; a text of longer ones is compared in part.
        tokens.saturating_mul(16)
    }

    /// Computes `text` in both ways, at most `tokens_max` tokens of it, and compares. The runtime was loaded with
    /// [`LoadConfiguration::comparing`].
    ///
    /// # Errors
    /// Nothing differs, the text is too short, a failed read, a stop asked for by the observer.
    pub fn compare(
        &mut self,
        text: &str,
        tokens_max: usize,
        observer: &mut dyn ComparisonObserver,
    ) -> Result<Comparison, EngineError> {
        let Some(exact) = self.configuration.exact_kv else {
            return Err(EngineError::BadOption("the model was not loaded for a comparison".to_owned()));
        };
        if let Some(words) = expert_types::in_words(self.model.spec()) {
            return Err(EngineError::BadOption(format!(
                "{words} cannot be compared with those of the file in one load: compare the files of two runs of `coldpress logits`"
            )));
        }
        let windows = self.windows(text, tokens_max)?;
        self.check_files()?;
        self.wake()?;
        let result = self.compare_windows(exact, &windows, observer);
        self.configuration.routing().set(&mut self.model);
        self.sample_memory();
        self.rest();
        let sums = result?;
        let spec = self.model.spec();
        let tokens = sums.divergences.len();
        let trained = self.model.made_with_experts_per_token();
        let side = |kv_type: KvType, place: usize, routing: LossyRouting| ComparedSide {
            kv_type: kv_type.name(),
            kv_bytes_per_token: kv_bytes_per_token(spec, kv_type),
            experts_per_token: routing.experts_per_token.map_or(trained, |limit| limit.min(trained)),
            expert_bytes_read: sums.bytes_read[place],
            perplexity: (sums.surprise[place] / tokens as f64).exp(),
        };
        let asked_routing = self.configuration.routing();
        let (exact, asked) =
            (side(exact, EXACT, LossyRouting::EXACT), side(self.configuration.kv_type, ASKED, asked_routing));
        let mean = sums.divergences.iter().sum::<f64>() / tokens as f64;
        let mut sorted = sums.divergences;
        sorted.sort_by(f64::total_cmp);
        Ok(Comparison {
            tokens,
            windows: windows.len(),
            window_tokens: windows.iter().map(Vec::len).max().unwrap_or(0),
            exact,
            asked,
            lossy: self.report.lossy.clone(),
            cache_bias: asked_routing.cache_bias,
            kl_mean: mean,
            kl_p99: sorted[(tokens * 99).div_ceil(100).clamp(1, tokens) - 1],
            kl_max: sorted[tokens - 1],
            top1_agreement: sums.agreed as f64 / tokens as f64,
        })
    }

    fn compare_windows(
        &mut self,
        exact: KvType,
        windows: &[Vec<u32>],
        observer: &mut dyn ComparisonObserver,
    ) -> Result<Sums, EngineError> {
        // Both caches of the plan are made here, so one that a session had goes.
        self.kv = None;
        let spec = self.model.spec();
        let vocabulary = spec.vocabulary;
        let group = kept_rows(vocabulary).min(self.report.plan.chunk_tokens as usize);
        let side = |kv_type, routing: LossyRouting| -> Result<Side, EngineError> {
            let states = self.configuration.state_slots();
            let pool = KvPool::new(&self.ledger, spec, kv_type, self.pages(), states)
                .map_err(EngineError::Forward)?;
            let sequence = Sequence::new(self.report.plan.context as usize);
            let rows = if routing.cache_bias > 0.0 { 1 } else { group };
            Ok(Side { pool, sequence, routing, rows, expert_bytes_read: 0 })
        };
        let mut sides = [
            side(exact, LossyRouting::EXACT)?,
            side(self.configuration.kv_type, self.configuration.routing())?,
        ];
        let mut kept = Buffer::new(&self.ledger, Purpose::Scratch, kept_bytes(vocabulary))?;
        let total = windows.iter().map(Vec::len).sum();
        let mut sums = Sums { divergences: Vec::with_capacity(total), ..Sums::default() };
        let mut done = 0.0;
        for window in windows {
            for Side { pool, sequence, .. } in &mut sides {
                pool.truncate(sequence, 0);
            }
            for (index, tokens) in window.chunks(group).enumerate() {
                let kept = &mut kept.as_mut_slice_of::<f32>()[..tokens.len() * vocabulary];
                let next = &window[(index * group + 1).min(window.len())..];
                let side = &mut sides[ASKED];
                for (tokens, kept) in tokens.chunks(side.rows).zip(kept.chunks_mut(side.rows * vocabulary)) {
                    let share = tokens.len() as f64 / 2.0;
                    let (sink, progress) = (Sink::Keep(kept), (done, share, total));
                    self.pass(
                        side,
                        tokens,
                        &mut Pass { sink, vocabulary, observer: &mut *observer, progress },
                    )?;
                    done += share;
                }
                let share = tokens.len() as f64 / 2.0;
                let sink = Sink::Compare { kept, next, sums: &mut sums };
                let progress = (done, share, total);
                let mut compare = Pass { sink, vocabulary, observer: &mut *observer, progress };
                self.pass(&mut sides[EXACT], tokens, &mut compare)?;
                done += share;
            }
            self.sample_memory();
        }
        sums.bytes_read = sides.map(|side| side.expert_bytes_read);
        Ok(sums)
    }

    fn pass(&mut self, side: &mut Side, tokens: &[u32], pass: &mut Pass<'_>) -> Result<(), EngineError> {
        let Side { pool, sequence, routing, expert_bytes_read, .. } = side;
        routing.set(&mut self.model);
        let read = |runtime: &Self| runtime.with_store(|store| store.statistics().bytes_read).unwrap_or(0);
        let before = read(self);
        pool.extend(sequence, tokens.len()).map_err(ModelError::from).map_err(EngineError::Forward)?;
        let Self { workers, model, kernels, experts, scratch, clock, .. } = self;
        let scratch = scratch.as_mut().expect("a runtime is awake while it computes");
        let result = workers.enter(|team| {
            let experts = experts.as_mut();
            let mut engine = ForwardEngine { team, kernels: *kernels, experts, pool, scratch, clock };
            let segment = Segment { tokens, sequence, logits: LogitsWanted::All };
            model.forward(&mut engine, &mut [segment], pass)
        });
        *expert_bytes_read += read(self).saturating_sub(before);
        result.map_err(|error| match error {
            ModelError::Cancelled => EngineError::Cancelled,
            error => EngineError::Forward(error),
        })
    }
}

impl LoadConfiguration {
    /// Plans memory for [`Runtime::compare`]: the asked-for settings against a KV cache of `exact`. A lossy type that was not measured
    /// for the model's family is let in, to be measured. The context is the window.
    #[must_use]
    pub fn comparing(mut self, exact: KvType) -> Self {
        self.exact_kv = Some(exact);
        self
    }

    /// Whether the KV caches can be what they were asked to be, and may.
    pub(crate) fn check_kv(&self, spec: &ModelSpec) -> Result<(), EngineError> {
        self.kv_types()
            .try_for_each(|kv_type| check_kv_type(spec, kv_type, self.exact_kv.is_some()))
            .map_err(|error| self.blame(SettingKey::Kv, EngineError::BadOption(error.to_string())))
    }

    /// The type of each KV cache: one, or two where they are compared.
    pub(crate) fn kv_types(&self) -> impl Iterator<Item = KvType> {
        std::iter::once(self.kv_type).chain(self.exact_kv)
    }

    /// Memory for logits that a comparison keeps, part of the plan's scratch.
    pub(crate) fn kept_bytes(&self, vocabulary: usize) -> Bytes {
        self.exact_kv.map_or(Bytes::ZERO, |_| kept_bytes(vocabulary))
    }

    /// Whether there can be anything for [`Runtime::compare`] to find.
    pub fn differs_from_exact(&self) -> bool {
        let routing = self.experts_per_token.is_some() || self.cache_bias > 0.0;
        self.exact_kv.is_some_and(|exact| exact != self.kv_type || routing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divergence_is_what_a_pencil_gives() {
        // p = (1/2, 1/4, 1/4), q = (1/4, 1/2, 1/4): 1/2 ln 2 - 1/4 ln 2.
        let logits = |probabilities: [f32; 3]| probabilities.map(|p| p.ln() + 3.0);
        let mut sums = Sums::default();
        sums.add(&logits([0.5, 0.25, 0.25]), &logits([0.25, 0.5, 0.25]), 2);
        assert!((sums.divergences[0] - 0.25 * 2.0_f64.ln()).abs() < 1e-6, "{:?}", sums.divergences);
        assert!((sums.surprise[0] - 4.0_f64.ln()).abs() < 1e-6 && sums.agreed == 0);
        let same = logits([0.7, 0.2, 0.1]);
        sums.add(&same, &same, 0);
        assert_eq!((sums.divergences[1], sums.agreed), (0.0, 1));
    }

    #[test]
    fn logits_that_are_kept_stay_within_their_share() {
        for vocabulary in [1, 8192, 49_152, 151_936, 1 << 20] {
            let bytes = kept_bytes(vocabulary).0 as usize;
            assert!(bytes <= KEPT_BYTES || kept_rows(vocabulary) == *GROUP_ROWS.start(), "{vocabulary}");
        }
    }
}
