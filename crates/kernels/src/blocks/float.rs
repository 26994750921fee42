//! F32, F16 and BF16: one value per element, little-endian. Widening is exact, narrowing rounds to nearest even.

use half::{bf16, f16};

use crate::WeightFormat;

/// The value of f16 bits.
pub(crate) fn f16_to_f32(bits: u16) -> f32 {
    f16::from_bits(bits).to_f32()
}

/// The value of bfloat16 bits.
pub(crate) fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Element `index` of float weights.
pub(crate) fn float_at(format: WeightFormat, bytes: &[u8], index: usize) -> f32 {
    match format {
        WeightFormat::F16 => f16_to_f32(super::u16_at(bytes, index * 2)),
        WeightFormat::BF16 => bf16_to_f32(super::u16_at(bytes, index * 2)),
        _ => {
            let word = &bytes[index * 4..index * 4 + 4];
            f32::from_le_bytes([word[0], word[1], word[2], word[3]])
        }
    }
}

/// Narrows to F16 or BF16, or copies F32.
pub(super) fn narrow(format: WeightFormat, values: &[f32], out: &mut [u8]) {
    for (value, bytes) in values.iter().zip(out.chunks_exact_mut(format.block_bytes())) {
        match format {
            WeightFormat::F16 => bytes.copy_from_slice(&f16::from_f32(*value).to_le_bytes()),
            WeightFormat::BF16 => bytes.copy_from_slice(&bf16::from_f32(*value).to_le_bytes()),
            _ => bytes.copy_from_slice(&value.to_le_bytes()),
        }
    }
}
