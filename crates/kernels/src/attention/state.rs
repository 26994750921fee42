//! Softmax state of some query vectors: unnormalised outputs, running maxima, sums of weights.
//!
//! A state covers a range of keys; states of ranges that follow each other are merged in order.

use super::span::{Problem, Unit};
use crate::vector::dispatch::instantiate;
use crate::vector::exponential;
use crate::vector::simd::{LANES, Simd};

/// Elements of the state of `vectors` query vectors with `row_vectors` vectors of [`LANES`] output elements
/// each.
pub(super) const fn state_len(vectors: usize, row_vectors: usize) -> usize {
    vectors * row_vectors * LANES + 2 * vectors.next_multiple_of(LANES)
}

/// The parts of a state.
pub(super) struct State<'a> {
    /// `[vectors, row_vectors]`, padded with zeros behind `head_dim`.
    pub(super) outputs: &'a mut [[f32; LANES]],
    pub(super) maxima: &'a mut [f32],
    pub(super) sums: &'a mut [f32],
}

impl<'a> State<'a> {
    /// `memory` of [`state_len`] elements, or more.
    #[inline(always)]
    pub(super) fn new(memory: &'a mut [f32], vectors: usize, row_vectors: usize) -> State<'a> {
        let (outputs, rest) = memory.split_at_mut(vectors * row_vectors * LANES);
        let (maxima, sums) = rest.split_at_mut(vectors.next_multiple_of(LANES));
        State {
            outputs: outputs.as_chunks_mut().0,
            maxima: &mut maxima[..vectors],
            sums: &mut sums[..vectors],
        }
    }

    /// No keys yet.
    #[inline(always)]
    pub(super) fn clear(&mut self) {
        self.outputs.fill([0.0; LANES]);
        self.maxima.fill(f32::NEG_INFINITY);
        self.sums.fill(0.0);
    }
}

/// exp of one number, as in lanes.
#[inline(always)]
pub(super) fn exp_of<S: Simd>(s: S, x: f32) -> f32 {
    let mut lanes = [0.0; LANES];
    s.store(exponential::exp(s, s.splat(x)), &mut lanes);
    lanes[0]
}

#[inline(always)]
fn merge_body<S: Simd>(
    s: S,
    problem: &Problem<'_>,
    unit: &Unit,
    span: usize,
    from: &mut [f32],
    into: &mut [f32],
) {
    let (vectors, row_vectors) = (unit.vectors(), problem.row_vectors());
    let from = State::new(from, vectors, row_vectors);
    let into = State::new(into, vectors, row_vectors);
    for vector in 0..vectors {
        // A span without keys for this query leaves no trace, not even in the sign of a zero.
        if problem.visible_in_span(unit.row(vector), span).is_empty() {
            continue;
        }
        let (a, b) = (into.maxima[vector], from.maxima[vector]);
        let largest = if b > a { b } else { a };
        let (a, b) = (exp_of(s, a - largest), exp_of(s, b - largest));
        into.maxima[vector] = largest;
        into.sums[vector] = from.sums[vector].mul_add(b, into.sums[vector] * a);
        let (a, b) = (s.splat(a), s.splat(b));
        let outputs = vector * row_vectors..(vector + 1) * row_vectors;
        for (into, from) in into.outputs[outputs.clone()].iter_mut().zip(&from.outputs[outputs]) {
            s.store(s.fma(s.load(from), b, s.mul(s.load(into), a)), into);
        }
    }
}

#[inline(always)]
fn finish_body<S: Simd>(
    s: S,
    problem: &Problem<'_>,
    unit: &Unit,
    state: &mut [f32],
    row: usize,
    out: &mut [f32],
) {
    let (head_dim, row_vectors) = (problem.shape.head_dim, problem.row_vectors());
    let state = State::new(state, unit.vectors(), row_vectors);
    for (member, out) in out.chunks_exact_mut(head_dim).enumerate() {
        let vector = (row - unit.first_row) * unit.heads + member;
        let (mut sum, mut factor) = (state.sums[vector], 1.0);
        if let Some(sinks) = problem.sinks {
            let sink = sinks[unit.query_head(problem) + member];
            let maximum = state.maxima[vector];
            let largest = if sink > maximum { sink } else { maximum };
            factor = exp_of(s, maximum - largest);
            sum = sum.mul_add(factor, exp_of(s, sink - largest));
        }
        let (factor, sum) = (s.splat(factor), s.splat(sum));
        let mut lanes = [0.0; LANES];
        let outputs = &state.outputs[vector * row_vectors..(vector + 1) * row_vectors];
        for (out, output) in out.chunks_mut(LANES).zip(outputs) {
            s.store(s.div(s.mul(s.load(output), factor), sum), &mut lanes);
            out.copy_from_slice(&lanes[..out.len()]);
        }
    }
}

instantiate! {
    /// Adds the state of a span to the state of all spans before it.
    pub(super) fn merge(
        problem: &Problem<'_>,
        unit: &Unit,
        span: usize,
        from: &mut [f32],
        into: &mut [f32],
    ) => merge_body
}

instantiate! {
    /// Writes the outputs of one row, `[heads of the unit, head_dim]`, from the state of all its keys.
    pub(super) fn finish(
        problem: &Problem<'_>,
        unit: &Unit,
        state: &mut [f32],
        row: usize,
        out: &mut [f32],
    ) => finish_body
}
