//! Linear attention with a decay per head: a matrix per head that forgets, takes in `key value`, and is read by the query.
//!
//! For each position, with the state `S` of a head, `[key_dim, value_dim]`:
//! `S = decay * S + key (factor * value)`, `output = query S + skip * value`.
//! With a decay that never changes this is lightning attention (Qin et al. 2024, arXiv:2401.04658); with decays and factors that
//! each position brings, keys and queries shared by several heads and a skip it is the state space model of Mamba-2 (Dao and Gu
//! 2024, arXiv:2405.21060), whose `B` is the key and `C` the query. The recurrence is followed step by step, never in
//! blocks, so a prompt has the bits of single tokens. Next: `selective.rs` (what is particular to Mamba-2).

#![allow(unsafe_code)]

use coldpress_workers::Team;

use super::Columns;
use crate::Kernels;
use crate::vector::dispatch::instantiate;
use crate::vector::simd::{LANES, Simd};
use crate::vector::spans::SharedSlice;

/// Sizes of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecayedShape {
    /// Heads of values, outputs and states.
    pub heads: usize,
    /// Heads of queries and keys; divides `heads`, and adjoining value heads share one.
    pub key_heads: usize,
    /// Elements of a query and of a key.
    pub key_dim: usize,
    /// Elements of a value, a multiple of 16.
    pub value_dim: usize,
}

/// f32 values of the state of one sequence.
pub const fn decayed_state_len(shape: DecayedShape) -> usize {
    shape.heads * shape.key_dim * shape.value_dim
}

/// Heads in rows: element `i` of head `h` is in column `h * head_stride + i` of the columns.
#[derive(Clone, Copy, Debug)]
pub struct HeadColumns<'a> {
    /// From the first element of the first head on.
    pub columns: Columns<'a>,
    /// Columns from one head to the next, at least the size of a head.
    pub head_stride: usize,
}

impl<'a> HeadColumns<'a> {
    #[inline(always)]
    fn head(&self, row: usize, head: usize, head_dim: usize) -> &'a [f32] {
        self.columns.part(row, head * self.head_stride, head_dim)
    }

    fn assert_shape(&self, rows: usize, heads: usize, head_dim: usize, name: &str) {
        assert!(head_dim <= self.head_stride, "{name}: heads of {head_dim}, {} apart", self.head_stride);
        self.columns.assert_shape(rows, (heads - 1) * self.head_stride + head_dim, name);
    }
}

/// How the state forgets and how strongly it takes in.
#[derive(Clone, Copy, Debug)]
pub enum DecayedSteps<'a> {
    /// One decay per head, `[heads]`; values are taken in as they are.
    Constant(&'a [f32]),
    /// Both `[rows, heads]`.
    PerRow {
        /// The state is multiplied by this.
        decay: Columns<'a>,
        /// The value is multiplied by this before it is taken in.
        factor: Columns<'a>,
    },
}

/// The inputs of adjoining positions of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct DecayedRows<'a> {
    /// Positions.
    pub rows: usize,
    /// `[rows, key_heads, key_dim]`
    pub query: HeadColumns<'a>,
    /// `[rows, key_heads, key_dim]`
    pub key: HeadColumns<'a>,
    /// `[rows, heads, value_dim]`
    pub value: HeadColumns<'a>,
    /// Decays and factors.
    pub steps: DecayedSteps<'a>,
    /// What the value adds to the output past the state, `[heads]`.
    pub skip: Option<&'a [f32]>,
}

/// Follows the recurrence through `input.rows` positions: outputs into `out`, `[rows, heads * value_dim]`.
///
/// `state` is `[heads, value_dim / 16, key_dim, 16]` (sixteen columns of a head lie together), zeros at the beginning of a
/// sequence. Sums over the elements of keys run in order, one fused multiply-add each. Panics when lengths do not match.
pub fn decayed_attention(
    team: &Team<'_>,
    kernels: Kernels,
    shape: DecayedShape,
    input: DecayedRows<'_>,
    state: &mut [f32],
    out: &mut [f32],
) {
    let DecayedShape { heads, key_heads, key_dim, value_dim } = shape;
    let rows = input.rows;
    assert!(
        key_heads > 0
            && heads > 0
            && heads.is_multiple_of(key_heads)
            && key_dim > 0
            && value_dim > 0
            && value_dim.is_multiple_of(LANES),
        "{shape:?}: heads are a multiple of key heads, value_dim of {LANES}"
    );
    assert_eq!(state.len(), decayed_state_len(shape), "state of another layer");
    assert_eq!(out.len(), rows * heads * value_dim, "outputs of another shape");
    input.query.assert_shape(rows, key_heads, key_dim, "queries");
    input.key.assert_shape(rows, key_heads, key_dim, "keys");
    input.value.assert_shape(rows, heads, value_dim, "values");
    match input.steps {
        DecayedSteps::Constant(decay) => assert_eq!(decay.len(), heads, "decays of other heads"),
        DecayedSteps::PerRow { decay, factor } => {
            decay.assert_shape(rows, heads, "decays");
            factor.assert_shape(rows, heads, "factors");
        }
    }
    assert!(input.skip.is_none_or(|skip| skip.len() == heads), "skips of other heads");
    if rows == 0 {
        return;
    }
    let out = SharedSlice::new(out);
    team.for_each_part_mut(state, key_dim * value_dim, |head, state, _| {
        one_head(kernels, shape, &input, head, state.as_chunks_mut::<LANES>().0, &out);
    });
}

instantiate! {
    fn one_head(
        shape: DecayedShape,
        input: &DecayedRows<'_>,
        head: usize,
        state: &mut [[f32; LANES]],
        out: &SharedSlice<'_, f32>,
    ) => one_head_body { avx512: [4], others: [2] }
}

/// All columns of one head, `V` vectors of them at a time: all rows pass some columns before the next ones, so that what is
/// worked on stays in the nearest cache.
#[inline(always)]
fn one_head_body<S: Simd, const V: usize>(
    s: S,
    shape: DecayedShape,
    input: &DecayedRows<'_>,
    head: usize,
    state: &mut [[f32; LANES]],
    out: &SharedSlice<'_, f32>,
) {
    let DecayedShape { key_dim, value_dim, .. } = shape;
    let vectors = value_dim / LANES;
    let mut vector = 0;
    while vector < vectors {
        let width = if vector + V <= vectors { V } else { 1 };
        let state = &mut state[vector * key_dim..(vector + width) * key_dim];
        if width == V {
            columns::<S, V>(s, shape, input, head, vector, state, out);
        } else {
            columns::<S, 1>(s, shape, input, head, vector, state, out);
        }
        vector += width;
    }
}

/// All rows through `V` vectors of columns, from vector `first` on; `state` is `[V, key_dim]` vectors.
#[inline(always)]
fn columns<S: Simd, const V: usize>(
    s: S,
    shape: DecayedShape,
    input: &DecayedRows<'_>,
    head: usize,
    first: usize,
    state: &mut [[f32; LANES]],
    out: &SharedSlice<'_, f32>,
) {
    let DecayedShape { heads, key_heads, key_dim, value_dim } = shape;
    let key_head = head / (heads / key_heads);
    for row in 0..input.rows {
        let (query, key) = (input.query.head(row, key_head, key_dim), input.key.head(row, key_head, key_dim));
        let values = input.value.head(row, head, value_dim).as_chunks::<LANES>().0;
        let (decay, factor) = match input.steps {
            DecayedSteps::Constant(decay) => (decay[head], 1.0),
            DecayedSteps::PerRow { decay, factor } => {
                (decay.part(row, head, 1)[0], factor.part(row, head, 1)[0])
            }
        };
        let mut taken = [s.splat(0.0); V];
        for (v, taken) in taken.iter_mut().enumerate() {
            *taken = s.mul(s.load(&values[first + v]), s.splat(factor));
        }
        let read = step::<S, V>(s, key, query, decay, &taken, state);
        let start = (row * heads + head) * value_dim + first * LANES;
        // SAFETY: these columns of the row belong to this head and these vectors alone.
        let out = unsafe { out.part(start..start + V * LANES) };
        for (v, (out, read)) in out.as_chunks_mut::<LANES>().0.iter_mut().zip(read).enumerate() {
            let read = match input.skip {
                Some(skip) => s.fma(s.splat(skip[head]), s.load(&values[first + v]), read),
                None => read,
            };
            s.store(read, out);
        }
    }
}

/// `S = decay * S + key taken`, and returns `query S`.
#[inline(always)]
fn step<S: Simd, const V: usize>(
    s: S,
    key: &[f32],
    query: &[f32],
    decay: f32,
    taken: &[S::Lanes; V],
    state: &mut [[f32; LANES]],
) -> [S::Lanes; V] {
    let key_dim = key.len();
    let (query, state) = (&query[..key_dim], &mut state[..V * key_dim]);
    let (decay, mut read) = (s.splat(decay), [s.splat(0.0); V]);
    for channel in 0..key_dim {
        let (key, query) = (s.splat(key[channel]), s.splat(query[channel]));
        for v in 0..V {
            let place = &mut state[v * key_dim + channel];
            let new = s.fma(key, taken[v], s.mul(s.load(place), decay));
            s.store(new, place);
            read[v] = s.fma(new, query, read[v]);
        }
    }
    read
}
