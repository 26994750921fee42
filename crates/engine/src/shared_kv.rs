//! The KV cache of a runtime: one pool of pages, and which conversation has what of it.
//!
//! Owns the sequence of every [`Session`](crate::Session) that has computed. The one that computes is the last; the others rest,
//! and their pages are a cache: when the pool is full, the conversation that rested longest gives up its pages and computes
//! its tokens again when it is asked next, so a conversation that fits the pool alone always goes on. What sessions had that
//! were dropped is given back before the next one computes. Refuses: choosing the size of the pool (`plan.rs`), and taking
//! pages from anybody but sessions.

use std::sync::{Arc, Weak};

use coldpress_model::{KvPool, PoolFull, Sequence};

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

    /// `session` computes from now on, with the first `length` of its positions; returns how many of them are still there.
    pub fn begin(&mut self, session: &Arc<()>, length: usize, context: usize) -> usize {
        self.give_back_dropped();
        let place =
            self.held.iter().position(|held| std::ptr::eq(held.session.as_ptr(), Arc::as_ptr(session)));
        let mut held = match place {
            Some(place) => self.held.remove(place),
            None => Held { session: Arc::downgrade(session), sequence: Sequence::new(context) },
        };
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

    /// Forgets the positions from `length` on of the session that computes.
    pub fn truncate(&mut self, length: usize) {
        let (pool, sequence) = self.computing();
        pool.truncate(sequence, length);
    }

    /// Takes pages for `positions` more of the session that computes.
    ///
    /// # Errors
    /// No other session has any left and too few are free.
    pub fn extend(&mut self, positions: usize) -> Result<(), PoolFull> {
        loop {
            let (pool, sequence) = self.computing();
            match pool.extend(sequence, positions) {
                Err(_) if self.held.len() > 1 => {
                    let longest = self.held.remove(0);
                    self.pool.release(longest.sequence);
                }
                result => return result,
            }
        }
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
