//! One block of cached keys and values, widened to f32 and laid out for the tiles.
//!
//! Keys are transposed, so that a lane is a key and the score of a key is a chain of multiply-adds in the order of the head's
//! dimensions; values stay as rows, so that a lane is a dimension.

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
    /// Elements from one position to the next.
    pub(super) stride: usize,
    pub(super) head_dim: usize,
}

impl<'a, E> HeadRows<'a, E> {
    #[inline(always)]
    fn row(&self, position: usize) -> &'a [E] {
        &self.elements[position * self.stride..position * self.stride + self.head_dim]
    }
}

/// Elements `LANES * step ..` of a row, zeros behind the head's last.
#[inline(always)]
fn widen_step<S: Simd, E: CacheElement>(s: S, row: &[E], step: usize) -> S::Lanes {
    let (full, rest) = row.as_chunks::<LANES>();
    if step < full.len() { E::widen(s, &full[step]) } else { E::widen(s, &padded(rest)) }
}

/// Fills `out[dimension]` for all dimensions, rounded up to whole vectors, and the vectors that hold the first `count` keys.
#[inline(always)]
pub(super) fn pack_keys<S: Simd, E: CacheElement>(
    s: S,
    rows: HeadRows<'_, E>,
    count: usize,
    out: &mut [KeyRow],
) {
    for vector in 0..count.div_ceil(LANES) {
        let first = vector * LANES;
        for (step, out) in out.chunks_exact_mut(LANES).enumerate() {
            let mut square = [s.splat(0.0); LANES];
            if first + LANES <= count {
                for (key, lanes) in square.iter_mut().enumerate() {
                    *lanes = widen_step(s, rows.row(first + key), step);
                }
            } else {
                for (key, lanes) in square.iter_mut().enumerate().take(count - first) {
                    *lanes = widen_step(s, rows.row(first + key), step);
                }
            }
            s.transpose(&mut square);
            for (out, lanes) in out.iter_mut().zip(square) {
                s.store(lanes, &mut out[vector]);
            }
        }
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
    let vectors = rows.head_dim.div_ceil(LANES);
    for (key, out) in out.chunks_exact_mut(vectors).enumerate().take(count) {
        let row = rows.row(key);
        for (step, out) in out.iter_mut().enumerate() {
            s.store(widen_step(s, row, step), out);
        }
    }
}
