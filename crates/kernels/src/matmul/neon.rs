//! AArch64 with the dot product extension, without and with int8 matrices: four 128-bit vectors are the 16 rows of a group.
//!
//! `sdot` adds four products of signed bytes to each 32-bit lane and can take its activation word from a lane of a vector,
//! so the activations of a step stay in two registers for all rows. The intrinsic is not stable, so the instruction is
//! written as `asm!`. Stored values of up to six bits are valid signed bytes. The loops are in `tile.rs`; sums by int8 matrices
//! are in `neon_i8mm.rs`.

use std::arch::aarch64::*;
use std::arch::asm;

use super::codes::{Piece, decode_piece};
use super::driver::{FloatElement, FloatTiles, Lanes, QuantizedTiles};
use super::neon_i8mm::matrix_sums;
use super::tile::{RowVectors, StepRows, StepWeights, float_tile, quantized_tile, step_sums};
use crate::activations::ActivationBlock;
use crate::blocks::QuantizedFormat;
use crate::layout::QuantStorage;

pub(super) struct NeonTiles;
pub(super) struct NeonI8mmTiles;

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
                unsafe { quantized_tile::<_, F, ROWS, 4>(<$rows>::new(), group, rows, out) }
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
                unsafe { float_tile::<_, E, GROUPS, ROWS, 4>(<$rows>::new(), shape, groups, rows, out) }
            }

            #[target_feature(enable = $features)]
            unsafe fn decode<const BITS: usize>(piece: &Piece<'_>, values: &mut [Lanes]) {
                // SAFETY: passed on from the caller.
                unsafe { decode_piece::<_, BITS, 4>(<$rows>::new(), piece, values) }
            }
        }
    };
}

tiles!(NeonTiles, "neon,dotprod", NeonRows<false>);
tiles!(NeonI8mmTiles, "neon,dotprod,i8mm", NeonRows<true>);

/// One 128-bit register of rows; `I8MM` says that several activation rows are multiplied as int8 matrices.
#[derive(Clone, Copy)]
pub(super) struct NeonRows<const I8MM: bool>(());

impl<const I8MM: bool> NeonRows<I8MM> {
    /// # Safety
    /// The processor has NEON and the dot product extension, and int8 matrices if `I8MM`.
    #[inline(always)]
    unsafe fn new() -> Self {
        Self(())
    }
}

/// Intrinsics whose only condition is the processor's features.
macro_rules! with_features {
    ($($intrinsics:tt)*) => {
        // SAFETY: `self` is the proof that the processor has the features.
        unsafe { $($intrinsics)* }
    };
}

/// Adds to each 32-bit lane the four products of its weight bytes with word `$lane` of the activations.
macro_rules! dot_lane {
    ($sum:ident, $weights:expr, $activations:expr, $lane:literal) => {
        // SAFETY: inputs and output are registers only; the caller has the dot product extension.
        unsafe {
            asm!(
                concat!("sdot {sum:v}.4s, {weights:v}.16b, {activations:v}.4b[", $lane, "]"),
                sum = inout(vreg) $sum,
                weights = in(vreg) $weights,
                activations = in(vreg) $activations,
                options(pure, nomem, nostack, preserves_flags),
            )
        }
    };
}

impl<const I8MM: bool> RowVectors for NeonRows<I8MM> {
    const ROWS: usize = 4;
    const STORED_BYTES_OFFSET: i16 = 0;

    type Bytes = uint8x16_t;
    type Ints = int32x4_t;
    type Floats = float32x4_t;
    type Partial = int32x4_t;

    #[inline(always)]
    unsafe fn load_bytes(self, bytes: &[u8], at: usize) -> uint8x16_t {
        debug_assert!(at + 16 <= bytes.len());
        // SAFETY: checked by the caller.
        unsafe { vld1q_u8(bytes.as_ptr().add(at)) }
    }

    #[inline(always)]
    fn stored_bytes(self, bytes: uint8x16_t) -> uint8x16_t {
        bytes
    }

    #[inline(always)]
    fn low_nibbles(self, bytes: uint8x16_t) -> uint8x16_t {
        with_features!(vandq_u8(bytes, vdupq_n_u8(0x0f)))
    }

    #[inline(always)]
    fn high_nibbles(self, bytes: uint8x16_t) -> uint8x16_t {
        with_features!(vshrq_n_u8::<4>(bytes))
    }

    #[inline(always)]
    fn decode(self, codes: uint8x16_t, table: &[u8; 16]) -> uint8x16_t {
        // SAFETY: the table has 16 bytes; `self` is the proof that the processor has the features.
        unsafe { vqtbl1q_u8(vld1q_u8(table.as_ptr()), codes) }
    }

    #[inline(always)]
    fn move_bits(self, plane: uint8x16_t, from: u32, to: u32, mask: u8) -> uint8x16_t {
        with_features!({
            let shifted = vshlq_u8(plane, vdupq_n_s8(to as i8 - from as i8));
            vandq_u8(shifted, vdupq_n_u8(mask))
        })
    }

    #[inline(always)]
    fn either(self, a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        with_features!(vorrq_u8(a, b))
    }

    #[inline(always)]
    fn negate_where(self, magnitudes: uint8x16_t, plane: uint8x16_t, bit: u32) -> uint8x16_t {
        with_features!({
            let negative = vtstq_u8(plane, vdupq_n_u8(1 << bit));
            vsubq_u8(veorq_u8(magnitudes, negative), negative)
        })
    }

    #[inline(always)]
    fn trits(self, bytes: uint8x16_t, power: u8) -> uint8x16_t {
        with_features!({
            let scaled = vmulq_u8(bytes, vdupq_n_u8(power));
            // Three times a byte reaches 256 from 86 on and 512 from 171 on.
            let one = vandq_u8(vcgeq_u8(scaled, vdupq_n_u8(86)), vdupq_n_u8(1));
            vsubq_u8(one, vcgeq_u8(scaled, vdupq_n_u8(171)))
        })
    }

    #[inline(always)]
    fn entries(self, entry: impl Fn(usize) -> u64) -> [uint8x16_t; 2] {
        let entries = [entry(0), entry(1), entry(2), entry(3)];
        // SAFETY: four entries; `self` is the proof that the processor has the features.
        unsafe {
            let first = vreinterpretq_u32_u64(vld1q_u64(entries.as_ptr()));
            let last = vreinterpretq_u32_u64(vld1q_u64(entries[2..].as_ptr()));
            [vreinterpretq_u8_u32(vuzp1q_u32(first, last)), vreinterpretq_u8_u32(vuzp2q_u32(first, last))]
        }
    }

    #[inline(always)]
    fn words(self, word: impl Fn(usize) -> u32) -> uint8x16_t {
        let words = [word(0), word(1), word(2), word(3)];
        // SAFETY: four words; `self` is the proof that the processor has the features.
        unsafe { vreinterpretq_u8_u32(vld1q_u32(words.as_ptr())) }
    }

    #[inline(always)]
    unsafe fn load_words(self, bytes: &[u8], at: usize) -> int32x4_t {
        // SAFETY: passed on from the caller.
        unsafe { vreinterpretq_s32_u8(self.load_bytes(bytes, at)) }
    }

    #[inline(always)]
    unsafe fn load_unsigned(self, bytes: &[u8], at: usize) -> int32x4_t {
        debug_assert!(at + 4 <= bytes.len());
        // SAFETY: checked by the caller.
        unsafe {
            let word: u32 = bytes.as_ptr().add(at).cast::<u32>().read_unaligned();
            vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(u64::from(word))))))
        }
    }

    #[inline(always)]
    unsafe fn load_unsigned_halves(self, bytes: &[u8], at: usize) -> int32x4_t {
        debug_assert!(at + 8 <= bytes.len());
        // SAFETY: checked by the caller.
        unsafe { vreinterpretq_s32_u32(vmovl_u16(vld1_u16(bytes.as_ptr().add(at).cast()))) }
    }

    #[inline(always)]
    fn bytes_of(self, ints: int32x4_t) -> uint8x16_t {
        with_features!(vreinterpretq_u8_s32(ints))
    }

    #[inline(always)]
    fn floats_of_bits(self, ints: int32x4_t) -> float32x4_t {
        with_features!(vreinterpretq_f32_s32(ints))
    }

    #[inline(always)]
    fn shift_left(self, a: int32x4_t, count: u32) -> int32x4_t {
        with_features!(vshlq_s32(a, vdupq_n_s32(count as i32)))
    }

    #[inline(always)]
    fn shift_right(self, a: int32x4_t, count: u32) -> int32x4_t {
        with_features!({
            let shifted = vshlq_u32(vreinterpretq_u32_s32(a), vdupq_n_s32(-(count as i32)));
            vreinterpretq_s32_u32(shifted)
        })
    }

    #[inline(always)]
    fn and(self, a: int32x4_t, mask: u32) -> int32x4_t {
        with_features!(vandq_s32(a, vdupq_n_s32(mask as i32)))
    }

    #[inline(always)]
    fn or(self, a: int32x4_t, b: int32x4_t) -> int32x4_t {
        with_features!(vorrq_s32(a, b))
    }

    #[inline(always)]
    fn xor(self, a: int32x4_t, b: int32x4_t) -> int32x4_t {
        with_features!(veorq_s32(a, b))
    }

    #[inline(always)]
    fn add(self, a: int32x4_t, value: i32) -> int32x4_t {
        with_features!(vaddq_s32(a, vdupq_n_s32(value)))
    }

    #[inline(always)]
    fn start(self, activations: &ActivationBlock, offset: i16) -> int32x4_t {
        with_features!(vdupq_n_s32(activations.start_of_offset_8 / 8 * i32::from(offset)))
    }

    #[inline(always)]
    fn weigh_half_sums(self, activations: &ActivationBlock, factors: [int32x4_t; 2]) -> int32x4_t {
        let [first, second] = activations.half_sums.map(i32::from);
        with_features!(vmlaq_n_s32(vmulq_n_s32(factors[0], first), factors[1], second))
    }

    #[inline(always)]
    fn half_start(self, activations: &ActivationBlock, offset: i16, half: usize) -> int32x4_t {
        with_features!(vdupq_n_s32(-i32::from(offset) * i32::from(activations.half_sums[half])))
    }

    #[inline(always)]
    fn zero(self) -> int32x4_t {
        with_features!(vdupq_n_s32(0))
    }

    #[inline(always)]
    fn begin(self, start: int32x4_t) -> int32x4_t {
        start
    }

    #[inline(always)]
    fn dot(
        self,
        _: QuantStorage,
        partial: int32x4_t,
        weights: uint8x16_t,
        activations: &ActivationBlock,
        group: usize,
    ) -> int32x4_t {
        let (halves, _) = activations.values.as_chunks::<16>();
        // SAFETY: a half is 16 bytes; the processor has the features.
        let columns = unsafe { vld1q_s8(halves[group / 4].as_ptr()) };
        let mut sum = partial;
        match group % 4 {
            0 => dot_lane!(sum, weights, columns, "0"),
            1 => dot_lane!(sum, weights, columns, "1"),
            2 => dot_lane!(sum, weights, columns, "2"),
            _ => dot_lane!(sum, weights, columns, "3"),
        }
        sum
    }

    #[inline(always)]
    fn widen(self, _: QuantStorage, partial: int32x4_t, _: usize) -> int32x4_t {
        partial
    }

    #[inline(always)]
    fn finish(self, partial: int32x4_t) -> int32x4_t {
        partial
    }

    #[inline(always)]
    unsafe fn step_sums<F: QuantizedFormat, const ROWS: usize>(
        self,
        weights: StepWeights<'_>,
        activations: StepRows<'_>,
    ) -> [float32x4_t; ROWS] {
        // SAFETY: passed on from the caller.
        unsafe {
            if I8MM && ROWS.is_multiple_of(2) {
                matrix_sums::<_, F, ROWS>(self, weights, activations)
            } else {
                step_sums::<_, F, ROWS>(self, weights, activations)
            }
        }
    }

    #[inline(always)]
    fn weigh(self, a: int32x4_t, factor: int32x4_t, b: int32x4_t, other: int32x4_t) -> int32x4_t {
        with_features!(vmlaq_s32(vmulq_s32(a, factor), b, other))
    }

    #[inline(always)]
    unsafe fn load_signed_bytes(self, bytes: &[u8], at: usize) -> int32x4_t {
        debug_assert!(at + 4 <= bytes.len());
        // SAFETY: checked by the caller.
        unsafe {
            let word: u32 = bytes.as_ptr().add(at).cast::<u32>().read_unaligned();
            vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8(u64::from(word)))))
        }
    }

    #[inline(always)]
    unsafe fn load_unsigned_bytes(self, bytes: &[u8], at: usize) -> float32x4_t {
        debug_assert!(at + 4 <= bytes.len());
        // SAFETY: checked by the caller.
        unsafe {
            let word: u32 = bytes.as_ptr().add(at).cast::<u32>().read_unaligned();
            vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(u64::from(word))))))
        }
    }

    #[inline(always)]
    unsafe fn load_exponents(self, bytes: &[u8], at: usize) -> float32x4_t {
        debug_assert!(at + 4 <= bytes.len());
        // SAFETY: checked by the caller.
        unsafe {
            let word: u32 = bytes.as_ptr().add(at).cast::<u32>().read_unaligned();
            let wide = vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(u64::from(word)))));
            let exponents = vreinterpretq_s32_u32(wide);
            let normal = vshlq_n_s32::<23>(vsubq_s32(exponents, vdupq_n_s32(1)));
            // As in `avx2.rs`; the shift takes the low byte as signed, so the largest exponents shift to the right.
            let subnormal = vshlq_s32(vdupq_n_s32(0x0020_0000), exponents);
            let subnormal = vminq_s32(subnormal, vdupq_n_s32(0x0040_0000));
            vreinterpretq_f32_s32(vmaxq_s32(normal, subnormal))
        }
    }

    /// Written as `asm!` because the f16 vector types are not stable.
    #[inline(always)]
    unsafe fn load_halves(self, bytes: &[u8], at: usize) -> float32x4_t {
        debug_assert!(at + 8 <= bytes.len());
        let wide: float32x4_t;
        // SAFETY: the load is checked by the caller; the instruction works on registers only.
        unsafe {
            let halves = vld1_u16(bytes.as_ptr().add(at).cast());
            asm!(
                "fcvtl {wide:v}.4s, {halves:v}.4h",
                wide = lateout(vreg) wide,
                halves = in(vreg) halves,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        wide
    }

    #[inline(always)]
    unsafe fn load_bfloats(self, bytes: &[u8], at: usize) -> float32x4_t {
        debug_assert!(at + 8 <= bytes.len());
        // SAFETY: checked by the caller.
        unsafe { vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(bytes.as_ptr().add(at).cast()))) }
    }

    #[inline(always)]
    unsafe fn load_floats(self, bytes: &[u8], at: usize) -> float32x4_t {
        debug_assert!(at + 16 <= bytes.len());
        // SAFETY: checked by the caller.
        unsafe { vreinterpretq_f32_u8(vld1q_u8(bytes.as_ptr().add(at))) }
    }

    #[inline(always)]
    fn splat(self, value: f32) -> float32x4_t {
        with_features!(vdupq_n_f32(value))
    }

    #[inline(always)]
    fn entry_of(self, table: &[f32; 16], codes: int32x4_t) -> float32x4_t {
        // SAFETY: 64 bytes of table; `self` is the proof that the processor has the features.
        unsafe {
            let table = vld1q_u8_x4(table.as_ptr().cast());
            // The four bytes of entry `code` are 4 * code and the next ones.
            let first = vmulq_n_u32(vreinterpretq_u32_s32(codes), 0x0404_0404);
            let bytes = vreinterpretq_u8_u32(vaddq_u32(first, vdupq_n_u32(0x0302_0100)));
            vreinterpretq_f32_u8(vqtbl4q_u8(table, bytes))
        }
    }

    #[inline(always)]
    fn to_floats(self, ints: int32x4_t) -> float32x4_t {
        with_features!(vcvtq_f32_s32(ints))
    }

    #[inline(always)]
    fn negate(self, a: float32x4_t) -> float32x4_t {
        with_features!(vnegq_f32(a))
    }

    #[inline(always)]
    fn mul(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        with_features!(vmulq_f32(a, b))
    }

    #[inline(always)]
    fn fma(self, a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        with_features!(vfmaq_f32(c, a, b))
    }

    #[inline(always)]
    fn store(self, floats: float32x4_t, lanes: &mut Lanes, part: usize) {
        let (parts, _) = lanes.as_chunks_mut::<4>();
        // SAFETY: a part is 4 f32; the processor has the features.
        unsafe { vst1q_f32(parts[part].as_mut_ptr(), floats) };
    }
}
