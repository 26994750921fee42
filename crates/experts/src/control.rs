//! What others may ask of a store and see of it while it works.
//!
//! A store belongs to whoever computes with it. Others, on any thread, set how much memory its slots may take and read its
//! figures here; the store looks between two records and publishes at each forward pass. No lock, nothing waits.

use std::sync::atomic::{AtomicU64, Ordering};

use coldpress_memory::Bytes;

/// See the module header. Made by the store, see [`crate::ExpertStore::control`].
#[derive(Debug)]
pub struct StoreControl {
    target: AtomicU64,
    figures: [AtomicU64; Figure::COUNT],
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Figure {
    SlotBytes,
    Slots,
    Resident,
    ResidentBytes,
    Hits,
    Misses,
    BytesRead,
}

impl Figure {
    const COUNT: usize = Self::BytesRead as usize + 1;
}

/// The figures of a store at its latest forward pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct StoreFigures {
    /// Memory of all slots that exist.
    pub slot_bytes: Bytes,
    /// Slots that exist.
    pub slots: u64,
    /// Experts in memory.
    pub resident: u64,
    /// Bytes of these experts.
    pub resident_bytes: Bytes,
    /// Requested experts that were in memory.
    pub hits: u64,
    /// Requested experts that had to be read.
    pub misses: u64,
    /// Bytes of records that arrived.
    pub bytes_read: Bytes,
}

impl StoreControl {
    pub(crate) fn new(target: u64) -> Self {
        Self { target: AtomicU64::new(target), figures: Default::default() }
    }

    /// How much memory slots may take from now on. The store gives memory back before it uses the next record, and takes more
    /// between two layers; it keeps one slab in any case.
    pub fn set_target(&self, bytes: Bytes) {
        self.target.store(bytes.0, Ordering::Relaxed);
    }

    /// What was set last.
    pub fn target(&self) -> Bytes {
        Bytes(self.target.load(Ordering::Relaxed))
    }

    pub(crate) fn publish(&self, figure: Figure, value: u64) {
        self.figures[figure as usize].store(value, Ordering::Relaxed);
    }

    /// The figures of the latest forward pass. Published one after the other, so they may be of two.
    pub fn figures(&self) -> StoreFigures {
        let figure = |figure: Figure| self.figures[figure as usize].load(Ordering::Relaxed);
        StoreFigures {
            slot_bytes: Bytes(figure(Figure::SlotBytes)),
            slots: figure(Figure::Slots),
            resident: figure(Figure::Resident),
            resident_bytes: Bytes(figure(Figure::ResidentBytes)),
            hits: figure(Figure::Hits),
            misses: figure(Figure::Misses),
            bytes_read: Bytes(figure(Figure::BytesRead)),
        }
    }
}
