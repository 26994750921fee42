//! How the experts of a layer lie in the model files, and how what was read becomes the matrices of a record.
//!
//! Mostly gate, up and down are matrices of rows, each by itself. Checkpoints of gpt-oss and Llama 4 hold gate and up in one
//! matrix, their rows in turn or one half each; as floats all matrices are transposed, as MXFP4 the codes and the exponents are
//! tensors of their own. A record is read in parts, the pieces of the file that belong to it as they are stored, each once; no
//! part is read for two matrices.
//! Next: `record` (what is made of them), `reading` (which reads them).

use coldpress_kernels::WeightFormat;
use coldpress_kernels::layout::{self, GROUP_ROWS, pack_group_from};
use coldpress_workers::Team;

use crate::geometry::{
    ExpertKey, ExpertOffsets, ExpertPlace, LayerExperts, MatrixPlace, PROJECTION_NAMES, RecordGeometry,
};
use crate::record::{self, GROUPS_PER_CHUNK, SourceMatrix};

/// Most parts that a record is read in.
pub(crate) const PARTS_MAX: usize = 4;

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
}

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
        match self.stored {
            Stored::Apart => 3,
            Stored::Transposed(_) => 2,
            Stored::Codes { .. } => 4,
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
        }
    }

    /// What is wrong with the formats for the way the matrices are stored, if anything.
    pub(crate) fn misfit(&self) -> Option<String> {
        let formats = self.projections().map(|projection| projection.format);
        let fits = match self.stored {
            Stored::Apart => true,
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
    let [first, second, third, fourth] = parts;
    match experts.stored {
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
    use crate::geometry::{Geometry, Projection};
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
        LayerExperts { expert_count: 1, gate, up, down, stored }
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
            let mut parts = [part(0), part(1), Vec::new(), Vec::new()];
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
        let (geometry, record) = record_of(&experts, &mut [both, both_exponents, down, down_exponents]);
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
