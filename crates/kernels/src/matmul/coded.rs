//! Values of the formats that stay in their codes: grids and trits, two column groups at a time.
//!
//! An index is looked up for each row by plain loads, as the vectors of all instruction sets are filled from words; signs are
//! applied to whole vectors. The definition of the codes is in `blocks`, their places in `layout/coded.rs`.

use super::step_scales::{high_bits_at, signs_at, step_at};
use super::tile::{RowVectors, StepWeights};
use crate::blocks::{IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS, POWERS_OF_THREE, QuantizedFormat, shifted};
use crate::layout::{GROUP_ROWS, Grid, TRIT_VECTORS, VECTOR_BYTES, packed_block};

/// Column groups `4 * HALF + 2 * PAIR` and the next, as the dot product takes them.
///
/// # Safety
/// `weights` lies in a packed block of `F`, whose grid is `grid`.
#[inline(always)] // into a function compiled with the features of `V`, as everything below
pub(super) unsafe fn grid_pair<V: RowVectors, F: QuantizedFormat, const HALF: usize, const PAIR: usize>(
    v: V,
    grid: Grid,
    weights: StepWeights<'_>,
) -> [V::Bytes; 2] {
    let packed = const { packed_block(F::FORMAT) };
    let StepWeights { block, first_row, .. } = weights;
    let at = step_at(&packed, weights);
    let eight = 2 * HALF + PAIR;
    // SAFETY: every plane of the step has a byte, half or word for each of the 16 rows.
    let byte = |plane: usize, lane: usize| unsafe {
        usize::from(*block.get_unchecked(at + plane * GROUP_ROWS + first_row + lane))
    };
    let high = |lane: usize| {
        let at = high_bits_at(&packed, weights, 1) + lane;
        // SAFETY: as above.
        usize::from(unsafe { *block.get_unchecked(at) })
    };
    let high_half = |lane: usize| {
        let at = high_bits_at(&packed, weights, 2) + 2 * lane;
        // SAFETY: as above.
        usize::from(unsafe { u16::from_le_bytes([*block.get_unchecked(at), *block.get_unchecked(at + 1)]) })
    };
    let magnitudes = match grid {
        Grid::Iq1S => {
            return v.entries(|lane| {
                let high = high_half(lane);
                shifted(byte(eight, lane) | (high >> (3 * eight) & 7) << 8, high >> 15)
            });
        }
        Grid::Iq1M => {
            return v.entries(|lane| {
                let high = high_half(lane) >> (4 * eight);
                shifted(byte(eight, lane) | (high & 7) << 8, high >> 3)
            });
        }
        Grid::Iq2Xxs => v.entries(|lane| IQ2_XXS[byte(eight, lane)]),
        Grid::Iq2Xs => v.entries(|lane| {
            // The ninth bit is one of the last byte of the signs.
            let at = signs_at(&packed, weights) + 4 * lane + 3;
            // SAFETY: as above.
            let ninth = usize::from(unsafe { *block.get_unchecked(at) }) >> (2 * eight + 1) & 1;
            IQ2_XS[byte(eight, lane) | ninth << 8]
        }),
        Grid::Iq2S => v.entries(|lane| IQ2_S[byte(eight, lane) | (high(lane) >> (2 * eight) & 3) << 8]),
        Grid::Iq3Xxs => [
            v.words(|lane| IQ3_XXS[byte(2 * eight, lane)]),
            v.words(|lane| IQ3_XXS[byte(2 * eight + 1, lane)]),
        ],
        Grid::Iq3S => [
            v.words(|lane| IQ3_S[byte(2 * eight, lane) | (high(lane) >> (2 * eight) & 1) << 8]),
            v.words(|lane| IQ3_S[byte(2 * eight + 1, lane) | (high(lane) >> (2 * eight + 1) & 1) << 8]),
        ],
    };
    // SAFETY: the words of the signs lie in the step.
    let signs = unsafe { v.load_words(block, signs_at(&packed, weights)) };
    let signs = match grid {
        Grid::Iq2S | Grid::Iq3S => signs,
        _ => with_parity(v, signs),
    };
    let plane = v.bytes_of(signs);
    let [first, second] = magnitudes;
    let group = (4 * HALF + 2 * PAIR) as u32;
    [
        v.stored_bytes(v.negate_where(first, plane, group)),
        v.stored_bytes(v.negate_where(second, plane, group + 1)),
    ]
}

/// A plane of signs whose every eighth column is the parity of the seven before it; what was stored in its place is dropped.
#[inline(always)]
fn with_parity<V: RowVectors>(v: V, plane: V::Ints) -> V::Ints {
    let signs = v.and(plane, 0x55ff_ffff);
    let halves = v.xor(signs, v.shift_right(signs, 16));
    let columns = v.xor(halves, v.shift_right(halves, 8));
    // Bit `2 k` of a byte is of the first four of eight columns, bit `2 k + 1` of the last.
    let parity = v.and(v.xor(columns, v.shift_right(columns, 1)), 0x55);
    v.or(signs, v.shift_left(parity, 25))
}

/// The trits of column group `4 * HALF + INDEX` of a step.
///
/// # Safety
/// `weights` lies in a packed block of `F`, which stores trits.
#[inline(always)]
pub(super) unsafe fn trits<V: RowVectors, F: QuantizedFormat, const HALF: usize, const INDEX: usize>(
    v: V,
    weights: StepWeights<'_>,
) -> V::Bytes {
    let packed = const { packed_block(F::FORMAT) };
    // Five steps are the first eight vectors, five half steps the next four, and the last half step is the last one.
    let (vector, trit) = match (weights.step, HALF) {
        (step @ 0..5, _) => (4 * HALF + INDEX, step),
        (7, 1) => (TRIT_VECTORS - 1, INDEX),
        (step, _) => (8 + INDEX, 2 * (step - 5) + HALF),
    };
    let at = packed.steps_at + vector * VECTOR_BYTES + 4 * weights.first_row;
    // SAFETY: the block has `TRIT_VECTORS` vectors.
    let bytes = unsafe { v.load_bytes(weights.block, at) };
    v.trits(bytes, POWERS_OF_THREE[trit])
}
