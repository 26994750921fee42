//! Q5_K: `[f16 scale][f16 minimum][12 bytes: six-bit scales and minimums][32 bytes of fifth bits][128 bytes of nibbles]`,
//! 256 columns.
//!
//! Nibbles and scales as in Q4_K. Bit `s` of fifth-bit byte `i` belongs to column `32 * s + i`.

use super::k_scales::{dequantize_with_minimums, read_scales_and_minimums};
use super::q4_k::read_nibble_runs;
use super::{BlockFields, QuantizedFormat, u16_at};
use crate::WeightFormat;

pub(crate) struct Q5K;

impl QuantizedFormat for Q5K {
    const FORMAT: WeightFormat = WeightFormat::Q5K;

    fn read(block: &[u8], fields: &mut BlockFields) {
        fields.scale = u16_at(block, 0);
        fields.minimum = u16_at(block, 2);
        read_scales_and_minimums(&block[4..16], fields);
        read_nibble_runs(&block[48..176], &mut fields.quants);
        let fifth_bits = &block[16..48];
        for (sub_block, quants) in fields.quants.chunks_exact_mut(32).enumerate() {
            for (quant, bits) in quants.iter_mut().zip(fifth_bits) {
                *quant |= (bits >> sub_block & 1) << 4;
            }
        }
    }

    fn dequantize(fields: &BlockFields, out: &mut [f32]) {
        dequantize_with_minimums(fields, out);
    }
}
