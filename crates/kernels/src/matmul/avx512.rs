//! AVX-512 VNNI: a 512-bit vector is 16 rows, a lane is a row.
//!
//! `vpdpbusd` adds four products of an unsigned weight byte and a signed activation byte to each 32-bit lane, so one
//! instruction does 4 columns of 16 rows and nothing is ever summed across lanes. Offsets (8, 16, 32; 128 to make the signed
//! bytes of Q8_0 unsigned) are not taken off the weights: the sum starts at `-offset * sum of activations`.
//! Scalar twin: `scalar.rs`. All functions need AVX-512 F, BW, DQ, VL and VNNI; the loads need the whole group in `group`.

use std::arch::x86_64::*;

use super::driver::{FloatElement, FloatKind, FloatTiles, Lanes, QuantizedTiles};
use crate::activations::ActivationBlock;
use crate::blocks::QuantizedFormat;
use crate::layout::{
    GROUP_ROWS, MinimumStorage, QuantStorage, STEP_GROUPS, ScaleStorage, VECTOR_BYTES, packed_block,
};

pub(super) struct Avx512Tiles;

impl QuantizedTiles for Avx512Tiles {
    const ROWS_MAX: usize = 8;

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn tile<F: QuantizedFormat, const ROWS: usize>(
        group: &[u8],
        rows: &[ActivationBlock],
        out: &mut [Lanes; ROWS],
    ) {
        let packed = const { packed_block(F::FORMAT) };
        let row_blocks = rows.len() / ROWS;
        let mut accumulators = [_mm512_setzero_ps(); ROWS];
        let mut column_step = 0;
        for block in group.chunks_exact(packed.bytes) {
            for step in 0..packed.steps {
                // SAFETY: `block` is a whole block of the format and `step` one of its steps.
                let weights = unsafe { StepWeights::load::<F>(block, step) };
                for (row, accumulator) in accumulators.iter_mut().enumerate() {
                    // SAFETY: a row has `row_blocks` blocks, one for each step of the group.
                    let activations = unsafe { rows.get_unchecked(row * row_blocks + column_step) };
                    *accumulator = weights.add_product::<F>(activations, *accumulator);
                }
                column_step += 1;
            }
        }
        for (lanes, accumulator) in out.iter_mut().zip(accumulators) {
            // SAFETY: `lanes` is 16 f32.
            unsafe { _mm512_storeu_ps(lanes.as_mut_ptr(), accumulator) };
        }
    }
}

/// One step of 32 columns of 16 rows, ready to be multiplied by any number of activation rows.
struct StepWeights {
    /// Unsigned bytes, one vector per column group.
    quants: [__m512i; STEP_GROUPS],
    scale: __m512,
    /// Signed 32-bit scales of the two half steps (only `HalfStepSubScale`).
    half_scales: [__m512i; 2],
    /// With the sign it is added with (only formats with a minimum).
    minimum: __m512,
}

impl StepWeights {
    /// # Safety
    /// `block` is a whole packed block of `F`, `step` is below its number of steps.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn load<F: QuantizedFormat>(block: &[u8], step: usize) -> StepWeights {
        let packed = const { packed_block(F::FORMAT) };
        let zero = _mm512_setzero_si512();
        // SAFETY: all offsets lie inside the block by the construction of `PackedBlock`.
        unsafe {
            let scale = load_halves(block, 0);
            let sub_scales_at = packed.sub_scales_at + step * GROUP_ROWS;
            let (scale, half_scales) = match packed.scales {
                ScaleStorage::OneF16 => (scale, [zero; 2]),
                ScaleStorage::SubScale => {
                    (_mm512_mul_ps(scale, load_unsigned_bytes_as_f32(block, sub_scales_at)), [zero; 2])
                }
                ScaleStorage::HalfStepSubScale => {
                    let at = packed.sub_scales_at + 2 * step * GROUP_ROWS;
                    (scale, [load_signed_bytes(block, at), load_signed_bytes(block, at + GROUP_ROWS)])
                }
            };
            let minimum = match packed.minimums {
                MinimumStorage::Absent => _mm512_setzero_ps(),
                MinimumStorage::Added => load_halves(block, packed.minimums_at),
                MinimumStorage::SubtractedOfSuperBlock => {
                    let sub_minimum =
                        load_unsigned_bytes_as_f32(block, packed.sub_minimums_at + step * GROUP_ROWS);
                    let minimum = _mm512_mul_ps(load_halves(block, packed.minimums_at), sub_minimum);
                    _mm512_xor_ps(minimum, _mm512_set1_ps(-0.0))
                }
            };
            let quants = load_quants(packed.quants, block, packed.steps_at + step * packed.step_bytes);
            StepWeights { quants, scale, half_scales, minimum }
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    fn add_product<F: QuantizedFormat>(&self, activations: &ActivationBlock, accumulator: __m512) -> __m512 {
        let packed = const { packed_block(F::FORMAT) };
        let offset = match packed.quants {
            QuantStorage::Bytes => 128,
            _ => packed.quant_offset,
        };
        let half_sums = activations.half_sums;
        let half_sums = _mm512_set1_epi32(i32::from(half_sums[0]) & 0xffff | i32::from(half_sums[1]) << 16);
        let start = |offsets: i32| _mm512_madd_epi16(half_sums, _mm512_set1_epi32(offsets));
        let first_half = -i32::from(offset) & 0xffff;
        let second_half = -i32::from(offset) << 16;

        let sum = if packed.scales == ScaleStorage::HalfStepSubScale {
            let first = self.dot(0, activations, start(first_half));
            let second = self.dot(STEP_GROUPS / 2, activations, start(second_half));
            let first = _mm512_mullo_epi32(first, self.half_scales[0]);
            let second = _mm512_mullo_epi32(second, self.half_scales[1]);
            _mm512_add_epi32(first, second)
        } else {
            let start = if offset == 0 { _mm512_setzero_si512() } else { start(first_half | second_half) };
            self.dot(STEP_GROUPS / 2, activations, self.dot(0, activations, start))
        };
        let activation_scale = _mm512_set1_ps(activations.scale);
        let factor = _mm512_mul_ps(self.scale, activation_scale);
        let accumulator = _mm512_fmadd_ps(factor, _mm512_cvtepi32_ps(sum), accumulator);
        if packed.minimums == MinimumStorage::Absent {
            return accumulator;
        }
        let factor = _mm512_mul_ps(self.minimum, activation_scale);
        let activation_sum = _mm512_cvtepi32_ps(_mm512_madd_epi16(half_sums, _mm512_set1_epi16(1)));
        _mm512_fmadd_ps(factor, activation_sum, accumulator)
    }

    /// Adds the products of the half step that begins with column group `first`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    fn dot(&self, first: usize, activations: &ActivationBlock, start: __m512i) -> __m512i {
        let (words, _) = activations.values.as_chunks::<4>();
        let half_step = words[first..].iter().zip(&self.quants[first..]).take(STEP_GROUPS / 2);
        half_step.fold(start, |sum, (columns, quants)| {
            let columns = i32::from_le_bytes(columns.map(i8::cast_unsigned));
            _mm512_dpbusd_epi32(sum, *quants, _mm512_set1_epi32(columns))
        })
    }
}

/// The stored values of a step as unsigned bytes (Q8_0: plus 128).
///
/// # Safety
/// A whole step of that storage begins at `at` in `block`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn load_quants(storage: QuantStorage, block: &[u8], at: usize) -> [__m512i; STEP_GROUPS] {
    let nibble = _mm512_set1_epi8(0x0f);
    let mut quants = [_mm512_setzero_si512(); STEP_GROUPS];
    // SAFETY: the caller says that the vectors of the step are inside the block.
    let vector = |index: usize| unsafe { load(block, at + index * VECTOR_BYTES) };
    if storage == QuantStorage::Bytes {
        for (group, quants) in quants.iter_mut().enumerate() {
            *quants = _mm512_xor_si512(vector(group), _mm512_set1_epi8(-128));
        }
        return quants;
    }
    for group in 0..4 {
        let both = vector(group);
        quants[group] = _mm512_and_si512(both, nibble);
        quants[group + 4] = _mm512_and_si512(_mm512_srli_epi16::<4>(both), nibble);
    }
    match storage {
        QuantStorage::Bytes | QuantStorage::Nibbles => {}
        QuantStorage::NibblesAndFifthBit => {
            let (plane, fifth) = (vector(4), _mm512_set1_epi8(0x10));
            let shifted = [
                _mm512_slli_epi16::<4>(plane),
                _mm512_slli_epi16::<3>(plane),
                _mm512_slli_epi16::<2>(plane),
                _mm512_slli_epi16::<1>(plane),
                plane,
                _mm512_srli_epi16::<1>(plane),
                _mm512_srli_epi16::<2>(plane),
                _mm512_srli_epi16::<3>(plane),
            ];
            for (quants, shifted) in quants.iter_mut().zip(shifted) {
                *quants = _mm512_or_si512(*quants, _mm512_and_si512(shifted, fifth));
            }
        }
        QuantStorage::NibblesAndBitPairs => {
            let pair = _mm512_set1_epi8(0x30);
            for plane_index in 0..2 {
                let plane = vector(4 + plane_index);
                let shifted = [
                    _mm512_slli_epi16::<4>(plane),
                    _mm512_slli_epi16::<2>(plane),
                    plane,
                    _mm512_srli_epi16::<2>(plane),
                ];
                for (quants, shifted) in quants[4 * plane_index..].iter_mut().zip(shifted) {
                    *quants = _mm512_or_si512(*quants, _mm512_and_si512(shifted, pair));
                }
            }
        }
    }
    quants
}

/// # Safety
/// 64 bytes at `at` must lie inside `bytes`.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load(bytes: &[u8], at: usize) -> __m512i {
    debug_assert!(at + 64 <= bytes.len());
    // SAFETY: checked by the caller.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().add(at).cast()) }
}

/// 16 f16 values.
///
/// # Safety
/// 32 bytes at `at` must lie inside `bytes`.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load_halves(bytes: &[u8], at: usize) -> __m512 {
    debug_assert!(at + 32 <= bytes.len());
    // SAFETY: checked by the caller.
    _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(bytes.as_ptr().add(at).cast()) })
}

/// # Safety
/// 16 bytes at `at` must lie inside `bytes`.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load_unsigned_bytes_as_f32(bytes: &[u8], at: usize) -> __m512 {
    debug_assert!(at + 16 <= bytes.len());
    // SAFETY: checked by the caller.
    _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(unsafe { _mm_loadu_si128(bytes.as_ptr().add(at).cast()) }))
}

/// # Safety
/// 16 bytes at `at` must lie inside `bytes`.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load_signed_bytes(bytes: &[u8], at: usize) -> __m512i {
    debug_assert!(at + 16 <= bytes.len());
    // SAFETY: checked by the caller.
    _mm512_cvtepi8_epi32(unsafe { _mm_loadu_si128(bytes.as_ptr().add(at).cast()) })
}

impl FloatTiles for Avx512Tiles {
    const GROUPS_OF_FOUR_ROWS: usize = 4;

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn tile<E: FloatElement, const GROUPS: usize, const ROWS: usize>(
        columns: usize,
        groups: &[u8],
        rows: &[f32],
        out: &mut [[Lanes; ROWS]; GROUPS],
    ) {
        let column_bytes = GROUP_ROWS * E::BYTES;
        let mut accumulators = [[_mm512_setzero_ps(); ROWS]; GROUPS];
        for column in 0..columns {
            for (group, accumulators) in accumulators.iter_mut().enumerate() {
                // SAFETY: the column lies inside the group, the group inside `groups`.
                let weights = unsafe { load_floats::<E>(groups, (group * columns + column) * column_bytes) };
                for (row, accumulator) in accumulators.iter_mut().enumerate() {
                    // SAFETY: `rows` has `ROWS * columns` elements.
                    let activation = _mm512_set1_ps(unsafe { *rows.get_unchecked(row * columns + column) });
                    *accumulator = _mm512_fmadd_ps(weights, activation, *accumulator);
                }
            }
        }
        for (results, accumulators) in out.iter_mut().zip(accumulators) {
            for (lanes, accumulator) in results.iter_mut().zip(accumulators) {
                // SAFETY: `lanes` is 16 f32.
                unsafe { _mm512_storeu_ps(lanes.as_mut_ptr(), accumulator) };
            }
        }
    }
}

/// 16 float weights, widened to f32.
///
/// # Safety
/// 16 elements at byte `at` must lie inside `bytes`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn load_floats<E: FloatElement>(bytes: &[u8], at: usize) -> __m512 {
    debug_assert!(at + GROUP_ROWS * E::BYTES <= bytes.len());
    // SAFETY: checked by the caller.
    unsafe {
        let source = bytes.as_ptr().add(at);
        match E::KIND {
            FloatKind::F32 => _mm512_loadu_ps(source.cast()),
            FloatKind::F16 => _mm512_cvtph_ps(_mm256_loadu_si256(source.cast())),
            FloatKind::Bf16 => {
                let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(source.cast()));
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
            }
        }
    }
}
