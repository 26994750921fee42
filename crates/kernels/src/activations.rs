//! Activations as int8 blocks of 32, the other factor of every quantised weight.
//!
//! One rule, one Rust source, compiled for each instruction set, so the bits are the same everywhere:
//! `scale = amax / 127`, `q = round_half_even(x * (127 / amax))`, all in f32. A block whose largest magnitude is below
//! [`SMALLEST_MAGNITUDE`] becomes zeros with scale 0. A block with a NaN or an infinity becomes zeros with scale NaN:
//! every product it takes part in is NaN, so a broken value is seen and not averaged away.

use coldpress_workers::Team;

use crate::Kernels;
use crate::blocks::STEP_COLUMNS;

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
        quantize_block(values)
    }

    /// The block of these values (between -127 and 127) and this scale.
    #[inline(always)] // as `quantize_blocks`
    pub fn from_values(values: [i8; STEP_COLUMNS], scale: f32) -> ActivationBlock {
        let mut half_sums = [0_i16; 2];
        let (halves, _) = values.as_chunks::<{ STEP_COLUMNS / 2 }>();
        for (sum, half) in half_sums.iter_mut().zip(halves) {
            for &value in half {
                *sum += i16::from(value);
            }
        }
        let sum = i32::from(half_sums[0]) + i32::from(half_sums[1]);
        ActivationBlock {
            values,
            scale,
            scaled_sum: scale * sum as f32,
            start_of_offset_8: -8 * sum,
            half_sums,
        }
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

/// Blocks that one chunk of the parallel loop takes: enough work to pay for claiming it.
const CHUNK_BLOCKS: usize = 256;

/// Quantises activations on the team: `values` of any number of whole rows, `out` one block per 32 values.
///
/// # Panics
/// When `values.len() != 32 * out.len()`.
pub fn quantize_rows(team: &Team<'_>, kernels: Kernels, values: &[f32], out: &mut [ActivationBlock]) {
    let (blocks, rest) = values.as_chunks::<STEP_COLUMNS>();
    assert!(rest.is_empty() && blocks.len() == out.len(), "one activation block per 32 values");
    parallel::quantize(team, kernels, blocks, out);
}

#[allow(unsafe_code)]
mod parallel {
    use coldpress_workers::Team;

    use super::{ActivationBlock, CHUNK_BLOCKS, STEP_COLUMNS, quantize_blocks};
    #[cfg(target_arch = "x86_64")]
    use crate::Isa;
    use crate::Kernels;

    /// The first block of an output slice whose parts the chunks of one region write.
    struct SharedOut(*mut ActivationBlock);

    // SAFETY: every chunk of the region below touches another part of the slice.
    unsafe impl Sync for SharedOut {}

    impl SharedOut {
        fn first(&self) -> *mut ActivationBlock {
            self.0
        }
    }

    /// `out` has one block per element of `blocks`.
    pub(super) fn quantize(
        team: &Team<'_>,
        kernels: Kernels,
        blocks: &[[f32; STEP_COLUMNS]],
        out: &mut [ActivationBlock],
    ) {
        assert_eq!(blocks.len(), out.len(), "one activation block per 32 values");
        let shared = SharedOut(out.as_mut_ptr());
        team.for_each_chunk(blocks.len().div_ceil(CHUNK_BLOCKS), |chunk, _worker| {
            let first = chunk * CHUNK_BLOCKS;
            let count = CHUNK_BLOCKS.min(blocks.len() - first);
            // SAFETY: `first + count <= blocks.len() == out.len()`, and each chunk number, hence each range, runs once.
            let out = unsafe { std::slice::from_raw_parts_mut(shared.first().add(first), count) };
            quantize_chunk(kernels, &blocks[first..first + count], out);
        });
    }

    fn quantize_chunk(kernels: Kernels, blocks: &[[f32; STEP_COLUMNS]], out: &mut [ActivationBlock]) {
        match kernels.isa() {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a `Kernels` of these instruction sets proves that the processor has AVX2.
            Isa::Avx2 | Isa::AvxVnni | Isa::Avx512Vnni | Isa::AmxInt8 => unsafe {
                quantize_blocks_avx2(blocks, out)
            },
            _ => quantize_blocks(blocks, out),
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn quantize_blocks_avx2(blocks: &[[f32; STEP_COLUMNS]], out: &mut [ActivationBlock]) {
        quantize_blocks(blocks, out);
    }
}

#[inline(always)] // compiled once per instruction set
fn quantize_blocks(blocks: &[[f32; STEP_COLUMNS]], out: &mut [ActivationBlock]) {
    for (values, block) in blocks.iter().zip(out) {
        *block = quantize_block(values);
    }
}

/// Adding it to a value between -2^22 and 2^22 leaves the value, rounded half to even, in the low bits.
const ROUNDING_MAGIC: f32 = 12_582_912.0;

#[inline(always)] // as `quantize_blocks`
fn quantize_block(values: &[f32; STEP_COLUMNS]) -> ActivationBlock {
    // Magnitudes of floats order like their bits, with infinity and NaN on top.
    let largest_bits = values.iter().fold(0, |largest, value| largest.max(value.to_bits() & 0x7fff_ffff));
    let largest = f32::from_bits(largest_bits);
    if !largest.is_finite() {
        return ActivationBlock::from_values([0; STEP_COLUMNS], f32::NAN);
    }
    if largest < SMALLEST_MAGNITUDE {
        return ActivationBlock::ZERO;
    }
    let inverse = 127.0 / largest;
    let quants = values.map(|value| (value * inverse + ROUNDING_MAGIC).to_bits() as u8 as i8);
    ActivationBlock::from_values(quants, largest / 127.0)
}
