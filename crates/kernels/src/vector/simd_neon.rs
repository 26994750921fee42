//! The sixteen lanes of `simd.rs` in four NEON registers of AArch64.
//!
//! NEON with fused multiply-add is part of every AArch64 processor, so [`Neon`] needs no proof.
#![allow(unsafe_code)]

use std::arch::aarch64::*;
use std::arch::asm;

use half::f16;

use super::simd::{LANES, Simd};

/// Lanes 0..4, 4..8, 8..12 and 12..16.
#[derive(Clone, Copy)]
pub(crate) struct Neon;

type Quarters = [float32x4_t; 4];

/// Intrinsics whose only condition is the processor's features.
macro_rules! with_features {
    ($($intrinsics:tt)*) => {
        // SAFETY: every AArch64 processor has NEON.
        unsafe { $($intrinsics)* }
    };
}

/// The same operation on all quarters.
macro_rules! quarters {
    ($quarter:ident, $operation:expr) => {{
        let mut result = with_features!([vdupq_n_f32(0.0); 4]);
        let mut $quarter = 0;
        while $quarter < 4 {
            result[$quarter] = $operation;
            $quarter += 1;
        }
        result
    }};
}

impl Simd for Neon {
    type Lanes = Quarters;

    #[inline(always)]
    fn prefetch<T>(self, address: *const T) {
        // SAFETY: a prefetch accepts any address and changes nothing that a program can see.
        unsafe {
            asm!("prfm pldl2keep, [{address}]", address = in(reg) address, options(nostack, preserves_flags, readonly));
        }
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Quarters {
        with_features!([vdupq_n_f32(value); 4])
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Quarters {
        quarters!(i, {
            // SAFETY: the reference covers the sixteen floats.
            unsafe { vld1q_f32(from.as_ptr().add(4 * i)) }
        })
    }

    #[inline(always)]
    fn store(self, lanes: Quarters, to: &mut [f32; LANES]) {
        for (i, quarter) in lanes.into_iter().enumerate() {
            // SAFETY: the reference covers the sixteen floats.
            unsafe { vst1q_f32(to.as_mut_ptr().add(4 * i), quarter) };
        }
    }

    #[inline(always)]
    fn load_half(self, from: &[f16; LANES]) -> Quarters {
        quarters!(i, {
            // SAFETY: the reference covers the sixteen halves.
            let halves = unsafe { vld1_u16(from.as_ptr().cast::<u16>().add(4 * i)) };
            widen(halves)
        })
    }

    #[inline(always)]
    fn store_half(self, lanes: Quarters, to: &mut [f16; LANES]) {
        for (i, quarter) in lanes.into_iter().enumerate() {
            // SAFETY: the reference covers the sixteen halves.
            unsafe { vst1_u16(to.as_mut_ptr().cast::<u16>().add(4 * i), narrow(quarter)) };
        }
    }

    #[inline(always)]
    fn splat_half(self, value: f16) -> Quarters {
        [widen(with_features!(vdup_n_u16(value.to_bits()))); 4]
    }

    #[inline(always)]
    fn load_bytes(self, from: &[i8; LANES]) -> Quarters {
        // SAFETY: the reference covers the sixteen bytes.
        with_features!(widened_bytes(vld1q_s8(from.as_ptr())))
    }

    #[inline(always)]
    fn load_nibbles<const HIGH: bool>(self, from: &[u8; LANES]) -> Quarters {
        // SAFETY: the reference covers the sixteen bytes.
        with_features!({
            let bytes = vld1q_u8(from.as_ptr());
            let bits = if HIGH { vshrq_n_u8::<4>(bytes) } else { vandq_u8(bytes, vdupq_n_u8(0x0f)) };
            widened_bytes(vsubq_s8(vreinterpretq_s8_u8(bits), vdupq_n_s8(8)))
        })
    }

    #[inline(always)]
    fn store_bytes(self, lanes: Quarters, to: &mut [i8; LANES]) {
        // SAFETY: the reference covers the sixteen bytes.
        with_features!({
            let low = vqmovn_s16(words(lanes[0], lanes[1]));
            let high = vqmovn_s16(words(lanes[2], lanes[3]));
            vst1q_s8(to.as_mut_ptr(), vcombine_s8(low, high));
        });
    }

    #[inline(always)]
    fn add(self, a: Quarters, b: Quarters) -> Quarters {
        quarters!(i, with_features!(vaddq_f32(a[i], b[i])))
    }

    #[inline(always)]
    fn sub(self, a: Quarters, b: Quarters) -> Quarters {
        quarters!(i, with_features!(vsubq_f32(a[i], b[i])))
    }

    #[inline(always)]
    fn mul(self, a: Quarters, b: Quarters) -> Quarters {
        quarters!(i, with_features!(vmulq_f32(a[i], b[i])))
    }

    #[inline(always)]
    fn div(self, a: Quarters, b: Quarters) -> Quarters {
        quarters!(i, with_features!(vdivq_f32(a[i], b[i])))
    }

    #[inline(always)]
    fn fma(self, a: Quarters, b: Quarters, c: Quarters) -> Quarters {
        quarters!(i, with_features!(vfmaq_f32(c[i], a[i], b[i])))
    }

    // `fmin` and `fmax` treat NaN otherwise than the trait asks for.
    #[inline(always)]
    fn smaller(self, a: Quarters, b: Quarters) -> Quarters {
        quarters!(i, with_features!(vbslq_f32(vcltq_f32(a[i], b[i]), a[i], b[i])))
    }

    #[inline(always)]
    fn larger(self, a: Quarters, b: Quarters) -> Quarters {
        quarters!(i, with_features!(larger(a[i], b[i])))
    }

    #[inline(always)]
    fn negative_magnitude(self, a: Quarters) -> Quarters {
        quarters!(i, with_features!(vnegq_f32(vabsq_f32(a[i]))))
    }

    #[inline(always)]
    fn select_negative(self, test: Quarters, negative: Quarters, other: Quarters) -> Quarters {
        quarters!(i, with_features!(vbslq_f32(vcltzq_f32(test[i]), negative[i], other[i])))
    }

    #[inline(always)]
    fn times_power_of_two(self, a: Quarters, exponent: Quarters) -> Quarters {
        quarters!(i, {
            // Two exact powers of two, the same pair as in the portable code.
            with_features!({
                let exponent = vcvtq_s32_f32(exponent[i]);
                let first = vshrq_n_s32::<1>(exponent);
                let second = vsubq_s32(exponent, first);
                vmulq_f32(vmulq_f32(a[i], power_of_two(first)), power_of_two(second))
            })
        })
    }

    #[inline(always)]
    fn reduce_add(self, a: Quarters) -> f32 {
        with_features!({
            let four = vaddq_f32(vaddq_f32(a[0], a[2]), vaddq_f32(a[1], a[3]));
            let two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
            vget_lane_f32::<0>(two) + vget_lane_f32::<1>(two)
        })
    }

    #[inline(always)]
    fn reduce_larger(self, a: Quarters) -> f32 {
        with_features!({
            let four = larger(larger(a[0], a[2]), larger(a[1], a[3]));
            let (low, high) = (vget_low_f32(four), vget_high_f32(four));
            let two = vbsl_f32(vcgt_f32(low, high), low, high);
            let (low, high) = (vget_lane_f32::<0>(two), vget_lane_f32::<1>(two));
            if low > high { low } else { high }
        })
    }

    #[inline(always)]
    fn transpose(self, rows: &mut [Quarters; LANES]) {
        let source = *rows;
        let mut row = 0;
        while row < 4 {
            let mut column = 0;
            while column < 4 {
                let first = 4 * row;
                let [a, b, c, d] = [source[first], source[first + 1], source[first + 2], source[first + 3]];
                let square = with_features!(transpose_4x4([a[column], b[column], c[column], d[column]]));
                let mut i = 0;
                while i < 4 {
                    rows[4 * column + i][row] = square[i];
                    i += 1;
                }
                column += 1;
            }
            row += 1;
        }
    }

    #[inline(always)]
    fn swap_lanes<const DISTANCE: usize>(self, a: Quarters) -> Quarters {
        match DISTANCE {
            1 => quarters!(i, with_features!(vrev64q_f32(a[i]))),
            2 => quarters!(i, with_features!(vextq_f32::<2>(a[i], a[i]))),
            4 => [a[1], a[0], a[3], a[2]],
            _ => [a[2], a[3], a[0], a[1]],
        }
    }
}

/// Eight numbers as integers, rounded to nearest, ties to even.
#[inline]
#[target_feature(enable = "neon")]
fn words(low: float32x4_t, high: float32x4_t) -> int16x8_t {
    vcombine_s16(vqmovn_s32(vcvtnq_s32_f32(low)), vqmovn_s32(vcvtnq_s32_f32(high)))
}

/// Sixteen signed bytes as numbers.
#[inline]
#[target_feature(enable = "neon")]
fn widened_bytes(bytes: int8x16_t) -> Quarters {
    let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_s8(vget_high_s8(bytes)));
    [
        vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
        vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
        vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
        vcvtq_f32_s32(vmovl_s16(vget_high_s16(high))),
    ]
}

#[inline]
#[target_feature(enable = "neon")]
fn larger(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    vbslq_f32(vcgtq_f32(a, b), a, b)
}

#[inline]
#[target_feature(enable = "neon")]
fn power_of_two(exponent: int32x4_t) -> float32x4_t {
    vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(exponent, vdupq_n_s32(127))))
}

#[inline]
#[target_feature(enable = "neon")]
fn transpose_4x4([a, b, c, d]: Quarters) -> Quarters {
    let even_low = vreinterpretq_f64_f32(vtrn1q_f32(a, b));
    let even_high = vreinterpretq_f64_f32(vtrn1q_f32(c, d));
    let odd_low = vreinterpretq_f64_f32(vtrn2q_f32(a, b));
    let odd_high = vreinterpretq_f64_f32(vtrn2q_f32(c, d));
    [
        vreinterpretq_f32_f64(vtrn1q_f64(even_low, even_high)),
        vreinterpretq_f32_f64(vtrn1q_f64(odd_low, odd_high)),
        vreinterpretq_f32_f64(vtrn2q_f64(even_low, even_high)),
        vreinterpretq_f32_f64(vtrn2q_f64(odd_low, odd_high)),
    ]
}

/// `fcvtl`, which every AArch64 processor has.
#[inline(always)]
fn widen(halves: uint16x4_t) -> float32x4_t {
    let result: float32x4_t;
    // SAFETY: one instruction on registers.
    unsafe {
        asm!("fcvtl {result:v}.4s, {halves:v}.4h", result = lateout(vreg) result, halves = in(vreg) halves,
            options(pure, nomem, nostack, preserves_flags));
    }
    result
}

/// `fcvtn`, which every AArch64 processor has; rounds to nearest, ties to even, as set at the start of a program.
#[inline(always)]
fn narrow(lanes: float32x4_t) -> uint16x4_t {
    let result: uint16x4_t;
    // SAFETY: one instruction on registers.
    unsafe {
        asm!("fcvtn {result:v}.4h, {lanes:v}.4s", result = lateout(vreg) result, lanes = in(vreg) lanes,
            options(pure, nomem, nostack, preserves_flags));
    }
    result
}
