//! IQ3_XXS: `[f16 scale][64 index bytes][8 u32: four times seven sign bits, four-bit sub-scale]`, 256 columns.
//! IQ3_S: `[f16 scale][64 bytes: low index bits][8 bytes: ninth index bits][32 bytes of sign bits][4 bytes of sub-scale nibbles]`.
//!
//! An index stands for the magnitudes of four columns; signs as in IQ2_XXS and IQ2_S. A sub-scale belongs to 32 columns;
//! value = scale * (2 * sub_scale + 1) * magnitude, in IQ3_XXS a quarter of it.

use super::iq2::with_parity;
use super::{BlockFields, QuantizedFormat, grids, u16_at, u32_at};
use crate::WeightFormat;

pub(crate) struct Iq3Xxs;
pub(crate) struct Iq3S;

impl QuantizedFormat for Iq3Xxs {
    const FORMAT: WeightFormat = WeightFormat::Iq3Xxs;

    fn read(block: &[u8], fields: &mut BlockFields) {
        fields.scale = u16_at(block, 0);
        for step in 0..8 {
            let word = u32_at(block, 66 + 4 * step);
            fields.sub_scales[2 * step..][..2].fill((2 * (word >> 28) + 1) as u8);
            for entry in 0..4 {
                let at = 2 + 8 * step + 2 * entry;
                let [first, second] =
                    [block[at], block[at + 1]].map(|byte| grids::IQ3_XXS[usize::from(byte)]);
                fields.put_eight(4 * step + entry, u64::from(first) | u64::from(second) << 32);
                fields.negate_eight(4 * step + entry, with_parity(word >> (7 * entry)));
            }
        }
    }

    fn dequantize(fields: &BlockFields, out: &mut [f32]) {
        fields.dequantize_sub_blocks(0.25, 0, out);
    }
}

impl QuantizedFormat for Iq3S {
    const FORMAT: WeightFormat = WeightFormat::Iq3S;

    fn read(block: &[u8], fields: &mut BlockFields) {
        fields.scale = u16_at(block, 0);
        for entry in 0..32 {
            let four = |index: usize| {
                let high = usize::from(block[66 + index / 8] >> (index % 8) & 1);
                u64::from(grids::IQ3_S[usize::from(block[2 + index]) | high << 8])
            };
            fields.put_eight(entry, four(2 * entry) | four(2 * entry + 1) << 32);
            fields.negate_eight(entry, block[74 + entry]);
        }
        for (index, sub_scale) in fields.sub_scales.iter_mut().enumerate() {
            *sub_scale = 2 * (block[106 + index / 4] >> (index / 2 % 2 * 4) & 0x0f) + 1;
        }
    }

    fn dequantize(fields: &BlockFields, out: &mut [f32]) {
        fields.dequantize_sub_blocks(1.0, 0, out);
    }
}
