//! Sequential reads of dense tensors, in pieces of whole rows and bounded memory.
//!
//! Two pieces of memory take turns: while the callback has one, the next is being read. Like every read of coldpress these
//! go past the page cache where the system allows it.

use std::sync::Arc;

use coldpress_formats::SourceFile;
use coldpress_memory::{Ledger, Purpose};

use crate::error::ExpertError;
use crate::geometry::RECORD_ALIGNMENT;
use crate::reader::{Finished, ReadQueue, ReadRequest, ReadStatistics, ReaderChoice, open_reader};
use crate::slots::SlotMemory;
use crate::source::{ReadFile, aligned};

/// The bytes of a tensor: `rows` rows of `row_bytes` bytes, one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorRange {
    /// Index into the files of the stream.
    pub file: usize,
    /// First byte of row 0.
    pub offset: u64,
    /// Number of rows.
    pub rows: u64,
    /// Bytes of one row.
    pub row_bytes: u64,
    /// Every piece but the last has a multiple of this many rows (1 = any number).
    pub rows_multiple: u64,
}

/// Reads tensors of the model files. Holds two pieces of memory, whatever the tensors' size.
pub struct TensorStream {
    files: Vec<Arc<ReadFile>>,
    queue: ReadQueue,
    /// Memory that no read is using.
    idle: Vec<SlotMemory>,
    finished: Vec<Finished>,
    piece_bytes: usize,
}

impl TensorStream {
    /// Opens the files and reserves two pieces of `piece_bytes` bytes (plus alignment) as [`Purpose::ReadRing`].
    ///
    /// # Errors
    /// When a file cannot be opened or the budget has no room.
    pub fn open(
        files: &[SourceFile],
        reader: ReaderChoice,
        ledger: &Ledger,
        piece_bytes: usize,
    ) -> Result<Self, ExpertError> {
        let files = files.iter().map(|file| ReadFile::open(&file.path)).collect::<Result<Vec<_>, _>>()?;
        let (reader, _) = open_reader(reader, 2)?;
        // A piece may start and end inside a block.
        let idle = SlotMemory::carve(ledger, Purpose::ReadRing, &[piece_bytes + 2 * RECORD_ALIGNMENT; 2])?;
        Ok(Self {
            files,
            queue: ReadQueue::new(reader, 2),
            idle,
            finished: Vec::with_capacity(2),
            piece_bytes,
        })
    }

    /// Counters of the reads.
    pub fn statistics(&self) -> ReadStatistics {
        self.queue.statistics()
    }

    /// Hands `each_piece(first_row, bytes)` all rows of `tensor`, in order. The bytes may be changed in place.
    ///
    /// # Errors
    /// [`ExpertError::Truncated`] when the tensor reaches past its file, [`ExpertError::Configuration`] when
    /// `rows_multiple` rows do not fit in a piece, read errors, and what `each_piece` returns.
    pub fn each_piece<E: From<ExpertError>>(
        &mut self,
        tensor: &TensorRange,
        mut each_piece: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let rows_per_piece = self.rows_per_piece(tensor)?;
        let piece_count = tensor.rows.div_ceil(rows_per_piece);
        // Also when `each_piece` fails: memory that is still being read into comes back before anyone returns.
        let streamed = self.stream(tensor, rows_per_piece, piece_count, &mut each_piece);
        let drained = self.drain();
        streamed?;
        Ok(drained?)
    }

    fn stream<E: From<ExpertError>>(
        &mut self,
        tensor: &TensorRange,
        rows_per_piece: u64,
        piece_count: u64,
        each_piece: &mut impl FnMut(u64, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut started = 0;
        for piece in 0..piece_count {
            while started < piece_count && started < piece + 2 {
                let memory = self.idle.pop().ok_or_else(|| {
                    ExpertError::Configuration(
                        "the reader of this stream broke down earlier; open a new one".into(),
                    )
                })?;
                self.start(tensor, rows_per_piece, started, memory);
                started += 1;
            }
            self.queue.submit()?;
            let Finished { mut request, result } = self.wait_for(piece % 2)?;
            let first_row = piece * rows_per_piece;
            let rows = rows_per_piece.min(tensor.rows - first_row);
            let skip = (tensor.offset + first_row * tensor.row_bytes - request.offset) as usize;
            let bytes = &mut request.memory[skip..skip + (rows * tensor.row_bytes) as usize];
            let used = result.map_err(E::from).and_then(|()| each_piece(first_row, bytes));
            self.idle.push(request.memory);
            used?;
        }
        Ok(())
    }

    fn rows_per_piece(&self, tensor: &TensorRange) -> Result<u64, ExpertError> {
        let TensorRange { file, offset, rows, row_bytes, rows_multiple } = *tensor;
        let opened = self.files.get(file).ok_or_else(|| {
            ExpertError::Configuration(format!(
                "tensor in file {file}, but there are {} files",
                self.files.len()
            ))
        })?;
        let end = rows.checked_mul(row_bytes).and_then(|bytes| bytes.checked_add(offset)).unwrap_or(u64::MAX);
        if end > opened.length() {
            let (path, length) = (opened.path().to_owned(), opened.length());
            return Err(ExpertError::Truncated { path, offset, end, length });
        }
        let multiple = rows_multiple.clamp(1, rows.max(1));
        match (self.piece_bytes as u64).checked_div(row_bytes.saturating_mul(multiple)) {
            // Rows without bytes.
            None => Ok(rows.max(1)),
            Some(0) => Err(ExpertError::Configuration(format!(
                "{multiple} rows of {row_bytes} bytes do not fit in a piece of {} bytes",
                self.piece_bytes
            ))),
            Some(units) => Ok(units.saturating_mul(multiple)),
        }
    }

    fn start(&mut self, tensor: &TensorRange, rows_per_piece: u64, piece: u64, memory: SlotMemory) {
        let first_row = piece * rows_per_piece;
        let rows = rows_per_piece.min(tensor.rows - first_row);
        let start = tensor.offset + first_row * tensor.row_bytes;
        let end = start + rows * tensor.row_bytes;
        let read = aligned(start..end);
        self.queue.push(ReadRequest {
            ticket: piece % 2,
            file: Arc::clone(&self.files[tensor.file]),
            offset: read.start,
            length: (read.end - read.start) as usize,
            needed: (end - read.start) as usize,
            filled: 0,
            memory,
        });
    }

    fn wait_for(&mut self, ticket: u64) -> Result<Finished, ExpertError> {
        loop {
            if let Some(at) = self.finished.iter().position(|finished| finished.request.ticket == ticket) {
                return Ok(self.finished.swap_remove(at));
            }
            self.queue.reap(true, &mut self.finished)?;
        }
    }

    fn drain(&mut self) -> Result<(), ExpertError> {
        let mut drained = Ok(());
        while self.queue.in_flight() > 0 && drained.is_ok() {
            drained = self.queue.reap(true, &mut self.finished);
        }
        self.idle.extend(self.finished.drain(..).map(|finished| finished.request.memory));
        drained
    }
}
