//! The word that every thread of a pool watches.
//!
//! ```text
//! 63 ............ 36 | 35      | 34       | 33      | 32   | 31 ... 16 | 15 ... 0
//! epoch of the region| closing | waiting  | entered | open | sleeping  | inside
//! ```
//!
//! One word, because then each decision (join the open region, fall asleep, wait for the last one out) is one
//! read-modify-write on one location: whoever comes second sees what the first one did, so no wake-up can be lost.

use crate::sync::{AtomicU64, Ordering};

const INSIDE_ONE: u64 = 1;
const INSIDE_MASK: u64 = 0xffff;
const SLEEPING_ONE: u64 = 1 << 16;
const SLEEPING_MASK: u64 = 0xffff << 16;
const OPEN: u64 = 1 << 32;
const ENTERED: u64 = 1 << 33;
const CALLER_WAITS: u64 = 1 << 34;
const CLOSING: u64 = 1 << 35;
const EPOCH_SHIFT: u32 = 36;
const EPOCH_ONE: u64 = 1 << EPOCH_SHIFT;

/// Threads that the two counters can hold.
pub(crate) const COUNTER_MAX: usize = INSIDE_MASK as usize;

/// A value of the word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Word(u64);

impl Word {
    /// Workers that joined the region and have not left it.
    pub(crate) fn inside(self) -> u64 {
        self.0 & INSIDE_MASK
    }

    /// Workers that announced that they go to sleep and were not woken since.
    pub(crate) fn sleeping(self) -> u64 {
        (self.0 & SLEEPING_MASK) >> 16
    }

    /// A region can be joined.
    pub(crate) fn open(self) -> bool {
        self.0 & OPEN != 0
    }

    /// A caller is between the start and the end of `enter`: workers may spin.
    pub(crate) fn entered(self) -> bool {
        self.0 & ENTERED != 0
    }

    /// The caller sleeps until the last worker leaves the region.
    pub(crate) fn caller_waits(self) -> bool {
        self.0 & CALLER_WAITS != 0
    }

    /// The pool is being dropped.
    pub(crate) fn closing(self) -> bool {
        self.0 & CLOSING != 0
    }

    /// Number of the region; wraps. A worker uses it only to avoid joining a region twice, and joining is
    /// always optional, so a wrap costs at most one worker for one region.
    pub(crate) fn epoch(self) -> u64 {
        self.0 >> EPOCH_SHIFT
    }
}

/// The shared word and its legal changes.
#[derive(Debug)]
pub(crate) struct Gate(AtomicU64);

impl Gate {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Acquire: sees what the workers that left the region wrote.
    pub(crate) fn load(&self) -> Word {
        Word(self.0.load(Ordering::Acquire))
    }

    /// Caller: `enter` begins.
    pub(crate) fn enter(&self) -> Word {
        Word(self.0.fetch_or(ENTERED, Ordering::AcqRel))
    }

    /// Caller: `enter` ends.
    pub(crate) fn exit(&self) {
        self.0.fetch_and(!ENTERED, Ordering::AcqRel);
    }

    /// Caller: opens the next region. Release: whoever joins sees the job.
    pub(crate) fn open_region(&self) -> Word {
        let before = Word(self.0.fetch_add(EPOCH_ONE + OPEN, Ordering::AcqRel));
        debug_assert!(!before.open() && before.inside() == 0, "a region is still running");
        before
    }

    /// Caller: from here on nobody can join.
    pub(crate) fn close_region(&self) -> Word {
        Word(self.0.fetch_and(!OPEN, Ordering::AcqRel))
    }

    /// Worker: joins the region seen in `seen`. Acquire pairs with [`Gate::open_region`].
    pub(crate) fn try_join(&self, seen: Word) -> bool {
        self.change(seen, seen.0 + INSIDE_ONE)
    }

    /// Worker: leaves the region. Release: the caller sees what the body wrote.
    pub(crate) fn leave(&self) -> Word {
        Word(self.0.fetch_sub(INSIDE_ONE, Ordering::AcqRel))
    }

    /// Worker: announces sleep, unless the word has changed since `seen`.
    pub(crate) fn try_announce_sleep(&self, seen: Word) -> bool {
        self.change(seen, seen.0 + SLEEPING_ONE)
    }

    /// Caller, while it holds the lock under which workers announce: all of them are being woken.
    pub(crate) fn clear_sleeping(&self) {
        self.0.fetch_and(!SLEEPING_MASK, Ordering::AcqRel);
    }

    /// Caller: announces that it sleeps until the last worker leaves, unless the word has changed since `seen`.
    pub(crate) fn try_announce_wait(&self, seen: Word) -> bool {
        self.change(seen, seen.0 | CALLER_WAITS)
    }

    /// Caller: awake again.
    pub(crate) fn clear_wait(&self) {
        self.0.fetch_and(!CALLER_WAITS, Ordering::AcqRel);
    }

    /// Owner: the pool ends.
    pub(crate) fn close_pool(&self) -> Word {
        Word(self.0.fetch_or(CLOSING, Ordering::AcqRel))
    }

    fn change(&self, seen: Word, to: u64) -> bool {
        self.0.compare_exchange(seen.0, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn fields_do_not_touch_each_other() {
        let gate = Gate::new();
        gate.enter();
        let seen = gate.load();
        assert!(gate.try_announce_sleep(seen));
        assert!(!gate.try_announce_sleep(seen), "a stale view must not change the word");
        let before = gate.open_region();
        assert_eq!((before.sleeping(), before.inside(), before.epoch()), (1, 0, 0));
        let seen = gate.load();
        assert!(seen.open() && seen.entered() && !seen.closing() && !seen.caller_waits());
        assert_eq!(seen.epoch(), 1);
        assert!(gate.try_join(seen));
        assert_eq!(gate.close_region().inside(), 1);
        assert!(gate.try_announce_wait(gate.load()));
        assert!(gate.leave().caller_waits());
        gate.clear_wait();
        gate.clear_sleeping();
        gate.exit();
        let end = gate.load();
        assert_eq!((end.sleeping(), end.inside(), end.epoch()), (0, 0, 1));
        assert!(!end.open() && !end.entered() && !end.caller_waits());
    }

    #[test]
    fn epoch_wraps_without_leaking_into_the_flags() {
        let gate = Gate(AtomicU64::new(u64::MAX << EPOCH_SHIFT));
        gate.open_region();
        let seen = gate.load();
        assert_eq!(seen.epoch(), 0);
        assert!(seen.open() && !seen.entered());
    }
}
