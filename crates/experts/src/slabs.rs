//! Slabs: slots come and go in groups, each with one piece of memory of its own.
//!
//! A group is small beside all slots, so that the store can give back about what is asked for, and large enough for huge
//! pages. Its bytes are charged to the ledger while it exists: by its buffer, or, for places in a mapped file, by a
//! reservation. Knows nothing of records; `resize` decides which slabs go and come.

use std::ops::Range;
use std::sync::{Arc, Weak};

use coldpress_memory::{Buffer, Bytes, Ledger, MemoryError, Purpose, Reservation};

use crate::slots::SlotMemory;

/// Slabs that a store begins with, where they are not too large.
const SLABS: usize = 16;
const SLAB_BYTES_MAX: usize = 64 << 20;

/// What a slab is at present.
#[derive(Debug)]
enum Held {
    Nothing,
    /// Slots with memory; the pieces keep it alive and charged.
    Memory,
    /// Places in a mapped file.
    Places(#[expect(dead_code, reason = "held for its drop")] Reservation),
}

#[derive(Debug)]
pub(crate) struct Slab {
    pub slots: Range<usize>,
    bytes: u64,
    held: Held,
}

impl Slab {
    pub fn is_present(&self) -> bool {
        !matches!(self.held, Held::Nothing)
    }
}

/// A slab that came into being.
pub(crate) struct Restored {
    pub slots: Range<usize>,
    /// One piece for each slot; none for places.
    pub memory: Vec<SlotMemory>,
}

/// All slabs of a store.
#[derive(Debug)]
pub(crate) struct Slabs {
    ledger: Ledger,
    list: Vec<Slab>,
    /// Bytes of all slabs that exist.
    bytes: u64,
    /// Bytes of a slot that comes later.
    slot_bytes: usize,
    slots_per_slab: usize,
    /// Whether slots are places, without memory of their own.
    places: bool,
}

impl Slabs {
    /// No slab yet. `total` is what the store begins with; `places` says that slots have no memory of their own.
    pub fn new(ledger: &Ledger, slot_bytes: usize, total: usize, places: bool) -> Self {
        let slab_bytes = (total / SLABS).min(SLAB_BYTES_MAX);
        let slots_per_slab = (slab_bytes / slot_bytes.max(1)).max(1);
        Self { ledger: ledger.clone(), list: Vec::new(), bytes: 0, slot_bytes, slots_per_slab, places }
    }

    /// Adds slabs for slots of these lengths. Returns their memory in order; nothing for places.
    ///
    /// # Errors
    /// When the ledger has too little left, or the system refuses the memory.
    pub fn begin_with(&mut self, lengths: &[usize]) -> Result<Vec<SlotMemory>, MemoryError> {
        let mut all = Vec::with_capacity(lengths.len());
        for lengths in lengths.chunks(self.slots_per_slab) {
            let first = self.list.last().map_or(0, |slab| slab.slots.end);
            let slab = Slab { slots: first..first + lengths.len(), bytes: 0, held: Held::Nothing };
            self.list.push(slab);
            all.extend(self.fill(self.list.len() - 1, lengths)?);
        }
        Ok(all)
    }

    fn fill(&mut self, index: usize, lengths: &[usize]) -> Result<Vec<SlotMemory>, MemoryError> {
        let slab = &mut self.list[index];
        let mut memory = Vec::new();
        if self.places {
            slab.bytes = lengths.iter().map(|length| *length as u64).sum();
            slab.held = Held::Places(self.ledger.reserve(Purpose::ExpertSlots, Bytes(slab.bytes))?);
        } else {
            memory = SlotMemory::carve(&self.ledger, Purpose::ExpertSlots, lengths)?;
            slab.bytes = memory.iter().map(|piece| piece.len() as u64).sum();
            slab.held = Held::Memory;
        }
        self.bytes += slab.bytes;
        Ok(memory)
    }

    /// Bytes of a slot that comes later, at least those of any slot.
    pub fn slot_bytes(&self) -> u64 {
        self.slot_bytes as u64
    }

    /// Whether slots are places, without memory of their own.
    pub fn are_places(&self) -> bool {
        self.places
    }

    /// Bytes of all slabs that exist.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Slots that exist.
    pub fn slots(&self) -> usize {
        self.present().map(|(_, slab)| slab.slots.len()).sum()
    }

    /// The slabs that exist, with their numbers.
    pub fn present(&self) -> impl Iterator<Item = (usize, &Slab)> {
        self.list.iter().enumerate().filter(|(_, slab)| slab.is_present())
    }

    /// The slots of slab `index`.
    pub fn slots_of(&self, index: usize) -> Range<usize> {
        self.list[index].slots.clone()
    }

    /// What the slots are charged to.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Slab `index` is given back. The caller has retired its slots.
    pub fn give_back(&mut self, index: usize) {
        self.bytes -= self.list[index].bytes;
        self.list[index].held = Held::Nothing;
    }

    /// Bytes of the slab that would come next, unless there are `slots_max` slots already.
    pub fn next_bytes(&self, slots_max: usize) -> Option<u64> {
        let slots = self.next_slots(slots_max)?;
        Some(slots.len() as u64 * self.slot_bytes as u64)
    }

    fn next_slots(&self, slots_max: usize) -> Option<Range<usize>> {
        let room = slots_max.checked_sub(self.slots()).filter(|room| *room > 0)?;
        if let Some(slab) = self.list.iter().find(|slab| !slab.is_present()) {
            return Some(slab.slots.clone());
        }
        let first = self.list.last().map_or(0, |slab| slab.slots.end);
        Some(first..first + self.slots_per_slab.min(room))
    }

    /// Brings the next slab into being: its slots and, unless they are places, their memory.
    ///
    /// # Errors
    /// As [`Slabs::begin_with`]; nothing has changed then.
    pub fn restore(&mut self, slots_max: usize) -> Result<Option<Restored>, MemoryError> {
        let Some(slots) = self.next_slots(slots_max) else { return Ok(None) };
        let index = self.list.iter().position(|slab| slab.slots == slots).unwrap_or(self.list.len());
        if index == self.list.len() {
            self.list.push(Slab { slots: slots.clone(), bytes: 0, held: Held::Nothing });
        }
        let memory = self.fill(index, &vec![self.slot_bytes; slots.len()])?;
        Ok(Some(Restored { slots, memory }))
    }

    /// The buffers behind `memory`, each once, in order, without keeping them alive.
    pub fn buffers(memory: &[SlotMemory]) -> Vec<Weak<Buffer>> {
        let mut buffers: Vec<Weak<Buffer>> = Vec::new();
        for buffer in memory.iter().map(SlotMemory::buffer) {
            let buffer = Arc::downgrade(&buffer);
            if !buffers.last().is_some_and(|last| last.ptr_eq(&buffer)) {
                buffers.push(buffer);
            }
        }
        buffers
    }
}
