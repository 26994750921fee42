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
//! Bit pairs may also stand alone (two-bit formats), with a plane of third bits or without. Formats of grids and of packed
//! trits stay in their codes, see `coded.rs`. Codes with scales in arrays of their own have a form of their own, see `codes.rs`.
//!
//! `packed_block` is the one description of offsets; packing, unpacking and all kernels follow it. The layout is
//! little-endian and holds no pointers, so packed files move between machines.

mod coded;
mod codes;
mod pack;
mod unpack;

use crate::blocks::{CODE_OFFSET, SHIFTED_OFFSET, STEP_COLUMNS};
use crate::{KernelError, WeightFormat};

pub(crate) use coded::TRIT_VECTORS;
pub use codes::{
    CodeOrder, ScalePart, ScaleRows, levels_of_row, pack_codebook, pack_codes, pack_scales, scale_at,
};
pub(crate) use codes::{CodesGroup, codes_place};
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
    /// Four bits that stand for a signed byte (`IQ4_VALUES`).
    SignedCodes,
    /// Two planes of bit pairs.
    BitPairs,
    /// Two planes of bit pairs and one of third bits.
    BitPairsAndThirdBit,
    /// Five trits to a byte, for the super-block as a whole.
    Trits,
    /// Indices into a grid, and what else a step of the format holds; signed magnitudes, or shifted values (IQ1).
    Grid(Grid),
}

/// The formats of grids: eight columns to an index, or four (IQ3).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Grid {
    Iq1S,
    Iq1M,
    Iq2Xxs,
    Iq2Xs,
    Iq2S,
    Iq3Xxs,
    Iq3S,
}

impl QuantStorage {
    const fn step_bytes(self) -> usize {
        match self {
            QuantStorage::Bytes => 8 * VECTOR_BYTES,
            QuantStorage::Nibbles | QuantStorage::Codes | QuantStorage::SignedCodes => 4 * VECTOR_BYTES,
            QuantStorage::NibblesAndFifthBit => 5 * VECTOR_BYTES,
            QuantStorage::NibblesAndBitPairs => 6 * VECTOR_BYTES,
            QuantStorage::BitPairs => 2 * VECTOR_BYTES,
            QuantStorage::BitPairsAndThirdBit => 3 * VECTOR_BYTES,
            // 13 vectors for 8 steps: not divided by steps.
            QuantStorage::Trits => 0,
            QuantStorage::Grid(grid) => grid.step_bytes(),
        }
    }

    /// Whether the values are signed bytes before the dot product sees them.
    pub(crate) const fn is_signed(self) -> bool {
        match self {
            QuantStorage::Bytes | QuantStorage::SignedCodes => true,
            QuantStorage::Grid(grid) => !matches!(grid, Grid::Iq1S | Grid::Iq1M),
            _ => false,
        }
    }

    /// Whether a lane is a source block in other words (`coded.rs`), not planes of values.
    pub(crate) const fn is_coded(self) -> bool {
        matches!(self, QuantStorage::Trits | QuantStorage::Grid(_))
    }

    /// The largest magnitude that the dot product sees: signed, or before an offset is taken off.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    pub(crate) const fn largest(self) -> usize {
        match self {
            QuantStorage::Bytes => 128,
            QuantStorage::Nibbles => 15,
            QuantStorage::NibblesAndFifthBit => 31,
            QuantStorage::NibblesAndBitPairs => 63,
            QuantStorage::Codes => 28,
            QuantStorage::SignedCodes => 127,
            QuantStorage::BitPairs => 3,
            QuantStorage::BitPairsAndThirdBit => 7,
            QuantStorage::Trits => 2,
            QuantStorage::Grid(Grid::Iq1S | Grid::Iq1M) => 18,
            QuantStorage::Grid(Grid::Iq2Xxs | Grid::Iq2Xs | Grid::Iq2S) => 43,
            QuantStorage::Grid(Grid::Iq3Xxs) => 62,
            QuantStorage::Grid(Grid::Iq3S) => 15,
        }
    }
}

/// Where the scale of a step comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScaleStorage {
    /// One f16 per block.
    OneF16,
    /// f16 of the super-block times an unsigned byte per step.
    SubScale,
    /// f16 of the super-block, and a signed byte per 16 columns that multiplies the integer sum.
    HalfStepSubScale,
    /// One exponent byte per step, for `2^(exponent - 128)`.
    Exponent,
    /// f16 times six bits with offset 32 per step: nibbles of two steps in a byte, then pairs of four steps in a byte.
    SixBits,
    /// f16, and four bits per 16 columns; the minimums are the high nibbles of the same bytes.
    HalfStepNibble,
    /// f16, and six bits with offset 32 per 16 columns: nibbles of a step's halves in a byte, then pairs of two steps in a byte.
    HalfStepSixBits,
    /// One e4m3 byte per 16 columns, a float that multiplies the sum; no f16.
    HalfStepFloat,
    /// f16 times an odd number per step, from the free bits of the step's signs.
    OddOfSigns,
    /// f16 times an odd number per step, nibbles of two steps in a byte.
    OddNibble,
    /// f16, and an odd number per 16 columns, nibbles of a step's halves in a byte.
    HalfStepOddNibble,
    /// f16 times an odd number per step, from bits 12 to 14 of the step's u16.
    OddOfHighBits,
    /// f16, and an odd number per 16 columns, twice three bits per step stored as `SixBits`.
    HalfStepOddBits,
}

impl ScaleStorage {
    /// Whether the halves of a step have scales of their own.
    pub(crate) const fn is_per_half_step(self) -> bool {
        use ScaleStorage as S;
        matches!(
            self,
            S::HalfStepSubScale
                | S::HalfStepNibble
                | S::HalfStepSixBits
                | S::HalfStepFloat
                | S::HalfStepOddNibble
                | S::HalfStepOddBits
        )
    }

    /// Bytes of sub-scales of a row in a super-block.
    const fn sub_scale_bytes(self) -> usize {
        use ScaleStorage as S;
        match self {
            S::OneF16 | S::Exponent | S::OddOfSigns | S::OddOfHighBits => 0,
            S::SubScale | S::HalfStepOddNibble => 8,
            S::HalfStepSubScale | S::HalfStepNibble => 16,
            S::SixBits | S::HalfStepOddBits => 6,
            S::HalfStepSixBits => 12,
            S::HalfStepFloat | S::OddNibble => 4,
        }
    }
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
    /// `- f16 of the super-block * four bits of 16 columns`, the high nibbles of the sub-scales.
    SubtractedOfHalfSteps,
}

/// Byte offsets and meaning of the packed block of one quantised format.
#[derive(Clone, Copy)]
pub(crate) struct PackedBlock {
    pub steps: usize,
    pub scales: ScaleStorage,
    /// Power of two that multiplies the f16 scale.
    pub scale_multiplier: f32,
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
/// For floats and codes, which have no blocks; evaluated at compile time by the kernels.
pub(crate) const fn packed_block(format: WeightFormat) -> PackedBlock {
    use {Grid as G, MinimumStorage as M, QuantStorage as Q, ScaleStorage as S};
    let (scales, multiplier, minimums, quants, offset) = match format {
        WeightFormat::F32 | WeightFormat::F16 | WeightFormat::BF16 | WeightFormat::Codes(_) => {
            panic!("floats and codes have no packed block")
        }
        WeightFormat::Q8_0 => (S::OneF16, 1.0, M::Absent, Q::Bytes, 0),
        WeightFormat::Q4_0 => (S::OneF16, 1.0, M::Absent, Q::Nibbles, 8),
        WeightFormat::Q4_1 => (S::OneF16, 1.0, M::Added, Q::Nibbles, 0),
        WeightFormat::Q5_0 => (S::OneF16, 1.0, M::Absent, Q::NibblesAndFifthBit, 16),
        WeightFormat::Q5_1 => (S::OneF16, 1.0, M::Added, Q::NibblesAndFifthBit, 0),
        WeightFormat::Q4K => (S::SubScale, 1.0, M::SubtractedOfSuperBlock, Q::Nibbles, 0),
        WeightFormat::Q5K => (S::SubScale, 1.0, M::SubtractedOfSuperBlock, Q::NibblesAndFifthBit, 0),
        WeightFormat::Q6K => (S::HalfStepSubScale, 1.0, M::Absent, Q::NibblesAndBitPairs, 32),
        WeightFormat::Mxfp4 => (S::Exponent, 1.0, M::Absent, Q::Codes, CODE_OFFSET),
        WeightFormat::Q2K => (S::HalfStepNibble, 1.0, M::SubtractedOfHalfSteps, Q::BitPairs, 0),
        WeightFormat::Q3K => (S::HalfStepSixBits, 1.0, M::Absent, Q::BitPairsAndThirdBit, 4),
        WeightFormat::Iq1S => (S::OddOfHighBits, 0.125, M::Absent, Q::Grid(G::Iq1S), SHIFTED_OFFSET),
        WeightFormat::Iq1M => (S::HalfStepOddBits, 0.125, M::Absent, Q::Grid(G::Iq1M), SHIFTED_OFFSET),
        WeightFormat::Iq2Xxs => (S::OddOfSigns, 0.125, M::Absent, Q::Grid(G::Iq2Xxs), 0),
        WeightFormat::Iq2Xs => (S::HalfStepOddNibble, 0.125, M::Absent, Q::Grid(G::Iq2Xs), 0),
        WeightFormat::Iq2S => (S::HalfStepOddNibble, 0.125, M::Absent, Q::Grid(G::Iq2S), 0),
        WeightFormat::Iq3Xxs => (S::OddOfSigns, 0.25, M::Absent, Q::Grid(G::Iq3Xxs), 0),
        WeightFormat::Iq3S => (S::OddNibble, 1.0, M::Absent, Q::Grid(G::Iq3S), 0),
        WeightFormat::Iq4Nl => (S::OneF16, 1.0, M::Absent, Q::SignedCodes, 0),
        WeightFormat::Iq4Xs => (S::SixBits, 1.0, M::Absent, Q::SignedCodes, 0),
        WeightFormat::Tq1_0 => (S::OneF16, 1.0, M::Absent, Q::Trits, 1),
        WeightFormat::Tq2_0 => (S::OneF16, 1.0, M::Absent, Q::BitPairs, 1),
        WeightFormat::Nvfp4 => (S::HalfStepFloat, 1.0, M::Absent, Q::Codes, CODE_OFFSET),
    };
    let block = arrange(format.block_elements() / STEP_COLUMNS, scales, minimums, quants);
    PackedBlock { scale_multiplier: multiplier, quant_offset: offset, ..block }
}

const fn arrange(
    steps: usize,
    scales: ScaleStorage,
    minimums: MinimumStorage,
    quants: QuantStorage,
) -> PackedBlock {
    let f16_plane = 2 * GROUP_ROWS;
    let (minimum_bytes, sub_minimum_bytes) = match minimums {
        MinimumStorage::Absent => (0, 0),
        MinimumStorage::Added | MinimumStorage::SubtractedOfHalfSteps => (f16_plane, 0),
        MinimumStorage::SubtractedOfSuperBlock => (f16_plane, 8 * GROUP_ROWS),
    };
    let minimums_at = match scales {
        ScaleStorage::Exponent => GROUP_ROWS,
        ScaleStorage::HalfStepFloat => 0,
        _ => f16_plane,
    };
    let sub_scales_at = minimums_at + minimum_bytes;
    let sub_minimums_at = sub_scales_at + scales.sub_scale_bytes() * GROUP_ROWS;
    let steps_at = sub_minimums_at + sub_minimum_bytes;
    let step_bytes = quants.step_bytes();
    let bytes = match quants {
        QuantStorage::Trits => steps_at + coded::TRIT_VECTORS * VECTOR_BYTES,
        _ => steps_at + steps * step_bytes,
    };
    PackedBlock {
        steps,
        scales,
        scale_multiplier: 1.0,
        minimums,
        quants,
        quant_offset: 0,
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
    match format {
        WeightFormat::Codes(coding) => codes_place(coding, columns).bytes,
        _ if format.is_float() => columns * GROUP_ROWS * format.block_bytes(),
        _ => columns / format.block_elements() * packed_block(format).bytes,
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
    factor: f32,
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
        Ok(MatrixRef { format, rows, columns, bytes, factor: 1.0 })
    }

    /// The same with a factor on all weights; products are multiplied by it when their sums are done.
    #[must_use]
    pub fn with_factor(self, factor: f32) -> Self {
        Self { factor, ..self }
    }

    /// What the weights are multiplied by, mostly 1.
    pub fn factor(&self) -> f32 {
        self.factor
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
