//! The one-token probe: a model is ready when it has produced a token under its budget, not when it is loaded.
//!
//! A forward pass, then every share of the plan against what is held, as the ledger and as the system count it. What does not
//! fit its share is named: a plan that is wrong must be found before somebody relies on it.

use std::time::{Duration, Instant};

use coldpress_memory::{Bytes, PressureSource, Purpose};

use crate::error::EngineError;
use crate::generate::{GenerateOptions, Silent};
use crate::runtime::Runtime;

/// Memory of the process beside what the ledger knows that is no sign of a wrong plan: what the allocator keeps.
const TOLERANCE: Bytes = Bytes::from_mib(16);

/// What a probe found.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ProbeReport {
    /// Time from the question to the token.
    pub time: Duration,
    /// Each share of the plan, and what is held of it.
    pub shares: Vec<ProbedShare>,
    /// Anonymous memory of the process after the token.
    pub anon: Bytes,
}

/// A share of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ProbedShare {
    /// What for.
    pub purpose: Purpose,
    /// What the plan says.
    pub planned: Bytes,
    /// What the ledger says.
    pub held: Bytes,
}

impl Runtime {
    /// Produces one token under the budget and compares what is held with the plan.
    ///
    /// # Errors
    /// The forward pass fails; [`EngineError::Probe`] when more is held than planned, naming the share.
    pub fn probe(&mut self) -> Result<ProbeReport, EngineError> {
        let began = Instant::now();
        let mut session = self.session()?;
        let options = GenerateOptions { max_tokens: 1, ignore_eos: true, ..GenerateOptions::default() };
        // Any token will do: the first id of the vocabulary is there in every model.
        self.generate(&mut session, &[0], &options, &mut Silent)?;
        let plan = self.report.plan.clone();
        let held = |purpose| self.ledger.used_for(purpose);
        let share = |purpose| ProbedShare { purpose, planned: plan.share(purpose), held: held(purpose) };
        let mut source = PressureSource::new();
        let anon = source.read().own.anon;
        let report = ProbeReport { time: began.elapsed(), shares: Purpose::ALL.map(share).to_vec(), anon };
        report.check(self.ledger.used().saturating_add(TOLERANCE).saturating_add(source.counter_error()))?;
        Ok(report)
    }
}

impl ProbeReport {
    /// `anon_max` is the most that the process may hold.
    fn check(&self, anon_max: Bytes) -> Result<(), EngineError> {
        let wrong = self.shares.iter().find(|share| share.held > share.planned);
        let named = match wrong {
            Some(share) => Some((share.purpose, share.planned, share.held)),
            // What no reservation explains is what the fixed share is there for.
            None if self.anon > anon_max => {
                let excess = self.anon.saturating_sub(anon_max);
                let fixed = self.shares.iter().find(|share| share.purpose == Purpose::Fixed);
                let planned = fixed.map_or(Bytes::ZERO, |share| share.planned);
                Some((Purpose::Fixed, planned, planned.saturating_add(excess)))
            }
            None => None,
        };
        named.map_or(Ok(()), |(purpose, planned, held)| Err(EngineError::Probe { purpose, planned, held }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(held: u64, anon: u64) -> ProbeReport {
        let share =
            |purpose, planned, held| ProbedShare { purpose, planned: Bytes(planned), held: Bytes(held) };
        let shares = vec![share(Purpose::Fixed, 10, 10), share(Purpose::Scratch, 20, held)];
        ProbeReport { time: Duration::ZERO, shares, anon: Bytes(anon) }
    }

    #[test]
    fn the_share_that_is_wrong_is_named() {
        assert!(report(20, 30).check(Bytes(30)).is_ok());
        let scratch = report(21, 30).check(Bytes(30)).expect_err("too much").to_string();
        assert!(
            scratch.contains("scratch") && scratch.contains("20 B") && scratch.contains("21 B"),
            "{scratch}"
        );
        let fixed = report(20, 37).check(Bytes(30)).expect_err("too much").to_string();
        assert!(fixed.contains("fixed") && fixed.contains("10 B") && fixed.contains("17 B"), "{fixed}");
    }
}
