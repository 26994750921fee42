//! Packed groups back to fields and f32 values: the inverse of `pack.rs`, and the scalar kernels' view of a block.

use super::coded::{Unpacking, carry, read_six_bits};
use super::pack::SOURCE_BLOCK_BYTES_MAX;
use super::{
    CodesGroup, GROUP_ROWS, MatrixRef, MinimumStorage, PackedBlock, QuantStorage, ScaleStorage, VECTOR_BYTES,
    packed_block,
};
use crate::WeightFormat;
use crate::blocks::{BlockFields, QuantizedFormat, STEP_COLUMNS, float_at, with_quantized_format};

/// The f32 values of one row, bit-equal to `dequantize` of the source row. `out` has `matrix.columns()` elements.
///
/// # Panics
/// When `row` is not below `matrix.rows()` or `out` has another length.
pub fn unpack_row(matrix: &MatrixRef<'_>, row: usize, out: &mut [f32]) {
    unpack_unscaled(matrix, row, out);
    if matrix.factor() != 1.0 {
        out.iter_mut().for_each(|value| *value *= matrix.factor());
    }
}

fn unpack_unscaled(matrix: &MatrixRef<'_>, row: usize, out: &mut [f32]) {
    assert!(row < matrix.rows(), "row {row} of a matrix of {} rows", matrix.rows());
    assert_eq!(out.len(), matrix.columns(), "length of an unpacked row");
    let (group_index, lane) = (row / GROUP_ROWS, row % GROUP_ROWS);
    let group = &matrix.bytes()[group_index * matrix.group_bytes()..][..matrix.group_bytes()];
    let format = matrix.format();
    if let WeightFormat::Codes(coding) = format {
        let group = CodesGroup::new(coding, out.len(), group);
        let codebook = group.codebook();
        for (column, value) in out.iter_mut().enumerate() {
            *value = group.value(&codebook, lane, column);
        }
        return;
    }
    with_quantized_format!(format, Format => unpack_lane::<Format>(group, lane, out), float => {
        for (column, value) in out.iter_mut().enumerate() {
            *value = float_at(format, group, column * GROUP_ROWS + lane);
        }
    });
}

fn unpack_lane<F: QuantizedFormat>(group: &[u8], lane: usize, out: &mut [f32]) {
    let packed = const { packed_block(F::FORMAT) };
    let mut fields = BlockFields::zero();
    let values = out.chunks_exact_mut(F::FORMAT.block_elements());
    for (block, values) in group.chunks_exact(packed.bytes).zip(values) {
        read_lane::<F>(&packed, lane, block, &mut fields);
        F::dequantize(&fields, values);
    }
}

/// The fields of one row of a packed block of `F`, which `packed` describes.
#[inline(always)] // so that the layout of the format is known at compile time
pub(crate) fn read_lane<F: QuantizedFormat>(
    packed: &PackedBlock,
    lane: usize,
    block: &[u8],
    fields: &mut BlockFields,
) {
    if packed.quants.is_coded() {
        return read_coded_lane::<F>(lane, block, fields);
    }
    let half_at = |offset: usize| u16::from_le_bytes([block[offset], block[offset + 1]]);
    fields.scale = match packed.scales {
        ScaleStorage::Exponent => u16::from(block[lane]),
        ScaleStorage::HalfStepFloat => 0,
        _ => half_at(2 * lane),
    };
    if packed.minimums != MinimumStorage::Absent {
        fields.minimum = half_at(packed.minimums_at + 2 * lane);
    }
    read_sub_scales(packed, lane, &block[packed.sub_scales_at..], fields);
    if packed.minimums == MinimumStorage::SubtractedOfSuperBlock {
        for (index, sub_minimum) in fields.sub_minimums[..8].iter_mut().enumerate() {
            *sub_minimum = block[packed.sub_minimums_at + index * GROUP_ROWS + lane];
        }
    }
    let (quants, _) = fields.quants.as_chunks_mut::<STEP_COLUMNS>();
    let steps = block[packed.steps_at..].chunks_exact(packed.step_bytes);
    for (step, quants) in steps.zip(quants) {
        read_step_lane(packed.quants, lane, step, quants);
    }
}

/// By way of the source block.
#[inline(never)] // it is long, and used in several places
fn read_coded_lane<F: QuantizedFormat>(lane: usize, block: &[u8], fields: &mut BlockFields) {
    let packed = const { packed_block(F::FORMAT) };
    let mut memory = [0; SOURCE_BLOCK_BYTES_MAX];
    let source = &mut memory[..F::FORMAT.block_bytes()];
    carry(&packed, &mut Unpacking { source, lane, block });
    F::read(source, fields);
}

#[inline(always)] // as `read_lane`
fn read_sub_scales(packed: &PackedBlock, lane: usize, planes: &[u8], fields: &mut BlockFields) {
    match packed.scales {
        ScaleStorage::SixBits => {
            let values = read_six_bits::<8>(planes, lane);
            fields.sub_scales[..8].copy_from_slice(&values.map(|value| value.wrapping_sub(32)));
        }
        ScaleStorage::HalfStepSixBits => {
            fields.sub_scales = read_six_bits::<16>(planes, lane).map(|value| value.wrapping_sub(32));
        }
        ScaleStorage::HalfStepNibble => {
            for index in 0..16 {
                let both = planes[index * GROUP_ROWS + lane];
                fields.sub_scales[index] = both & 0x0f;
                fields.sub_minimums[index] = both >> 4;
            }
        }
        _ => {
            let count = packed.scales.sub_scale_bytes();
            for (index, sub_scale) in fields.sub_scales[..count].iter_mut().enumerate() {
                *sub_scale = planes[index * GROUP_ROWS + lane];
            }
        }
    }
}

#[inline(always)] // as `read_lane`
fn read_step_lane(storage: QuantStorage, lane: usize, step: &[u8], quants: &mut [u8; STEP_COLUMNS]) {
    let word = |vector: usize| {
        let bytes = &step[vector * VECTOR_BYTES + 4 * lane..][..4];
        u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    };
    let (words, _) = quants.as_chunks_mut::<4>();
    for (group, columns) in words.iter_mut().enumerate() {
        let nibbles = || word(group % 4) >> (group / 4 * 4) & 0x0f0f_0f0f;
        let pairs = |first: usize| word(first + group / 4) >> (group % 4 * 2) & 0x0303_0303;
        let bit = |vector: usize| word(vector) >> group & 0x0101_0101;
        let bits = match storage {
            QuantStorage::Bytes => word(group),
            QuantStorage::BitPairs => pairs(0),
            QuantStorage::BitPairsAndThirdBit => pairs(0) | bit(2) << 2,
            QuantStorage::NibblesAndFifthBit => nibbles() | bit(4) << 4,
            QuantStorage::NibblesAndBitPairs => nibbles() | pairs(4) << 4,
            _ => nibbles(),
        };
        *columns = bits.to_le_bytes();
    }
}
