//! Quantising with a search: for each block the scale (and minimum) whose values are closest to the given ones.
//!
//! The rules in [`quantize`](super::quantize) take the scale that maps the largest value to the last step. A little clipping or a
//! finer fit mostly loses less. Here scales are tried around that one, the best is fitted by least squares, and what is compared is the error of the
//! block as it will be read: with its scale rounded to f16 and its sub-scales to six bits. The measure is the plain squared error.
//! Every operation is an f32 operation in a fixed order on eight sums side by side, so the bytes are the same on every machine.
//! `symmetric` has the formats with a scale alone, `spanning` those with minimums, `codes` MXFP4, `write` the bytes of a block.

mod codes;
mod spanning;
mod symmetric;
mod write;

use super::quantize;
use crate::{KernelError, WeightFormat};

/// Sums kept side by side: as many as a 256-bit vector has.
const LANES: usize = 8;

/// Largest magnitude that every searched format can hold: that of its f16 scale.
pub const SEARCHED_MAGNITUDE_MAX: f32 = 65_504.0;

/// Turns f32 values into source blocks with a search for the scales; `out` has exactly the bytes of the blocks.
///
/// Q8_0, Q4_0, Q5_0, MXFP4, Q4_K, Q5_K and Q6_K are searched; F32, F16, BF16, Q4_1 and Q5_1 are as by [`quantize`]. Values must be
/// finite and at most [`SEARCHED_MAGNITUDE_MAX`] in magnitude; a block with others holds no useful values.
///
/// # Errors
/// [`KernelError::CannotQuantize`] for the other formats.
///
/// # Panics
/// When the lengths do not belong together.
pub fn quantize_with_search(format: WeightFormat, values: &[f32], out: &mut [u8]) -> Result<(), KernelError> {
    match format {
        WeightFormat::Q8_0 => each_block(format, values, out, symmetric::q8_0),
        WeightFormat::Q4_0 => each_block(format, values, out, symmetric::q4_0),
        WeightFormat::Q5_0 => each_block(format, values, out, symmetric::q5_0),
        WeightFormat::Mxfp4 => each_block(format, values, out, codes::mxfp4),
        WeightFormat::Q4K => each_block(format, values, out, spanning::q4_k),
        WeightFormat::Q5K => each_block(format, values, out, spanning::q5_k),
        WeightFormat::Q6K => each_block(format, values, out, symmetric::q6_k),
        _ => return quantize(format, values, out),
    }
    Ok(())
}

fn each_block<const N: usize>(
    format: WeightFormat,
    values: &[f32],
    out: &mut [u8],
    quantize_block: fn(&[f32; N], &mut [u8]),
) {
    debug_assert_eq!(format.block_elements(), N);
    let (blocks, rest) = values.as_chunks::<N>();
    assert!(
        rest.is_empty() && out.len() == blocks.len() * format.block_bytes(),
        "bytes and values of {format} do not belong together"
    );
    for (block, bytes) in blocks.iter().zip(out.chunks_exact_mut(format.block_bytes())) {
        quantize_block(block, bytes);
    }
}

/// The integer nearest to `value` within `low` to `high`, which are at most 2^22 in magnitude; ties go to the even one.
#[inline(always)] // so that the loops around it become vector instructions
fn nearest(value: f32, low: f32, high: f32) -> f32 {
    // Adding 1.5 * 2^23 leaves no bits for a fraction.
    const WHOLE: f32 = 12_582_912.0;
    let value = if value < low { low } else { value };
    let value = if value > high { high } else { value };
    (value + WHOLE) - WHOLE
}

/// Adds values to sums, lane by lane.
#[inline(always)] // as `nearest`
fn add(sums: &mut [f32; LANES], values: &[f32; LANES]) {
    for (sum, value) in sums.iter_mut().zip(values) {
        *sum += value;
    }
}

/// Adds products to sums, lane by lane.
#[inline(always)] // as `nearest`
fn add_products(sums: &mut [f32; LANES], left: &[f32; LANES], right: &[f32; LANES]) {
    for ((sum, left), right) in sums.iter_mut().zip(left).zip(right) {
        *sum += left * right;
    }
}

/// `sum` of each value, in [`LANES`] sums side by side.
#[inline(always)] // as `nearest`
fn sum_of<const N: usize>(values: &[f32; N], sum: impl Fn(f32) -> f32) -> f32 {
    let mut sums = [0.0_f32; LANES];
    let (chunks, _) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for (total, &value) in sums.iter_mut().zip(chunk) {
            *total += sum(value);
        }
    }
    total(sums)
}

/// The sum of sums, in one order on every machine.
#[inline(always)] // as `nearest`
fn total(sums: [f32; LANES]) -> f32 {
    let [a, b, c, d, e, f, g, h] = sums;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

/// The f32 value of `value` rounded to f16, and its bits. Zero, not infinity, where it is too large: such blocks hold nothing useful.
fn rounded_to_half(value: f32) -> (f32, u16) {
    let half = half::f16::from_f32(value);
    if half.is_finite() { (half.to_f32(), half.to_bits()) } else { (0.0, 0) }
}

/// `1 / value`, 0 for 0 and for what has no finite inverse.
fn inverse(value: f32) -> f32 {
    let inverse = 1.0 / value;
    if inverse.is_finite() { inverse } else { 0.0 }
}
