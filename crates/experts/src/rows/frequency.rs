//! How often keys were used lately, in a fixed number of bytes: a count-min sketch (Cormode and Muthukrishnan, 2005) whose
//! counters are halved from time to time, as in TinyLFU (Einziger et al., ACM Transactions on Storage 2017).
//!
//! An estimate is never below the count since the last halving, and rarely above it: of four counters per key the smallest
//! one counts, and only the smallest ones are raised.

use super::index::mix;

/// Counters per key.
const HASHES: usize = 4;
/// Uses per slot after which all counters are halved.
const USES_PER_SLOT: usize = 32;

/// See the module header.
pub(super) struct Frequencies {
    counters: Vec<u8>,
    uses: usize,
    uses_max: usize,
}

impl Frequencies {
    /// Counters for a cache of `slots` slots, in bytes.
    pub fn counters_for(slots: usize) -> usize {
        (8 * slots).next_power_of_two().max(64)
    }

    pub fn new(slots: usize) -> Self {
        let uses_max = (USES_PER_SLOT * slots).max(64);
        Self { counters: vec![0; Self::counters_for(slots)], uses: 0, uses_max }
    }

    fn places(&self, key: u64) -> [usize; HASHES] {
        let hash = mix(key ^ 0x5bd1_e995);
        let (first, step) = (hash as usize, (hash >> 32) as usize | 1);
        let mask = self.counters.len() - 1;
        std::array::from_fn(|index| first.wrapping_add(step.wrapping_mul(index)) & mask)
    }

    /// How often `key` was used lately.
    pub fn estimate(&self, key: u64) -> u8 {
        self.places(key).into_iter().map(|place| self.counters[place]).min().unwrap_or(0)
    }

    /// `key` was used.
    pub fn count(&mut self, key: u64) {
        let least = self.estimate(key);
        for place in self.places(key) {
            if self.counters[place] == least {
                self.counters[place] = least.saturating_add(1);
            }
        }
        self.uses += 1;
        if self.uses >= self.uses_max {
            self.uses /= 2;
            self.counters.iter_mut().for_each(|counter| *counter /= 2);
        }
    }
}
