//! Formats whose values are a scale times a signed integer: Q8_0, Q4_0, Q5_0, and the sub-blocks of Q6_K.

use super::write;
use super::{LANES, add_products, inverse, nearest, rounded_to_half, sum_of, total};

/// The integers of a format.
#[derive(Clone, Copy)]
struct Range {
    low: f32,
    high: f32,
}

/// How much longer or shorter than the whole range the largest value may become, in steps.
const STRETCHES: [f32; 15] =
    [-1.2, -1.0, -0.8, -0.6, -0.45, -0.3, -0.15, 0.0, 0.15, 0.3, 0.45, 0.6, 0.8, 1.0, 1.2];

/// Rounds of fitting the scale to the integers and the integers to the scale.
const ROUNDS: usize = 2;

pub(super) fn q8_0(values: &[f32; 32], out: &mut [u8]) {
    let range = Range { low: -127.0, high: 127.0 };
    let (bits, quants) = best_halves(values, range);
    out[..2].copy_from_slice(&bits.to_le_bytes());
    for (byte, quant) in out[2..].iter_mut().zip(quants) {
        *byte = (quant as i8).cast_unsigned();
    }
}

pub(super) fn q4_0(values: &[f32; 32], out: &mut [u8]) {
    let (bits, quants) = best_halves(values, Range { low: -8.0, high: 7.0 });
    write::q4_0(bits, &quants.map(|quant| (quant + 8.0) as u8), out);
}

pub(super) fn q5_0(values: &[f32; 32], out: &mut [u8]) {
    let (bits, quants) = best_halves(values, Range { low: -16.0, high: 15.0 });
    write::q5_0(bits, &quants.map(|quant| (quant + 16.0) as u8), out);
}

/// The f16 scale and integers of a block with the smallest error.
fn best_halves<const N: usize>(values: &[f32; N], range: Range) -> (u16, [f32; N]) {
    let fitted = fitted_scale(values, range);
    // The rule's own scale competes, so that no block is worse than by the rule.
    let largest = largest_of(values);
    let mut best = (f32::INFINITY, 0.0, 0);
    for scale in [fitted, largest / range.low, largest / range.high] {
        let (scale, bits) = rounded_to_half(scale);
        let error = error_of(values, scale, range);
        if error < best.0 {
            best = (error, scale, bits);
        }
    }
    let (_, scale, bits) = best;
    let inverse = inverse(scale);
    (bits, values.map(|value| nearest(value * inverse, range.low, range.high)))
}

/// The value of the largest magnitude, with its sign.
fn largest_of(values: &[f32]) -> f32 {
    values.iter().fold(0.0_f32, |largest, &value| if value.abs() > largest.abs() { value } else { largest })
}

/// The scale, not rounded, whose multiples are closest to the values; 0 for zeros.
fn fitted_scale<const N: usize>(values: &[f32; N], range: Range) -> f32 {
    let largest = largest_of(values);
    if largest == 0.0 {
        return 0.0;
    }
    let mut best = (0.0_f32, 0.0_f32);
    let mut consider = |inverse: f32| {
        let (products, squares) = sums_at(values, inverse, range);
        if squares > 0.0 && products * products > best.0 * squares {
            best = (products * products / squares, products / squares);
        }
    };
    for stretch in STRETCHES {
        consider((range.low - stretch) / largest);
        if range.low != -range.high {
            consider((range.high + stretch) / largest);
        }
    }
    for _ in 0..ROUNDS {
        let (products, squares) = sums_at(values, inverse(best.1), range);
        if squares > 0.0 && products * products > best.0 * squares {
            best = (products * products / squares, products / squares);
        }
    }
    best.1
}

/// Sums of value times integer, and of the squares of integers, for the inverse of a scale.
#[inline(always)] // so that it becomes vector instructions
fn sums_at<const N: usize>(values: &[f32; N], inverse: f32, range: Range) -> (f32, f32) {
    let (mut products, mut squares) = ([0.0_f32; LANES], [0.0_f32; LANES]);
    let (chunks, _) = values.as_chunks::<LANES>();
    for chunk in chunks {
        let quants = chunk.map(|value| nearest(value * inverse, range.low, range.high));
        add_products(&mut products, chunk, &quants);
        add_products(&mut squares, &quants, &quants);
    }
    (total(products), total(squares))
}

/// Squared error of the best integers for a scale.
#[inline(always)] // as `sums_at`
fn error_of<const N: usize>(values: &[f32; N], scale: f32, range: Range) -> f32 {
    let inverse = inverse(scale);
    sum_of(values, |value| {
        let difference = value - scale * nearest(value * inverse, range.low, range.high);
        difference * difference
    })
}

const SUB_BLOCKS: usize = 16;
const SUB_BLOCK: usize = 16;
const Q6_RANGE: Range = Range { low: -32.0, high: 31.0 };
/// What the largest sub-scale of a block is mapped to.
const SUB_SCALE_TOPS: [f32; 5] = [-128.0, -127.0, -126.0, -124.5, -122.5];

/// Q6_K: 16 sub-blocks of 16 with signed sub-scales of eight bits.
pub(super) fn q6_k(values: &[f32; 256], out: &mut [u8]) {
    let (sub_blocks, _) = values.as_chunks::<SUB_BLOCK>();
    let fitted: [f32; SUB_BLOCKS] = std::array::from_fn(|index| fitted_scale(&sub_blocks[index], Q6_RANGE));
    let largest = largest_of(&fitted);
    let mut best = (f32::INFINITY, 0, [0.0; SUB_BLOCKS]);
    for top in SUB_SCALE_TOPS {
        let mut scale = rounded_to_half(largest / top);
        for _ in 0..ROUNDS {
            let (error, sub_scales) = best_sub_scales(sub_blocks, &fitted, scale.0);
            if error < best.0 {
                best = (error, scale.1, sub_scales);
            }
            scale = refitted(sub_blocks, &sub_scales, scale.0);
        }
    }
    let (_, bits, sub_scales) = best;
    let scale = half::f16::from_bits(bits).to_f32();
    let mut quants = [0; 256];
    for (index, quants) in quants.chunks_exact_mut(SUB_BLOCK).enumerate() {
        let inverse = inverse(scale * sub_scales[index]);
        for (quant, value) in quants.iter_mut().zip(sub_blocks[index]) {
            *quant = (nearest(value * inverse, Q6_RANGE.low, Q6_RANGE.high) + 32.0) as u8;
        }
    }
    write::q6_k(bits, &sub_scales.map(|sub_scale| (sub_scale as i8).cast_unsigned()), &quants, out);
}

/// The best sub-scales, whole numbers, under a scale of the block, and the error that is left.
fn best_sub_scales(
    sub_blocks: &[[f32; SUB_BLOCK]],
    fitted: &[f32; SUB_BLOCKS],
    scale: f32,
) -> (f32, [f32; SUB_BLOCKS]) {
    let inverse = inverse(scale);
    let mut error = 0.0;
    let mut sub_scales = [0.0; SUB_BLOCKS];
    for ((values, &fitted), sub_scale) in sub_blocks.iter().zip(fitted).zip(&mut sub_scales) {
        let middle = nearest(fitted * inverse, -128.0, 127.0);
        let mut best = (f32::INFINITY, 0.0);
        for candidate in [middle, middle - 1.0, middle + 1.0] {
            let candidate = candidate.clamp(-128.0, 127.0);
            let error = error_of(values, scale * candidate, Q6_RANGE);
            if error < best.0 {
                best = (error, candidate);
            }
        }
        error += best.0;
        *sub_scale = best.1;
    }
    (error, sub_scales)
}

/// The scale of a block fitted to the integers that it has under `scale`.
fn refitted(sub_blocks: &[[f32; SUB_BLOCK]], sub_scales: &[f32; SUB_BLOCKS], scale: f32) -> (f32, u16) {
    let (mut products, mut squares) = (0.0, 0.0);
    for (values, sub_scale) in sub_blocks.iter().zip(sub_scales) {
        let sums = sums_at(values, inverse(scale * sub_scale), Q6_RANGE);
        products += sums.0 * sub_scale;
        squares += sums.1 * sub_scale * sub_scale;
    }
    if squares > 0.0 { rounded_to_half(products / squares) } else { rounded_to_half(scale) }
}
