//! Choosing settings for a model: how its disk is read, the eviction policy, and whether to read ahead.
//!
//! In this order, because each is judged with what was chosen before it. The disk is measured anew for seconds, and kept for
//! every model on it (`disk_tuning`). The routing of some text is recorded, and every policy replayed on it: counts, so one
//! recording is enough. Reading ahead is a matter of time, so it is timed: stretches of the same tokens from the same cold
//! cache, off, on, on, off and so on, so that a drift of the machine falls on both alike. One way is kept only if its slowest
//! stretch is faster than the fastest of the other and the middles differ by [`GAIN_MIN`]; of four stretches each that
//! happens by chance once in 35 times. Otherwise `auto` stays, which tries both from time to time while it runs: it costs a
//! little where one way is always better, and loses little where neither is. Nothing here changes an answer.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use coldpress_experts::{PolicyKind, RoutingTrace, Visits};
use coldpress_memory::{Bytes, Purpose, SizeSpec};

use crate::configuration::{ChoiceOrigin, LoadConfiguration, Prefetch};
use crate::disk_tuning::{self, Reading};
use crate::error::EngineError;
use crate::generate::{FinishReason, GenerateObserver, GenerateOptions, Generation};
use crate::learnt::{Profile, profile, write_profile};
use crate::plan::prepare_again;
use crate::runtime::{LoadObserver, Runtime, open_experts};
use crate::simulate::{Capacity, Simulation, simulate};

/// What another policy must have above the default, as a share of all requests, to be worth a profile of its own.
const ADVANTAGE_MIN: f64 = 0.005;
/// By how much the middle stretch of a way of reading must be faster, as a share, to be kept.
const GAIN_MIN: f64 = 0.02;
/// Stretches of each way.
const STRETCHES: usize = 4;
/// With fewer of each, nothing is said.
const STRETCHES_MIN: usize = 3;
/// About how long the decoding of a stretch may take, and its prompts again as long.
const STRETCH_TIME: Duration = Duration::from_secs(8);
/// Fewer decoded tokens in a stretch say nothing.
const STRETCH_TOKENS_MIN: usize = 16;
/// No pair of stretches is begun after this time.
const TRIAL_TIME_MAX: Duration = Duration::from_secs(150);

/// What tuning found.
#[derive(Clone, Debug, serde::Serialize)]
pub struct TuneReport {
    /// What later runs use.
    pub profile: Profile,
    /// Where it was written.
    pub path: PathBuf,
    /// Every policy at the slots of the budget.
    pub simulation: Simulation,
    /// How experts are read: measured now, or why not in its basis.
    pub reading: Reading,
    /// Decoding without and with reading ahead.
    pub prefetch: PrefetchTrial,
}

/// Decoding without and with reading ahead, in turns.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct PrefetchTrial {
    /// Tokens decoded in each stretch.
    pub tokens: usize,
    /// Tokens per second of each stretch without reading ahead.
    pub off: Vec<f64>,
    /// Tokens per second of each stretch with it.
    pub on: Vec<f64>,
}

impl PrefetchTrial {
    /// The way that was faster by more than the noise, else `auto`.
    pub fn verdict(&self) -> Prefetch {
        let enough = self.off.len().min(self.on.len()) >= STRETCHES_MIN && self.tokens >= STRETCH_TOKENS_MIN;
        if enough && is_faster(&self.on, &self.off) {
            Prefetch::On
        } else if enough && is_faster(&self.off, &self.on) {
            Prefetch::Off
        } else {
            Prefetch::Auto
        }
    }

    /// The middle stretches without and with reading ahead, in tokens per second; 0 where there are none.
    pub fn medians(&self) -> [f64; 2] {
        [median(&self.off), median(&self.on)]
    }
}

fn is_faster(rates: &[f64], others: &[f64]) -> bool {
    let slowest = rates.iter().fold(f64::INFINITY, |least, &rate| least.min(rate));
    let fastest = others.iter().fold(0.0_f64, |most, &rate| most.max(rate));
    slowest > fastest && median(rates) >= median(others) * (1.0 + GAIN_MIN)
}

fn median(rates: &[f64]) -> f64 {
    let mut sorted = rates.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let count = sorted.len();
    if count == 0 { 0.0 } else { (sorted[(count - 1) / 2] + sorted[count / 2]) / 2.0 }
}

/// Lets whoever watches the answers stop the opening of a store, too.
struct Quiet<'a>(&'a mut dyn GenerateObserver);

impl LoadObserver for Quiet<'_> {
    fn should_stop(&mut self) -> bool {
        self.0.should_stop()
    }
}

impl Runtime {
    /// Measures how the model's disk is read best, answers each of `prompts`, compares the policies on the routing at this
    /// runtime's number of slots, decodes without and with reading ahead, and writes what was best to the model's profile in
    /// `folder`. `None` if the observer stopped it. The expert cache is cold afterwards; after an error the runtime
    /// may be without one and is to be loaded again.
    ///
    /// # Errors
    /// The model has no routed experts or all of them fit, a prompt is too long, reading failed, or the profile cannot be
    /// written.
    pub fn tune(
        &mut self,
        prompts: &[Vec<u32>],
        options: &GenerateOptions,
        folder: &Path,
        observer: &mut dyn GenerateObserver,
    ) -> Result<Option<TuneReport>, EngineError> {
        self.start_trace()?;
        let plan = &self.report.plan;
        if plan.slot_count >= plan.records_total {
            let reason = "all experts fit the budget: nothing is evicted and every policy is the same; use a smaller --budget";
            return Err(EngineError::BadOption(reason.to_owned()));
        }
        let slots = usize::try_from(plan.slot_count).unwrap_or(usize::MAX);
        // What is free changes while this runs; the slots must not.
        let base = self.configuration.clone().budget(SizeSpec::Exact(plan.budget));
        self.reopen_experts(&base, true, observer)?;
        let Some(answers) = self.answers(prompts, options, observer)? else {
            self.finish_trace();
            return Ok(None);
        };
        let trace = self.finish_trace().expect("recording was started above");
        // The comparison takes memory that the slots had; the store is opened anew below.
        self.close_experts()?;
        let comparing = self.ledger.reserve(Purpose::Scratch, Bytes(Visits::memory_bytes(&trace) as u64))?;
        let (policy, rates, simulation) = best_policy(&trace, slots);
        drop(comparing);
        let base = base.policy(policy.name(), ChoiceOrigin::Profile);
        let stretch = Stretch::like(&answers, prompts, options);
        let Some(prefetch) = self.try_prefetch(&base, &stretch, observer)? else { return Ok(None) };
        let profile = profile(trace.fingerprint(), policy, prefetch.verdict(), slots, rates);
        let path = write_profile(folder, trace.fingerprint(), &profile)?;
        let reading = Reading { reader: self.status().reader, ..self.report.reading.clone() };
        Ok(Some(TuneReport { profile, path, simulation, reading, prefetch }))
    }

    /// Answers prompts one by one, each in a conversation of its own; `None` if the observer stopped it.
    fn answers(
        &mut self,
        prompts: &[Vec<u32>],
        options: &GenerateOptions,
        observer: &mut dyn GenerateObserver,
    ) -> Result<Option<Vec<Generation>>, EngineError> {
        let mut session = self.session()?;
        let mut answers = Vec::with_capacity(prompts.len());
        for prompt in prompts {
            session.clear();
            let answer = self.generate(&mut session, prompt, options, observer)?;
            if answer.finish_reason == FinishReason::Cancelled {
                return Ok(None);
            }
            answers.push(answer);
        }
        Ok(Some(answers))
    }

    /// Decodes the same tokens without and with reading ahead, in turns; `None` if the observer stopped it.
    fn try_prefetch(
        &mut self,
        base: &LoadConfiguration,
        stretch: &Stretch<'_>,
        observer: &mut dyn GenerateObserver,
    ) -> Result<Option<PrefetchTrial>, EngineError> {
        let started = Instant::now();
        let mut trial = PrefetchTrial::default();
        for pair in 0..STRETCHES {
            if started.elapsed() > TRIAL_TIME_MAX {
                break;
            }
            let order =
                if pair % 2 == 0 { [Prefetch::Off, Prefetch::On] } else { [Prefetch::On, Prefetch::Off] };
            for setting in order {
                let configuration = base.clone().prefetch(setting, ChoiceOrigin::Profile);
                self.reopen_experts(&configuration, false, observer)?;
                let answers = self.answers(stretch.prompts, &stretch.options, observer)?;
                let Some(answers) = answers else { return Ok(None) };
                let (tokens, time) = decoded(&answers);
                let rate = tokens as f64 / time.as_secs_f64().max(1e-9);
                trial.tokens = tokens;
                if setting == Prefetch::On { trial.on.push(rate) } else { trial.off.push(rate) }
            }
        }
        Ok(Some(trial))
    }

    /// Closes the expert store, also where it rests.
    fn close_experts(&mut self) -> Result<(), EngineError> {
        self.wake()?;
        self.experts = None;
        Ok(())
    }

    /// Closes the expert store and opens it anew, cold, under `configuration`; with `measure_disk`, after its disk was
    /// measured again.
    fn reopen_experts(
        &mut self,
        configuration: &LoadConfiguration,
        measure_disk: bool,
        observer: &mut dyn GenerateObserver,
    ) -> Result<(), EngineError> {
        self.check_files()?;
        let mut prepared = prepare_again(&self.files[0].path, configuration)?;
        self.close_experts()?;
        if measure_disk {
            disk_tuning::tune_again(&mut prepared, configuration, &self.ledger);
        }
        let mut quiet = Quiet(observer);
        self.experts = open_experts(&mut prepared, configuration, &self.ledger, &self.workers, &mut quiet)?;
        self.keeper.steer(self.experts.as_ref());
        self.report = prepared.report;
        self.configuration = configuration.clone();
        Ok(())
    }
}

/// What one stretch answers: bounded by what the recording took, so that a slow model is tuned in minutes.
struct Stretch<'a> {
    prompts: &'a [Vec<u32>],
    options: GenerateOptions,
}

impl<'a> Stretch<'a> {
    fn like(answers: &[Generation], prompts: &'a [Vec<u32>], options: &GenerateOptions) -> Self {
        let mut reading = Duration::ZERO;
        let within = answers.iter().take_while(|answer| {
            reading += answer.prefill_time;
            reading <= STRETCH_TIME
        });
        let count = within.count().max(1).min(prompts.len());
        let (tokens, time) = decoded(answers);
        let per_second = tokens as f64 / time.as_secs_f64().max(1e-9);
        let affordable = (per_second * STRETCH_TIME.as_secs_f64()) as usize / count.max(1);
        let max_tokens = affordable.max(STRETCH_TOKENS_MIN + 1).min(options.max_tokens);
        Self { prompts: &prompts[..count], options: GenerateOptions { max_tokens, ..options.clone() } }
    }
}

/// Tokens after the first one of each answer, and their time.
fn decoded(answers: &[Generation]) -> (usize, Duration) {
    let tokens = answers.iter().map(|answer| answer.tokens.len().saturating_sub(1)).sum();
    (tokens, answers.iter().map(|answer| answer.decode_time).sum())
}

/// The best policy at `slots` slots; the shares of hits of it, of the default and of the optimum; and the comparison.
fn best_policy(trace: &RoutingTrace, slots: usize) -> (PolicyKind, [f64; 3], Simulation) {
    let kinds = PolicyKind::ALL.map(|(_, kind)| kind);
    let simulation = simulate(trace, &[Capacity::Slots(slots)], &kinds);
    let rate = |index: usize| simulation.policies[index].counts[0].hit_rate();
    // The first one is the default; of equals the earlier one stays.
    let best = (0..kinds.len()).fold(0, |best, index| {
        let needed = if best == 0 { ADVANTAGE_MIN } else { 0.0 };
        if rate(index) > rate(best) + needed { index } else { best }
    });
    let optimum = Visits::of(trace).belady(slots).hit_rate();
    (kinds[best], [rate(best), rate(0), optimum], simulation)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(tokens: usize, off: &[f64], on: &[f64]) -> Prefetch {
        PrefetchTrial { tokens, off: off.to_vec(), on: on.to_vec() }.verdict()
    }

    #[test]
    fn only_what_stands_clear_of_the_noise_is_kept() {
        let (slow, fast) = ([10.0, 10.2, 9.9, 10.1], [11.0, 11.5, 11.2, 10.9]);
        assert_eq!(verdict(100, &slow, &fast), Prefetch::On);
        assert_eq!(verdict(100, &fast, &slow), Prefetch::Off);
        let stumbled = [11.0, 11.5, 11.2, 10.0];
        assert_eq!(verdict(100, &slow, &stumbled), Prefetch::Auto, "one stretch was as slow");
        assert_eq!(verdict(100, &[10.0; 4], &[10.1; 4]), Prefetch::Auto, "apart, and not worth it");
        assert_eq!(verdict(100, &slow[..2], &fast[..2]), Prefetch::Auto, "too few stretches");
        assert_eq!(verdict(5, &slow, &fast), Prefetch::Auto, "too few tokens");
        assert_eq!(verdict(0, &[], &[]), Prefetch::Auto);
    }
}
