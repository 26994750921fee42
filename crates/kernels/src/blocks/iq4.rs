//! IQ4_NL: `[f16 scale][16 bytes of nibbles]`, 32 columns, value = scale * table[q].
//! IQ4_XS: `[f16 scale][u16 upper scale bits][4 bytes of lower scale nibbles][128 bytes of nibbles]`, 256 columns,
//! value = scale * (sub_scale - 32) * table[q], one six-bit sub-scale per 32 columns.
//!
//! Nibbles lie as in Q4_0, in IQ4_XS 16 bytes for each 32 columns.

use super::q4::read_nibbles;
use super::{BlockFields, QuantizedFormat, STEP_COLUMNS, u16_at};
use crate::WeightFormat;

/// The signed values of the codes.
pub(crate) const IQ4_VALUES: [u8; 16] = {
    let signed: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
    let mut bytes = [0; 16];
    let mut code = 0;
    while code < 16 {
        bytes[code] = signed[code].cast_unsigned();
        code += 1;
    }
    bytes
};

pub(crate) struct Iq4Nl;
pub(crate) struct Iq4Xs;

impl QuantizedFormat for Iq4Nl {
    const FORMAT: WeightFormat = WeightFormat::Iq4Nl;
    const NIBBLES_IN_STEP_ORDER: bool = true;

    fn read(block: &[u8], fields: &mut BlockFields) {
        fields.scale = u16_at(block, 0);
        read_nibbles(&block[2..18], &mut fields.quants);
    }

    fn dequantize(fields: &BlockFields, out: &mut [f32]) {
        dequantize_step(fields.scale_f32(), &fields.quants[..STEP_COLUMNS], out);
    }
}

impl QuantizedFormat for Iq4Xs {
    const FORMAT: WeightFormat = WeightFormat::Iq4Xs;

    fn read(block: &[u8], fields: &mut BlockFields) {
        fields.scale = u16_at(block, 0);
        let high = u16_at(block, 2);
        for (index, sub_scale) in fields.sub_scales[..8].iter_mut().enumerate() {
            let low = block[4 + index / 2] >> (index % 2 * 4) & 0x0f;
            let high = (high >> (2 * index) & 3) as u8;
            *sub_scale = (low | high << 4).wrapping_sub(32);
        }
        let steps = fields.quants.chunks_exact_mut(STEP_COLUMNS);
        for (nibbles, quants) in block[8..].chunks_exact(16).zip(steps) {
            read_nibbles(nibbles, quants);
        }
    }

    fn dequantize(fields: &BlockFields, out: &mut [f32]) {
        let steps = out.chunks_exact_mut(STEP_COLUMNS).zip(fields.quants.chunks_exact(STEP_COLUMNS));
        for (index, (values, quants)) in steps.enumerate() {
            let scale = fields.scale_f32() * f32::from(fields.sub_scales[index].cast_signed());
            dequantize_step(scale, quants, values);
        }
    }
}

fn dequantize_step(scale: f32, quants: &[u8], out: &mut [f32]) {
    for (value, &quant) in out.iter_mut().zip(quants) {
        *value = scale * f32::from(IQ4_VALUES[usize::from(quant)].cast_signed());
    }
}
