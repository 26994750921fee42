//! The KV cache of a runtime: one pool of pages, and which conversation has what of it.
//!
//! Owns the sequence of every [`Session`](crate::Session) that has computed. The one that computes is the last; the others rest,
//! and their pages are a cache: when the pool is full, the conversation that rested longest gives up its pages and computes
//! its tokens again when it is asked next, so a conversation that fits the pool alone always goes on. What sessions had that
//! were dropped is given back before the next one computes. Refuses: choosing the size of the pool (`plan.rs`), and taking
//! pages from anybody but sessions.

use std::sync::{Arc, Weak};

use coldpress_model::{KvPool, PAGE_POSITIONS, PoolFull, PoolPart, Sequence};

use crate::configuration::LoadConfiguration;

/// Slots for recurrent states without a service: two for the conversation that computes, two to go back to or for others that rest.
const SESSION_STATE_SLOTS: usize = 4;

impl LoadConfiguration {
    /// Slots for the states of recurrent layers. A sequence that computes writes one slot and reads another; what is left keeps states
    /// that conversations go back to: with a service one for each answer and two for beginnings that requests have in common.
    pub(crate) fn state_slots(&self) -> usize {
        self.serving.as_ref().map_or(SESSION_STATE_SLOTS, |serving| 3 * serving.parallel + 2)
    }
}

/// Positions of a prompt of `prompt` tokens after which its recurrent state is kept: the last page boundary before its last token,
/// which is computed in any case. An answer that is asked for again, or a prompt whose last words are edited, goes on from there.
pub(crate) fn kept_length(prompt: usize) -> usize {
    prompt.saturating_sub(1) / PAGE_POSITIONS * PAGE_POSITIONS
}

/// See the module header.
pub(crate) struct SharedKv {
    pub pool: KvPool,
    /// The longest rest first.
    held: Vec<Held>,
}

struct Held {
    session: Weak<()>,
    sequence: Sequence,
}

impl SharedKv {
    pub fn new(pool: KvPool) -> Self {
        Self { pool, held: Vec::new() }
    }

    /// `session` computes from now on, with the first `length` of its positions; returns how many of them are still there. Fewer where
    /// no recurrent state of that length is kept.
    pub fn begin(&mut self, session: &Arc<()>, length: usize, context: usize) -> usize {
        self.give_back_dropped();
        let place =
            self.held.iter().position(|held| std::ptr::eq(held.session.as_ptr(), Arc::as_ptr(session)));
        let mut held = match place {
            Some(place) => self.held.remove(place),
            None => Held { session: Arc::downgrade(session), sequence: Sequence::new(context) },
        };
        self.held.iter_mut().for_each(|resting| self.pool.rest(&mut resting.sequence));
        self.pool.truncate(&mut held.sequence, length);
        let there = held.sequence.len();
        self.held.push(held);
        there
    }

    /// The pool and the sequence of the session that computes.
    pub fn computing(&mut self) -> (&mut KvPool, &mut Sequence) {
        let held = self.held.last_mut().expect("a session began to compute");
        (&mut self.pool, &mut held.sequence)
    }

    /// Forgets the positions from `length` on of the session that computes; returns how many of the others are still there.
    pub fn truncate(&mut self, length: usize) -> usize {
        let (pool, sequence) = self.computing();
        pool.truncate(sequence, length);
        sequence.len()
    }

    /// The session that computes can go back to where it is now.
    pub fn keep_state(&mut self) {
        let (pool, sequence) = self.computing();
        // Without it more is computed again.
        let _ = pool.keep_state(sequence);
    }

    /// Lets the next pass, of `positions`, keep the recurrent state that an edit of the end of a prompt of `prompt` tokens goes back to.
    pub fn keep_state_of_prompt(&mut self, prompt: usize, positions: usize) {
        let length = kept_length(prompt);
        let (pool, sequence) = self.computing();
        if !pool.has_states() || !(sequence.len() + 1..=sequence.len() + positions).contains(&length) {
            return;
        }
        if self.pool.state_slots_free() == 0 {
            self.forget_kept_state();
        }
        let (pool, sequence) = self.computing();
        // Without it more is computed again.
        let _ = pool.keep_state_at(sequence, length);
    }

    /// Takes pages for `positions` more of the session that computes.
    ///
    /// # Errors
    /// No other session has any left and too few are free.
    pub fn extend(&mut self, positions: usize) -> Result<(), PoolFull> {
        loop {
            let (pool, sequence) = self.computing();
            match pool.extend(sequence, positions) {
                Err(full) if full.part == PoolPart::States && self.forget_kept_state() => {}
                Err(_) if self.held.len() > 1 => {
                    let longest = self.held.remove(0);
                    self.pool.release(longest.sequence);
                }
                result => return result,
            }
        }
    }

    /// Gives back one state that a session could go back to, if there is any; those that rested longest come first.
    fn forget_kept_state(&mut self) -> bool {
        self.held.iter_mut().any(|held| self.pool.forget_kept_state(&mut held.sequence))
    }

    /// Gives back what sessions had that nobody has any more.
    pub fn give_back_dropped(&mut self) {
        for index in (0..self.held.len()).rev() {
            if self.held[index].session.strong_count() == 0 {
                let dropped = self.held.remove(index);
                self.pool.release(dropped.sequence);
            }
        }
    }
}

#[cfg(test)]
mod tests;
