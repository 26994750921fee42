//! Scales, factors and minimums of one step, for some rows in a vector: where each format keeps them.
//!
//! A step has one scale and perhaps one minimum. Formats with sub-scales of 16 columns have two more factors, which weigh the
//! integer sums of the halves. Used by the tiles of all vector instruction sets; offsets are those of `packed_block`.
//! No closures around vectors here and in the tiles: they are functions without the features of the instruction set, and what
//! is not inlined into the tile passes every vector through memory.

use super::tile::{RowVectors, StepWeights};
use crate::blocks::{FLOAT8_FACTOR, QuantizedFormat};
use crate::layout::{
    GROUP_ROWS, Grid, MinimumStorage, PackedBlock, QuantStorage, ScaleStorage, packed_block,
};

/// Scale and minimum of a step, the minimum with the sign it is added with (0 for formats without). For minimums of
/// half steps it is that of the super-block.
///
/// # Safety
/// `weights` lies in a packed block of `F`.
#[inline(always)] // into a function compiled with the features of `V`, as everything below
pub(super) unsafe fn scales<V: RowVectors, F: QuantizedFormat>(
    v: V,
    weights: StepWeights<'_>,
) -> (V::Floats, V::Floats) {
    let packed = const { packed_block(F::FORMAT) };
    let StepWeights { block, step, first_row } = weights;
    // SAFETY: all offsets lie inside the block by the construction of `PackedBlock`.
    unsafe {
        let mut scale = match packed.scales {
            ScaleStorage::Exponent => v.load_exponents(block, first_row),
            ScaleStorage::HalfStepFloat => v.splat(1.0),
            _ => v.load_halves(block, 2 * first_row),
        };
        if packed.scale_multiplier != 1.0 {
            scale = v.mul(scale, v.splat(packed.scale_multiplier));
        }
        let sub_byte = |index: usize| packed.sub_scales_at + index * GROUP_ROWS + first_row;
        match packed.scales {
            ScaleStorage::SubScale => scale = v.mul(scale, v.load_unsigned_bytes(block, sub_byte(step))),
            ScaleStorage::SixBits => {
                let factor = v.add(six_bits(v, &packed, 8, weights, step), -32);
                scale = v.mul(scale, v.to_floats(factor));
            }
            ScaleStorage::OddNibble => {
                let nibbles = v.load_unsigned(block, sub_byte(step / 2));
                scale = v.mul(scale, v.to_floats(odd(v, v.bits(nibbles, 4 * (step as u32 % 2), 0xf))));
            }
            ScaleStorage::OddOfSigns => {
                let spread = v.bits(v.load_words(block, signs_at(&packed, weights)), 25, 0x55);
                let pairs = v.and(v.or(spread, v.shift_right(spread, 1)), 0x33);
                let nibble = v.and(v.or(pairs, v.shift_right(pairs, 2)), 0x0f);
                scale = v.mul(scale, v.to_floats(odd(v, nibble)));
            }
            ScaleStorage::OddOfHighBits => {
                let high = v.load_unsigned_halves(block, high_bits_at(&packed, weights, 2));
                scale = v.mul(scale, v.to_floats(odd(v, v.bits(high, 12, 7))));
            }
            _ => {}
        }
        let minimum = match packed.minimums {
            MinimumStorage::Absent => v.splat(0.0),
            MinimumStorage::Added => v.load_halves(block, packed.minimums_at + 2 * first_row),
            MinimumStorage::SubtractedOfSuperBlock => {
                let super_minimum = v.load_halves(block, packed.minimums_at + 2 * first_row);
                let at = packed.sub_minimums_at + step * GROUP_ROWS + first_row;
                v.negate(v.mul(super_minimum, v.load_unsigned_bytes(block, at)))
            }
            MinimumStorage::SubtractedOfHalfSteps => {
                v.negate(v.load_halves(block, packed.minimums_at + 2 * first_row))
            }
        };
        (scale, minimum)
    }
}

/// The integer factors of both halves of a step; only for formats with scales of half steps, except floats.
///
/// # Safety
/// As [`scales`].
#[inline(always)]
pub(super) unsafe fn half_factors<V: RowVectors, F: QuantizedFormat>(
    v: V,
    weights: StepWeights<'_>,
) -> [V::Ints; 2] {
    let packed = const { packed_block(F::FORMAT) };
    let StepWeights { block, step, first_row } = weights;
    let sub_byte = |index: usize| packed.sub_scales_at + index * GROUP_ROWS + first_row;
    // SAFETY: as in `scales`.
    unsafe {
        match packed.scales {
            ScaleStorage::HalfStepNibble => {
                let (first, second) = (sub_byte(2 * step), sub_byte(2 * step + 1));
                [v.and(v.load_unsigned(block, first), 0x0f), v.and(v.load_unsigned(block, second), 0x0f)]
            }
            ScaleStorage::HalfStepSixBits => [
                v.add(six_bits(v, &packed, 16, weights, 2 * step), -32),
                v.add(six_bits(v, &packed, 16, weights, 2 * step + 1), -32),
            ],
            ScaleStorage::HalfStepOddNibble => {
                let both = v.load_unsigned(block, sub_byte(step));
                [odd(v, v.and(both, 0x0f)), odd(v, v.shift_right(both, 4))]
            }
            ScaleStorage::HalfStepOddBits => {
                let both = six_bits(v, &packed, 8, weights, step);
                [odd(v, v.and(both, 7)), odd(v, v.shift_right(both, 3))]
            }
            _ => [
                v.load_signed_bytes(block, sub_byte(2 * step)),
                v.load_signed_bytes(block, sub_byte(2 * step + 1)),
            ],
        }
    }
}

/// The factors of both halves as floats, those of e4m3 too.
///
/// # Safety
/// As [`scales`].
#[inline(always)]
pub(super) unsafe fn half_scales<V: RowVectors, F: QuantizedFormat>(
    v: V,
    weights: StepWeights<'_>,
) -> [V::Floats; 2] {
    let packed = const { packed_block(F::FORMAT) };
    // SAFETY: as in `scales`.
    unsafe {
        if packed.scales == ScaleStorage::HalfStepFloat {
            let at = packed.sub_scales_at + 2 * weights.step * GROUP_ROWS + weights.first_row;
            return [float8(v, weights.block, at), float8(v, weights.block, at + GROUP_ROWS)];
        }
        let [first, second] = half_factors::<V, F>(v, weights);
        [v.to_floats(first), v.to_floats(second)]
    }
}

/// e4m3 scales, halved, at byte `at` of the block.
///
/// # Safety
/// As [`scales`]; the bytes of all rows of a vector lie in the block.
#[inline(always)]
unsafe fn float8<V: RowVectors>(v: V, block: &[u8], at: usize) -> V::Floats {
    // SAFETY: passed on from the caller.
    let bytes = unsafe { v.load_unsigned(block, at) };
    v.mul(v.floats_of_bits(v.shift_left(v.and(bytes, 0x7f), 20)), v.splat(FLOAT8_FACTOR))
}

/// The sub-minimums of both halves of a step; only `SubtractedOfHalfSteps`.
///
/// # Safety
/// As [`scales`].
#[inline(always)]
pub(super) unsafe fn half_minimums<V: RowVectors, F: QuantizedFormat>(
    v: V,
    weights: StepWeights<'_>,
) -> [V::Ints; 2] {
    let packed = const { packed_block(F::FORMAT) };
    let at = packed.sub_scales_at + 2 * weights.step * GROUP_ROWS + weights.first_row;
    // SAFETY: as in `scales`.
    unsafe {
        let first = v.load_unsigned(weights.block, at);
        let second = v.load_unsigned(weights.block, at + GROUP_ROWS);
        [v.shift_right(first, 4), v.shift_right(second, 4)]
    }
}

/// Offset of the signs of a step's rows, for the formats of grids that have them.
#[inline(always)]
pub(super) fn signs_at(packed: &PackedBlock, weights: StepWeights<'_>) -> usize {
    step_at(packed, weights) + grid(packed).signs_at() + 4 * weights.first_row
}

/// Offset of the upper index bits of a step's rows, `width` bytes each.
#[inline(always)]
pub(super) fn high_bits_at(packed: &PackedBlock, weights: StepWeights<'_>, width: usize) -> usize {
    step_at(packed, weights) + grid(packed).high_bits_at() + width * weights.first_row
}

#[inline(always)]
pub(super) fn step_at(packed: &PackedBlock, weights: StepWeights<'_>) -> usize {
    packed.steps_at + weights.step * packed.step_bytes
}

#[inline(always)]
fn grid(packed: &PackedBlock) -> Grid {
    match packed.quants {
        QuantStorage::Grid(grid) => grid,
        _ => unreachable!("only formats of grids have signs and index bits"),
    }
}

/// Value `index` of `count` six-bit values: a nibble and a pair.
///
/// # Safety
/// As [`scales`]; the block has `count` six-bit sub-scales.
#[inline(always)]
unsafe fn six_bits<V: RowVectors>(
    v: V,
    packed: &PackedBlock,
    count: usize,
    weights: StepWeights<'_>,
    index: usize,
) -> V::Ints {
    let first = packed.sub_scales_at + weights.first_row;
    let (low_at, high_at) = (index / 2 * GROUP_ROWS, (count / 2 + index / 4) * GROUP_ROWS);
    // SAFETY: passed on from the caller.
    let (low, high) = unsafe {
        (v.load_unsigned(weights.block, first + low_at), v.load_unsigned(weights.block, first + high_at))
    };
    let low = v.bits(low, 4 * (index as u32 % 2), 0x0f);
    let high = v.bits(high, 2 * (index as u32 % 4), 3);
    v.or(low, v.shift_left(high, 4))
}

/// `2 * value + 1`.
#[inline(always)]
fn odd<V: RowVectors>(v: V, value: V::Ints) -> V::Ints {
    v.add(v.shift_left(value, 1), 1)
}
