//! The gated delta rule: a matrix per head that forgets, is corrected towards the newest value, and is read by the query.
//!
//! For each position, with the state `S` of a head, `[key_dim, value_dim]`:
//! `S = decay * S`, `S = S + key (beta * (value - key S))`, `output = query S`.
//! A decay per head is Gated DeltaNet (Yang, Kautz and Hatamizadeh 2024, arXiv:2412.06464), one per channel of the key is
//! Kimi Delta Attention (Kimi Team 2025, arXiv:2510.26692). The recurrence is followed step by step, never in chunks, so
//! a prompt has the bits of single tokens. Columns of a state are independent: all rows pass a few columns before the next
//! ones, so that what is worked on stays in the nearest cache, and each element is read and written once per row.

#![allow(unsafe_code)]

use coldpress_workers::Team;

use super::Columns;
use crate::Kernels;
use crate::vector::dispatch::instantiate;
use crate::vector::simd::{LANES, Simd};
use crate::vector::spans::SharedSlice;

/// Which key head a value head uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyHeads {
    /// Adjoining value heads share one: `head / (heads / key_heads)`.
    Grouped,
    /// Key heads take turns: `head % key_heads`.
    InTurns,
}

/// Sizes of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaShape {
    /// Heads of values, outputs and states.
    pub heads: usize,
    /// Heads of queries and keys; divides `heads`.
    pub key_heads: usize,
    /// Elements of a query and a key: rows of a state.
    pub key_dim: usize,
    /// Elements of a value and an output: columns of a state; a multiple of 16.
    pub value_dim: usize,
    /// How heads share keys.
    pub key_heads_of: KeyHeads,
}

/// Elements of the state of one sequence.
pub const fn delta_state_len(shape: DeltaShape) -> usize {
    shape.heads * shape.key_dim * shape.value_dim
}

/// What the state is multiplied by before each step: numbers between 0 and 1.
#[derive(Clone, Copy, Debug)]
pub enum Decay<'a> {
    /// `[rows, heads]`
    PerHead(Columns<'a>),
    /// `[rows, heads * key_dim]`
    PerChannel(Columns<'a>),
}

/// The inputs of adjoining positions of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct DeltaRows<'a> {
    /// Positions.
    pub rows: usize,
    /// `[rows, key_heads * key_dim]`, scaled.
    pub query: Columns<'a>,
    /// `[rows, key_heads * key_dim]`
    pub key: Columns<'a>,
    /// `[rows, heads * value_dim]`
    pub value: Columns<'a>,
    /// What is left of the state before each step.
    pub decay: Decay<'a>,
    /// How far the state is corrected, `[rows, heads]`.
    pub beta: Columns<'a>,
}

/// Follows the rule through `input.rows` positions: outputs into `out`, `[rows, heads * value_dim]`.
///
/// `state` is `[heads, value_dim / 16, key_dim, 16]` (sixteen columns of a head lie together), zeros at the beginning of a
/// sequence. Sums over the channels of keys run in order, one fused multiply-add each. Panics when lengths do not match.
pub fn delta_rule(
    team: &Team<'_>,
    kernels: Kernels,
    shape: DeltaShape,
    input: DeltaRows<'_>,
    state: &mut [f32],
    out: &mut [f32],
) {
    let DeltaShape { heads, key_heads, key_dim, value_dim, .. } = shape;
    let rows = input.rows;
    assert!(
        key_heads > 0 && heads.is_multiple_of(key_heads) && key_dim > 0 && value_dim.is_multiple_of(LANES),
        "{shape:?}: value heads are a multiple of key heads, value_dim of {LANES}"
    );
    assert_eq!(state.len(), delta_state_len(shape), "state of another layer");
    assert_eq!(out.len(), rows * heads * value_dim, "outputs of another shape");
    input.query.assert_shape(rows, key_heads * key_dim, "queries");
    input.key.assert_shape(rows, key_heads * key_dim, "keys");
    input.value.assert_shape(rows, heads * value_dim, "values");
    input.beta.assert_shape(rows, heads, "beta");
    match input.decay {
        Decay::PerHead(decay) => decay.assert_shape(rows, heads, "decay"),
        Decay::PerChannel(decay) => decay.assert_shape(rows, heads * key_dim, "decay"),
    }
    if rows == 0 || value_dim == 0 {
        return;
    }
    let out = SharedSlice::new(out);
    team.for_each_part_mut(state, key_dim * value_dim, |head, state, _| {
        let state = state.as_chunks_mut::<LANES>().0;
        match input.decay {
            Decay::PerHead(_) => per_head(kernels, shape, &input, head, state, &out),
            Decay::PerChannel(_) => per_channel(kernels, shape, &input, head, state, &out),
        }
    });
}

instantiate! {
    fn per_head(
        shape: DeltaShape,
        input: &DeltaRows<'_>,
        head: usize,
        state: &mut [[f32; LANES]],
        out: &SharedSlice<'_, f32>,
    ) => one_head { avx512: [2, false], others: [1, false] }
}

instantiate! {
    fn per_channel(
        shape: DeltaShape,
        input: &DeltaRows<'_>,
        head: usize,
        state: &mut [[f32; LANES]],
        out: &SharedSlice<'_, f32>,
    ) => one_head { avx512: [2, true], others: [1, true] }
}

/// All columns of one head, `V` vectors of them at a time.
#[inline(always)]
fn one_head<S: Simd, const V: usize, const CHANNELS: bool>(
    s: S,
    shape: DeltaShape,
    input: &DeltaRows<'_>,
    head: usize,
    state: &mut [[f32; LANES]],
    out: &SharedSlice<'_, f32>,
) {
    let DeltaShape { heads, key_heads, key_dim, value_dim, key_heads_of } = shape;
    let key_head = match key_heads_of {
        KeyHeads::Grouped => head / (heads / key_heads),
        KeyHeads::InTurns => head % key_heads,
    };
    let job = Head { input, key_dim, key_at: key_head * key_dim, head };
    let vectors = value_dim / LANES;
    let mut vector = 0;
    while vector < vectors {
        let width = if vector + V <= vectors { V } else { 1 };
        let state = &mut state[vector * key_dim..(vector + width) * key_dim];
        let value_at = head * value_dim + vector * LANES;
        if width == V {
            columns::<S, V, CHANNELS>(s, &job, state, value_at, heads * value_dim, out);
        } else {
            columns::<S, 1, CHANNELS>(s, &job, state, value_at, heads * value_dim, out);
        }
        vector += width;
    }
}

struct Head<'a> {
    input: &'a DeltaRows<'a>,
    key_dim: usize,
    /// Column of the first channel of its key head.
    key_at: usize,
    head: usize,
}

/// What one row brings to all columns of a head.
#[derive(Clone, Copy)]
struct Row<'a> {
    key: &'a [f32],
    query: &'a [f32],
    /// One number, or one per channel.
    decay: &'a [f32],
    beta: f32,
}

impl<'a> Head<'a> {
    #[inline(always)]
    fn row(&self, row: usize) -> Row<'a> {
        let input = self.input;
        let decay = match input.decay {
            Decay::PerHead(decay) => decay.part(row, self.head, 1),
            Decay::PerChannel(decay) => decay.part(row, self.head * self.key_dim, self.key_dim),
        };
        Row {
            key: input.key.part(row, self.key_at, self.key_dim),
            query: input.query.part(row, self.key_at, self.key_dim),
            decay,
            beta: input.beta.part(row, self.head, 1)[0],
        }
    }
}

/// All rows through `V` vectors of columns; `state` is `[V, key_dim]` vectors.
#[inline(always)]
fn columns<S: Simd, const V: usize, const CHANNELS: bool>(
    s: S,
    job: &Head<'_>,
    state: &mut [[f32; LANES]],
    value_at: usize,
    out_stride: usize,
    out: &SharedSlice<'_, f32>,
) {
    let rows = job.input.rows;
    let mut row = job.row(0);
    let mut recalled = recall::<S, V, CHANNELS>(s, state, row);
    for number in 0..rows {
        let value = job.input.value.part(number, value_at, V * LANES).as_chunks::<LANES>().0;
        let mut correction = [s.splat(0.0); V];
        for v in 0..V {
            correction[v] = s.mul(s.sub(s.load(&value[v]), recalled[v]), s.splat(row.beta));
        }
        let read = if number + 1 < rows {
            let next = job.row(number + 1);
            let read = correct::<S, V, CHANNELS, true>(s, state, row, next, &correction, &mut recalled);
            row = next;
            read
        } else {
            correct::<S, V, CHANNELS, false>(s, state, row, row, &correction, &mut recalled)
        };
        let start = number * out_stride + value_at;
        // SAFETY: these columns of the row belong to this head and these vectors alone.
        let out = unsafe { out.part(start..start + V * LANES) };
        for (out, read) in out.as_chunks_mut::<LANES>().0.iter_mut().zip(read) {
            s.store(read, out);
        }
    }
}

#[inline(always)]
fn decay_at<S: Simd, const CHANNELS: bool>(s: S, row: Row<'_>, channel: usize) -> S::Lanes {
    s.splat(row.decay[if CHANNELS { channel } else { 0 }])
}

/// `key (decay * S)`: what the state holds for the key of a row.
#[inline(always)]
fn recall<S: Simd, const V: usize, const CHANNELS: bool>(
    s: S,
    state: &[[f32; LANES]],
    row: Row<'_>,
) -> [S::Lanes; V] {
    let mut recalled = [s.splat(0.0); V];
    let key_dim = row.key.len();
    for channel in 0..key_dim {
        let (key, decay) = (s.splat(row.key[channel]), decay_at::<S, CHANNELS>(s, row, channel));
        for (v, recalled) in recalled.iter_mut().enumerate() {
            *recalled = s.fma(s.mul(s.load(&state[v * key_dim + channel]), decay), key, *recalled);
        }
    }
    recalled
}

/// `S = decay * S + key correction`, and returns `query S`. With `MORE`, `recalled` becomes that of the next row in the
/// same pass over the state.
#[inline(always)]
fn correct<S: Simd, const V: usize, const CHANNELS: bool, const MORE: bool>(
    s: S,
    state: &mut [[f32; LANES]],
    row: Row<'_>,
    next: Row<'_>,
    correction: &[S::Lanes; V],
    recalled: &mut [S::Lanes; V],
) -> [S::Lanes; V] {
    let (mut read, mut memory) = ([s.splat(0.0); V], [s.splat(0.0); V]);
    let key_dim = row.key.len();
    let (query, next_key) = (&row.query[..key_dim], &next.key[..key_dim]);
    for channel in 0..key_dim {
        let decay = decay_at::<S, CHANNELS>(s, row, channel);
        let (key, query) = (s.splat(row.key[channel]), s.splat(query[channel]));
        let (next_key, next_decay) = (s.splat(next_key[channel]), decay_at::<S, CHANNELS>(s, next, channel));
        for v in 0..V {
            let place = &mut state[v * key_dim + channel];
            let corrected = s.fma(key, correction[v], s.mul(s.load(place), decay));
            s.store(corrected, place);
            read[v] = s.fma(corrected, query, read[v]);
            if MORE {
                memory[v] = s.fma(s.mul(corrected, next_decay), next_key, memory[v]);
            }
        }
    }
    if MORE {
        *recalled = memory;
    }
    read
}
