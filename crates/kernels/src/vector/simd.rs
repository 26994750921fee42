//! Sixteen float lanes: the alphabet in which every vector operation of this crate is written.
//!
//! An operation is one generic function over [`Simd`]; `dispatch.rs` compiles it once per instruction set. All
//! methods are exactly rounded IEEE operations or moves of data and all reductions have one fixed tree, so
//! every instruction set gives the same bits (the payload of a NaN excepted). [`Portable`] is the definition;
//! the others are in `simd_x86.rs` and `simd_neon.rs`.

use half::f16;

/// Lanes of one vector.
pub(crate) const LANES: usize = 16;

/// `1.5 * 2^23`: adding it to a float of magnitude below `2^22` rounds that float to an integer, half to
/// even.
pub(crate) const ROUNDING_SHIFT: f32 = 12_582_912.0;

/// Proof that an instruction set may be used, with its operations on [`LANES`] floats.
pub(crate) trait Simd: Copy + Send + Sync {
    /// Sixteen f32 values in registers.
    type Lanes: Copy;

    /// Asks for the cache line of an address, which need not be valid, to be brought into the level 2 cache.
    /// May do nothing.
    fn prefetch<T>(self, address: *const T);

    fn splat(self, value: f32) -> Self::Lanes;
    fn load(self, from: &[f32; LANES]) -> Self::Lanes;
    fn store(self, lanes: Self::Lanes, to: &mut [f32; LANES]);
    /// Exact widening.
    fn load_half(self, from: &[f16; LANES]) -> Self::Lanes;
    /// Rounds to nearest, ties to even; NaN stays NaN.
    fn store_half(self, lanes: Self::Lanes, to: &mut [f16; LANES]);
    /// The exact value of a half in all lanes.
    fn splat_half(self, value: f16) -> Self::Lanes;
    /// Sixteen signed bytes as numbers.
    fn load_bytes(self, from: &[i8; LANES]) -> Self::Lanes;
    /// The low (`HIGH` false) or the high four bits of sixteen bytes as numbers, less 8: between -8 and 7.
    fn load_nibbles<const HIGH: bool>(self, from: &[u8; LANES]) -> Self::Lanes;
    /// Rounds numbers between -128 and 127 to integers, half to even. No lane is NaN.
    fn store_bytes(self, lanes: Self::Lanes, to: &mut [i8; LANES]);

    fn add(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes;
    fn sub(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes;
    fn mul(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes;
    fn div(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::Lanes, b: Self::Lanes, c: Self::Lanes) -> Self::Lanes;

    /// `if a < b { a } else { b }`: `b` where either is NaN.
    fn smaller(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes;
    /// `if a > b { a } else { b }`: `b` where either is NaN.
    fn larger(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes;
    /// `-|a|`.
    fn negative_magnitude(self, a: Self::Lanes) -> Self::Lanes;
    /// `if test < 0 { negative } else { other }`: `other` where the test is NaN.
    fn select_negative(self, test: Self::Lanes, negative: Self::Lanes, other: Self::Lanes) -> Self::Lanes;
    /// `a * 2^exponent`, rounded once, for `0.5 <= |a| <= 2` and an integer exponent in `-160..=160`. A NaN
    /// of `a` stays.
    fn times_power_of_two(self, a: Self::Lanes, exponent: Self::Lanes) -> Self::Lanes;

    /// Sum by halving: lane `i` with `i + 8`, then `i + 4`, `i + 2`, `i + 1`.
    fn reduce_add(self, a: Self::Lanes) -> f32;
    /// [`Simd::larger`] by the same halving.
    fn reduce_larger(self, a: Self::Lanes) -> f32;
    /// Row `i`, lane `j` becomes row `j`, lane `i`.
    fn transpose(self, rows: &mut [Self::Lanes; LANES]);
    /// Lane `i` becomes lane `i ^ DISTANCE`, for a distance of 1, 2, 4 or 8.
    fn swap_lanes<const DISTANCE: usize>(self, a: Self::Lanes) -> Self::Lanes;
}

/// Plain Rust lanes.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

/// One lane-wise operation of two operands; a macro because a closure would not inherit target features.
macro_rules! lane_wise {
    ($a:ident, $b:ident, $operation:expr) => {{
        let mut result = [0.0; LANES];
        let mut lane = 0;
        while lane < LANES {
            let ($a, $b) = ($a[lane], $b[lane]);
            result[lane] = $operation;
            lane += 1;
        }
        result
    }};
}

impl Simd for Portable {
    type Lanes = [f32; LANES];

    #[inline(always)]
    fn prefetch<T>(self, _: *const T) {}

    #[inline(always)]
    fn splat(self, value: f32) -> Self::Lanes {
        [value; LANES]
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::Lanes {
        *from
    }

    #[inline(always)]
    fn store(self, lanes: Self::Lanes, to: &mut [f32; LANES]) {
        *to = lanes;
    }

    #[inline(always)]
    fn load_half(self, from: &[f16; LANES]) -> Self::Lanes {
        let mut result = [0.0; LANES];
        for (to, from) in result.iter_mut().zip(from) {
            *to = from.to_f32_const();
        }
        result
    }

    #[inline(always)]
    fn store_half(self, lanes: Self::Lanes, to: &mut [f16; LANES]) {
        for (to, from) in to.iter_mut().zip(lanes) {
            *to = f16::from_f32_const(from);
        }
    }

    #[inline(always)]
    fn splat_half(self, value: f16) -> Self::Lanes {
        [value.to_f32_const(); LANES]
    }

    #[inline(always)]
    fn load_bytes(self, from: &[i8; LANES]) -> Self::Lanes {
        from.map(f32::from)
    }

    #[inline(always)]
    fn load_nibbles<const HIGH: bool>(self, from: &[u8; LANES]) -> Self::Lanes {
        let mut result = [0.0; LANES];
        for (to, from) in result.iter_mut().zip(from) {
            let nibble = if HIGH { from >> 4 } else { from & 0x0f };
            *to = f32::from(nibble) - 8.0;
        }
        result
    }

    #[inline(always)]
    fn store_bytes(self, lanes: Self::Lanes, to: &mut [i8; LANES]) {
        for (to, from) in to.iter_mut().zip(lanes) {
            *to = from.round_ties_even() as i8;
        }
    }

    #[inline(always)]
    fn add(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes {
        lane_wise!(a, b, a + b)
    }

    #[inline(always)]
    fn sub(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes {
        lane_wise!(a, b, a - b)
    }

    #[inline(always)]
    fn mul(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes {
        lane_wise!(a, b, a * b)
    }

    #[inline(always)]
    fn div(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes {
        lane_wise!(a, b, a / b)
    }

    #[inline(always)]
    fn fma(self, a: Self::Lanes, b: Self::Lanes, mut c: Self::Lanes) -> Self::Lanes {
        let mut lane = 0;
        while lane < LANES {
            c[lane] = a[lane].mul_add(b[lane], c[lane]);
            lane += 1;
        }
        c
    }

    #[inline(always)]
    fn smaller(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes {
        lane_wise!(a, b, if a < b { a } else { b })
    }

    #[inline(always)]
    fn larger(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes {
        lane_wise!(a, b, if a > b { a } else { b })
    }

    #[inline(always)]
    fn negative_magnitude(self, mut a: Self::Lanes) -> Self::Lanes {
        let mut lane = 0;
        while lane < LANES {
            a[lane] = f32::from_bits(a[lane].to_bits() | 0x8000_0000);
            lane += 1;
        }
        a
    }

    #[inline(always)]
    fn select_negative(
        self,
        test: Self::Lanes,
        negative: Self::Lanes,
        mut other: Self::Lanes,
    ) -> Self::Lanes {
        let mut lane = 0;
        while lane < LANES {
            other[lane] = if test[lane] < 0.0 { negative[lane] } else { other[lane] };
            lane += 1;
        }
        other
    }

    #[inline(always)]
    fn times_power_of_two(self, a: Self::Lanes, exponent: Self::Lanes) -> Self::Lanes {
        // Two factors, because one power of two does not reach the subnormal numbers. The first product is
        // exact.
        lane_wise!(a, exponent, {
            let bits = (exponent + ROUNDING_SHIFT).to_bits() as i32;
            let exponent = bits.wrapping_sub(ROUNDING_SHIFT.to_bits() as i32);
            let first = exponent >> 1;
            let second = exponent.wrapping_sub(first);
            a * power_of_two(first) * power_of_two(second)
        })
    }

    #[inline(always)]
    fn reduce_add(self, a: Self::Lanes) -> f32 {
        let mut sums = a;
        for width in [8, 4, 2, 1] {
            for lane in 0..width {
                sums[lane] += sums[lane + width];
            }
        }
        sums[0]
    }

    #[inline(always)]
    fn reduce_larger(self, a: Self::Lanes) -> f32 {
        let mut largest = a;
        for width in [8, 4, 2, 1] {
            for lane in 0..width {
                let (low, high) = (largest[lane], largest[lane + width]);
                largest[lane] = if low > high { low } else { high };
            }
        }
        largest[0]
    }

    #[inline(always)]
    fn transpose(self, rows: &mut [Self::Lanes; LANES]) {
        let source = *rows;
        for (column, row) in rows.iter_mut().enumerate() {
            for (lane, source) in row.iter_mut().zip(&source) {
                *lane = source[column];
            }
        }
    }

    #[inline(always)]
    fn swap_lanes<const DISTANCE: usize>(self, a: Self::Lanes) -> Self::Lanes {
        let mut result = [0.0; LANES];
        let mut lane = 0;
        while lane < LANES {
            result[lane] = a[lane ^ DISTANCE];
            lane += 1;
        }
        result
    }
}

/// `2^exponent` for the exponents of normal numbers; any bits for others (only reached when the other factor
/// is NaN).
#[inline(always)]
fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits((exponent.wrapping_add(127) as u32) << 23)
}

/// The first values of a vector that is not full, zeros behind them.
#[inline(always)]
pub(crate) fn padded<T: Copy + Default>(values: &[T]) -> [T; LANES] {
    let mut full = [T::default(); LANES];
    full[..values.len()].copy_from_slice(values);
    full
}
