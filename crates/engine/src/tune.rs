//! Choosing the eviction policy for a model: record its routing on some text, replay every policy, keep the winner.

use std::path::{Path, PathBuf};

use coldpress_experts::{PolicyKind, Visits};

use crate::error::EngineError;
use crate::generate::{FinishReason, GenerateObserver, GenerateOptions};
use crate::learnt::{Profile, profile, write_profile};
use crate::runtime::Runtime;
use crate::simulate::{Capacity, Simulation, simulate};

/// What another policy must have above the default, as a share of all requests, to be worth a profile of its own.
const ADVANTAGE_MIN: f64 = 0.005;

/// What tuning found.
#[derive(Clone, Debug, serde::Serialize)]
pub struct TuneReport {
    /// What later runs use.
    pub profile: Profile,
    /// Where it was written.
    pub path: PathBuf,
    /// Every policy at the slots of the budget.
    pub simulation: Simulation,
}

impl Runtime {
    /// Answers each of `prompts`, compares the policies on the routing at this runtime's number of slots and writes the best
    /// one to the model's profile in `folder`. `None` if the observer stopped it.
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
        let mut session = self.session()?;
        for prompt in prompts {
            session.clear();
            let answer = self.generate(&mut session, prompt, options, observer)?;
            if answer.finish_reason == FinishReason::Cancelled {
                self.finish_trace();
                return Ok(None);
            }
        }
        let trace = self.finish_trace().expect("recording was started above");
        let kinds = PolicyKind::ALL.map(|(_, kind)| kind);
        let simulation = simulate(&trace, &[Capacity::Slots(slots)], &kinds);
        let rate = |index: usize| simulation.policies[index].counts[0].hit_rate();
        // The first one is the default; of equals the earlier one stays.
        let best = (0..kinds.len()).fold(0, |best, index| {
            let needed = if best == 0 { ADVANTAGE_MIN } else { 0.0 };
            if rate(index) > rate(best) + needed { index } else { best }
        });
        let optimum = Visits::of(&trace).belady(slots).hit_rate();
        let profile = profile(trace.fingerprint(), kinds[best], slots, [rate(best), rate(0), optimum]);
        let path = write_profile(folder, trace.fingerprint(), &profile)?;
        Ok(Some(TuneReport { profile, path, simulation }))
    }
}
