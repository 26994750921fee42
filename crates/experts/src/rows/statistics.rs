//! What a row store counts.

use serde::Serialize;

use super::latency::LatencyHistogram;

/// Counters since the store was opened. `asked = duplicates + hits + misses`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RowStatistics {
    /// Rows asked for.
    pub asked: u64,
    /// Those that the same request had asked for before.
    pub duplicates: u64,
    /// Those that were in the cache from earlier requests.
    pub hits: u64,
    /// Those that had to be read for the request.
    pub misses: u64,
    /// Reads begun before the request, when only the ids were known.
    pub prefetched: u64,
    /// Those of them whose row was there when it was asked for.
    pub prefetch_ready: u64,
    /// Rows that gave way to others.
    pub evictions: u64,
    /// Reads handed to the reader, further tries included.
    pub reads: u64,
    /// Bytes of rows that arrived.
    pub bytes_read: u64,
    /// Bytes asked of the device: whole blocks.
    pub device_bytes_read: u64,
    /// Further tries after short reads and transient errors.
    pub read_retries: u64,
    /// Time in which the caller could do nothing but wait for rows, in microseconds.
    pub wait_us: u64,
    /// From the begin of a read to its end, of reads that somebody waited for.
    pub latency: LatencyHistogram,
}

impl RowStatistics {
    /// Share of the distinct rows asked for that were in the cache; absent where none was asked for.
    pub fn hit_rate(&self) -> Option<f64> {
        let distinct = self.hits + self.misses;
        (distinct > 0).then(|| self.hits as f64 / distinct as f64)
    }

    /// Whether nothing was ever asked for or read.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Joins two readings counter by counter.
    #[must_use]
    pub(crate) fn with(&self, other: &Self, join: fn(u64, u64) -> u64) -> Self {
        Self {
            asked: join(self.asked, other.asked),
            duplicates: join(self.duplicates, other.duplicates),
            hits: join(self.hits, other.hits),
            misses: join(self.misses, other.misses),
            prefetched: join(self.prefetched, other.prefetched),
            prefetch_ready: join(self.prefetch_ready, other.prefetch_ready),
            evictions: join(self.evictions, other.evictions),
            reads: join(self.reads, other.reads),
            bytes_read: join(self.bytes_read, other.bytes_read),
            device_bytes_read: join(self.device_bytes_read, other.device_bytes_read),
            read_retries: join(self.read_retries, other.read_retries),
            wait_us: join(self.wait_us, other.wait_us),
            latency: self.latency.with(&other.latency, join),
        }
    }
}
