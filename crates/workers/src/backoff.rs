//! How long a thread spins before it sleeps.
//!
//! A region of a small matrix takes a few microseconds, waking a sleeping thread takes ten or more, so a thread that
//! waits spins first. The limit is wall time, not a count of pauses, because one pause costs 5 to 150 cycles depending on
//! the CPU, and because time lost to other programs must count. It adapts: each spin in vain halves it, each spin that
//! paid off lets it grow, and now and then a full spin finds out whether it would. So where cores are short (the thread
//! waited for may need this very core) a wait costs little, and where they are not, threads stay awake through the gaps
//! between regions.

/// Longest spin when every thread can have a core of its own.
#[cfg(not(loom))]
const SPIN_US_MAX: u32 = 50;
/// Longest spin when there are more threads than cores: just enough for a thread that is about to finish.
#[cfg(not(loom))]
const SPIN_US_CROWDED: u32 = 2;
/// The limit does not fall below this.
#[cfg(not(loom))]
const SPIN_US_MIN: u32 = 2;
/// Pauses between two looks at the clock: one to two microseconds on current CPUs.
#[cfg(not(loom))]
const PAUSES_PER_CLOCK: u32 = 32;

/// After this many spins in vain in a row the next one is a full one.
#[cfg(not(loom))]
const VAIN_SPINS_PER_TRIAL: u32 = 16;

/// The spin limit of one thread; adapts.
#[derive(Debug)]
pub(crate) struct SpinLimit {
    #[cfg(not(loom))]
    limit_us: u32,
    #[cfg(not(loom))]
    limit_us_max: u32,
    #[cfg(not(loom))]
    vain_spins: u32,
}

/// One wait.
#[cfg(not(loom))]
pub(crate) struct Spin<'a> {
    limit: &'a mut SpinLimit,
    pauses: u32,
    /// When the first look at the clock was.
    start: Option<std::time::Instant>,
    in_vain: bool,
}

#[cfg(not(loom))]
impl SpinLimit {
    /// `crowded`: the pool has more threads than this process has cores.
    pub(crate) fn new(crowded: bool) -> Self {
        let limit_us_max = if crowded { SPIN_US_CROWDED } else { SPIN_US_MAX };
        Self { limit_us: limit_us_max, limit_us_max, vain_spins: 0 }
    }

    pub(crate) fn start(&mut self) -> Spin<'_> {
        Spin { limit: self, pauses: 0, start: None, in_vain: false }
    }

    fn shrink(&mut self) {
        self.vain_spins += 1;
        self.limit_us = if self.vain_spins.is_multiple_of(VAIN_SPINS_PER_TRIAL) {
            self.limit_us_max
        } else {
            (self.limit_us / 2).max(SPIN_US_MIN)
        };
    }

    fn grow(&mut self) {
        self.vain_spins = 0;
        self.limit_us = (self.limit_us + self.limit_us / 2).min(self.limit_us_max);
    }
}

#[cfg(not(loom))]
impl Spin<'_> {
    /// Pauses briefly; `false` when it is time to sleep.
    pub(crate) fn pause(&mut self) -> bool {
        std::hint::spin_loop();
        self.pauses += 1;
        if self.pauses < PAUSES_PER_CLOCK {
            return true;
        }
        self.pauses = 0;
        let now = std::time::Instant::now();
        let spun = now - *self.start.get_or_insert(now);
        if spun.as_micros() < u128::from(self.limit.limit_us) {
            return true;
        }
        if !self.in_vain {
            self.in_vain = true;
            self.limit.shrink();
        }
        false
    }

    /// The thread slept and is awake again: it may spin again, in the same wait.
    pub(crate) fn woke(&mut self) {
        self.pauses = 0;
        self.start = None;
    }

    /// Something else happened that makes waiting worth while: a new wait.
    pub(crate) fn restart(&mut self) {
        if !self.in_vain {
            self.limit.grow();
        }
        self.in_vain = false;
        self.woke();
    }

    /// What was waited for is there.
    pub(crate) fn end(self) {
        if !self.in_vain {
            self.limit.grow();
        }
    }
}

/// Under loom nobody spins: there a thread that yields runs again only when no other can, which would leave sleeping
/// and waking untested.
#[cfg(loom)]
pub(crate) struct Spin;

#[cfg(loom)]
impl SpinLimit {
    pub(crate) fn new(_crowded: bool) -> Self {
        Self {}
    }

    pub(crate) fn start(&mut self) -> Spin {
        Spin
    }
}

#[cfg(loom)]
impl Spin {
    pub(crate) fn pause(&mut self) -> bool {
        false
    }

    pub(crate) fn woke(&mut self) {}

    pub(crate) fn restart(&mut self) {}

    pub(crate) fn end(self) {}
}
