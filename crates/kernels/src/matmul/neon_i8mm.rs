//! AArch64 with int8 matrices: the integer sums of a step, for an even number of activation rows.
//!
//! `smmla` multiplies 2 weight rows of 8 columns by 8 columns of 2 activation rows, twice the products of `sdot`. A pair of
//! column groups, zipped by 32 bits, gives the rows in twos; activations are eight bytes of each row of a pair. The four sums
//! of an instruction lie by weight row and activation row, so before the f32 part they are unzipped into lanes that are
//! weight rows. Offsets are added to the finished sums. The intrinsic is not stable, so the instruction is written as `asm!`.

use std::arch::aarch64::*;
use std::arch::asm;

use super::tile::{RowVectors, StepRows, StepWeights, quant_pair, weigh_half_steps};
use crate::blocks::QuantizedFormat;
use crate::layout::packed_block;

/// What the vector type of this instruction set is.
pub(super) trait Vectors:
    RowVectors<Bytes = uint8x16_t, Ints = int32x4_t, Floats = float32x4_t>
{
}

impl<V: RowVectors<Bytes = uint8x16_t, Ints = int32x4_t, Floats = float32x4_t>> Vectors for V {}

/// The sums over one step, as [`super::tile::step_sums`] gives them.
///
/// # Safety
/// As there; the processor has the int8 matrix extension.
#[inline(always)] // into a function with the features of `v`, as everything below
pub(super) unsafe fn matrix_sums<V: Vectors, F: QuantizedFormat, const ROWS: usize>(
    v: V,
    weights: StepWeights<'_>,
    activations: StepRows<'_>,
) -> [float32x4_t; ROWS] {
    assert!(ROWS.is_multiple_of(2), "activation rows come in pairs");
    let packed = const { packed_block(F::FORMAT) };
    let offset = packed.quant_offset;
    // SAFETY: passed on from the caller.
    unsafe {
        let mut first = [v.zero(); ROWS];
        half_step::<V, F, 0, ROWS>(v, weights, activations, &mut first);
        if !packed.scales.is_per_half_step() {
            half_step::<V, F, 1, ROWS>(v, weights, activations, &mut first);
            by_activation_row(&mut first);
            if offset != 0 {
                for (row, sum) in first.iter_mut().enumerate() {
                    *sum = vaddq_s32(*sum, v.start(activations.get(row), offset));
                }
            }
            let mut floats = [v.splat(0.0); ROWS];
            for (float, sum) in floats.iter_mut().zip(first) {
                *float = v.to_floats(sum);
            }
            return floats;
        }
        let mut second = [v.zero(); ROWS];
        half_step::<V, F, 1, ROWS>(v, weights, activations, &mut second);
        by_activation_row(&mut first);
        by_activation_row(&mut second);
        for (row, (first, second)) in first.iter_mut().zip(&mut second).enumerate() {
            let block = activations.get(row);
            *first = vaddq_s32(*first, v.half_start(block, offset, 0));
            *second = vaddq_s32(*second, v.half_start(block, offset, 1));
        }
        weigh_half_steps::<V, F, ROWS>(v, weights, first, second)
    }
}

/// Adds the products of half step `HALF`. Elements `2 p` and `2 p + 1` of `sums` belong to activation rows `2 p` and `2 p + 1`:
/// the first to weight rows 0 and 1, the second to 2 and 3.
///
/// # Safety
/// As [`matrix_sums`].
#[inline(always)]
unsafe fn half_step<V: Vectors, F: QuantizedFormat, const HALF: usize, const ROWS: usize>(
    v: V,
    weights: StepWeights<'_>,
    activations: StepRows<'_>,
    sums: &mut [int32x4_t; ROWS],
) {
    // SAFETY: passed on from the caller.
    unsafe {
        let groups = quant_pair::<V, F, HALF, 0>(v, weights);
        eight_columns(groups, activations, 16 * HALF, sums);
        let groups = quant_pair::<V, F, HALF, 1>(v, weights);
        eight_columns(groups, activations, 16 * HALF + 8, sums);
    }
}

/// Adds the products of two column groups, whose first column is `column`.
///
/// # Safety
/// As [`matrix_sums`]; `column` is at most 24.
#[inline(always)]
unsafe fn eight_columns<const ROWS: usize>(
    groups: [uint8x16_t; 2],
    activations: StepRows<'_>,
    column: usize,
    sums: &mut [int32x4_t; ROWS],
) {
    let groups = groups.map(|bytes| {
        // SAFETY: NEON is there on every processor with the int8 matrix extension, which the caller grants.
        unsafe { vreinterpretq_u32_u8(bytes) }
    });
    // SAFETY: as above; rows and columns are inside the tile and its blocks by the caller's word.
    unsafe {
        let lower = vreinterpretq_s8_u32(vzip1q_u32(groups[0], groups[1]));
        let upper = vreinterpretq_s8_u32(vzip2q_u32(groups[0], groups[1]));
        let (pairs, _) = sums.as_chunks_mut::<2>();
        for (pair, [lower_sum, upper_sum]) in pairs.iter_mut().enumerate() {
            let eight = |row| vld1_s8(activations.get(row).values[column..].as_ptr());
            let columns = vcombine_s8(eight(2 * pair), eight(2 * pair + 1));
            *lower_sum = multiply(*lower_sum, lower, columns);
            *upper_sum = multiply(*upper_sum, upper, columns);
        }
    }
}

/// `sum[2 i + j] += products of half i of left and half j of right`.
///
/// # Safety
/// The processor has the int8 matrix extension.
#[inline(always)]
unsafe fn multiply(sum: int32x4_t, left: int8x16_t, right: int8x16_t) -> int32x4_t {
    let mut sum = sum;
    // SAFETY: registers only; the caller says that the processor has the instruction.
    unsafe {
        asm!(
            "smmla {sum:v}.4s, {left:v}.16b, {right:v}.16b",
            sum = inout(vreg) sum,
            left = in(vreg) left,
            right = in(vreg) right,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}

/// Sums as [`half_step`] leaves them, to a lane per weight row and a vector per activation row.
///
/// # Safety
/// The processor has NEON.
#[inline(always)]
unsafe fn by_activation_row<const ROWS: usize>(sums: &mut [int32x4_t; ROWS]) {
    let (pairs, _) = sums.as_chunks_mut::<2>();
    for pair in pairs {
        // SAFETY: passed on from the caller.
        *pair = unsafe { [vuzp1q_s32(pair[0], pair[1]), vuzp2q_s32(pair[0], pair[1])] };
    }
}
