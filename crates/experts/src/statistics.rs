//! What an expert store counts, and sums and differences of it. Who counts: `store.rs`, `reading.rs`, `ahead.rs`.

use crate::rows::RowStatistics;

/// Counters since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ExpertStatistics {
    /// Requested experts that were in memory.
    pub hits: u64,
    /// Requested experts that had to be read.
    pub misses: u64,
    /// Records that gave way to others.
    pub evictions: u64,
    /// Reads handed to the reader, further tries included.
    pub reads: u64,
    /// Bytes of records or source matrices that arrived, without alignment.
    pub bytes_read: u64,
    /// Bytes asked of the device, alignment and further tries included.
    pub device_bytes_read: u64,
    /// Further tries after short reads and transient errors.
    pub read_retries: u64,
    /// Records read again because their check failed.
    pub records_read_again: u64,
    /// Records taken from a pack that is being filled.
    pub lazy_reads: u64,
    /// Records written to it.
    pub lazy_writes: u64,
    /// Records begun before a router asked for them.
    pub prefetched: u64,
    /// Bytes begun of these records.
    pub prefetched_bytes: u64,
    /// Those of them that the router of the next layer asked for.
    pub prefetch_used: u64,
    /// Bytes that had been begun of these.
    pub prefetch_used_bytes: u64,
    /// Time in which the caller could do nothing but wait for the disk, in microseconds.
    pub disk_wait_us: u64,
    /// Time spent on verifying and arranging records, in microseconds.
    pub arrange_us: u64,
    /// Rows of tables on disk; absent where there are none.
    #[serde(skip_serializing_if = "RowStatistics::is_empty")]
    pub rows: RowStatistics,
}

impl ExpertStatistics {
    /// What was counted by both: `self` and another store's.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        self.with(other, u64::saturating_add)
    }

    /// What was counted after `earlier`, another reading of the same store.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        self.with(earlier, u64::saturating_sub)
    }

    fn with(&self, other: &Self, join: fn(u64, u64) -> u64) -> Self {
        Self {
            hits: join(self.hits, other.hits),
            misses: join(self.misses, other.misses),
            evictions: join(self.evictions, other.evictions),
            reads: join(self.reads, other.reads),
            bytes_read: join(self.bytes_read, other.bytes_read),
            device_bytes_read: join(self.device_bytes_read, other.device_bytes_read),
            read_retries: join(self.read_retries, other.read_retries),
            records_read_again: join(self.records_read_again, other.records_read_again),
            lazy_reads: join(self.lazy_reads, other.lazy_reads),
            lazy_writes: join(self.lazy_writes, other.lazy_writes),
            prefetched: join(self.prefetched, other.prefetched),
            prefetched_bytes: join(self.prefetched_bytes, other.prefetched_bytes),
            prefetch_used: join(self.prefetch_used, other.prefetch_used),
            prefetch_used_bytes: join(self.prefetch_used_bytes, other.prefetch_used_bytes),
            disk_wait_us: join(self.disk_wait_us, other.disk_wait_us),
            arrange_us: join(self.arrange_us, other.arrange_us),
            rows: self.rows.with(&other.rows, join),
        }
    }
}
