//! The packed layout "rows16": what the kernels read, on every instruction set.
//!
//! Rows are taken in groups of 16, one row per lane; the last group is filled up with zero rows. Float formats store
//! `[column][16 rows]`. A quantised group is a sequence of blocks along the columns:
//!
//! ```text
//! block:  scales f16[16] or u8[16] | minimums f16[16] | sub-scales u8[sub][16] | sub-minimums u8[sub][16] | steps
//!         (a format has only the parts it needs)     (super-block formats)
//! step:   32 columns = 8 column groups of 4. A 64-byte vector holds [row 0 c0..c3, row 1 c0..c3, ... row 15 c0..c3].
//!   bytes    8 vectors, vector g = column group g
//!   nibbles  4 vectors, vector v = column group v in the low halves, column group v + 4 in the high halves
//!   + fifth bits   1 more vector, bit g of a byte = column group g
//!   + bit pairs    2 more vectors, pair g % 4 of a byte of vector g / 4 = column group g
//! ```
//!
//! `packed_block` is the one description of offsets; packing, unpacking and all kernels follow it. The layout is
//! little-endian and holds no pointers, so packed files move between machines.

mod pack;
mod unpack;

use crate::blocks::{CODE_OFFSET, STEP_COLUMNS};
use crate::{KernelError, WeightFormat};

pub use pack::{pack_column, pack_group, pack_group_from, pack_rows};
pub(crate) use unpack::read_lane;
pub use unpack::unpack_row;

/// Rows of a group: the lanes of one 512-bit vector of 32-bit values.
pub const GROUP_ROWS: usize = 16;

/// Bytes of one vector: 16 rows of 4 columns.
pub(crate) const VECTOR_BYTES: usize = 64;

/// Column groups (of 4 columns) in one step.
pub(crate) const STEP_GROUPS: usize = STEP_COLUMNS / 4;

/// How the stored values of a step are laid out in vectors.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum QuantStorage {
    /// Signed bytes.
    Bytes,
    /// Four bits.
    Nibbles,
    /// Four bits and a plane of fifth bits.
    NibblesAndFifthBit,
    /// Four bits and two planes of bit pairs.
    NibblesAndBitPairs,
    /// Four bits that stand for a value of a table (`CODES` of MXFP4).
    Codes,
}

impl QuantStorage {
    const fn step_bytes(self) -> usize {
        match self {
            QuantStorage::Bytes => 8 * VECTOR_BYTES,
            QuantStorage::Nibbles | QuantStorage::Codes => 4 * VECTOR_BYTES,
            QuantStorage::NibblesAndFifthBit => 5 * VECTOR_BYTES,
            QuantStorage::NibblesAndBitPairs => 6 * VECTOR_BYTES,
        }
    }
}

/// Where the scale of a step comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScaleStorage {
    /// One f16 per step.
    OneF16,
    /// f16 of the super-block times an unsigned byte per step.
    SubScale,
    /// f16 of the super-block, and a signed byte per 16 columns that multiplies the integer sum.
    HalfStepSubScale,
    /// One exponent byte per step, for `2^(exponent - 128)`.
    Exponent,
}

/// Which minimum is added to the product of a step, as `minimum * sum of activations`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum MinimumStorage {
    /// None.
    Absent,
    /// `+ f16`, one per step.
    Added,
    /// `- f16 of the super-block * unsigned byte of the step`.
    SubtractedOfSuperBlock,
}

/// Byte offsets and meaning of the packed block of one quantised format.
#[derive(Clone, Copy)]
pub(crate) struct PackedBlock {
    pub steps: usize,
    pub scales: ScaleStorage,
    pub minimums: MinimumStorage,
    pub quants: QuantStorage,
    /// Taken off every stored value (of the table's values, for codes) before use.
    pub quant_offset: i16,
    pub minimums_at: usize,
    pub sub_scales_at: usize,
    pub sub_minimums_at: usize,
    pub steps_at: usize,
    pub step_bytes: usize,
    pub bytes: usize,
}

/// The packed block of a quantised format.
///
/// # Panics
/// For float formats, which have no blocks; evaluated at compile time by the kernels.
pub(crate) const fn packed_block(format: WeightFormat) -> PackedBlock {
    use {MinimumStorage as M, QuantStorage as Q, ScaleStorage as S};
    match format {
        WeightFormat::F32 | WeightFormat::F16 | WeightFormat::BF16 => {
            panic!("float formats have no packed block")
        }
        WeightFormat::Q8_0 => arrange(S::OneF16, M::Absent, Q::Bytes, 0),
        WeightFormat::Q4_0 => arrange(S::OneF16, M::Absent, Q::Nibbles, 8),
        WeightFormat::Q4_1 => arrange(S::OneF16, M::Added, Q::Nibbles, 0),
        WeightFormat::Q5_0 => arrange(S::OneF16, M::Absent, Q::NibblesAndFifthBit, 16),
        WeightFormat::Q5_1 => arrange(S::OneF16, M::Added, Q::NibblesAndFifthBit, 0),
        WeightFormat::Q4K => arrange(S::SubScale, M::SubtractedOfSuperBlock, Q::Nibbles, 0),
        WeightFormat::Q5K => arrange(S::SubScale, M::SubtractedOfSuperBlock, Q::NibblesAndFifthBit, 0),
        WeightFormat::Q6K => arrange(S::HalfStepSubScale, M::Absent, Q::NibblesAndBitPairs, 32),
        WeightFormat::Mxfp4 => arrange(S::Exponent, M::Absent, Q::Codes, CODE_OFFSET),
    }
}

const fn arrange(
    scales: ScaleStorage,
    minimums: MinimumStorage,
    quants: QuantStorage,
    quant_offset: i16,
) -> PackedBlock {
    let f16_plane = 2 * GROUP_ROWS;
    let (steps, sub_scale_bytes) = match scales {
        ScaleStorage::OneF16 | ScaleStorage::Exponent => (1, 0),
        ScaleStorage::SubScale => (8, 8 * GROUP_ROWS),
        ScaleStorage::HalfStepSubScale => (8, 16 * GROUP_ROWS),
    };
    let (minimum_bytes, sub_minimum_bytes) = match minimums {
        MinimumStorage::Absent => (0, 0),
        MinimumStorage::Added => (f16_plane, 0),
        MinimumStorage::SubtractedOfSuperBlock => (f16_plane, 8 * GROUP_ROWS),
    };
    let minimums_at = match scales {
        ScaleStorage::Exponent => GROUP_ROWS,
        _ => f16_plane,
    };
    let sub_scales_at = minimums_at + minimum_bytes;
    let sub_minimums_at = sub_scales_at + sub_scale_bytes;
    let steps_at = sub_minimums_at + sub_minimum_bytes;
    let step_bytes = quants.step_bytes();
    let bytes = steps_at + steps * step_bytes;
    PackedBlock {
        steps,
        scales,
        minimums,
        quants,
        quant_offset,
        minimums_at,
        sub_scales_at,
        sub_minimums_at,
        steps_at,
        step_bytes,
        bytes,
    }
}

/// Groups of 16 rows that hold `rows` rows.
pub const fn row_groups(rows: usize) -> usize {
    rows.div_ceil(GROUP_ROWS)
}

/// Bytes of one packed group of 16 rows of `columns` elements.
///
/// # Panics
/// When `columns` is not a whole number of blocks (see [`WeightFormat::accepts_columns`]).
pub const fn packed_group_bytes(format: WeightFormat, columns: usize) -> usize {
    assert!(format.accepts_columns(columns), "a row must be a whole number of blocks");
    if format.is_quantized() {
        columns / format.block_elements() * packed_block(format).bytes
    } else {
        columns * GROUP_ROWS * format.block_bytes()
    }
}

/// Bytes of a packed matrix: `row_groups(rows)` groups.
///
/// # Panics
/// As [`packed_group_bytes`].
pub const fn packed_bytes(format: WeightFormat, rows: usize, columns: usize) -> usize {
    row_groups(rows) * packed_group_bytes(format, columns)
}

/// A packed matrix in borrowed memory. Any byte alignment is fine; 64 is fastest.
#[derive(Clone, Copy, Debug)]
pub struct MatrixRef<'a> {
    format: WeightFormat,
    rows: usize,
    columns: usize,
    bytes: &'a [u8],
}

impl<'a> MatrixRef<'a> {
    /// A matrix of `rows` rows and `columns` columns, packed by [`pack_rows`].
    ///
    /// # Errors
    /// [`KernelError::PartialBlock`] or [`KernelError::WrongLength`] when shape and bytes do not belong together.
    pub fn new(
        format: WeightFormat,
        rows: usize,
        columns: usize,
        bytes: &'a [u8],
    ) -> Result<Self, KernelError> {
        if !format.accepts_columns(columns) {
            return Err(KernelError::PartialBlock { format, columns });
        }
        let expected = packed_bytes(format, rows, columns);
        if bytes.len() != expected {
            return Err(KernelError::WrongLength { format, rows, columns, expected, found: bytes.len() });
        }
        Ok(MatrixRef { format, rows, columns, bytes })
    }

    /// Format of the weights.
    pub fn format(&self) -> WeightFormat {
        self.format
    }

    /// Rows: the length of the product.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns: the length of an input row.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The packed bytes.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Bytes of one group of 16 rows.
    pub fn group_bytes(&self) -> usize {
        packed_group_bytes(self.format, self.columns)
    }
}
