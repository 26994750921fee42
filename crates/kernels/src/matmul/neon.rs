//! AArch64 with the dot product extension: four 128-bit vectors are the 16 rows of a group, a lane is a row.
//!
//! `sdot` adds four products of signed bytes to each 32-bit lane and can take its activation word from a lane of a vector,
//! so 32 activations stay in two registers for all rows. The intrinsic is not stable, so the instruction is written as
//! `asm!`. Stored values of up to six bits are valid signed bytes; offsets are folded into the start value, as in
//! `avx512.rs`. Scalar twin: `scalar.rs`.

use std::arch::aarch64::*;
use std::arch::asm;

use super::driver::{FloatElement, FloatKind, FloatTiles, Lanes, QuantizedTiles};
use crate::activations::ActivationBlock;
use crate::blocks::QuantizedFormat;
use crate::layout::{
    GROUP_ROWS, MinimumStorage, QuantStorage, STEP_GROUPS, ScaleStorage, VECTOR_BYTES, packed_block,
};

/// Rows in one 128-bit vector.
const QUARTER_GROUP: usize = GROUP_ROWS / 4;

pub(super) struct NeonTiles;

impl QuantizedTiles for NeonTiles {
    const ROWS_MAX: usize = 4;

    #[target_feature(enable = "neon,dotprod")]
    unsafe fn tile<F: QuantizedFormat, const ROWS: usize>(
        group: &[u8],
        rows: &[ActivationBlock],
        out: &mut [Lanes; ROWS],
    ) {
        let packed = const { packed_block(F::FORMAT) };
        let row_blocks = rows.len() / ROWS;
        let mut accumulators = [[vdupq_n_f32(0.0); ROWS]; 4];
        let mut column_step = 0;
        for block in group.chunks_exact(packed.bytes) {
            for step in 0..packed.steps {
                for (quarter, accumulators) in accumulators.iter_mut().enumerate() {
                    // SAFETY: `block` is a whole block of the format, `step` one of its steps, `quarter` below 4.
                    let weights = unsafe { StepWeights::load::<F>(block, step, quarter) };
                    for (row, accumulator) in accumulators.iter_mut().enumerate() {
                        // SAFETY: a row has `row_blocks` blocks, one for each step of the group.
                        let activations = unsafe { rows.get_unchecked(row * row_blocks + column_step) };
                        *accumulator = weights.add_product::<F>(activations, *accumulator);
                    }
                }
                column_step += 1;
            }
        }
        for (quarter, accumulators) in accumulators.into_iter().enumerate() {
            for (lanes, accumulator) in out.iter_mut().zip(accumulators) {
                // SAFETY: `lanes` is 16 f32, a quarter of them begins at `quarter * 4`.
                unsafe { vst1q_f32(lanes.as_mut_ptr().add(quarter * QUARTER_GROUP), accumulator) };
            }
        }
    }
}

/// One step of 32 columns of 4 rows.
struct StepWeights {
    /// Stored values as signed bytes, one vector per column group.
    quants: [int8x16_t; STEP_GROUPS],
    scale: float32x4_t,
    /// Scales of the two half steps (only `HalfStepSubScale`).
    half_scales: [int32x4_t; 2],
    /// With the sign it is added with (only formats with a minimum).
    minimum: float32x4_t,
}

impl StepWeights {
    /// # Safety
    /// `block` is a whole packed block of `F`, `step` is below its number of steps, `quarter < 4`.
    #[inline]
    #[target_feature(enable = "neon,dotprod")]
    unsafe fn load<F: QuantizedFormat>(block: &[u8], step: usize, quarter: usize) -> StepWeights {
        let packed = const { packed_block(F::FORMAT) };
        let first = quarter * QUARTER_GROUP;
        // SAFETY: all offsets lie inside the block by the construction of `PackedBlock`.
        unsafe {
            let scale = load_halves(block, 2 * first);
            let sub_scales_at = packed.sub_scales_at + step * GROUP_ROWS + first;
            let (scale, half_scales) = match packed.scales {
                ScaleStorage::OneF16 => (scale, [vdupq_n_s32(0); 2]),
                ScaleStorage::SubScale => {
                    (vmulq_f32(scale, load_unsigned_bytes_as_f32(block, sub_scales_at)), [vdupq_n_s32(0); 2])
                }
                ScaleStorage::HalfStepSubScale => {
                    let at = packed.sub_scales_at + 2 * step * GROUP_ROWS + first;
                    (scale, [load_signed_bytes(block, at), load_signed_bytes(block, at + GROUP_ROWS)])
                }
            };
            let minimum = match packed.minimums {
                MinimumStorage::Absent => vdupq_n_f32(0.0),
                MinimumStorage::Added => load_halves(block, packed.minimums_at + 2 * first),
                MinimumStorage::SubtractedOfSuperBlock => {
                    let at = packed.sub_minimums_at + step * GROUP_ROWS + first;
                    let super_minimum = load_halves(block, packed.minimums_at + 2 * first);
                    vnegq_f32(vmulq_f32(super_minimum, load_unsigned_bytes_as_f32(block, at)))
                }
            };
            let quants_at = packed.steps_at + step * packed.step_bytes + quarter * VECTOR_BYTES / 4;
            let quants = load_quants(packed.quants, block, quants_at);
            StepWeights { quants, scale, half_scales, minimum }
        }
    }

    #[inline]
    #[target_feature(enable = "neon,dotprod")]
    fn add_product<F: QuantizedFormat>(
        &self,
        activations: &ActivationBlock,
        accumulator: float32x4_t,
    ) -> float32x4_t {
        let packed = const { packed_block(F::FORMAT) };
        let offset = i32::from(packed.quant_offset);
        let half_sums = activations.half_sums.map(i32::from);
        // SAFETY: the values are 32 bytes.
        let values = unsafe {
            let values = activations.values.as_ptr();
            [vld1q_s8(values), vld1q_s8(values.add(16))]
        };
        let sum = if packed.scales == ScaleStorage::HalfStepSubScale {
            let first = self.dot::<0>(values[0], vdupq_n_s32(-offset * half_sums[0]));
            let second = self.dot::<{ STEP_GROUPS / 2 }>(values[1], vdupq_n_s32(-offset * half_sums[1]));
            vmlaq_s32(vmulq_s32(first, self.half_scales[0]), second, self.half_scales[1])
        } else {
            let start = vdupq_n_s32(-offset * (half_sums[0] + half_sums[1]));
            self.dot::<{ STEP_GROUPS / 2 }>(values[1], self.dot::<0>(values[0], start))
        };
        let factor = vmulq_n_f32(self.scale, activations.scale);
        let accumulator = vfmaq_f32(accumulator, factor, vcvtq_f32_s32(sum));
        if packed.minimums == MinimumStorage::Absent {
            return accumulator;
        }
        let factor = vmulq_n_f32(self.minimum, activations.scale);
        vfmaq_f32(accumulator, factor, vdupq_n_f32((half_sums[0] + half_sums[1]) as f32))
    }

    /// Adds the products of the half step that begins with column group `FIRST`; `values`: its 16 activations.
    #[inline]
    #[target_feature(enable = "neon,dotprod")]
    fn dot<const FIRST: usize>(&self, values: int8x16_t, start: int32x4_t) -> int32x4_t {
        let sum = dot_lane::<0>(start, self.quants[FIRST], values);
        let sum = dot_lane::<1>(sum, self.quants[FIRST + 1], values);
        let sum = dot_lane::<2>(sum, self.quants[FIRST + 2], values);
        dot_lane::<3>(sum, self.quants[FIRST + 3], values)
    }
}

/// Adds to each 32-bit lane the four products of its weight bytes with word `LANE` of the activations.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn dot_lane<const LANE: usize>(sum: int32x4_t, weights: int8x16_t, activations: int8x16_t) -> int32x4_t {
    let mut sum = sum;
    // SAFETY: inputs and output are registers only; the caller has the dot product extension.
    unsafe {
        asm!(
            "sdot {sum:v}.4s, {weights:v}.16b, {activations:v}.4b[{lane}]",
            sum = inout(vreg) sum,
            weights = in(vreg) weights,
            activations = in(vreg) activations,
            lane = const LANE,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}

/// The stored values of 4 rows of a step as signed bytes.
///
/// # Safety
/// The vectors of a step of that storage begin at `at` in `block` (plus 16 for each quarter of the rows).
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn load_quants(storage: QuantStorage, block: &[u8], at: usize) -> [int8x16_t; STEP_GROUPS] {
    let nibble = vdupq_n_u8(0x0f);
    let mut quants = [vdupq_n_u8(0); STEP_GROUPS];
    // SAFETY: the caller says that the vectors of the step are inside the block.
    let vector = |index: usize| unsafe { load(block, at + index * VECTOR_BYTES) };
    if storage == QuantStorage::Bytes {
        for (group, quants) in quants.iter_mut().enumerate() {
            *quants = vector(group);
        }
        return quants.map(|quants| vreinterpretq_s8_u8(quants));
    }
    for group in 0..4 {
        let both = vector(group);
        quants[group] = vandq_u8(both, nibble);
        quants[group + 4] = vshrq_n_u8::<4>(both);
    }
    match storage {
        QuantStorage::Bytes | QuantStorage::Nibbles => {}
        QuantStorage::NibblesAndFifthBit => {
            let (plane, fifth) = (vector(4), vdupq_n_u8(0x10));
            let shifted = [
                vshlq_n_u8::<4>(plane),
                vshlq_n_u8::<3>(plane),
                vshlq_n_u8::<2>(plane),
                vshlq_n_u8::<1>(plane),
                plane,
                vshrq_n_u8::<1>(plane),
                vshrq_n_u8::<2>(plane),
                vshrq_n_u8::<3>(plane),
            ];
            for (quants, shifted) in quants.iter_mut().zip(shifted) {
                *quants = vorrq_u8(*quants, vandq_u8(shifted, fifth));
            }
        }
        QuantStorage::NibblesAndBitPairs => {
            let pair = vdupq_n_u8(0x30);
            for plane_index in 0..2 {
                let plane = vector(4 + plane_index);
                let shifted = [vshlq_n_u8::<4>(plane), vshlq_n_u8::<2>(plane), plane, vshrq_n_u8::<2>(plane)];
                for (quants, shifted) in quants[4 * plane_index..].iter_mut().zip(shifted) {
                    *quants = vorrq_u8(*quants, vandq_u8(shifted, pair));
                }
            }
        }
    }
    quants.map(|quants| vreinterpretq_s8_u8(quants))
}

/// # Safety
/// 16 bytes at `at` must lie inside `bytes`.
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn load(bytes: &[u8], at: usize) -> uint8x16_t {
    debug_assert!(at + 16 <= bytes.len());
    // SAFETY: checked by the caller.
    unsafe { vld1q_u8(bytes.as_ptr().add(at)) }
}

/// 4 f16 values.
///
/// # Safety
/// 8 bytes at `at` must lie inside `bytes`.
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn load_halves(bytes: &[u8], at: usize) -> float32x4_t {
    debug_assert!(at + 8 <= bytes.len());
    // SAFETY: checked by the caller.
    widen_halves(unsafe { vld1_u16(bytes.as_ptr().add(at).cast()) })
}

/// Four f16 values as f32. Written as `asm!` because the f16 vector types are not stable.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn widen_halves(halves: uint16x4_t) -> float32x4_t {
    let wide: float32x4_t;
    // SAFETY: input and output are registers only.
    unsafe {
        asm!(
            "fcvtl {wide:v}.4s, {halves:v}.4h",
            wide = lateout(vreg) wide,
            halves = in(vreg) halves,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    wide
}

/// Four unsigned bytes as 32-bit lanes.
///
/// # Safety
/// 4 bytes at `at` must lie inside `bytes`.
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn load_unsigned_bytes(bytes: &[u8], at: usize) -> uint32x4_t {
    debug_assert!(at + 4 <= bytes.len());
    // SAFETY: checked by the caller.
    let word: u32 = unsafe { bytes.as_ptr().add(at).cast::<u32>().read_unaligned() };
    vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(u64::from(word)))))
}

/// # Safety
/// As [`load_unsigned_bytes`].
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn load_unsigned_bytes_as_f32(bytes: &[u8], at: usize) -> float32x4_t {
    // SAFETY: passed on from the caller.
    vcvtq_f32_u32(unsafe { load_unsigned_bytes(bytes, at) })
}

/// # Safety
/// As [`load_unsigned_bytes`].
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn load_signed_bytes(bytes: &[u8], at: usize) -> int32x4_t {
    // SAFETY: passed on from the caller.
    let unsigned = unsafe { load_unsigned_bytes(bytes, at) };
    vshrq_n_s32::<24>(vshlq_n_s32::<24>(vreinterpretq_s32_u32(unsigned)))
}

impl FloatTiles for NeonTiles {
    const GROUPS_OF_FOUR_ROWS: usize = 1;

    #[target_feature(enable = "neon,dotprod")]
    unsafe fn tile<E: FloatElement, const GROUPS: usize, const ROWS: usize>(
        columns: usize,
        groups: &[u8],
        rows: &[f32],
        out: &mut [[Lanes; ROWS]; GROUPS],
    ) {
        let column_bytes = GROUP_ROWS * E::BYTES;
        let mut accumulators = [[[vdupq_n_f32(0.0); 4]; ROWS]; GROUPS];
        for column in 0..columns {
            for (group, accumulators) in accumulators.iter_mut().enumerate() {
                let at = (group * columns + column) * column_bytes;
                for quarter in 0..4 {
                    // SAFETY: the column lies inside the group, the group inside `groups`.
                    let weights =
                        unsafe { load_floats::<E>(groups, at + quarter * QUARTER_GROUP * E::BYTES) };
                    for (row, accumulators) in accumulators.iter_mut().enumerate() {
                        // SAFETY: `rows` has `ROWS * columns` elements.
                        let activation = unsafe { *rows.get_unchecked(row * columns + column) };
                        accumulators[quarter] = vfmaq_n_f32(accumulators[quarter], weights, activation);
                    }
                }
            }
        }
        for (results, accumulators) in out.iter_mut().zip(accumulators) {
            for (lanes, quarters) in results.iter_mut().zip(accumulators) {
                for (quarter, accumulator) in quarters.into_iter().enumerate() {
                    // SAFETY: `lanes` is 16 f32, a quarter of them begins at `quarter * 4`.
                    unsafe { vst1q_f32(lanes.as_mut_ptr().add(quarter * QUARTER_GROUP), accumulator) };
                }
            }
        }
    }
}

/// 4 float weights, widened to f32.
///
/// # Safety
/// 4 elements at byte `at` must lie inside `bytes`.
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn load_floats<E: FloatElement>(bytes: &[u8], at: usize) -> float32x4_t {
    debug_assert!(at + QUARTER_GROUP * E::BYTES <= bytes.len());
    // SAFETY: checked by the caller.
    unsafe {
        let source = bytes.as_ptr().add(at);
        match E::KIND {
            FloatKind::F32 => vreinterpretq_f32_u8(vld1q_u8(source)),
            FloatKind::F16 => load_halves(bytes, at),
            FloatKind::Bf16 => vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(source.cast()))),
        }
    }
}
