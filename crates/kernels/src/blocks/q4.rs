//! Q4_0: `[f16 scale][16 bytes of nibbles]`, value = scale * (q - 8).
//! Q4_1: `[f16 scale][f16 minimum][16 bytes of nibbles]`, value = scale * q + minimum.
//!
//! Byte `i` of the nibbles holds column `i` in its low half and column `i + 16` in its high half.

use half::f16;

use super::{BlockFields, QuantizedFormat, STEP_COLUMNS, signed_scale, spanning_scale, u16_at};
use crate::WeightFormat;

pub(crate) struct Q4_0;
pub(crate) struct Q4_1;

impl QuantizedFormat for Q4_0 {
    const FORMAT: WeightFormat = WeightFormat::Q4_0;
    const NIBBLES_IN_STEP_ORDER: bool = true;

    fn read(block: &[u8], fields: &mut BlockFields) {
        fields.scale = u16_at(block, 0);
        read_nibbles(&block[2..18], &mut fields.quants);
    }

    fn dequantize(fields: &BlockFields, out: &mut [f32]) {
        let scale = fields.scale_f32();
        for (value, &quant) in out.iter_mut().zip(&fields.quants) {
            *value = scale * f32::from(i16::from(quant) - 8);
        }
    }
}

impl QuantizedFormat for Q4_1 {
    const FORMAT: WeightFormat = WeightFormat::Q4_1;
    const NIBBLES_IN_STEP_ORDER: bool = true;

    fn read(block: &[u8], fields: &mut BlockFields) {
        fields.scale = u16_at(block, 0);
        fields.minimum = u16_at(block, 2);
        read_nibbles(&block[4..20], &mut fields.quants);
    }

    fn dequantize(fields: &BlockFields, out: &mut [f32]) {
        let (scale, minimum) = (fields.scale_f32(), fields.minimum_f32());
        for (value, &quant) in out.iter_mut().zip(&fields.quants) {
            *value = scale * f32::from(quant) + minimum;
        }
    }
}

/// 16 bytes to 32 values: low halves first.
pub(super) fn read_nibbles(bytes: &[u8], quants: &mut [u8]) {
    let (low, high) = quants[..STEP_COLUMNS].split_at_mut(STEP_COLUMNS / 2);
    for ((byte, low), high) in bytes.iter().zip(low).zip(high) {
        *low = byte & 0x0f;
        *high = byte >> 4;
    }
}

/// The inverse of [`read_nibbles`]; bits above the fourth are dropped.
pub(super) fn write_nibbles(quants: &[u8; STEP_COLUMNS], bytes: &mut [u8]) {
    let (low, high) = quants.split_at(STEP_COLUMNS / 2);
    for ((byte, low), high) in bytes.iter_mut().zip(low).zip(high) {
        *byte = (low & 0x0f) | (high << 4);
    }
}

pub(super) fn quantize_block_q4_0(values: &[f32; STEP_COLUMNS], out: &mut [u8]) {
    let (scale, inverse) = signed_scale(values, 8.0);
    let quants = values.map(|value| ((value * inverse + 8.5) as u8).min(15));
    out[..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
    write_nibbles(&quants, &mut out[2..]);
}

pub(super) fn quantize_block_q4_1(values: &[f32; STEP_COLUMNS], out: &mut [u8]) {
    let (scale, inverse, minimum) = spanning_scale(values, 15.0);
    let quants = values.map(|value| (((value - minimum) * inverse + 0.5) as u8).min(15));
    out[..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
    out[2..4].copy_from_slice(&f16::from_f32(minimum).to_le_bytes());
    write_nibbles(&quants, &mut out[4..]);
}
