//! The best positions of a row, from scores that come page by page: exact, in one order, without looking at a score twice.
//!
//! A candidate is one number, in whose order better ones are larger: the score, then the lower position. So there are no ties, and
//! the choice does not depend on how the scores are cut. A row keeps up to twice as many candidates as it wants; when they are full
//! the worse half goes and what is not better than the rest is not taken in any more. That is a constant amount of work per score.

/// Candidates of a row: `slot` is memory of [`Chooser::slot_len`] numbers.
#[derive(Debug)]
pub struct Chooser<'a> {
    /// Number of candidates, the least that is of use, then the candidates.
    slot: &'a mut [u64],
    wanted: usize,
}

/// Numbers before the candidates.
const HEADER: usize = 2;
/// Room beyond what is wanted: a row is cut back at most once per this many scores.
const ROOM_MIN: usize = 64;

impl<'a> Chooser<'a> {
    /// Numbers of memory to choose `wanted` positions.
    pub const fn slot_len(wanted: usize) -> usize {
        let room = if wanted > ROOM_MIN { wanted } else { ROOM_MIN };
        HEADER + wanted + room
    }

    /// Goes on with what is in `slot`; [`Chooser::clear`] begins.
    ///
    /// # Panics
    /// The memory is not of [`Chooser::slot_len`]; nothing is wanted.
    pub fn new(slot: &'a mut [u64], wanted: usize) -> Self {
        assert!(wanted > 0 && slot.len() == Self::slot_len(wanted), "memory of {} numbers", slot.len());
        Self { slot, wanted }
    }

    /// Forgets all candidates.
    pub fn clear(&mut self) {
        self.slot[..HEADER].fill(0);
    }

    /// Takes the scores of positions from `first` on.
    pub fn add(&mut self, first: usize, scores: &[f32]) {
        let (header, candidates) = self.slot.split_at_mut(HEADER);
        let (mut count, mut least) = (header[0] as usize, header[1]);
        for (at, &score) in scores.iter().enumerate() {
            let candidate = candidate(score, first + at);
            if candidate <= least {
                continue;
            }
            candidates[count] = candidate;
            count += 1;
            if count == candidates.len() {
                let (_, last, _) = candidates.select_nth_unstable_by(self.wanted - 1, |a, b| b.cmp(a));
                (count, least) = (self.wanted, *last);
            }
        }
        (header[0], header[1]) = (count as u64, least);
    }

    /// Writes the best positions in ascending order; fewer than `out` has where there were fewer. Returns how many.
    ///
    /// # Panics
    /// `out` has not the length of what is wanted.
    pub fn finish(&mut self, out: &mut [u32]) -> usize {
        assert_eq!(out.len(), self.wanted, "a place for each position");
        let count = self.slot[0] as usize;
        let candidates = &mut self.slot[HEADER..HEADER + count];
        if count > self.wanted {
            candidates.select_nth_unstable_by(self.wanted - 1, |a, b| b.cmp(a));
        }
        let chosen = count.min(self.wanted);
        for (out, candidate) in out.iter_mut().zip(&candidates[..chosen]) {
            *out = !(*candidate as u32);
        }
        out[..chosen].sort_unstable();
        chosen
    }
}

/// Larger for a larger score, then for a lower position, and never 0. Both zeros are equal; NaN is beyond all numbers of its sign.
fn candidate(score: f32, position: usize) -> u64 {
    let bits = (score + 0.0).to_bits();
    // Negative numbers are in reverse order and come first.
    let ordered = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
    u64::from(ordered) << 32 | u64::from(!(position as u32))
}
