//! How a span of row groups is walked: the loops that all instruction sets share.
//!
//! An instruction set provides tiles: functions that multiply one group (or a few, for float weights) by a fixed number of
//! activation rows. The driver picks tile sizes and stores the lanes of real rows. Tile sizes never change a result.

use super::codes::Piece;
use crate::WeightFormat;
use crate::activations::{ActivationBlock, InputRows};
use crate::blocks::QuantizedFormat;
use crate::layout::{GROUP_ROWS, packed_block};
use crate::prefetch;

/// The 16 results of one group and one activation row.
pub(super) type Lanes = [f32; GROUP_ROWS];

/// One unit of work: some whole groups of one matrix, all activation rows.
pub(super) struct Span<'a> {
    pub format: WeightFormat,
    pub columns: usize,
    /// Whole groups.
    pub weights: &'a [u8],
    pub group_bytes: usize,
    /// Real rows in the groups; only the last group may have fewer than 16.
    pub rows: usize,
    pub input: InputRows<'a>,
    /// Where the first row of the span goes for the first activation row.
    pub output: *mut f32,
    /// Elements from one activation row of the output to the next.
    pub output_stride: usize,
}

impl Span<'_> {
    /// The weights that are needed when those of `group` have been used; nothing for the last group.
    fn group_after(&self, group: usize) -> &[u8] {
        let first = (group + 1) * self.group_bytes;
        self.weights.get(first..first + self.group_bytes).unwrap_or(&[])
    }

    /// What [`Span::store`] stored.
    ///
    /// # Safety
    /// As [`Span::store`].
    pub(super) unsafe fn load(&self, group: usize, input_row: usize, lanes: &mut Lanes) {
        let first = group * GROUP_ROWS;
        let count = GROUP_ROWS.min(self.rows - first);
        // SAFETY: as in `store`.
        unsafe {
            let source = self.output.add(input_row * self.output_stride + first);
            std::ptr::copy_nonoverlapping(source, lanes.as_mut_ptr(), count);
        }
    }

    /// Stores the results of a group for one activation row, without the lanes that stand for no row.
    ///
    /// # Safety
    /// `output[input_row * output_stride..][..rows]` must be writable and nobody else's.
    pub(super) unsafe fn store(&self, group: usize, input_row: usize, lanes: &Lanes) {
        let first = group * GROUP_ROWS;
        let count = GROUP_ROWS.min(self.rows - first);
        // SAFETY: `first + count <= rows`, so this stays in the part of the output that the caller grants.
        unsafe {
            let target = self.output.add(input_row * self.output_stride + first);
            if count == GROUP_ROWS {
                // Two moves. One copy would be merged with the one below into a call of unknown length.
                let (halves, _) = lanes.as_chunks::<{ GROUP_ROWS / 2 }>();
                target.cast::<[f32; GROUP_ROWS / 2]>().write(halves[0]);
                target.add(GROUP_ROWS / 2).cast::<[f32; GROUP_ROWS / 2]>().write(halves[1]);
            } else {
                std::ptr::copy_nonoverlapping(lanes.as_ptr(), target, count);
            }
        }
    }
}

/// Tiles of one instruction set for quantised weights.
pub(super) trait QuantizedTiles {
    /// Most activation rows of a tile: as many as the registers hold accumulators for. At least 4.
    const ROWS_MAX: usize;
    /// False where tiles of one and of four rows are enough. That is so for formats of codes everywhere: most of the work
    /// is to look up the values.
    const ALL_SIZES: bool = true;

    /// Multiplies one packed group by `ROWS` activation rows.
    ///
    /// `rows`: `ROWS` rows of `columns / 32` blocks.
    ///
    /// # Safety
    /// The processor has the instruction set, `group` is one whole packed group of `F`, and `rows` has `ROWS` times as
    /// many blocks as the group has steps.
    unsafe fn tile<F: QuantizedFormat, const ROWS: usize>(
        group: &[u8],
        rows: &[ActivationBlock],
        out: &mut [Lanes; ROWS],
    );
}

/// Most activation bytes that one pass over the weights of a span uses again and again: half of a small L2 cache.
const INPUT_BYTES_PER_PASS: usize = 256 * 1024;

/// Activation rows, a multiple of `tile_rows`, that stay in the cache while a pass over the weights uses them.
pub(super) fn rows_per_pass(row_blocks: usize, tile_rows: usize) -> usize {
    let rows = INPUT_BYTES_PER_PASS / (row_blocks * size_of::<ActivationBlock>());
    rows.max(1).next_multiple_of(tile_rows)
}

/// Runs a span of quantised weights.
///
/// # Safety
/// As [`QuantizedTiles::tile`]; `span` is consistent and its output rows belong to the caller.
pub(super) unsafe fn run_quantized<T: QuantizedTiles, F: QuantizedFormat>(span: &Span<'_>) {
    let row_blocks = crate::activations::blocks_per_row(span.columns);
    let pass_rows = rows_per_pass(row_blocks, 8);
    let input = &span.input.blocks()[..span.input.rows() * row_blocks];
    for (pass, rows) in input.chunks(pass_rows * row_blocks).enumerate() {
        for (group, weights) in span.weights.chunks_exact(span.group_bytes).enumerate() {
            // SAFETY: passed on from the caller.
            unsafe { quantized_rows::<T, F>(span, group, weights, pass * pass_rows, rows) };
        }
    }
}

/// Multiplies one group by whole activation rows, which are those from `first` on.
///
/// # Safety
/// As [`run_quantized`].
pub(super) unsafe fn quantized_rows<T: QuantizedTiles, F: QuantizedFormat>(
    span: &Span<'_>,
    group: usize,
    weights: &[u8],
    first: usize,
    rows: &[ActivationBlock],
) {
    let row_blocks = crate::activations::blocks_per_row(span.columns);
    let mut first = first;
    let mut rest = rows;
    // A single row reads weights as fast as they come; the processor's own prefetcher sees that.
    let mut next = if rows.len() > row_blocks { span.group_after(group) } else { &[] };
    let next_per_tile = (next.len() * 8 * row_blocks).div_ceil(rows.len().max(1));
    macro_rules! tile {
        ($rows:literal) => {
            quantized_tile::<T, F, $rows>(span, group, weights, first, &rest[..$rows * row_blocks])
        };
    }
    while !rest.is_empty() {
        let (now, later) = next.split_at(next_per_tile.min(next.len()));
        prefetch::into_level_2(now);
        next = later;
        // SAFETY: passed on from the caller; each tile gets as many rows as its size says.
        let done = unsafe {
            match rest.len() / row_blocks {
                8.. if const { tile_exists::<T, F>(8) } => tile!(8),
                7 if const { tile_exists::<T, F>(7) } => tile!(7),
                6 if const { tile_exists::<T, F>(6) } => tile!(6),
                5 if const { tile_exists::<T, F>(5) } => tile!(5),
                4.. => tile!(4),
                3 if const { tile_exists::<T, F>(3) } => tile!(3),
                2 if const { tile_exists::<T, F>(2) } => tile!(2),
                _ => tile!(1),
            }
        };
        first += done;
        rest = &rest[done * row_blocks..];
    }
}

/// Whether a tile of `rows` rows is compiled. Those of one and of four rows always are. Compiling takes its time, so only the
/// formats that most files are made of have all sizes.
const fn tile_exists<T: QuantizedTiles, F: QuantizedFormat>(rows: usize) -> bool {
    use WeightFormat as W;
    let is_common = matches!(
        F::FORMAT,
        W::Q8_0 | W::Q4_0 | W::Q4_1 | W::Q5_0 | W::Q5_1 | W::Q4K | W::Q5K | W::Q6K | W::Mxfp4
    );
    rows <= T::ROWS_MAX
        && T::ALL_SIZES
        && (is_common || rows.is_power_of_two())
        && !packed_block(F::FORMAT).quants.is_coded()
}

/// # Safety
/// As [`run_quantized`]; `rows` holds `ROWS` rows.
unsafe fn quantized_tile<T: QuantizedTiles, F: QuantizedFormat, const ROWS: usize>(
    span: &Span<'_>,
    group: usize,
    weights: &[u8],
    first_row: usize,
    rows: &[ActivationBlock],
) -> usize {
    let mut lanes = [[0.0; GROUP_ROWS]; ROWS];
    // SAFETY: passed on from the caller.
    unsafe { T::tile::<F, ROWS>(weights, rows, &mut lanes) };
    for (index, lanes) in lanes.iter().enumerate() {
        // SAFETY: passed on from the caller.
        unsafe { span.store(group, first_row + index, lanes) };
    }
    ROWS
}

/// A float format as a type.
pub(super) trait FloatElement: 'static {
    /// Bytes of one element.
    const BYTES: usize;
    /// Which widening the vector kernels use.
    const KIND: FloatKind;
}

/// The float formats.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum FloatKind {
    F32,
    F16,
    Bf16,
}

pub(super) struct F32Element;
pub(super) struct F16Element;
pub(super) struct Bf16Element;

impl FloatElement for F32Element {
    const BYTES: usize = 4;
    const KIND: FloatKind = FloatKind::F32;
}

impl FloatElement for F16Element {
    const BYTES: usize = 2;
    const KIND: FloatKind = FloatKind::F16;
}

impl FloatElement for Bf16Element {
    const BYTES: usize = 2;
    const KIND: FloatKind = FloatKind::Bf16;
}

/// Tiles of one instruction set for float weights.
pub(super) trait FloatTiles {
    /// Most groups in a tile of 4 activation rows: as many as the registers hold accumulators for.
    const GROUPS_OF_FOUR_ROWS: usize;

    /// Adds the products of `GROUPS` neighbouring groups and `ROWS` activation rows to `out`. Each (group, row) is a chain of
    /// dependent additions, so a tile must hold several of them to keep the multipliers busy.
    ///
    /// # Safety
    /// The processor has the instruction set, `groups` is `GROUPS` whole packed groups of `columns` elements, and `rows`
    /// is `ROWS` rows of `columns` activations, `stride` apart; `shape` is columns and stride.
    unsafe fn tile<E: FloatElement, const GROUPS: usize, const ROWS: usize>(
        shape: (usize, usize),
        groups: &[u8],
        rows: &[f32],
        out: &mut [[Lanes; ROWS]; GROUPS],
    );

    /// The values of some columns of a group of codes; see `codes.rs`.
    ///
    /// # Safety
    /// The processor has the instruction set, and the codes have `BITS` bits.
    unsafe fn decode<const BITS: usize>(piece: &Piece<'_>, values: &mut [Lanes]);
}

/// Runs a span of float weights.
///
/// # Safety
/// As [`FloatTiles::tile`]; `span` is consistent and its output rows belong to the caller.
pub(super) unsafe fn run_float<T: FloatTiles, E: FloatElement>(span: &Span<'_>) {
    let mut group = 0;
    let mut rest = span.weights;
    while !rest.is_empty() {
        // SAFETY: passed on from the caller.
        let done = unsafe {
            match rest.len() / span.group_bytes {
                4.. => float_groups::<T, E, 4>(span, group, &rest[..4 * span.group_bytes]),
                2.. => float_groups::<T, E, 2>(span, group, &rest[..2 * span.group_bytes]),
                _ => float_groups::<T, E, 1>(span, group, &rest[..span.group_bytes]),
            }
        };
        group += done;
        rest = &rest[done * span.group_bytes..];
    }
}

/// # Safety
/// As [`run_float`]; `groups` holds `GROUPS` groups.
unsafe fn float_groups<T: FloatTiles, E: FloatElement, const GROUPS: usize>(
    span: &Span<'_>,
    first_group: usize,
    groups: &[u8],
) -> usize {
    let columns = span.columns;
    let mut first = 0;
    let mut rest = span.input.floats();
    while !rest.is_empty() {
        // SAFETY: passed on from the caller.
        let done = unsafe {
            match rest.len() / columns {
                4.. if GROUPS <= T::GROUPS_OF_FOUR_ROWS => {
                    float_tile::<T, E, GROUPS, 4>(span, first_group, groups, first, &rest[..4 * columns])
                }
                4.. => {
                    for (index, group) in groups.chunks_exact(span.group_bytes).enumerate() {
                        float_tile::<T, E, 1, 4>(
                            span,
                            first_group + index,
                            group,
                            first,
                            &rest[..4 * columns],
                        );
                    }
                    4
                }
                _ => float_tile::<T, E, GROUPS, 1>(span, first_group, groups, first, &rest[..columns]),
            }
        };
        first += done;
        rest = &rest[done * columns..];
    }
    GROUPS
}

/// # Safety
/// As [`float_groups`]; `rows` holds `ROWS` rows.
unsafe fn float_tile<T: FloatTiles, E: FloatElement, const GROUPS: usize, const ROWS: usize>(
    span: &Span<'_>,
    first_group: usize,
    groups: &[u8],
    first_row: usize,
    rows: &[f32],
) -> usize {
    let mut lanes = [[[0.0; GROUP_ROWS]; ROWS]; GROUPS];
    // SAFETY: passed on from the caller.
    unsafe { T::tile::<E, GROUPS, ROWS>((span.columns, span.columns), groups, rows, &mut lanes) };
    for (group, rows) in lanes.iter().enumerate() {
        for (row, lanes) in rows.iter().enumerate() {
            // SAFETY: passed on from the caller.
            unsafe { span.store(first_group + group, first_row + row, lanes) };
        }
    }
    ROWS
}
