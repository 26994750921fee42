//! Measures a reader on a file: random or sequential reads of one size at one depth, with the latency of each.
//!
//! Figures must be those of the device. Direct reads pass the page cache by; for buffered ones every range is dropped before
//! it is read, and what the page cache holds all the same is counted, so that the caller can refuse the figure.
//! Chooses nothing; the library's disk report and tuning do.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use coldpress_memory::sys;
use coldpress_memory::{Ledger, Purpose};

use super::{Completion, ExpertReader, ReadRequest};
use crate::error::ExpertError;
use crate::slots::SlotMemory;
use crate::source::{FileAccess, ReadFile};

/// What to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeWork {
    /// Bytes of a record: a multiple of `parts` blocks of 4096.
    pub record_bytes: usize,
    /// Parallel reads that a record is cut into.
    pub parts: usize,
    /// Records in flight.
    pub records: usize,
    /// Reads are started for this long; those in flight are waited for.
    pub time: Duration,
}

/// What was measured.
#[derive(Clone, Debug, Default)]
pub struct Probed {
    /// Bytes that arrived.
    pub bytes: u64,
    /// From the first submission to the last completion.
    pub elapsed: Duration,
    /// Latency of each record in microseconds, ascending.
    pub latencies_us: Vec<f64>,
    /// Bytes that the page cache held although they had been dropped just before they were read.
    pub cached_bytes: u64,
}

impl Probed {
    /// Bytes per second; 0 when nothing was read.
    pub fn rate(&self) -> f64 {
        self.bytes as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// The latency that the share `quantile` of records stays within, in microseconds.
    pub fn latency_us(&self, quantile: f64) -> f64 {
        let last = self.latencies_us.len().saturating_sub(1);
        self.latencies_us.get((last as f64 * quantile).round() as usize).copied().unwrap_or(0.0)
    }
}

/// Memory of a probe, touched, so that no read pays for that.
///
/// # Errors
/// The ledger has too little left.
pub fn probe_memory(
    ledger: &Ledger,
    purpose: Purpose,
    work: ProbeWork,
) -> Result<Vec<SlotMemory>, ExpertError> {
    let parts = vec![work.record_bytes / work.parts; work.records * work.parts];
    let mut memory = SlotMemory::carve(ledger, purpose, &parts)?;
    memory.iter_mut().for_each(|piece| piece.fill(1));
    Ok(memory)
}

/// Reads records at the offsets that `next_offset` gives (multiples of 4096, the record within the file) into `memory`, at
/// least `records × parts` pieces of a part each, which comes back.
///
/// # Errors
/// A read fails or ends early; the reader is broken.
///
/// # Panics
/// When memory or capacity is too small for the work.
pub fn probe(
    reader: &mut dyn ExpertReader,
    file: &Arc<ReadFile>,
    memory: &mut Vec<SlotMemory>,
    work: ProbeWork,
    next_offset: &mut dyn FnMut() -> u64,
) -> Result<Probed, ExpertError> {
    let ProbeWork { record_bytes, parts, records, time } = work;
    assert!(reader.capacity() >= records * parts && memory.len() >= records * parts, "room for the probe");
    let failed =
        |offset, source| ExpertError::Io { action: "read", path: file.path().to_owned(), offset, source };
    let part_bytes = record_bytes / parts;
    let mut found = Probed::default();
    // Per record in flight: when it was started, and the reads that have not ended.
    let mut running = vec![(Instant::now(), 0_usize); records];
    let mut idle: Vec<usize> = (0..records).rev().collect();
    let (mut requests, mut completions) = (Vec::new(), Vec::<Completion>::new());
    let mut broken = None;
    let started = Instant::now();
    loop {
        while started.elapsed() < time && broken.is_none() {
            let Some(record) = idle.pop() else { break };
            let offset = next_offset();
            if file.access() != FileAccess::Direct {
                let range = offset..offset + record_bytes as u64;
                sys::drop_page_cache(file.file(), range.clone()).map_err(|source| failed(offset, source))?;
                found.cached_bytes += sys::page_cache_bytes_of(file.file(), range).map_or(0, |bytes| bytes.0);
            }
            running[record] = (Instant::now(), parts);
            requests.extend((0..parts).map(|part| ReadRequest {
                ticket: (record * parts + part) as u64,
                file: Arc::clone(file),
                offset: offset + (part * part_bytes) as u64,
                length: part_bytes,
                needed: part_bytes,
                filled: 0,
                memory: memory.pop().expect("pieces for every read in flight"),
            }));
        }
        let reader_name = reader.name();
        let down = |source| ExpertError::Reader { reader: reader_name, source };
        reader.submit(&mut requests).map_err(down)?;
        if reader.in_flight() == 0 {
            break;
        }
        reader.reap(true, &mut completions).map_err(down)?;
        for Completion { request, result } in completions.drain(..) {
            match result {
                Ok(bytes) if bytes == request.length => found.bytes += bytes as u64,
                Ok(_) => broken = Some(failed(request.offset, io::ErrorKind::UnexpectedEof.into())),
                Err(source) => broken = Some(failed(request.offset, source)),
            }
            request.file.drop_pages(request.offset..request.offset + request.length as u64);
            let record = request.ticket as usize / parts;
            memory.push(request.memory);
            running[record].1 -= 1;
            if running[record].1 == 0 {
                found.latencies_us.push(running[record].0.elapsed().as_secs_f64() * 1e6);
                idle.push(record);
            }
        }
    }
    found.elapsed = started.elapsed();
    found.latencies_us.sort_unstable_by(f64::total_cmp);
    broken.map_or(Ok(found), Err)
}
