//! AVX2 with FMA and F16C, without and with AVX-VNNI: two 256-bit vectors are the 16 rows of a group.
//!
//! `vpmaddubsw` multiplies unsigned weight bytes by signed activation bytes and adds pairs into 16 bits with saturation, so
//! the largest sum must stay below 2^15. Pairs of weights reach 2 * largest * 127: eight column groups of nibbles, four of
//! five-bit and two of six-bit values may be added before widening to 32 bits. Signed bytes are split into magnitude (as the
//! unsigned factor) and sign (moved to the activation): 2 * 128 * 127 fits as well.
//!
//! AVX-VNNI has `vpdpbusd`, which adds four products to 32 bits without a sum in between; signed bytes are made unsigned by
//! adding 128, as in `avx512.rs`. Everything else is the same. The loops are in `tile.rs`.

use std::arch::x86_64::*;

use super::codes::{Piece, decode_piece};
use super::driver::{FloatElement, FloatTiles, Lanes, QuantizedTiles};
use super::tile::{RowVectors, float_tile, quantized_tile};
use crate::activations::ActivationBlock;
use crate::blocks::QuantizedFormat;
use crate::layout::QuantStorage;

pub(super) struct Avx2Tiles;
pub(super) struct AvxVnniTiles;

/// Tiles of a vector type, compiled with its features.
macro_rules! tiles {
    ($tiles:ty, $features:literal, $rows:ty) => {
        impl QuantizedTiles for $tiles {
            const ROWS_MAX: usize = 4;

            #[target_feature(enable = $features)]
            unsafe fn tile<F: QuantizedFormat, const ROWS: usize>(
                group: &[u8],
                rows: &[ActivationBlock],
                out: &mut [Lanes; ROWS],
            ) {
                // SAFETY: passed on from the caller.
                unsafe { quantized_tile::<_, F, ROWS, 2>(<$rows>::new(), group, rows, out) }
            }
        }

        impl FloatTiles for $tiles {
            const GROUPS_OF_FOUR_ROWS: usize = 1;

            #[target_feature(enable = $features)]
            unsafe fn tile<E: FloatElement, const GROUPS: usize, const ROWS: usize>(
                shape: (usize, usize),
                groups: &[u8],
                rows: &[f32],
                out: &mut [[Lanes; ROWS]; GROUPS],
            ) {
                // SAFETY: passed on from the caller.
                unsafe { float_tile::<_, E, GROUPS, ROWS, 2>(<$rows>::new(), shape, groups, rows, out) }
            }

            #[target_feature(enable = $features)]
            unsafe fn decode<const BITS: usize>(piece: &Piece<'_>, values: &mut [Lanes]) {
                // SAFETY: passed on from the caller.
                unsafe { decode_piece::<_, BITS, 2>(<$rows>::new(), piece, values) }
            }
        }
    };
}

tiles!(Avx2Tiles, "avx2,fma,f16c", Avx2Rows<false>);
tiles!(AvxVnniTiles, "avx2,fma,f16c,avxvnni", Avx2Rows<true>);

/// One 256-bit register of rows; `VNNI` says that products use AVX-VNNI.
#[derive(Clone, Copy)]
struct Avx2Rows<const VNNI: bool>(());

impl<const VNNI: bool> Avx2Rows<VNNI> {
    /// # Safety
    /// The processor has AVX2, FMA and F16C, and AVX-VNNI if `VNNI`.
    #[inline(always)]
    unsafe fn new() -> Self {
        Self(())
    }
}

/// 32-bit sums, and 16-bit sums that wait to be added to them (never with AVX-VNNI).
#[derive(Clone, Copy)]
struct Sums {
    wide: __m256i,
    narrow: __m256i,
}

/// Column groups whose products fit a 16-bit sum: 1, 2, 4, or 8 (a whole step).
const fn groups_per_sum(storage: QuantStorage) -> usize {
    match (i16::MAX as usize) / (2 * 127 * storage.largest()) {
        0 => panic!("not even one group fits"),
        1 => 1,
        2..4 => 2,
        4..8 => 4,
        _ => 8,
    }
}

/// Intrinsics whose only condition is the processor's features.
macro_rules! with_features {
    ($($intrinsics:tt)*) => {
        // SAFETY: `self` is the proof that the processor has the features.
        unsafe { $($intrinsics)* }
    };
}

impl<const VNNI: bool> RowVectors for Avx2Rows<VNNI> {
    const ROWS: usize = 8;
    const STORED_BYTES_OFFSET: i16 = if VNNI { 128 } else { 0 };

    type Bytes = __m256i;
    type Ints = __m256i;
    type Floats = __m256;
    type Partial = Sums;

    #[inline(always)]
    unsafe fn load_bytes(self, bytes: &[u8], at: usize) -> __m256i {
        debug_assert!(at + 32 <= bytes.len());
        // SAFETY: checked by the caller.
        unsafe { _mm256_loadu_si256(bytes.as_ptr().add(at).cast()) }
    }

    #[inline(always)]
    fn stored_bytes(self, bytes: __m256i) -> __m256i {
        if VNNI { with_features!(_mm256_xor_si256(bytes, _mm256_set1_epi8(-128))) } else { bytes }
    }

    #[inline(always)]
    fn low_nibbles(self, bytes: __m256i) -> __m256i {
        with_features!(_mm256_and_si256(bytes, _mm256_set1_epi8(0x0f)))
    }

    #[inline(always)]
    fn high_nibbles(self, bytes: __m256i) -> __m256i {
        with_features!(_mm256_and_si256(_mm256_srli_epi16::<4>(bytes), _mm256_set1_epi8(0x0f)))
    }

    #[inline(always)]
    fn decode(self, codes: __m256i, table: &[u8; 16]) -> __m256i {
        // SAFETY: the table has 16 bytes; `self` is the proof that the processor has the features.
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            _mm256_shuffle_epi8(table, codes)
        }
    }

    #[inline(always)]
    fn move_bits(self, plane: __m256i, from: u32, to: u32, mask: u8) -> __m256i {
        with_features!({
            let shifted = if from <= to {
                _mm256_sll_epi16(plane, _mm_cvtsi32_si128(to as i32 - from as i32))
            } else {
                _mm256_srl_epi16(plane, _mm_cvtsi32_si128(from as i32 - to as i32))
            };
            _mm256_and_si256(shifted, _mm256_set1_epi8(mask as i8))
        })
    }

    #[inline(always)]
    fn either(self, a: __m256i, b: __m256i) -> __m256i {
        with_features!(_mm256_or_si256(a, b))
    }

    #[inline(always)]
    fn negate_where(self, magnitudes: __m256i, plane: __m256i, bit: u32) -> __m256i {
        with_features!({
            let signs = _mm256_sll_epi16(plane, _mm_cvtsi32_si128(7 - bit as i32));
            let negative = _mm256_cmpgt_epi8(_mm256_setzero_si256(), signs);
            _mm256_sub_epi8(_mm256_xor_si256(magnitudes, negative), negative)
        })
    }

    #[inline(always)]
    fn trits(self, bytes: __m256i, power: u8) -> __m256i {
        with_features!({
            let low = _mm256_set1_epi16(0xff);
            let power = _mm256_set1_epi16(i16::from(power));
            let three = _mm256_set1_epi16(3);
            let even = _mm256_and_si256(_mm256_mullo_epi16(bytes, power), low);
            let odd = _mm256_and_si256(_mm256_mullo_epi16(_mm256_srli_epi16::<8>(bytes), power), low);
            let even = _mm256_srli_epi16::<8>(_mm256_mullo_epi16(even, three));
            let odd = _mm256_andnot_si256(low, _mm256_mullo_epi16(odd, three));
            _mm256_or_si256(even, odd)
        })
    }

    #[inline(always)]
    fn entries(self, entry: impl Fn(usize) -> u64) -> [__m256i; 2] {
        let entry = |row: usize| entry(row).cast_signed();
        with_features!({
            // Rows in the order in which the shuffles leave them from 0 to 7.
            let some = _mm256_set_epi64x(entry(5), entry(4), entry(1), entry(0));
            let others = _mm256_set_epi64x(entry(7), entry(6), entry(3), entry(2));
            let (some, others) = (_mm256_castsi256_ps(some), _mm256_castsi256_ps(others));
            [
                _mm256_castps_si256(_mm256_shuffle_ps::<0b10_00_10_00>(some, others)),
                _mm256_castps_si256(_mm256_shuffle_ps::<0b11_01_11_01>(some, others)),
            ]
        })
    }

    #[inline(always)]
    fn words(self, word: impl Fn(usize) -> u32) -> __m256i {
        let word = |row: usize| word(row).cast_signed();
        with_features!(_mm256_setr_epi32(
            word(0),
            word(1),
            word(2),
            word(3),
            word(4),
            word(5),
            word(6),
            word(7)
        ))
    }

    #[inline(always)]
    unsafe fn load_words(self, bytes: &[u8], at: usize) -> __m256i {
        // SAFETY: passed on from the caller.
        unsafe { self.load_bytes(bytes, at) }
    }

    #[inline(always)]
    unsafe fn load_unsigned(self, bytes: &[u8], at: usize) -> __m256i {
        debug_assert!(at + 8 <= bytes.len());
        // SAFETY: checked by the caller.
        unsafe { _mm256_cvtepu8_epi32(_mm_loadl_epi64(bytes.as_ptr().add(at).cast())) }
    }

    #[inline(always)]
    unsafe fn load_unsigned_halves(self, bytes: &[u8], at: usize) -> __m256i {
        debug_assert!(at + 16 <= bytes.len());
        // SAFETY: checked by the caller.
        unsafe { _mm256_cvtepu16_epi32(_mm_loadu_si128(bytes.as_ptr().add(at).cast())) }
    }

    #[inline(always)]
    fn bytes_of(self, ints: __m256i) -> __m256i {
        ints
    }

    #[inline(always)]
    fn floats_of_bits(self, ints: __m256i) -> __m256 {
        with_features!(_mm256_castsi256_ps(ints))
    }

    #[inline(always)]
    fn shift_left(self, a: __m256i, count: u32) -> __m256i {
        with_features!(_mm256_sll_epi32(a, _mm_cvtsi32_si128(count as i32)))
    }

    #[inline(always)]
    fn shift_right(self, a: __m256i, count: u32) -> __m256i {
        with_features!(_mm256_srl_epi32(a, _mm_cvtsi32_si128(count as i32)))
    }

    #[inline(always)]
    fn and(self, a: __m256i, mask: u32) -> __m256i {
        with_features!(_mm256_and_si256(a, _mm256_set1_epi32(mask as i32)))
    }

    #[inline(always)]
    fn or(self, a: __m256i, b: __m256i) -> __m256i {
        with_features!(_mm256_or_si256(a, b))
    }

    #[inline(always)]
    fn xor(self, a: __m256i, b: __m256i) -> __m256i {
        with_features!(_mm256_xor_si256(a, b))
    }

    #[inline(always)]
    fn add(self, a: __m256i, value: i32) -> __m256i {
        with_features!(_mm256_add_epi32(a, _mm256_set1_epi32(value)))
    }

    #[inline(always)]
    fn start(self, activations: &ActivationBlock, offset: i16) -> __m256i {
        if offset.trailing_zeros() < 3 {
            return self.weigh_half_sums(activations, [self.add(self.zero(), i32::from(-offset)); 2]);
        }
        let shift = offset.trailing_zeros() as i32 - 3;
        with_features!({
            let start = _mm256_set1_epi32(activations.start_of_offset_8);
            _mm256_sll_epi32(start, _mm_cvtsi32_si128(shift))
        })
    }

    #[inline(always)]
    fn weigh_half_sums(self, activations: &ActivationBlock, factors: [__m256i; 2]) -> __m256i {
        let [first, second] = activations.half_sums;
        let half_sums = i32::from(first) & 0xffff | i32::from(second) << 16;
        let [first, second] = factors;
        let factors = self.or(self.and(first, 0xffff), self.shift_left(second, 16));
        with_features!(_mm256_madd_epi16(_mm256_set1_epi32(half_sums), factors))
    }

    #[inline(always)]
    fn half_start(self, activations: &ActivationBlock, offset: i16, half: usize) -> __m256i {
        let [first, second] = activations.half_sums;
        let half_sums = i32::from(first) & 0xffff | i32::from(second) << 16;
        let factor = (i32::from(-offset) & 0xffff) << (16 * half);
        with_features!(_mm256_madd_epi16(_mm256_set1_epi32(half_sums), _mm256_set1_epi32(factor)))
    }

    #[inline(always)]
    fn zero(self) -> __m256i {
        with_features!(_mm256_setzero_si256())
    }

    #[inline(always)]
    fn begin(self, start: __m256i) -> Sums {
        Sums { wide: start, narrow: self.zero() }
    }

    #[inline(always)]
    fn dot(
        self,
        storage: QuantStorage,
        sums: Sums,
        weights: __m256i,
        activations: &ActivationBlock,
        group: usize,
    ) -> Sums {
        with_features!({
            let columns = _mm256_set1_epi32(activations.word(group));
            if VNNI {
                return Sums { wide: _mm256_dpbusd_avx_epi32(sums.wide, weights, columns), ..sums };
            }
            let products = if storage.is_signed() {
                _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(columns, weights))
            } else {
                _mm256_maddubs_epi16(weights, columns)
            };
            Sums { narrow: _mm256_add_epi16(sums.narrow, products), ..sums }
        })
    }

    #[inline(always)]
    fn widen(self, storage: QuantStorage, sums: Sums, groups: usize) -> Sums {
        let full = groups.is_multiple_of(groups_per_sum(storage));
        if full && !VNNI { self.begin(self.finish(sums)) } else { sums }
    }

    #[inline(always)]
    fn finish(self, sums: Sums) -> __m256i {
        if VNNI {
            return sums.wide;
        }
        with_features!(_mm256_add_epi32(sums.wide, _mm256_madd_epi16(sums.narrow, _mm256_set1_epi16(1))))
    }

    #[inline(always)]
    fn weigh(self, a: __m256i, factor: __m256i, b: __m256i, other: __m256i) -> __m256i {
        with_features!(_mm256_add_epi32(_mm256_mullo_epi32(a, factor), _mm256_mullo_epi32(b, other)))
    }

    #[inline(always)]
    unsafe fn load_signed_bytes(self, bytes: &[u8], at: usize) -> __m256i {
        debug_assert!(at + 8 <= bytes.len());
        // SAFETY: checked by the caller.
        unsafe { _mm256_cvtepi8_epi32(_mm_loadl_epi64(bytes.as_ptr().add(at).cast())) }
    }

    #[inline(always)]
    unsafe fn load_unsigned_bytes(self, bytes: &[u8], at: usize) -> __m256 {
        debug_assert!(at + 8 <= bytes.len());
        // SAFETY: checked by the caller.
        unsafe {
            let bytes = _mm_loadl_epi64(bytes.as_ptr().add(at).cast());
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes))
        }
    }

    #[inline(always)]
    unsafe fn load_exponents(self, bytes: &[u8], at: usize) -> __m256 {
        debug_assert!(at + 8 <= bytes.len());
        // SAFETY: checked by the caller.
        unsafe {
            let exponents = _mm256_cvtepu8_epi32(_mm_loadl_epi64(bytes.as_ptr().add(at).cast()));
            let normal = _mm256_slli_epi32::<23>(_mm256_sub_epi32(exponents, _mm256_set1_epi32(1)));
            // The two subnormal ones; below every normal one for other exponents, whose bits are shifted out.
            let subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x0020_0000), exponents);
            let subnormal = _mm256_min_epi32(subnormal, _mm256_set1_epi32(0x0040_0000));
            _mm256_castsi256_ps(_mm256_max_epi32(normal, subnormal))
        }
    }

    #[inline(always)]
    unsafe fn load_halves(self, bytes: &[u8], at: usize) -> __m256 {
        debug_assert!(at + 16 <= bytes.len());
        // SAFETY: checked by the caller.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(bytes.as_ptr().add(at).cast())) }
    }

    #[inline(always)]
    unsafe fn load_bfloats(self, bytes: &[u8], at: usize) -> __m256 {
        debug_assert!(at + 16 <= bytes.len());
        // SAFETY: checked by the caller.
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(bytes.as_ptr().add(at).cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    unsafe fn load_floats(self, bytes: &[u8], at: usize) -> __m256 {
        debug_assert!(at + 32 <= bytes.len());
        // SAFETY: checked by the caller.
        unsafe { _mm256_loadu_ps(bytes.as_ptr().add(at).cast()) }
    }

    #[inline(always)]
    fn splat(self, value: f32) -> __m256 {
        with_features!(_mm256_set1_ps(value))
    }

    #[inline(always)]
    fn entry_of(self, table: &[f32; 16], codes: __m256i) -> __m256 {
        // SAFETY: two halves of 8 values; `self` is the proof that the processor has the features.
        unsafe {
            let low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table.as_ptr()), codes);
            let high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table.as_ptr().add(8)), codes);
            // The sign bit chooses.
            _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32::<28>(codes)))
        }
    }

    #[inline(always)]
    fn to_floats(self, ints: __m256i) -> __m256 {
        with_features!(_mm256_cvtepi32_ps(ints))
    }

    #[inline(always)]
    fn negate(self, a: __m256) -> __m256 {
        with_features!(_mm256_xor_ps(a, _mm256_set1_ps(-0.0)))
    }

    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        with_features!(_mm256_mul_ps(a, b))
    }

    #[inline(always)]
    fn fma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        with_features!(_mm256_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn store(self, floats: __m256, lanes: &mut Lanes, part: usize) {
        let (parts, _) = lanes.as_chunks_mut::<8>();
        // SAFETY: a part is 8 f32; the processor has the features.
        unsafe { _mm256_storeu_ps(parts[part].as_mut_ptr(), floats) };
    }
}
