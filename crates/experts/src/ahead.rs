//! Reading ahead: records that will probably be needed by the next layer.
//!
//! The caller names them during a visit; they are read when nothing that is needed waits, into slots that the policy gives
//! up, and stay in flight when the visit ends. A record that was read for nothing has cost bytes and a slot. So it is
//! counted what was used, and [`Governor`] tries both ways while tokens are decoded and keeps the faster one. Nothing here
//! changes a result. Next: `visit`, which starts and lands the reads.

use std::time::Duration;

use crate::geometry::ExpertKey;

/// Whether records are read before a router has asked for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadAheadMode {
    /// While it makes decoding faster, which is measured again and again.
    #[default]
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

/// Counters of records read ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AheadStatistics {
    pub records: u64,
    pub bytes: u64,
    pub used: u64,
    pub used_bytes: u64,
}

/// What the store knows about records read ahead.
#[derive(Debug)]
pub(crate) struct Ahead {
    /// Records to read, the most probable last.
    pub wanted: Vec<ExpertKey>,
    /// Loads in flight that nobody waits for.
    pub in_flight: usize,
    /// Most of them at a time: the reads that are needed keep the larger part of the reader.
    pub in_flight_max: usize,
    /// Per slot: holds, or is loading, a record read ahead that nobody has used.
    pub unused: Vec<bool>,
    pub statistics: AheadStatistics,
    pub governor: Governor,
}

impl Ahead {
    pub(crate) fn new(slots: usize, read_ahead: usize, experts: usize, mode: ReadAheadMode) -> Self {
        Self {
            wanted: Vec::with_capacity(experts),
            in_flight: 0,
            in_flight_max: (read_ahead / 2).max(1),
            unused: vec![false; slots],
            statistics: AheadStatistics::default(),
            governor: Governor::new(mode),
        }
    }

    /// The record in `slot`, of `bytes` bytes, was asked for.
    pub(crate) fn used(&mut self, slot: usize, bytes: usize) {
        if std::mem::take(&mut self.unused[slot]) {
            self.statistics.used += 1;
            self.statistics.used_bytes += bytes as u64;
        }
    }
}

/// Tokens of one stretch of a trial: long enough for the reads of one way not to be counted for the other.
const STRETCH: u32 = 4;
/// Stretches of a trial, the two ways in turns.
const TRIAL_STRETCHES: u32 = 8;
/// Tokens before the first trial: the cache is cold and every way is slow.
const BEFORE_TRIAL: u32 = 8;
/// Tokens between the end of a trial and the next one.
const BETWEEN_TRIALS: u32 = 256;

/// Decides by trial whether reading ahead pays. A pure state machine: it is told how long each token took.
#[derive(Debug)]
pub(crate) struct Governor {
    mode: ReadAheadMode,
    /// What the last trial found; no reading ahead before the first.
    pays: bool,
    /// Tokens until the next trial begins.
    until_trial: u32,
    /// Tokens of the running trial.
    in_trial: u32,
    /// Time of the running trial without and with reading ahead.
    times: [Duration; 2],
}

impl Governor {
    pub(crate) fn new(mode: ReadAheadMode) -> Self {
        Self { mode, pays: false, until_trial: BEFORE_TRIAL, in_trial: 0, times: [Duration::ZERO; 2] }
    }

    /// Whether the next token should read ahead.
    pub(crate) fn wanted(&self) -> bool {
        match self.mode {
            ReadAheadMode::On => true,
            ReadAheadMode::Off => false,
            ReadAheadMode::Auto if self.until_trial > 0 => self.pays,
            // Off, on, on, off, off, on, ...: a drift of the machine falls on both ways alike.
            ReadAheadMode::Auto => self.arm() == 1,
        }
    }

    /// Which way the running stretch of a trial goes: 0 without, 1 with reading ahead.
    fn arm(&self) -> usize {
        ((self.in_trial / STRETCH).div_ceil(2) % 2) as usize
    }

    /// A token was decoded in `time`.
    pub(crate) fn token(&mut self, time: Duration) {
        if self.mode != ReadAheadMode::Auto {
            return;
        }
        if self.until_trial > 0 {
            self.until_trial -= 1;
            return;
        }
        // The first token of a stretch still finds what the other way has left.
        if !self.in_trial.is_multiple_of(STRETCH) {
            self.times[self.arm()] += time;
        }
        self.in_trial += 1;
        if self.in_trial == STRETCH * TRIAL_STRETCHES {
            self.pays = self.times[1] < self.times[0];
            *self = Self { pays: self.pays, until_trial: BETWEEN_TRIALS, ..Self::new(self.mode) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs tokens that take `off` or `on` milliseconds; returns how many of the last `count` read ahead.
    fn run(governor: &mut Governor, tokens: u32, off: u64, on: u64) -> u32 {
        let mut ahead = 0;
        for _ in 0..tokens {
            let way = governor.wanted();
            ahead += u32::from(way);
            governor.token(Duration::from_millis(if way { on } else { off }));
        }
        ahead
    }

    #[test]
    fn the_faster_way_wins_and_is_tried_again() {
        let mut governor = Governor::new(ReadAheadMode::Auto);
        let trial = STRETCH * TRIAL_STRETCHES;
        assert_eq!(run(&mut governor, BEFORE_TRIAL, 10, 8), 0);
        assert_eq!(run(&mut governor, trial, 10, 8), trial / 2);
        assert_eq!(run(&mut governor, BETWEEN_TRIALS, 10, 8), BETWEEN_TRIALS);
        assert_eq!(run(&mut governor, trial, 10, 11), trial / 2);
        assert_eq!(run(&mut governor, BETWEEN_TRIALS, 10, 11), 0);
    }

    #[test]
    fn a_fixed_mode_is_never_tried() {
        for (mode, ahead) in [(ReadAheadMode::On, 1000), (ReadAheadMode::Off, 0)] {
            assert_eq!(run(&mut Governor::new(mode), 1000, 1, 2), ahead);
        }
    }
}
