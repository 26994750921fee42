//! What stands around a recurrence: norms of queries and keys, decays, the gated norm of its output, gates.

use coldpress_workers::Team;

use super::Columns;
use super::convolution::{load_some, store_some};
use crate::Kernels;
use crate::vector::dispatch::instantiate;
use crate::vector::exponential;
use crate::vector::simd::{LANES, Simd};
use crate::vector::spans::for_each_row_span;

/// How a number that a layer computes becomes the decay of its state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DecayRule {
    /// `exp(rate * softplus(x + bias))`, with a negative rate.
    Softplus,
    /// `exp(lower_bound * sigmoid(rate * (x + bias)))`, with a positive rate and a negative bound.
    Bounded {
        /// What the exponent comes close to at most.
        lower_bound: f32,
    },
}

/// What is applied to a gate before it multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateActivation {
    /// The logistic function.
    Sigmoid,
    /// `x * sigmoid(x)`
    Silu,
}

impl GateActivation {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, x: S::Lanes) -> S::Lanes {
        match self {
            GateActivation::Sigmoid => exponential::sigmoid(s, x),
            GateActivation::Silu => exponential::silu(s, x),
        }
    }
}

#[inline(always)]
fn sum_of_squares<S: Simd>(s: S, row: &[f32]) -> f32 {
    let mut sum = s.splat(0.0);
    for part in row.chunks(LANES) {
        let lanes = load_some(s, part);
        sum = s.fma(lanes, lanes, sum);
    }
    s.reduce_add(sum)
}

#[inline(always)]
fn l2_norm_body<S: Simd>(s: S, heads: &mut [f32], head_dim: usize, epsilon: f32, scale: f32) {
    for head in heads.chunks_exact_mut(head_dim) {
        let factor = s.splat(scale / (sum_of_squares(s, head) + epsilon).sqrt());
        for part in head.chunks_mut(LANES) {
            store_some(s, s.mul(load_some(s, part), factor), part);
        }
    }
}

instantiate! {
    fn l2_norm_span(heads: &mut [f32], head_dim: usize, epsilon: f32, scale: f32) => l2_norm_body
}

/// `x = scale * x / sqrt(sum(x^2) + epsilon)` for each of the heads in columns `first_column..first_column + columns` of
/// the rows of `x`, `[rows, row_stride]`. Panics when the columns are not whole heads or `x` is not whole rows.
#[allow(clippy::too_many_arguments)]
pub fn l2_norm_in_place(
    team: &Team<'_>,
    kernels: Kernels,
    x: &mut [f32],
    row_stride: usize,
    (first_column, columns): (usize, usize),
    head_dim: usize,
    epsilon: f32,
    scale: f32,
) {
    assert!(
        head_dim > 0 && columns.is_multiple_of(head_dim) && first_column + columns <= row_stride,
        "columns {first_column}..{} of {row_stride} are not heads of {head_dim}",
        first_column + columns
    );
    assert!(x.len().is_multiple_of(row_stride), "{} elements are not rows of {row_stride}", x.len());
    for_each_row_span(team, x, row_stride, |_, rows| {
        for row in rows.chunks_exact_mut(row_stride) {
            let heads = &mut row[first_column..first_column + columns];
            l2_norm_span(kernels, heads, head_dim, epsilon, scale);
        }
    });
}

#[inline(always)]
fn decay_body<S: Simd>(s: S, x: &mut [f32], bias: &[f32], rate: &[f32], rule: DecayRule) {
    for row in x.chunks_exact_mut(bias.len()) {
        for ((part, bias), rate) in row.chunks_mut(LANES).zip(bias.chunks(LANES)).zip(rate.chunks(LANES)) {
            let x = s.add(load_some(s, part), load_some(s, bias));
            let rate = load_some(s, rate);
            let exponent = match rule {
                DecayRule::Softplus => s.mul(rate, exponential::softplus(s, x)),
                DecayRule::Bounded { lower_bound } => {
                    s.mul(s.splat(lower_bound), exponential::sigmoid(s, s.mul(rate, x)))
                }
            };
            store_some(s, exponential::exp(s, exponent), part);
        }
    }
}

instantiate! {
    fn decay_span(x: &mut [f32], bias: &[f32], rate: &[f32], rule: DecayRule) => decay_body
}

/// Turns `x`, `[rows, bias.len()]`, into decays. `rate` has one number per column. Panics when lengths do not match.
pub fn decay_in_place(
    team: &Team<'_>,
    kernels: Kernels,
    x: &mut [f32],
    bias: &[f32],
    rate: &[f32],
    rule: DecayRule,
) {
    assert!(!bias.is_empty() && bias.len() == rate.len(), "{} biases, {} rates", bias.len(), rate.len());
    assert!(x.len().is_multiple_of(bias.len()), "{} elements are not rows of {}", x.len(), bias.len());
    for_each_row_span(team, x, bias.len(), |_, rows| decay_span(kernels, rows, bias, rate, rule));
}

#[inline(always)]
fn gated_norm_body<S: Simd>(
    s: S,
    x: &mut [f32],
    gate: &[f32],
    weight: &[f32],
    epsilon: f32,
    activation: GateActivation,
) {
    let head_dim = weight.len();
    for (head, gate) in x.chunks_exact_mut(head_dim).zip(gate.chunks_exact(head_dim)) {
        let mean = sum_of_squares(s, head) / head_dim as f32;
        let factor = s.splat(1.0 / (mean + epsilon).sqrt());
        for ((part, gate), weight) in head.chunks_mut(LANES).zip(gate.chunks(LANES)).zip(weight.chunks(LANES))
        {
            let normed = s.mul(s.mul(load_some(s, part), factor), load_some(s, weight));
            store_some(s, s.mul(normed, activation.apply(s, load_some(s, gate))), part);
        }
    }
}

instantiate! {
    fn gated_norm_span(
        x: &mut [f32],
        gate: &[f32],
        weight: &[f32],
        epsilon: f32,
        activation: GateActivation,
    ) => gated_norm_body
}

/// `x = x / sqrt(mean(x^2) + epsilon) * weight * activation(gate)` for every head of `weight.len()` columns of the rows of
/// `x`, `[rows, columns]`; `gate` has the same rows and columns. Panics when lengths do not match.
#[allow(clippy::too_many_arguments)]
pub fn gated_rms_norm(
    team: &Team<'_>,
    kernels: Kernels,
    x: &mut [f32],
    columns: usize,
    gate: Columns<'_>,
    weight: &[f32],
    epsilon: f32,
    activation: GateActivation,
) {
    assert!(
        !weight.is_empty() && columns.is_multiple_of(weight.len()),
        "{columns} columns are not heads of {}",
        weight.len()
    );
    let rows = assert_rows(x, columns);
    gate.assert_shape(rows, columns, "gate");
    for_each_row_span(team, x, columns, |rows, x| {
        for (row, x) in rows.zip(x.chunks_exact_mut(columns)) {
            gated_norm_span(kernels, x, gate.part(row, 0, columns), weight, epsilon, activation);
        }
    });
}

#[inline(always)]
fn gate_body<S: Simd>(
    s: S,
    x: &mut [f32],
    gate: &[f32],
    columns_per_gate: usize,
    activation: GateActivation,
) {
    if columns_per_gate == 1 {
        for (part, gate) in x.chunks_mut(LANES).zip(gate.chunks(LANES)) {
            let gate = activation.apply(s, load_some(s, gate));
            store_some(s, s.mul(load_some(s, part), gate), part);
        }
        return;
    }
    for (head, gate) in x.chunks_exact_mut(columns_per_gate).zip(gate) {
        let gate = activation.apply(s, s.splat(*gate));
        for part in head.chunks_mut(LANES) {
            store_some(s, s.mul(load_some(s, part), gate), part);
        }
    }
}

instantiate! {
    fn gate_span(
        x: &mut [f32],
        gate: &[f32],
        columns_per_gate: usize,
        activation: GateActivation,
    ) => gate_body
}

/// `x = x * activation(gate)` for the rows of `x`, `[rows, columns]`. `gate` has one number for each `columns_per_gate`
/// adjoining columns (1, or the size of a head). Panics when lengths do not match.
pub fn gate_in_place(
    team: &Team<'_>,
    kernels: Kernels,
    x: &mut [f32],
    columns: usize,
    gate: Columns<'_>,
    columns_per_gate: usize,
    activation: GateActivation,
) {
    assert!(
        columns_per_gate > 0 && columns.is_multiple_of(columns_per_gate),
        "{columns} columns are not parts of {columns_per_gate}"
    );
    let gates = columns / columns_per_gate;
    let rows = assert_rows(x, columns);
    gate.assert_shape(rows, gates, "gate");
    for_each_row_span(team, x, columns, |rows, x| {
        for (row, x) in rows.zip(x.chunks_exact_mut(columns)) {
            gate_span(kernels, x, gate.part(row, 0, gates), columns_per_gate, activation);
        }
    });
}

fn assert_rows(x: &[f32], columns: usize) -> usize {
    assert!(columns > 0 && x.len().is_multiple_of(columns), "{} elements are not rows of {columns}", x.len());
    x.len() / columns
}
