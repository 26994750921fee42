//! The free part of an answer before its grammar: what a model thinks, up to a marker such as `</think>`.
//!
//! Owns finding the marker in tokens that may cut it anywhere. A token that ends the marker and goes on with other
//! text is not allowed: that text would be the grammar's. Space behind the marker in the same token belongs to the marker.

use super::table::TokenTable;

/// A marker that was not yet written.
pub(super) struct Reasoning {
    marker: Box<[u8]>,
    /// The last bytes written, one fewer than the marker has.
    tail: Vec<u8>,
    /// Tokens that hold the whole marker and other text behind it.
    never: Vec<u32>,
}

/// What a token does to the free part.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It goes on.
    Open,
    /// The marker is complete; the grammar begins.
    Closed,
    /// The marker is complete and text of the grammar follows in the same token.
    Straddles,
}

impl Reasoning {
    /// `None` if the marker is empty: the grammar holds from the start.
    pub(super) fn new(marker: &str, table: &TokenTable) -> Option<Reasoning> {
        if marker.is_empty() {
            return None;
        }
        let mut reasoning =
            Reasoning { marker: marker.as_bytes().into(), tail: Vec::new(), never: Vec::new() };
        let straddles = |&id: &u32| reasoning.step(table.written(id)) == Step::Straddles;
        reasoning.never = (0..table.tokens() as u32).filter(straddles).collect();
        Some(reasoning)
    }

    /// Calls `forbid` with each token that must not come next.
    pub(super) fn forbidden(&self, table: &TokenTable, mut forbid: impl FnMut(u32)) {
        table.stops().iter().chain(&self.never).for_each(|&id| forbid(id));
        let begun = (1..self.marker.len()).any(|length| self.tail.ends_with(&self.marker[..length]));
        if begun {
            let straddles = |&id: &u32| self.step(table.written(id)) == Step::Straddles;
            (0..table.tokens() as u32).filter(straddles).for_each(forbid);
        }
    }

    /// What a token would do.
    pub(super) fn step(&self, written: &[u8]) -> Step {
        // Most tokens neither hold the marker nor end it.
        let last = self.marker[self.marker.len() - 1];
        if !written.contains(&last) {
            return Step::Open;
        }
        let text = [&self.tail, written].concat();
        match text.windows(self.marker.len()).position(|window| *window == *self.marker) {
            None => Step::Open,
            Some(start) if text[start + self.marker.len()..].iter().all(u8::is_ascii_whitespace) => {
                Step::Closed
            }
            Some(_) => Step::Straddles,
        }
    }

    /// Takes a token that leaves the part open.
    pub(super) fn push(&mut self, written: &[u8]) {
        self.tail.extend_from_slice(written);
        let surplus = self.tail.len().saturating_sub(self.marker.len() - 1);
        self.tail.drain(..surplus);
    }
}
