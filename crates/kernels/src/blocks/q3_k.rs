//! Q3_K: `[32 bytes of third bits][64 bytes of bit pairs][12 bytes: 16 six-bit scales][f16 scale]`, 256 columns,
//! value = scale * (sub_scale - 32) * (q - 4), one sub-scale per 16 columns.
//!
//! Bit pairs as in Q2_K; bit `k` of third-bit byte `i` belongs to column `32 * k + i`. Scale bytes 0..8 hold the low nibbles
//! of scales 0..8 (low halves) and 8..16 (high halves); bit pair `k` of byte `8 + i` is the upper part of scale `4 * k + i`.

use super::q2_k::read_bit_pairs;
use super::{BlockFields, QuantizedFormat, u16_at};
use crate::WeightFormat;

pub(crate) struct Q3K;

impl QuantizedFormat for Q3K {
    const FORMAT: WeightFormat = WeightFormat::Q3K;

    fn read(block: &[u8], fields: &mut BlockFields) {
        let (third, rest) = block.split_at(32);
        read_bit_pairs(&rest[..64], &mut fields.quants);
        for (bit, columns) in fields.quants.chunks_exact_mut(32).enumerate() {
            for (byte, column) in third.iter().zip(columns) {
                *column |= (byte >> bit & 1) << 2;
            }
        }
        let scales = &rest[64..76];
        for (index, sub_scale) in fields.sub_scales.iter_mut().enumerate() {
            let low = scales[index % 8] >> (index / 8 * 4) & 0x0f;
            let high = scales[8 + index % 4] >> (index / 4 * 2) & 3;
            *sub_scale = (low | high << 4).wrapping_sub(32);
        }
        fields.scale = u16_at(rest, 76);
    }

    fn dequantize(fields: &BlockFields, out: &mut [f32]) {
        fields.dequantize_sub_blocks(1.0, 4, out);
    }
}
