//! Q2_K: `[16 bytes: four-bit scale (low) and minimum (high)][64 bytes of bit pairs][f16 scale][f16 minimum]`, 256 columns,
//! value = (scale * sub_scale) * q - minimum * sub_minimum, one sub-scale and sub-minimum per 16 columns.
//!
//! Each run of 32 bytes of bit pairs holds 128 columns: pair `k` of byte `i` belongs to column `32 * k + i`.

use super::{BlockFields, QuantizedFormat, u16_at};
use crate::WeightFormat;

pub(crate) struct Q2K;

impl QuantizedFormat for Q2K {
    const FORMAT: WeightFormat = WeightFormat::Q2K;

    fn read(block: &[u8], fields: &mut BlockFields) {
        for (index, &byte) in block[..16].iter().enumerate() {
            fields.sub_scales[index] = byte & 0x0f;
            fields.sub_minimums[index] = byte >> 4;
        }
        read_bit_pairs(&block[16..80], &mut fields.quants);
        fields.scale = u16_at(block, 80);
        fields.minimum = u16_at(block, 82);
    }

    fn dequantize(fields: &BlockFields, out: &mut [f32]) {
        let (scale, minimum) = (fields.scale_f32(), fields.minimum_f32());
        let sub_blocks = out.chunks_exact_mut(16).zip(fields.quants.chunks_exact(16));
        for (index, (values, quants)) in sub_blocks.enumerate() {
            let step_scale = scale * f32::from(fields.sub_scales[index]);
            let step_minimum = minimum * f32::from(fields.sub_minimums[index]);
            for (value, &quant) in values.iter_mut().zip(quants) {
                *value = step_scale * f32::from(quant) - step_minimum;
            }
        }
    }
}

/// 64 bytes to 256 values of two bits, in runs of 32 bytes and 128 columns.
pub(super) fn read_bit_pairs(bytes: &[u8], quants: &mut [u8]) {
    for (run, columns) in bytes.chunks_exact(32).zip(quants.chunks_exact_mut(128)) {
        for (pair, columns) in columns.chunks_exact_mut(32).enumerate() {
            for (byte, column) in run.iter().zip(columns) {
                *column = byte >> (2 * pair) & 3;
            }
        }
    }
}
