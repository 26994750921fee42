//! IQ2_XXS: `[f16 scale][8 x (4 index bytes, u32: four times seven sign bits, four-bit sub-scale)]`, 256 columns.
//! IQ2_XS: `[f16 scale][32 u16: nine-bit index, seven sign bits][8 bytes of sub-scale nibbles]`.
//! IQ2_S: `[f16 scale][32 bytes: low index bits][32 bytes of sign bits][8 bytes: upper index bits][8 bytes of sub-scale nibbles]`.
//!
//! An index stands for the magnitudes of eight columns, a sign bit for a negative one; of seven sign bits the eighth is their
//! parity. value = scale * (2 * sub_scale + 1) / 8 * magnitude; a sub-scale belongs to 32 columns in IQ2_XXS, else to 16.

use super::{BlockFields, QuantizedFormat, grids, u16_at, u32_at};
use crate::WeightFormat;

pub(crate) struct Iq2Xxs;
pub(crate) struct Iq2Xs;
pub(crate) struct Iq2S;

/// Seven sign bits and their parity.
pub(super) fn with_parity(signs: u32) -> u8 {
    let signs = (signs & 0x7f) as u8;
    signs | (signs.count_ones() as u8 & 1) << 7
}

impl QuantizedFormat for Iq2Xxs {
    const FORMAT: WeightFormat = WeightFormat::Iq2Xxs;

    fn read(block: &[u8], fields: &mut BlockFields) {
        fields.scale = u16_at(block, 0);
        for (step, bytes) in block[2..].chunks_exact(8).enumerate() {
            let word = u32_at(bytes, 4);
            fields.sub_scales[2 * step..][..2].fill((2 * (word >> 28) + 1) as u8);
            for (entry, &index) in bytes[..4].iter().enumerate() {
                fields.put_eight(4 * step + entry, grids::IQ2_XXS[usize::from(index)]);
                fields.negate_eight(4 * step + entry, with_parity(word >> (7 * entry)));
            }
        }
    }

    fn dequantize(fields: &BlockFields, out: &mut [f32]) {
        fields.dequantize_sub_blocks(0.125, 0, out);
    }
}

impl QuantizedFormat for Iq2Xs {
    const FORMAT: WeightFormat = WeightFormat::Iq2Xs;

    fn read(block: &[u8], fields: &mut BlockFields) {
        fields.scale = u16_at(block, 0);
        for entry in 0..32 {
            let word = u16_at(block, 2 + 2 * entry);
            fields.put_eight(entry, grids::IQ2_XS[usize::from(word & 0x1ff)]);
            fields.negate_eight(entry, with_parity(u32::from(word >> 9)));
        }
        read_odd_nibbles(&block[66..74], &mut fields.sub_scales);
    }

    fn dequantize(fields: &BlockFields, out: &mut [f32]) {
        fields.dequantize_sub_blocks(0.125, 0, out);
    }
}

impl QuantizedFormat for Iq2S {
    const FORMAT: WeightFormat = WeightFormat::Iq2S;

    fn read(block: &[u8], fields: &mut BlockFields) {
        fields.scale = u16_at(block, 0);
        for entry in 0..32 {
            let high = usize::from(block[66 + entry / 4] >> (entry % 4 * 2) & 3);
            fields.put_eight(entry, grids::IQ2_S[usize::from(block[2 + entry]) | high << 8]);
            fields.negate_eight(entry, block[34 + entry]);
        }
        read_odd_nibbles(&block[74..82], &mut fields.sub_scales);
    }

    fn dequantize(fields: &BlockFields, out: &mut [f32]) {
        fields.dequantize_sub_blocks(0.125, 0, out);
    }
}

/// Sub-scales of 16 columns each: twice a nibble and one, low nibbles first.
fn read_odd_nibbles(bytes: &[u8], sub_scales: &mut [u8; 16]) {
    for (index, sub_scale) in sub_scales.iter_mut().enumerate() {
        *sub_scale = 2 * (bytes[index / 2] >> (index % 2 * 4) & 0x0f) + 1;
    }
}
