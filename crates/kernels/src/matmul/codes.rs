//! Products with matrices of codes: their values are made for some columns at a time and used as F32 weights are.
//!
//! So a product is what it would be with the values as F32 weights, bit for bit, and no instruction set needs kernels of its own for
//! a coding. Between pieces of columns the accumulators stay in the output.

use super::driver::{F32Element, FloatTiles, Lanes, Span};
use crate::WeightFormat;
use crate::layout::{CodesGroup, GROUP_ROWS};

/// Columns whose values are made at a time: four groups of them are 16 KB.
const PIECE_COLUMNS: usize = 64;

/// Groups whose values are made at a time.
const PIECE_GROUPS: usize = 4;

/// Runs a span of codes.
///
/// # Safety
/// As [`FloatTiles::tile`]; `span` is consistent and its output rows belong to the caller.
pub(super) unsafe fn run_codes<T: FloatTiles>(span: &Span<'_>) {
    let mut values = [0.0; PIECE_COLUMNS * GROUP_ROWS * PIECE_GROUPS];
    let groups = span.weights.len() / span.group_bytes;
    for first in (0..groups).step_by(PIECE_GROUPS) {
        let count = PIECE_GROUPS.min(groups - first);
        for column in (0..span.columns).step_by(PIECE_COLUMNS) {
            let columns = PIECE_COLUMNS.min(span.columns - column);
            let values = &mut values[..count * columns * GROUP_ROWS];
            for (group, values) in values.chunks_exact_mut(columns * GROUP_ROWS).enumerate() {
                decode(span, first + group, column, values);
            }
            // SAFETY: passed on from the caller.
            unsafe {
                match count {
                    4 => piece::<T, 4>(span, first, column, values),
                    _ => {
                        for (group, values) in values.chunks_exact(columns * GROUP_ROWS).enumerate() {
                            piece::<T, 1>(span, first + group, column, values);
                        }
                    }
                }
            }
        }
    }
}

/// The values of some columns of a group, `[column][16 rows]`.
fn decode(span: &Span<'_>, group: usize, first_column: usize, values: &mut [f32]) {
    let WeightFormat::Codes(coding) = span.format else { unreachable!("only codes come here") };
    let bytes = &span.weights[group * span.group_bytes..][..span.group_bytes];
    let group = CodesGroup::new(coding, span.columns, bytes);
    for (column, lanes) in values.chunks_exact_mut(GROUP_ROWS).enumerate() {
        for (lane, value) in lanes.iter_mut().enumerate() {
            *value = group.value(lane, first_column + column);
        }
    }
}

/// Adds the products of some columns of `GROUPS` groups to the output.
///
/// # Safety
/// As [`run_codes`]; `values` holds the columns from `first_column` on.
unsafe fn piece<T: FloatTiles, const GROUPS: usize>(
    span: &Span<'_>,
    first_group: usize,
    first_column: usize,
    values: &[f32],
) {
    let columns = values.len() / (GROUPS * GROUP_ROWS);
    let weights: &[u8] = bytemuck::cast_slice(values);
    let floats = span.input.floats();
    let mut row = 0;
    while row < span.input.rows() {
        let rows = &floats[row * span.columns + first_column..];
        // SAFETY: passed on from the caller.
        row += unsafe {
            match span.input.rows() - row {
                4.. if GROUPS <= T::GROUPS_OF_FOUR_ROWS => rows_of_piece::<T, GROUPS, 4>(
                    span,
                    first_group,
                    first_column,
                    (columns, weights),
                    (row, rows),
                ),
                _ => rows_of_piece::<T, GROUPS, 1>(
                    span,
                    first_group,
                    first_column,
                    (columns, weights),
                    (row, rows),
                ),
            }
        };
    }
}

/// # Safety
/// As [`piece`]; there are `ROWS` rows from row `first_row` on.
unsafe fn rows_of_piece<T: FloatTiles, const GROUPS: usize, const ROWS: usize>(
    span: &Span<'_>,
    first_group: usize,
    first_column: usize,
    (columns, weights): (usize, &[u8]),
    (first_row, rows): (usize, &[f32]),
) -> usize {
    let mut lanes: [[Lanes; ROWS]; GROUPS] = [[[0.0; GROUP_ROWS]; ROWS]; GROUPS];
    for (group, all) in lanes.iter_mut().enumerate() {
        for (row, lanes) in all.iter_mut().enumerate() {
            if first_column > 0 {
                // SAFETY: passed on from the caller.
                unsafe { span.load(first_group + group, first_row + row, lanes) };
            }
        }
    }
    // SAFETY: passed on from the caller.
    unsafe { T::tile::<F32Element, GROUPS, ROWS>((columns, span.columns), weights, rows, &mut lanes) };
    for (group, all) in lanes.iter().enumerate() {
        for (row, lanes) in all.iter().enumerate() {
            // SAFETY: passed on from the caller.
            unsafe { span.store(first_group + group, first_row + row, lanes) };
        }
    }
    ROWS
}
