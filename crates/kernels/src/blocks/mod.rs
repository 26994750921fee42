//! What the bytes of a weight block mean, as plain Rust: the definition every kernel is held to.
//!
//! One file per family reads a source block into `BlockFields` (integers, no arithmetic) and turns fields into f32.
//! The formulas and field orders are those of ggml (`ggml-quants.c`) and its Python twin `gguf.quants`, with which the
//! results agree bit for bit. Nothing here is fast; see [`crate::layout`] for the arrangement the kernels read.

mod endian;
mod float;
mod grids;
mod iq1;
mod iq2;
mod iq3;
mod iq4;
mod k_scales;
mod mxfp4;
mod nvfp4;
mod q2_k;
mod q3_k;
mod q4;
mod q4_k;
mod q5;
mod q5_k;
mod q6_k;
mod q8_0;
mod search;
mod ternary;

use crate::{KernelError, WeightFormat};

pub use endian::{has_big_endian_form, to_little_endian};
pub(crate) use float::{f16_to_f32, float_at};
pub(crate) use iq1::{SHIFTED_OFFSET, shifted};
pub(crate) use iq4::IQ4_VALUES;
pub(crate) use mxfp4::{CODE_OFFSET, CODES, Mxfp4, scale_of_exponent};
pub(crate) use nvfp4::{FLOAT8_FACTOR, Nvfp4, scale_of_float8};
pub use search::{SEARCHED_MAGNITUDE_MAX, quantize_with_search};
pub(crate) use ternary::POWERS_OF_THREE;
pub(crate) use {grids::IQ2_S, grids::IQ2_XS, grids::IQ2_XXS, grids::IQ3_S, grids::IQ3_XXS};
pub(crate) use {iq1::Iq1M, iq1::Iq1S, iq2::Iq2S, iq2::Iq2Xs, iq2::Iq2Xxs, iq3::Iq3S, iq3::Iq3Xxs};
pub(crate) use {iq4::Iq4Nl, iq4::Iq4Xs, q2_k::Q2K, q3_k::Q3K, ternary::Tq1_0, ternary::Tq2_0};
pub(crate) use {q4::Q4_0, q4::Q4_1, q4_k::Q4K, q5::Q5_0, q5::Q5_1, q5_k::Q5K, q6_k::Q6K, q8_0::Q8_0};

/// Columns that share one int8 activation scale, and the unit in which kernels walk along a row.
pub const STEP_COLUMNS: usize = 32;

/// Columns of a super-block (Q4_K, IQ2_XXS and others): the most that any block holds.
pub(crate) const SUPER_BLOCK_COLUMNS: usize = 256;

/// The content of one block of any quantised format. Fields that a format does not have keep their last value.
pub(crate) struct BlockFields {
    /// Bits of the f16 scale; the exponent of MXFP4; not used by NVFP4.
    pub scale: u16,
    /// Bits of the f16 minimum.
    pub minimum: u16,
    /// Integer factors of sub-blocks, as signed bytes: 8 (Q4_K, Q5_K, IQ4_XS) or 16, of 16 columns each. NVFP4 keeps its bytes.
    pub sub_scales: [u8; 16],
    /// Sub-block minimums: 8 unsigned six-bit values (Q4_K, Q5_K) or 16 unsigned four-bit values (Q2_K).
    pub sub_minimums: [u8; 16],
    /// One stored value per column, in column order, before any offset is taken off. Q8_0 and the grids of IQ2 and IQ3 have
    /// signed bytes; MXFP4, NVFP4 and IQ4 keep their codes.
    pub quants: [u8; SUPER_BLOCK_COLUMNS],
}

impl BlockFields {
    pub fn zero() -> BlockFields {
        BlockFields {
            scale: 0,
            minimum: 0,
            sub_scales: [0; 16],
            sub_minimums: [0; 16],
            quants: [0; SUPER_BLOCK_COLUMNS],
        }
    }

    pub fn scale_f32(&self) -> f32 {
        f16_to_f32(self.scale)
    }

    pub fn minimum_f32(&self) -> f32 {
        f16_to_f32(self.minimum)
    }

    /// Stores entry `entry` of a grid, eight columns.
    fn put_eight(&mut self, entry: usize, columns: u64) {
        self.quants[8 * entry..][..8].copy_from_slice(&columns.to_le_bytes());
    }

    /// Negates the columns of entry `entry` whose bit of `signs` is set.
    fn negate_eight(&mut self, entry: usize, signs: u8) {
        for (column, quant) in self.quants[8 * entry..][..8].iter_mut().enumerate() {
            if signs >> column & 1 == 1 {
                *quant = quant.wrapping_neg();
            }
        }
    }

    /// The value rule of 256 signed quants with 16 sub-scales: `(multiplier * scale * sub_scale) * (q - offset)`.
    fn dequantize_sub_blocks(&self, multiplier: f32, offset: i16, out: &mut [f32]) {
        let sub_blocks = out.chunks_exact_mut(16).zip(self.quants.chunks_exact(16));
        for ((values, quants), sub_scale) in sub_blocks.zip(self.sub_scales) {
            let scale = multiplier * self.scale_f32() * f32::from(sub_scale.cast_signed());
            for (value, quant) in values.iter_mut().zip(quants) {
                *value = scale * f32::from(i16::from(quant.cast_signed()) - offset);
            }
        }
    }
}

/// A quantised format as a type, so that packing and kernels are compiled once per format.
pub(crate) trait QuantizedFormat: 'static {
    const FORMAT: WeightFormat;
    /// Whether a source block is its scale, f16 minimum, fifth bits and 16 bytes of nibbles, as far as it has them, byte
    /// `i` of the nibbles with column `i` in its low half and column `i + 16` in its high half.
    const NIBBLES_IN_STEP_ORDER: bool = false;

    /// Reads one source block of `FORMAT.block_bytes()` bytes.
    fn read(block: &[u8], fields: &mut BlockFields);

    /// The values of one block; `out` has `FORMAT.block_elements()` elements.
    fn dequantize(fields: &BlockFields, out: &mut [f32]);
}

/// Calls the generic expression with `$marker` bound to the type of a quantised format, or `$float` for a float format.
macro_rules! with_quantized_format {
    ($format:expr, $marker:ident => $quantized:expr, float => $float:expr) => {
        match $format {
            $crate::WeightFormat::F32 | $crate::WeightFormat::F16 | $crate::WeightFormat::BF16 => $float,
            $crate::WeightFormat::Codes(coding) => panic!("{coding} has no blocks"),
            $crate::WeightFormat::Q8_0 => {
                type $marker = $crate::blocks::Q8_0;
                $quantized
            }
            $crate::WeightFormat::Q4_0 => {
                type $marker = $crate::blocks::Q4_0;
                $quantized
            }
            $crate::WeightFormat::Q4_1 => {
                type $marker = $crate::blocks::Q4_1;
                $quantized
            }
            $crate::WeightFormat::Q5_0 => {
                type $marker = $crate::blocks::Q5_0;
                $quantized
            }
            $crate::WeightFormat::Q5_1 => {
                type $marker = $crate::blocks::Q5_1;
                $quantized
            }
            $crate::WeightFormat::Q4K => {
                type $marker = $crate::blocks::Q4K;
                $quantized
            }
            $crate::WeightFormat::Q5K => {
                type $marker = $crate::blocks::Q5K;
                $quantized
            }
            $crate::WeightFormat::Q6K => {
                type $marker = $crate::blocks::Q6K;
                $quantized
            }
            $crate::WeightFormat::Mxfp4 => {
                type $marker = $crate::blocks::Mxfp4;
                $quantized
            }
            $crate::WeightFormat::Q2K => {
                type $marker = $crate::blocks::Q2K;
                $quantized
            }
            $crate::WeightFormat::Q3K => {
                type $marker = $crate::blocks::Q3K;
                $quantized
            }
            $crate::WeightFormat::Iq1S => {
                type $marker = $crate::blocks::Iq1S;
                $quantized
            }
            $crate::WeightFormat::Iq1M => {
                type $marker = $crate::blocks::Iq1M;
                $quantized
            }
            $crate::WeightFormat::Iq2Xxs => {
                type $marker = $crate::blocks::Iq2Xxs;
                $quantized
            }
            $crate::WeightFormat::Iq2Xs => {
                type $marker = $crate::blocks::Iq2Xs;
                $quantized
            }
            $crate::WeightFormat::Iq2S => {
                type $marker = $crate::blocks::Iq2S;
                $quantized
            }
            $crate::WeightFormat::Iq3Xxs => {
                type $marker = $crate::blocks::Iq3Xxs;
                $quantized
            }
            $crate::WeightFormat::Iq3S => {
                type $marker = $crate::blocks::Iq3S;
                $quantized
            }
            $crate::WeightFormat::Iq4Nl => {
                type $marker = $crate::blocks::Iq4Nl;
                $quantized
            }
            $crate::WeightFormat::Iq4Xs => {
                type $marker = $crate::blocks::Iq4Xs;
                $quantized
            }
            $crate::WeightFormat::Tq1_0 => {
                type $marker = $crate::blocks::Tq1_0;
                $quantized
            }
            $crate::WeightFormat::Tq2_0 => {
                type $marker = $crate::blocks::Tq2_0;
                $quantized
            }
            $crate::WeightFormat::Nvfp4 => {
                type $marker = $crate::blocks::Nvfp4;
                $quantized
            }
        }
    };
}
pub(crate) use with_quantized_format;

/// Turns source blocks into f32: `bytes` holds `out.len() / block_elements` blocks.
///
/// Bit-equal to `gguf.quants.dequantize` of the PyPI package gguf.
///
/// # Panics
/// When the lengths do not belong together, or the format has no blocks (codes).
pub fn dequantize(format: WeightFormat, bytes: &[u8], out: &mut [f32]) {
    if out.is_empty() && bytes.is_empty() {
        return;
    }
    assert_eq!(
        bytes.len(),
        format.row_bytes(out.len()),
        "bytes and values of {format} do not belong together"
    );
    with_quantized_format!(format, Format => dequantize_blocks::<Format>(bytes, out), float => {
        for (index, value) in out.iter_mut().enumerate() {
            *value = float_at(format, bytes, index);
        }
    });
}

fn dequantize_blocks<F: QuantizedFormat>(bytes: &[u8], out: &mut [f32]) {
    let mut fields = BlockFields::zero();
    let blocks = bytes.chunks_exact(F::FORMAT.block_bytes());
    for (block, values) in blocks.zip(out.chunks_exact_mut(F::FORMAT.block_elements())) {
        F::read(block, &mut fields);
        F::dequantize(&fields, values);
    }
}

/// Turns f32 values into source blocks; `out` has exactly the bytes of `values.len() / block_elements` blocks.
///
/// F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1 and MXFP4 only, by the reference rule of ggml; bit-equal to
/// `gguf.quants.quantize` for finite values whose scale has a finite inverse.
///
/// # Errors
/// [`KernelError::CannotQuantize`] for the other formats.
///
/// # Panics
/// When the lengths do not belong together.
pub fn quantize(format: WeightFormat, values: &[f32], out: &mut [u8]) -> Result<(), KernelError> {
    if out.is_empty() && values.is_empty() {
        return Ok(());
    }
    assert_eq!(
        out.len(),
        format.row_bytes(values.len()),
        "bytes and values of {format} do not belong together"
    );
    let quantize_block: fn(&[f32; STEP_COLUMNS], &mut [u8]) = match format {
        WeightFormat::F32 | WeightFormat::F16 | WeightFormat::BF16 => {
            float::narrow(format, values, out);
            return Ok(());
        }
        WeightFormat::Q8_0 => q8_0::quantize_block,
        WeightFormat::Q4_0 => q4::quantize_block_q4_0,
        WeightFormat::Q4_1 => q4::quantize_block_q4_1,
        WeightFormat::Q5_0 => q5::quantize_block_q5_0,
        WeightFormat::Q5_1 => q5::quantize_block_q5_1,
        WeightFormat::Mxfp4 => mxfp4::quantize_block,
        _ => return Err(KernelError::CannotQuantize { format }),
    };
    let (blocks, _) = values.as_chunks::<STEP_COLUMNS>();
    for (block, bytes) in blocks.iter().zip(out.chunks_exact_mut(format.block_bytes())) {
        quantize_block(block, bytes);
    }
    Ok(())
}

/// Little-endian u16 at a byte offset.
fn u16_at(bytes: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes([bytes[offset], bytes[offset + 1]])
}

/// Little-endian u32 at a byte offset.
fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from(u16_at(bytes, offset)) | u32::from(u16_at(bytes, offset + 2)) << 16
}

/// The scale that maps the largest magnitude of a block to `-divisor`, its inverse (0 for a zero block).
fn signed_scale(values: &[f32; STEP_COLUMNS], divisor: f32) -> (f32, f32) {
    let mut largest = 0.0_f32;
    for &value in values {
        if value.abs() > largest.abs() {
            largest = value;
        }
    }
    let scale = largest / -divisor;
    (scale, inverse_or_zero(scale))
}

/// The scale that maps the span of a block to `divisor`, its inverse (0 for a flat block) and the minimum.
fn spanning_scale(values: &[f32; STEP_COLUMNS], divisor: f32) -> (f32, f32, f32) {
    let minimum = values.iter().copied().fold(f32::INFINITY, f32::min);
    let maximum = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let scale = (maximum - minimum) / divisor;
    (scale, inverse_or_zero(scale), minimum)
}

fn inverse_or_zero(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}
