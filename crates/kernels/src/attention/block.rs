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

/// An element of the cache: a number, or a block of them.
pub(super) trait CacheElement: Copy + Sync {
    /// Numbers of one element.
    const NUMBERS: usize;

    /// Numbers `LANES * step ..` of the row that begins at element `row`, all inside the head.
    fn vector<S: Simd>(s: S, elements: &[Self], row: usize, step: usize) -> S::Lanes;

    /// The last `count` numbers of the row, behind `steps` whole vectors; then zeros.
    fn rest<S: Simd>(s: S, _elements: &[Self], _row: usize, _steps: usize, _count: usize) -> S::Lanes {
        // Blocks are whole vectors.
        s.splat(0.0)
    }

    /// The element of a row that begins a cache line of its own, if vector `step` begins with one.
    fn line_at(step: usize) -> Option<usize>;
}

/// A number that is widened to f32.
macro_rules! number {
    ($number:ident, $load:ident) => {
        impl CacheElement for $number {
            const NUMBERS: usize = 1;

            #[inline(always)]
            fn vector<S: Simd>(s: S, elements: &[Self], row: usize, step: usize) -> S::Lanes {
                let at = row + step * LANES;
                s.$load(elements[at..at + LANES].as_array().expect("a whole vector"))
            }

            #[inline(always)]
            fn rest<S: Simd>(s: S, elements: &[Self], row: usize, steps: usize, count: usize) -> S::Lanes {
                let at = row + steps * LANES;
                s.$load(&padded(&elements[at..at + count]))
            }

            #[inline(always)]
            fn line_at(step: usize) -> Option<usize> {
                let at = step * LANES;
                (at * size_of::<Self>()).is_multiple_of(64).then_some(at)
            }
        }
    };
}

number!(f16, load_half);
number!(f32, load);

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

    /// Numbers `LANES * step ..` of a row, all inside the head.
    #[inline(always)]
    fn full<S: Simd>(&self, s: S, key: usize, step: usize) -> S::Lanes {
        E::vector(s, self.elements, key * self.stride, step)
    }

    /// The numbers of a row behind its whole vectors, then zeros.
    #[inline(always)]
    fn rest<S: Simd>(&self, s: S, key: usize) -> S::Lanes {
        E::rest(s, self.elements, key * self.stride, self.full_steps(), self.head_dim % LANES)
    }

    /// Asks for the cache line that vector `step` of the same row of the next block begins, if it begins one. Rows
    /// lie a stride apart, which hardware does not foresee across pages of memory.
    #[inline(always)]
    fn prefetch_next_block<S: Simd>(&self, s: S, key: usize, step: usize) {
        if let Some(at) = E::line_at(step) {
            s.prefetch(self.next.as_ptr().wrapping_add(key * self.stride + at));
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
