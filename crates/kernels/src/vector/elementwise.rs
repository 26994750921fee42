//! Operations that treat every element alike: exp and its kin, adding, scaled adding, SwiGLU.
//!
//! Results do not depend on where an element stands in its slice, so a slice may be cut anywhere.

use coldpress_workers::Team;

use super::dispatch::instantiate;
use super::exponential;
use super::simd::{LANES, Simd, padded};
use super::spans::for_each_span;
use crate::Kernels;

/// A function of one element.
trait Unary: Copy {
    fn apply<S: Simd>(self, s: S, x: S::Lanes) -> S::Lanes;
}

/// A function of two elements.
trait Binary: Copy {
    fn apply<S: Simd>(self, s: S, a: S::Lanes, b: S::Lanes) -> S::Lanes;
}

#[inline(always)]
fn map_in_place<S: Simd>(s: S, operation: impl Unary, x: &mut [f32]) {
    let (full, rest) = x.as_chunks_mut::<LANES>();
    for x in full {
        s.store(operation.apply(s, s.load(x)), x);
    }
    if !rest.is_empty() {
        let mut last = padded(rest);
        s.store(operation.apply(s, s.load(&last)), &mut last);
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

#[inline(always)]
fn zip_in_place<S: Simd>(s: S, operation: impl Binary, out: &mut [f32], b: &[f32]) {
    let (out_full, out_rest) = out.as_chunks_mut::<LANES>();
    let (b_full, b_rest) = b.as_chunks::<LANES>();
    for (out, b) in out_full.iter_mut().zip(b_full) {
        s.store(operation.apply(s, s.load(out), s.load(b)), out);
    }
    if !out_rest.is_empty() {
        let mut last = padded(out_rest);
        s.store(operation.apply(s, s.load(&last), s.load(&padded(b_rest))), &mut last);
        out_rest.copy_from_slice(&last[..out_rest.len()]);
    }
}

#[derive(Clone, Copy)]
struct Exp;
#[derive(Clone, Copy)]
struct Sigmoid;
#[derive(Clone, Copy)]
struct Silu;
#[derive(Clone, Copy)]
struct Softplus;
#[derive(Clone, Copy)]
struct Add;
#[derive(Clone, Copy)]
struct ScaledAdd(f32);
#[derive(Clone, Copy)]
struct SiluTimes;
#[derive(Clone, Copy)]
struct GeluTimes;
#[derive(Clone, Copy)]
struct ClampedSwiglu {
    slope: f32,
    limit: f32,
    offset: f32,
}

impl Unary for Exp {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, x: S::Lanes) -> S::Lanes {
        exponential::exp(s, x)
    }
}

impl Unary for Sigmoid {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, x: S::Lanes) -> S::Lanes {
        exponential::sigmoid(s, x)
    }
}

impl Unary for Silu {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, x: S::Lanes) -> S::Lanes {
        exponential::silu(s, x)
    }
}

impl Unary for Softplus {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, x: S::Lanes) -> S::Lanes {
        exponential::softplus(s, x)
    }
}

impl Binary for Add {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, a: S::Lanes, b: S::Lanes) -> S::Lanes {
        s.add(a, b)
    }
}

impl Binary for ScaledAdd {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, a: S::Lanes, b: S::Lanes) -> S::Lanes {
        s.fma(s.splat(self.0), b, a)
    }
}

impl Binary for SiluTimes {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, a: S::Lanes, b: S::Lanes) -> S::Lanes {
        s.mul(exponential::silu(s, a), b)
    }
}

/// Twice the square root of 2 / pi.
const GELU_SLOPE: f32 = 1.595_769_2;
/// [`GELU_SLOPE`] times 0.044715.
const GELU_CUBIC: f32 = 0.071_354_814;

impl Binary for GeluTimes {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, a: S::Lanes, b: S::Lanes) -> S::Lanes {
        // (1 + tanh(z)) / 2 is the sigmoid of 2 z, with z = sqrt(2 / pi) (a + 0.044715 a^3).
        let slope = s.fma(s.mul(a, a), s.splat(GELU_CUBIC), s.splat(GELU_SLOPE));
        s.mul(s.mul(a, exponential::sigmoid(s, s.mul(a, slope))), b)
    }
}

impl Binary for ClampedSwiglu {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, a: S::Lanes, b: S::Lanes) -> S::Lanes {
        // Limits come first, so that a NaN stays.
        let gate = s.smaller(s.splat(self.limit), a);
        let up = s.smaller(s.splat(self.limit), s.larger(s.splat(-self.limit), b));
        let gated = s.mul(gate, exponential::sigmoid(s, s.mul(gate, s.splat(self.slope))));
        s.mul(s.add(up, s.splat(self.offset)), gated)
    }
}

#[inline(always)]
fn exp_body<S: Simd>(s: S, x: &mut [f32]) {
    map_in_place(s, Exp, x);
}

#[inline(always)]
fn sigmoid_body<S: Simd>(s: S, x: &mut [f32]) {
    map_in_place(s, Sigmoid, x);
}

#[inline(always)]
fn silu_body<S: Simd>(s: S, x: &mut [f32]) {
    map_in_place(s, Silu, x);
}

#[inline(always)]
fn softplus_body<S: Simd>(s: S, x: &mut [f32]) {
    map_in_place(s, Softplus, x);
}

#[inline(always)]
fn add_body<S: Simd>(s: S, out: &mut [f32], x: &[f32]) {
    zip_in_place(s, Add, out, x);
}

#[inline(always)]
fn scale_add_body<S: Simd>(s: S, out: &mut [f32], weight: f32, x: &[f32]) {
    zip_in_place(s, ScaledAdd(weight), out, x);
}

#[inline(always)]
fn swiglu_in_place_body<S: Simd>(s: S, gate: &mut [f32], up: &[f32]) {
    zip_in_place(s, SiluTimes, gate, up);
}

#[inline(always)]
fn geglu_in_place_body<S: Simd>(s: S, gate: &mut [f32], up: &[f32]) {
    zip_in_place(s, GeluTimes, gate, up);
}

#[inline(always)]
fn clamped_swiglu_in_place_body<S: Simd>(
    s: S,
    gate: &mut [f32],
    up: &[f32],
    slope: f32,
    limit: f32,
    offset: f32,
) {
    zip_in_place(s, ClampedSwiglu { slope, limit, offset }, gate, up);
}

instantiate! {
    /// `x = exp(x)`, at most 1.01 units in the last place from the true value (subnormal results too);
    /// exactly 0 at -inf, 1 at 0, inf at inf; NaN stays NaN.
    pub fn exp(x: &mut [f32]) => exp_body
}

instantiate! {
    /// `x = 1 / (1 + exp(-x))`, at most 3 units in the last place from the true value; NaN stays NaN.
    pub fn sigmoid(x: &mut [f32]) => sigmoid_body
}

instantiate! {
    /// `x = x * sigmoid(x)`, at most 3 units in the last place or 1.5e-43 from the true value; NaN at -inf
    /// (as `-inf * 0`) and at NaN.
    pub fn silu(x: &mut [f32]) => silu_body
}

instantiate! {
    /// `x = ln(1 + exp(x))`, at most 4 units in the last place from the true value; NaN stays NaN.
    pub fn softplus(x: &mut [f32]) => softplus_body
}

instantiate! { fn add_span(out: &mut [f32], x: &[f32]) => add_body }
instantiate! { fn scale_add_span(out: &mut [f32], weight: f32, x: &[f32]) => scale_add_body }
instantiate! { fn swiglu_in_place_span(gate: &mut [f32], up: &[f32]) => swiglu_in_place_body }
instantiate! { fn geglu_in_place_span(gate: &mut [f32], up: &[f32]) => geglu_in_place_body }
instantiate! {
    fn clamped_swiglu_in_place_span(
        gate: &mut [f32],
        up: &[f32],
        slope: f32,
        limit: f32,
        offset: f32,
    ) => clamped_swiglu_in_place_body
}

/// `out += x`. Panics when the lengths differ.
pub fn add_assign(team: &Team<'_>, kernels: Kernels, out: &mut [f32], x: &[f32]) {
    assert_eq!(out.len(), x.len(), "add_assign of slices of different length");
    for_each_span(team, out, |span, out| add_span(kernels, out, &x[span]));
}

/// `out += x` without a team. Panics when the lengths differ.
pub(crate) fn add_on_this_thread(kernels: Kernels, out: &mut [f32], x: &[f32]) {
    assert_eq!(out.len(), x.len(), "adding slices of different length");
    add_span(kernels, out, x);
}

/// `out += weight * x`, each element one fused multiply-add. Panics when the lengths differ.
pub fn scale_add(kernels: Kernels, out: &mut [f32], weight: f32, x: &[f32]) {
    assert_eq!(out.len(), x.len(), "scale_add of slices of different length");
    scale_add_span(kernels, out, weight, x);
}

/// `gate = silu(gate) * up` (SwiGLU, Shazeer 2020, arXiv:2002.05202). Panics when the lengths differ.
pub fn swiglu_in_place(kernels: Kernels, gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "swiglu_in_place of slices of different length");
    swiglu_in_place_span(kernels, gate, up);
}

/// `gate = gelu(gate) * up` with the tanh form of GELU (Hendrycks and Gimpel 2016, arXiv:1606.08415). Panics when the
/// lengths differ.
pub fn geglu_in_place(kernels: Kernels, gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "geglu_in_place of slices of different length");
    geglu_in_place_span(kernels, gate, up);
}

/// `gate = (up + offset) * gate * sigmoid(slope * gate)`, the gate taken as at most `limit` and up between `-limit` and `limit`
/// (gpt-oss with an offset of 1, DeepSeek-V4 with 0). Panics when the lengths differ.
pub fn clamped_swiglu_in_place(
    kernels: Kernels,
    gate: &mut [f32],
    up: &[f32],
    slope: f32,
    limit: f32,
    offset: f32,
) {
    assert_eq!(gate.len(), up.len(), "clamped_swiglu_in_place of slices of different length");
    clamped_swiglu_in_place_span(kernels, gate, up, slope, limit, offset);
}
