//! The dense weights: everything outside the routed experts, packed for the kernels, in one buffer.
//!
//! Loading asks a [`TensorReader`] for each tensor in pieces and packs every piece at once, so the peak is the finished
//! weights plus one piece. The bytes are pinned: nothing ever evicts them.

use coldpress_kernels::blocks::{dequantize, to_little_endian};
use coldpress_kernels::{MatrixRef, WeightFormat, pack_column, pack_rows, packed_group_bytes};
use coldpress_memory::{Buffer, Bytes, Ledger, Purpose};

use crate::error::ModelError;
use crate::scaled;
use crate::spec::{
    DenseKind, DenseTensor, FileBytes, MatrixHandle, ModelSpec, Picked, TableHandle, VectorHandle,
};

/// Rows that are packed together; a piece holds whole groups.
pub(crate) const GROUP_ROWS: usize = 16;

/// Where the bytes of dense tensors come from.
pub trait TensorReader {
    /// Calls `take` with consecutive pieces of `bytes` from the first to the last. Every piece is whole rows of
    /// `row_bytes` bytes, and all but the last a multiple of `rows_multiple` rows. The bytes may be changed.
    ///
    /// # Errors
    /// What reading or `take` reports.
    fn read(
        &mut self,
        bytes: FileBytes,
        row_bytes: usize,
        rows_multiple: usize,
        take: &mut dyn FnMut(&mut [u8]) -> Result<(), ModelError>,
    ) -> Result<(), ModelError>;
}

/// The loaded dense weights of one model.
pub struct DenseWeights {
    /// Absent in the stand-in that a model has while its weights are elsewhere.
    buffer: Option<Buffer>,
    tensors: Vec<DenseTensor>,
}

impl DenseWeights {
    /// Reads and packs all dense tensors of `spec`. `progress` receives bytes done and bytes in all and returns whether to
    /// go on.
    ///
    /// # Errors
    /// The ledger has no room, a read failed, or `progress` asked to stop.
    pub fn load(
        ledger: &Ledger,
        spec: &ModelSpec,
        big_endian: bool,
        reader: &mut dyn TensorReader,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<Self, ModelError> {
        let mut buffer = Buffer::new(ledger, Purpose::Dense, Bytes(spec.dense_bytes() as u64))?;
        let all = spec.tensors.iter().flat_map(DenseTensor::all_bytes);
        let total: u64 = all.map(|bytes| bytes.byte_len).sum();
        let mut done = 0;
        for tensor in &spec.tensors {
            let place = &mut buffer.as_bytes_mut()[tensor.place.clone()];
            let mut count = |bytes: usize| {
                done += bytes as u64;
                if progress(done, total) { Ok(()) } else { Err(ModelError::Cancelled) }
            };
            if let Some(scaled) = &tensor.scaled {
                scaled::load(tensor, scaled, place, reader, &mut count)?;
                continue;
            }
            let mut place = Filling { tensor, place, at: 0, seen: 0 };
            let (row_bytes, rows_multiple) = piece_shape(tensor);
            reader.read(tensor.bytes, row_bytes, rows_multiple, &mut |piece| {
                if big_endian {
                    to_little_endian(tensor.format, piece);
                }
                place.take(piece)?;
                count(piece.len())
            })?;
        }
        Ok(Self { buffer: Some(buffer), tensors: spec.tensors.clone() })
    }

    /// What a model has whose weights were taken out: none.
    pub(crate) fn stand_in() -> Self {
        Self { buffer: None, tensors: Vec::new() }
    }

    fn buffer(&self) -> &Buffer {
        self.buffer.as_ref().expect("a model computes with its weights in place")
    }

    /// A packed matrix.
    pub fn matrix(&self, handle: MatrixHandle) -> MatrixRef<'_> {
        let tensor = &self.tensors[handle.0];
        let (DenseKind::Matrix { rows, columns } | DenseKind::Transposed { rows, columns }) = tensor.kind
        else {
            panic!("{} is a vector, its handle says matrix", tensor.name);
        };
        let bytes = &self.buffer().as_bytes()[tensor.place.clone()];
        let factor = tensor.factor.map_or(1.0, |factor| self.vector(factor)[0]);
        MatrixRef::new(tensor.held_format(), rows, columns, bytes)
            .expect("the place of a matrix has its packed length")
            .with_factor(factor)
    }

    /// A table of whole numbers, row by row.
    pub fn table(&self, handle: TableHandle) -> &[u32] {
        let place = &self.tensors[handle.0].place;
        &self.buffer().as_slice_of::<u32>()[place.start / size_of::<u32>()..place.end / size_of::<u32>()]
    }

    /// A vector of f32 values.
    pub fn vector(&self, handle: VectorHandle) -> &[f32] {
        let tensor = &self.tensors[handle.0];
        assert!(matches!(tensor.kind, DenseKind::Vector { .. }), "{} is a matrix", tensor.name);
        &self.buffer().as_slice_of::<f32>()[tensor.place.start / 4..tensor.place.end / 4]
    }
}

/// A tensor's place while its pieces arrive.
struct Filling<'a> {
    tensor: &'a DenseTensor,
    place: &'a mut [u8],
    /// What is filled: bytes of the place, or columns of a transposed matrix.
    at: usize,
    /// Values of the file that have come, of a vector.
    seen: usize,
}

impl Filling<'_> {
    fn take(&mut self, piece: &[u8]) -> Result<(), ModelError> {
        let format = self.tensor.format;
        match self.tensor.kind {
            DenseKind::Matrix { columns, .. } => {
                let rows = piece.len() / format.row_bytes(columns);
                let bytes = rows.div_ceil(GROUP_ROWS) * packed_group_bytes(format, columns);
                pack_rows(format, rows, columns, piece, &mut self.place[self.at..self.at + bytes]);
                self.at += bytes;
            }
            DenseKind::Transposed { rows, columns } => {
                if self.at == 0 {
                    self.place.fill(0);
                }
                let held = self.tensor.held_format();
                let mut values = vec![0f32; if held == format { 0 } else { rows }];
                for row in piece.chunks_exact(format.row_bytes(rows)) {
                    let row = if held == format {
                        row
                    } else {
                        dequantize(format, row, &mut values);
                        bytemuck::cast_slice(&values)
                    };
                    pack_column(held, rows, columns, self.at, row, self.place);
                    self.at += 1;
                }
            }
            DenseKind::Table { number_bytes, below, .. } => {
                return self.take_numbers(piece, number_bytes, below);
            }
            DenseKind::Vector { .. } => {
                let values = elements(format, piece.len());
                if self.tensor.picked != Picked::ALL {
                    self.pick(piece, values);
                    return Ok(());
                }
                let out = &mut self.place[self.at..self.at + values * size_of::<f32>()];
                let floats: &mut [f32] = bytemuck::cast_slice_mut(out);
                dequantize(format, piece, floats);
                if self.tensor.offset_added != 0.0 {
                    floats.iter_mut().for_each(|value| *value += self.tensor.offset_added);
                }
                self.at += values * size_of::<f32>();
            }
        }
        Ok(())
    }

    /// Whole numbers of a table.
    fn take_numbers(&mut self, piece: &[u8], number_bytes: usize, below: u32) -> Result<(), ModelError> {
        for bytes in piece.chunks_exact(number_bytes) {
            // The first bytes are the lowest; the others must be zero.
            let (low, high) = bytes.split_at(size_of::<u32>());
            let number = low.iter().rev().fold(0u32, |number, &byte| number << 8 | u32::from(byte));
            if number >= below || high.iter().any(|&byte| byte != 0) {
                return Err(ModelError::BadModel {
                    file: self.tensor.name.clone(),
                    detail: format!("entry {} is not a number below {below}", self.at / size_of::<u32>()),
                });
            }
            self.place[self.at..self.at + size_of::<u32>()].copy_from_slice(&number.to_ne_bytes());
            self.at += size_of::<u32>();
        }
        Ok(())
    }

    /// Takes the picked ones of `values` floats.
    fn pick(&mut self, piece: &[u8], values: usize) {
        let (format, Picked { first, step }) = (self.tensor.format, self.tensor.picked);
        for (index, bytes) in piece.chunks_exact(format.block_bytes()).enumerate() {
            let index = self.seen + index;
            if index >= first && (index - first).is_multiple_of(step) {
                let out = &mut self.place[self.at..self.at + size_of::<f32>()];
                dequantize(format, bytes, bytemuck::cast_slice_mut(out));
                self.at += size_of::<f32>();
            }
        }
        self.seen += values;
    }
}

/// Source bytes of a row, and the number of rows that must stay together.
fn piece_shape(tensor: &DenseTensor) -> (usize, usize) {
    match tensor.kind {
        DenseKind::Matrix { columns, .. } => (tensor.format.row_bytes(columns), GROUP_ROWS),
        DenseKind::Transposed { rows, .. } => (tensor.format.row_bytes(rows), 1),
        DenseKind::Table { columns, number_bytes, .. } => (columns * number_bytes, 1),
        DenseKind::Vector { .. } => (tensor.format.block_bytes(), 1),
    }
}

/// Bytes that a [`TensorReader`] must be able to hand out in one piece.
pub fn largest_piece(spec: &ModelSpec) -> usize {
    let pieces = spec.tensors.iter().map(|tensor| match &tensor.scaled {
        Some(scaled) => scaled::largest_piece(tensor, scaled),
        None => {
            let (row_bytes, rows) = piece_shape(tensor);
            row_bytes * rows
        }
    });
    pieces.max().unwrap_or(0)
}

fn elements(format: WeightFormat, bytes: usize) -> usize {
    bytes / format.block_bytes() * format.block_elements()
}

#[cfg(test)]
mod tests {
    use coldpress_kernels::blocks::quantize;
    use coldpress_kernels::unpack_row;

    use super::*;

    /// Columns of the source become rows, whatever the format and the pieces.
    #[test]
    fn a_transposed_matrix_has_the_values_of_the_source() {
        let (rows, columns) = (64, 5);
        let values: Vec<f32> = (0..rows * columns).map(|at| ((at * 37) % 101) as f32 / 16.0 - 3.0).collect();
        for format in
            [WeightFormat::F32, WeightFormat::F16, WeightFormat::BF16, WeightFormat::Q8_0, WeightFormat::Q4_0]
        {
            let mut source = vec![0; columns * format.row_bytes(rows)];
            quantize(format, &values, &mut source).expect("a format that is written");
            let mut exact = vec![0f32; values.len()];
            dequantize(format, &source, &mut exact);
            let kind = DenseKind::Transposed { rows, columns };
            let mut tensor = DenseTensor {
                name: "a tensor".to_owned(),
                format,
                kind,
                bytes: FileBytes { file: 0, offset: 0, byte_len: source.len() as u64 },
                scaled: None,
                offset_added: 0.0,
                picked: Picked::ALL,
                factor: None,
                place: 0..0,
            };
            tensor.place.end = tensor.resident_bytes();
            let mut place = vec![255; tensor.place.end];
            let (row_bytes, _) = piece_shape(&tensor);
            let mut filling = Filling { tensor: &tensor, place: &mut place, at: 0, seen: 0 };
            filling.take(&source[..2 * row_bytes]).expect("a matrix takes any values");
            filling.take(&source[2 * row_bytes..]).expect("a matrix takes any values");
            let matrix = MatrixRef::new(tensor.held_format(), rows, columns, &place).expect("its length");
            for row in 0..rows {
                let mut found = vec![0f32; columns];
                unpack_row(&matrix, row, &mut found);
                let wanted: Vec<f32> = (0..columns).map(|column| exact[column * rows + row]).collect();
                assert_eq!(found, wanted, "{format} row {row}");
            }
        }
    }
}
