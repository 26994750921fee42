//! What is particular to Mamba-2 around its recurrence: the steps of a position, and the norm of its gated output.
//!
//! Reference: `modeling_mamba2.py` of transformers. Next: `decayed.rs` (the recurrence).

use coldpress_workers::Team;

use super::Columns;
use super::convolution::{load_some, store_some};
use crate::Kernels;
use crate::vector::dispatch::instantiate;
use crate::vector::exponential;
use crate::vector::simd::{LANES, Simd};
use crate::vector::spans::for_each_row_span;

/// How fast each head forgets, one number per head.
#[derive(Clone, Copy, Debug)]
pub enum Rates<'a> {
    /// `A`, negative.
    Values(&'a [f32]),
    /// The logarithm of `-A`.
    Logarithms(&'a [f32]),
}

impl<'a> Rates<'a> {
    fn values(self) -> &'a [f32] {
        match self {
            Rates::Values(values) | Rates::Logarithms(values) => values,
        }
    }
}

/// Bounds of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepLimits {
    /// Smallest step.
    pub least: f32,
    /// Largest step; infinity for none.
    pub most: f32,
}

#[inline(always)]
fn steps_body<S: Simd>(
    s: S,
    raw: &[f32],
    bias: &[f32],
    rates: Rates<'_>,
    limits: StepLimits,
    out: &mut [f32],
) {
    let heads = raw.len();
    let (steps, decays) = out.split_at_mut(heads);
    let (least, most) = (s.splat(limits.least), s.splat(limits.most));
    let mut head = 0;
    while head < heads {
        let part = head..heads.min(head + LANES);
        let x = s.add(load_some(s, &raw[part.clone()]), load_some(s, &bias[part.clone()]));
        let rate = load_some(s, &rates.values()[part.clone()]);
        let rate = match rates {
            Rates::Values(_) => rate,
            Rates::Logarithms(_) => s.sub(s.splat(0.0), exponential::exp(s, rate)),
        };
        // Limits come first, so that a NaN stays.
        let step = s.smaller(most, s.larger(least, exponential::softplus(s, x)));
        store_some(s, step, &mut steps[part.clone()]);
        store_some(s, exponential::exp(s, s.mul(step, rate)), &mut decays[part]);
        head += LANES;
    }
}

instantiate! {
    fn steps_of_row(
        raw: &[f32],
        bias: &[f32],
        rates: Rates<'_>,
        limits: StepLimits,
        out: &mut [f32],
    ) => steps_body
}

/// From what each position says about its step, `raw`, `[rows, heads]`, to steps and decays: `out` is `[rows, 2 * heads]`, in each
/// row `step = softplus(raw + bias)` within the limits, then `exp(step * A)`. Panics when lengths do not match.
pub fn selective_steps(
    team: &Team<'_>,
    kernels: Kernels,
    raw: Columns<'_>,
    bias: &[f32],
    rates: Rates<'_>,
    limits: StepLimits,
    out: &mut [f32],
) {
    let heads = bias.len();
    assert!(heads > 0 && rates.values().len() == heads, "{heads} biases, {} rates", rates.values().len());
    assert!(out.len().is_multiple_of(2 * heads), "{} elements are not rows of {}", out.len(), 2 * heads);
    raw.assert_shape(out.len() / (2 * heads), heads, "steps");
    for_each_row_span(team, out, 2 * heads, |rows, out| {
        for (row, out) in rows.zip(out.chunks_exact_mut(2 * heads)) {
            steps_of_row(kernels, raw.part(row, 0, heads), bias, rates, limits, out);
        }
    });
}

#[inline(always)]
fn gate_and_norm_body<S: Simd>(
    s: S,
    x: &mut [f32],
    gate: &[f32],
    weight: &[f32],
    group_len: usize,
    epsilon: f32,
) {
    let groups = x.chunks_exact_mut(group_len).zip(gate.chunks_exact(group_len));
    for ((x, gate), weight) in groups.zip(weight.chunks_exact(group_len)) {
        let mut sum = s.splat(0.0);
        for (x, gate) in x.chunks_mut(LANES).zip(gate.chunks(LANES)) {
            let gated = s.mul(load_some(s, x), exponential::silu(s, load_some(s, gate)));
            sum = s.fma(gated, gated, sum);
            store_some(s, gated, x);
        }
        let mean = s.reduce_add(sum) / group_len as f32;
        let factor = s.splat(1.0 / (mean + epsilon).sqrt());
        for (x, weight) in x.chunks_mut(LANES).zip(weight.chunks(LANES)) {
            store_some(s, s.mul(s.mul(load_some(s, x), factor), load_some(s, weight)), x);
        }
    }
}

instantiate! {
    fn gate_and_norm_row(
        x: &mut [f32],
        gate: &[f32],
        weight: &[f32],
        group_len: usize,
        epsilon: f32,
    ) => gate_and_norm_body
}

/// `x = rms_norm(x * silu(gate)) * weight` for each of `groups` parts of the rows of `x`, `[rows, weight.len()]`; `gate` has the
/// same rows and columns. Panics when lengths do not match.
pub fn gate_and_rms_norm(
    team: &Team<'_>,
    kernels: Kernels,
    x: &mut [f32],
    gate: Columns<'_>,
    weight: &[f32],
    groups: usize,
    epsilon: f32,
) {
    let columns = weight.len();
    assert!(
        columns > 0 && groups > 0 && columns.is_multiple_of(groups),
        "{columns} columns are not {groups} groups"
    );
    assert!(x.len().is_multiple_of(columns), "{} elements are not rows of {columns}", x.len());
    gate.assert_shape(x.len() / columns, columns, "gate");
    for_each_row_span(team, x, columns, |rows, x| {
        for (row, x) in rows.zip(x.chunks_exact_mut(columns)) {
            gate_and_norm_row(kernels, x, gate.part(row, 0, columns), weight, columns / groups, epsilon);
        }
    });
}
