//! IQ1_S: `[f16 scale][32 bytes: low index bits][8 u16]`, 256 columns; the u16 of 32 columns holds the upper three bits of four
//! indices, a three-bit sub-scale (bits 12..15) and the sign of the shift (bit 15).
//! IQ1_M: `[32 bytes: low index bits][16 bytes: nibbles of upper index bits and sign][4 u16]`; a u16 holds four three-bit
//! sub-scales, of 16 columns each, and four bits of the f16 scale, the lowest in the first one.
//!
//! An index stands for eight columns of the grid; value = scale * (2 * sub_scale + 1) * (grid + shift), where the shift is an
//! eighth or its negative, of 32 columns in IQ1_S and of 8 in IQ1_M. Eight times `grid + shift` is an integer:
//! [`shifted`] gives it plus [`SHIFTED_OFFSET`].

use super::grids::IQ1;
use super::{BlockFields, QuantizedFormat, u16_at};
use crate::WeightFormat;

/// What is taken off the bytes of [`shifted`].
pub(crate) const SHIFTED_OFFSET: i16 = 9;

pub(crate) struct Iq1S;
pub(crate) struct Iq1M;

/// The columns of an entry, eight times and with the shift added (subtracted where `negative` is 1), plus nine.
#[inline(always)] // into the kernels
pub(crate) fn shifted(index: usize, negative: usize) -> u64 {
    // Eight is in the grid, one more for either shift.
    IQ1[index % IQ1.len()] + [0x0202_0202_0202_0202, 0][negative % 2]
}

impl QuantizedFormat for Iq1S {
    const FORMAT: WeightFormat = WeightFormat::Iq1S;

    fn read(block: &[u8], fields: &mut BlockFields) {
        fields.scale = u16_at(block, 0);
        for step in 0..8 {
            let high = usize::from(u16_at(block, 34 + 2 * step));
            fields.sub_scales[2 * step..][..2].fill((2 * (high >> 12 & 7) + 1) as u8);
            for entry in 0..4 {
                let index = usize::from(block[2 + 4 * step + entry]) | (high >> (3 * entry) & 7) << 8;
                fields.put_eight(4 * step + entry, shifted(index, high >> 15));
            }
        }
    }

    fn dequantize(fields: &BlockFields, out: &mut [f32]) {
        fields.dequantize_sub_blocks(0.125, SHIFTED_OFFSET, out);
    }
}

impl QuantizedFormat for Iq1M {
    const FORMAT: WeightFormat = WeightFormat::Iq1M;

    fn read(block: &[u8], fields: &mut BlockFields) {
        fields.scale = 0;
        for index in 0..4 {
            let word = u16_at(block, 48 + 2 * index);
            fields.scale |= word >> 12 << (4 * index);
            for part in 0..4 {
                fields.sub_scales[4 * index + part] = (2 * (word >> (3 * part) & 7) + 1) as u8;
            }
        }
        for entry in 0..32 {
            let high = usize::from(block[32 + entry / 2] >> (entry % 2 * 4));
            let index = usize::from(block[entry]) | (high & 7) << 8;
            fields.put_eight(entry, shifted(index, high >> 3));
        }
    }

    fn dequantize(fields: &BlockFields, out: &mut [f32]) {
        fields.dequantize_sub_blocks(0.125, SHIFTED_OFFSET, out);
    }
}
