//! Byte order of blocks from big-endian files.
//!
//! Only fields wider than a byte are turned round: scales and minimums, the fifth bits of Q5_0 and Q5_1 (which ggml reads
//! as one native u32), and the elements of float formats. Everything else is bytes in both orders.

use crate::WeightFormat;

/// Byte ranges of the multi-byte fields of one source block: (offset, width).
const fn wide_fields(format: WeightFormat) -> &'static [(usize, usize)] {
    match format {
        WeightFormat::F32 => &[(0, 4)],
        WeightFormat::F16 | WeightFormat::BF16 => &[(0, 2)],
        WeightFormat::Q8_0 | WeightFormat::Q4_0 => &[(0, 2)],
        WeightFormat::Q4_1 | WeightFormat::Q4K | WeightFormat::Q5K => &[(0, 2), (2, 2)],
        WeightFormat::Q5_0 => &[(0, 2), (2, 4)],
        WeightFormat::Q5_1 => &[(0, 2), (2, 2), (4, 4)],
        WeightFormat::Q6K => &[(208, 2)],
        WeightFormat::Mxfp4 | WeightFormat::Nvfp4 => &[],
        WeightFormat::Q2K => &[(80, 2), (82, 2)],
        WeightFormat::Q3K => &[(108, 2)],
        WeightFormat::Iq2S | WeightFormat::Iq3S | WeightFormat::Iq4Nl => &[(0, 2)],
        WeightFormat::Iq4Xs => &[(0, 2), (2, 2)],
        WeightFormat::Tq1_0 => &[(52, 2)],
        WeightFormat::Tq2_0 => &[(64, 2)],
        WeightFormat::Iq1S
        | WeightFormat::Iq1M
        | WeightFormat::Iq2Xxs
        | WeightFormat::Iq2Xs
        | WeightFormat::Iq3Xxs
        | WeightFormat::Codes(_) => panic!("the byte order of these formats is not defined"),
    }
}

/// False for the IQ formats that ggml reads as words in one place and as bytes in another, so that nobody can say what a
/// big-endian file of them holds, and for codes, which only little-endian files have.
pub const fn has_big_endian_form(format: WeightFormat) -> bool {
    use WeightFormat::{Iq1M, Iq1S, Iq2Xs, Iq2Xxs, Iq3Xxs};
    !matches!(format, Iq1S | Iq1M | Iq2Xxs | Iq2Xs | Iq3Xxs | WeightFormat::Codes(_))
}

/// Turns whole blocks of a big-endian file into little-endian blocks, in place (and back again).
///
/// # Panics
/// When `bytes` is not a whole number of blocks, or the format has no big-endian form ([`has_big_endian_form`]).
pub fn to_little_endian(format: WeightFormat, bytes: &mut [u8]) {
    assert!(bytes.len().is_multiple_of(format.block_bytes()), "{format}: not a whole number of blocks");
    for block in bytes.chunks_exact_mut(format.block_bytes()) {
        for &(offset, width) in wide_fields(format) {
            block[offset..offset + width].reverse();
        }
    }
}
