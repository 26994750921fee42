//! The two inner products of attention over one block, for a few query vectors at a time.
//!
//! A score and an output element are each one chain of multiply-adds in a fixed order; the tile shape only
//! decides how many chains run side by side.

use super::BLOCK_KEYS;
use super::block::{KEY_VECTORS, KeyRow};
use crate::vector::simd::{LANES, Simd};

/// Scores of one query vector, later its weights.
pub(super) type Scores = [[f32; LANES]; KEY_VECTORS];

/// Dot products of `Q` query vectors with `K` vectors of keys from `first` on, each in the order of the dimensions.
#[inline(always)]
pub(super) fn dots<S: Simd, const Q: usize, const K: usize>(
    s: S,
    keys: &[KeyRow],
    queries: [&[f32]; Q],
    first: usize,
) -> [[S::Lanes; K]; Q] {
    let mut sums = [[s.splat(0.0); K]; Q];
    let queries = queries.map(|query| &query[..keys.len()]);
    for (dimension, row) in keys.iter().enumerate() {
        let mut lanes = [s.splat(0.0); K];
        for k in 0..K {
            lanes[k] = s.load(&row[first + k]);
        }
        for q in 0..Q {
            let factor = s.splat(queries[q][dimension]);
            for k in 0..K {
                sums[q][k] = s.fma(factor, lanes[k], sums[q][k]);
            }
        }
    }
    sums
}

/// `scores[q][vector] = sum over dimensions of queries[q] * keys`, for `K` vectors from `first` on.
#[inline(always)]
pub(super) fn score_tile<S: Simd, const Q: usize, const K: usize>(
    s: S,
    keys: &[KeyRow],
    queries: [&[f32]; Q],
    first: usize,
    scores: &mut [Scores],
) {
    let sums = dots::<S, Q, K>(s, keys, queries, first);
    for q in 0..Q {
        for k in 0..K {
            s.store(sums[q][k], &mut scores[q][first + k]);
        }
    }
}

/// `outputs[q] = factors[q] * outputs[q] + sum over keys first..end of weights[q] * values`, for `V` vectors
/// of `row_vectors`, from `vector` on.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
pub(super) fn value_tile<S: Simd, const Q: usize, const V: usize>(
    s: S,
    values: &[[f32; LANES]],
    row_vectors: usize,
    vector: usize,
    keys: (usize, usize),
    weights: &[Scores],
    factors: &[f32],
    outputs: &mut [[f32; LANES]],
) {
    let (begin, end) = keys;
    let mut sums = [[s.splat(0.0); V]; Q];
    for q in 0..Q {
        let factor = s.splat(factors[q]);
        for v in 0..V {
            sums[q][v] = s.mul(s.load(&outputs[q * row_vectors + vector + v]), factor);
        }
    }
    let weights: [&[f32; BLOCK_KEYS]; Q] =
        std::array::from_fn(|q| weights[q].as_flattened().try_into().expect("a block of weights"));
    let rows = values[begin * row_vectors..end * row_vectors].chunks_exact(row_vectors);
    for (key, row) in rows.enumerate() {
        let row = &row[vector..vector + V];
        let mut lanes = [s.splat(0.0); V];
        for v in 0..V {
            lanes[v] = s.load(&row[v]);
        }
        for q in 0..Q {
            let weight = s.splat(weights[q][(begin + key) % BLOCK_KEYS]);
            for v in 0..V {
                sums[q][v] = s.fma(weight, lanes[v], sums[q][v]);
            }
        }
    }
    for q in 0..Q {
        for v in 0..V {
            s.store(sums[q][v], &mut outputs[q * row_vectors + vector + v]);
        }
    }
}
