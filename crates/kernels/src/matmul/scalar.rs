//! The definition of every product, in plain Rust. The kernels of all instruction sets give the same bits.

use super::codes::{Piece, decode_scalar};
use super::driver::{FloatElement, FloatKind, FloatTiles, Lanes, QuantizedTiles};
use crate::WeightFormat;
use crate::activations::ActivationBlock;
use crate::blocks::{
    BlockFields, CODES, IQ4_VALUES, QuantizedFormat, STEP_COLUMNS, float_at, scale_of_exponent,
    scale_of_float8,
};
use crate::layout::{
    GROUP_ROWS, MinimumStorage, PackedBlock, QuantStorage, ScaleStorage, packed_block, read_lane,
};

pub(super) struct ScalarTiles;

impl QuantizedTiles for ScalarTiles {
    const ROWS_MAX: usize = 4;
    const ALL_SIZES: bool = false;

    unsafe fn tile<F: QuantizedFormat, const ROWS: usize>(
        group: &[u8],
        rows: &[ActivationBlock],
        out: &mut [Lanes; ROWS],
    ) {
        let packed = const { packed_block(F::FORMAT) };
        let row_blocks = rows.len() / ROWS;
        let mut fields = BlockFields::zero();
        for (block_index, block) in group.chunks_exact(packed.bytes).enumerate() {
            for lane in 0..GROUP_ROWS {
                read_lane::<F>(&packed, lane, block, &mut fields);
                for (lanes, row) in out.iter_mut().zip(rows.chunks_exact(row_blocks)) {
                    let activations = &row[block_index * packed.steps..][..packed.steps];
                    lanes[lane] = add_block(&packed, &fields, activations, lanes[lane]);
                }
            }
        }
    }
}

/// Adds the product of one weight block (one lane) and its activations to `accumulator`.
#[inline(always)] // so that the format is known at compile time
fn add_block(
    packed: &PackedBlock,
    fields: &BlockFields,
    activations: &[ActivationBlock],
    accumulator: f32,
) -> f32 {
    let mut accumulator = accumulator;
    let (quants, _) = fields.quants.as_chunks::<STEP_COLUMNS>();
    for (step, (quants, activations)) in quants.iter().zip(activations).enumerate() {
        let [first, second] = half_step_sums(packed, quants, activations);
        let sum = (first + second) as f32;
        let factor = |index: usize| fields.sub_scales[index].cast_signed();
        let super_scale = packed.scale_multiplier * fields.scale_f32();
        let (scale, sum) = match packed.scales {
            ScaleStorage::OneF16 => (super_scale, sum),
            ScaleStorage::Exponent => (scale_of_exponent(fields.scale as u8), sum),
            ScaleStorage::SubScale | ScaleStorage::SixBits => (super_scale * f32::from(factor(step)), sum),
            ScaleStorage::HalfStepFloat => {
                let [first_scale, second_scale] =
                    [0, 1].map(|half| scale_of_float8(fields.sub_scales[2 * step + half]));
                (1.0, second_scale.mul_add(second as f32, first_scale * first as f32))
            }
            _ if packed.scales.is_per_half_step() => {
                let [first_factor, second_factor] = [0, 1].map(|half| i32::from(factor(2 * step + half)));
                (super_scale, (first_factor * first + second_factor * second) as f32)
            }
            // Formats of grids repeat the factor of a step for both halves.
            _ => (super_scale * f32::from(factor(2 * step)), sum),
        };
        accumulator = (scale * activations.scale).mul_add(sum, accumulator);
        let minimum = match packed.minimums {
            MinimumStorage::Absent => continue,
            MinimumStorage::Added => fields.minimum_f32(),
            MinimumStorage::SubtractedOfSuperBlock => {
                -(fields.minimum_f32() * f32::from(fields.sub_minimums[step]))
            }
            MinimumStorage::SubtractedOfHalfSteps => {
                let [first, second] = [0, 1].map(|half| {
                    i32::from(fields.sub_minimums[2 * step + half]) * i32::from(activations.half_sums[half])
                });
                let factor = -(fields.minimum_f32() * activations.scale);
                accumulator = factor.mul_add((first + second) as f32, accumulator);
                continue;
            }
        };
        accumulator = minimum.mul_add(activations.scaled_sum, accumulator);
    }
    accumulator
}

/// Integer products of the first and of the last 16 columns of a step.
#[inline(always)] // as `add_block`
fn half_step_sums(
    packed: &PackedBlock,
    quants: &[u8; STEP_COLUMNS],
    activations: &ActivationBlock,
) -> [i32; 2] {
    let mut sums = [0; 2];
    for (column, (&quant, &activation)) in quants.iter().zip(&activations.values).enumerate() {
        let weight = match packed.quants {
            QuantStorage::SignedCodes => i32::from(IQ4_VALUES[usize::from(quant)].cast_signed()),
            storage if storage.is_signed() => i32::from(quant.cast_signed()),
            QuantStorage::Codes => i32::from(CODES[usize::from(quant)]) - i32::from(packed.quant_offset),
            _ => i32::from(quant) - i32::from(packed.quant_offset),
        };
        sums[column / (STEP_COLUMNS / 2)] += weight * i32::from(activation);
    }
    sums
}

impl FloatTiles for ScalarTiles {
    const GROUPS_OF_FOUR_ROWS: usize = 4;

    unsafe fn tile<E: FloatElement, const GROUPS: usize, const ROWS: usize>(
        (columns, stride): (usize, usize),
        groups: &[u8],
        rows: &[f32],
        out: &mut [[Lanes; ROWS]; GROUPS],
    ) {
        let format = match E::KIND {
            FloatKind::F32 => WeightFormat::F32,
            FloatKind::F16 => WeightFormat::F16,
            FloatKind::Bf16 => WeightFormat::BF16,
        };
        let group_bytes = columns * GROUP_ROWS * E::BYTES;
        for (group, results) in groups.chunks_exact(group_bytes).zip(out) {
            for (row, lanes) in results.iter_mut().enumerate() {
                for (column, &activation) in rows[row * stride..][..columns].iter().enumerate() {
                    for (lane, accumulator) in lanes.iter_mut().enumerate() {
                        let weight = float_at(format, group, column * GROUP_ROWS + lane);
                        *accumulator = weight.mul_add(activation, *accumulator);
                    }
                }
            }
        }
    }

    unsafe fn decode<const BITS: usize>(piece: &Piece<'_>, values: &mut [Lanes]) {
        decode_scalar(piece, values);
    }
}
