//! LRU: the record used longest ago gives way.

use super::ranked::Ranking;

/// Every record is equally warm, so the time of its latest use decides.
pub(super) struct Lru;

impl Ranking for Lru {
    fn inserted(&mut self, _pool: usize, _record: usize) -> u64 {
        0
    }

    fn used(&mut self, _pool: usize, _record: usize, _warmth: u64) -> u64 {
        0
    }
}
