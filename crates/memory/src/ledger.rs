//! The ledger: the one place that says yes or no to memory.
//!
//! Owns: the budget, the bytes in use (in all and per purpose) and their peak. A [`Reservation`] is the right to hold
//! bytes; it cannot be copied and gives them back when dropped. Refuses: allocating; see `buffer.rs` for that.
//!
//! **The sum of all reservations never exceeds the budget**, at any instant and from any number of threads: the
//! check and the charge are one compare-and-swap (guard: `tests/reservations_never_exceed_the_budget.rs`).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

use crate::Bytes;

/// What memory is held for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// Program, tokenizer, thread stacks and a reserve for the run time.
    Fixed,
    /// Weights that every token uses.
    Dense,
    /// Keys and values of the context.
    KvCache,
    /// Intermediate results.
    Scratch,
    /// Buffers of reads in flight.
    ReadRing,
    /// Routed experts in memory.
    ExpertSlots,
}

impl Purpose {
    /// Every purpose, in the order of a plan.
    pub const ALL: [Self; 6] =
        [Self::Fixed, Self::Dense, Self::KvCache, Self::Scratch, Self::ReadRing, Self::ExpertSlots];

    /// The name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fixed => "fixed",
            Self::Dense => "dense weights",
            Self::KvCache => "KV cache",
            Self::Scratch => "scratch",
            Self::ReadRing => "read ring",
            Self::ExpertSlots => "expert slots",
        }
    }

    const fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A reservation that the budget has no room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no room for {purpose}: {asked} asked ({asked_exact} bytes), {free} free of a budget of {budget}; \
     give a larger budget or shorten the context",
    asked_exact = asked.0
)]
pub struct OverBudget {
    /// What the memory was for.
    pub purpose: Purpose,
    /// Bytes asked for.
    pub asked: Bytes,
    /// Bytes free at that moment.
    pub free: Bytes,
    /// The whole budget.
    pub budget: Bytes,
}

#[derive(Debug)]
struct Books {
    budget: u64,
    used: AtomicU64,
    peak: AtomicU64,
    used_for: [AtomicU64; Purpose::ALL.len()],
}

/// A budget and what is held of it. Cloning gives another handle on the same books.
#[derive(Clone, Debug)]
pub struct Ledger(Arc<Books>);

impl Ledger {
    /// An empty ledger over `budget`; [`Bytes::MAX`] never refuses.
    pub fn new(budget: Bytes) -> Self {
        Self(Arc::new(Books {
            budget: budget.0,
            used: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            used_for: Default::default(),
        }))
    }

    /// A ledger that counts but never refuses.
    pub fn unlimited() -> Self {
        Self::new(Bytes::MAX)
    }

    /// Charges `bytes` to `purpose`, or refuses and changes nothing.
    pub fn reserve(&self, purpose: Purpose, bytes: Bytes) -> Result<Reservation, OverBudget> {
        let books = &*self.0;
        let charge = |used: u64| used.checked_add(bytes.0).filter(|sum| *sum <= books.budget);
        match books.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, charge) {
            Ok(before) => {
                books.peak.fetch_max(before + bytes.0, Ordering::AcqRel);
                books.used_for[purpose.index()].fetch_add(bytes.0, Ordering::AcqRel);
                Ok(Reservation { ledger: self.clone(), purpose, bytes: bytes.0 })
            }
            Err(used) => Err(OverBudget {
                purpose,
                asked: bytes,
                free: Bytes(books.budget - used),
                budget: Bytes(books.budget),
            }),
        }
    }

    /// The whole budget.
    pub fn budget(&self) -> Bytes {
        Bytes(self.0.budget)
    }

    /// Bytes reserved now.
    pub fn used(&self) -> Bytes {
        Bytes(self.0.used.load(Ordering::Acquire))
    }

    /// Bytes that can still be reserved.
    pub fn free(&self) -> Bytes {
        self.budget().saturating_sub(self.used())
    }

    /// Bytes reserved now for `purpose`.
    pub fn used_for(&self, purpose: Purpose) -> Bytes {
        Bytes(self.0.used_for[purpose.index()].load(Ordering::Acquire))
    }

    /// The largest sum of reservations so far.
    pub fn peak(&self) -> Bytes {
        Bytes(self.0.peak.load(Ordering::Acquire))
    }

    /// All figures, for status output. Taken one after the other, so under concurrent change they need not add up.
    pub fn snapshot(&self) -> LedgerSnapshot {
        LedgerSnapshot {
            budget: self.budget(),
            used: self.used(),
            peak: self.peak(),
            used_for: Purpose::ALL.map(|purpose| (purpose, self.used_for(purpose))),
        }
    }
}

/// The figures of a ledger at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LedgerSnapshot {
    /// The whole budget.
    pub budget: Bytes,
    /// Bytes reserved.
    pub used: Bytes,
    /// The largest sum of reservations so far.
    pub peak: Bytes,
    /// Bytes reserved per purpose, in the order of [`Purpose::ALL`].
    pub used_for: [(Purpose, Bytes); Purpose::ALL.len()],
}

/// The right to hold some bytes. Dropping it gives them back.
#[derive(Debug)]
#[must_use = "dropping a reservation gives the bytes back at once"]
pub struct Reservation {
    ledger: Ledger,
    purpose: Purpose,
    bytes: u64,
}

impl Reservation {
    /// Bytes held.
    pub fn bytes(&self) -> Bytes {
        Bytes(self.bytes)
    }

    /// What they are held for.
    pub fn purpose(&self) -> Purpose {
        self.purpose
    }

    /// The ledger they are charged to.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Moves `bytes` of this reservation into a new one of the same purpose; `None` when it holds fewer.
    pub fn split_off(&mut self, bytes: Bytes) -> Option<Reservation> {
        self.bytes = self.bytes.checked_sub(bytes.0)?;
        Some(Reservation { ledger: self.ledger.clone(), purpose: self.purpose, bytes: bytes.0 })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let books = &*self.ledger.0;
        books.used_for[self.purpose.index()].fetch_sub(self.bytes, Ordering::AcqRel);
        books.used.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_names_purpose_asked_free_and_budget() {
        let ledger = Ledger::new(Bytes::from_mib(100));
        let held = ledger.reserve(Purpose::Dense, Bytes::from_mib(70)).expect("fits");
        let error = ledger.reserve(Purpose::KvCache, Bytes::from_mib(31)).expect_err("does not fit");
        assert_eq!(
            error.to_string(),
            "no room for KV cache: 31.0 MiB asked (32505856 bytes), 30.0 MiB free of a budget of 100.0 MiB; \
             give a larger budget or shorten the context"
        );
        assert_eq!(ledger.used(), Bytes::from_mib(70));
        drop(held);
        assert_eq!((ledger.used(), ledger.peak()), (Bytes::ZERO, Bytes::from_mib(70)));
    }

    #[test]
    fn the_last_byte_fits_and_one_more_does_not() {
        let ledger = Ledger::new(Bytes(10));
        let _all = ledger.reserve(Purpose::Scratch, Bytes(10)).expect("exactly the budget");
        let _none = ledger.reserve(Purpose::Scratch, Bytes::ZERO).expect("nothing always fits");
        ledger.reserve(Purpose::Scratch, Bytes(1)).expect_err("one byte too many");
        ledger.reserve(Purpose::Scratch, Bytes::MAX).expect_err("no overflow");
    }

    #[test]
    fn split_reservations_return_their_own_part() {
        let ledger = Ledger::unlimited();
        let mut whole = ledger.reserve(Purpose::ExpertSlots, Bytes(10)).expect("unlimited");
        let part = whole.split_off(Bytes(4)).expect("holds enough");
        assert!(whole.split_off(Bytes(7)).is_none());
        drop(whole);
        assert_eq!(ledger.used_for(Purpose::ExpertSlots), Bytes(4));
        drop(part);
        assert_eq!(ledger.used(), Bytes::ZERO);
    }
}
