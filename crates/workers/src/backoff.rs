//! How long a thread spins before it sleeps.
//!
//! A region of a small matrix takes a few microseconds, waking a sleeping thread takes ten or more, so a thread that
//! waits spins first. The limit is wall time, not a count of pauses, because one pause costs 5 to 150 cycles
//! depending on the CPU. A thread that finds it was put off the CPU while it spun halves its own limit: somebody else
//! needs the core.

/// Longest spin when every thread can have a core of its own.
#[cfg(not(loom))]
const SPIN_US_MAX: u32 = 40;
/// Spin when there are more threads than cores: just enough for a thread that is about to finish.
#[cfg(not(loom))]
const SPIN_US_CROWDED: u32 = 2;
/// Pauses between two looks at the clock.
#[cfg(not(loom))]
const PAUSES_PER_CLOCK: u32 = 32;
/// A gap between two looks at the clock that only losing the CPU explains.
#[cfg(not(loom))]
const LOST_CPU_US: u128 = 300;

/// The spin limit of one thread; adapts.
#[derive(Debug)]
pub(crate) struct SpinLimit {
    #[cfg(not(loom))]
    limit_us: u32,
    #[cfg(not(loom))]
    limit_us_max: u32,
}

impl SpinLimit {
    /// `crowded`: the pool has more threads than this process has cores.
    #[cfg(not(loom))]
    pub(crate) fn new(crowded: bool) -> Self {
        let limit_us_max = if crowded { SPIN_US_CROWDED } else { SPIN_US_MAX };
        Self { limit_us: limit_us_max, limit_us_max }
    }

    #[cfg(loom)]
    pub(crate) fn new(_crowded: bool) -> Self {
        Self {}
    }

    pub(crate) fn start(&mut self) -> Spin<'_> {
        Spin {
            limit: self,
            pauses: 0,
            #[cfg(not(loom))]
            clock: None,
        }
    }
}

/// One wait.
pub(crate) struct Spin<'a> {
    #[cfg_attr(loom, allow(dead_code))]
    limit: &'a mut SpinLimit,
    pauses: u32,
    /// Start of the wait and last look at the clock.
    #[cfg(not(loom))]
    clock: Option<(std::time::Instant, std::time::Instant)>,
}

impl Spin<'_> {
    /// Pauses briefly; `false` when it is time to sleep.
    #[cfg(not(loom))]
    pub(crate) fn pause(&mut self) -> bool {
        std::hint::spin_loop();
        self.pauses += 1;
        if self.pauses < PAUSES_PER_CLOCK {
            return true;
        }
        self.pauses = 0;
        let now = std::time::Instant::now();
        let (start, last) = *self.clock.get_or_insert((now, now));
        self.clock = Some((start, now));
        if (now - last).as_micros() > LOST_CPU_US {
            self.limit.limit_us = (self.limit.limit_us / 2).max(1);
            return false;
        }
        (now - start).as_micros() < u128::from(self.limit.limit_us)
    }

    /// Under loom: one look, then sleep, so that both ways are explored in bounded time.
    #[cfg(loom)]
    pub(crate) fn pause(&mut self) -> bool {
        self.pauses += 1;
        loom::thread::yield_now();
        self.pauses <= 1
    }

    /// The thread slept and is awake again: it may spin anew.
    pub(crate) fn restart(&mut self) {
        self.pauses = 0;
        #[cfg(not(loom))]
        {
            self.clock = None;
        }
    }

    /// The wait ended while spinning: the limit may grow again.
    #[cfg(not(loom))]
    pub(crate) fn succeeded(self) {
        if self.limit.limit_us < self.limit.limit_us_max {
            self.limit.limit_us += 1;
        }
    }

    #[cfg(loom)]
    pub(crate) fn succeeded(self) {}
}
