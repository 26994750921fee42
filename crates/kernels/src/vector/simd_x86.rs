//! The sixteen lanes of `simd.rs` in AVX-512 and AVX2 registers.
//!
//! A value of [`Avx512`] or [`Avx2`] is the proof that the processor has the features, so the methods are
//! safe. They only become single instructions inside a function compiled with the same features;
//! `dispatch.rs` makes those.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use half::f16;

use super::simd::{LANES, Simd};

/// AVX-512 F, BW, VL, DQ with FMA and F16C: one register.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

/// AVX2 with FMA and F16C: a pair of registers, lanes 0..8 and 8..16.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx512 {
    /// # Safety
    /// The processor has AVX-512 F, BW, VL and DQ, FMA and F16C.
    #[inline(always)]
    pub(crate) unsafe fn new() -> Avx512 {
        Avx512(())
    }
}

impl Avx2 {
    /// # Safety
    /// The processor has AVX2, FMA and F16C.
    #[inline(always)]
    pub(crate) unsafe fn new() -> Avx2 {
        Avx2(())
    }
}

/// Intrinsics whose only condition is the processor's features.
macro_rules! with_features {
    ($($intrinsics:tt)*) => {
        // SAFETY: `self` is the proof that the processor has the features.
        unsafe { $($intrinsics)* }
    };
}

impl Simd for Avx512 {
    type Lanes = __m512;

    #[inline(always)]
    fn prefetch<T>(self, address: *const T) {
        // SAFETY: a prefetch accepts any address.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) }
    }

    #[inline(always)]
    fn splat(self, value: f32) -> __m512 {
        with_features!(_mm512_set1_ps(value))
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> __m512 {
        // SAFETY: as above, and the reference covers the 64 bytes; no alignment is asked for.
        unsafe { _mm512_loadu_ps(from.as_ptr()) }
    }

    #[inline(always)]
    fn store(self, lanes: __m512, to: &mut [f32; LANES]) {
        // SAFETY: as above, and the reference covers the 64 bytes; no alignment is asked for.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), lanes) }
    }

    #[inline(always)]
    fn load_half(self, from: &[f16; LANES]) -> __m512 {
        // SAFETY: as above, and the reference covers the 32 bytes; no alignment is asked for.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast())) }
    }

    #[inline(always)]
    fn store_half(self, lanes: __m512, to: &mut [f16; LANES]) {
        // SAFETY: as above, and the reference covers the 32 bytes; no alignment is asked for.
        unsafe {
            let halves = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(lanes);
            _mm256_storeu_si256(to.as_mut_ptr().cast(), halves);
        }
    }

    #[inline(always)]
    fn splat_half(self, value: f16) -> __m512 {
        with_features!(_mm512_cvtph_ps(_mm256_set1_epi16(value.to_bits().cast_signed())))
    }

    #[inline(always)]
    fn load_bytes(self, from: &[i8; LANES]) -> __m512 {
        // SAFETY: as above, and the reference covers the 16 bytes; no alignment is asked for.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.as_ptr().cast()))) }
    }

    #[inline(always)]
    fn load_nibbles<const HIGH: bool>(self, from: &[u8; LANES]) -> __m512 {
        with_features!(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(nibbles::<HIGH>(from))))
    }

    #[inline(always)]
    fn store_bytes(self, lanes: __m512, to: &mut [i8; LANES]) {
        // SAFETY: as above, and the reference covers the 16 bytes; no alignment is asked for.
        unsafe {
            let bytes = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(lanes));
            _mm_storeu_si128(to.as_mut_ptr().cast(), bytes);
        }
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        with_features!(_mm512_add_ps(a, b))
    }

    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        with_features!(_mm512_sub_ps(a, b))
    }

    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        with_features!(_mm512_mul_ps(a, b))
    }

    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        with_features!(_mm512_div_ps(a, b))
    }

    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        with_features!(_mm512_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn smaller(self, a: __m512, b: __m512) -> __m512 {
        with_features!(_mm512_min_ps(a, b))
    }

    #[inline(always)]
    fn larger(self, a: __m512, b: __m512) -> __m512 {
        with_features!(_mm512_max_ps(a, b))
    }

    #[inline(always)]
    fn negative_magnitude(self, a: __m512) -> __m512 {
        with_features!(_mm512_or_ps(a, _mm512_set1_ps(-0.0)))
    }

    #[inline(always)]
    fn select_negative(self, test: __m512, negative: __m512, other: __m512) -> __m512 {
        with_features!({
            let mask = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(test, _mm512_setzero_ps());
            _mm512_mask_blend_ps(mask, other, negative)
        })
    }

    #[inline(always)]
    fn times_power_of_two(self, a: __m512, exponent: __m512) -> __m512 {
        with_features!(_mm512_scalef_ps(a, exponent))
    }

    #[inline(always)]
    fn reduce_add(self, a: __m512) -> f32 {
        with_features!(add_halves(_mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a))))
    }

    #[inline(always)]
    fn reduce_larger(self, a: __m512) -> f32 {
        with_features!(larger_half(_mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a))))
    }

    #[inline(always)]
    fn transpose(self, rows: &mut [__m512; LANES]) {
        with_features!({
            let mut quads = [_mm512_setzero_ps(); LANES];
            // Within each 128-bit quarter: 4 x 4 transposes of four rows.
            let mut first = 0;
            while first < LANES {
                let [a, b, c, d] = [rows[first], rows[first + 1], rows[first + 2], rows[first + 3]];
                let low = _mm512_castps_pd(_mm512_unpacklo_ps(a, b));
                let high = _mm512_castps_pd(_mm512_unpackhi_ps(a, b));
                let next_low = _mm512_castps_pd(_mm512_unpacklo_ps(c, d));
                let next_high = _mm512_castps_pd(_mm512_unpackhi_ps(c, d));
                quads[first] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, next_low));
                quads[first + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, next_low));
                quads[first + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(high, next_high));
                quads[first + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(high, next_high));
                first += 4;
            }
            // Then a 4 x 4 transpose of the quarters themselves.
            let mut column = 0;
            while column < 4 {
                let [a, b, c, d] = [quads[column], quads[column + 4], quads[column + 8], quads[column + 12]];
                let low = _mm512_shuffle_f32x4::<0x44>(a, b);
                let high = _mm512_shuffle_f32x4::<0xee>(a, b);
                let next_low = _mm512_shuffle_f32x4::<0x44>(c, d);
                let next_high = _mm512_shuffle_f32x4::<0xee>(c, d);
                rows[column] = _mm512_shuffle_f32x4::<0x88>(low, next_low);
                rows[column + 4] = _mm512_shuffle_f32x4::<0xdd>(low, next_low);
                rows[column + 8] = _mm512_shuffle_f32x4::<0x88>(high, next_high);
                rows[column + 12] = _mm512_shuffle_f32x4::<0xdd>(high, next_high);
                column += 1;
            }
        });
    }

    #[inline(always)]
    fn swap_lanes<const DISTANCE: usize>(self, a: __m512) -> __m512 {
        with_features!(match DISTANCE {
            1 => _mm512_permute_ps::<0b1011_0001>(a),
            2 => _mm512_permute_ps::<0b0100_1110>(a),
            4 => _mm512_shuffle_f32x4::<0b1011_0001>(a, a),
            _ => _mm512_shuffle_f32x4::<0b0100_1110>(a, a),
        })
    }
}

impl Simd for Avx2 {
    type Lanes = [__m256; 2];

    #[inline(always)]
    fn prefetch<T>(self, address: *const T) {
        // SAFETY: a prefetch accepts any address.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) }
    }

    #[inline(always)]
    fn splat(self, value: f32) -> [__m256; 2] {
        with_features!([_mm256_set1_ps(value); 2])
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> [__m256; 2] {
        // SAFETY: as above, and the reference covers the 64 bytes; no alignment is asked for.
        unsafe { [_mm256_loadu_ps(from.as_ptr()), _mm256_loadu_ps(from.as_ptr().add(8))] }
    }

    #[inline(always)]
    fn store(self, lanes: [__m256; 2], to: &mut [f32; LANES]) {
        // SAFETY: as above, and the reference covers the 64 bytes; no alignment is asked for.
        unsafe {
            _mm256_storeu_ps(to.as_mut_ptr(), lanes[0]);
            _mm256_storeu_ps(to.as_mut_ptr().add(8), lanes[1]);
        }
    }

    #[inline(always)]
    fn load_half(self, from: &[f16; LANES]) -> [__m256; 2] {
        let from: *const __m128i = from.as_ptr().cast();
        // SAFETY: as above, and the reference covers the 32 bytes; no alignment is asked for.
        unsafe { [_mm256_cvtph_ps(_mm_loadu_si128(from)), _mm256_cvtph_ps(_mm_loadu_si128(from.add(1)))] }
    }

    #[inline(always)]
    fn store_half(self, lanes: [__m256; 2], to: &mut [f16; LANES]) {
        let to: *mut __m128i = to.as_mut_ptr().cast();
        // SAFETY: as above, and the reference covers the 32 bytes; no alignment is asked for.
        unsafe {
            _mm_storeu_si128(to, _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(lanes[0]));
            _mm_storeu_si128(to.add(1), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(lanes[1]));
        }
    }

    #[inline(always)]
    fn splat_half(self, value: f16) -> [__m256; 2] {
        with_features!([_mm256_cvtph_ps(_mm_set1_epi16(value.to_bits().cast_signed())); 2])
    }

    #[inline(always)]
    fn load_bytes(self, from: &[i8; LANES]) -> [__m256; 2] {
        // SAFETY: as above, and the reference covers the 16 bytes; no alignment is asked for.
        unsafe { widened_bytes(_mm_loadu_si128(from.as_ptr().cast())) }
    }

    #[inline(always)]
    fn load_nibbles<const HIGH: bool>(self, from: &[u8; LANES]) -> [__m256; 2] {
        with_features!(widened_bytes(nibbles::<HIGH>(from)))
    }

    #[inline(always)]
    fn store_bytes(self, lanes: [__m256; 2], to: &mut [i8; LANES]) {
        // SAFETY: as above, and the reference covers the 16 bytes; no alignment is asked for.
        unsafe {
            let words = _mm256_packs_epi32(_mm256_cvtps_epi32(lanes[0]), _mm256_cvtps_epi32(lanes[1]));
            // The packing goes by halves of a register: quarters 0, 2, 1, 3.
            let words = _mm256_permute4x64_epi64::<0b1101_1000>(words);
            let bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            _mm_storeu_si128(to.as_mut_ptr().cast(), bytes);
        }
    }

    #[inline(always)]
    fn add(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        with_features!([_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])])
    }

    #[inline(always)]
    fn sub(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        with_features!([_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])])
    }

    #[inline(always)]
    fn mul(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        with_features!([_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])])
    }

    #[inline(always)]
    fn div(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        with_features!([_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])])
    }

    #[inline(always)]
    fn fma(self, a: [__m256; 2], b: [__m256; 2], c: [__m256; 2]) -> [__m256; 2] {
        with_features!([_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])])
    }

    #[inline(always)]
    fn smaller(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        with_features!([_mm256_min_ps(a[0], b[0]), _mm256_min_ps(a[1], b[1])])
    }

    #[inline(always)]
    fn larger(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        with_features!([_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])])
    }

    #[inline(always)]
    fn negative_magnitude(self, a: [__m256; 2]) -> [__m256; 2] {
        with_features!([_mm256_or_ps(a[0], _mm256_set1_ps(-0.0)), _mm256_or_ps(a[1], _mm256_set1_ps(-0.0))])
    }

    #[inline(always)]
    fn select_negative(self, test: [__m256; 2], negative: [__m256; 2], other: [__m256; 2]) -> [__m256; 2] {
        with_features!({
            let low = _mm256_cmp_ps::<_CMP_LT_OQ>(test[0], _mm256_setzero_ps());
            let high = _mm256_cmp_ps::<_CMP_LT_OQ>(test[1], _mm256_setzero_ps());
            [_mm256_blendv_ps(other[0], negative[0], low), _mm256_blendv_ps(other[1], negative[1], high)]
        })
    }

    #[inline(always)]
    fn times_power_of_two(self, a: [__m256; 2], exponent: [__m256; 2]) -> [__m256; 2] {
        with_features!([
            times_power_of_two_half(a[0], exponent[0]),
            times_power_of_two_half(a[1], exponent[1])
        ])
    }

    #[inline(always)]
    fn reduce_add(self, a: [__m256; 2]) -> f32 {
        with_features!(add_halves(_mm256_add_ps(a[0], a[1])))
    }

    #[inline(always)]
    fn reduce_larger(self, a: [__m256; 2]) -> f32 {
        with_features!(larger_half(_mm256_max_ps(a[0], a[1])))
    }

    #[inline(always)]
    fn transpose(self, rows: &mut [[__m256; 2]; LANES]) {
        with_features!({
            let source = *rows;
            let mut row_half = 0;
            while row_half < 2 {
                let mut column_half = 0;
                while column_half < 2 {
                    let mut tile = [_mm256_setzero_ps(); 8];
                    let mut row = 0;
                    while row < 8 {
                        tile[row] = source[8 * row_half + row][column_half];
                        row += 1;
                    }
                    let tile = transpose_8x8(tile);
                    let mut row = 0;
                    while row < 8 {
                        rows[8 * column_half + row][row_half] = tile[row];
                        row += 1;
                    }
                    column_half += 1;
                }
                row_half += 1;
            }
        });
    }

    #[inline(always)]
    fn swap_lanes<const DISTANCE: usize>(self, a: [__m256; 2]) -> [__m256; 2] {
        with_features!(match DISTANCE {
            1 => [_mm256_permute_ps::<0b1011_0001>(a[0]), _mm256_permute_ps::<0b1011_0001>(a[1])],
            2 => [_mm256_permute_ps::<0b0100_1110>(a[0]), _mm256_permute_ps::<0b0100_1110>(a[1])],
            4 => [_mm256_permute2f128_ps::<1>(a[0], a[0]), _mm256_permute2f128_ps::<1>(a[1], a[1])],
            _ => [a[1], a[0]],
        })
    }
}

/// The low or the high four bits of each byte, less 8.
#[inline]
#[target_feature(enable = "avx2")]
fn nibbles<const HIGH: bool>(from: &[u8; LANES]) -> __m128i {
    // SAFETY: the reference covers the 16 bytes; no alignment is asked for.
    let bytes = unsafe { _mm_loadu_si128(from.as_ptr().cast()) };
    let bytes = if HIGH { _mm_srli_epi16::<4>(bytes) } else { bytes };
    _mm_sub_epi8(_mm_and_si128(bytes, _mm_set1_epi8(0x0f)), _mm_set1_epi8(8))
}

/// Sixteen signed bytes as numbers.
#[inline]
#[target_feature(enable = "avx2")]
fn widened_bytes(bytes: __m128i) -> [__m256; 2] {
    [
        _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
        _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128::<8>(bytes))),
    ]
}

/// The last three halvings of [`Simd::reduce_add`].
#[inline]
#[target_feature(enable = "avx2")]
fn add_halves(a: __m256) -> f32 {
    let four = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}

/// The last three halvings of [`Simd::reduce_larger`].
#[inline]
#[target_feature(enable = "avx2")]
fn larger_half(a: __m256) -> f32 {
    let four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
    let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
}

/// Two exact powers of two, the same pair as in the portable code.
#[inline]
#[target_feature(enable = "avx2")]
fn times_power_of_two_half(a: __m256, exponent: __m256) -> __m256 {
    let exponent = _mm256_cvtps_epi32(exponent);
    let first = _mm256_srai_epi32::<1>(exponent);
    let second = _mm256_sub_epi32(exponent, first);
    let bias = _mm256_set1_epi32(127);
    let first = _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(first, bias)));
    let second = _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(second, bias)));
    _mm256_mul_ps(_mm256_mul_ps(a, first), second)
}

#[inline]
#[target_feature(enable = "avx2")]
fn transpose_8x8(rows: [__m256; 8]) -> [__m256; 8] {
    let mut quads = [_mm256_setzero_ps(); 8];
    let mut first = 0;
    while first < 8 {
        let [a, b, c, d] = [rows[first], rows[first + 1], rows[first + 2], rows[first + 3]];
        let low = _mm256_castps_pd(_mm256_unpacklo_ps(a, b));
        let high = _mm256_castps_pd(_mm256_unpackhi_ps(a, b));
        let next_low = _mm256_castps_pd(_mm256_unpacklo_ps(c, d));
        let next_high = _mm256_castps_pd(_mm256_unpackhi_ps(c, d));
        quads[first] = _mm256_castpd_ps(_mm256_unpacklo_pd(low, next_low));
        quads[first + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(low, next_low));
        quads[first + 2] = _mm256_castpd_ps(_mm256_unpacklo_pd(high, next_high));
        quads[first + 3] = _mm256_castpd_ps(_mm256_unpackhi_pd(high, next_high));
        first += 4;
    }
    let mut result = rows;
    let mut column = 0;
    while column < 4 {
        result[column] = _mm256_permute2f128_ps::<0x20>(quads[column], quads[column + 4]);
        result[column + 4] = _mm256_permute2f128_ps::<0x31>(quads[column], quads[column + 4]);
        column += 1;
    }
    result
}
