//! Quantisation of activations in AVX-512 and AVX2, bit-equal to `quantize.rs`.
//!
//! `vcvtps2dq` rounds half to even, as the rule asks, in the rounding mode that every Rust program runs in. The sum of 16
//! signed bytes comes from `vpsadbw`, which adds unsigned ones: 128 is added to each before and 16 * 128 taken off after.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::ActivationBlock;
use super::quantize::special_block;
use crate::blocks::STEP_COLUMNS;

const MAGNITUDE: i32 = 0x7fff_ffff;

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2")]
pub(super) fn avx512(blocks: &[[f32; STEP_COLUMNS]], out: &mut [ActivationBlock]) {
    let mask = _mm512_set1_epi32(MAGNITUDE);
    for (values, block) in blocks.iter().zip(out) {
        let (halves, _) = values.as_chunks::<16>();
        // SAFETY: a half is 16 f32.
        let halves = unsafe { [_mm512_loadu_ps(halves[0].as_ptr()), _mm512_loadu_ps(halves[1].as_ptr())] };
        let first = _mm512_and_si512(_mm512_castps_si512(halves[0]), mask);
        let second = _mm512_and_si512(_mm512_castps_si512(halves[1]), mask);
        let largest = _mm512_reduce_max_epu32(_mm512_max_epu32(first, second));
        let largest = f32::from_bits(largest);
        if let Some(special) = special_block(largest) {
            *block = special;
            continue;
        }
        let inverse = _mm512_set1_ps(127.0 / largest);
        let first = _mm512_cvtps_epi32(_mm512_mul_ps(halves[0], inverse));
        let second = _mm512_cvtps_epi32(_mm512_mul_ps(halves[1], inverse));
        // Packs work in each 128-bit lane: afterwards lane n begins with words n of the first and of the second half.
        let words = _mm512_packs_epi32(first, second);
        let bytes = _mm512_packs_epi16(words, words);
        let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 0, 0, 0, 0, 0, 0, 0, 0);
        let bytes = _mm512_castsi512_si256(_mm512_permutexvar_epi32(order, bytes));
        finish(bytes, largest, block);
    }
}

#[target_feature(enable = "avx2")]
pub(super) fn avx2(blocks: &[[f32; STEP_COLUMNS]], out: &mut [ActivationBlock]) {
    let mask = _mm256_set1_epi32(MAGNITUDE);
    for (values, block) in blocks.iter().zip(out) {
        let (quarters, _) = values.as_chunks::<8>();
        let mut vectors = [_mm256_setzero_ps(); 4];
        let mut largest = _mm256_setzero_si256();
        for (vector, quarter) in vectors.iter_mut().zip(quarters) {
            // SAFETY: a quarter is 8 f32.
            *vector = unsafe { _mm256_loadu_ps(quarter.as_ptr()) };
            largest = _mm256_max_epu32(largest, _mm256_and_si256(_mm256_castps_si256(*vector), mask));
        }
        let half = _mm_max_epu32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256::<1>(largest));
        let pair = _mm_max_epu32(half, _mm_shuffle_epi32::<0b00_00_11_10>(half));
        let one = _mm_max_epu32(pair, _mm_shuffle_epi32::<0b00_00_00_01>(pair));
        let largest = f32::from_bits(_mm_cvtsi128_si32(one).cast_unsigned());
        if let Some(special) = special_block(largest) {
            *block = special;
            continue;
        }
        let inverse = _mm256_set1_ps(127.0 / largest);
        let quarter = |vector| _mm256_cvtps_epi32(_mm256_mul_ps(vector, inverse));
        let first = _mm256_packs_epi32(quarter(vectors[0]), quarter(vectors[1]));
        let second = _mm256_packs_epi32(quarter(vectors[2]), quarter(vectors[3]));
        // Packs work in each 128-bit lane: words 0, 2, 4, 6 then 1, 3, 5, 7 of the block.
        let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        let bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(first, second), order);
        finish(bytes, largest, block);
    }
}

/// Fills a block from its 32 signed bytes.
#[inline]
#[target_feature(enable = "avx2")]
fn finish(bytes: __m256i, largest: f32, block: &mut ActivationBlock) {
    // SAFETY: `values` is 32 bytes.
    unsafe { _mm256_storeu_si256(block.values.as_mut_ptr().cast(), bytes) };
    let unsigned = _mm256_xor_si256(bytes, _mm256_set1_epi8(-128));
    let sums = _mm256_sad_epu8(unsigned, _mm256_setzero_si256());
    let sums = _mm256_add_epi32(sums, _mm256_unpackhi_epi64(sums, sums));
    let first = _mm_cvtsi128_si32(_mm256_castsi256_si128(sums)) - 16 * 128;
    let second = _mm_cvtsi128_si32(_mm256_extracti128_si256::<1>(sums)) - 16 * 128;
    block.set_scale_and_sums(largest / 127.0, [first as i16, second as i16]);
}
