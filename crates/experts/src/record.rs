//! Records: one expert in the layout the kernels read, with a header that says what it is.
//!
//! ```text
//! 0   magic "CPRC"          16  expert                 36  zero
//! 4   version               20  zero                   60  CRC-32C of bytes 0..60
//! 8   layout                24  bytes after the header 64  gate | up | down, each at a multiple of 64,
//! 12  layer                 32  CRC-32C of those       then zeros up to a multiple of 4096
//! ```
//!
//! All integers are little-endian. [`arrange`] builds a record from source blocks, [`verify`] checks one that was read;
//! both ways give the same bytes, so everything downstream is the same. Packing itself belongs to `coldpress-kernels`.

use std::sync::atomic::{AtomicU32, Ordering};

use coldpress_kernels::blocks;
use coldpress_kernels::layout::{self, MatrixRef};
use coldpress_workers::Team;

use crate::error::RecordFault;
use crate::geometry::{ExpertKey, MatrixPlace, RecordGeometry};

/// Bytes of the header.
pub const HEADER_BYTES: usize = 64;
/// Version of records and of pack files.
pub const FORMAT_VERSION: u32 = 1;
/// The layout of the matrices: `rows16` of `coldpress_kernels::layout`.
pub const LAYOUT_ROWS16: u32 = 1;

const MAGIC: [u8; 4] = *b"CPRC";
const HEADER_CRC_AT: usize = HEADER_BYTES - 4;

/// Most parts whose sums are made apart: putting two together costs as much as summing up 300 KB.
const SUM_PARTS_MAX: usize = 8;

/// Row groups that one chunk of [`arrange`] packs: long enough to pay for claiming it, short enough to share.
pub(crate) const GROUPS_PER_CHUNK: usize = 4;

/// Source bytes of one matrix: rows as the model file stores them.
#[derive(Debug)]
pub struct SourceMatrix<'a> {
    /// The blocks, row after row. Big-endian blocks are turned round in place.
    pub bytes: &'a mut [u8],
    /// Whether they are big-endian.
    pub big_endian: bool,
}

/// Builds the record of `key` in `record` (exactly `geometry.record_bytes` long) from gate, up and down.
///
/// Every byte of `record` is written, whatever was there before. The row groups are packed by the whole team.
///
/// # Panics
/// When a length does not fit the geometry.
pub fn arrange(
    team: &Team<'_>,
    geometry: &RecordGeometry,
    key: ExpertKey,
    sources: [SourceMatrix<'_>; 3],
    record: &mut [u8],
) {
    let mut sources = sources;
    arrange_with(team, geometry, key, record, |matrix, place, out| {
        let SourceMatrix { bytes, big_endian } = &mut sources[matrix];
        pack_source(team, place, SourceMatrix { bytes, big_endian: *big_endian }, out);
    });
}

/// Packs a matrix of rows of blocks.
pub(crate) fn pack_source(team: &Team<'_>, place: &MatrixPlace, source: SourceMatrix<'_>, out: &mut [u8]) {
    if source.big_endian {
        blocks::to_little_endian(place.format, source.bytes);
    }
    pack_matrix(team, place, source.bytes, out);
}

/// Builds the record of `key`; `pack(matrix, place, bytes)` writes every byte of the packed gate (0), up (1) and down (2).
pub(crate) fn arrange_with(
    team: &Team<'_>,
    geometry: &RecordGeometry,
    key: ExpertKey,
    record: &mut [u8],
    mut pack: impl FnMut(usize, &MatrixPlace, &mut [u8]),
) {
    assert_eq!(record.len(), geometry.record_bytes, "length of the record of {key}");
    let mut end = HEADER_BYTES;
    for (matrix, place) in geometry.matrices.iter().enumerate() {
        record[end..place.offset].fill(0);
        end = place.offset + place.bytes;
        pack(matrix, place, &mut record[place.offset..end]);
    }
    record[end..].fill(0);
    seal(team, key, record);
}

fn pack_matrix(team: &Team<'_>, place: &MatrixPlace, source: &[u8], out: &mut [u8]) {
    let MatrixPlace { format, rows, columns, .. } = *place;
    let row_bytes = format.row_bytes(columns);
    assert_eq!(source.len(), rows * row_bytes, "source bytes of a {rows}x{columns} {format} matrix");
    let chunk_bytes = GROUPS_PER_CHUNK * layout::packed_group_bytes(format, columns);
    let chunk_rows = GROUPS_PER_CHUNK * layout::GROUP_ROWS;
    team.for_each_part_mut(out, chunk_bytes, |chunk, packed, _worker| {
        let first_row = chunk * chunk_rows;
        let rows = chunk_rows.min(rows - first_row);
        let source = &source[first_row * row_bytes..][..rows * row_bytes];
        layout::pack_rows(format, rows, columns, source, packed);
    });
}

/// Writes the header over `record`, whose matrices and padding are complete.
fn seal(team: &Team<'_>, key: ExpertKey, record: &mut [u8]) {
    let (header, body) = record.split_at_mut(HEADER_BYTES);
    header.fill(0);
    header[0..4].copy_from_slice(&MAGIC);
    for (field, value) in header_fields(key, body.len()) {
        match field.width {
            4 => header[field.at..field.at + 4].copy_from_slice(&(value as u32).to_le_bytes()),
            _ => header[field.at..field.at + 8].copy_from_slice(&value.to_le_bytes()),
        }
    }
    header[BODY_CRC_AT..BODY_CRC_AT + 4].copy_from_slice(&body_sum(team, body).to_le_bytes());
    let checksum = crc32c::crc32c(&header[..HEADER_CRC_AT]);
    header[HEADER_CRC_AT..].copy_from_slice(&checksum.to_le_bytes());
}

const BODY_CRC_AT: usize = 32;

struct Field {
    name: &'static str,
    at: usize,
    width: usize,
}

/// The fields whose value follows from the place of the record.
fn header_fields(key: ExpertKey, body_bytes: usize) -> [(Field, u64); 5] {
    let field = |name, at, width| Field { name, at, width };
    [
        (field("record version", 4, 4), u64::from(FORMAT_VERSION)),
        (field("record layout", 8, 4), u64::from(LAYOUT_ROWS16)),
        (field("layer", 12, 4), u64::from(key.layer)),
        (field("expert", 16, 4), u64::from(key.expert)),
        (field("length after the header", 24, 8), body_bytes as u64),
    ]
}

/// Checks that `record` is whole and is the one of `key`, its header first.
///
/// # Errors
/// The first [`RecordFault`].
pub fn verify(key: ExpertKey, record: &[u8]) -> Result<(), RecordFault> {
    let mut check = RunningCheck::new(key, record.len());
    check.feed(record)?;
    check.finish()
}

/// The same check by the whole team.
///
/// # Errors
/// The first [`RecordFault`].
pub(crate) fn verify_together(team: &Team<'_>, key: ExpertKey, record: &[u8]) -> Result<(), RecordFault> {
    let (header, body) = record.split_at_checked(HEADER_BYTES).ok_or(RecordFault::Magic)?;
    verify_header(key, header, body.len())?;
    match (body_sum(team, body), read_u32(header, BODY_CRC_AT)) {
        (found, wanted) if found != wanted => Err(RecordFault::BodyChecksum { found, wanted }),
        _ => Ok(()),
    }
}

/// CRC-32C of `body`, one part of it by each thread.
fn body_sum(team: &Team<'_>, body: &[u8]) -> u32 {
    let parts = team.threads().min(SUM_PARTS_MAX);
    let part_bytes = body.len().div_ceil(parts).max(1);
    let part = |index: usize| {
        let start = (index * part_bytes).min(body.len());
        &body[start..(start + part_bytes).min(body.len())]
    };
    let sums = [const { AtomicU32::new(0) }; SUM_PARTS_MAX];
    team.for_each_chunk(parts, |index, _worker| {
        sums[index].store(crc32c::crc32c(part(index)), Ordering::Relaxed);
    });
    (0..parts).fold(0, |sum, index| {
        crc32c::crc32c_combine(sum, sums[index].load(Ordering::Relaxed), part(index).len())
    })
}

/// The same check over a record that comes in pieces, the first of them at least as long as the header.
#[derive(Debug)]
pub(crate) struct RunningCheck {
    key: ExpertKey,
    record_bytes: usize,
    /// Checksum in the header, once that has been seen.
    wanted: Option<u32>,
    found: u32,
}

impl RunningCheck {
    /// A check of the record of `key`, `record_bytes` long.
    pub(crate) fn new(key: ExpertKey, record_bytes: usize) -> Self {
        Self { key, record_bytes, wanted: None, found: 0 }
    }

    /// The next piece of the record.
    pub(crate) fn feed(&mut self, piece: &[u8]) -> Result<(), RecordFault> {
        let mut body = piece;
        if self.wanted.is_none() {
            let (header, rest) = piece.split_at_checked(HEADER_BYTES).ok_or(RecordFault::Magic)?;
            verify_header(self.key, header, self.record_bytes.saturating_sub(HEADER_BYTES))?;
            self.wanted = Some(read_u32(header, BODY_CRC_AT));
            body = rest;
        }
        self.found = crc32c::crc32c_append(self.found, body);
        Ok(())
    }

    /// After the last piece.
    pub(crate) fn finish(&self) -> Result<(), RecordFault> {
        match (self.wanted, self.found) {
            (None, _) => Err(RecordFault::Magic),
            (Some(wanted), found) if found != wanted => Err(RecordFault::BodyChecksum { found, wanted }),
            _ => Ok(()),
        }
    }
}

fn verify_header(key: ExpertKey, header: &[u8], body_bytes: usize) -> Result<(), RecordFault> {
    if header[0..4] != MAGIC {
        return Err(RecordFault::Magic);
    }
    let wanted = read_u32(header, HEADER_CRC_AT);
    let found = crc32c::crc32c(&header[..HEADER_CRC_AT]);
    if found != wanted {
        return Err(RecordFault::HeaderChecksum { found, wanted });
    }
    for (field, wanted) in header_fields(key, body_bytes) {
        let found = match field.width {
            4 => u64::from(read_u32(header, field.at)),
            _ => u64::from(read_u32(header, field.at)) | u64::from(read_u32(header, field.at + 4)) << 32,
        };
        if found != wanted {
            return Err(RecordFault::Field { field: field.name, found, wanted });
        }
    }
    Ok(())
}

fn read_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// A whole record in memory.
#[derive(Clone, Copy, Debug)]
pub struct RecordRef<'a> {
    geometry: &'a RecordGeometry,
    bytes: &'a [u8],
}

impl<'a> RecordRef<'a> {
    /// The record of `geometry` at the start of `bytes`, which was arranged or verified before.
    ///
    /// # Panics
    /// When `bytes` is too short.
    pub fn new(geometry: &'a RecordGeometry, bytes: &'a [u8]) -> Self {
        Self { geometry, bytes: &bytes[..geometry.record_bytes] }
    }

    /// Gate projection `[inner, hidden]`.
    pub fn gate(&self) -> MatrixRef<'a> {
        self.matrix(0)
    }

    /// Up projection `[inner, hidden]`.
    pub fn up(&self) -> MatrixRef<'a> {
        self.matrix(1)
    }

    /// Down projection `[hidden, inner]`.
    pub fn down(&self) -> MatrixRef<'a> {
        self.matrix(2)
    }

    /// Header, matrices and padding.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    fn matrix(&self, part: usize) -> MatrixRef<'a> {
        let MatrixPlace { format, rows, columns, offset, bytes } = self.geometry.matrices[part];
        MatrixRef::new(format, rows, columns, &self.bytes[offset..offset + bytes])
            .expect("the geometry takes its lengths from the kernels")
    }
}
