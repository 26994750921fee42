//! Reading ahead: the heads of records that the next layer will probably ask for.
//!
//! From the arrival of a layer's last record to the requests of the next layer the device would stand still. The caller
//! names what the next layer will probably choose; when nothing that is needed waits any more, the first bytes of those
//! records are read into slots of their own. A head whose record is asked for is completed, the others are forgotten: no
//! policy has heard of them, and their slots serve the next heads. [`Gap`] regulates how much is begun, so that the heads
//! have just arrived when the requests come and needed reads wait for nothing. [`Governor`] tries with and without while
//! tokens are decoded and gives up what clearly costs time. Nothing here changes a result. Next: `visit`, which starts the reads.

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

/// How sure it is that the records named for the next layer will be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guess {
    /// Probable: read as much as fits between two layers.
    Likely,
    /// As good as certain: read whole records as far as there is room.
    Certain,
}

/// What wrong guesses may read, of what is needed: the device does not read more than 5 % in vain, alignment included.
const WASTE_PERCENT: usize = 4;

/// A head that is being read, or has been.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    pub key: ExpertKey,
    pub slot: usize,
    /// Bytes begun.
    pub bytes: usize,
}

/// What the store knows about reading ahead.
#[derive(Debug)]
pub(crate) struct Ahead {
    /// Records to begin, the most probable last.
    pub wanted: Vec<ExpertKey>,
    pub guess: Guess,
    /// Bytes that may still be begun for the next layer.
    pub bytes_left: usize,
    /// Heads of the next layer.
    pub heads: Vec<Head>,
    /// Heads that nobody needs and that have not come back yet.
    pub forgotten: usize,
    /// Most heads of both kinds: the reads that are needed keep the larger part of the reader, and records their slots.
    pub heads_max: usize,
    /// Between two layers when the first had to wait for records, and when it had all of them.
    gaps: [Gap; 2],
    /// Which of them the heads were begun for.
    had_all: bool,
    /// Bytes that wrong guesses may still read: a part of what is needed, see [`WASTE_PERCENT`]. No bound where all are wanted.
    waste_left: usize,
    /// The most of it that is saved up.
    waste_most: usize,
    pub statistics: AheadStatistics,
    pub governor: Governor,
}

impl Ahead {
    /// For `read_ahead` loads at a time of records of at most `record_bytes`.
    pub(crate) fn new(read_ahead: usize, experts: usize, record_bytes: usize, mode: ReadAheadMode) -> Self {
        let heads_max = (read_ahead / 2).max(1);
        // Who wants it always wants it whatever it wastes.
        let unbounded = mode == ReadAheadMode::On;
        Self {
            wanted: Vec::with_capacity(experts),
            guess: Guess::Likely,
            bytes_left: 0,
            heads: Vec::with_capacity(heads_max),
            forgotten: 0,
            heads_max,
            gaps: [Gap::new(record_bytes, heads_max), Gap::new(record_bytes, heads_max)],
            had_all: false,
            waste_left: if unbounded { usize::MAX } else { record_bytes },
            waste_most: if unbounded { usize::MAX } else { 4 * record_bytes },
            statistics: AheadStatistics::default(),
            governor: Governor::new(mode),
        }
    }

    /// Records of the next layer are about to be named; `had_all` says whether this layer waits for none.
    pub(crate) fn name(&mut self, guess: Guess, had_all: bool) {
        self.guess = guess;
        self.had_all = had_all;
        self.bytes_left = match guess {
            Guess::Likely => self.gaps[usize::from(had_all)].bytes.min(self.waste_left),
            Guess::Certain => usize::MAX,
        };
        self.wanted.clear();
    }

    /// `bytes` were asked for that were not in memory.
    pub(crate) fn needed(&mut self, bytes: usize) {
        self.allow(bytes * WASTE_PERCENT / 100);
    }

    fn allow(&mut self, waste: usize) {
        self.waste_left = self.waste_left.saturating_add(waste).min(self.waste_most);
    }

    /// `bytes` of a head have been begun; until it is asked for they count as wasted.
    pub(crate) fn begun(&mut self, bytes: usize) {
        self.bytes_left = self.bytes_left.saturating_sub(bytes);
        self.waste_left = self.waste_left.saturating_sub(bytes);
        self.statistics.records += 1;
        self.statistics.bytes += bytes as u64;
    }

    /// The next layer has asked for its records: `asked` of the heads among them or not, which had `arrived` by then or not.
    pub(crate) fn observe(&mut self, arrived: bool, asked: bool) {
        if self.guess == Guess::Likely {
            self.gaps[usize::from(self.had_all)].observe(arrived, asked);
        }
    }

    /// Takes out the head of `key`, which is asked for.
    pub(crate) fn take(&mut self, key: ExpertKey) -> Option<Head> {
        let at = self.heads.iter().position(|head| head.key == key)?;
        let head = self.heads.swap_remove(at);
        self.allow(head.bytes);
        self.statistics.used += 1;
        self.statistics.used_bytes += head.bytes as u64;
        Some(head)
    }
}

/// Bytes to begin between two layers, found by trying: more when what was asked for had arrived before the requests, so that
/// the device stood still; less when needed reads had to wait for something that nobody asked for.
#[derive(Debug)]
struct Gap {
    bytes: usize,
    step: usize,
    most: usize,
}

impl Gap {
    const STEPS_PER_RECORD: usize = 16;

    fn new(record_bytes: usize, records_max: usize) -> Self {
        let step = (record_bytes / Self::STEPS_PER_RECORD).max(1);
        Self { bytes: 4 * step, step, most: records_max * record_bytes }
    }

    fn observe(&mut self, arrived: bool, asked: bool) {
        match (arrived, asked) {
            (true, true) => self.bytes = (self.bytes + self.step).min(self.most),
            (false, false) => self.bytes = self.bytes.saturating_sub(self.step).max(self.step),
            _ => {}
        }
    }
}

/// Tokens of one stretch of a trial: long enough for the reads of one way not to be counted for the other.
const STRETCH: u32 = 4;
/// Stretches of a trial, the two ways in turns.
const TRIAL_STRETCHES: u32 = 8;
/// Tokens before the first trial: the cache is cold and every way is slow.
const BEFORE_TRIAL: u32 = 8;
/// What reading ahead must cost in a trial to be given up. Tokens differ in what they miss, so a trial of this length is off by
/// as much, and a head costs less than it brings on every disk that was measured.
const LOSS_MIN_PERCENT: u32 = 5;
/// Tokens between the end of a trial and the next one.
const BETWEEN_TRIALS: u32 = 256;

/// Decides by trial whether reading ahead pays. A pure state machine: it is told how long each token took.
#[derive(Debug)]
pub(crate) struct Governor {
    mode: ReadAheadMode,
    /// What the last trial found; before the first one, what is mostly found.
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
        Self { mode, pays: true, until_trial: BEFORE_TRIAL, in_trial: 0, times: [Duration::ZERO; 2] }
    }

    /// Whether to read ahead on such a guess. What is certain costs nothing and is not tried.
    pub(crate) fn wanted(&self, guess: Guess) -> bool {
        match self.mode {
            ReadAheadMode::On => true,
            ReadAheadMode::Off => false,
            ReadAheadMode::Auto if guess == Guess::Certain => true,
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
            self.pays = self.times[1] <= self.times[0] * (100 + LOSS_MIN_PERCENT) / 100;
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
            let way = governor.wanted(Guess::Likely);
            ahead += u32::from(way);
            governor.token(Duration::from_millis(if way { on } else { off }));
        }
        ahead
    }

    #[test]
    fn the_faster_way_wins_and_is_tried_again() {
        let mut governor = Governor::new(ReadAheadMode::Auto);
        let trial = STRETCH * TRIAL_STRETCHES;
        assert_eq!(run(&mut governor, BEFORE_TRIAL, 10, 8), BEFORE_TRIAL);
        assert_eq!(run(&mut governor, trial, 10, 8), trial / 2);
        assert_eq!(run(&mut governor, BETWEEN_TRIALS, 10, 8), BETWEEN_TRIALS);
        assert_eq!(run(&mut governor, trial, 10, 11), trial / 2);
        assert_eq!(run(&mut governor, BETWEEN_TRIALS, 10, 11), 0);
        assert_eq!(run(&mut governor, trial, 1000, 1049), trial / 2);
        assert_eq!(run(&mut governor, BETWEEN_TRIALS, 1000, 1049), BETWEEN_TRIALS);
    }

    #[test]
    fn a_fixed_mode_is_never_tried() {
        for (mode, ahead) in [(ReadAheadMode::On, 1000), (ReadAheadMode::Off, 0)] {
            assert_eq!(run(&mut Governor::new(mode), 1000, 1, 2), ahead);
        }
    }
}
