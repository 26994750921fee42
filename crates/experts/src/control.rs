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
    RowsAsked,
    RowHits,
    RowMisses,
    RowBytesRead,
    RowWait,
    RowLatencyP50,
    RowLatencyP99,
}

impl Figure {
    const COUNT: usize = Self::RowLatencyP99 as usize + 1;
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
    /// Rows of tables on disk; absent where none was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows: Option<RowFigures>,
}

/// What was looked up in tables on disk; see [`RowStatistics`](crate::RowStatistics).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct RowFigures {
    /// Rows asked for.
    pub asked: u64,
    /// Distinct rows of a request that were in the cache.
    pub hits: u64,
    /// Those that were read.
    pub misses: u64,
    /// Bytes of rows that arrived.
    pub bytes_read: Bytes,
    /// Time in which nothing could be computed for want of rows, in microseconds.
    pub wait_us: u64,
    /// Time within which half of the reads that somebody waited for were over, in microseconds.
    pub p50_us: u64,
    /// The same for 99 of 100.
    pub p99_us: u64,
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
            rows: Some(figure(Figure::RowsAsked)).filter(|asked| *asked > 0).map(|asked| RowFigures {
                asked,
                hits: figure(Figure::RowHits),
                misses: figure(Figure::RowMisses),
                bytes_read: Bytes(figure(Figure::RowBytesRead)),
                wait_us: figure(Figure::RowWait),
                p50_us: figure(Figure::RowLatencyP50),
                p99_us: figure(Figure::RowLatencyP99),
            }),
        }
    }
}
