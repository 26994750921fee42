//! The loops that quantise activations: the rule in plain Rust, and its cut over a team.
//!
//! The rule is in `mod.rs`; `quantize_x86.rs` has it in vector instructions where the compiler does not find them.
#![allow(unsafe_code)]

use coldpress_workers::Team;

use super::{ActivationBlock, SMALLEST_MAGNITUDE};
use crate::Kernels;
use crate::blocks::STEP_COLUMNS;
use crate::vector::spans::{SharedSlice, for_each_row_span};

/// Blocks that one chunk of the parallel loop takes: enough work to pay for claiming it.
const CHUNK_BLOCKS: usize = 256;

/// `out` has one block per element of `blocks`.
pub(super) fn quantize_on_team(
    team: &Team<'_>,
    kernels: Kernels,
    blocks: &[[f32; STEP_COLUMNS]],
    out: &mut [ActivationBlock],
) {
    assert_eq!(blocks.len(), out.len(), "one activation block per 32 values");
    let shared = SharedSlice::new(out);
    team.for_each_chunk(blocks.len().div_ceil(CHUNK_BLOCKS), |chunk, _worker| {
        let first = chunk * CHUNK_BLOCKS;
        let count = CHUNK_BLOCKS.min(blocks.len() - first);
        // SAFETY: each chunk number, hence each range, runs once.
        let out = unsafe { shared.part(first..first + count) };
        quantize_chunk(kernels, &blocks[first..first + count], out);
    });
}

/// Calls `body(row, floats of the row, blocks of the row)` for every row.
pub(super) fn for_each_row<F>(
    team: &Team<'_>,
    floats: &mut [f32],
    blocks: &mut [ActivationBlock],
    columns: usize,
    body: F,
) where
    F: Fn(usize, &mut [f32], &mut [ActivationBlock]) + Sync,
{
    let row_blocks = columns / STEP_COLUMNS;
    let shared = SharedSlice::new(blocks);
    for_each_row_span(team, floats, columns, |rows, floats| {
        for (row, floats) in rows.zip(floats.chunks_exact_mut(columns)) {
            // SAFETY: every row is visited once.
            let blocks = unsafe { shared.part(row * row_blocks..(row + 1) * row_blocks) };
            body(row, floats, blocks);
        }
    });
}

pub(super) fn quantize_chunk(kernels: Kernels, blocks: &[[f32; STEP_COLUMNS]], out: &mut [ActivationBlock]) {
    #[cfg(target_arch = "x86_64")]
    use crate::Isa;
    match kernels.isa() {
        // SAFETY: a `Kernels` of these instruction sets proves that the processor has the features.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Vnni | Isa::AmxInt8 => unsafe { super::quantize_x86::avx512(blocks, out) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::AvxVnni => unsafe { super::quantize_x86::avx2(blocks, out) },
        _ => {
            for (values, block) in blocks.iter().zip(out) {
                *block = quantize_block(values);
            }
        }
    }
}

/// Adding it to a value between -2^22 and 2^22 leaves the value, rounded half to even, in the low bits.
const ROUNDING_MAGIC: f32 = 12_582_912.0;

pub(super) fn quantize_block(values: &[f32; STEP_COLUMNS]) -> ActivationBlock {
    // Magnitudes of floats order like their bits, with infinity and NaN on top.
    let largest_bits = values.iter().fold(0, |largest, value| largest.max(value.to_bits() & 0x7fff_ffff));
    let largest = f32::from_bits(largest_bits);
    match special_block(largest) {
        Some(block) => block,
        None => {
            let inverse = 127.0 / largest;
            let quants = values.map(|value| (value * inverse + ROUNDING_MAGIC).to_bits() as u8 as i8);
            ActivationBlock::from_values(quants, largest / 127.0)
        }
    }
}

/// The block for a largest magnitude that has no scale: too small, infinite or NaN.
#[inline(always)] // into the loops
pub(super) fn special_block(largest: f32) -> Option<ActivationBlock> {
    if !largest.is_finite() {
        return Some(ActivationBlock::from_values([0; STEP_COLUMNS], f32::NAN));
    }
    (largest < SMALLEST_MAGNITUDE).then_some(ActivationBlock::ZERO)
}
