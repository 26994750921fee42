//! MXFP4: `[u8 exponent][16 bytes of nibbles]`, value = 2^(exponent - 127) * e2m1(q).
//!
//! The codes (OCP Microscaling Formats 1.0) stand for 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives. As in ggml they are doubled
//! here, so that products are integers, and the scale is halved. Byte `i` of the nibbles holds column `i` in its low half and
//! column `i + 16` in its high half. Exponent 255, which the standard calls NaN, counts as a number, as in ggml.

use super::q4::{read_nibbles, write_nibbles};
use super::{BlockFields, QuantizedFormat, STEP_COLUMNS};
use crate::WeightFormat;

/// What is added to the doubled values in [`CODES`].
pub(crate) const CODE_OFFSET: i16 = 16;

/// Twice the value of each code, plus [`CODE_OFFSET`]: unsigned, as the dot products of most instruction sets want one factor.
pub(crate) const CODES: [u8; 16] = [16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4];

pub(crate) struct Mxfp4;

impl QuantizedFormat for Mxfp4 {
    const FORMAT: WeightFormat = WeightFormat::Mxfp4;
    const NIBBLES_IN_STEP_ORDER: bool = true;

    fn read(block: &[u8], fields: &mut BlockFields) {
        fields.scale = u16::from(block[0]);
        read_nibbles(&block[1..17], &mut fields.quants);
    }

    fn dequantize(fields: &BlockFields, out: &mut [f32]) {
        let scale = scale_of_exponent(fields.scale as u8);
        for (value, &quant) in out.iter_mut().zip(&fields.quants) {
            *value = scale * f32::from(doubled(quant));
        }
    }
}

/// Twice the value of a code.
pub(super) fn doubled(code: u8) -> i16 {
    i16::from(CODES[usize::from(code)]) - CODE_OFFSET
}

/// `2^(exponent - 128)`: the scale of doubled values.
pub(crate) fn scale_of_exponent(exponent: u8) -> f32 {
    // The two smallest are subnormal.
    f32::from_bits(match exponent {
        0 | 1 => 0x0020_0000 << exponent,
        normal => u32::from(normal - 1) << 23,
    })
}

pub(super) fn quantize_block(values: &[f32; STEP_COLUMNS], out: &mut [u8]) {
    let largest = values.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
    // The largest value shall meet the largest power of two among the codes, 4.
    let exponent = match largest {
        0.0 => 0,
        largest => (largest.log2().floor() as i32 - 2 + 127).clamp(0, 254) as u8,
    };
    let scale = scale_of_exponent(exponent);
    let distance = |code: u8, value: f32| (scale * f32::from(doubled(code)) - value).abs();
    let quants = values.map(|value| {
        (1..16).fold(0, |best, code| if distance(code, value) < distance(best, value) { code } else { best })
    });
    out[0] = exponent;
    write_nibbles(&quants, &mut out[1..17]);
}
