//! The ledger: the one place that says yes or no to memory.
//!
//! Owns: the budget, the bytes in use (in all and per purpose) and their peak. A [`Reservation`] is the right to hold
//! bytes; it cannot be copied and gives them back when dropped. Refuses: allocating; see `buffer.rs` for that.
//!
//! **The sum of all reservations never exceeds the budget**, at any instant and from any number of threads, also while
//! [`Ledger::set_budget`] changes it (guard: `tests/reservations_never_exceed_the_budget.rs`). One number decides: what is
//! free. See `Books` for the argument.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;

use crate::{Bytes, apart};

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
    /// Rows of embedding tables that stay on disk.
    RowCache,
    /// Routed experts in memory.
    ExpertSlots,
}

impl Purpose {
    /// Every purpose, in the order of a plan.
    pub const ALL: [Self; 7] = [
        Self::Fixed,
        Self::Dense,
        Self::KvCache,
        Self::Scratch,
        Self::ReadRing,
        Self::RowCache,
        Self::ExpertSlots,
    ];

    /// The name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fixed => "fixed",
            Self::Dense => "dense weights",
            Self::KvCache => "KV cache",
            Self::Scratch => "scratch",
            Self::ReadRing => "read ring",
            Self::RowCache => "row cache",
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
    "no room for {purpose}: {asked_text} asked ({asked_exact} bytes), {free_text} free of a budget of {budget}; \
     give a larger budget or shorten the context",
    asked_exact = asked.0,
    asked_text = apart([*asked, *free])[0],
    free_text = apart([*asked, *free])[1]
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

/// A budget that cannot be lowered as far as asked, because more is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the budget cannot become {asked} ({asked_exact} bytes): {used} ({used_exact} bytes) are in use, and it stays at \
     {budget}; give memory back first or ask for at least {used_exact} bytes",
    asked_exact = asked.0,
    used_exact = used.0
)]
pub struct BudgetInUse {
    /// The budget asked for.
    pub asked: Bytes,
    /// Bytes in use at that moment.
    pub used: Bytes,
    /// The budget, which stays.
    pub budget: Bytes,
}

/// Why no race passes the budget: `free` is the only number that anything is decided by, and it changes by single atomic steps.
/// A reservation takes its bytes out of it or finds too few. Lowering the budget takes the difference out in the same way, like a
/// reservation that nobody holds; raising puts it in. So at every instant, in the one order that all threads see the steps of
/// `free` in,
///
/// ```text
/// free = budget - everything taken out and not yet put back,   and free is never negative.
/// ```
///
/// There is no check of one number followed by a change of another, and hence nothing to restore. The other numbers are
/// for reading, and err on the side that keeps `used <= budget` true: bytes count as used only while they are out of
/// `free`; a lower budget shows after its difference was taken out, a higher one before it is put in.
#[derive(Debug)]
struct Books {
    free: AtomicU64,
    /// Written only under `changing`.
    budget: AtomicU64,
    used: AtomicU64,
    peak: AtomicU64,
    used_for: [AtomicU64; Purpose::ALL.len()],
    /// Held while the budget changes: two changes at once could each compute their difference from the same old budget.
    changing: Mutex<()>,
}

impl Books {
    /// Takes `bytes` out of what is free; the error is what is free instead.
    fn take(&self, bytes: u64) -> Result<(), u64> {
        let rest = |free: u64| free.checked_sub(bytes);
        self.free.fetch_update(Ordering::AcqRel, Ordering::Acquire, rest).map(|_| ())
    }
}

/// A budget and what is held of it. Cloning gives another handle on the same books.
#[derive(Clone, Debug)]
pub struct Ledger(Arc<Books>);

impl Ledger {
    /// An empty ledger over `budget`; [`Bytes::MAX`] never refuses.
    pub fn new(budget: Bytes) -> Self {
        Self(Arc::new(Books {
            free: AtomicU64::new(budget.0),
            budget: AtomicU64::new(budget.0),
            used: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            used_for: Default::default(),
            changing: Mutex::new(()),
        }))
    }

    /// A ledger that counts but never refuses.
    pub fn unlimited() -> Self {
        Self::new(Bytes::MAX)
    }

    /// Charges `bytes` to `purpose`, or refuses and changes nothing.
    pub fn reserve(&self, purpose: Purpose, bytes: Bytes) -> Result<Reservation, OverBudget> {
        let books = &*self.0;
        if let Err(free) = books.take(bytes.0) {
            return Err(OverBudget { purpose, asked: bytes, free: Bytes(free), budget: self.budget() });
        }
        let before = books.used.fetch_add(bytes.0, Ordering::AcqRel);
        books.peak.fetch_max(before + bytes.0, Ordering::AcqRel);
        books.used_for[purpose.index()].fetch_add(bytes.0, Ordering::AcqRel);
        Ok(Reservation { ledger: self.clone(), purpose, bytes: bytes.0 })
    }

    /// Makes `budget` the budget from now on, for every handle on these books. Raising always works.
    ///
    /// # Errors
    /// More than `budget` is reserved: the budget stays as it was.
    pub fn set_budget(&self, budget: Bytes) -> Result<(), BudgetInUse> {
        let books = &*self.0;
        let _changing = books.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let before = books.budget.load(Ordering::Acquire);
        if budget.0 >= before {
            books.budget.store(budget.0, Ordering::Release);
            books.free.fetch_add(budget.0 - before, Ordering::AcqRel);
            return Ok(());
        }
        books.take(before - budget.0).map_err(|free| BudgetInUse {
            asked: budget,
            used: Bytes(before - free),
            budget: Bytes(before),
        })?;
        books.budget.store(budget.0, Ordering::Release);
        Ok(())
    }

    /// The whole budget at this moment.
    pub fn budget(&self) -> Bytes {
        Bytes(self.0.budget.load(Ordering::Acquire))
    }

    /// Bytes reserved now.
    pub fn used(&self) -> Bytes {
        Bytes(self.0.used.load(Ordering::Acquire))
    }

    /// Bytes that can still be reserved.
    pub fn free(&self) -> Bytes {
        Bytes(self.0.free.load(Ordering::Acquire))
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
        books.free.fetch_add(self.bytes, Ordering::AcqRel);
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
    fn a_budget_changes_unless_more_is_in_use() {
        let ledger = Ledger::new(Bytes::from_mib(100));
        let held = ledger.reserve(Purpose::ExpertSlots, Bytes::from_mib(70)).expect("fits");
        let error = ledger.set_budget(Bytes::from_mib(69)).expect_err("more is in use");
        assert_eq!(
            error.to_string(),
            "the budget cannot become 69.0 MiB (72351744 bytes): 70.0 MiB (73400320 bytes) are in use, and it stays at \
             100.0 MiB; give memory back first or ask for at least 73400320 bytes"
        );
        assert_eq!((ledger.budget(), ledger.free()), (Bytes::from_mib(100), Bytes::from_mib(30)));
        ledger.set_budget(Bytes::from_mib(70)).expect("exactly what is in use");
        ledger.reserve(Purpose::Scratch, Bytes(1)).expect_err("nothing is free");
        drop(held);
        assert_eq!((ledger.used(), ledger.free()), (Bytes::ZERO, Bytes::from_mib(70)));
        ledger.set_budget(Bytes::MAX).expect("raising always works");
        let most = ledger.reserve(Purpose::Scratch, Bytes::MAX).expect("never refuses");
        ledger.set_budget(Bytes::from_mib(1)).expect_err("all is in use");
        drop(most);
        ledger.set_budget(Bytes::ZERO).expect("nothing is in use");
        ledger.reserve(Purpose::Scratch, Bytes(1)).expect_err("nothing may be used");
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
