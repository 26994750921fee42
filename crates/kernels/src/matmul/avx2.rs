//! AVX2 with FMA and F16C: two 256-bit vectors are the 16 rows of a group, a lane is a row.
//!
//! `vpmaddubsw` multiplies unsigned weight bytes by signed activation bytes and adds pairs into 16 bits with saturation, so
//! the largest sum must stay below 2^15. Pairs of n-bit weights reach 2 * (2^n - 1) * 127: eight column groups of nibbles,
//! four of five-bit and two of six-bit values may be added before widening to 32 bits. The signed bytes of Q8_0 are split
//! into magnitude (as the unsigned factor) and sign (moved to the activation): 2 * 128 * 127 fits as well. Offsets are
//! folded into the start value, as in `avx512.rs`. Scalar twin: `scalar.rs`.

use std::arch::x86_64::*;

use super::driver::{FloatElement, FloatKind, FloatTiles, Lanes, QuantizedTiles};
use crate::activations::ActivationBlock;
use crate::blocks::QuantizedFormat;
use crate::layout::{
    GROUP_ROWS, MinimumStorage, QuantStorage, STEP_GROUPS, ScaleStorage, VECTOR_BYTES, packed_block,
};

/// Rows in one 256-bit vector.
const HALF_GROUP: usize = GROUP_ROWS / 2;

pub(super) struct Avx2Tiles;

impl QuantizedTiles for Avx2Tiles {
    const ROWS_MAX: usize = 4;

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn tile<F: QuantizedFormat, const ROWS: usize>(
        group: &[u8],
        rows: &[ActivationBlock],
        out: &mut [Lanes; ROWS],
    ) {
        let packed = const { packed_block(F::FORMAT) };
        let row_blocks = rows.len() / ROWS;
        let mut accumulators = [[_mm256_setzero_ps(); ROWS]; 2];
        let mut column_step = 0;
        for block in group.chunks_exact(packed.bytes) {
            for step in 0..packed.steps {
                for (half, accumulators) in accumulators.iter_mut().enumerate() {
                    // SAFETY: `block` is a whole block of the format, `step` one of its steps, `half` is 0 or 1.
                    let weights = unsafe { StepWeights::load::<F>(block, step, half) };
                    for (row, accumulator) in accumulators.iter_mut().enumerate() {
                        // SAFETY: a row has `row_blocks` blocks, one for each step of the group.
                        let activations = unsafe { rows.get_unchecked(row * row_blocks + column_step) };
                        *accumulator = weights.add_product::<F>(activations, *accumulator);
                    }
                }
                column_step += 1;
            }
        }
        for (half, accumulators) in accumulators.into_iter().enumerate() {
            for (lanes, accumulator) in out.iter_mut().zip(accumulators) {
                // SAFETY: `lanes` is 16 f32, half of them begin at `half * 8`.
                unsafe { _mm256_storeu_ps(lanes.as_mut_ptr().add(half * HALF_GROUP), accumulator) };
            }
        }
    }
}

/// One step of 32 columns of 8 rows.
struct StepWeights {
    /// Stored values, one vector per column group: unsigned bytes, or the signed bytes of Q8_0.
    quants: [__m256i; STEP_GROUPS],
    scale: __m256,
    /// Signed 32-bit scales of the two half steps (only `HalfStepSubScale`).
    half_scales: [__m256i; 2],
    /// With the sign it is added with (only formats with a minimum).
    minimum: __m256,
}

impl StepWeights {
    /// # Safety
    /// `block` is a whole packed block of `F`, `step` is below its number of steps, `half < 2`.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn load<F: QuantizedFormat>(block: &[u8], step: usize, half: usize) -> StepWeights {
        let packed = const { packed_block(F::FORMAT) };
        let zero = _mm256_setzero_si256();
        let first = half * HALF_GROUP;
        // SAFETY: all offsets lie inside the block by the construction of `PackedBlock`.
        unsafe {
            let scale = load_halves(block, 2 * first);
            let sub_scales_at = packed.sub_scales_at + step * GROUP_ROWS + first;
            let (scale, half_scales) = match packed.scales {
                ScaleStorage::OneF16 => (scale, [zero; 2]),
                ScaleStorage::SubScale => {
                    (_mm256_mul_ps(scale, load_unsigned_bytes_as_f32(block, sub_scales_at)), [zero; 2])
                }
                ScaleStorage::HalfStepSubScale => {
                    let at = packed.sub_scales_at + 2 * step * GROUP_ROWS + first;
                    (scale, [load_signed_bytes(block, at), load_signed_bytes(block, at + GROUP_ROWS)])
                }
            };
            let minimum = match packed.minimums {
                MinimumStorage::Absent => _mm256_setzero_ps(),
                MinimumStorage::Added => load_halves(block, packed.minimums_at + 2 * first),
                MinimumStorage::SubtractedOfSuperBlock => {
                    let at = packed.sub_minimums_at + step * GROUP_ROWS + first;
                    let super_minimum = load_halves(block, packed.minimums_at + 2 * first);
                    let minimum = _mm256_mul_ps(super_minimum, load_unsigned_bytes_as_f32(block, at));
                    _mm256_xor_ps(minimum, _mm256_set1_ps(-0.0))
                }
            };
            let quants_at = packed.steps_at + step * packed.step_bytes + half * VECTOR_BYTES / 2;
            let quants = load_quants(packed.quants, block, quants_at);
            StepWeights { quants, scale, half_scales, minimum }
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn add_product<F: QuantizedFormat>(&self, activations: &ActivationBlock, accumulator: __m256) -> __m256 {
        let packed = const { packed_block(F::FORMAT) };
        let half_sums = activations.half_sums;
        let half_sums = _mm256_set1_epi32(i32::from(half_sums[0]) & 0xffff | i32::from(half_sums[1]) << 16);
        let start = |offsets: i32| _mm256_madd_epi16(half_sums, _mm256_set1_epi32(offsets));
        let first_half = -i32::from(packed.quant_offset) & 0xffff;
        let second_half = -i32::from(packed.quant_offset) << 16;
        let storage = packed.quants;

        let sum = if packed.scales == ScaleStorage::HalfStepSubScale {
            let first = self.dot::<0>(storage, activations, start(first_half));
            let second = self.dot::<{ STEP_GROUPS / 2 }>(storage, activations, start(second_half));
            let first = _mm256_mullo_epi32(first, self.half_scales[0]);
            let second = _mm256_mullo_epi32(second, self.half_scales[1]);
            _mm256_add_epi32(first, second)
        } else {
            let start = if packed.quant_offset == 0 {
                _mm256_setzero_si256()
            } else {
                start(first_half | second_half)
            };
            self.dot_all(storage, activations, start)
        };
        let activation_scale = _mm256_set1_ps(activations.scale);
        let factor = _mm256_mul_ps(self.scale, activation_scale);
        let accumulator = _mm256_fmadd_ps(factor, _mm256_cvtepi32_ps(sum), accumulator);
        if packed.minimums == MinimumStorage::Absent {
            return accumulator;
        }
        let factor = _mm256_mul_ps(self.minimum, activation_scale);
        let activation_sum = _mm256_cvtepi32_ps(_mm256_madd_epi16(half_sums, _mm256_set1_epi16(1)));
        _mm256_fmadd_ps(factor, activation_sum, accumulator)
    }

    /// Adds the products of the whole step to `start`.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn dot_all(&self, storage: QuantStorage, activations: &ActivationBlock, start: __m256i) -> __m256i {
        if storage == QuantStorage::Nibbles {
            let pairs = _mm256_add_epi16(
                self.pair_sums::<0>(storage, activations),
                self.pair_sums::<{ STEP_GROUPS / 2 }>(storage, activations),
            );
            return _mm256_add_epi32(start, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
        }
        let first = self.dot::<0>(storage, activations, start);
        self.dot::<{ STEP_GROUPS / 2 }>(storage, activations, first)
    }

    /// Adds the products of the half step that begins with column group `FIRST` to `start`.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn dot<const FIRST: usize>(
        &self,
        storage: QuantStorage,
        activations: &ActivationBlock,
        start: __m256i,
    ) -> __m256i {
        let ones = _mm256_set1_epi16(1);
        let widen = |pairs| _mm256_madd_epi16(pairs, ones);
        match storage {
            QuantStorage::Nibbles | QuantStorage::NibblesAndFifthBit => {
                _mm256_add_epi32(start, widen(self.pair_sums::<FIRST>(storage, activations)))
            }
            QuantStorage::NibblesAndBitPairs => {
                let pairs = |group| self.pairs(storage, activations, group);
                let first = _mm256_add_epi16(pairs(FIRST), pairs(FIRST + 1));
                let second = _mm256_add_epi16(pairs(FIRST + 2), pairs(FIRST + 3));
                _mm256_add_epi32(start, _mm256_add_epi32(widen(first), widen(second)))
            }
            QuantStorage::Bytes => (FIRST..FIRST + STEP_GROUPS / 2).fold(start, |sum, group| {
                _mm256_add_epi32(sum, widen(self.pairs(storage, activations, group)))
            }),
        }
    }

    /// 16-bit sums over the half step that begins with column group `FIRST`; weights of at most five bits.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn pair_sums<const FIRST: usize>(&self, storage: QuantStorage, activations: &ActivationBlock) -> __m256i {
        let pairs = |group| self.pairs(storage, activations, group);
        let first = _mm256_add_epi16(pairs(FIRST), pairs(FIRST + 1));
        let second = _mm256_add_epi16(pairs(FIRST + 2), pairs(FIRST + 3));
        _mm256_add_epi16(first, second)
    }

    /// Products of one column group, added in pairs into 16 bits.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn pairs(&self, storage: QuantStorage, activations: &ActivationBlock, group: usize) -> __m256i {
        let (words, _) = activations.values.as_chunks::<4>();
        let columns = _mm256_set1_epi32(i32::from_le_bytes(words[group].map(i8::cast_unsigned)));
        let weights = self.quants[group];
        if storage == QuantStorage::Bytes {
            _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(columns, weights))
        } else {
            _mm256_maddubs_epi16(weights, columns)
        }
    }
}

/// The stored values of 8 rows of a step.
///
/// # Safety
/// The vectors of a step of that storage begin at `at` in `block` (plus 32 for the upper 8 rows).
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load_quants(storage: QuantStorage, block: &[u8], at: usize) -> [__m256i; STEP_GROUPS] {
    let nibble = _mm256_set1_epi8(0x0f);
    let mut quants = [_mm256_setzero_si256(); STEP_GROUPS];
    // SAFETY: the caller says that the vectors of the step are inside the block.
    let vector = |index: usize| unsafe { load(block, at + index * VECTOR_BYTES) };
    if storage == QuantStorage::Bytes {
        for (group, quants) in quants.iter_mut().enumerate() {
            *quants = vector(group);
        }
        return quants;
    }
    for group in 0..4 {
        let both = vector(group);
        quants[group] = _mm256_and_si256(both, nibble);
        quants[group + 4] = _mm256_and_si256(_mm256_srli_epi16::<4>(both), nibble);
    }
    match storage {
        QuantStorage::Bytes | QuantStorage::Nibbles => {}
        QuantStorage::NibblesAndFifthBit => {
            let (plane, fifth) = (vector(4), _mm256_set1_epi8(0x10));
            let shifted = [
                _mm256_slli_epi16::<4>(plane),
                _mm256_slli_epi16::<3>(plane),
                _mm256_slli_epi16::<2>(plane),
                _mm256_slli_epi16::<1>(plane),
                plane,
                _mm256_srli_epi16::<1>(plane),
                _mm256_srli_epi16::<2>(plane),
                _mm256_srli_epi16::<3>(plane),
            ];
            for (quants, shifted) in quants.iter_mut().zip(shifted) {
                *quants = _mm256_or_si256(*quants, _mm256_and_si256(shifted, fifth));
            }
        }
        QuantStorage::NibblesAndBitPairs => {
            let pair = _mm256_set1_epi8(0x30);
            for plane_index in 0..2 {
                let plane = vector(4 + plane_index);
                let shifted = [
                    _mm256_slli_epi16::<4>(plane),
                    _mm256_slli_epi16::<2>(plane),
                    plane,
                    _mm256_srli_epi16::<2>(plane),
                ];
                for (quants, shifted) in quants[4 * plane_index..].iter_mut().zip(shifted) {
                    *quants = _mm256_or_si256(*quants, _mm256_and_si256(shifted, pair));
                }
            }
        }
    }
    quants
}

/// # Safety
/// 32 bytes at `at` must lie inside `bytes`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load(bytes: &[u8], at: usize) -> __m256i {
    debug_assert!(at + 32 <= bytes.len());
    // SAFETY: checked by the caller.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().add(at).cast()) }
}

/// 8 f16 values.
///
/// # Safety
/// 16 bytes at `at` must lie inside `bytes`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load_halves(bytes: &[u8], at: usize) -> __m256 {
    debug_assert!(at + 16 <= bytes.len());
    // SAFETY: checked by the caller.
    _mm256_cvtph_ps(unsafe { _mm_loadu_si128(bytes.as_ptr().add(at).cast()) })
}

/// # Safety
/// 8 bytes at `at` must lie inside `bytes`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load_unsigned_bytes_as_f32(bytes: &[u8], at: usize) -> __m256 {
    debug_assert!(at + 8 <= bytes.len());
    // SAFETY: checked by the caller.
    _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(unsafe { _mm_loadl_epi64(bytes.as_ptr().add(at).cast()) }))
}

/// # Safety
/// 8 bytes at `at` must lie inside `bytes`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load_signed_bytes(bytes: &[u8], at: usize) -> __m256i {
    debug_assert!(at + 8 <= bytes.len());
    // SAFETY: checked by the caller.
    _mm256_cvtepi8_epi32(unsafe { _mm_loadl_epi64(bytes.as_ptr().add(at).cast()) })
}

impl FloatTiles for Avx2Tiles {
    const GROUPS_OF_FOUR_ROWS: usize = 1;

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn tile<E: FloatElement, const GROUPS: usize, const ROWS: usize>(
        columns: usize,
        groups: &[u8],
        rows: &[f32],
        out: &mut [[Lanes; ROWS]; GROUPS],
    ) {
        let column_bytes = GROUP_ROWS * E::BYTES;
        let mut accumulators = [[[_mm256_setzero_ps(); 2]; ROWS]; GROUPS];
        for column in 0..columns {
            for (group, accumulators) in accumulators.iter_mut().enumerate() {
                let at = (group * columns + column) * column_bytes;
                // SAFETY: the column lies inside the group, the group inside `groups`.
                let weights = unsafe {
                    [load_floats::<E>(groups, at), load_floats::<E>(groups, at + HALF_GROUP * E::BYTES)]
                };
                for (row, accumulators) in accumulators.iter_mut().enumerate() {
                    // SAFETY: `rows` has `ROWS * columns` elements.
                    let activation = _mm256_set1_ps(unsafe { *rows.get_unchecked(row * columns + column) });
                    for (accumulator, weights) in accumulators.iter_mut().zip(weights) {
                        *accumulator = _mm256_fmadd_ps(weights, activation, *accumulator);
                    }
                }
            }
        }
        for (results, accumulators) in out.iter_mut().zip(accumulators) {
            for (lanes, halves) in results.iter_mut().zip(accumulators) {
                for (half, accumulator) in halves.into_iter().enumerate() {
                    // SAFETY: `lanes` is 16 f32, half of them begin at `half * 8`.
                    unsafe { _mm256_storeu_ps(lanes.as_mut_ptr().add(half * HALF_GROUP), accumulator) };
                }
            }
        }
    }
}

/// 8 float weights, widened to f32.
///
/// # Safety
/// 8 elements at byte `at` must lie inside `bytes`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load_floats<E: FloatElement>(bytes: &[u8], at: usize) -> __m256 {
    debug_assert!(at + HALF_GROUP * E::BYTES <= bytes.len());
    // SAFETY: checked by the caller.
    unsafe {
        let source = bytes.as_ptr().add(at);
        match E::KIND {
            FloatKind::F32 => _mm256_loadu_ps(source.cast()),
            FloatKind::F16 => _mm256_cvtph_ps(_mm_loadu_si128(source.cast())),
            FloatKind::Bf16 => {
                let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(source.cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
            }
        }
    }
}
