//! Decayed LFU: the record used least gives way, where a use counts half as much after each half-life.
//!
//! The count of a record goes on while it is not in memory: what was asked for often comes back warm. Counts shrink all
//! together, so their order changes only by uses. Kept is `s = log2(sum over uses of 2^(time / half-life))`, which needs no
//! shrinking at all and never overflows.

use super::ranked::Ranking;

/// See the module header.
pub(super) struct DecayedLfu {
    /// Per record, 0 for one that was never used.
    scores: Vec<f64>,
    /// Half-lives since the start.
    now: f64,
    /// Half-lives that a visit takes.
    step: f64,
}

impl DecayedLfu {
    /// For a model of `records` records in `layers` layers; `half_life` is in forward passes.
    pub fn new(records: usize, layers: usize, half_life: f64) -> Self {
        Self { scores: vec![0.0; records], now: 0.0, step: 1.0 / (half_life * layers.max(1) as f64) }
    }

    fn count(&mut self, record: usize, uses: f64) -> u64 {
        let score = &mut self.scores[record];
        let before = if *score > 0.0 { (*score - self.now).exp2() } else { 0.0 };
        *score = self.now + (before + uses).log2();
        warmth(*score)
    }
}

/// Positive floats are ordered like their bits.
fn warmth(score: f64) -> u64 {
    score.max(0.0).to_bits()
}

impl Ranking for DecayedLfu {
    fn begin_visit(&mut self) {
        self.now += self.step;
    }

    fn inserted(&mut self, _pool: usize, record: usize) -> u64 {
        self.count(record, 1.0)
    }

    fn used(&mut self, _pool: usize, record: usize, _warmth: u64) -> u64 {
        self.count(record, 1.0)
    }

    fn seeded(&mut self, _pool: usize, record: usize, _warmth: u64, uses: u32) -> u64 {
        self.scores[record] = 0.0;
        self.count(record, f64::from(uses.max(1)))
    }
}
