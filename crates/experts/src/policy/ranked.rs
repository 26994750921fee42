//! Orders in which a record's warmth is one number that changes only when the record is used.

use super::heap::SlotHeaps;
use super::split::PoolOrder;

/// Says how warm a record is. Larger is warmer; of equally warm records the one used longest ago gives way first.
pub(super) trait Ranking: Send {
    /// A visit begins.
    fn begin_visit(&mut self) {}
    /// Record `record` comes into `pool`, because it was asked for.
    fn inserted(&mut self, pool: usize, record: usize) -> u64;
    /// Record `record`, as warm as `warmth`, is used.
    fn used(&mut self, pool: usize, record: usize, warmth: u64) -> u64;
    /// A record as warm as `warmth` was used `uses` times in earlier runs.
    fn seeded(&mut self, pool: usize, record: usize, warmth: u64, uses: u32) -> u64 {
        let _ = (pool, record, uses);
        warmth
    }
    /// A record of `pool` as warm as `warmth` gives way.
    fn evicting(&mut self, pool: usize, warmth: u64) {
        let _ = (pool, warmth);
    }
}

/// Heaps of slots, ordered by a [`Ranking`].
pub(super) struct Ranked<R> {
    heaps: SlotHeaps,
    /// Per slot: the record it holds.
    records: Vec<u32>,
    ranking: R,
}

impl<R: Ranking> Ranked<R> {
    /// Empty pools of at most `pool_sizes` of `slot_count` slots.
    pub fn new(slot_count: usize, pool_sizes: &[usize], ranking: R) -> Self {
        Self { heaps: SlotHeaps::new(slot_count, pool_sizes), records: vec![0; slot_count], ranking }
    }
}

impl<R: Ranking> PoolOrder for Ranked<R> {
    fn begin_visit(&mut self) {
        self.ranking.begin_visit();
    }

    fn insert(&mut self, pool: usize, slot: usize, record: usize, stamp: u64) {
        self.records[slot] = record as u32;
        self.heaps.insert(pool, slot, (self.ranking.inserted(pool, record), stamp));
    }

    fn seed(&mut self, slot: usize, uses: u32) {
        let (warmth, stamp) = self.heaps.rank(slot);
        let record = self.records[slot] as usize;
        let warmth = self.ranking.seeded(self.heaps.pool(slot), record, warmth, uses);
        self.heaps.update(slot, (warmth, stamp));
    }

    fn touch(&mut self, slot: usize, stamp: u64) {
        let (warmth, _) = self.heaps.rank(slot);
        let record = self.records[slot] as usize;
        let warmth = self.ranking.used(self.heaps.pool(slot), record, warmth);
        self.heaps.update(slot, (warmth, stamp));
    }

    fn remove(&mut self, slot: usize) {
        self.heaps.remove(slot);
    }

    fn len(&self, pool: usize) -> usize {
        self.heaps.len(pool)
    }

    fn coldest(&mut self, pool: usize, is_candidate: &dyn Fn(usize) -> bool) -> Option<usize> {
        let slot = self.heaps.coldest(pool, is_candidate)?;
        self.ranking.evicting(pool, self.heaps.rank(slot).0);
        Some(slot)
    }

    fn resize(&mut self, numbers: usize, _pool_size: usize) {
        self.records.resize(numbers, 0);
        self.heaps.resize(numbers);
    }
}
