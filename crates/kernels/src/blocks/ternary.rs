//! TQ1_0: `[32 + 16 bytes of five trits][4 bytes of four trits][f16 scale]`, 256 columns, value = scale * (q - 1).
//! TQ2_0: `[64 bytes of bit pairs][f16 scale]`, 256 columns, value = scale * (q - 1).
//!
//! A byte of trits is a fraction of 256; trit `k` is the integer part of three times what is left after multiplying the byte
//! by `3^k` and dropping whole numbers. Trit `k` of byte `i` of the first 32 is column `32 * k + i`, of the next 16
//! column `160 + 16 * k + i`, of the last four column `240 + 4 * k + i`. Bit pairs lie as in Q2_K.

use super::q2_k::read_bit_pairs;
use super::{BlockFields, QuantizedFormat, u16_at};
use crate::WeightFormat;

pub(crate) struct Tq1_0;
pub(crate) struct Tq2_0;

/// What moves trit `k` to the front.
pub(crate) const POWERS_OF_THREE: [u8; 5] = [1, 3, 9, 27, 81];

impl QuantizedFormat for Tq1_0 {
    const FORMAT: WeightFormat = WeightFormat::Tq1_0;

    fn read(block: &[u8], fields: &mut BlockFields) {
        let (first, rest) = fields.quants.split_at_mut(160);
        let (second, third) = rest.split_at_mut(80);
        for (bytes, quants) in [(&block[..32], first), (&block[32..48], second), (&block[48..52], third)] {
            for (quants, power) in quants.chunks_exact_mut(bytes.len()).zip(POWERS_OF_THREE) {
                for (quant, byte) in quants.iter_mut().zip(bytes) {
                    *quant = ((u16::from(byte.wrapping_mul(power)) * 3) >> 8) as u8;
                }
            }
        }
        fields.scale = u16_at(block, 52);
    }

    fn dequantize(fields: &BlockFields, out: &mut [f32]) {
        dequantize_ternary(fields, out);
    }
}

impl QuantizedFormat for Tq2_0 {
    const FORMAT: WeightFormat = WeightFormat::Tq2_0;

    fn read(block: &[u8], fields: &mut BlockFields) {
        read_bit_pairs(&block[..64], &mut fields.quants);
        fields.scale = u16_at(block, 64);
    }

    fn dequantize(fields: &BlockFields, out: &mut [f32]) {
        dequantize_ternary(fields, out);
    }
}

fn dequantize_ternary(fields: &BlockFields, out: &mut [f32]) {
    let scale = fields.scale_f32();
    for (value, &quant) in out.iter_mut().zip(&fields.quants) {
        *value = scale * f32::from(i16::from(quant) - 1);
    }
}
