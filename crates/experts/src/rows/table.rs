//! Where a table lies: rows of one length, in shards that may be spread over many files.

use std::path::Path;
use std::sync::Arc;

use coldpress_kernels::WeightFormat;

use crate::error::ExpertError;
use crate::source::ReadFile;

/// Consecutive rows of a table that lie together in one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowShard {
    /// Name of the tensor.
    pub name: String,
    /// Index into the model's files.
    pub file: usize,
    /// First byte in that file.
    pub offset: u64,
    /// Rows of the shard.
    pub rows: u64,
}

/// A table whose rows are looked up by number. Rows of all shards are numbered through, in the order of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowTable {
    /// What it is called in messages.
    pub name: String,
    /// Format of the values: F32, F16 or BF16.
    pub format: WeightFormat,
    /// Values of one row.
    pub columns: usize,
    /// Its parts.
    pub shards: Vec<RowShard>,
}

/// `format`, if rows may have it.
pub fn row_format(format: WeightFormat) -> Option<WeightFormat> {
    matches!(format, WeightFormat::F32 | WeightFormat::F16 | WeightFormat::BF16).then_some(format)
}

impl RowTable {
    /// Bytes of one row as it is stored.
    pub fn row_bytes(&self) -> usize {
        let value_bytes = if self.format == WeightFormat::F32 { 4 } else { 2 };
        self.columns * value_bytes
    }

    /// Rows of all shards.
    pub fn rows(&self) -> u64 {
        self.shards.iter().fold(0, |sum, shard| sum.saturating_add(shard.rows))
    }

    /// Bytes of all rows.
    pub fn bytes(&self) -> u64 {
        self.rows().saturating_mul(self.row_bytes() as u64)
    }

    fn shard_of(&self, row: u64) -> Option<(usize, u64)> {
        let mut first = 0;
        self.shards.iter().enumerate().find_map(|(index, shard)| {
            let within = row.checked_sub(first).filter(|within| *within < shard.rows);
            first += shard.rows;
            within.map(|within| (index, within))
        })
    }

    /// The error of reading `row`, with the tensor that holds it.
    pub(super) fn row_error(&self, row: u64, source: ExpertError) -> ExpertError {
        let (tensor, row) = self
            .shard_of(row)
            .map_or((self.name.clone(), row), |(shard, within)| (self.shards[shard].name.clone(), within));
        ExpertError::Row { tensor, row, source: Box::new(source) }
    }
}

/// A table with its open files.
#[derive(Debug)]
pub(super) struct OpenTable {
    pub table: RowTable,
    /// Per shard: its file.
    files: Vec<Arc<ReadFile>>,
    /// Per shard: number of its first row, and the number of all rows behind.
    firsts: Vec<u64>,
}

impl OpenTable {
    /// Checks shapes and lengths. `open` gives the file of an index.
    pub fn new(
        table: &RowTable,
        mut open: impl FnMut(usize) -> Result<Arc<ReadFile>, ExpertError>,
    ) -> Result<Self, ExpertError> {
        let bad = |detail: String| ExpertError::Configuration(format!("{}: {detail}", table.name));
        if row_format(table.format).is_none() || table.columns == 0 {
            let (format, columns) = (table.format, table.columns);
            return Err(bad(format!("rows of {columns} values in {format:?} cannot be looked up")));
        }
        if table.rows() > u64::from(u32::MAX) {
            return Err(bad(format!("{} rows, more than row numbers of 32 bits reach", table.rows())));
        }
        let mut files = Vec::with_capacity(table.shards.len());
        let mut firsts = vec![0];
        for shard in &table.shards {
            let first = *firsts.last().unwrap_or(&0);
            let file = open(shard.file).map_err(|error| table.row_error(first, error))?;
            check_length(table, shard, first, file.path(), file.length())?;
            files.push(file);
            firsts.push(first + shard.rows);
        }
        Ok(Self { table: table.clone(), files, firsts })
    }

    /// File and first byte of `row`.
    pub fn place(&self, row: u64) -> Result<(&Arc<ReadFile>, u64), ExpertError> {
        let shard = self.firsts.partition_point(|first| *first <= row) - 1;
        let Some(file) = self.files.get(shard) else {
            let (table, rows) = (self.table.name.clone(), self.table.rows());
            return Err(ExpertError::NoSuchRow { table, row, rows });
        };
        let within = row - self.firsts[shard];
        Ok((file, self.table.shards[shard].offset + within * self.table.row_bytes() as u64))
    }
}

/// The file must hold every row of the shard; the error names the first one that it lacks.
fn check_length(
    table: &RowTable,
    shard: &RowShard,
    first: u64,
    path: &Path,
    length: u64,
) -> Result<(), ExpertError> {
    let row_bytes = table.row_bytes() as u64;
    let end = shard.rows.checked_mul(row_bytes).and_then(|bytes| shard.offset.checked_add(bytes));
    if end.is_some_and(|end| end <= length) {
        return Ok(());
    }
    let row = length.saturating_sub(shard.offset) / row_bytes;
    let offset = shard.offset.saturating_add(row.saturating_mul(row_bytes));
    let end = offset.saturating_add(row_bytes);
    let cut = ExpertError::Truncated { path: path.to_owned(), offset, end, length };
    Err(table.row_error(first + row, cut))
}
