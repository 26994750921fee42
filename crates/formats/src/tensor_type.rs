//! The tensor types of ggml, and the element types that only safetensors files have: number, name and block size, in one table.
//!
//! The figures agree with the PyPI package `gguf` 0.19 (`GGMLQuantizationType`, `GGML_QUANT_SIZES`). Numbers
//! outside the table are never given a size: a file that uses one is refused with the tensor and the number.

use std::fmt;

macro_rules! tensor_types {
    ($($variant:ident = $id:literal, $name:literal, $elements:literal, $bytes:literal;)*) => {
        /// How the elements of a tensor are stored. The variants carry ggml's own names.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "the names are ggml's; the table beside them is the documentation")]
        pub enum TensorType {
            $($variant,)*
        }

        /// One line per type: type, number in files, name, elements per block, bytes per block.
        const TABLE: &[(TensorType, u32, &str, u64, u64)] =
            &[$((TensorType::$variant, $id, $name, $elements, $bytes),)*];
    };
}

// The order is that of the numbers. Q8_1 and Q8_K are types of intermediate results; no known tool writes
// them to a file. For Q8_1 the package says 40 bytes, while a block in ggml's C code has 36.
tensor_types! {
    F32 = 0, "F32", 1, 4;
    F16 = 1, "F16", 1, 2;
    Q4_0 = 2, "Q4_0", 32, 18;
    Q4_1 = 3, "Q4_1", 32, 20;
    Q5_0 = 6, "Q5_0", 32, 22;
    Q5_1 = 7, "Q5_1", 32, 24;
    Q8_0 = 8, "Q8_0", 32, 34;
    Q8_1 = 9, "Q8_1", 32, 40;
    Q2K = 10, "Q2_K", 256, 84;
    Q3K = 11, "Q3_K", 256, 110;
    Q4K = 12, "Q4_K", 256, 144;
    Q5K = 13, "Q5_K", 256, 176;
    Q6K = 14, "Q6_K", 256, 210;
    Q8K = 15, "Q8_K", 256, 292;
    Iq2Xxs = 16, "IQ2_XXS", 256, 66;
    Iq2Xs = 17, "IQ2_XS", 256, 74;
    Iq3Xxs = 18, "IQ3_XXS", 256, 98;
    Iq1S = 19, "IQ1_S", 256, 50;
    Iq4Nl = 20, "IQ4_NL", 32, 18;
    Iq3S = 21, "IQ3_S", 256, 110;
    Iq2S = 22, "IQ2_S", 256, 82;
    Iq4Xs = 23, "IQ4_XS", 256, 136;
    I8 = 24, "I8", 1, 1;
    I16 = 25, "I16", 1, 2;
    I32 = 26, "I32", 1, 4;
    I64 = 27, "I64", 1, 8;
    F64 = 28, "F64", 1, 8;
    Iq1M = 29, "IQ1_M", 256, 56;
    Bf16 = 30, "BF16", 1, 2;
    Tq1_0 = 34, "TQ1_0", 256, 54;
    Tq2_0 = 35, "TQ2_0", 256, 66;
    Mxfp4 = 39, "MXFP4", 32, 17;
    Nvfp4 = 40, "NVFP4", 64, 36;
    Q1_0 = 41, "Q1_0", 128, 18;
    U32 = 0x8000_0000, "U32", 1, 4;
    F8E4m3 = 0x8000_0001, "F8_E4M3", 1, 1;
    F8E5m2 = 0x8000_0002, "F8_E5M2", 1, 1;
    F8E8m0 = 0x8000_0003, "F8_E8M0", 1, 1;
}

/// Numbers from here on belong to types of safetensors files and stand in no file.
const NOT_GGML: u32 = 1 << 31;

/// Numbers without a size here, with what a file that shows one probably is.
const NOT_READ: &[(u32, &str)] = &[
    (4, "it was Q4_2, dropped in 2023; some ollama files use it for their own MXFP4 blocks"),
    (5, "it was Q4_3, dropped in 2023"),
    (31, "it was the repacked type Q4_0_4_4, dropped in 2025; use the Q4_0 file of the model"),
    (32, "it was the repacked type Q4_0_4_8, dropped in 2025; use the Q4_0 file of the model"),
    (33, "it was the repacked type Q4_0_8_8, dropped in 2025; use the Q4_0 file of the model"),
    (36, "it was the repacked type IQ4_NL_4_4, dropped in 2025; use the IQ4_NL file of the model"),
    (37, "it was the repacked type IQ4_NL_4_8, dropped in 2025; use the IQ4_NL file of the model"),
    (38, "it was the repacked type IQ4_NL_8_8, dropped in 2025; use the IQ4_NL file of the model"),
    (42, "newer ggml uses it for Q2_0, which this version does not read"),
];

/// ik_llama.cpp numbers its own types from here to below [`FORK_END`].
const FORK_START: u32 = 97;
const FORK_END: u32 = 400;

impl TensorType {
    /// Every type of the table, in the order of the numbers.
    pub fn all() -> impl Iterator<Item = TensorType> {
        TABLE.iter().map(|row| row.0)
    }

    /// The type with this number in files, or `None` if ggml has no such number.
    pub fn from_id(id: u32) -> Option<TensorType> {
        TABLE.iter().find(|row| row.1 == id && row.0.is_ggml()).map(|row| row.0)
    }

    /// The type with this name as ggml writes it (`Q4_K`), upper or lower case.
    pub fn from_name(name: &str) -> Option<TensorType> {
        TABLE.iter().find(|row| row.2.eq_ignore_ascii_case(name)).map(|row| row.0)
    }

    fn row(self) -> &'static (TensorType, u32, &'static str, u64, u64) {
        &TABLE[self as usize]
    }

    /// Whether ggml has this type; the others are element types of safetensors files.
    pub fn is_ggml(self) -> bool {
        self.row().1 < NOT_GGML
    }

    /// The number that stands for this type in files; only of types of ggml.
    pub fn id(self) -> u32 {
        self.row().1
    }

    /// ggml's name of this type, such as `Q4_K`.
    pub fn name(self) -> &'static str {
        self.row().2
    }

    /// Elements in one block. A row is a whole number of blocks.
    pub fn block_elements(self) -> u64 {
        self.row().3
    }

    /// Bytes of one block.
    pub fn block_bytes(self) -> u64 {
        self.row().4
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// What is known about a number that is not in the table; used in the error about it.
pub(crate) fn explain_unknown(id: u32) -> &'static str {
    match NOT_READ.iter().find(|row| row.0 == id) {
        Some(row) => row.1,
        None if (FORK_START..FORK_END).contains(&id) => {
            "numbers from 97 to 399 belong to the fork ik_llama.cpp; use a file made for ggml"
        }
        None => "it is not a number of ggml; the file is damaged or made for a newer or other program",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_enum_and_round_trips() {
        for (position, row) in TABLE.iter().enumerate() {
            assert_eq!(row.0 as usize, position);
            assert_eq!(
                TensorType::from_id(row.0.id()),
                Some(row.0).filter(|tensor_type| tensor_type.is_ggml())
            );
            assert_eq!(TensorType::from_name(row.0.name()), Some(row.0));
            assert!(row.0.block_elements() > 0 && row.0.block_bytes() > 0);
        }
        for former in NOT_READ {
            assert_eq!(TensorType::from_id(former.0), None);
        }
    }
}
