//! Many runs in a few figures: medians with their spread over the warm runs, and the run in the middle.
//!
//! Rates are medians with the smallest and the largest. Phases and expert figures come from one run, the one with the median
//! wall time (the shorter of the two in the middle), because medians of parts do not add up to a whole. The cold run, the
//! first after a load, stands apart; where it is the only one, it stands for all.

use super::limit::{Limit, Limits};
use super::measure::{Part, Run};
use super::{Bench, Measured, Measurement};

/// Median, smallest and largest.
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// Of at least one value.
    pub fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_unstable_by(f64::total_cmp);
        let count = values.len();
        let median = (values[(count - 1) / 2] + values[count / 2]) / 2.0;
        Self { median, min: values[0], max: values[count - 1] }
    }
}

/// Prefill or decode of some runs of a measurement.
pub struct Summary<'a> {
    /// `prefill` or `decode`.
    pub name: &'static str,
    /// Whether this is the first run after the load.
    pub cold: bool,
    /// How many runs.
    pub runs: usize,
    /// Tokens per second.
    pub rate: Spread,
    /// Place of the run in the middle among all runs of the measurement.
    pub middle: usize,
    /// That run's part.
    pub part: &'a Part,
    /// Its limit.
    pub limit: Limit,
}

/// Both parts of a measurement, of the cold run and of the warm ones, as far as there are such runs.
pub struct Summaries<'a> {
    pub cold: Option<[Summary<'a>; 2]>,
    pub warm: Option<[Summary<'a>; 2]>,
}

impl<'a> Summaries<'a> {
    /// Of one measurement of one configuration.
    pub fn of(bench: &'a Bench, measured: &'a Measured, measurement: &'a Measurement) -> Self {
        let of = |cold: bool| {
            let runs: Vec<(usize, &Run)> =
                measurement.runs.iter().enumerate().filter(|(_, run)| run.cold == cold).collect();
            (!runs.is_empty()).then(|| {
                let depth = measurement.depth;
                let limit = |part: usize, run: &Run| {
                    let limits: &Limits = &bench.limits;
                    limits.of(&bench.model_path, measured, depth, part, run)
                };
                [
                    summary("prefill", cold, &runs, |run| &run.prefill, |run| limit(0, run)),
                    summary("decode", cold, &runs, |run| &run.decode, |run| limit(1, run)),
                ]
            })
        };
        Self { cold: of(true), warm: of(false) }
    }

    /// The warm runs, or the cold one where it is all there is.
    pub fn main(&self) -> &[Summary<'a>; 2] {
        self.warm.as_ref().or(self.cold.as_ref()).expect("a measurement has at least one run")
    }

    /// Prefill and decode of the cold run, then of the warm ones.
    pub fn all(&self) -> impl Iterator<Item = &Summary<'a>> {
        self.cold.iter().chain(&self.warm).flatten()
    }
}

fn summary<'a>(
    name: &'static str,
    cold: bool,
    runs: &[(usize, &'a Run)],
    part: impl Fn(&'a Run) -> &'a Part,
    limit: impl Fn(&'a Run) -> Limit,
) -> Summary<'a> {
    let mut order: Vec<&(usize, &'a Run)> = runs.iter().collect();
    order.sort_by_key(|(_, run)| part(run).wall);
    let &(middle, run) = order[(order.len() - 1) / 2];
    Summary {
        name,
        cold,
        runs: runs.len(),
        rate: Spread::of(runs.iter().map(|(_, run)| part(run).rate())),
        middle,
        part: part(run),
        limit: limit(run),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_the_middle_of_its_values() {
        let of = |values: &[f64]| Spread::of(values.iter().copied());
        let odd = of(&[3.0, 1.0, 2.0]);
        assert_eq!((odd.median, odd.min, odd.max), (2.0, 1.0, 3.0));
        assert_eq!(of(&[4.0, 1.0, 2.0, 3.0]).median, 2.5);
        assert_eq!(of(&[7.0]).median, 7.0);
    }
}
