//! Where the time of forward passes goes.
//!
//! A [`PhaseClock`] is read at the seams between phases and gives every stretch of time to exactly one of them, so the
//! phases add up to the time the clock ran. It costs one look at the system clock per seam, holds no memory unless every
//! stretch is to be written down ([`PhaseClock::record`]), and never changes a result. Whoever runs forward passes owns the clock and decides when to [`PhaseClock::take`] what it counted.

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

    /// Gives `time` to `phase`.
    pub fn add(&mut self, phase: Phase, time: Duration) {
        *match phase {
            Phase::Attention => &mut self.attention,
            Phase::Experts => &mut self.experts,
            Phase::Arrange => &mut self.arrange,
            Phase::Dense => &mut self.dense,
            Phase::Head => &mut self.head,
            Phase::DiskWait => &mut self.disk_wait,
            Phase::Host => &mut self.host,
        } += time;
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

/// A phase that a stretch of time can belong to; see the fields of [`PhaseTimes`], which are in the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// [`PhaseTimes::attention`].
    Attention,
    /// [`PhaseTimes::experts`].
    Experts,
    /// [`PhaseTimes::arrange`].
    Arrange,
    /// [`PhaseTimes::dense`].
    Dense,
    /// [`PhaseTimes::head`].
    Head,
    /// [`PhaseTimes::disk_wait`].
    DiskWait,
    /// [`PhaseTimes::host`].
    Host,
}

/// Most stretches that are written down between two origins.
const STRETCHES_MAX: usize = 4096;

/// A stretch of time and its phase. Times are microseconds from the origin of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhaseStretch {
    /// What it belongs to.
    pub phase: Phase,
    /// The layer that was computed; `None` outside of layers.
    pub layer: Option<u32>,
    /// When it began.
    pub begin_us: u64,
    /// When it ended.
    pub end_us: u64,
}

/// Stretches of time, one after the other without gaps; see [`PhaseClock::record`].
#[derive(Clone, Debug)]
pub struct PhaseRecord {
    origin: Instant,
    layer: Option<u32>,
    stretches: Vec<PhaseStretch>,
    cut_off: bool,
}

impl PhaseRecord {
    /// What was written down since the origin. Waiting and arranging are part of [`Phase::Experts`] here: the store knows
    /// when they were.
    pub fn stretches(&self) -> &[PhaseStretch] {
        &self.stretches
    }

    /// Whether more happened than there is room for.
    pub fn is_cut_off(&self) -> bool {
        self.cut_off
    }

    fn push(&mut self, phase: Phase, from: Instant, to: Instant) {
        let microseconds = |at: Instant| at.saturating_duration_since(self.origin).as_micros() as u64;
        let (begin_us, end_us) = (microseconds(from), microseconds(to));
        if self.stretches.len() == STRETCHES_MAX {
            self.cut_off = true;
        } else if begin_us < end_us {
            self.stretches.push(PhaseStretch { phase, layer: self.layer, begin_us, end_us });
        }
    }
}

/// Divides time among phases; see the module header.
#[derive(Clone, Debug)]
pub struct PhaseClock {
    times: PhaseTimes,
    last: Instant,
    /// Where stretches are written down, if somebody asks for it.
    record: Option<Box<PhaseRecord>>,
}

impl PhaseClock {
    /// A clock that has counted nothing and runs from now on.
    pub fn start() -> Self {
        Self { times: PhaseTimes::default(), last: Instant::now(), record: None }
    }

    /// Begins or ends writing down every stretch, in memory of fixed size. Off by default.
    pub fn record(&mut self, on: bool) {
        self.record = on.then(|| {
            let stretches = Vec::with_capacity(STRETCHES_MAX);
            Box::new(PhaseRecord { origin: self.last, layer: None, stretches, cut_off: false })
        });
    }

    /// What is being written down, if it is.
    pub fn recorded(&self) -> Option<&PhaseRecord> {
        self.record.as_deref()
    }

    /// Forgets what was written down; the end of the last lap is the new origin, which is returned.
    pub fn restart_record(&mut self) -> Instant {
        if let Some(record) = &mut self.record {
            record.origin = self.last;
            record.layer = None;
            record.stretches.clear();
            record.cut_off = false;
        }
        self.last
    }

    /// Says which layer the next stretches belong to.
    pub fn at_layer(&mut self, layer: Option<usize>) {
        if let Some(record) = &mut self.record {
            record.layer = layer.map(|layer| layer as u32);
        }
    }

    /// The time since the last call belonged to `phase`.
    pub fn lap(&mut self, phase: Phase) {
        let stretch = self.stretch(phase);
        self.times.add(phase, stretch);
    }

    /// The time since the last call belonged to the routed experts, except for what the store counted as waiting and
    /// arranging between two readings of its statistics.
    pub fn lap_experts(&mut self, before: &ExpertStatistics, after: &ExpertStatistics) {
        let stretch = self.stretch(Phase::Experts);
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
        self.times = PhaseTimes::default();
        self.last = Instant::now();
    }

    fn stretch(&mut self, phase: Phase) -> Duration {
        let now = Instant::now();
        let last = std::mem::replace(&mut self.last, now);
        if let Some(record) = &mut self.record {
            record.push(phase, last, now);
        }
        now.duration_since(last)
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
