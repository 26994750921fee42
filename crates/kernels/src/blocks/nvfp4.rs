//! NVFP4: `[4 scales of eight bits][32 bytes of nibbles]`, 64 columns, value = scale * e2m1(q), one scale per 16 columns.
//!
//! Codes as in MXFP4, doubled, with halved scales. Scales are e4m3 floats whose sign is ignored; 0x7f counts as zero, as in
//! ggml. Byte `i` of the 8 nibble bytes of a sub-block holds column `i` in its low half and column `i + 8` in its high half.

use super::mxfp4::doubled;
use super::{BlockFields, QuantizedFormat};
use crate::WeightFormat;

pub(crate) struct Nvfp4;

impl QuantizedFormat for Nvfp4 {
    const FORMAT: WeightFormat = WeightFormat::Nvfp4;

    fn read(block: &[u8], fields: &mut BlockFields) {
        let (scales, nibbles) = block.split_at(4);
        for (sub_scale, &scale) in fields.sub_scales.iter_mut().zip(scales) {
            *sub_scale = if scale == 0x7f { 0 } else { scale };
        }
        for (nibbles, quants) in nibbles.chunks_exact(8).zip(fields.quants.chunks_exact_mut(16)) {
            let (low, high) = quants.split_at_mut(8);
            for ((byte, low), high) in nibbles.iter().zip(low).zip(high) {
                *low = byte & 0x0f;
                *high = byte >> 4;
            }
        }
    }

    fn dequantize(fields: &BlockFields, out: &mut [f32]) {
        let sub_blocks = out.chunks_exact_mut(16).zip(fields.quants.chunks_exact(16));
        for ((values, quants), &sub_scale) in sub_blocks.zip(&fields.sub_scales) {
            let scale = scale_of_float8(sub_scale);
            for (value, &quant) in values.iter_mut().zip(quants) {
                *value = scale * f32::from(doubled(quant));
            }
        }
    }
}

/// What [`float8_bits`] is multiplied by: the difference of the exponent biases of f32 and e4m3, halved for doubled codes.
pub(crate) const FLOAT8_FACTOR: f32 = f32::from_bits((127 + 119) << 23);

/// Half the value of an e4m3 byte without its sign.
pub(crate) fn scale_of_float8(byte: u8) -> f32 {
    f32::from_bits(float8_bits(byte)) * FLOAT8_FACTOR
}

/// Exponent and mantissa of e4m3 in the places of those of f32.
const fn float8_bits(byte: u8) -> u32 {
    (byte as u32 & 0x7f) << 20
}
