//! Q4_K: `[f16 scale][f16 minimum][12 bytes: six-bit scales and minimums][128 bytes of nibbles]`, 256 columns.
//!
//! Each run of 32 nibble bytes holds 64 columns: the first 32 in the low halves, the next 32 in the high halves.

use super::k_scales::{dequantize_with_minimums, read_scales_and_minimums};
use super::{BlockFields, QuantizedFormat, u16_at};
use crate::WeightFormat;

pub(crate) struct Q4K;

impl QuantizedFormat for Q4K {
    const FORMAT: WeightFormat = WeightFormat::Q4K;

    fn read(block: &[u8], fields: &mut BlockFields) {
        fields.scale = u16_at(block, 0);
        fields.minimum = u16_at(block, 2);
        read_scales_and_minimums(&block[4..16], fields);
        read_nibble_runs(&block[16..144], &mut fields.quants);
    }

    fn dequantize(fields: &BlockFields, out: &mut [f32]) {
        dequantize_with_minimums(fields, out);
    }
}

/// 128 bytes to 256 values, in runs of 32 bytes and 64 columns.
pub(super) fn read_nibble_runs(bytes: &[u8], quants: &mut [u8]) {
    for (run, columns) in bytes.chunks_exact(32).zip(quants.chunks_exact_mut(64)) {
        let (low, high) = columns.split_at_mut(32);
        for ((byte, low), high) in run.iter().zip(low).zip(high) {
            *low = byte & 0x0f;
            *high = byte >> 4;
        }
    }
}
