//! Attention of some query vectors over one span of keys: the definition of the result.
//!
//! Per block and query vector: scores; their maximum; weights `exp(score - maximum)`, zero for keys that are
//! not visible; the sum of the weights in sixteen lanes; then the outputs so far times `exp(old maximum - new
//! maximum)`, plus weight times value of the visible keys in position order.

use std::ops::Range;

use half::f16;

use super::block::{CacheElement, HeadRows, KeyRow, pack_keys, pack_values};
use super::state::{State, exp_of};
use super::tile::{Scores, score_tile, value_tile};
use super::{AttentionShape, BLOCK_KEYS, BlockQ4, BlockQ8, KvElements, KvRows, SPAN_KEYS};
use crate::Kernels;
use crate::vector::dispatch::instantiate;
use crate::vector::exponential;
use crate::vector::simd::{LANES, Simd};

/// The inputs of a call.
#[derive(Clone, Copy)]
pub(super) struct Problem<'a> {
    pub(super) shape: AttentionShape,
    pub(super) query: &'a [f32],
    pub(super) first_position: usize,
    pub(super) cache: KvRows<'a>,
    pub(super) scale: f32,
    pub(super) window: Option<usize>,
    pub(super) chunk: Option<usize>,
    pub(super) sinks: Option<&'a [f32]>,
}

impl Problem<'_> {
    /// Vectors that hold one head.
    pub(super) const fn row_vectors(&self) -> usize {
        self.shape.head_dim.div_ceil(LANES)
    }

    /// Positions that a query row sees.
    pub(super) fn visible(&self, row: usize) -> Range<usize> {
        let end = self.first_position + row + 1;
        let window_start = self.window.map_or(0, |window| end.saturating_sub(window));
        let chunk_start = self.chunk.map_or(0, |chunk| (end - 1) / chunk * chunk);
        window_start.max(chunk_start)..end
    }

    /// Positions of a span that a query row sees.
    pub(super) fn visible_in_span(&self, row: usize, span: usize) -> Range<usize> {
        intersection(&self.visible(row), &(span * SPAN_KEYS..(span + 1) * SPAN_KEYS))
    }

    /// Spans with a position that any of the rows sees. Both ends of `visible` only grow with the row.
    pub(super) fn spans(&self, rows: &Range<usize>) -> Range<usize> {
        let end = self.visible(rows.end - 1).end;
        self.visible(rows.start).start / SPAN_KEYS..end.div_ceil(SPAN_KEYS)
    }
}

fn intersection(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    a.start.max(b.start)..a.end.min(b.end)
}

/// The query vectors of some rows and some of the heads that share a KV head, row by row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unit {
    pub(super) kv_head: usize,
    /// The heads, counted from the first that has this KV head.
    pub(super) first_head: usize,
    pub(super) heads: usize,
    pub(super) first_row: usize,
    pub(super) end_row: usize,
}

impl Unit {
    pub(super) fn rows(&self) -> Range<usize> {
        self.first_row..self.end_row
    }

    #[inline(always)]
    pub(super) fn vectors(&self) -> usize {
        (self.end_row - self.first_row) * self.heads
    }

    /// Row of a query vector.
    #[inline(always)]
    pub(super) fn row(&self, vector: usize) -> usize {
        self.first_row + vector / self.heads
    }

    /// Number of its first head among all query heads.
    #[inline(always)]
    pub(super) fn query_head(&self, problem: &Problem<'_>) -> usize {
        self.kv_head * problem.shape.group() + self.first_head
    }

    #[inline(always)]
    fn query<'a>(&self, problem: &Problem<'a>, vector: usize) -> &'a [f32] {
        let head = self.row(vector) * problem.shape.heads + self.query_head(problem) + vector % self.heads;
        &problem.query[head * problem.shape.head_dim..(head + 1) * problem.shape.head_dim]
    }
}

/// Elements of the memory that [`attend_span`] works in, for up to `vectors` query vectors.
pub(super) const fn work_len(vectors: usize, row_vectors: usize) -> usize {
    (2 * row_vectors * LANES + vectors) * BLOCK_KEYS + vectors.next_multiple_of(LANES)
}

/// The parts of that memory.
struct Work<'a> {
    keys: &'a mut [KeyRow],
    /// `[BLOCK_KEYS, row_vectors]`
    values: &'a mut [[f32; LANES]],
    scores: &'a mut [Scores],
    /// What outputs so far are multiplied by.
    factors: &'a mut [f32],
}

impl<'a> Work<'a> {
    #[inline(always)]
    fn new(memory: &'a mut [f32], vectors: usize, row_vectors: usize) -> Work<'a> {
        let block = row_vectors * LANES * BLOCK_KEYS;
        let (keys, rest) = memory.split_at_mut(block);
        let (values, rest) = rest.split_at_mut(block);
        let (scores, factors) = rest.split_at_mut(vectors * BLOCK_KEYS);
        Work {
            keys: keys.as_chunks_mut().0.as_chunks_mut().0,
            values: values.as_chunks_mut().0,
            scores: scores.as_chunks_mut().0.as_chunks_mut().0,
            factors: &mut factors[..vectors],
        }
    }
}

/// Turns scores into weights; returns the new maximum and the sum of the weights. `begin..end` are the
/// visible keys.
#[inline(always)]
fn weigh<S: Simd>(
    s: S,
    scores: &mut Scores,
    begin: usize,
    end: usize,
    scale: f32,
    maximum: f32,
) -> (f32, f32) {
    let vectors = end.div_ceil(LANES);
    let scale = s.splat(scale);
    let hidden = s.splat(f32::NEG_INFINITY);
    let mut largest = s.splat(maximum);
    for (vector, scores) in scores.iter_mut().enumerate().take(vectors) {
        let mut lanes = s.mul(s.load(scores), scale);
        if vector * LANES < begin || (vector + 1) * LANES > end {
            let key = s.add(s.load(&LANE_NUMBERS), s.splat((vector * LANES) as f32));
            lanes = s.select_negative(s.sub(key, s.splat(begin as f32)), hidden, lanes);
            lanes = s.select_negative(s.sub(s.splat((end - 1) as f32), key), hidden, lanes);
        }
        largest = s.larger(lanes, largest);
        s.store(lanes, scores);
    }
    let maximum = s.reduce_larger(largest);
    let subtract = s.splat(maximum);
    let mut sum = s.splat(0.0);
    for scores in scores.iter_mut().take(vectors) {
        let weights = exponential::exp(s, s.sub(s.load(scores), subtract));
        sum = s.add(sum, weights);
        s.store(weights, scores);
    }
    (maximum, s.reduce_add(sum))
}

const LANE_NUMBERS: [f32; LANES] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0];

/// What a step over one block needs to know.
#[derive(Clone, Copy)]
struct Step<'a> {
    problem: &'a Problem<'a>,
    unit: &'a Unit,
    /// First position of the block.
    position: usize,
    /// Keys of the block that anybody sees, counted from its first.
    count: usize,
    /// The query vectors that see any of them.
    first_vector: usize,
    end_vector: usize,
}

impl Step<'_> {
    /// Keys of the block that a query vector sees, counted from the block's first.
    #[inline(always)]
    fn visible(&self, vector: usize) -> (usize, usize) {
        let visible = self.problem.visible(self.unit.row(vector));
        (visible.start.saturating_sub(self.position), (visible.end - self.position).min(BLOCK_KEYS))
    }
}

/// Vectors side by side in a tile of one query.
const SINGLE: usize = 4;

/// Scores of the query vectors `first..end`, a multiple of `Q` of them, for all keys of the block.
#[inline(always)]
fn score_vectors<S: Simd, const Q: usize, const K: usize>(
    s: S,
    step: Step<'_>,
    (first, end): (usize, usize),
    keys: &[KeyRow],
    scores: &mut [Scores],
) {
    let key_vectors = step.count.div_ceil(LANES);
    let mut key_vector = 0;
    while key_vector < key_vectors {
        let tiled = key_vector + K <= key_vectors;
        for vector in (first..end).step_by(Q) {
            let queries = std::array::from_fn(|q| step.unit.query(step.problem, vector + q));
            let scores = &mut scores[vector..vector + Q];
            if tiled {
                score_tile::<S, Q, K>(s, keys, queries, key_vector, scores);
            } else {
                score_tile::<S, Q, 1>(s, keys, queries, key_vector, scores);
            }
        }
        key_vector += if tiled { K } else { 1 };
    }
}

/// Outputs of `Q` query vectors: keys that all of them see in one tile, the others one query at a time before
/// and after.
#[inline(always)]
fn add_values<S: Simd, const Q: usize, const V: usize>(
    s: S,
    step: Step<'_>,
    vector: usize,
    work: &mut Work<'_>,
    outputs: &mut [[f32; LANES]],
) {
    let row_vectors = step.problem.row_vectors();
    let (values, weights) = (&*work.values, &work.scores[vector..]);
    let factors = &mut work.factors[vector..];
    let outputs = &mut outputs[vector * row_vectors..];
    let mut visible = [(0, 0); Q];
    let (mut begin, mut end) = (0, BLOCK_KEYS);
    for (q, visible) in visible.iter_mut().enumerate() {
        *visible = step.visible(vector + q);
        begin = begin.max(visible.0);
        end = end.min(visible.1);
    }
    let shared = if begin < end { (begin, end) } else { (BLOCK_KEYS, BLOCK_KEYS) };
    for q in 0..Q {
        let alone = (visible[q].0, visible[q].1.min(shared.0));
        if alone.0 < alone.1 {
            let output = &mut outputs[q * row_vectors..];
            value_row::<S, 1, SINGLE>(s, values, row_vectors, alone, &weights[q..], &factors[q..], output);
            factors[q] = 1.0;
        }
    }
    if shared.0 < shared.1 {
        value_row::<S, Q, V>(s, values, row_vectors, shared, weights, factors, outputs);
    }
    for q in 0..Q {
        let alone = (shared.1, visible[q].1);
        if alone.0 < alone.1 {
            let output = &mut outputs[q * row_vectors..];
            value_row::<S, 1, SINGLE>(s, values, row_vectors, alone, &weights[q..], &[1.0], output);
        }
    }
}

/// All vectors of the outputs.
#[inline(always)]
fn value_row<S: Simd, const Q: usize, const V: usize>(
    s: S,
    values: &[[f32; LANES]],
    row_vectors: usize,
    keys: (usize, usize),
    weights: &[Scores],
    factors: &[f32],
    outputs: &mut [[f32; LANES]],
) {
    let mut first = 0;
    while first + V <= row_vectors {
        value_tile::<S, Q, V>(s, values, row_vectors, first, keys, weights, factors, outputs);
        first += V;
    }
    while first < row_vectors {
        value_tile::<S, Q, 1>(s, values, row_vectors, first, keys, weights, factors, outputs);
        first += 1;
    }
}

#[inline(always)]
fn attend_block<S: Simd, const Q: usize, const K: usize, const V: usize>(
    s: S,
    step: Step<'_>,
    work: &mut Work<'_>,
    state: &mut State<'_>,
) {
    let problem = step.problem;
    let (first, end) = (step.first_vector, step.end_vector);
    let tiled_end = end - (end - first) % Q;
    let keys = &work.keys[..problem.shape.head_dim];
    score_vectors::<S, Q, K>(s, step, (first, tiled_end), keys, work.scores);
    score_vectors::<S, 1, SINGLE>(s, step, (tiled_end, end), keys, work.scores);
    for vector in first..end {
        let (begin, end) = step.visible(vector);
        let before = state.maxima[vector];
        let (maximum, sum) = weigh(s, &mut work.scores[vector], begin, end, problem.scale, before);
        // exp(0) is exactly 1, so this saves time only.
        let factor = if maximum == before { 1.0 } else { exp_of(s, before - maximum) };
        state.maxima[vector] = maximum;
        state.sums[vector] = state.sums[vector].mul_add(factor, sum);
        work.factors[vector] = factor;
    }
    for vector in (first..tiled_end).step_by(Q) {
        add_values::<S, Q, V>(s, step, vector, work, state.outputs);
    }
    for vector in tiled_end..end {
        add_values::<S, 1, SINGLE>(s, step, vector, work, state.outputs);
    }
}

/// Keys and values of one head in one block.
#[inline(always)]
fn head_rows<'a, E: CacheElement>(
    problem: &Problem<'_>,
    pool: &'a [E],
    kv_head: usize,
    block: usize,
) -> (HeadRows<'a, E>, HeadRows<'a, E>) {
    let KvRows { pages, page_elements, keys_offset, values_offset, .. } = problem.cache;
    let AttentionShape { head_dim, .. } = problem.shape;
    let head = kv_head * (head_dim / E::NUMBERS);
    let page = pages[block] as usize * page_elements;
    let next = pages[(block + 1).min(pages.len() - 1)] as usize * page_elements;
    let rows = |offset: usize| HeadRows {
        elements: &pool[page + offset + head..],
        next: &pool[next + offset + head..],
        stride: problem.shape.kv_row_len() / E::NUMBERS,
        head_dim,
    };
    (rows(keys_offset), rows(values_offset))
}

#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn attend<S: Simd, E: CacheElement, const Q: usize, const K: usize, const V: usize>(
    s: S,
    problem: &Problem<'_>,
    pool: &[E],
    unit: &Unit,
    span: usize,
    work: &mut [f32],
    state: &mut [f32],
) {
    let row_vectors = problem.row_vectors();
    let vectors = unit.vectors();
    let mut work = Work::new(work, vectors, row_vectors);
    let mut state = State::new(state, vectors, row_vectors);
    state.clear();
    let begin = problem.visible(unit.first_row).start.max(span * SPAN_KEYS);
    let end = problem.visible(unit.end_row - 1).end.min((span + 1) * SPAN_KEYS);
    let mut position = begin / BLOCK_KEYS * BLOCK_KEYS;
    while position < end {
        let count = (end - position).min(BLOCK_KEYS);
        let first_row = unit.first_row.max(position.saturating_sub(problem.first_position));
        let mut end_row = unit.end_row;
        while end_row > first_row && problem.visible(end_row - 1).start >= position + count {
            end_row -= 1;
        }
        let (keys, values) = head_rows(problem, pool, unit.kv_head, position / BLOCK_KEYS);
        pack_keys(s, keys, count, work.keys);
        pack_values(s, values, count, work.values);
        let first_vector = (first_row - unit.first_row) * unit.heads;
        let end_vector = (end_row - unit.first_row) * unit.heads;
        let step = Step { problem, unit, position, count, first_vector, end_vector };
        attend_block::<S, Q, K, V>(s, step, &mut work, &mut state);
        position += BLOCK_KEYS;
    }
}

/// One compiled copy of [`attend`] per kind of element.
macro_rules! span_of {
    ($name:ident, $body:ident, $element:ty) => {
        #[inline(always)]
        fn $body<S: Simd, const Q: usize, const K: usize, const V: usize>(
            s: S,
            problem: &Problem<'_>,
            pool: &[$element],
            unit: &Unit,
            span: usize,
            work: &mut [f32],
            state: &mut [f32],
        ) {
            attend::<S, $element, Q, K, V>(s, problem, pool, unit, span, work, state);
        }

        instantiate! {
            fn $name(
                problem: &Problem<'_>,
                pool: &[$element],
                unit: &Unit,
                span: usize,
                work: &mut [f32],
                state: &mut [f32],
            ) => $body { avx512: [4, 4, 4], others: [4, 1, 1] }
        }
    };
}

span_of!(span_f16, attend_f16, f16);
span_of!(span_f32, attend_f32, f32);
span_of!(span_q8, attend_q8, BlockQ8);
span_of!(span_q4, attend_q4, BlockQ4);

/// Fills `state` with what the vectors of `unit` see of one span.
pub(super) fn attend_span(
    kernels: Kernels,
    problem: &Problem<'_>,
    unit: &Unit,
    span: usize,
    work: &mut [f32],
    state: &mut [f32],
) {
    match problem.cache.pool {
        KvElements::F16(pool) => span_f16(kernels, problem, pool, unit, span, work, state),
        KvElements::F32(pool) => span_f32(kernels, problem, pool, unit, span, work, state),
        KvElements::Q8(pool) => span_q8(kernels, problem, pool, unit, span, work, state),
        KvElements::Q4(pool) => span_q4(kernels, problem, pool, unit, span, work, state),
    }
}
