//! The row store: reads rows of tables when their ids are known, and hands them out when they are needed.
//!
//! [`RowStore::prefetch`] begins as many reads as reader and cache have room for and never waits; [`RowStore::fetch`] waits
//! for what is missing. Reads are direct, one per row, as small as the device allows; each lands in a staging place of its own
//! and its row is copied into the cache. One slot is enough for any request: rows are copied out as they come.
//! All memory is taken at open and charged to [`Purpose::RowCache`]; afterwards nothing here allocates.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use coldpress_formats::SourceFile;
use coldpress_kernels::WeightFormat;
use coldpress_memory::{Buffer, Bytes, Ledger, MemoryError, Purpose, Reservation, sys};

use super::cache::{Announced, RowCache, RowOrder, State};
use super::latency::LatencyHistogram;
use super::statistics::RowStatistics;
use super::table::{OpenTable, RowTable};
use crate::error::ExpertError;
use crate::geometry::RECORD_ALIGNMENT;
use crate::reader::{Finished, ReadQueue, ReadRequest, ReaderChoice, open_reader};
use crate::slots::SlotMemory;
use crate::source::ReadFile;

/// Reads in flight: rows are so small that only many at once keep a fast disk busy.
pub const READS_DEFAULT: usize = 64;

/// Smallest unit of a direct read, if the device has none that is larger.
const BLOCK_BYTES_MIN: u64 = 512;

/// What a [`RowStore`] is made of.
pub struct RowStoreConfig {
    /// The tables; requests name them by position.
    pub tables: Vec<RowTable>,
    /// The model files, in the numbering of [`RowShard::file`](super::RowShard). Those without rows are not opened.
    pub files: Vec<SourceFile>,
    /// Pays for everything.
    pub ledger: Ledger,
    /// What the store may hold, at least [`row_store_bytes_minimum`]; see [`row_store_bytes`].
    pub bytes: Bytes,
    /// How to read.
    pub reader: ReaderChoice,
    /// Which row gives way.
    pub order: RowOrder,
}

/// Bytes between two rows in the cache.
fn stride(tables: &[RowTable]) -> usize {
    tables.iter().map(RowTable::row_bytes).max().unwrap_or(0)
}

/// Bytes of the staging place of one read.
fn staging_bytes(tables: &[RowTable]) -> usize {
    stride(tables).next_multiple_of(RECORD_ALIGNMENT) + RECORD_ALIGNMENT
}

/// What a store of `slots` rows holds.
pub fn row_store_bytes(tables: &[RowTable], slots: usize) -> Bytes {
    let page = sys::page_size();
    let pages = |bytes: usize| bytes.next_multiple_of(page);
    let rows = slots.saturating_mul(stride(tables));
    Bytes((pages(READS_DEFAULT * staging_bytes(tables)) + pages(rows) + pages(RowCache::bytes(slots))) as u64)
}

/// The least that a store holds: room for as many rows as are read at once.
pub fn row_store_bytes_minimum(tables: &[RowTable]) -> Bytes {
    row_store_bytes(tables, READS_DEFAULT)
}

/// Most rows for which a store stays within `bytes`, but not more than the tables have.
fn slots_in(tables: &[RowTable], bytes: Bytes) -> usize {
    let rows = tables.iter().fold(0, |sum: u64, table| sum.saturating_add(table.rows()));
    let most = usize::try_from(rows).unwrap_or(usize::MAX).min(u32::MAX as usize / 4).max(READS_DEFAULT);
    let (mut fits, mut too_many) = (0, most + 1);
    while too_many - fits > 1 {
        let middle = fits + (too_many - fits) / 2;
        if row_store_bytes(tables, middle) <= bytes { fits = middle } else { too_many = middle }
    }
    fits
}

/// A read in flight.
#[derive(Clone, Copy, Debug)]
struct Load {
    slot: usize,
    /// First byte of the row in the staging place.
    start: usize,
    began: Instant,
}

/// See the module header.
pub struct RowStore {
    tables: Vec<OpenTable>,
    queue: ReadQueue,
    cache: RowCache,
    /// The rows of the cache as they are stored, `stride` bytes each.
    rows: Buffer,
    stride: usize,
    staging: Vec<Option<SlotMemory>>,
    loads: Vec<Load>,
    /// Numbers of staging places that are not in use.
    idle: Vec<usize>,
    finished: Vec<Finished>,
    /// Number of the running request.
    request: u32,
    /// The row that is waited for, and why it could not be read.
    wanted: u64,
    failure: Option<ExpertError>,
    statistics: RowStatistics,
    notices: Vec<String>,
    _books: Reservation,
}

fn key(table: usize, row: u64) -> u64 {
    (table as u64) << 40 | row
}

impl RowStore {
    /// Opens the files that hold rows, makes the reader and takes all memory.
    ///
    /// # Errors
    /// A file that is missing or too short (with tensor and row); rows in a format that cannot be looked up; no room.
    pub fn open(config: RowStoreConfig) -> Result<Self, ExpertError> {
        let slots = slots_in(&config.tables, config.bytes);
        if slots == 0 {
            let minimum = row_store_bytes_minimum(&config.tables);
            let detail = format!("{} are too little for a row store; {minimum} work", config.bytes);
            return Err(ExpertError::Configuration(detail));
        }
        let mut files: BTreeMap<PathBuf, Arc<ReadFile>> = BTreeMap::new();
        let mut open = |index: usize| {
            let missing = || format!("rows lie in file {index}, but there are {}", config.files.len());
            let file = config.files.get(index).ok_or_else(|| ExpertError::Configuration(missing()))?;
            match files.entry(file.path.clone()) {
                Entry::Occupied(known) => Ok(known.get().clone()),
                Entry::Vacant(vacant) => ReadFile::open(&file.path).map(|file| vacant.insert(file).clone()),
            }
        };
        let tables = config.tables.iter().map(|table| OpenTable::new(table, &mut open));
        let tables = tables.collect::<Result<Vec<_>, _>>()?;
        let (reader, notice) = open_reader(config.reader, READS_DEFAULT)?;
        let reads = READS_DEFAULT.min(reader.capacity());
        let stride = stride(&config.tables);
        let staging = vec![staging_bytes(&config.tables); reads];
        let staging = SlotMemory::carve(&config.ledger, Purpose::RowCache, &staging)?;
        let books = Bytes(RowCache::bytes(slots).next_multiple_of(sys::page_size()) as u64);
        let load = Load { slot: 0, start: 0, began: Instant::now() };
        Ok(Self {
            rows: Buffer::new(&config.ledger, Purpose::RowCache, Bytes((slots * stride) as u64))?,
            _books: config.ledger.reserve(Purpose::RowCache, books).map_err(MemoryError::from)?,
            cache: RowCache::new(slots, config.order),
            queue: ReadQueue::new(reader, reads),
            staging: staging.into_iter().map(Some).collect(),
            loads: vec![load; reads],
            idle: (0..reads).rev().collect(),
            finished: Vec::with_capacity(reads),
            request: 0,
            wanted: u64::MAX,
            failure: None,
            statistics: RowStatistics::default(),
            notices: notice.into_iter().collect(),
            tables,
            stride,
        })
    }

    /// Second choices that had to be taken at open, one line each, for the log.
    pub fn notices(&self) -> &[String] {
        &self.notices
    }

    /// Counters since the store was opened.
    pub fn statistics(&self) -> RowStatistics {
        let read = self.queue.statistics();
        RowStatistics {
            evictions: self.cache.evictions,
            reads: read.reads,
            device_bytes_read: read.device_bytes,
            read_retries: read.retries,
            wait_us: read.wait_us,
            ..self.statistics
        }
    }

    /// A forward pass begins: rows that were announced for the one before are spared no longer.
    pub fn begin_pass(&mut self) {
        self.cache.begin_pass();
    }

    /// Begins to read `rows` of table `table`, which will be asked for in this pass, from the first one on, as far as there is
    /// room at this moment; returns how many were begun or are there. Never waits. What fails is read again when it is
    /// asked for.
    ///
    /// # Errors
    /// A row or a table that does not exist; a reader that is broken as a whole.
    pub fn prefetch(&mut self, table: usize, rows: &[u32]) -> Result<usize, ExpertError> {
        self.land(false)?;
        let before = self.statistics.prefetched;
        let taken = self.begin_leading(table, rows, Announced::ForThePass)?;
        if self.statistics.prefetched > before {
            self.queue.submit()?;
        }
        Ok(taken)
    }

    /// Copies `rows` of table `table` as f32 into `out`, `[rows.len(), columns]`, in the order given; a row may be named
    /// more than once.
    ///
    /// # Errors
    /// A row that cannot be read, by file, tensor and number; what [`RowStore::prefetch`] reports.
    ///
    /// # Panics
    /// `out` has another length.
    pub fn fetch(&mut self, table: usize, rows: &[u32], out: &mut [f32]) -> Result<(), ExpertError> {
        let no_table = || ExpertError::NoSuchRow { table: format!("table {table}"), row: 0, rows: 0 };
        let open = self.tables.get(table).ok_or_else(no_table)?;
        let (format, columns, row_bytes) = (open.table.format, open.table.columns, open.table.row_bytes());
        assert_eq!(out.len(), rows.len() * columns, "rows of {columns} values");
        self.request = self.request.wrapping_add(1).max(1);
        let mut ahead = 0;
        for (at, (&row, out)) in rows.iter().zip(out.chunks_exact_mut(columns)).enumerate() {
            ahead = ahead.max(at);
            ahead += self.begin_leading(table, &rows[ahead..], Announced::ForTheRequest)?;
            let slot = self.resident(table, u64::from(row))?;
            self.hand_out(slot);
            let from = slot * self.stride;
            widen(format, &self.rows.as_bytes()[from..from + row_bytes], out);
        }
        Ok(())
    }

    /// Values of a row of table `table`.
    pub fn columns(&self, table: usize) -> usize {
        self.tables[table].table.columns
    }

    fn begin_leading(
        &mut self,
        table: usize,
        rows: &[u32],
        announced: Announced,
    ) -> Result<usize, ExpertError> {
        let mut taken = 0;
        for &row in rows {
            let key = key(table, u64::from(row));
            match self.cache.find(key) {
                Some(slot) => self.cache.spare(slot, announced),
                None if !self.cache.may_spare(announced) => break,
                None => {
                    if !self.begin(table, u64::from(row), announced, false)? {
                        break;
                    }
                }
            }
            taken += 1;
        }
        Ok(taken)
    }

    /// Begins to read a row that no slot has; `false` where there is no room now.
    fn begin(
        &mut self,
        table: usize,
        row: u64,
        announced: Announced,
        at_any_price: bool,
    ) -> Result<bool, ExpertError> {
        let no_table = || ExpertError::NoSuchRow { table: format!("table {table}"), row, rows: 0 };
        let open = self.tables.get(table).ok_or_else(no_table)?;
        let (file, offset) = open.place(row)?;
        if self.queue.room() == 0 || self.idle.is_empty() {
            return Ok(false);
        }
        let Some(slot) = self.cache.place(key(table, row), at_any_price) else { return Ok(false) };
        let end = offset + open.table.row_bytes() as u64;
        let block = match file.io().is_direct() {
            true => u64::from(file.io().alignment()).max(BLOCK_BYTES_MIN),
            // Only whole pages can be given back to the system.
            false => RECORD_ALIGNMENT as u64,
        };
        let first = offset / block * block;
        let ticket = self.idle.pop().expect("checked above");
        let request = ReadRequest {
            ticket: ticket as u64,
            file: file.clone(),
            offset: first,
            length: (end.next_multiple_of(block) - first) as usize,
            needed: (end - first) as usize,
            filled: 0,
            memory: self.staging[ticket].take().expect("an idle place has its memory"),
        };
        self.loads[ticket] = Load { slot, start: (offset - first) as usize, began: Instant::now() };
        self.queue.push(request);
        let ahead = announced == Announced::ForThePass;
        self.cache.slot_mut(slot).ahead = ahead;
        self.cache.spare(slot, announced);
        self.statistics.prefetched += u64::from(ahead);
        Ok(true)
    }

    /// The slot of a row that is there, however long that takes.
    fn resident(&mut self, table: usize, row: u64) -> Result<usize, ExpertError> {
        let key = key(table, row);
        self.wanted = key;
        self.failure = None;
        let mut looks = 0;
        loop {
            match self.cache.find(key) {
                Some(slot) if self.cache.slot(slot).state == State::Resident => {
                    let state = self.cache.slot(slot);
                    self.statistics.prefetch_ready += u64::from(state.fresh && state.ahead && looks < 2);
                    return Ok(slot);
                }
                Some(_) => self.land(looks > 0)?,
                None => {
                    if let Some(error) = self.failure.take() {
                        return Err(self.tables[table].table.row_error(row, error));
                    }
                    if !self.begin(table, row, Announced::ForTheRequest, true)? {
                        self.land(true)?;
                    }
                }
            }
            looks += 1;
        }
    }

    fn hand_out(&mut self, slot: usize) {
        self.statistics.asked += 1;
        let request = self.request;
        let state = self.cache.slot_mut(slot);
        let repeated = !state.fresh && state.request == request;
        let read = std::mem::take(&mut state.fresh);
        state.request = request;
        if repeated {
            self.statistics.duplicates += 1;
            return;
        }
        self.statistics.misses += u64::from(read);
        self.statistics.hits += u64::from(!read);
        self.cache.used(slot);
    }

    /// Takes in the rows that have arrived; with `wait` at least one, if any is on its way.
    fn land(&mut self, wait: bool) -> Result<(), ExpertError> {
        if self.queue.in_flight() == 0 {
            return Ok(());
        }
        self.queue.reap(wait, &mut self.finished)?;
        while let Some(Finished { request, result }) = self.finished.pop() {
            let ticket = request.ticket as usize;
            let Load { slot, start, began } = self.loads[ticket];
            match result {
                Ok(()) => {
                    let row_bytes = request.needed - start;
                    let to = slot * self.stride;
                    let row = &request.memory[start..request.needed];
                    self.rows.as_bytes_mut()[to..to + row_bytes].copy_from_slice(row);
                    self.cache.slot_mut(slot).state = State::Resident;
                    self.statistics.bytes_read += row_bytes as u64;
                    if wait {
                        self.statistics.latency.add(began.elapsed().as_micros() as u64);
                    }
                }
                Err(error) => {
                    if self.cache.slot(slot).key == self.wanted {
                        self.failure = Some(error);
                    }
                    self.cache.abandon(slot);
                }
            }
            self.staging[ticket] = Some(request.memory);
            self.idle.push(ticket);
        }
        Ok(())
    }

    /// Times from the begin of a read to its end, of reads that somebody waited for.
    pub fn latency(&self) -> &LatencyHistogram {
        &self.statistics.latency
    }
}

/// The values of a row as f32; every F16 and BF16 value is one.
fn widen(format: WeightFormat, row: &[u8], out: &mut [f32]) {
    let halves = row.as_chunks::<2>().0.iter();
    match format {
        WeightFormat::F16 => {
            halves.zip(out).for_each(|(half, out)| *out = half::f16::from_le_bytes(*half).to_f32());
        }
        WeightFormat::BF16 => {
            halves.zip(out).for_each(|(half, out)| *out = half::bf16::from_le_bytes(*half).to_f32());
        }
        _ => {
            let values = row.as_chunks::<4>().0.iter();
            values.zip(out).for_each(|(value, out)| *out = f32::from_le_bytes(*value));
        }
    }
}
