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
        let first = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(halves[0], inverse)));
        let second = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(halves[1], inverse)));
        *block = finish([first, second], largest);
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
        let mut halves = [_mm_setzero_si128(); 2];
        for (half, vectors) in halves.iter_mut().zip(vectors.as_chunks::<2>().0) {
            let first = _mm256_cvtps_epi32(_mm256_mul_ps(vectors[0], inverse));
            let second = _mm256_cvtps_epi32(_mm256_mul_ps(vectors[1], inverse));
            // The pack works in each 128-bit half: words 0..4, 8..12, 4..8, 12..16.
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(first, second));
            *half = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
        }
        *block = finish(halves, largest);
    }
}

/// The block of two halves of signed bytes.
#[inline]
#[target_feature(enable = "avx2")]
fn finish(halves: [__m128i; 2], largest: f32) -> ActivationBlock {
    let mut values = [0_i8; STEP_COLUMNS];
    let mut half_sums = [0_i16; 2];
    let (targets, _) = values.as_chunks_mut::<16>();
    for ((half, target), sum) in halves.into_iter().zip(targets).zip(&mut half_sums) {
        // SAFETY: a half is 16 bytes.
        unsafe { _mm_storeu_si128(target.as_mut_ptr().cast(), half) };
        let unsigned = _mm_xor_si128(half, _mm_set1_epi8(-128));
        let sums = _mm_sad_epu8(unsigned, _mm_setzero_si128());
        let both = _mm_add_epi32(sums, _mm_unpackhi_epi64(sums, sums));
        *sum = (_mm_cvtsi128_si32(both) - 16 * 128) as i16;
    }
    ActivationBlock::with_sums(values, largest / 127.0, half_sums)
}
