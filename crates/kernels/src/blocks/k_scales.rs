//! The 12 bytes that hold 8 scales and 8 minimums of six bits in Q4_K and Q5_K.
//!
//! ```text
//! bytes 0..4    low six bits: scale 0..4      top two bits: bits 4..6 of scale 4..8
//! bytes 4..8    low six bits: minimum 0..4    top two bits: bits 4..6 of minimum 4..8
//! bytes 8..12   low nibble: bits 0..4 of scale 4..8    high nibble: bits 0..4 of minimum 4..8
//! ```

use super::BlockFields;

pub(super) fn read_scales_and_minimums(bytes: &[u8], fields: &mut BlockFields) {
    for index in 0..4 {
        let (scale, minimum, rest) = (bytes[index], bytes[index + 4], bytes[index + 8]);
        fields.sub_scales[index] = scale & 0x3f;
        fields.sub_minimums[index] = minimum & 0x3f;
        fields.sub_scales[index + 4] = (rest & 0x0f) | (scale >> 6 << 4);
        fields.sub_minimums[index + 4] = (rest >> 4) | (minimum >> 6 << 4);
    }
}

/// The value rule that Q4_K and Q5_K share: `(scale * sub_scale) * q - minimum * sub_minimum`, per 32 columns.
pub(super) fn dequantize_with_minimums(fields: &BlockFields, out: &mut [f32]) {
    let (scale, minimum) = (fields.scale_f32(), fields.minimum_f32());
    for (sub_block, (values, quants)) in
        out.chunks_exact_mut(32).zip(fields.quants.chunks_exact(32)).enumerate()
    {
        let step_scale = scale * f32::from(fields.sub_scales[sub_block]);
        let step_minimum = minimum * f32::from(fields.sub_minimums[sub_block]);
        for (value, &quant) in values.iter_mut().zip(quants) {
            *value = step_scale * f32::from(quant) - step_minimum;
        }
    }
}

/// The inverse of [`read_scales_and_minimums`]; values have six bits.
pub(super) fn write_scales_and_minimums(scales: &[u8; 8], minimums: &[u8; 8], bytes: &mut [u8]) {
    for index in 0..4 {
        bytes[index] = scales[index] | scales[index + 4] >> 4 << 6;
        bytes[index + 4] = minimums[index] | minimums[index + 4] >> 4 << 6;
        bytes[index + 8] = (scales[index + 4] & 0x0f) | minimums[index + 4] << 4;
    }
}
