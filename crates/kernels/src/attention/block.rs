//! One block of cached keys and values, widened to f32 and laid out for the tiles.
//!
//! Keys are transposed, so that a lane is a key and the score of a key is a chain of multiply-adds in the
//! order of the head's dimensions; values stay as rows, so that a lane is a dimension.

use half::f16;

use super::BLOCK_KEYS;
use crate::vector::simd::{LANES, Simd, padded};

/// Vectors of [`LANES`] keys in a block.
pub(super) const KEY_VECTORS: usize = BLOCK_KEYS / LANES;

/// One dimension of all keys of a block.
pub(super) type KeyRow = [[f32; LANES]; KEY_VECTORS];

/// An element of the cache.
pub(super) trait CacheElement: Copy + Default + Sync {
    fn widen<S: Simd>(s: S, from: &[Self; LANES]) -> S::Lanes;
}

impl CacheElement for f16 {
    #[inline(always)]
    fn widen<S: Simd>(s: S, from: &[f16; LANES]) -> S::Lanes {
        s.load_half(from)
    }
}

impl CacheElement for f32 {
    #[inline(always)]
    fn widen<S: Simd>(s: S, from: &[f32; LANES]) -> S::Lanes {
        s.load(from)
    }
}

/// Rows of one KV head in the cache.
#[derive(Clone, Copy)]
pub(super) struct HeadRows<'a, E> {
    /// From the head's first element of the block's first position on.
    pub(super) elements: &'a [E],
    /// The same of the block that is visited next.
    pub(super) next: &'a [E],
    /// Elements from one position to the next.
    pub(super) stride: usize,
    pub(super) head_dim: usize,
}

impl<'a, E: CacheElement> HeadRows<'a, E> {
    /// Whole vectors of a row.
    #[inline(always)]
    fn full_steps(&self) -> usize {
        self.head_dim / LANES
    }

    /// Elements `LANES * step ..` of a row, all inside the head.
    #[inline(always)]
    fn full<S: Simd>(&self, s: S, key: usize, step: usize) -> S::Lanes {
        let at = key * self.stride + step * LANES;
        E::widen(s, self.elements[at..at + LANES].as_array().expect("a whole vector"))
    }

    /// The elements of a row behind its whole vectors, then zeros.
    #[inline(always)]
    fn rest<S: Simd>(&self, s: S, key: usize) -> S::Lanes {
        let row = key * self.stride;
        E::widen(s, &padded(&self.elements[row + self.full_steps() * LANES..row + self.head_dim]))
    }

    /// Asks for elements `LANES * step ..` of the same row of the next block, if they begin a cache line. Rows
    /// lie a stride apart, which hardware does not foresee across pages of memory.
    #[inline(always)]
    fn prefetch_next_block<S: Simd>(&self, s: S, key: usize, step: usize) {
        if (step * LANES * size_of::<E>()).is_multiple_of(64) {
            let offset = key * self.stride + step * LANES;
            s.prefetch(self.next.as_ptr().wrapping_add(offset));
        }
    }
}

/// Writes a square of `LANES` keys and `LANES` dimensions.
#[inline(always)]
fn store_transposed<S: Simd>(s: S, mut square: [S::Lanes; LANES], vector: usize, out: &mut [KeyRow]) {
    s.transpose(&mut square);
    for (out, lanes) in out.iter_mut().zip(square) {
        s.store(lanes, &mut out[vector]);
    }
}

/// Fills `out[dimension]` for all dimensions, rounded up to whole vectors, and the vectors that hold the
/// first `count` keys.
#[inline(always)]
pub(super) fn pack_keys<S: Simd, E: CacheElement>(
    s: S,
    rows: HeadRows<'_, E>,
    count: usize,
    out: &mut [KeyRow],
) {
    let (full, rest) = out.split_at_mut(rows.full_steps() * LANES);
    for vector in 0..count / LANES {
        let first = vector * LANES;
        for (step, out) in full.chunks_exact_mut(LANES).enumerate() {
            let mut square = [s.splat(0.0); LANES];
            let mut key = 0;
            while key < LANES {
                rows.prefetch_next_block(s, first + key, step);
                square[key] = rows.full(s, first + key, step);
                key += 1;
            }
            store_transposed(s, square, vector, out);
        }
        if !rest.is_empty() {
            let mut square = [s.splat(0.0); LANES];
            for (key, lanes) in square.iter_mut().enumerate() {
                *lanes = rows.rest(s, first + key);
            }
            store_transposed(s, square, vector, rest);
        }
    }
    if !count.is_multiple_of(LANES) {
        pack_last_keys(s, rows, count, full, rest);
    }
}

/// The vector that is not full.
#[inline(always)]
fn pack_last_keys<S: Simd, E: CacheElement>(
    s: S,
    rows: HeadRows<'_, E>,
    count: usize,
    full: &mut [KeyRow],
    rest: &mut [KeyRow],
) {
    let vector = count / LANES;
    let keys = vector * LANES..count;
    for (step, out) in full.chunks_exact_mut(LANES).enumerate() {
        let mut square = [s.splat(0.0); LANES];
        for (lanes, key) in square.iter_mut().zip(keys.clone()) {
            *lanes = rows.full(s, key, step);
        }
        store_transposed(s, square, vector, out);
    }
    if !rest.is_empty() {
        let mut square = [s.splat(0.0); LANES];
        for (lanes, key) in square.iter_mut().zip(keys) {
            *lanes = rows.rest(s, key);
        }
        store_transposed(s, square, vector, rest);
    }
}

/// Fills `out`, `[keys, vectors of a head]`, for the first `count` keys.
#[inline(always)]
pub(super) fn pack_values<S: Simd, E: CacheElement>(
    s: S,
    rows: HeadRows<'_, E>,
    count: usize,
    out: &mut [[f32; LANES]],
) {
    let full_steps = rows.full_steps();
    for (key, out) in out.chunks_exact_mut(rows.head_dim.div_ceil(LANES)).enumerate().take(count) {
        let (full, rest) = out.split_at_mut(full_steps);
        for (step, out) in full.iter_mut().enumerate() {
            rows.prefetch_next_block(s, key, step);
            s.store(rows.full(s, key, step), out);
        }
        if let [rest] = rest {
            s.store(rows.rest(s, key), rest);
        }
    }
}
