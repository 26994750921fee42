//! Source rows to packed groups.

use super::coded::{Packing, carry, write_six_bits};
use super::{
    GROUP_ROWS, MinimumStorage, PackedBlock, QuantStorage, STEP_GROUPS, ScaleStorage, VECTOR_BYTES,
    packed_block, packed_bytes, packed_group_bytes,
};
use crate::WeightFormat;
use crate::blocks::{BlockFields, QuantizedFormat, STEP_COLUMNS, with_quantized_format};

/// Packs up to 16 contiguous source rows of `columns` elements into one group; missing rows become zero.
///
/// `source_rows`: rows * `format.row_bytes(columns)` bytes; `out`: `packed_group_bytes(format, columns)` bytes.
///
/// # Panics
/// When a length does not fit, or there are more than 16 rows.
pub fn pack_group(format: WeightFormat, columns: usize, source_rows: &[u8], out: &mut [u8]) {
    let row_bytes = format.row_bytes(columns);
    assert!(source_rows.len().is_multiple_of(row_bytes), "{format}: source is not a whole number of rows");
    let rows = source_rows.len() / row_bytes;
    assert!(rows <= GROUP_ROWS, "{format}: {rows} rows do not fit a group of {GROUP_ROWS}");
    assert_eq!(out.len(), packed_group_bytes(format, columns), "{format}: length of a packed group");
    if rows < GROUP_ROWS {
        out.fill(0);
    }
    with_quantized_format!(format, Format => pack_blocks::<Format>(row_bytes, source_rows, out), float => {
        match format.block_bytes() {
            2 => interleave_elements::<2>(row_bytes, source_rows, out),
            _ => interleave_elements::<4>(row_bytes, source_rows, out),
        }
    });
}

/// Packs a matrix of `rows` rows: [`pack_group`] for each 16 rows.
///
/// # Panics
/// When a length does not fit.
pub fn pack_rows(format: WeightFormat, rows: usize, columns: usize, source: &[u8], out: &mut [u8]) {
    let row_bytes = format.row_bytes(columns);
    assert_eq!(source.len(), rows * row_bytes, "{format}: length of the source");
    assert_eq!(out.len(), packed_bytes(format, rows, columns), "{format}: length of the packed matrix");
    let groups = out.chunks_exact_mut(packed_group_bytes(format, columns));
    for (group_source, group) in source.chunks(GROUP_ROWS * row_bytes).zip(groups) {
        pack_group(format, columns, group_source, group);
    }
}

/// Writes column `column` of a packed matrix of float elements from its `rows` values.
///
/// # Panics
/// When the format has blocks, or a length or number does not fit.
pub fn pack_column(
    format: WeightFormat,
    rows: usize,
    columns: usize,
    column: usize,
    source: &[u8],
    out: &mut [u8],
) {
    assert!(format.is_float(), "{format} has blocks along its rows, which columns cut");
    assert!(column < columns, "column {column} of {columns}");
    let element = format.block_bytes();
    assert_eq!(source.len(), rows * element, "{format}: length of a column");
    assert_eq!(out.len(), packed_bytes(format, rows, columns), "{format}: length of the packed matrix");
    let groups = out.chunks_exact_mut(packed_group_bytes(format, columns));
    for (lanes, group) in source.chunks(GROUP_ROWS * element).zip(groups) {
        group[column * GROUP_ROWS * element..][..lanes.len()].copy_from_slice(lanes);
    }
}

/// Packs a group of `rows` rows (at most 16) whose blocks lie anywhere: `block(lane, index, bytes)` fills in block `index` of the
/// row in `lane`, of `format.block_bytes()` bytes. Missing rows become zero.
///
/// # Panics
/// When there are more than 16 rows, or `out` does not have `packed_group_bytes(format, columns)` bytes.
pub fn pack_group_from(
    format: WeightFormat,
    rows: usize,
    columns: usize,
    out: &mut [u8],
    block: impl Fn(usize, usize, &mut [u8]),
) {
    assert!(rows <= GROUP_ROWS, "{format}: {rows} rows do not fit a group of {GROUP_ROWS}");
    assert_eq!(out.len(), packed_group_bytes(format, columns), "{format}: length of a packed group");
    if rows < GROUP_ROWS {
        out.fill(0);
    }
    let mut memory = [0; SOURCE_BLOCK_BYTES_MAX];
    let source = &mut memory[..format.block_bytes()];
    with_quantized_format!(format, Format => {
        for (index, packed) in out.chunks_exact_mut(const { packed_block(Format::FORMAT) }.bytes).enumerate() {
            for lane in 0..rows {
                block(lane, index, source);
                pack_block::<Format>(lane, source, &mut BlockFields::zero(), packed);
            }
        }
    }, float => {
        let bytes = format.block_bytes();
        for (index, packed) in out.chunks_exact_mut(GROUP_ROWS * bytes).enumerate() {
            for (lane, element) in packed.chunks_exact_mut(bytes).take(rows).enumerate() {
                block(lane, index, element);
            }
        }
    });
}

/// Bytes of the largest source block, that of Q6_K.
pub(super) const SOURCE_BLOCK_BYTES_MAX: usize = 210;

fn interleave_elements<const BYTES: usize>(row_bytes: usize, source_rows: &[u8], out: &mut [u8]) {
    for (lane, row) in source_rows.chunks_exact(row_bytes).enumerate() {
        for (element, column) in row.chunks_exact(BYTES).zip(out.chunks_exact_mut(GROUP_ROWS * BYTES)) {
            column[lane * BYTES..(lane + 1) * BYTES].copy_from_slice(element);
        }
    }
}

fn pack_blocks<F: QuantizedFormat>(row_bytes: usize, source_rows: &[u8], out: &mut [u8]) {
    let packed = const { packed_block(F::FORMAT) };
    let block_bytes = F::FORMAT.block_bytes();
    let mut fields = BlockFields::zero();
    for (index, block) in out.chunks_exact_mut(packed.bytes).enumerate() {
        for (lane, row) in source_rows.chunks_exact(row_bytes).enumerate() {
            let source = &row[index * block_bytes..][..block_bytes];
            pack_block::<F>(lane, source, &mut fields, block);
        }
    }
}

/// One source block to its lane of a packed block.
#[inline(always)] // as `write_lane`
fn pack_block<F: QuantizedFormat>(lane: usize, source: &[u8], fields: &mut BlockFields, block: &mut [u8]) {
    let packed = const { packed_block(F::FORMAT) };
    if const { F::NIBBLES_IN_STEP_ORDER } {
        copy_lane(&packed, lane, source, block);
    } else if packed.quants.is_coded() {
        carry(&packed, &mut Packing { source, lane, block });
    } else {
        F::read(source, fields);
        write_lane(&packed, lane, fields, block);
    }
}

/// The lane of a source block that holds its scale, minimum, fifth bits and nibbles one after the other, as far as the format
/// has them: the nibbles of four columns are the word of the packed step already.
#[inline(always)] // as `write_lane`
fn copy_lane(packed: &PackedBlock, lane: usize, source: &[u8], block: &mut [u8]) {
    let mut rest = source;
    let mut take = |bytes: usize| rest.split_off(..bytes).expect("a source block has all its fields");
    match packed.scales {
        ScaleStorage::Exponent => block[lane..][..1].copy_from_slice(take(1)),
        _ => block[2 * lane..][..2].copy_from_slice(take(2)),
    }
    if packed.minimums == MinimumStorage::Added {
        block[packed.minimums_at + 2 * lane..][..2].copy_from_slice(take(2));
    }
    let step = &mut block[packed.steps_at..];
    let mut put = |vector: usize, word: [u8; 4]| {
        step[vector * VECTOR_BYTES + 4 * lane..][..4].copy_from_slice(&word);
    };
    if packed.quants == QuantStorage::NibblesAndFifthBit {
        let fifth = take(4).iter().rev().fold(0, |bits, byte| bits << 8 | u32::from(*byte));
        put(4, fifth_bit_plane(fifth).to_le_bytes());
    }
    for vector in 0..4 {
        put(vector, take(4).try_into().expect("four bytes"));
    }
}

/// Bit `4 g + c` of 32 goes to bit `g` of byte `c`.
pub(super) fn fifth_bit_plane(bits: u32) -> u32 {
    // The product puts a copy of the four bits of a column group at each byte; the mask leaves one bit of each.
    (0..STEP_GROUPS)
        .fold(0, |plane, group| plane | (((bits >> (4 * group) & 0xf) * 0x0020_4081) & 0x0101_0101) << group)
}

#[inline(always)] // so that the layout of the format is known at compile time
fn write_lane(packed: &PackedBlock, lane: usize, fields: &BlockFields, block: &mut [u8]) {
    match packed.scales {
        ScaleStorage::Exponent => block[lane] = fields.scale as u8,
        ScaleStorage::HalfStepFloat => {}
        _ => block[2 * lane..][..2].copy_from_slice(&fields.scale.to_le_bytes()),
    }
    if packed.minimums != MinimumStorage::Absent {
        block[packed.minimums_at + 2 * lane..][..2].copy_from_slice(&fields.minimum.to_le_bytes());
    }
    write_sub_scales(packed, lane, fields, &mut block[packed.sub_scales_at..]);
    if packed.minimums == MinimumStorage::SubtractedOfSuperBlock {
        for (index, &sub_minimum) in fields.sub_minimums[..8].iter().enumerate() {
            block[packed.sub_minimums_at + index * GROUP_ROWS + lane] = sub_minimum;
        }
    }
    let (quants, _) = fields.quants.as_chunks::<STEP_COLUMNS>();
    let steps = block[packed.steps_at..].chunks_exact_mut(packed.step_bytes);
    for (step, quants) in steps.zip(quants) {
        write_step_lane(packed.quants, lane, quants, step);
    }
}

#[inline(always)] // as `write_lane`
fn write_sub_scales(packed: &PackedBlock, lane: usize, fields: &BlockFields, planes: &mut [u8]) {
    let with_offset = |index: usize| fields.sub_scales[index].wrapping_add(32);
    match packed.scales {
        ScaleStorage::SixBits => write_six_bits::<8>(&std::array::from_fn(with_offset), planes, lane),
        ScaleStorage::HalfStepSixBits => {
            write_six_bits::<16>(&std::array::from_fn(with_offset), planes, lane)
        }
        ScaleStorage::HalfStepNibble => {
            for index in 0..16 {
                planes[index * GROUP_ROWS + lane] =
                    fields.sub_scales[index] | fields.sub_minimums[index] << 4;
            }
        }
        _ => {
            let count = packed.scales.sub_scale_bytes();
            for (index, &sub_scale) in fields.sub_scales[..count].iter().enumerate() {
                planes[index * GROUP_ROWS + lane] = sub_scale;
            }
        }
    }
}

/// Four columns at a time as one little-endian word, in every plane of the step.
#[inline(always)] // as `write_lane`
fn write_step_lane(storage: QuantStorage, lane: usize, quants: &[u8; STEP_COLUMNS], step: &mut [u8]) {
    let (words, _) = quants.as_chunks::<4>();
    let word = |group: usize| u32::from_le_bytes(words[group]);
    let mut put = |vector: usize, bits: u32| {
        step[vector * VECTOR_BYTES + 4 * lane..][..4].copy_from_slice(&bits.to_le_bytes());
    };
    if storage == QuantStorage::Bytes {
        for group in 0..STEP_GROUPS {
            put(group, word(group));
        }
        return;
    }
    let bit_pairs = |plane: usize, from: u32| {
        (0..4).fold(0, |bits, pair| bits | (word(plane * 4 + pair) >> from & 0x0303_0303) << (2 * pair))
    };
    let bits = |from: u32| {
        (0..STEP_GROUPS).fold(0, |plane, group| plane | (word(group) >> from & 0x0101_0101) << group)
    };
    if let QuantStorage::BitPairs | QuantStorage::BitPairsAndThirdBit = storage {
        put(0, bit_pairs(0, 0));
        put(1, bit_pairs(1, 0));
        if storage == QuantStorage::BitPairsAndThirdBit {
            put(2, bits(2));
        }
        return;
    }
    for vector in 0..4 {
        put(vector, (word(vector) & 0x0f0f_0f0f) | (word(vector + 4) & 0x0f0f_0f0f) << 4);
    }
    match storage {
        QuantStorage::NibblesAndFifthBit => put(4, bits(4)),
        QuantStorage::NibblesAndBitPairs => {
            put(4, bit_pairs(0, 4));
            put(5, bit_pairs(1, 4));
        }
        _ => {}
    }
}
