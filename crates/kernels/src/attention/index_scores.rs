//! Scores by which sparse attention chooses positions: `sum over heads of weight * max(query . key, 0)`, with one key per
//! position that all heads share (DeepSeek-V3.2's lightning indexer).
//!
//! Keys are visited in blocks of a page, laid out as for attention, so that a lane is a key: a dot product is one chain of
//! multiply-adds in the order of dimensions, and the heads are added in their order. A score is a function of its query and its
//! key, bit for bit, whatever is computed beside it. Next: `choose.rs` (the best of them).
#![allow(unsafe_code)]

use std::ops::Range;

use coldpress_workers::Team;
use half::f16;

use super::block::{CacheElement, HeadRows, KeyRow, pack_keys};
use super::tile::dots;
use super::{BLOCK_KEYS, KvElements, KvRows};
use crate::Kernels;
use crate::vector::dispatch::instantiate;
use crate::vector::simd::{LANES, Simd};
use crate::vector::spans::SharedSlice;

/// One call; see [`index_scores`].
#[derive(Debug)]
pub struct IndexScores<'a> {
    /// Elements of a query head and of a key.
    pub head_dim: usize,
    /// `[rows, heads, head_dim]`, after the rotary embedding.
    pub query: &'a [f32],
    /// What each head counts, `[rows, heads]`.
    pub weights: &'a [f32],
    /// Keys of the positions, `[PAGE_POSITIONS, head_dim]` per page.
    pub keys: KvRows<'a>,
    /// Which positions are scored; the first is the first of a page.
    pub positions: Range<usize>,
    /// Pages of scores, `[pages, rows, PAGE_POSITIONS]`; behind the last position anything.
    pub out: &'a mut [f32],
    /// At least [`index_scratch_len`] elements; contents do not matter.
    pub scratch: &'a mut [f32],
}

/// Elements of scratch memory that a call needs.
pub const fn index_scratch_len(head_dim: usize, threads: usize) -> usize {
    threads * work_len(head_dim) + LANES
}

/// Keys of a block, dimensions rounded up to whole vectors.
const fn work_len(head_dim: usize) -> usize {
    head_dim.next_multiple_of(LANES) * BLOCK_KEYS
}

/// Scores of all rows for all positions, whether a row may see them or not.
///
/// With `e = 2^-24`, `d = head_dim`, `h` heads and `D` the largest `sum_i |query_i * key_i|` of a head, a score is within
/// `(d + h + 1) * e * D * sum_h |weight_h|` of the exact one. A dot product that is NaN counts as 0.
///
/// Panics when a length or the page table does not fit.
pub fn index_scores(team: &Team<'_>, kernels: Kernels, call: IndexScores<'_>) {
    let IndexScores { head_dim, query, weights, keys, positions, out, scratch } = call;
    assert!(head_dim > 0 && query.len() == weights.len() * head_dim, "one weight per query head");
    assert!(positions.start.is_multiple_of(BLOCK_KEYS), "scores begin at a page");
    assert!(keys.positions() >= positions.end, "fewer pages than {} positions need", positions.end);
    assert!(keys.fits(head_dim), "a page lies outside the pool or is too small for keys of {head_dim}");
    let blocks = positions.len().div_ceil(BLOCK_KEYS);
    if blocks == 0 || weights.is_empty() {
        return;
    }
    assert!(out.len().is_multiple_of(blocks * BLOCK_KEYS), "scores of whole pages");
    let rows = out.len() / (blocks * BLOCK_KEYS);
    assert!(rows > 0 && weights.len().is_multiple_of(rows), "{} weights for {rows} rows", weights.len());
    assert!(scratch.len() >= index_scratch_len(head_dim, team.threads()), "scratch of {}", scratch.len());
    let unaligned = scratch.as_ptr().align_offset(size_of::<[f32; LANES]>()).min(LANES - 1);
    let scratch = SharedSlice::new(&mut scratch[unaligned..]);
    let (first, work_len) = (positions.start / BLOCK_KEYS, work_len(head_dim));
    let problem = Problem { head_dim, heads: weights.len() / rows, query, weights, keys };
    team.for_each_part_mut(out, rows * BLOCK_KEYS, |block, out, worker| {
        // SAFETY: a worker index is held by one thread at a time.
        let work = unsafe { scratch.part(worker * work_len..(worker + 1) * work_len) };
        let count = (positions.len() - block * BLOCK_KEYS).min(BLOCK_KEYS);
        match keys.pool {
            KvElements::F16(pool) => block_f16(kernels, &problem, pool, first + block, count, work, out),
            KvElements::F32(pool) => block_f32(kernels, &problem, pool, first + block, count, work, out),
            KvElements::Q8(_) | KvElements::Q4(_) => unreachable!("index keys are stored as floats"),
        }
    });
}

/// The inputs of a call.
struct Problem<'a> {
    head_dim: usize,
    heads: usize,
    query: &'a [f32],
    weights: &'a [f32],
    keys: KvRows<'a>,
}

/// Adds what `Q` heads from `head` on find in `K` vectors of keys to `totals`, in the order of the heads.
#[inline(always)]
fn add_heads<S: Simd, const Q: usize, const K: usize>(
    s: S,
    keys: &[KeyRow],
    queries: [&[f32]; Q],
    weights: &[f32],
    first: usize,
    totals: &mut [S::Lanes; K],
) {
    let sums = dots::<S, Q, K>(s, keys, queries, first);
    let zero = s.splat(0.0);
    for q in 0..Q {
        let weight = s.splat(weights[q]);
        for k in 0..K {
            totals[k] = s.fma(weight, s.larger(sums[q][k], zero), totals[k]);
        }
    }
}

/// Scores of one row for `K` vectors of keys.
#[inline(always)]
fn score_row<S: Simd, const Q: usize, const K: usize>(
    s: S,
    problem: &Problem<'_>,
    keys: &[KeyRow],
    row: usize,
    first: usize,
    out: &mut [[f32; LANES]],
) {
    let (heads, head_dim) = (problem.heads, problem.head_dim);
    let query = &problem.query[row * heads * head_dim..(row + 1) * heads * head_dim];
    let weights = &problem.weights[row * heads..(row + 1) * heads];
    let mut totals = [s.splat(0.0); K];
    let mut head = 0;
    while head + Q <= heads {
        let queries = std::array::from_fn(|q| &query[(head + q) * head_dim..(head + q + 1) * head_dim]);
        add_heads::<S, Q, K>(s, keys, queries, &weights[head..], first, &mut totals);
        head += Q;
    }
    while head < heads {
        let queries = [&query[head * head_dim..(head + 1) * head_dim]];
        add_heads::<S, 1, K>(s, keys, queries, &weights[head..], first, &mut totals);
        head += 1;
    }
    for k in 0..K {
        s.store(totals[k], &mut out[first + k]);
    }
}

#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn score_block<S: Simd, E: CacheElement, const Q: usize, const K: usize>(
    s: S,
    problem: &Problem<'_>,
    pool: &[E],
    block: usize,
    count: usize,
    work: &mut [f32],
    out: &mut [f32],
) {
    let KvRows { pages, page_elements, keys_offset, .. } = problem.keys;
    let page = pages[block] as usize * page_elements;
    let next = pages[(block + 1).min(pages.len() - 1)] as usize * page_elements;
    let rows = HeadRows {
        elements: &pool[page + keys_offset..],
        next: &pool[next + keys_offset..],
        stride: problem.head_dim,
        head_dim: problem.head_dim,
    };
    let keys: &mut [KeyRow] = work.as_chunks_mut().0.as_chunks_mut().0;
    pack_keys(s, rows, count, keys);
    let keys = &keys[..problem.head_dim];
    let vectors = count.div_ceil(LANES);
    for (row, out) in out.chunks_exact_mut(BLOCK_KEYS).enumerate() {
        let out = out.as_chunks_mut().0;
        let mut vector = 0;
        while vector + K <= vectors {
            score_row::<S, Q, K>(s, problem, keys, row, vector, out);
            vector += K;
        }
        while vector < vectors {
            score_row::<S, Q, 1>(s, problem, keys, row, vector, out);
            vector += 1;
        }
    }
}

/// One compiled copy of [`score_block`] per kind of element.
macro_rules! block_of {
    ($name:ident, $body:ident, $element:ty) => {
        #[inline(always)]
        #[allow(clippy::too_many_arguments)]
        fn $body<S: Simd, const Q: usize, const K: usize>(
            s: S,
            problem: &Problem<'_>,
            pool: &[$element],
            block: usize,
            count: usize,
            work: &mut [f32],
            out: &mut [f32],
        ) {
            score_block::<S, $element, Q, K>(s, problem, pool, block, count, work, out);
        }

        instantiate! {
            fn $name(
                problem: &Problem<'_>,
                pool: &[$element],
                block: usize,
                count: usize,
                work: &mut [f32],
                out: &mut [f32],
            ) => $body { avx512: [4, 4], others: [4, 1] }
        }
    };
}

block_of!(block_f16, score_f16, f16);
block_of!(block_f32, score_f32, f32);
