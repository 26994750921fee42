//! AVX-512 VNNI: a 512-bit vector is 16 rows.
//!
//! `vpdpbusd` adds four products of an unsigned weight byte and a signed activation byte to each 32-bit lane; the signed
//! bytes are made unsigned by adding 128. The loops are in `tile.rs`. All functions need AVX-512 F, BW, DQ, VL and VNNI.

use std::arch::x86_64::*;

use super::codes::{Piece, decode_piece};
use super::driver::{FloatElement, FloatTiles, Lanes, QuantizedTiles};
use super::tile::{RowVectors, float_tile, quantized_tile};
use crate::activations::ActivationBlock;
use crate::blocks::QuantizedFormat;
use crate::layout::{GROUP_ROWS, QuantStorage, VECTOR_BYTES};

pub(super) struct Avx512Tiles;

impl QuantizedTiles for Avx512Tiles {
    const ROWS_MAX: usize = 8;

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn tile<F: QuantizedFormat, const ROWS: usize>(
        group: &[u8],
        rows: &[ActivationBlock],
        out: &mut [Lanes; ROWS],
    ) {
        // SAFETY: passed on from the caller.
        unsafe { quantized_tile::<_, F, ROWS, 1>(Avx512Rows::new(), group, rows, out) }
    }
}

impl FloatTiles for Avx512Tiles {
    const GROUPS_OF_FOUR_ROWS: usize = 4;

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn tile<E: FloatElement, const GROUPS: usize, const ROWS: usize>(
        shape: (usize, usize),
        groups: &[u8],
        rows: &[f32],
        out: &mut [[Lanes; ROWS]; GROUPS],
    ) {
        // SAFETY: passed on from the caller.
        unsafe { float_tile::<_, E, GROUPS, ROWS, 1>(Avx512Rows::new(), shape, groups, rows, out) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn decode<const BITS: usize>(piece: &Piece<'_>, values: &mut [Lanes]) {
        // SAFETY: passed on from the caller.
        unsafe { decode_piece::<_, BITS, 1>(Avx512Rows::new(), piece, values) }
    }
}

/// One 512-bit register of rows.
#[derive(Clone, Copy)]
pub(super) struct Avx512Rows(());

impl Avx512Rows {
    /// # Safety
    /// The processor has AVX-512 F, BW, DQ, VL and VNNI.
    #[inline(always)]
    pub(super) unsafe fn new() -> Self {
        Self(())
    }

    #[inline(always)]
    pub(super) fn load_lanes(self, lanes: &Lanes) -> __m512 {
        // SAFETY: 16 f32; `self` is the proof that the processor has the features.
        unsafe { _mm512_loadu_ps(lanes.as_ptr()) }
    }

    #[inline(always)]
    pub(super) fn load_ints(self, lanes: &[i32; GROUP_ROWS]) -> __m512i {
        // SAFETY: 16 integers; `self` is the proof that the processor has the features.
        unsafe { _mm512_loadu_si512(lanes.as_ptr().cast()) }
    }

    /// Stores bytes minus `offset`.
    #[inline(always)]
    pub(super) fn store_signed(self, bytes: __m512i, offset: i8, target: &mut [u8; VECTOR_BYTES]) {
        // SAFETY: 64 bytes; `self` is the proof that the processor has the features.
        unsafe {
            let signed = _mm512_sub_epi8(bytes, _mm512_set1_epi8(offset));
            _mm512_storeu_si512(target.as_mut_ptr().cast(), signed);
        }
    }
}

/// Intrinsics whose only condition is the processor's features.
macro_rules! with_features {
    ($($intrinsics:tt)*) => {
        // SAFETY: `self` is the proof that the processor has the features.
        unsafe { $($intrinsics)* }
    };
}

impl RowVectors for Avx512Rows {
    const ROWS: usize = GROUP_ROWS;
    const STORED_BYTES_OFFSET: i16 = 128;

    type Bytes = __m512i;
    type Ints = __m512i;
    type Floats = __m512;
    type Partial = __m512i;

    #[inline(always)]
    unsafe fn load_bytes(self, bytes: &[u8], at: usize) -> __m512i {
        debug_assert!(at + 64 <= bytes.len());
        // SAFETY: checked by the caller.
        unsafe { _mm512_loadu_si512(bytes.as_ptr().add(at).cast()) }
    }

    #[inline(always)]
    fn stored_bytes(self, bytes: __m512i) -> __m512i {
        with_features!(_mm512_xor_si512(bytes, _mm512_set1_epi8(-128)))
    }

    #[inline(always)]
    fn low_nibbles(self, bytes: __m512i) -> __m512i {
        with_features!(_mm512_and_si512(bytes, _mm512_set1_epi8(0x0f)))
    }

    #[inline(always)]
    fn high_nibbles(self, bytes: __m512i) -> __m512i {
        with_features!(_mm512_and_si512(_mm512_srli_epi16::<4>(bytes), _mm512_set1_epi8(0x0f)))
    }

    #[inline(always)]
    fn decode(self, codes: __m512i, table: &[u8; 16]) -> __m512i {
        // SAFETY: the table has 16 bytes; `self` is the proof that the processor has the features.
        unsafe {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            _mm512_shuffle_epi8(table, codes)
        }
    }

    #[inline(always)]
    fn move_bits(self, plane: __m512i, from: u32, to: u32, mask: u8) -> __m512i {
        with_features!({
            let shifted = if from <= to {
                _mm512_sll_epi16(plane, _mm_cvtsi32_si128(to as i32 - from as i32))
            } else {
                _mm512_srl_epi16(plane, _mm_cvtsi32_si128(from as i32 - to as i32))
            };
            _mm512_and_si512(shifted, _mm512_set1_epi8(mask as i8))
        })
    }

    #[inline(always)]
    fn either(self, a: __m512i, b: __m512i) -> __m512i {
        with_features!(_mm512_or_si512(a, b))
    }

    #[inline(always)]
    fn negate_where(self, magnitudes: __m512i, plane: __m512i, bit: u32) -> __m512i {
        with_features!({
            let negative = _mm512_test_epi8_mask(plane, _mm512_set1_epi8((1_u8 << bit) as i8));
            _mm512_mask_sub_epi8(magnitudes, negative, _mm512_setzero_si512(), magnitudes)
        })
    }

    #[inline(always)]
    fn trits(self, bytes: __m512i, power: u8) -> __m512i {
        with_features!({
            let low = _mm512_set1_epi16(0xff);
            let power = _mm512_set1_epi16(i16::from(power));
            let three = _mm512_set1_epi16(3);
            let even = _mm512_and_si512(_mm512_mullo_epi16(bytes, power), low);
            let odd = _mm512_and_si512(_mm512_mullo_epi16(_mm512_srli_epi16::<8>(bytes), power), low);
            let even = _mm512_srli_epi16::<8>(_mm512_mullo_epi16(even, three));
            let odd = _mm512_andnot_si512(low, _mm512_mullo_epi16(odd, three));
            _mm512_or_si512(even, odd)
        })
    }

    #[inline(always)]
    fn entries(self, entry: impl Fn(usize) -> u64) -> [__m512i; 2] {
        let e = |row: usize| entry(row).cast_signed();
        with_features!({
            let first = _mm512_setr_epi64(e(0), e(1), e(2), e(3), e(4), e(5), e(6), e(7));
            let last = _mm512_setr_epi64(e(8), e(9), e(10), e(11), e(12), e(13), e(14), e(15));
            // Words 0 to 15 are of the first vector, 16 to 31 of the last.
            let lower = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            let upper = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
            [_mm512_permutex2var_epi32(first, lower, last), _mm512_permutex2var_epi32(first, upper, last)]
        })
    }

    #[inline(always)]
    fn words(self, word: impl Fn(usize) -> u32) -> __m512i {
        let w = |row: usize| word(row).cast_signed();
        with_features!({
            let first = _mm256_setr_epi32(w(0), w(1), w(2), w(3), w(4), w(5), w(6), w(7));
            let last = _mm256_setr_epi32(w(8), w(9), w(10), w(11), w(12), w(13), w(14), w(15));
            _mm512_inserti64x4::<1>(_mm512_castsi256_si512(first), last)
        })
    }

    #[inline(always)]
    unsafe fn load_words(self, bytes: &[u8], at: usize) -> __m512i {
        // SAFETY: passed on from the caller.
        unsafe { self.load_bytes(bytes, at) }
    }

    #[inline(always)]
    unsafe fn load_unsigned(self, bytes: &[u8], at: usize) -> __m512i {
        debug_assert!(at + 16 <= bytes.len());
        // SAFETY: checked by the caller.
        unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(bytes.as_ptr().add(at).cast())) }
    }

    #[inline(always)]
    unsafe fn load_unsigned_halves(self, bytes: &[u8], at: usize) -> __m512i {
        debug_assert!(at + 32 <= bytes.len());
        // SAFETY: checked by the caller.
        unsafe { _mm512_cvtepu16_epi32(_mm256_loadu_si256(bytes.as_ptr().add(at).cast())) }
    }

    #[inline(always)]
    fn bytes_of(self, ints: __m512i) -> __m512i {
        ints
    }

    #[inline(always)]
    fn floats_of_bits(self, ints: __m512i) -> __m512 {
        with_features!(_mm512_castsi512_ps(ints))
    }

    #[inline(always)]
    fn shift_left(self, a: __m512i, count: u32) -> __m512i {
        with_features!(_mm512_sll_epi32(a, _mm_cvtsi32_si128(count as i32)))
    }

    #[inline(always)]
    fn shift_right(self, a: __m512i, count: u32) -> __m512i {
        with_features!(_mm512_srl_epi32(a, _mm_cvtsi32_si128(count as i32)))
    }

    #[inline(always)]
    fn and(self, a: __m512i, mask: u32) -> __m512i {
        with_features!(_mm512_and_si512(a, _mm512_set1_epi32(mask as i32)))
    }

    #[inline(always)]
    fn or(self, a: __m512i, b: __m512i) -> __m512i {
        with_features!(_mm512_or_si512(a, b))
    }

    #[inline(always)]
    fn xor(self, a: __m512i, b: __m512i) -> __m512i {
        with_features!(_mm512_xor_si512(a, b))
    }

    #[inline(always)]
    fn add(self, a: __m512i, value: i32) -> __m512i {
        with_features!(_mm512_add_epi32(a, _mm512_set1_epi32(value)))
    }

    #[inline(always)]
    fn start(self, activations: &ActivationBlock, offset: i16) -> __m512i {
        if offset.trailing_zeros() < 3 {
            return self.weigh_half_sums(activations, [self.add(self.zero(), i32::from(-offset)); 2]);
        }
        let shift = offset.trailing_zeros() as i32 - 3;
        with_features!({
            let start = _mm512_set1_epi32(activations.start_of_offset_8);
            _mm512_sll_epi32(start, _mm_cvtsi32_si128(shift))
        })
    }

    #[inline(always)]
    fn weigh_half_sums(self, activations: &ActivationBlock, factors: [__m512i; 2]) -> __m512i {
        let [first, second] = activations.half_sums;
        let half_sums = i32::from(first) & 0xffff | i32::from(second) << 16;
        let [first, second] = factors;
        let factors = self.or(self.and(first, 0xffff), self.shift_left(second, 16));
        with_features!(_mm512_madd_epi16(_mm512_set1_epi32(half_sums), factors))
    }

    #[inline(always)]
    fn half_start(self, activations: &ActivationBlock, offset: i16, half: usize) -> __m512i {
        let [first, second] = activations.half_sums;
        let half_sums = i32::from(first) & 0xffff | i32::from(second) << 16;
        let factor = (i32::from(-offset) & 0xffff) << (16 * half);
        with_features!(_mm512_madd_epi16(_mm512_set1_epi32(half_sums), _mm512_set1_epi32(factor)))
    }

    #[inline(always)]
    fn zero(self) -> __m512i {
        with_features!(_mm512_setzero_si512())
    }

    #[inline(always)]
    fn begin(self, start: __m512i) -> __m512i {
        start
    }

    #[inline(always)]
    fn dot(
        self,
        _: QuantStorage,
        partial: __m512i,
        weights: __m512i,
        activations: &ActivationBlock,
        group: usize,
    ) -> __m512i {
        with_features!(_mm512_dpbusd_epi32(partial, weights, _mm512_set1_epi32(activations.word(group))))
    }

    #[inline(always)]
    fn widen(self, _: QuantStorage, partial: __m512i, _: usize) -> __m512i {
        partial
    }

    #[inline(always)]
    fn finish(self, partial: __m512i) -> __m512i {
        partial
    }

    #[inline(always)]
    fn weigh(self, a: __m512i, factor: __m512i, b: __m512i, other: __m512i) -> __m512i {
        with_features!(_mm512_add_epi32(_mm512_mullo_epi32(a, factor), _mm512_mullo_epi32(b, other)))
    }

    #[inline(always)]
    unsafe fn load_signed_bytes(self, bytes: &[u8], at: usize) -> __m512i {
        debug_assert!(at + 16 <= bytes.len());
        // SAFETY: checked by the caller.
        unsafe { _mm512_cvtepi8_epi32(_mm_loadu_si128(bytes.as_ptr().add(at).cast())) }
    }

    #[inline(always)]
    unsafe fn load_unsigned_bytes(self, bytes: &[u8], at: usize) -> __m512 {
        debug_assert!(at + 16 <= bytes.len());
        // SAFETY: checked by the caller.
        unsafe {
            let bytes = _mm_loadu_si128(bytes.as_ptr().add(at).cast());
            _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes))
        }
    }

    #[inline(always)]
    unsafe fn load_exponents(self, bytes: &[u8], at: usize) -> __m512 {
        debug_assert!(at + 16 <= bytes.len());
        // SAFETY: checked by the caller.
        unsafe {
            let exponents = _mm512_cvtepu8_epi32(_mm_loadu_si128(bytes.as_ptr().add(at).cast()));
            let normal = _mm512_slli_epi32::<23>(_mm512_sub_epi32(exponents, _mm512_set1_epi32(1)));
            // As in `avx2.rs`.
            let subnormal = _mm512_sllv_epi32(_mm512_set1_epi32(0x0020_0000), exponents);
            let subnormal = _mm512_min_epi32(subnormal, _mm512_set1_epi32(0x0040_0000));
            _mm512_castsi512_ps(_mm512_max_epi32(normal, subnormal))
        }
    }

    #[inline(always)]
    unsafe fn load_halves(self, bytes: &[u8], at: usize) -> __m512 {
        debug_assert!(at + 32 <= bytes.len());
        // SAFETY: checked by the caller.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(bytes.as_ptr().add(at).cast())) }
    }

    #[inline(always)]
    unsafe fn load_bfloats(self, bytes: &[u8], at: usize) -> __m512 {
        debug_assert!(at + 32 <= bytes.len());
        // SAFETY: checked by the caller.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(bytes.as_ptr().add(at).cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    unsafe fn load_floats(self, bytes: &[u8], at: usize) -> __m512 {
        debug_assert!(at + 64 <= bytes.len());
        // SAFETY: checked by the caller.
        unsafe { _mm512_loadu_ps(bytes.as_ptr().add(at).cast()) }
    }

    #[inline(always)]
    fn splat(self, value: f32) -> __m512 {
        with_features!(_mm512_set1_ps(value))
    }

    #[inline(always)]
    fn entry_of(self, table: &[f32; 16], codes: __m512i) -> __m512 {
        // SAFETY: 16 values; `self` is the proof that the processor has the features.
        unsafe { _mm512_permutexvar_ps(codes, _mm512_loadu_ps(table.as_ptr())) }
    }

    #[inline(always)]
    fn to_floats(self, ints: __m512i) -> __m512 {
        with_features!(_mm512_cvtepi32_ps(ints))
    }

    #[inline(always)]
    fn negate(self, a: __m512) -> __m512 {
        with_features!(_mm512_xor_ps(a, _mm512_set1_ps(-0.0)))
    }

    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        with_features!(_mm512_mul_ps(a, b))
    }

    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        with_features!(_mm512_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn store(self, floats: __m512, lanes: &mut Lanes, part: usize) {
        debug_assert!(part == 0);
        // SAFETY: `lanes` is 16 f32; the processor has the features.
        unsafe { _mm512_storeu_ps(lanes.as_mut_ptr(), floats) };
    }
}
