//! Scales, factors and minimums of one step, for some rows in a vector: where each format keeps them.
//!
//! A step has one scale and perhaps one minimum. Formats with sub-scales of 16 columns have two more factors, which weigh the
//! integer sums of the halves. Used by the tiles of all vector instruction sets; offsets are those of `packed_block`.

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
                [0, 1].map(|half| v.and(v.load_unsigned(block, sub_byte(2 * step + half)), 0x0f))
            }
            ScaleStorage::HalfStepSixBits => {
                [0, 1].map(|half| v.add(six_bits(v, &packed, 16, weights, 2 * step + half), -32))
            }
            ScaleStorage::HalfStepOddNibble => {
                let both = v.load_unsigned(block, sub_byte(step));
                [odd(v, v.and(both, 0x0f)), odd(v, v.shift_right(both, 4))]
            }
            ScaleStorage::HalfStepOddBits => {
                let both = six_bits(v, &packed, 8, weights, step);
                [odd(v, v.and(both, 7)), odd(v, v.shift_right(both, 3))]
            }
            _ => [0, 1].map(|half| v.load_signed_bytes(block, sub_byte(2 * step + half))),
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
            return [0, 1].map(|half| {
                let at = packed.sub_scales_at + (2 * weights.step + half) * GROUP_ROWS + weights.first_row;
                let bits = v.shift_left(v.and(v.load_unsigned(weights.block, at), 0x7f), 20);
                v.mul(v.from_bits(bits), v.splat(FLOAT8_FACTOR))
            });
        }
        half_factors::<V, F>(v, weights).map(|factor| v.to_floats(factor))
    }
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
    [0, 1].map(|half| {
        let at = packed.sub_scales_at + (2 * weights.step + half) * GROUP_ROWS + weights.first_row;
        // SAFETY: as in `scales`.
        v.shift_right(unsafe { v.load_unsigned(weights.block, at) }, 4)
    })
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
    let plane = |plane: usize| {
        // SAFETY: passed on from the caller.
        unsafe {
            v.load_unsigned(weights.block, packed.sub_scales_at + plane * GROUP_ROWS + weights.first_row)
        }
    };
    let low = v.bits(plane(index / 2), 4 * (index as u32 % 2), 0x0f);
    let high = v.bits(plane(count / 2 + index / 4), 2 * (index as u32 % 4), 3);
    v.or(low, v.shift_left(high, 4))
}

/// `2 * value + 1`.
#[inline(always)]
fn odd<V: RowVectors>(v: V, value: V::Ints) -> V::Ints {
    v.add(v.shift_left(value, 1), 1)
}
