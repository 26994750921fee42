//! Pools of slots, each a binary heap with its coldest slot on top.
//!
//! A use moves a slot within its heap in logarithmic time. The coldest slot *that may give way* is found by walking down
//! from the top: below a slot that may give way nothing colder follows, so only slots that may not are walked past. With
//! `n` of those the walk sees at most `2 n + 1` slots, however large the pool is. Nothing allocates after `new`.

/// How warm a record is; the lesser one gives way first. The second figure is the stamp of its latest use.
pub(super) type Rank = (u64, u64);

#[derive(Clone, Copy, Debug, Default)]
struct Place {
    pool: u32,
    index: u32,
}

/// See the module header.
#[derive(Debug)]
pub(super) struct SlotHeaps {
    heaps: Vec<Vec<u32>>,
    /// Per slot: where it is. Meaningful while it is in a pool.
    places: Vec<Place>,
    /// Per slot.
    ranks: Vec<Rank>,
    /// Most slots of each pool.
    pool_sizes: Vec<usize>,
}

impl SlotHeaps {
    /// Empty pools of at most `pool_sizes` of `slot_count` slots.
    pub fn new(slot_count: usize, pool_sizes: &[usize]) -> Self {
        Self {
            heaps: pool_sizes.iter().map(|size| Vec::with_capacity(slot_count.min(*size))).collect(),
            places: vec![Place::default(); slot_count],
            ranks: vec![Rank::default(); slot_count],
            pool_sizes: pool_sizes.to_vec(),
        }
    }

    /// Slots have numbers below `slot_count` from now on; those beyond are in no pool.
    pub fn resize(&mut self, slot_count: usize) {
        self.places.resize(slot_count, Place::default());
        self.ranks.resize(slot_count, Rank::default());
        for (heap, pool_size) in self.heaps.iter_mut().zip(&self.pool_sizes) {
            let wanted = slot_count.min(*pool_size);
            heap.reserve_exact(wanted.saturating_sub(heap.len()));
        }
    }

    /// Slots in `pool`.
    pub fn len(&self, pool: usize) -> usize {
        self.heaps[pool].len()
    }

    /// Number of pools.
    pub fn pools(&self) -> usize {
        self.heaps.len()
    }

    /// The pool of `slot`.
    pub fn pool(&self, slot: usize) -> usize {
        self.places[slot].pool as usize
    }

    /// The rank of `slot`.
    pub fn rank(&self, slot: usize) -> Rank {
        self.ranks[slot]
    }

    /// Puts `slot` into `pool`.
    pub fn insert(&mut self, pool: usize, slot: usize, rank: Rank) {
        self.ranks[slot] = rank;
        let index = self.heaps[pool].len();
        self.heaps[pool].push(slot as u32);
        self.places[slot] = Place { pool: pool as u32, index: index as u32 };
        self.rise(pool, index);
    }

    /// Changes how warm `slot` is.
    pub fn update(&mut self, slot: usize, rank: Rank) {
        let Place { pool, index } = self.places[slot];
        self.ranks[slot] = rank;
        self.settle(pool as usize, index as usize);
    }

    /// Takes `slot` out of its pool.
    pub fn remove(&mut self, slot: usize) {
        let Place { pool, index } = self.places[slot];
        let (pool, index) = (pool as usize, index as usize);
        let last = self.heaps[pool].pop().expect("a removed slot is in its pool");
        if index < self.heaps[pool].len() {
            self.put(pool, index, last);
            self.settle(pool, index);
        }
    }

    /// The coldest slot of `pool` that is a candidate.
    pub fn coldest(&self, pool: usize, is_candidate: &dyn Fn(usize) -> bool) -> Option<usize> {
        let mut best = None;
        self.search(&self.heaps[pool], 0, is_candidate, &mut best);
        best
    }

    fn search(
        &self,
        heap: &[u32],
        index: usize,
        is_candidate: &dyn Fn(usize) -> bool,
        best: &mut Option<usize>,
    ) {
        let Some(&slot) = heap.get(index) else { return };
        let slot = slot as usize;
        if best.is_some_and(|best| self.ranks[best] <= self.ranks[slot]) {
            return;
        }
        if is_candidate(slot) {
            *best = Some(slot);
            return;
        }
        self.search(heap, 2 * index + 1, is_candidate, best);
        self.search(heap, 2 * index + 2, is_candidate, best);
    }

    fn rank_at(&self, pool: usize, index: usize) -> Rank {
        self.ranks[self.heaps[pool][index] as usize]
    }

    fn put(&mut self, pool: usize, index: usize, slot: u32) {
        self.heaps[pool][index] = slot;
        self.places[slot as usize].index = index as u32;
    }

    fn swap(&mut self, pool: usize, a: usize, b: usize) {
        let (slot_a, slot_b) = (self.heaps[pool][a], self.heaps[pool][b]);
        self.put(pool, a, slot_b);
        self.put(pool, b, slot_a);
    }

    fn settle(&mut self, pool: usize, index: usize) {
        let index = self.rise(pool, index);
        self.sink(pool, index);
    }

    fn rise(&mut self, pool: usize, mut index: usize) -> usize {
        while index > 0 {
            let parent = (index - 1) / 2;
            if self.rank_at(pool, parent) <= self.rank_at(pool, index) {
                break;
            }
            self.swap(pool, parent, index);
            index = parent;
        }
        index
    }

    fn sink(&mut self, pool: usize, mut index: usize) {
        let length = self.heaps[pool].len();
        loop {
            let children = [2 * index + 1, 2 * index + 2];
            let colder = children.into_iter().filter(|child| *child < length);
            let Some(child) = colder.min_by_key(|child| self.rank_at(pool, *child)) else { break };
            if self.rank_at(pool, index) <= self.rank_at(pool, child) {
                break;
            }
            self.swap(pool, index, child);
            index = child;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a plain list, under random uses and random candidates.
        #[test]
        fn the_coldest_candidate_is_the_minimum(
            steps in proptest::collection::vec((0_usize..40, 0_u64..50, 0_u8..3), 1..300), busy: u64,
        ) {
            let mut heaps = SlotHeaps::new(40, &[40, 40]);
            let mut plain: Vec<Option<(usize, Rank)>> = vec![None; 40];
            for (stamp, (slot, warmth, what)) in steps.into_iter().enumerate() {
                let rank = (warmth, stamp as u64);
                match (plain[slot], what) {
                    (None, _) => {
                        heaps.insert(slot % 2, slot, rank);
                        plain[slot] = Some((slot % 2, rank));
                    }
                    (Some(_), 0) => {
                        heaps.remove(slot);
                        plain[slot] = None;
                    }
                    (Some((pool, _)), _) => {
                        heaps.update(slot, rank);
                        plain[slot] = Some((pool, rank));
                    }
                }
                for pool in 0..2 {
                    let is_candidate = |slot: usize| busy >> slot & 1 == 0;
                    let of_pool = |slot: &usize| plain[*slot].is_some_and(|(place, _)| place == pool);
                    let wanted = (0..40)
                        .filter(|slot| of_pool(slot) && is_candidate(*slot))
                        .min_by_key(|slot| plain[*slot].expect("in the pool").1);
                    prop_assert_eq!(heaps.coldest(pool, &is_candidate), wanted);
                    prop_assert_eq!(heaps.len(pool), (0..40).filter(of_pool).count());
                }
            }
        }
    }
}
