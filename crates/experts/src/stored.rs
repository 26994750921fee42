//! How the experts of a layer lie in the model files, and how what was read becomes the matrices of a record.
//!
//! Mostly gate, up and down are matrices of rows, each by itself. Checkpoints of gpt-oss and Llama 4 hold gate and up in one
//! matrix, their rows in turn or one half each; as floats all matrices are transposed, as MXFP4 the codes and the exponents are
//! tensors of their own. A record is read in parts, the pieces of the file that belong to it as they are stored, each once; no
//! part is read for two matrices. Codes with scales (MLX, FP8, INT4, JANG) come with arrays of scales and biases, which are parts of
//! their own.
//! Next: `record` (what is made of them), `reading` (which reads them).

use std::sync::Arc;

use coldpress_kernels::layout::{
    self, CodeOrder, GROUP_ROWS, ScalePart, ScaleRows, pack_codebook, pack_codes, pack_group_from,
    pack_scales,
};
use coldpress_kernels::vector::Rotation;
use coldpress_kernels::{Coding, ScaleSource, WeightFormat};
use coldpress_workers::Team;

use crate::geometry::{
    ExpertKey, ExpertOffsets, ExpertPlace, LayerExperts, MatrixPlace, PROJECTION_NAMES, Projection,
    RecordGeometry,
};
use crate::record::{self, GROUPS_PER_CHUNK, SourceMatrix};

/// Most parts that a record is read in: codes, scales and biases of three matrices.
pub(crate) const PARTS_MAX: usize = 9;

/// Elements of an MXFP4 block, and bytes of their codes.
const BLOCK_ELEMENTS: usize = 32;
const CODE_BYTES: usize = 16;

/// How the matrices of an expert are stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Stored {
    /// Gate, up and down by themselves, rows of blocks.
    #[default]
    Apart,
    /// Floats: `[hidden, 2 * inner]` with columns of gate and up, and down as `[inner, hidden]`. Gate and up start at the same
    /// place.
    Transposed(GateUp),
    /// MXFP4: the codes of `[2 * inner, hidden]` with gate in the even rows and up in the odd ones, 16 bytes a block with
    /// neighbours in the two halves of a byte; down as `[hidden, inner]`. Gate and up start at the same place.
    Codes {
        /// Exponents of gate and up, a byte for each block.
        gate_up_exponents: ExpertBytes,
        /// Exponents of down.
        down_exponents: ExpertBytes,
    },
    /// Gate, up and down by themselves, rows of codes; what belongs to the codes of each. A matrix without that is rows of blocks.
    WithScales(Box<[Option<Scaled>; 3]>),
}

/// What belongs to the codes of a matrix of an expert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scaled {
    /// How the codes of a row follow each other.
    pub order: CodeOrder,
    /// Where the scales lie: a row of them for each `rows_per_scale` rows.
    pub scales: ExpertBytes,
    /// How scales and biases are written.
    pub source: ScaleSource,
    /// Rows that share a row of scales.
    pub rows_per_scale: usize,
    /// Where the biases lie, as many as scales.
    pub biases: Option<ExpertBytes>,
    /// The bits of the f32 values that the codes stand for, in codings with a codebook.
    pub codebook: Option<Arc<[u32]>>,
    /// What the inputs of the matrix go through, whoever computes with it.
    pub rotation: Option<Rotation>,
}

impl Scaled {
    /// Bytes of the scales of a matrix of `rows` and `columns`, and of its biases.
    fn scale_bytes(&self, coding: Coding, rows: usize, columns: usize) -> usize {
        let groups = columns.div_ceil(coding.group_columns(columns));
        rows.div_ceil(self.rows_per_scale) * groups * self.source.bytes()
    }

    /// Whether the codes have what `coding` asks for.
    fn fits(&self, coding: Coding) -> bool {
        self.source.held() == coding.scales()
            && self.biases.is_some() == coding.has_bias()
            && self.codebook.as_ref().map_or(0, |values| values.len()) == coding.codebook_len()
            && (self.rows_per_scale == 1 || self.rows_per_scale.is_multiple_of(GROUP_ROWS))
    }
}

/// Names of codes, scales and biases of gate, up and down.
const SCALED_NAMES: [[&str; 3]; 3] = [
    ["gate", "scales of gate", "biases of gate"],
    ["up", "scales of up", "biases of up"],
    ["down", "scales of down", "biases of down"],
];

/// How the columns of a transposed matrix of gate and up are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateUp {
    /// Gate in the even columns, up in the odd ones (gpt-oss).
    InTurns,
    /// Gate in the first half of the columns, up in the second one (Llama 4).
    Halves,
}

/// A piece of each expert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpertBytes {
    /// Index into the list of model files.
    pub file: usize,
    /// Where each expert starts in that file.
    pub offsets: ExpertOffsets,
}

/// One part of the experts of a layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part<'a> {
    pub name: &'static str,
    pub file: usize,
    offsets: &'a ExpertOffsets,
    /// Bytes of it in one expert.
    pub bytes: usize,
}

impl Part<'_> {
    /// Where the part of `expert` starts; `None` where the list is too short or a sum overflows.
    pub fn place(&self, expert: usize) -> Option<ExpertPlace> {
        self.offsets.place(self.file, expert)
    }
}

impl LayerExperts {
    /// Parts that an expert is read in.
    pub(crate) fn part_count(&self) -> usize {
        match &self.stored {
            Stored::Apart => 3,
            Stored::Transposed(_) => 2,
            Stored::Codes { .. } => 4,
            Stored::WithScales(scaled) => scaled.iter().map(parts_of_matrix).sum(),
        }
    }

    /// The matrix and the number among its parts of part `index` of matrices with scales.
    fn scaled_part(&self, scaled: &[Option<Scaled>; 3], index: usize) -> Part<'_> {
        let mut left = index;
        let matrix = scaled.iter().position(|scaled| {
            let count = parts_of_matrix(scaled);
            let is_here = left < count;
            left -= if is_here { 0 } else { count };
            is_here
        });
        let matrix = matrix.expect("a part of the record");
        let projection = self.projections()[matrix];
        let Projection { format, rows, columns, .. } = *projection;
        let name = SCALED_NAMES[matrix][left];
        match (&self.stored, format) {
            (Stored::WithScales(all), WeightFormat::Codes(coding)) if left > 0 => {
                let scaled = all[matrix].as_ref().expect("only codes have further parts");
                let bytes = scaled.scale_bytes(coding, rows, columns);
                let place = if left == 1 { Some(&scaled.scales) } else { scaled.biases.as_ref() };
                let place = place.expect("a matrix without biases has two parts");
                Part { name, file: place.file, offsets: &place.offsets, bytes }
            }
            (Stored::WithScales(all), WeightFormat::Codes(coding)) => {
                let order = all[matrix].as_ref().map_or(CodeOrder::Stream, |scaled| scaled.order);
                let bytes = rows * order.row_bytes(coding.bits(), columns);
                Part { name, file: projection.file, offsets: &projection.offsets, bytes }
            }
            _ => Part {
                name,
                file: projection.file,
                offsets: &projection.offsets,
                bytes: projection.expert_bytes(),
            },
        }
    }

    /// Part `index` of the layer's experts. Only for shapes that [`Geometry::new`](crate::Geometry::new) accepted.
    pub(crate) fn part(&self, index: usize) -> Part<'_> {
        let part = |name, file, offsets, bytes| Part { name, file, offsets, bytes };
        let (gate, down) = (&self.gate, &self.down);
        let blocks = |rows: usize, columns: usize| rows * columns / BLOCK_ELEMENTS;
        match (&self.stored, index) {
            (Stored::Apart, _) => {
                let projection = self.projections()[index];
                let bytes = projection.expert_bytes();
                part(PROJECTION_NAMES[index], projection.file, &projection.offsets, bytes)
            }
            (Stored::Transposed(_), 0) => {
                part("gate and up", gate.file, &gate.offsets, 2 * gate.expert_bytes())
            }
            (Stored::Transposed(_), _) => part("down", down.file, &down.offsets, down.expert_bytes()),
            (Stored::Codes { .. }, 0) => {
                let bytes = 2 * blocks(gate.rows, gate.columns) * CODE_BYTES;
                part("gate and up", gate.file, &gate.offsets, bytes)
            }
            (Stored::Codes { gate_up_exponents: exponents, .. }, 1) => {
                let bytes = 2 * blocks(gate.rows, gate.columns);
                part("exponents of gate and up", exponents.file, &exponents.offsets, bytes)
            }
            (Stored::Codes { .. }, 2) => {
                part("down", down.file, &down.offsets, blocks(down.rows, down.columns) * CODE_BYTES)
            }
            (Stored::Codes { down_exponents: exponents, .. }, _) => {
                let bytes = blocks(down.rows, down.columns);
                part("exponents of down", exponents.file, &exponents.offsets, bytes)
            }
            (Stored::WithScales(scaled), _) => self.scaled_part(scaled, index),
        }
    }

    /// What is wrong with the formats for the way the matrices are stored, if anything.
    pub(crate) fn misfit(&self) -> Option<String> {
        let formats = self.projections().map(|projection| projection.format);
        let coding = |format: WeightFormat| match format {
            WeightFormat::Codes(coding) => Some(coding),
            _ => None,
        };
        let fits = match &self.stored {
            Stored::Apart => formats.iter().all(|&format| coding(format).is_none()),
            Stored::WithScales(all) => {
                all.iter().zip(formats).all(|(scaled, format)| match (scaled, coding(format)) {
                    (Some(scaled), Some(coding)) => scaled.fits(coding),
                    (scaled, coding) => scaled.is_none() && coding.is_none(),
                })
            }
            Stored::Transposed(_) => {
                formats.iter().all(|format| format.is_float()) && formats[0] == formats[1]
            }
            Stored::Codes { .. } => formats == [WeightFormat::Mxfp4; 3],
        };
        let [gate, up, down] = formats;
        (!fits).then(|| format!("gate is {gate}, up {up}, down {down}, which are not stored like this"))
    }
}

/// Builds the record of `key` from its parts as they were read; see [`record::arrange`].
pub(crate) fn arrange(
    team: &Team<'_>,
    experts: &LayerExperts,
    geometry: &RecordGeometry,
    key: ExpertKey,
    parts: [&mut [u8]; PARTS_MAX],
    record: &mut [u8],
) {
    for (index, part) in parts.iter().enumerate().take(experts.part_count()) {
        assert_eq!(part.len(), experts.part(index).bytes, "bytes of a part of {key}");
    }
    if let Stored::WithScales(scaled) = &experts.stored {
        return arrange_scaled(team, experts, scaled, geometry, key, parts, record);
    }
    let [first, second, third, fourth, ..] = parts;
    match experts.stored {
        Stored::WithScales(_) => unreachable!("returned above"),
        Stored::Apart => {
            let [gate, up, down] = experts.projections().map(|projection| projection.big_endian);
            let sources = [
                SourceMatrix { bytes: first, big_endian: gate },
                SourceMatrix { bytes: second, big_endian: up },
                SourceMatrix { bytes: third, big_endian: down },
            ];
            record::arrange(team, geometry, key, sources, record);
        }
        Stored::Transposed(order) => {
            record::arrange_with(team, geometry, key, record, |matrix, place, out| {
                let bytes = place.format.block_bytes();
                let (source, row_elements, step, first_column) = match (matrix, order) {
                    (2, _) => (&*second, place.rows, 1, 0),
                    (_, GateUp::InTurns) => (&*first, 2 * place.rows, 2, matrix),
                    (_, GateUp::Halves) => (&*first, 2 * place.rows, 1, matrix * place.rows),
                };
                pack(team, place, out, |row, column, element| {
                    let at = (column * row_elements + first_column + step * row) * bytes;
                    element.copy_from_slice(&source[at..at + bytes]);
                });
            })
        }
        Stored::Codes { .. } => record::arrange_with(team, geometry, key, record, |matrix, place, out| {
            let row_blocks = place.columns / BLOCK_ELEMENTS;
            let (codes, exponents, step, first_row) = match matrix {
                2 => (&*third, &*fourth, 1, 0),
                _ => (&*first, &*second, 2, matrix),
            };
            pack(team, place, out, |row, index, block| {
                let at = (first_row + step * row) * row_blocks + index;
                block[0] = exponents[at];
                order_codes(&codes[at * CODE_BYTES..][..CODE_BYTES], &mut block[1..]);
            });
        }),
    }
}

/// Parts of a matrix.
fn parts_of_matrix(scaled: &Option<Scaled>) -> usize {
    scaled.as_ref().map_or(1, |scaled| if scaled.biases.is_some() { 3 } else { 2 })
}

/// Builds a record of matrices with scales.
fn arrange_scaled(
    team: &Team<'_>,
    experts: &LayerExperts,
    scaled: &[Option<Scaled>; 3],
    geometry: &RecordGeometry,
    key: ExpertKey,
    parts: [&mut [u8]; PARTS_MAX],
    record: &mut [u8],
) {
    let mut parts = parts;
    let mut first = 0;
    record::arrange_with(team, geometry, key, record, |matrix, place, out| {
        let parts = &mut parts[first..first + parts_of_matrix(&scaled[matrix])];
        first += parts.len();
        match (&scaled[matrix], place.format) {
            (Some(scaled), WeightFormat::Codes(coding)) => {
                pack_scaled(team, scaled, coding, place, parts, out)
            }
            _ => {
                let big_endian = experts.projections()[matrix].big_endian;
                record::pack_source(team, place, SourceMatrix { bytes: &mut *parts[0], big_endian }, out);
            }
        }
    });
}

/// Packs a matrix of codes by the whole team; `parts` are its codes, scales and biases.
fn pack_scaled(
    team: &Team<'_>,
    scaled: &Scaled,
    coding: Coding,
    place: &MatrixPlace,
    parts: &[&mut [u8]],
    out: &mut [u8],
) {
    let MatrixPlace { format, rows, columns, .. } = *place;
    let row_bytes = scaled.order.row_bytes(coding.bits(), columns);
    let group_bytes = layout::packed_group_bytes(format, columns);
    let scale_row_bytes = scaled.scale_bytes(coding, 1, columns);
    team.for_each_part_mut(out, GROUPS_PER_CHUNK * group_bytes, |chunk, packed, _worker| {
        let first = chunk * GROUPS_PER_CHUNK * GROUP_ROWS;
        let count = (GROUPS_PER_CHUNK * GROUP_ROWS).min(rows - first);
        // Between the parts of a group are gaps.
        packed.fill(0);
        if let Some(bits) = &scaled.codebook {
            let mut values = [0.0; 256];
            let values = &mut values[..bits.len()];
            values.iter_mut().zip(bits.iter()).for_each(|(value, bits)| *value = f32::from_bits(*bits));
            pack_codebook(coding, columns, values, packed);
        }
        let kinds = [ScalePart::Scales, ScalePart::Biases];
        for (kind, bytes) in kinds.into_iter().zip(&parts[1..]) {
            let rows = ScaleRows {
                bytes: &bytes[first / scaled.rows_per_scale * scale_row_bytes..],
                source: scaled.source,
                rows_per_scale: scaled.rows_per_scale,
                rows_before: first % scaled.rows_per_scale,
            };
            pack_scales(coding, (count, columns), kind, rows, packed);
        }
        let codes = &parts[0][first * row_bytes..][..count * row_bytes];
        pack_codes(coding, (count, columns), scaled.order, codes, packed);
    });
}

/// Packs a matrix by the whole team, `block(row, index, bytes)` fills in block `index` of a row.
fn pack(
    team: &Team<'_>,
    place: &MatrixPlace,
    out: &mut [u8],
    block: impl Fn(usize, usize, &mut [u8]) + Sync,
) {
    let MatrixPlace { format, rows, columns, .. } = *place;
    let group_bytes = layout::packed_group_bytes(format, columns);
    team.for_each_part_mut(out, GROUPS_PER_CHUNK * group_bytes, |chunk, groups, _worker| {
        for (group, packed) in groups.chunks_exact_mut(group_bytes).enumerate() {
            let first = (chunk * GROUPS_PER_CHUNK + group) * GROUP_ROWS;
            let count = GROUP_ROWS.min(rows - first);
            pack_group_from(format, count, columns, packed, |lane, index, bytes| {
                block(first + lane, index, bytes)
            });
        }
    });
}

/// From columns `2 i` and `2 i + 1` in the halves of byte `i` to columns `i` and `i + 16`.
fn order_codes(source: &[u8], out: &mut [u8]) {
    let (front, back) = source.split_at(CODE_BYTES / 2);
    let (pairs, _) = out.as_chunks_mut::<2>();
    for ((front, back), pair) in front.iter().zip(back).zip(pairs) {
        *pair = [front & 0x0f | back << 4, front >> 4 | back & 0xf0];
    }
}

#[cfg(test)]
mod tests {
    use coldpress_kernels::layout::{MatrixRef, unpack_row};
    use coldpress_workers::Workers;

    use super::*;
    use crate::geometry::Geometry;
    use crate::record::RecordRef;

    const HIDDEN: usize = 64;
    const INNER: usize = 32;

    fn layer(format: WeightFormat, stored: Stored) -> LayerExperts {
        let projection = |rows, columns| Projection {
            format,
            rows,
            columns,
            file: 0,
            offsets: ExpertOffsets::Stride { first: 0, stride: 1 << 20 },
            big_endian: false,
        };
        let (gate, up, down) =
            (projection(INNER, HIDDEN), projection(INNER, HIDDEN), projection(HIDDEN, INNER));
        LayerExperts { expert_count: 1, gate, up, down, stored, quantised: None }
    }

    fn codes() -> Stored {
        let bytes = ExpertBytes { file: 0, offsets: ExpertOffsets::Each(vec![0]) };
        Stored::Codes { gate_up_exponents: bytes.clone(), down_exponents: bytes }
    }

    fn record_of(experts: &LayerExperts, parts: &mut [Vec<u8>; PARTS_MAX]) -> (Geometry, Vec<u8>) {
        let geometry = Geometry::new(std::slice::from_ref(experts)).expect("fits together");
        let key = ExpertKey { layer: 0, expert: 0 };
        let mut record = vec![0xee; geometry.layer(0).record_bytes];
        Workers::new(2).enter(|team| {
            let parts = parts.each_mut().map(Vec::as_mut_slice);
            arrange(team, experts, geometry.layer(0), key, parts, &mut record);
        });
        record::verify(key, &record).expect("a whole record");
        (geometry, record)
    }

    fn assert_rows(matrix: MatrixRef<'_>, value: impl Fn(usize, usize) -> f32) {
        let mut found = vec![f32::NAN; matrix.columns()];
        for row in 0..matrix.rows() {
            unpack_row(&matrix, row, &mut found);
            for (column, found) in found.iter().enumerate() {
                assert_eq!(*found, value(row, column), "row {row}, column {column}");
            }
        }
    }

    #[test]
    fn transposed_matrices_come_back_as_rows() {
        for (order, step, second) in [(GateUp::InTurns, 2, 1), (GateUp::Halves, 1, INNER)] {
            let experts = layer(WeightFormat::F32, Stored::Transposed(order));
            // Every element is its number in the part.
            let part = |index: usize| {
                let elements = experts.part(index).bytes / 4;
                (0..elements).flat_map(|at| (at as f32).to_le_bytes()).collect::<Vec<u8>>()
            };
            let mut parts: [Vec<u8>; PARTS_MAX] = Default::default();
            (parts[0], parts[1]) = (part(0), part(1));
            let (geometry, record) = record_of(&experts, &mut parts);
            let record = RecordRef::new(geometry.layer(0), &record);
            assert_rows(record.gate(), |row, column| (column * 2 * INNER + step * row) as f32);
            assert_rows(record.up(), |row, column| (column * 2 * INNER + step * row + second) as f32);
            assert_rows(record.down(), |row, column| (column * HIDDEN + row) as f32);
        }
    }

    #[test]
    fn codes_and_exponents_meet_in_blocks() {
        const VALUES: [f32; 16] =
            [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];
        let experts = layer(WeightFormat::Mxfp4, codes());
        let code = |row: usize, column: usize| (7 * row + 3 * column + column / 16) % 16;
        let exponent = |row: usize, block: usize| 120 + (3 * row + block) % 11;
        let part = |rows: usize, columns: usize| -> (Vec<u8>, Vec<u8>) {
            let codes = (0..rows * columns / 2).map(|at| {
                let (row, column) = (2 * at / columns, 2 * at % columns);
                (code(row, column) | code(row, column + 1) << 4) as u8
            });
            let blocks = columns / BLOCK_ELEMENTS;
            let exponents = (0..rows * blocks).map(|at| exponent(at / blocks, at % blocks) as u8);
            (codes.collect(), exponents.collect())
        };
        let (both, both_exponents) = part(2 * INNER, HIDDEN);
        let (down, down_exponents) = part(HIDDEN, INNER);
        let mut parts: [Vec<u8>; PARTS_MAX] = Default::default();
        for (part, bytes) in parts.iter_mut().zip([both, both_exponents, down, down_exponents]) {
            *part = bytes;
        }
        let (geometry, record) = record_of(&experts, &mut parts);
        let record = RecordRef::new(geometry.layer(0), &record);
        let value = |row: usize, column: usize| {
            VALUES[code(row, column)] * 2f32.powi(exponent(row, column / BLOCK_ELEMENTS) as i32 - 127)
        };
        assert_rows(record.gate(), |row, column| value(2 * row, column));
        assert_rows(record.up(), |row, column| value(2 * row + 1, column));
        assert_rows(record.down(), value);
    }

    #[test]
    fn formats_that_are_not_stored_like_this_are_refused() {
        let refused = |format, stored| {
            let error = Geometry::new(&[layer(format, stored)]).expect_err("formats that do not fit");
            assert!(error.to_string().contains("not stored like this"), "{error}");
        };
        refused(WeightFormat::Q8_0, Stored::Transposed(GateUp::InTurns));
        refused(WeightFormat::F32, codes());
    }
}
