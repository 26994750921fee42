//! Which slot holds a key: a hash table of fixed size with linear probing. Removal moves later entries up, so that nothing is
//! ever rebuilt and no use allocates.

const EMPTY: u32 = u32::MAX;

/// Mixes the bits of a key (the finaliser of splitmix64; Steele et al., OOPSLA 2014).
pub(super) fn mix(key: u64) -> u64 {
    let key = (key ^ (key >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let key = (key ^ (key >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    key ^ (key >> 31)
}

/// Slots by key. Keys stay with the slots; whoever asks brings them.
pub(super) struct Index {
    entries: Vec<u32>,
}

impl Index {
    /// Entries for `slots` slots: at most half of them are ever in use.
    pub fn entries_for(slots: usize) -> usize {
        (2 * slots).next_power_of_two()
    }

    pub fn new(slots: usize) -> Self {
        Self { entries: vec![EMPTY; Self::entries_for(slots)] }
    }

    fn home(&self, key: u64) -> usize {
        mix(key) as usize & (self.entries.len() - 1)
    }

    fn after(&self, place: usize) -> usize {
        (place + 1) & (self.entries.len() - 1)
    }

    /// The slot of `key`.
    pub fn find(&self, key: u64, key_of: impl Fn(u32) -> u64) -> Option<usize> {
        let mut place = self.home(key);
        while self.entries[place] != EMPTY {
            if key_of(self.entries[place]) == key {
                return Some(self.entries[place] as usize);
            }
            place = self.after(place);
        }
        None
    }

    /// `slot` holds `key`, which no slot held before.
    pub fn insert(&mut self, key: u64, slot: usize) {
        let mut place = self.home(key);
        while self.entries[place] != EMPTY {
            place = self.after(place);
        }
        self.entries[place] = slot as u32;
    }

    /// No slot holds `key` any more.
    pub fn remove(&mut self, key: u64, key_of: impl Fn(u32) -> u64) {
        let mut hole = self.home(key);
        while self.entries[hole] == EMPTY || key_of(self.entries[hole]) != key {
            if self.entries[hole] == EMPTY {
                return;
            }
            hole = self.after(hole);
        }
        let mut next = self.after(hole);
        while self.entries[next] != EMPTY {
            let home = self.home(key_of(self.entries[next]));
            // The entry may move to the hole if the hole lies between its home and its place.
            let mask = self.entries.len() - 1;
            if next.wrapping_sub(home) & mask >= next.wrapping_sub(hole) & mask {
                self.entries[hole] = self.entries[next];
                hole = next;
            }
            next = self.after(next);
        }
        self.entries[hole] = EMPTY;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn the_index_agrees_with_a_map_over_any_order_of_changes() {
        const SLOTS: usize = 13;
        let mut keys = [0_u64; SLOTS];
        let mut index = Index::new(SLOTS);
        let mut wanted: BTreeMap<u64, usize> = BTreeMap::new();
        let mut state = 7_u64;
        for step in 0..20_000_u64 {
            state = mix(state.wrapping_add(step));
            let (key, slot) = (state % 40, (state >> 32) as usize % SLOTS);
            if let Some(&held) = wanted.get(&key) {
                assert_eq!(index.find(key, |slot| keys[slot as usize]), Some(held));
                index.remove(key, |slot| keys[slot as usize]);
                wanted.remove(&key);
            } else if !wanted.values().any(|held| *held == slot) {
                keys[slot] = key;
                index.insert(key, slot);
                wanted.insert(key, slot);
            }
            for key in 0..40 {
                assert_eq!(index.find(key, |slot| keys[slot as usize]), wanted.get(&key).copied());
            }
        }
    }
}
