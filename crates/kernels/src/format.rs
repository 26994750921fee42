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
    /// 256 two-bit values in 16 sub-blocks, each with a four-bit scale and a four-bit minimum.
    Q2K,
    /// 256 three-bit values with offset 4 in 16 sub-blocks, each with a six-bit scale with offset 32.
    Q3K,
    /// 256 columns as 32 points of a ternary grid, shifted by an eighth; a three-bit scale and the shift's sign per 32.
    Iq1S,
    /// As IQ1_S, with scales of 16 columns and signs of 8.
    Iq1M,
    /// 256 columns as 32 of 256 points of a grid and their signs, a four-bit scale per 32 columns.
    Iq2Xxs,
    /// 256 columns as 32 of 512 points of a grid and their signs, a four-bit scale per 16 columns.
    Iq2Xs,
    /// 256 columns as 32 of 1024 points of a grid and their signs, a four-bit scale per 16 columns.
    Iq2S,
    /// 256 columns as 64 of 256 points of a grid and their signs, a four-bit scale per 32 columns.
    Iq3Xxs,
    /// 256 columns as 64 of 512 points of a grid and their signs, a four-bit scale per 32 columns.
    Iq3S,
    /// 32 nibbles that stand for values of a table, and one f16 scale.
    Iq4Nl,
    /// 256 nibbles that stand for values of a table, with a six-bit scale per 32.
    Iq4Xs,
    /// 256 ternary values, five in a byte, and one f16 scale.
    Tq1_0,
    /// 256 ternary values of two bits, and one f16 scale.
    Tq2_0,
    /// 64 codes of four bits (e2m1) with a float of eight bits (e4m3) per 16.
    Nvfp4,
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
const TABLE: [Row; 26] = [
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
    row("Q2_K", 256, 84),
    row("Q3_K", 256, 110),
    row("IQ1_S", 256, 50),
    row("IQ1_M", 256, 56),
    row("IQ2_XXS", 256, 66),
    row("IQ2_XS", 256, 74),
    row("IQ2_S", 256, 82),
    row("IQ3_XXS", 256, 98),
    row("IQ3_S", 256, 110),
    row("IQ4_NL", 32, 18),
    row("IQ4_XS", 256, 136),
    row("TQ1_0", 256, 54),
    row("TQ2_0", 256, 66),
    row("NVFP4", 64, 36),
];

impl WeightFormat {
    /// Every format, in the order of the enum.
    pub const ALL: [WeightFormat; 26] = [
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
        WeightFormat::Q2K,
        WeightFormat::Q3K,
        WeightFormat::Iq1S,
        WeightFormat::Iq1M,
        WeightFormat::Iq2Xxs,
        WeightFormat::Iq2Xs,
        WeightFormat::Iq2S,
        WeightFormat::Iq3Xxs,
        WeightFormat::Iq3S,
        WeightFormat::Iq4Nl,
        WeightFormat::Iq4Xs,
        WeightFormat::Tq1_0,
        WeightFormat::Tq2_0,
        WeightFormat::Nvfp4,
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
