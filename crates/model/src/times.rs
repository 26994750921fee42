//! Where the time of forward passes goes.
//!
//! A [`PhaseClock`] is read at the seams between phases and gives every stretch of time to exactly one of them, so the
//! phases add up to the time the clock ran. It costs one look at the system clock per seam, holds no memory and never
//! changes a result. Whoever runs forward passes owns the clock and decides when to [`PhaseClock::take`] what it counted.

use std::ops::AddAssign;
use std::time::{Duration, Instant};

use coldpress_experts::ExpertStatistics;

/// Wall time by phase, as the thread that runs the forward pass sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PhaseTimes {
    /// Attention halves of the layers: norm, projections, rotation, cache, attention, output projection.
    pub attention: Duration,
    /// Routed experts: looking them up, handing out reads, computing, adding results up.
    pub experts: Duration,
    /// Making records of what was read: interleaving rows or checking a pack's checksum.
    pub arrange: Duration,
    /// The rest of the feed-forward halves: norm, router, shared expert, networks of dense layers.
    pub dense: Duration,
    /// Output norm and logits.
    pub head: Duration,
    /// Waiting for reads with nothing else to do.
    pub disk_wait: Duration,
    /// Everything else: embedding, sampling, text, the caller's observer, bookkeeping.
    pub host: Duration,
}

impl PhaseTimes {
    /// Every phase with its name, in the order of a forward pass.
    pub fn named(&self) -> [(&'static str, Duration); 7] {
        [
            ("attention", self.attention),
            ("experts", self.experts),
            ("arrange", self.arrange),
            ("dense", self.dense),
            ("head", self.head),
            ("disk_wait", self.disk_wait),
            ("host", self.host),
        ]
    }

    /// All phases together.
    pub fn sum(&self) -> Duration {
        self.named().into_iter().map(|(_, time)| time).sum()
    }
}

impl AddAssign for PhaseTimes {
    fn add_assign(&mut self, other: Self) {
        self.attention += other.attention;
        self.experts += other.experts;
        self.arrange += other.arrange;
        self.dense += other.dense;
        self.head += other.head;
        self.disk_wait += other.disk_wait;
        self.host += other.host;
    }
}

/// A phase that a stretch of time can belong to; see the fields of [`PhaseTimes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// [`PhaseTimes::attention`].
    Attention,
    /// [`PhaseTimes::experts`].
    Experts,
    /// [`PhaseTimes::dense`].
    Dense,
    /// [`PhaseTimes::head`].
    Head,
    /// [`PhaseTimes::host`].
    Host,
}

/// Divides time among phases; see the module header.
#[derive(Clone, Copy, Debug)]
pub struct PhaseClock {
    times: PhaseTimes,
    last: Instant,
}

impl PhaseClock {
    /// A clock that has counted nothing and runs from now on.
    pub fn start() -> Self {
        Self { times: PhaseTimes::default(), last: Instant::now() }
    }

    /// The time since the last call belonged to `phase`.
    pub fn lap(&mut self, phase: Phase) {
        let stretch = self.stretch();
        *match phase {
            Phase::Attention => &mut self.times.attention,
            Phase::Experts => &mut self.times.experts,
            Phase::Dense => &mut self.times.dense,
            Phase::Head => &mut self.times.head,
            Phase::Host => &mut self.times.host,
        } += stretch;
    }

    /// The time since the last call belonged to the routed experts, except for what the store counted as waiting and
    /// arranging between two readings of its statistics.
    pub fn lap_experts(&mut self, before: &ExpertStatistics, after: &ExpertStatistics) {
        let stretch = self.stretch();
        let between = |before, after| Duration::from_micros(u64::saturating_sub(after, before));
        let disk_wait = between(before.disk_wait_us, after.disk_wait_us).min(stretch);
        let arrange = between(before.arrange_us, after.arrange_us).min(stretch - disk_wait);
        self.times.disk_wait += disk_wait;
        self.times.arrange += arrange;
        self.times.experts += stretch - disk_wait - arrange;
    }

    /// What was counted since the start or the last call of this. The time since the last lap goes to `phase`.
    pub fn take(&mut self, phase: Phase) -> PhaseTimes {
        self.lap(phase);
        std::mem::take(&mut self.times)
    }

    /// Forgets what was counted and the time since the last lap.
    pub fn restart(&mut self) {
        *self = Self::start();
    }

    fn stretch(&mut self) -> Duration {
        let now = Instant::now();
        now.duration_since(std::mem::replace(&mut self.last, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_moment_belongs_to_one_phase() {
        let started = Instant::now();
        let mut clock = PhaseClock::start();
        let pause = || std::thread::sleep(Duration::from_millis(2));
        pause();
        clock.lap(Phase::Attention);
        pause();
        let waited = ExpertStatistics { disk_wait_us: 1_500, arrange_us: 400, ..ExpertStatistics::default() };
        clock.lap_experts(&ExpertStatistics::default(), &waited);
        pause();
        // More waiting than time has passed is a fault of the figures and must not make time up.
        let nonsense = ExpertStatistics { disk_wait_us: 1 << 40, ..waited };
        clock.lap_experts(&waited, &nonsense);
        pause();
        let before_take = started.elapsed();
        let times = clock.take(Phase::Host);
        assert!(times.sum() >= before_take - Duration::from_micros(100), "{times:?} of {before_take:?}");
        assert!(times.sum() <= started.elapsed(), "{times:?} of {:?}", started.elapsed());
        assert_eq!(times.arrange, Duration::from_micros(400));
        assert!(times.attention >= Duration::from_millis(2) && times.host >= Duration::from_millis(2));
        assert_eq!(clock.take(Phase::Host).attention, Duration::ZERO);
    }
}
