//! Activations as int8 blocks of 32, the other factor of every quantised weight.
//!
//! One rule, the same bits on every instruction set:
//! `scale = amax / 127`, `q = round_half_even(x * (127 / amax))`, all in f32. A block whose largest magnitude is below
//! [`SMALLEST_MAGNITUDE`] becomes zeros with scale 0. A block with a NaN or an infinity becomes zeros with scale NaN:
//! every product it takes part in is NaN, so a broken value is seen and not averaged away. The loops are in quantize.rs.

mod quantize;
#[cfg(target_arch = "x86_64")]
mod quantize_x86;

use coldpress_workers::Team;

use crate::Kernels;
use crate::blocks::STEP_COLUMNS;
use crate::vector::rms_norm_rows;

/// Below this largest magnitude a block counts as zero: it is where `127 / amax` would leave the range of f32.
pub const SMALLEST_MAGNITUDE: f32 = 128.0 * f32::MIN_POSITIVE;

/// 32 activations of one row as signed bytes with a scale; a row of `columns` activations is `columns / 32` blocks.
///
/// The sums are there so that no kernel has to make them again for every group of weight rows.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct ActivationBlock {
    /// The activations divided by `scale`, between -127 and 127.
    pub values: [i8; STEP_COLUMNS],
    /// Value of one unit; NaN marks a block that held a NaN or an infinity.
    pub scale: f32,
    /// `scale * sum of all values`: what a minimum of the weights is multiplied by.
    pub scaled_sum: f32,
    /// `-8 * sum of all values`: what takes off an offset of 8 from the weights.
    pub start_of_offset_8: i32,
    /// Sum of the first and of the second 16 values.
    pub half_sums: [i16; 2],
}

const _: () = assert!(size_of::<ActivationBlock>() == 48 && align_of::<ActivationBlock>() == 4);

impl ActivationBlock {
    /// A block of zeros.
    pub const ZERO: ActivationBlock = ActivationBlock {
        values: [0; STEP_COLUMNS],
        scale: 0.0,
        scaled_sum: 0.0,
        start_of_offset_8: 0,
        half_sums: [0; 2],
    };

    /// Quantises 32 activations.
    pub fn quantize(values: &[f32; STEP_COLUMNS]) -> ActivationBlock {
        quantize::quantize_block(values)
    }

    /// The block of these values (between -127 and 127) and this scale.
    #[inline(always)] // into the loops of quantize.rs
    pub fn from_values(values: [i8; STEP_COLUMNS], scale: f32) -> ActivationBlock {
        let mut half_sums = [0_i16; 2];
        let (halves, _) = values.as_chunks::<{ STEP_COLUMNS / 2 }>();
        for (sum, half) in half_sums.iter_mut().zip(halves) {
            for &value in half {
                *sum += i16::from(value);
            }
        }
        let mut block = ActivationBlock { values, ..ActivationBlock::ZERO };
        block.set_scale_and_sums(scale, half_sums);
        block
    }

    #[inline(always)] // as `from_values`
    fn set_scale_and_sums(&mut self, scale: f32, half_sums: [i16; 2]) {
        let sum = i32::from(half_sums[0]) + i32::from(half_sums[1]);
        self.scale = scale;
        self.scaled_sum = scale * sum as f32;
        self.start_of_offset_8 = -8 * sum;
        self.half_sums = half_sums;
    }

    /// The four values of column group `group` (below 8) as one little-endian word.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)] // into the kernels
    pub(crate) fn word(&self, group: usize) -> i32 {
        let (words, _) = self.values.as_chunks::<4>();
        i32::from_le_bytes(words[group].map(i8::cast_unsigned))
    }
}

#[allow(unsafe_code)]
mod plain_old_data {
    use super::ActivationBlock;

    // SAFETY: all bytes zero is a valid value of every field.
    unsafe impl bytemuck::Zeroable for ActivationBlock {}
    // SAFETY: `repr(C)`, 32 + 4 * 4 bytes without padding (checked by the size assertion), every bit pattern is valid.
    unsafe impl bytemuck::Pod for ActivationBlock {}
}

/// The activations of `rows` rows: f32, and as int8 blocks when quantised weights will read them.
#[derive(Clone, Copy, Debug)]
pub struct InputRows<'a> {
    rows: usize,
    columns: usize,
    floats: &'a [f32],
    blocks: &'a [ActivationBlock],
}

impl<'a> InputRows<'a> {
    /// Rows for float weights only: `floats` is `[rows, columns]`.
    ///
    /// # Panics
    /// When `floats` is not a whole number of rows.
    pub fn from_floats(columns: usize, floats: &'a [f32]) -> InputRows<'a> {
        assert!(
            columns > 0 && floats.len().is_multiple_of(columns),
            "activations are not a whole number of rows"
        );
        InputRows { rows: floats.len() / columns, columns, floats, blocks: &[] }
    }

    /// Rows for quantised weights only: `blocks` is `[rows, columns / 32]`.
    ///
    /// # Panics
    /// When `columns` is not a multiple of 32 or `blocks` is not a whole number of rows.
    pub fn from_blocks(columns: usize, blocks: &'a [ActivationBlock]) -> InputRows<'a> {
        let row_blocks = blocks_per_row(columns);
        assert!(blocks.len().is_multiple_of(row_blocks), "activation blocks are not a whole number of rows");
        InputRows { rows: blocks.len() / row_blocks, columns, floats: &[], blocks }
    }

    /// Rows for weights of any format: `floats` is `[rows, columns]`, `blocks` is `[rows, columns / 32]`.
    ///
    /// # Panics
    /// When the two do not have the same rows.
    pub fn new(columns: usize, floats: &'a [f32], blocks: &'a [ActivationBlock]) -> InputRows<'a> {
        let quantized = InputRows::from_blocks(columns, blocks);
        assert_eq!(floats.len(), quantized.rows * columns, "f32 and int8 activations have different rows");
        InputRows { floats, ..quantized }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Activations per row.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// `[rows, columns]`, or empty when made from blocks alone.
    pub fn floats(&self) -> &'a [f32] {
        self.floats
    }

    /// `[rows, columns / 32]`, or empty when made from floats alone.
    pub fn blocks(&self) -> &'a [ActivationBlock] {
        self.blocks
    }
}

/// Activation blocks in a row of `columns` activations.
///
/// # Panics
/// When `columns` is 0 or not a multiple of 32.
pub const fn blocks_per_row(columns: usize) -> usize {
    assert!(
        columns > 0 && columns.is_multiple_of(STEP_COLUMNS),
        "quantised rows are multiples of 32 columns"
    );
    columns / STEP_COLUMNS
}

/// Quantises activations on the team: `values` of any number of whole rows, `out` one block per 32 values.
///
/// # Panics
/// When `values.len() != 32 * out.len()`.
pub fn quantize_rows(team: &Team<'_>, kernels: Kernels, values: &[f32], out: &mut [ActivationBlock]) {
    let (blocks, rest) = values.as_chunks::<STEP_COLUMNS>();
    assert!(rest.is_empty() && blocks.len() == out.len(), "one activation block per 32 values");
    quantize::quantize_on_team(team, kernels, blocks, out);
}

/// Quantises activations without a team: `values` of any number of whole blocks.
///
/// # Panics
/// When `values.len() != 32 * out.len()`.
pub(crate) fn quantize_on_this_thread(kernels: Kernels, values: &[f32], out: &mut [ActivationBlock]) {
    let (blocks, rest) = values.as_chunks::<STEP_COLUMNS>();
    assert!(rest.is_empty() && blocks.len() == out.len(), "one activation block per 32 values");
    quantize::quantize_chunk(kernels, blocks, out);
}

/// [`vector::rms_norm`](crate::vector::rms_norm) of every row of `x`, `[rows, weight.len()]`, into `floats`, and its int8
/// blocks into `blocks`, row by row while the row is in the cache.
///
/// # Panics
/// When the shapes differ or a row is not a whole number of blocks.
pub fn rms_norm_and_quantize(
    team: &Team<'_>,
    kernels: Kernels,
    x: &[f32],
    weight: &[f32],
    epsilon: f32,
    floats: &mut [f32],
    blocks: &mut [ActivationBlock],
) {
    let columns = weight.len();
    assert!(columns.is_multiple_of(STEP_COLUMNS), "quantised rows are multiples of 32 columns");
    assert!(x.len() == floats.len() && x.len().is_multiple_of(columns), "rows of {columns} to norm");
    assert_eq!(blocks.len() * STEP_COLUMNS, floats.len(), "one activation block per 32 values");
    quantize::for_each_row(team, floats, blocks, columns, |row, floats, blocks| {
        rms_norm_rows(kernels, &x[row * columns..(row + 1) * columns], weight, epsilon, floats);
        quantize_on_this_thread(kernels, floats, blocks);
    });
}
