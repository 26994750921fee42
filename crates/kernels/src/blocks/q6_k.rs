//! Q6_K: `[128 bytes of low nibbles][64 bytes of high bit pairs][16 signed scales][f16 scale]`, 256 columns,
//! value = (scale * sub_scale) * (q - 32), one sub-scale per 16 columns.
//!
//! The block is two halves of 128 columns. In each half, nibble bytes 0..32 hold columns 0..32 (low) and 64..96 (high),
//! bytes 32..64 hold columns 32..64 (low) and 96..128 (high); bit pair `k` of byte `i` belongs to column `32 * k + i`.

use super::{BlockFields, QuantizedFormat, u16_at};
use crate::WeightFormat;

pub(crate) struct Q6K;

impl QuantizedFormat for Q6K {
    const FORMAT: WeightFormat = WeightFormat::Q6K;

    fn read(block: &[u8], fields: &mut BlockFields) {
        let (low, rest) = block.split_at(128);
        let (high, rest) = rest.split_at(64);
        let halves = low.chunks_exact(64).zip(high.chunks_exact(32));
        for ((nibbles, pairs), quants) in halves.zip(fields.quants.chunks_exact_mut(128)) {
            for index in 0..32 {
                let (first, second, pair) = (nibbles[index], nibbles[index + 32], pairs[index]);
                quants[index] = (first & 0x0f) | (pair & 3) << 4;
                quants[index + 32] = (second & 0x0f) | (pair >> 2 & 3) << 4;
                quants[index + 64] = (first >> 4) | (pair >> 4 & 3) << 4;
                quants[index + 96] = (second >> 4) | (pair >> 6) << 4;
            }
        }
        fields.sub_scales.copy_from_slice(&rest[..16]);
        fields.scale = u16_at(rest, 16);
    }

    fn dequantize(fields: &BlockFields, out: &mut [f32]) {
        let scale = fields.scale_f32();
        let sub_blocks = out.chunks_exact_mut(16).zip(fields.quants.chunks_exact(16));
        for ((values, quants), sub_scale) in sub_blocks.zip(fields.sub_scales) {
            let step_scale = scale * f32::from(sub_scale.cast_signed());
            for (value, &quant) in values.iter_mut().zip(quants) {
                *value = step_scale * f32::from(i16::from(quant) - 32);
            }
        }
    }
}
