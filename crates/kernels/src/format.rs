//! The weight formats the kernels know: one table, one row per format.
//!
//! Owns names and source block sizes (as in GGUF files). It knows no GGUF type numbers and no packed sizes: the first
//! belong to `coldpress-formats`, the second to [`crate::layout`]. What the bytes of a block mean is in [`crate::blocks`],
//! what codes mean in [`crate::coding`].

use std::fmt;

use crate::coding::Coding;

macro_rules! block_formats {
    ($($(#[$doc:meta])* $format:ident = $name:literal, $elements:literal, $bytes:literal;)*) => {
        /// How the weights of one matrix are stored. The names are those of ggml.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(non_camel_case_types)] // the field writes these names with underscores
        pub enum WeightFormat {
            $($(#[$doc])* $format,)*
            /// Codes with scales in arrays of their own; not a format of ggml.
            Codes(Coding),
        }

        impl WeightFormat {
            /// Every format of ggml, in the order of the enum.
            pub const ALL: [WeightFormat; [$($name),*].len()] = [$(WeightFormat::$format),*];

            /// Name, elements and bytes of a block. Codes have no blocks.
            const fn row(self) -> (&'static str, usize, usize) {
                match self {
                    $(WeightFormat::$format => ($name, $elements, $bytes),)*
                    WeightFormat::Codes(coding) => (coding.name(), 1, 0),
                }
            }
        }
    };
}

block_formats! {
    /// IEEE 754 binary32.
    F32 = "F32", 1, 4;
    /// IEEE 754 binary16.
    F16 = "F16", 1, 2;
    /// bfloat16: the upper half of a binary32.
    BF16 = "BF16", 1, 2;
    /// 32 signed bytes and one f16 scale.
    Q8_0 = "Q8_0", 32, 34;
    /// 32 nibbles with offset 8 and one f16 scale.
    Q4_0 = "Q4_0", 32, 18;
    /// 32 nibbles, one f16 scale, one f16 minimum.
    Q4_1 = "Q4_1", 32, 20;
    /// 32 five-bit values with offset 16 and one f16 scale.
    Q5_0 = "Q5_0", 32, 22;
    /// 32 five-bit values, one f16 scale, one f16 minimum.
    Q5_1 = "Q5_1", 32, 24;
    /// 256 nibbles in 8 sub-blocks, each with a six-bit scale and a six-bit minimum.
    Q4K = "Q4_K", 256, 144;
    /// 256 five-bit values in 8 sub-blocks, each with a six-bit scale and a six-bit minimum.
    Q5K = "Q5_K", 256, 176;
    /// 256 six-bit values with offset 32 in 16 sub-blocks, each with a signed eight-bit scale.
    Q6K = "Q6_K", 256, 210;
    /// 32 codes of four bits (e2m1) and one power of two (e8m0): MXFP4 of the OCP microscaling formats.
    Mxfp4 = "MXFP4", 32, 17;
    /// 256 two-bit values in 16 sub-blocks, each with a four-bit scale and a four-bit minimum.
    Q2K = "Q2_K", 256, 84;
    /// 256 three-bit values with offset 4 in 16 sub-blocks, each with a six-bit scale with offset 32.
    Q3K = "Q3_K", 256, 110;
    /// 256 columns as 32 points of a ternary grid, shifted by an eighth; a three-bit scale and the shift's sign per 32.
    Iq1S = "IQ1_S", 256, 50;
    /// As IQ1_S, with scales of 16 columns and signs of 8.
    Iq1M = "IQ1_M", 256, 56;
    /// 256 columns as 32 of 256 points of a grid and their signs, a four-bit scale per 32 columns.
    Iq2Xxs = "IQ2_XXS", 256, 66;
    /// 256 columns as 32 of 512 points of a grid and their signs, a four-bit scale per 16 columns.
    Iq2Xs = "IQ2_XS", 256, 74;
    /// 256 columns as 32 of 1024 points of a grid and their signs, a four-bit scale per 16 columns.
    Iq2S = "IQ2_S", 256, 82;
    /// 256 columns as 64 of 256 points of a grid and their signs, a four-bit scale per 32 columns.
    Iq3Xxs = "IQ3_XXS", 256, 98;
    /// 256 columns as 64 of 512 points of a grid and their signs, a four-bit scale per 32 columns.
    Iq3S = "IQ3_S", 256, 110;
    /// 32 nibbles that stand for values of a table, and one f16 scale.
    Iq4Nl = "IQ4_NL", 32, 18;
    /// 256 nibbles that stand for values of a table, with a six-bit scale per 32.
    Iq4Xs = "IQ4_XS", 256, 136;
    /// 256 ternary values, five in a byte, and one f16 scale.
    Tq1_0 = "TQ1_0", 256, 54;
    /// 256 ternary values of two bits, and one f16 scale.
    Tq2_0 = "TQ2_0", 256, 66;
    /// 64 codes of four bits (e2m1) with a float of eight bits (e4m3) per 16.
    Nvfp4 = "NVFP4", 64, 36;
}

impl WeightFormat {
    /// The name used by ggml, for example `Q4_K`; that of [`Coding::name`] for codes.
    pub const fn name(self) -> &'static str {
        self.row().0
    }

    /// Elements in one source block; 1 for floats and codes.
    pub const fn block_elements(self) -> usize {
        self.row().1
    }

    /// Bytes of one source block; 0 for codes, see [`WeightFormat::row_bytes`].
    pub const fn block_bytes(self) -> usize {
        self.row().2
    }

    /// True for F32, F16 and BF16.
    pub const fn is_float(self) -> bool {
        matches!(self, WeightFormat::F32 | WeightFormat::F16 | WeightFormat::BF16)
    }

    /// True for the block formats of ggml, whose products take int8 activations; those of floats and of codes take f32.
    pub const fn takes_int8(self) -> bool {
        self.block_elements() > 1
    }

    /// True when a row of `columns` elements is a whole number of blocks and not empty.
    pub const fn accepts_columns(self, columns: usize) -> bool {
        match self {
            WeightFormat::Codes(_) => columns > 0,
            _ => columns > 0 && columns.is_multiple_of(self.block_elements()),
        }
    }

    /// Source bytes of one row of `columns` elements; of codes, without scales and gaps.
    ///
    /// # Panics
    /// When `columns` is not a whole number of blocks (see [`WeightFormat::accepts_columns`]).
    pub const fn row_bytes(self, columns: usize) -> usize {
        assert!(self.accepts_columns(columns), "a row must be a whole number of blocks");
        match self {
            WeightFormat::Codes(coding) => (columns * coding.bits()).div_ceil(8),
            _ => columns / self.block_elements() * self.block_bytes(),
        }
    }
}

impl fmt::Display for WeightFormat {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WeightFormat::Codes(coding) => coding.fmt(formatter),
            format => formatter.write_str(format.name()),
        }
    }
}
