//! Router advice: which experts each layer uses most, so that a mapped pack keeps them and gives the others back.
//!
//! Per layer the experts with the highest decayed counts form the hot set, as many as its byte cap holds. Counts are halved
//! every [`DECAY_VISITS`] visits of the layer and the set is chosen anew every [`CHOOSE_VISITS`], so an expert that is used
//! once does not change it at once. Pure books: their memory is fixed at the start, and nothing is read or advised here;
//! `mapped` does that. Changes no result.

use std::cmp::Reverse;

use coldpress_memory::{Bytes, Ledger, Purpose, Reservation};

use crate::error::ExpertError;
use crate::geometry::{ExpertKey, Geometry};
use crate::store::ExpertStore;

/// Visits of a layer after which its counts are halved.
const DECAY_VISITS: u32 = 256;
/// Visits of a layer after which its hot set is chosen anew.
const CHOOSE_VISITS: u32 = 16;
/// What one use counts, so that halves of it still count.
const USE: u32 = 1 << 8;

/// An expert of a layer in the books.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    count: u32,
    hot: bool,
}

#[derive(Debug)]
struct LayerBook {
    entries: Vec<Entry>,
    visits: u32,
    /// Experts in the hot set at most.
    hot_max: usize,
}

/// See the module header.
#[derive(Debug)]
pub struct RouterAdvice {
    layers: Vec<LayerBook>,
    /// Experts of one layer in order of their counts, while a set is chosen.
    order: Vec<u32>,
    entered: Vec<u32>,
    dropped: Vec<u32>,
    /// The right to the pages of the hot sets.
    _memory: Reservation,
}

/// What a visit changed in the hot set of its layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changes<'a> {
    /// Experts that are hot now and were not.
    pub entered: &'a [u32],
    /// Experts that were hot and are not.
    pub dropped: &'a [u32],
}

impl RouterAdvice {
    /// Empty books for hot sets of `cap` bytes in all: the same number of experts in each layer, as far as it has them.
    /// `place_bytes` gives what keeping a record of a number of bytes takes. The cap is charged to the ledger; the books
    /// themselves are 8 bytes per expert.
    ///
    /// # Errors
    /// The ledger has no room for `cap`.
    pub fn new(
        geometry: &Geometry,
        cap: Bytes,
        place_bytes: impl Fn(usize) -> usize,
        ledger: &Ledger,
    ) -> Result<Self, ExpertError> {
        let memory = ledger.reserve(Purpose::ReadRing, cap).map_err(coldpress_memory::MemoryError::from)?;
        let layers = geometry.layer_count();
        let row: u64 = (0..layers).map(|layer| place_bytes(geometry.layer(layer).record_bytes) as u64).sum();
        let per_layer = usize::try_from(cap.0 / row.max(1)).unwrap_or(usize::MAX);
        let book = |layer: usize| {
            let experts = geometry.expert_count(layer);
            let entries = vec![Entry::default(); experts];
            LayerBook { entries, visits: 0, hot_max: per_layer.min(experts) }
        };
        let most = (0..layers).map(|layer| geometry.expert_count(layer)).max().unwrap_or(0);
        Ok(Self {
            layers: (0..layers).map(book).collect(),
            order: Vec::with_capacity(most),
            entered: Vec::with_capacity(most),
            dropped: Vec::with_capacity(most),
            _memory: memory,
        })
    }

    /// A visit to `layer` uses `experts`. Says what changed in the hot set, which is nothing for most visits.
    pub fn note_use(&mut self, layer: usize, experts: &[u32]) -> Changes<'_> {
        self.entered.clear();
        self.dropped.clear();
        if let Some(book) = self.layers.get_mut(layer).filter(|book| book.hot_max > 0) {
            for &expert in experts {
                if let Some(entry) = book.entries.get_mut(expert as usize) {
                    entry.count = entry.count.saturating_add(USE);
                }
            }
            book.visits = book.visits.wrapping_add(1);
            if book.visits.is_multiple_of(CHOOSE_VISITS) {
                book.choose(&mut self.order, &mut self.entered, &mut self.dropped);
            }
            if book.visits.is_multiple_of(DECAY_VISITS) {
                book.entries.iter_mut().for_each(|entry| entry.count /= 2);
            }
        }
        Changes { entered: &self.entered, dropped: &self.dropped }
    }

    /// The hot experts of a layer, in the order of their numbers.
    pub fn hot_set(&self, layer: usize) -> impl Iterator<Item = u32> + '_ {
        let entries = self.layers.get(layer).map_or(&[][..], |book| &book.entries);
        entries.iter().enumerate().filter(|(_, entry)| entry.hot).map(|(expert, _)| expert as u32)
    }

    /// Whether an expert is in the hot set of its layer.
    pub fn is_hot(&self, key: ExpertKey) -> bool {
        let book = self.layers.get(key.layer as usize);
        book.and_then(|book| book.entries.get(key.expert as usize)).is_some_and(|entry| entry.hot)
    }
}

impl LayerBook {
    /// Chooses the hot set anew. Of equal counts those that are hot stay, so that nothing moves without a reason.
    fn choose(&mut self, order: &mut Vec<u32>, entered: &mut Vec<u32>, dropped: &mut Vec<u32>) {
        let entries = &mut self.entries;
        order.clear();
        order.extend((0..entries.len() as u32).filter(|&expert| entries[expert as usize].count > 0));
        order.sort_unstable_by_key(|&expert| {
            let Entry { count, hot } = entries[expert as usize];
            (Reverse(count), Reverse(hot), expert)
        });
        order.truncate(self.hot_max);
        // From here on by number, to look experts up.
        order.sort_unstable();
        for (expert, entry) in (0_u32..).zip(entries.iter_mut()) {
            let hot = order.binary_search(&expert).is_ok();
            match (entry.hot, hot) {
                (false, true) => entered.push(expert),
                (true, false) => dropped.push(expert),
                _ => {}
            }
            entry.hot = hot;
        }
    }
}

impl ExpertStore {
    /// Keeps, from now on, the experts that each layer uses most in the page cache beyond their places, within `cap` bytes
    /// in all. Has an effect on [`Residency::Mapped`](crate::Residency) only, and changes no result.
    ///
    /// To be called before the first visit.
    ///
    /// # Errors
    /// The ledger has no room for `cap`.
    pub fn advise(&mut self, cap: Bytes, ledger: &Ledger) -> Result<(), ExpertError> {
        self.loader.advise(cap, &self.geometry, ledger)
    }

    /// Says that a visit to `layer` is about to use `experts`, all of which exist: router advice learns from it.
    pub(crate) fn note_use(&mut self, layer: usize, experts: &[u32]) {
        self.loader.note_use(layer, experts);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::tests::geometry;

    /// Books whose hot sets hold `hot` experts of each layer.
    fn advice(layers: usize, experts: usize, hot: u64) -> RouterAdvice {
        let geometry = geometry(layers, experts);
        let cap = Bytes(geometry.record_bytes_max() as u64 * layers as u64 * hot);
        RouterAdvice::new(&geometry, cap, |bytes| bytes, &Ledger::unlimited()).expect("room")
    }

    fn hot(advice: &RouterAdvice, layer: usize) -> Vec<u32> {
        advice.hot_set(layer).collect()
    }

    #[test]
    fn the_most_used_experts_of_each_layer_become_hot() {
        let mut advice = advice(2, 8, 2);
        for visit in 0..CHOOSE_VISITS {
            let seldom = if visit % 2 == 0 { 1 } else { 6 };
            let changes = advice.note_use(0, &[5, 3, seldom]);
            let last = visit + 1 == CHOOSE_VISITS;
            assert_eq!(changes.entered, if last { &[3, 5][..] } else { &[] }, "{visit}");
            assert!(changes.dropped.is_empty());
        }
        assert_eq!(hot(&advice, 0), [3, 5]);
        assert!(hot(&advice, 1).is_empty());
        assert!(advice.is_hot(ExpertKey { layer: 0, expert: 5 }));
        assert!(!advice.is_hot(ExpertKey { layer: 1, expert: 5 }));
    }

    #[test]
    fn what_is_no_longer_used_is_dropped_once() {
        let mut advice = advice(1, 4, 1);
        for _ in 0..CHOOSE_VISITS {
            advice.note_use(0, &[0]);
        }
        assert_eq!(hot(&advice, 0), [0]);
        let mut dropped = Vec::new();
        for _ in 0..4 * CHOOSE_VISITS {
            dropped.extend_from_slice(advice.note_use(0, &[2]).dropped);
        }
        assert_eq!((hot(&advice, 0), dropped), (vec![2], vec![0]));
    }

    #[test]
    fn old_uses_fade() {
        let mut advice = advice(1, 4, 1);
        for _ in 0..20 * DECAY_VISITS {
            advice.note_use(0, &[0]);
        }
        // Without decay it would take as many visits again.
        for _ in 0..2 * DECAY_VISITS {
            advice.note_use(0, &[1]);
        }
        assert_eq!(hot(&advice, 0), [1]);
    }

    #[test]
    fn of_equal_counts_the_hot_one_stays() {
        let mut advice = advice(1, 4, 1);
        for _ in 0..CHOOSE_VISITS {
            advice.note_use(0, &[3]);
        }
        for _ in 0..CHOOSE_VISITS {
            let changes = advice.note_use(0, &[1]);
            assert!(changes.entered.is_empty() && changes.dropped.is_empty(), "{changes:?}");
        }
        assert_eq!(hot(&advice, 0), [3]);
    }

    #[test]
    fn the_hot_sets_stay_within_the_cap_and_the_books_where_they_are() {
        let geometry = geometry(3, 16);
        let each = geometry.record_bytes_max() as u64;
        let cap = Bytes(3 * 5 * each + each / 2);
        let ledger = Ledger::unlimited();
        let mut advice = RouterAdvice::new(&geometry, cap, |bytes| bytes, &ledger).expect("room");
        assert_eq!(ledger.used(), cap);
        let places = |advice: &RouterAdvice| {
            [&advice.order, &advice.entered, &advice.dropped].map(|list| (list.as_ptr(), list.capacity()))
        };
        let before = places(&advice);
        for visit in 0..5000_u32 {
            let all: [u32; 16] = std::array::from_fn(|expert| (expert as u32 * 7 + visit) % 16);
            for layer in 0..3 {
                advice.note_use(layer, &all[..1 + (visit % 16) as usize]);
            }
            let held: u64 = (0..3).map(|layer| advice.hot_set(layer).count() as u64 * each).sum();
            assert!(held <= cap.0, "{held} of {cap}");
        }
        assert_eq!(hot(&advice, 0).len(), 5, "the cap is used");
        assert_eq!(places(&advice), before, "nothing was allocated");
    }

    #[test]
    fn names_that_do_not_exist_and_a_cap_of_nothing_do_nothing() {
        let mut books = advice(1, 2, 1);
        for _ in 0..2 * CHOOSE_VISITS {
            books.note_use(0, &[7]);
            books.note_use(4, &[0]);
        }
        assert!(hot(&books, 0).is_empty() && hot(&books, 4).is_empty());
        let mut nothing = advice(1, 2, 0);
        for _ in 0..2 * CHOOSE_VISITS {
            nothing.note_use(0, &[0]);
        }
        assert!(hot(&nothing, 0).is_empty());
    }
}
