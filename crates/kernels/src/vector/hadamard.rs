//! Rotations of rows: signs, then a Walsh-Hadamard transform, so that no element of a row stands out.
//!
//! Two kinds of rows are rotated: heads before they are cached with few bits, with signs from here, and inputs of matrices whose checkpoint
//! holds them rotated ([`Rotation`]), with signs of the checkpoint.
//!
//! A head's elements are cut into blocks of the largest power of two that divides its length. In each, `y = H D x / sqrt(n)`:
//! `D` are signs that depend on the place in the head alone, `H` is the Hadamard matrix in its natural order. The matrix is
//! orthogonal, so products of two rotated rows are those of the rows, and the transposed one takes a row back. It spreads an outlier
//! over its whole block, which a block's one scale is then better used for (QuaRot, Ashkboos 2024, arXiv:2404.00456). The order
//! of additions is fixed: distances 1, 2, 4 and so on.

use std::sync::Arc;

use coldpress_workers::Team;

use super::dispatch::instantiate;
use super::simd::{LANES, Simd};
use super::spans::for_each_row_span;
use crate::Kernels;

/// Fewest elements of a rotated block.
const BLOCK_MIN: usize = 32;
/// Places of a head that have signs of their own; later ones begin again.
const SIGNS: usize = 512;

/// Signs from a fixed seed: SplitMix64 (Steele 2014), one bit of each number.
static SIGN_TABLE: [f32; SIGNS] = {
    let mut signs = [1.0; SIGNS];
    let mut state = 0x636f_6c64_7072_6573_u64;
    let mut place = 0;
    while place < SIGNS {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        if (mixed ^ (mixed >> 31)) & 1 == 1 {
            signs[place] = -1.0;
        }
        place += 1;
    }
    signs
};

/// Factors of the partner lanes: `a + b` where a lane's bit is clear, `a - b` in its partner.
const fn lane_signs(distance: usize) -> [f32; LANES] {
    let mut signs = [1.0; LANES];
    let mut lane = 0;
    while lane < LANES {
        if lane & distance != 0 {
            signs[lane] = -1.0;
        }
        lane += 1;
    }
    signs
}

/// Elements of the blocks in which heads of `head_dim` elements are rotated; `None` where they cannot be.
pub fn rotation_block(head_dim: usize) -> Option<usize> {
    if head_dim == 0 {
        return None;
    }
    let block = 1 << head_dim.trailing_zeros();
    (block >= BLOCK_MIN).then_some(block)
}

/// Lanes that are `DISTANCE` apart become their sum and their difference.
#[inline(always)]
fn butterfly<S: Simd, const DISTANCE: usize>(s: S, a: S::Lanes) -> S::Lanes {
    // Multiplying by a sign is exact, so this is one addition or subtraction.
    s.fma(a, s.load(&const { lane_signs(DISTANCE) }), s.swap_lanes::<DISTANCE>(a))
}

/// The transform of one block, without its factor.
#[inline(always)]
fn transform<S: Simd>(s: S, block: &mut [[f32; LANES]]) {
    for lanes in block.iter_mut() {
        let a = butterfly::<S, 1>(s, s.load(lanes));
        let a = butterfly::<S, 2>(s, a);
        let a = butterfly::<S, 4>(s, a);
        s.store(butterfly::<S, 8>(s, a), lanes);
    }
    let mut distance = 1;
    while distance < block.len() {
        for pair in block.chunks_exact_mut(2 * distance) {
            let (low, high) = pair.split_at_mut(distance);
            for (low, high) in low.iter_mut().zip(high) {
                let (a, b) = (s.load(low), s.load(high));
                s.store(s.add(a, b), low);
                s.store(s.sub(a, b), high);
            }
        }
        distance *= 2;
    }
}

/// Multiplies a block that begins at `place` of its row by the signs of its places, which begin again behind their end, and by
/// `factor`. No signs are signs that are all positive.
#[inline(always)]
fn apply_signs<S: Simd>(s: S, block: &mut [[f32; LANES]], signs: &[f32], place: usize, factor: f32) {
    let signs = signs.as_chunks::<LANES>().0;
    for (index, lanes) in block.iter_mut().enumerate() {
        let factors = match signs {
            [] => s.splat(factor),
            signs => s.mul(s.load(&signs[(place / LANES + index) % signs.len()]), s.splat(factor)),
        };
        s.store(s.mul(s.load(lanes), factors), lanes);
    }
}

#[inline(always)]
fn rotate_body<S: Simd>(s: S, heads: &mut [f32], head_dim: usize, block: usize, back: bool) {
    let factor = 1.0 / (block as f32).sqrt();
    for head in heads.chunks_exact_mut(head_dim) {
        for (index, values) in head.chunks_exact_mut(block).enumerate() {
            let values = values.as_chunks_mut::<LANES>().0;
            if back {
                transform(s, values);
                apply_signs(s, values, &SIGN_TABLE, index * block, factor);
            } else {
                apply_signs(s, values, &SIGN_TABLE, index * block, factor);
                transform(s, values);
            }
        }
    }
}

instantiate! { fn rotate(heads: &mut [f32], head_dim: usize, block: usize, back: bool) => rotate_body }

#[inline(always)]
fn rotate_rows_body<S: Simd>(s: S, rows: &mut [f32], columns: usize, blocks: Blocks, signs: &[f32]) {
    for row in rows.chunks_exact_mut(columns) {
        let (mut left, mut place) = (row, 0);
        while !left.is_empty() {
            let length = blocks.next(left.len());
            let (block, rest) = left.split_at_mut(length);
            let block = block.as_chunks_mut::<LANES>().0;
            apply_signs(s, block, signs, place, 1.0 / (length as f32).sqrt());
            transform(s, block);
            (left, place) = (rest, place + length);
        }
    }
}

instantiate! {
    fn rotate_with(rows: &mut [f32], columns: usize, blocks: Blocks, signs: &[f32]) => rotate_rows_body
}

/// How rows are cut into blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocks {
    /// Into powers of two, the largest first: 192 are 128 and 64.
    Descending,
    /// Into blocks of 32.
    Of32,
}

impl Blocks {
    /// Length of the next block of a row of which `left` elements are left.
    fn next(self, left: usize) -> usize {
        match self {
            Blocks::Descending => 1 << left.ilog2(),
            Blocks::Of32 => 32,
        }
    }
}

/// What the inputs of a matrix go through, because the matrix is held for inputs that did.
#[derive(Clone, Debug, PartialEq)]
pub struct Rotation {
    blocks: Blocks,
    signs: Arc<[f32]>,
}

/// Signs are never NaN.
impl Eq for Rotation {}

impl Rotation {
    /// A rotation of rows of `columns` elements; `signs` has one number for each, or none. `None` where such rows cannot be
    /// cut into blocks of at least 16 elements, or the signs are not as many numbers of size 1.
    pub fn new(blocks: Blocks, columns: usize, signs: Arc<[f32]>) -> Option<Self> {
        let multiple = match blocks {
            Blocks::Descending => LANES,
            Blocks::Of32 => 32,
        };
        let fits = columns.is_multiple_of(multiple) && (signs.is_empty() || signs.len() == columns);
        (fits && signs.iter().all(|sign| sign.abs() == 1.0)).then_some(Self { blocks, signs })
    }

    /// Numbers that tell rotations apart: how rows are cut, and the bits of the signs.
    pub fn words(&self) -> impl Iterator<Item = u32> {
        std::iter::once(self.blocks as u32).chain(self.signs.iter().map(|sign| sign.to_bits()))
    }

    /// Rotates rows of `columns` elements in place: in each block of `n`, `y = H S x / sqrt(n)` with the signs `S` and the
    /// Hadamard matrix `H` in its natural order. Errors as those of [`rotate_heads`].
    ///
    /// # Panics
    /// When the length is not a number of rows of the rotation's length.
    pub fn apply(&self, team: &Team<'_>, kernels: Kernels, rows: &mut [f32], columns: usize) {
        assert!(rows.len().is_multiple_of(columns), "{} elements are no rows of {columns}", rows.len());
        assert!(self.signs.is_empty() || self.signs.len() == columns, "signs for rows of {columns}");
        for_each_row_span(team, rows, columns, |_, rows| {
            rotate_with(kernels, rows, columns, self.blocks, &self.signs)
        });
    }
}

fn run(team: &Team<'_>, kernels: Kernels, heads: &mut [f32], head_dim: usize, back: bool) {
    let block = rotation_block(head_dim)
        .unwrap_or_else(|| panic!("heads of {head_dim} elements have no blocks of {BLOCK_MIN}"));
    assert!(heads.len().is_multiple_of(head_dim), "{} elements are no heads of {head_dim}", heads.len());
    for_each_row_span(team, heads, head_dim, |_, heads| rotate(kernels, heads, head_dim, block, back));
}

/// Rotates heads `[heads, head_dim]` in place. With `e = 2^-24` and blocks of `n` elements, an element is within
/// `(log2(n) + 3) * e * |block|` of the exact one, `|block|` being the Euclidean length. Panics where [`rotation_block`] is
/// `None` and where the length is not a number of heads.
pub fn rotate_heads(team: &Team<'_>, kernels: Kernels, heads: &mut [f32], head_dim: usize) {
    run(team, kernels, heads, head_dim, false);
}

/// Takes back what [`rotate_heads`] did, up to the same error.
pub fn rotate_heads_back(team: &Team<'_>, kernels: Kernels, heads: &mut [f32], head_dim: usize) {
    run(team, kernels, heads, head_dim, true);
}
