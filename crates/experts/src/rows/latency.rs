//! Times in buckets that grow by a quarter of a power of two: quantiles within 25 %, a few hundred bytes, nothing allocated.

use serde::{Serialize, Serializer, ser::SerializeStruct};

/// Steps per power of two.
const STEPS: usize = 4;
/// Up to 2^24 microseconds, which are 17 seconds.
const BUCKETS: usize = 24 * STEPS;

/// How long something took, many times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatencyHistogram {
    counts: [u32; BUCKETS],
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self { counts: [0; BUCKETS] }
    }
}

/// Serialised as its figures: `count`, `p50_us`, `p99_us`.
impl Serialize for LatencyHistogram {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut figures = serializer.serialize_struct("LatencyHistogram", 3)?;
        figures.serialize_field("count", &self.count())?;
        figures.serialize_field("p50_us", &self.quantile_us(0.5))?;
        figures.serialize_field("p99_us", &self.quantile_us(0.99))?;
        figures.end()
    }
}

fn bucket(us: u64) -> usize {
    let us = us.max(1);
    let power = us.ilog2() as usize;
    let step = ((us << 2) >> power) as usize - STEPS;
    (power * STEPS + step).min(BUCKETS - 1)
}

/// The longest time of a bucket, in microseconds.
fn upper_us(bucket: usize) -> u64 {
    let next = bucket + 1;
    (((STEPS + next % STEPS) as u64) << (next / STEPS)) / STEPS as u64
}

impl LatencyHistogram {
    /// It took `us` microseconds once more.
    pub fn add(&mut self, us: u64) {
        let count = &mut self.counts[bucket(us)];
        *count = count.saturating_add(1);
    }

    /// How many times were added.
    pub fn count(&self) -> u64 {
        self.counts.iter().map(|count| u64::from(*count)).sum()
    }

    /// The time within which a share of `quantile` of all stayed, in microseconds, at most a quarter too long; 0 for none.
    pub fn quantile_us(&self, quantile: f64) -> u64 {
        let wanted = (self.count() as f64 * quantile).ceil() as u64;
        let mut seen = 0;
        let reached = self.counts.iter().position(|count| {
            seen += u64::from(*count);
            seen >= wanted && seen > 0
        });
        reached.map_or(0, upper_us)
    }

    /// Joins two histograms bucket by bucket.
    #[must_use]
    pub(crate) fn with(&self, other: &Self, join: fn(u64, u64) -> u64) -> Self {
        let mut counts = self.counts;
        for (count, other) in counts.iter_mut().zip(other.counts) {
            *count = u32::try_from(join(u64::from(*count), u64::from(other))).unwrap_or(u32::MAX);
        }
        Self { counts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_at_most_a_quarter_too_long() {
        for exact in [1_u64, 2, 3, 5, 80, 99, 1000, 123_456, 9_999_999] {
            let mut times = LatencyHistogram::default();
            times.add(exact);
            let told = times.quantile_us(0.5);
            assert!(told >= exact && told as f64 <= exact as f64 * 1.25 + 1.0, "{told} for {exact}");
        }
        let mut times = LatencyHistogram::default();
        (0..99).for_each(|_| times.add(100));
        times.add(5000);
        assert!((100..=125).contains(&times.quantile_us(0.5)));
        assert!((100..=125).contains(&times.quantile_us(0.99)));
        assert!((5000..=6250).contains(&times.quantile_us(1.0)));
        assert_eq!(LatencyHistogram::default().quantile_us(0.99), 0);
        assert_eq!(times.with(&times, u64::saturating_sub).count(), 0);
    }
}
