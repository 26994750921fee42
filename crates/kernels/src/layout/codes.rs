//! The packed form of matrices of codes ([`Coding`]): the row groups of "rows16" with scales and biases in front.
//!
//! ```text
//! group of 16 rows:  codebook f32[2^bits] | scales [scale groups][16] | biases [scale groups][16] | steps
//!                    (a coding has only the parts it needs; each part is filled up to a multiple of 64 bytes)
//! step of 32 columns: `bits` vectors of 64 bytes; lane r of them is the 32 codes of row r as a stream, lowest bit first
//! ```
//!
//! Columns that the last step has beyond the matrix are zero codes. Codes, scales and biases come from different tensors, so each
//! is packed by a function of its own, in any order.

use half::{bf16, f16};

use super::{GROUP_ROWS, VECTOR_BYTES};
use crate::blocks::STEP_COLUMNS;
use crate::coding::{Coding, ScaleFormat, ScaleSource, e4m3_to_f32};

/// Where the parts of a packed group lie.
#[derive(Clone, Copy)]
pub(crate) struct CodesPlace {
    /// Groups of columns with a scale.
    pub scale_groups: usize,
    pub scales_at: usize,
    pub biases_at: usize,
    pub steps_at: usize,
    pub bytes: usize,
}

/// The place of the parts of a group of `columns` columns.
pub(crate) const fn codes_place(coding: Coding, columns: usize) -> CodesPlace {
    let scale_groups = columns.div_ceil(coding.group_columns(columns));
    let plane = (scale_groups * GROUP_ROWS * coding.scales().bytes()).next_multiple_of(VECTOR_BYTES);
    let scales_at = (coding.codebook_len() * size_of::<f32>()).next_multiple_of(VECTOR_BYTES);
    let biases_at = scales_at + plane;
    let steps_at = if coding.has_bias() { biases_at + plane } else { biases_at };
    let steps = columns.div_ceil(STEP_COLUMNS);
    let bytes = steps_at + steps * coding.bits() * VECTOR_BYTES;
    CodesPlace { scale_groups, scales_at, biases_at, steps_at, bytes }
}

/// How the codes of a row follow each other in a checkpoint, lowest bit first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CodeOrder {
    /// Without gaps: a row is `columns * bits / 8` bytes.
    Stream,
    /// As many as fit into 32 bits, then the next 32: a row is `columns / (32 / bits)` words, rounded up.
    Words,
}

impl CodeOrder {
    /// Bytes of a row of `columns` codes of `bits` bits.
    pub const fn row_bytes(self, bits: usize, columns: usize) -> usize {
        match self {
            CodeOrder::Stream => (columns * bits).div_ceil(8),
            CodeOrder::Words => columns.div_ceil(32 / bits) * 4,
        }
    }
}

/// Scales or biases of some rows as a checkpoint has them, row after row.
#[derive(Clone, Copy, Debug)]
pub struct ScaleRows<'a> {
    /// One number per group of columns, for each row or for each `rows_per_scale` rows.
    pub bytes: &'a [u8],
    /// How they are written.
    pub source: ScaleSource,
    /// Rows that share a row of scales: 1, or 128 for blocks of FP8.
    pub rows_per_scale: usize,
    /// How many of the rows that share the first row of scales come before the first row.
    pub rows_before: usize,
}

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScalePart {
    /// Factors.
    Scales,
    /// Summands.
    Biases,
}

/// Packs the codes of `rows` rows into the groups of `out`; lanes without a row become zero. Nothing else of `out` is written.
///
/// # Panics
/// When `source` or `out` has another length than the shape.
pub fn pack_codes(
    coding: Coding,
    (rows, columns): (usize, usize),
    order: CodeOrder,
    source: &[u8],
    out: &mut [u8],
) {
    let (bits, place) = (coding.bits(), codes_place(coding, columns));
    let row_bytes = order.row_bytes(bits, columns);
    assert_eq!(source.len(), rows * row_bytes, "codes of {rows} rows");
    assert_eq!(out.len(), rows.div_ceil(GROUP_ROWS) * place.bytes, "packed groups of {rows} rows");
    let groups = out.chunks_exact_mut(place.bytes);
    for (source, group) in source.chunks(GROUP_ROWS * row_bytes).zip(groups) {
        let steps = &mut group[place.steps_at..];
        if source.len() < GROUP_ROWS * row_bytes {
            steps.fill(0);
        }
        for (lane, row) in source.chunks_exact(row_bytes).enumerate() {
            for (step, out) in steps.chunks_exact_mut(bits * VECTOR_BYTES).enumerate() {
                let words = match order {
                    CodeOrder::Stream => words_of_stream(bits, row, step),
                    CodeOrder::Words => words_of_words(bits, columns, row, step),
                };
                for (word, vector) in words[..bits].iter().zip(out.chunks_exact_mut(VECTOR_BYTES)) {
                    vector[4 * lane..][..4].copy_from_slice(&word.to_le_bytes());
                }
            }
        }
    }
}

/// The words of one step of a row, zeros behind its end.
fn words_of_stream(bits: usize, row: &[u8], step: usize) -> [u32; 8] {
    let start = (step * bits * 4).min(row.len());
    let bytes = &row[start..row.len().min(start + bits * 4)];
    let mut all = [0; 32];
    all[..bytes.len()].copy_from_slice(bytes);
    let (words, _) = all.as_chunks::<4>();
    std::array::from_fn(|word| u32::from_le_bytes(words[word]))
}

fn words_of_words(bits: usize, columns: usize, row: &[u8], step: usize) -> [u32; 8] {
    let per_word = 32 / bits;
    let (source, _) = row.as_chunks::<4>();
    let mut words = [0; 8];
    for column in 0..STEP_COLUMNS.min(columns - step * STEP_COLUMNS) {
        let at = step * STEP_COLUMNS + column;
        let code = u32::from_le_bytes(source[at / per_word]) >> (at % per_word * bits) & ((1u32 << bits) - 1);
        let bit = column * bits;
        words[bit / 32] |= code << (bit % 32);
        if bit % 32 + bits > 32 {
            words[bit / 32 + 1] |= code >> (32 - bit % 32);
        }
    }
    words
}

/// Packs the scales or the biases of `rows` rows into the groups of `out`; lanes without a row become zero. Nothing else of `out` is
/// written.
///
/// # Panics
/// When there are too few numbers, they are not held in the format of the coding, or the coding has no biases.
pub fn pack_scales(
    coding: Coding,
    (rows, columns): (usize, usize),
    part: ScalePart,
    source: ScaleRows<'_>,
    out: &mut [u8],
) {
    let place = codes_place(coding, columns);
    assert_eq!(source.source.held(), coding.scales(), "format of the scales of {coding}");
    assert!(part == ScalePart::Scales || coding.has_bias(), "{coding} has no biases");
    assert_eq!(out.len(), rows.div_ceil(GROUP_ROWS) * place.bytes, "packed groups of {rows} rows");
    let (from, to) = (source.source.bytes(), coding.scales().bytes());
    let at = if part == ScalePart::Scales { place.scales_at } else { place.biases_at };
    for (index, group) in out.chunks_exact_mut(place.bytes).enumerate() {
        let plane = &mut group[at..at + place.scale_groups * GROUP_ROWS * to];
        for lane in 0..GROUP_ROWS {
            let row = index * GROUP_ROWS + lane;
            let scale_row = (source.rows_before + row) / source.rows_per_scale;
            for scale in 0..place.scale_groups {
                let out = &mut plane[(scale * GROUP_ROWS + lane) * to..][..to];
                if row < rows {
                    let bytes = &source.bytes[(scale_row * place.scale_groups + scale) * from..][..from];
                    copy_scale(source.source, bytes, out);
                } else {
                    out.fill(0);
                }
            }
        }
    }
}

fn copy_scale(source: ScaleSource, bytes: &[u8], out: &mut [u8]) {
    match source {
        ScaleSource::E8m0 => out.copy_from_slice(&bf16_of_exponent(bytes[0]).to_le_bytes()),
        ScaleSource::E4m3 => out.copy_from_slice(&f16::from_f32(e4m3_to_f32(bytes[0])).to_le_bytes()),
        _ => out.copy_from_slice(bytes),
    }
}

/// `2^(exponent - 127)`.
fn bf16_of_exponent(exponent: u8) -> bf16 {
    bf16::from_bits(match exponent {
        0 => 0x0040,
        255 => 0x7fc0,
        exponent => u16::from(exponent) << 7,
    })
}

/// Writes the codebook into every group of `out`.
///
/// # Panics
/// When the coding has no codebook, or one of another length.
pub fn pack_codebook(coding: Coding, columns: usize, codebook: &[f32], out: &mut [u8]) {
    assert_eq!(codebook.len(), coding.codebook_len(), "codebook of {coding}");
    for group in out.chunks_exact_mut(codes_place(coding, columns).bytes) {
        let (table, _) = group.as_chunks_mut::<4>();
        for (bytes, value) in table.iter_mut().zip(codebook) {
            *bytes = value.to_le_bytes();
        }
    }
}

/// What the codes of one row of a checkpoint stand for before they are scaled. `out` has an element per column.
///
/// # Panics
/// When `source` is not a row of as many codes, or the codebook is not that of the coding.
pub fn levels_of_row(coding: Coding, order: CodeOrder, codebook: &[f32], source: &[u8], out: &mut [f32]) {
    let (bits, columns) = (coding.bits(), out.len());
    assert_eq!(source.len(), order.row_bytes(bits, columns), "codes of a row of {columns} columns");
    assert_eq!(codebook.len(), coding.codebook_len(), "codebook of {coding}");
    for (step, levels) in out.chunks_mut(STEP_COLUMNS).enumerate() {
        let words = match order {
            CodeOrder::Stream => words_of_stream(bits, source, step),
            CodeOrder::Words => words_of_words(bits, columns, source, step),
        };
        for (column, level) in levels.iter_mut().enumerate() {
            let bit = column * bits;
            let next = words.get(bit / 32 + 1).copied().unwrap_or(0);
            let both = u64::from(next) << 32 | u64::from(words[bit / 32]);
            *level = coding.level((both >> (bit % 32)) as u32 & ((1u32 << bits) - 1), codebook);
        }
    }
}

/// The number of scale `index` in `bytes`, which are written as `source` says.
pub fn scale_at(source: ScaleSource, bytes: &[u8], index: usize) -> f32 {
    let mut held = [0; 4];
    let held = &mut held[..source.held().bytes()];
    copy_scale(source, &bytes[index * source.bytes()..][..source.bytes()], held);
    scale_of(source.held(), held)
}

fn scale_of(format: ScaleFormat, bytes: &[u8]) -> f32 {
    match format {
        ScaleFormat::F32 => f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
        ScaleFormat::F16 => crate::blocks::f16_to_f32(u16::from_le_bytes([bytes[0], bytes[1]])),
        ScaleFormat::Bf16 => f32::from_bits(u32::from(u16::from_le_bytes([bytes[0], bytes[1]])) << 16),
    }
}

/// One packed group as the scalar definition reads it.
#[derive(Clone, Copy)]
pub(crate) struct CodesGroup<'a> {
    coding: Coding,
    columns: usize,
    place: CodesPlace,
    bytes: &'a [u8],
}

impl<'a> CodesGroup<'a> {
    /// The packed group in `bytes`.
    pub fn new(coding: Coding, columns: usize, bytes: &'a [u8]) -> Self {
        Self { coding, columns, place: codes_place(coding, columns), bytes }
    }

    pub fn coding(&self) -> Coding {
        self.coding
    }

    /// All bytes of the group.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The codebook; zeros for codings without one.
    pub fn codebook(&self) -> [f32; 256] {
        let mut codebook = [0.0; 256];
        let table = &mut codebook[..self.coding.codebook_len()];
        for (value, bytes) in table.iter_mut().zip(self.bytes.as_chunks::<4>().0) {
            *value = f32::from_le_bytes(*bytes);
        }
        codebook
    }

    /// Which scale a column has.
    pub fn scale_group(&self, column: usize) -> usize {
        column / self.coding.group_columns(self.columns)
    }

    /// Where the scales (0) or the biases (1) of a group of columns lie, from row `first_row` on.
    pub fn scale_at(&self, kind: usize, scale_group: usize, first_row: usize) -> usize {
        let at = if kind == 0 { self.place.scales_at } else { self.place.biases_at };
        at + (scale_group * GROUP_ROWS + first_row) * self.coding.scales().bytes()
    }

    /// Where word `index` of the step of `column` lies, from row `first_row` on.
    pub fn word_at(&self, column: usize, index: usize, first_row: usize) -> usize {
        let step = column / STEP_COLUMNS;
        self.place.steps_at + (step * self.coding.bits() + index) * VECTOR_BYTES + 4 * first_row
    }

    /// The weight of `lane` in `column`; `codebook` is that of the group.
    pub fn value(&self, codebook: &[f32], lane: usize, column: usize) -> f32 {
        let level = self.coding.level(self.code(lane, column), codebook);
        let scale_group = self.scale_group(column);
        let scaled = level * self.scale(0, scale_group, lane);
        if self.coding.has_bias() { scaled + self.scale(1, scale_group, lane) } else { scaled }
    }

    fn code(&self, lane: usize, column: usize) -> u32 {
        let bits = self.coding.bits();
        let bit = column % STEP_COLUMNS * bits;
        let word = |index: usize| {
            let bytes = &self.bytes[self.word_at(column, index, lane)..][..4];
            u64::from(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
        };
        let both = word(bit / 32) | if bit % 32 + bits > 32 { word(bit / 32 + 1) << 32 } else { 0 };
        (both >> (bit % 32)) as u32 & ((1u32 << bits) - 1)
    }

    fn scale(&self, kind: usize, scale_group: usize, lane: usize) -> f32 {
        scale_of(self.coding.scales(), &self.bytes[self.scale_at(kind, scale_group, lane)..])
    }
}
