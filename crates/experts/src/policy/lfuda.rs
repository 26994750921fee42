//! LFUDA, least frequently used with dynamic ageing (Arlitt et al., "Evaluating content management techniques for Web proxy
//! caches", 2000).
//!
//! A record's key is its uses since it came into memory plus the age of its pool when it was last used; the age is the key of
//! the record that gave way last. So a record that was popular once is overtaken after a while, without any decay.

use super::ranked::Ranking;

/// See the module header.
pub(super) struct Lfuda {
    /// Per pool.
    ages: Vec<u64>,
    /// Per record: uses since it came into memory.
    uses: Vec<u32>,
}

impl Lfuda {
    /// For `pools` pools and a model of `records` records.
    pub fn new(pools: usize, records: usize) -> Self {
        Self { ages: vec![0; pools], uses: vec![0; records] }
    }
}

impl Ranking for Lfuda {
    fn inserted(&mut self, pool: usize, record: usize) -> u64 {
        self.uses[record] = 1;
        self.ages[pool] + 1
    }

    fn used(&mut self, pool: usize, record: usize, _warmth: u64) -> u64 {
        self.uses[record] = self.uses[record].saturating_add(1);
        self.ages[pool] + u64::from(self.uses[record])
    }

    fn seeded(&mut self, pool: usize, record: usize, _warmth: u64, uses: u32) -> u64 {
        self.uses[record] = uses;
        self.ages[pool] + u64::from(uses)
    }

    fn evicting(&mut self, pool: usize, warmth: u64) {
        self.ages[pool] = self.ages[pool].max(warmth);
    }
}
