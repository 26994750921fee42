//! exp and what is made of it: sigmoid, SiLU, softplus. Operations on sixteen lanes.
//!
//! `exp(x) = 2^n * (1 + r + r^2 q(r))` with `n = round(x / ln 2)`, `|r| <= ln 2 / 2` and a minimax polynomial
//! `q` of degree four (relative error of the whole below 4e-9, against 6e-8 for half a unit in the last
//! place).

use super::simd::{ROUNDING_SHIFT, Simd};

/// Below this, exp rounds to zero (`exp(-104) < 2^-150`).
const LOWEST: f32 = -104.0;
/// Above this, exp is infinite.
const HIGHEST: f32 = 89.0;
const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// `ln 2` in two parts: the nearest float and the rest.
const LN_2_HIGH: f32 = std::f32::consts::LN_2;
const LN_2_LOW: f32 = -1.904_654_2e-9;
/// `q`, lowest power first: minimax fit of `(exp(r) - 1 - r) / r^2`.
const EXP_POLYNOMIAL: [f32; 5] = [0.499_999_94, 0.166_665_21, 0.041_668_39, 0.008_368_717, 0.001_381_459_9];
/// Minimax fit of `(atanh(u) / u - 1) / u^2` in `u^2`, for `u <= 1/3`, lowest power first.
const ATANH_POLYNOMIAL: [f32; 4] = [0.333_332_06, 0.200_108_5, 0.139_995_75, 0.140_122_12];

/// e to the x: at most 1.01 units in the last place from the true value, also where that is subnormal; 0 at
/// -inf, exactly 1 at 0, inf at inf, NaN at NaN.
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::Lanes) -> S::Lanes {
    let x = s.smaller(s.splat(HIGHEST), s.larger(s.splat(LOWEST), x));
    let shift = s.splat(ROUNDING_SHIFT);
    let n = s.sub(s.fma(x, s.splat(LOG2_E), shift), shift);
    let r = s.fma(n, s.splat(-LN_2_LOW), s.fma(n, s.splat(-LN_2_HIGH), x));
    let [c0, c1, c2, c3, c4] = EXP_POLYNOMIAL;
    let mut q = s.fma(s.splat(c4), r, s.splat(c3));
    q = s.fma(q, r, s.splat(c2));
    q = s.fma(q, r, s.splat(c1));
    q = s.fma(q, r, s.splat(c0));
    let above_one = s.fma(s.mul(r, r), q, r);
    s.times_power_of_two(s.add(s.splat(1.0), above_one), n)
}

/// `(e, 1 + e)` with `e = exp(-|x|)`, which never overflows.
#[inline(always)]
fn decay<S: Simd>(s: S, x: S::Lanes) -> (S::Lanes, S::Lanes) {
    let e = exp(s, s.negative_magnitude(x));
    (e, s.add(s.splat(1.0), e))
}

/// `1 / (1 + exp(-x))`.
#[inline(always)]
pub(crate) fn sigmoid<S: Simd>(s: S, x: S::Lanes) -> S::Lanes {
    let (e, denominator) = decay(s, x);
    s.div(s.select_negative(x, e, s.splat(1.0)), denominator)
}

/// `x * sigmoid(x)`.
#[inline(always)]
pub(crate) fn silu<S: Simd>(s: S, x: S::Lanes) -> S::Lanes {
    let (e, denominator) = decay(s, x);
    s.div(s.mul(x, s.select_negative(x, e, s.splat(1.0))), denominator)
}

/// `ln(1 + exp(x)) = max(x, 0) + 2 atanh(u)`, `u = e / (2 + e)`, `e = exp(-|x|)`.
#[inline(always)]
pub(crate) fn softplus<S: Simd>(s: S, x: S::Lanes) -> S::Lanes {
    let e = exp(s, s.negative_magnitude(x));
    let u = s.div(e, s.add(s.splat(2.0), e));
    let w = s.mul(u, u);
    let [c0, c1, c2, c3] = ATANH_POLYNOMIAL;
    let mut q = s.fma(s.splat(c3), w, s.splat(c2));
    q = s.fma(q, w, s.splat(c1));
    q = s.fma(q, w, s.splat(c0));
    let atanh = s.fma(s.mul(u, w), q, u);
    s.add(s.larger(s.splat(0.0), x), s.add(atanh, atanh))
}
