//! Q5_0: `[f16 scale][u32 fifth bits][16 bytes of nibbles]`, value = scale * (q - 16).
//! Q5_1: `[f16 scale][f16 minimum][u32 fifth bits][16 bytes of nibbles]`, value = scale * q + minimum.
//!
//! Nibbles as in Q4_0; bit `i` of the fifth bits belongs to column `i`.

use half::f16;

use super::q4::{read_nibbles, write_nibbles};
use super::{BlockFields, QuantizedFormat, STEP_COLUMNS, signed_scale, spanning_scale, u16_at};
use crate::WeightFormat;

pub(crate) struct Q5_0;
pub(crate) struct Q5_1;

impl QuantizedFormat for Q5_0 {
    const FORMAT: WeightFormat = WeightFormat::Q5_0;
    const NIBBLES_IN_STEP_ORDER: bool = true;

    fn read(block: &[u8], fields: &mut BlockFields) {
        fields.scale = u16_at(block, 0);
        read_five_bits(&block[2..22], &mut fields.quants);
    }

    fn dequantize(fields: &BlockFields, out: &mut [f32]) {
        let scale = fields.scale_f32();
        for (value, &quant) in out.iter_mut().zip(&fields.quants) {
            *value = scale * f32::from(i16::from(quant) - 16);
        }
    }
}

impl QuantizedFormat for Q5_1 {
    const FORMAT: WeightFormat = WeightFormat::Q5_1;
    const NIBBLES_IN_STEP_ORDER: bool = true;

    fn read(block: &[u8], fields: &mut BlockFields) {
        fields.scale = u16_at(block, 0);
        fields.minimum = u16_at(block, 2);
        read_five_bits(&block[4..24], &mut fields.quants);
    }

    fn dequantize(fields: &BlockFields, out: &mut [f32]) {
        let (scale, minimum) = (fields.scale_f32(), fields.minimum_f32());
        for (value, &quant) in out.iter_mut().zip(&fields.quants) {
            *value = scale * f32::from(quant) + minimum;
        }
    }
}

/// `bytes`: four bytes of fifth bits, then 16 bytes of nibbles.
fn read_five_bits(bytes: &[u8], quants: &mut [u8]) {
    read_nibbles(&bytes[4..], quants);
    let fifth = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    for (column, quant) in quants[..STEP_COLUMNS].iter_mut().enumerate() {
        *quant |= ((fifth >> column & 1) as u8) << 4;
    }
}

pub(super) fn write_five_bits(quants: &[u8; STEP_COLUMNS], bytes: &mut [u8]) {
    let mut fifth = 0_u32;
    for (column, &quant) in quants.iter().enumerate() {
        fifth |= u32::from(quant >> 4 & 1) << column;
    }
    bytes[..4].copy_from_slice(&fifth.to_le_bytes());
    write_nibbles(quants, &mut bytes[4..]);
}

pub(super) fn quantize_block_q5_0(values: &[f32; STEP_COLUMNS], out: &mut [u8]) {
    let (scale, inverse) = signed_scale(values, 16.0);
    let quants = values.map(|value| ((value * inverse + 16.5) as u8).min(31));
    out[..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
    write_five_bits(&quants, &mut out[2..]);
}

pub(super) fn quantize_block_q5_1(values: &[f32; STEP_COLUMNS], out: &mut [u8]) {
    let (scale, inverse, minimum) = spanning_scale(values, 31.0);
    let quants = values.map(|value| (((value - minimum) * inverse + 0.5) as u8).min(31));
    out[..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
    out[2..4].copy_from_slice(&f16::from_f32(minimum).to_le_bytes());
    write_five_bits(&quants, &mut out[4..]);
}
