//! Q8_0: `[f16 scale][i8; 32]`, value = scale * q.

use half::f16;

use super::{BlockFields, QuantizedFormat, STEP_COLUMNS, inverse_or_zero, u16_at};
use crate::WeightFormat;

pub(crate) struct Q8_0;

impl QuantizedFormat for Q8_0 {
    const FORMAT: WeightFormat = WeightFormat::Q8_0;

    fn read(block: &[u8], fields: &mut BlockFields) {
        fields.scale = u16_at(block, 0);
        fields.quants[..STEP_COLUMNS].copy_from_slice(&block[2..34]);
    }

    fn dequantize(fields: &BlockFields, out: &mut [f32]) {
        let scale = fields.scale_f32();
        for (value, &quant) in out.iter_mut().zip(&fields.quants) {
            *value = scale * f32::from(quant.cast_signed());
        }
    }
}

pub(super) fn quantize_block(values: &[f32; STEP_COLUMNS], out: &mut [u8]) {
    let largest = values.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
    let scale = largest / 127.0;
    let inverse = inverse_or_zero(scale);
    out[..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
    for (byte, value) in out[2..].iter_mut().zip(values) {
        *byte = ((value * inverse).round() as i8).cast_unsigned();
    }
}
