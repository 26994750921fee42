//! Slots: memory for records, and who may touch it when.
//!
//! ```text
//!                 BeginLoad              Land                Pin / Unpin
//!          Free ------------> Loading ----------> Resident{pins} <--+
//!          | ^ ^                 |                   |    |         |
//!   Retire | | +----- Abandon ---+                   |    +---------+
//!          v | +------------------ Evict (pins = 0) --+
//!         Absent (Restore leads back to Free)
//! ```
//!
//! Ownership does the work: a slot *has* its [`SlotMemory`] only while it is free or resident. A load takes the memory
//! out, the read request owns it, and only the completion brings it back. So a slot in flight can be neither read nor
//! refilled, and memory that the operating system may still write to cannot be freed, whatever is dropped or panics.
//! Reads of parts of a record own parts of the memory, cut and joined again; each byte has one owner at any time.
//! An absent slot has no memory: it was given back, and may come again (`resize`).
//! A place is a slot without memory of its own: its record lies in a mapped file.
//! Knows no files, no policy and no order of use. The only unsafe code is [`SlotMemory`]: one buffer cut into pieces.
#![allow(unsafe_code)]

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use coldpress_memory::{Buffer, Bytes, Ledger, MemoryError, Purpose};

use crate::geometry::{ExpertKey, RECORD_ALIGNMENT};

/// An owned piece of one [`Buffer`], aligned to [`RECORD_ALIGNMENT`]. The buffer lives until its last piece is gone.
#[derive(Debug)]
pub struct SlotMemory {
    start: NonNull<u8>,
    length: usize,
    /// Keeps the mapping alive and its bytes reserved. Never used to reach the bytes.
    _buffer: Arc<Buffer>,
}

// SAFETY: a piece is the only way to reach its bytes, like a `Box<[u8]>`; the buffer behind it is Send and Sync.
unsafe impl Send for SlotMemory {}
// SAFETY: as above; shared access only reads.
unsafe impl Sync for SlotMemory {}

impl SlotMemory {
    /// Reserves one buffer and cuts it into pieces of at least `lengths` bytes, each rounded up to
    /// [`RECORD_ALIGNMENT`]. The memory is zero.
    ///
    /// # Errors
    /// When the ledger has too little left, or the system refuses the memory.
    pub fn carve(
        ledger: &Ledger,
        purpose: Purpose,
        lengths: &[usize],
    ) -> Result<Vec<SlotMemory>, MemoryError> {
        let total: usize = lengths.iter().map(|length| length.next_multiple_of(RECORD_ALIGNMENT)).sum();
        if total == 0 {
            return Ok(Vec::new());
        }
        let mut buffer = Buffer::new(ledger, purpose, Bytes(total as u64))?;
        let base = NonNull::new(buffer.as_mut_ptr()).expect("a mapping is not at address 0");
        assert!(base.addr().get().is_multiple_of(RECORD_ALIGNMENT), "buffers are page aligned");
        let buffer = Arc::new(buffer);
        let mut offset = 0;
        let mut pieces = Vec::with_capacity(lengths.len());
        for length in lengths {
            let length = length.next_multiple_of(RECORD_ALIGNMENT);
            // SAFETY: offset + length <= total, the size of the buffer.
            let start = unsafe { base.add(offset) };
            pieces.push(SlotMemory { start, length, _buffer: Arc::clone(&buffer) });
            offset += length;
        }
        Ok(pieces)
    }

    /// The buffer that the piece belongs to. Its bytes are reached through pieces alone.
    pub(crate) fn buffer(&self) -> Arc<Buffer> {
        Arc::clone(&self._buffer)
    }

    /// Cuts this piece in two: it keeps the first `at` bytes, the rest is returned. Takes nothing from the heap.
    ///
    /// # Panics
    /// When `at` is beyond the end or not a multiple of [`RECORD_ALIGNMENT`].
    pub fn split_off(&mut self, at: usize) -> SlotMemory {
        assert!(
            at <= self.length && at.is_multiple_of(RECORD_ALIGNMENT),
            "cannot cut {} bytes at {at}",
            self.length
        );
        // SAFETY: `at <= length`, so the result lies inside this piece, or one past its end when the rest is empty.
        let start = unsafe { self.start.add(at) };
        let rest = SlotMemory { start, length: self.length - at, _buffer: Arc::clone(&self._buffer) };
        self.length = at;
        rest
    }

    /// Gives the pages back to the system; the bytes are zero afterwards. Where that fails, the pages stay.
    fn discard(&mut self) {
        let buffer = Arc::clone(&self._buffer);
        let _ = buffer.discard_part(self);
    }

    /// Takes `next` back, the piece that begins where this one ends: the reverse of [`SlotMemory::split_off`].
    ///
    /// # Panics
    /// When `next` is not the neighbour, or of another buffer: pieces were mixed up.
    pub fn join(&mut self, next: SlotMemory) {
        let neighbour = self.start.addr().get() + self.length == next.start.addr().get();
        assert!(
            neighbour && Arc::ptr_eq(&self._buffer, &next._buffer),
            "only neighbours of one buffer can be joined"
        );
        // `start` was derived from the base of the whole buffer, and both parts belonged to their pieces alone: now to this one.
        self.length += next.length;
    }
}

impl Deref for SlotMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: start..start+length lies in the live, initialised buffer; `carve`, `split_off` and `join` keep each byte in
        // one piece only and nothing reaches them through `_buffer`, so `&self` excludes writers.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl DerefMut for SlotMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` excludes every other access to this piece.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

/// What a slot is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// Does not exist at present.
    Absent,
    /// Holds no record.
    Free,
    /// Its memory belongs to a read.
    Loading,
    /// Holds a whole, checked record that `pins` users may be reading.
    Resident {
        /// Users that may be reading.
        pins: u32,
    },
}

/// What can happen to a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotEvent {
    /// A read takes the memory.
    BeginLoad,
    /// The record is complete and checked.
    Land,
    /// The read failed or is not wanted any more; the memory is back.
    Abandon,
    /// A user starts to read the record.
    Pin,
    /// A user is done.
    Unpin,
    /// The record gives way.
    Evict,
    /// The memory is given back.
    Retire,
    /// New memory is there.
    Restore,
}

/// The next state of a slot: the only place that says what is legal.
///
/// # Panics
/// For every pair that is not drawn in the module header, naming state and event: the store has lost count.
pub fn transition(state: SlotState, event: SlotEvent) -> SlotState {
    use SlotEvent::{Abandon, BeginLoad, Evict, Land, Pin, Restore, Retire, Unpin};
    use SlotState::{Absent, Free, Loading, Resident};
    match (state, event) {
        (Free, BeginLoad) => Loading,
        (Loading, Land) => Resident { pins: 0 },
        (Loading, Abandon) => Free,
        (Resident { pins }, Pin) if pins < u32::MAX => Resident { pins: pins + 1 },
        (Resident { pins }, Unpin) if pins > 0 => Resident { pins: pins - 1 },
        (Resident { pins: 0 }, Evict) => Free,
        (Free, Retire) => Absent,
        (Absent, Restore) => Free,
        (state, event) => panic!("slot event {event:?} is illegal in state {state:?}"),
    }
}

#[derive(Debug)]
struct Slot {
    state: SlotState,
    /// The record that is loading or resident.
    key: Option<ExpertKey>,
    /// There unless the slot is loading or absent. Never in a place.
    memory: Option<SlotMemory>,
}

/// All slots of a store.
#[derive(Debug)]
pub struct SlotTable {
    slots: Vec<Slot>,
    /// Whether the slots are places, without memory of their own.
    places: bool,
}

impl SlotTable {
    /// One free slot for each piece of memory.
    pub fn new(memory: Vec<SlotMemory>) -> Self {
        let free = |memory| Slot { state: SlotState::Free, key: None, memory: Some(memory) };
        Self { slots: memory.into_iter().map(free).collect(), places: false }
    }

    /// `count` free places.
    pub fn places(count: usize) -> Self {
        let free = || Slot { state: SlotState::Free, key: None, memory: None };
        Self { slots: std::iter::repeat_with(free).take(count).collect(), places: true }
    }

    /// Number of slots, absent ones included.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there is no slot at all.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// What `slot` is doing.
    pub fn state(&self, slot: usize) -> SlotState {
        self.slots[slot].state
    }

    /// The record that is loading into or resident in `slot`.
    pub fn key(&self, slot: usize) -> Option<ExpertKey> {
        self.slots[slot].key
    }

    /// Whether the record of `slot` may give way now.
    pub fn is_evictable(&self, slot: usize) -> bool {
        self.slots[slot].state == SlotState::Resident { pins: 0 }
    }

    /// Free -> Loading: hands the memory to the read of `key`; `None` for a place.
    pub fn begin_load(&mut self, slot: usize, key: ExpertKey) -> Option<SlotMemory> {
        let places = self.places;
        let slot = self.apply(slot, SlotEvent::BeginLoad);
        slot.key = Some(key);
        assert!(places || slot.memory.is_some(), "a free slot has its memory");
        slot.memory.take()
    }

    /// Loading -> Resident, unpinned: takes back the memory with the record in it.
    pub fn land(&mut self, slot: usize, memory: Option<SlotMemory>) {
        assert!(memory.is_none() == self.places, "a record lands with the memory it was read into");
        self.apply(slot, SlotEvent::Land).memory = memory;
    }

    /// Loading -> Free: takes back the memory of a read that gave no record.
    pub fn abandon(&mut self, slot: usize, memory: Option<SlotMemory>) {
        assert!(memory.is_none() == self.places, "memory comes back whatever the read gave");
        let slot = self.apply(slot, SlotEvent::Abandon);
        slot.key = None;
        slot.memory = memory;
    }

    /// Adds a user of the record in `slot`.
    pub fn pin(&mut self, slot: usize) {
        self.apply(slot, SlotEvent::Pin);
    }

    /// Removes a user of the record in `slot`.
    pub fn unpin(&mut self, slot: usize) {
        self.apply(slot, SlotEvent::Unpin);
    }

    /// Resident without users -> Free: returns the record that was there.
    pub fn evict(&mut self, slot: usize) -> ExpertKey {
        self.apply(slot, SlotEvent::Evict).key.take().expect("a resident slot has a key")
    }

    /// Gives the pages of a free slot back to the system; the slot keeps its address space and its charge.
    ///
    /// # Panics
    /// When the slot is not free.
    pub fn discard(&mut self, slot: usize) {
        let slot = &mut self.slots[slot];
        assert!(slot.state == SlotState::Free, "pages are given back in state {:?}", slot.state);
        if let Some(memory) = &mut slot.memory {
            memory.discard();
        }
    }

    /// Free -> Absent: gives the memory back.
    pub fn retire(&mut self, slot: usize) {
        self.apply(slot, SlotEvent::Retire).memory = None;
    }

    /// Absent -> Free, with new memory; `None` for a place. The slot after the last one is made first.
    pub fn restore(&mut self, slot: usize, memory: Option<SlotMemory>) {
        assert!(memory.is_none() == self.places, "a slot has memory, a place has none");
        if slot == self.slots.len() {
            self.slots.push(Slot { state: SlotState::Absent, key: None, memory: None });
        }
        self.apply(slot, SlotEvent::Restore).memory = memory;
    }

    /// The bytes of a record in use.
    ///
    /// # Panics
    /// When nobody has pinned the slot, or it is a place.
    pub fn record(&self, slot: usize) -> &[u8] {
        self.pinned(slot).memory.as_deref().expect("a resident slot has its memory")
    }

    /// The record in use in `slot`.
    ///
    /// # Panics
    /// When nobody has pinned the slot.
    pub fn pinned_key(&self, slot: usize) -> ExpertKey {
        self.pinned(slot).key.expect("a resident slot has a key")
    }

    fn pinned(&self, slot: usize) -> &Slot {
        let slot = &self.slots[slot];
        assert!(
            matches!(slot.state, SlotState::Resident { pins: 1.. }),
            "a record is read in state {:?} without a pin",
            slot.state
        );
        slot
    }

    fn apply(&mut self, slot: usize, event: SlotEvent) -> &mut Slot {
        let slot = &mut self.slots[slot];
        slot.state = transition(slot.state, event);
        slot
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENTS: [SlotEvent; 8] = [
        SlotEvent::BeginLoad,
        SlotEvent::Land,
        SlotEvent::Abandon,
        SlotEvent::Pin,
        SlotEvent::Unpin,
        SlotEvent::Evict,
        SlotEvent::Retire,
        SlotEvent::Restore,
    ];

    /// Every pair of state and event, against a table written by hand (`None` = illegal).
    #[test]
    fn every_pair_of_state_and_event_is_as_drawn() {
        use SlotState::{Absent, Free, Loading, Resident};
        let pins = |pins| Some(Resident { pins });
        let table: [(SlotState, [Option<SlotState>; 8]); 6] = [
            (Absent, [None, None, None, None, None, None, None, Some(Free)]),
            (Free, [Some(Loading), None, None, None, None, None, Some(Absent), None]),
            (Loading, [None, pins(0), Some(Free), None, None, None, None, None]),
            (Resident { pins: 0 }, [None, None, None, pins(1), None, Some(Free), None, None]),
            (Resident { pins: 1 }, [None, None, None, pins(2), pins(0), None, None, None]),
            (Resident { pins: u32::MAX }, [None, None, None, None, pins(u32::MAX - 1), None, None, None]),
        ];
        for (state, row) in table {
            for (event, wanted) in EVENTS.into_iter().zip(row) {
                let found = std::panic::catch_unwind(|| transition(state, event));
                match (wanted, found) {
                    (Some(wanted), Ok(found)) => assert_eq!(found, wanted, "{state:?} {event:?}"),
                    (None, Err(panic)) => {
                        let message = panic.downcast_ref::<String>().expect("a formatted message");
                        assert!(
                            message.contains(&format!("{state:?}"))
                                && message.contains(&format!("{event:?}"))
                        );
                    }
                    (wanted, found) => {
                        panic!("{state:?} {event:?}: wanted {wanted:?}, found {}", found.is_ok())
                    }
                }
            }
        }
    }
}
