//! The weight formats the kernels know: one table, one row per format.
//!
//! Owns names and source block sizes (as in GGUF files). It knows no GGUF type numbers and no packed sizes: the first
//! belong to `coldpress-formats`, the second to [`crate::layout`]. What the bytes of a block mean is in [`crate::blocks`].

use std::fmt;

/// How the weights of one matrix are stored. The names are those of ggml.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(non_camel_case_types)] // the field writes these names with underscores
pub enum WeightFormat {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// bfloat16: the upper half of a binary32.
    BF16,
    /// 32 signed bytes and one f16 scale.
    Q8_0,
    /// 32 nibbles with offset 8 and one f16 scale.
    Q4_0,
    /// 32 nibbles, one f16 scale, one f16 minimum.
    Q4_1,
    /// 32 five-bit values with offset 16 and one f16 scale.
    Q5_0,
    /// 32 five-bit values, one f16 scale, one f16 minimum.
    Q5_1,
    /// 256 nibbles in 8 sub-blocks, each with a six-bit scale and a six-bit minimum.
    Q4K,
    /// 256 five-bit values in 8 sub-blocks, each with a six-bit scale and a six-bit minimum.
    Q5K,
    /// 256 six-bit values with offset 32 in 16 sub-blocks, each with a signed eight-bit scale.
    Q6K,
    /// 32 codes of four bits (e2m1) and one power of two (e8m0): MXFP4 of the OCP microscaling formats.
    Mxfp4,
}

struct Row {
    name: &'static str,
    block_elements: usize,
    block_bytes: usize,
}

const fn row(name: &'static str, block_elements: usize, block_bytes: usize) -> Row {
    Row { name, block_elements, block_bytes }
}

/// In the order of the enum.
const TABLE: [Row; 12] = [
    row("F32", 1, 4),
    row("F16", 1, 2),
    row("BF16", 1, 2),
    row("Q8_0", 32, 34),
    row("Q4_0", 32, 18),
    row("Q4_1", 32, 20),
    row("Q5_0", 32, 22),
    row("Q5_1", 32, 24),
    row("Q4_K", 256, 144),
    row("Q5_K", 256, 176),
    row("Q6_K", 256, 210),
    row("MXFP4", 32, 17),
];

impl WeightFormat {
    /// Every format, in the order of the enum.
    pub const ALL: [WeightFormat; 12] = [
        WeightFormat::F32,
        WeightFormat::F16,
        WeightFormat::BF16,
        WeightFormat::Q8_0,
        WeightFormat::Q4_0,
        WeightFormat::Q4_1,
        WeightFormat::Q5_0,
        WeightFormat::Q5_1,
        WeightFormat::Q4K,
        WeightFormat::Q5K,
        WeightFormat::Q6K,
        WeightFormat::Mxfp4,
    ];

    /// The name used by ggml, for example `Q4_K`.
    pub const fn name(self) -> &'static str {
        TABLE[self as usize].name
    }

    /// Elements in one source block; 1 for float formats.
    pub const fn block_elements(self) -> usize {
        TABLE[self as usize].block_elements
    }

    /// Bytes of one source block.
    pub const fn block_bytes(self) -> usize {
        TABLE[self as usize].block_bytes
    }

    /// True for the block formats, whose products run on int8 activations; false for F32, F16 and BF16.
    pub const fn is_quantized(self) -> bool {
        self.block_elements() > 1
    }

    /// True when a row of `columns` elements is a whole number of blocks and not empty.
    pub const fn accepts_columns(self, columns: usize) -> bool {
        columns > 0 && columns.is_multiple_of(self.block_elements())
    }

    /// Source bytes of one row of `columns` elements.
    ///
    /// # Panics
    /// When `columns` is not a whole number of blocks (see [`WeightFormat::accepts_columns`]).
    pub const fn row_bytes(self, columns: usize) -> usize {
        assert!(self.accepts_columns(columns), "a row must be a whole number of blocks");
        columns / self.block_elements() * self.block_bytes()
    }
}

impl fmt::Display for WeightFormat {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}
