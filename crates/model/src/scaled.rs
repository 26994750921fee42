//! Dense matrices of codes: codes, scales and biases come from different tensors, one after the other, in pieces.
//!
//! Each of the three is packed into its part of the place, whatever came before, so no more than a piece is held. A transposed matrix
//! is held as f32: its values are levels first, then they are scaled, then the biases are added.
//! Next: `weights.rs` (which reads), `layout/codes.rs` of `coldpress-kernels` (the packed form).

use std::ops::Range;

use coldpress_kernels::layout::{
    ScalePart, ScaleRows, levels_of_row, pack_codebook, pack_codes, pack_scales, scale_at,
};
use coldpress_kernels::{Coding, WeightFormat, packed_group_bytes};

use crate::error::ModelError;
use crate::spec::{DenseKind, DenseTensor, ScaledTensor};
use crate::weights::{GROUP_ROWS, TensorReader};

/// Largest codebook.
const CODEBOOK_MAX: usize = 256;

/// A matrix of codes while its parts arrive.
struct Matrix<'a> {
    coding: Coding,
    scaled: &'a ScaledTensor,
    /// Rows and columns as the file has them.
    rows: usize,
    columns: usize,
    /// Whether the columns of the file are rows in memory.
    transposed: bool,
    codebook: [f32; CODEBOOK_MAX],
}

impl<'a> Matrix<'a> {
    fn of(tensor: &DenseTensor, scaled: &'a ScaledTensor) -> Self {
        let WeightFormat::Codes(coding) = tensor.format else {
            unreachable!("{} has scales, and {} is not made of codes", tensor.name, tensor.format)
        };
        let (rows, columns, transposed) = match tensor.kind {
            DenseKind::Matrix { rows, columns } => (rows, columns, false),
            DenseKind::Transposed { rows, columns } => (columns, rows, true),
            _ => unreachable!("{} is a matrix of codes", tensor.name),
        };
        let mut codebook = [0.0; CODEBOOK_MAX];
        for (value, bits) in codebook.iter_mut().zip(scaled.codebook.iter().flat_map(|bits| bits.iter())) {
            *value = f32::from_bits(*bits);
        }
        Self { coding, scaled, rows, columns, transposed, codebook }
    }

    fn codebook(&self) -> &[f32] {
        &self.codebook[..self.coding.codebook_len()]
    }

    fn row_bytes(&self) -> usize {
        self.scaled.order.row_bytes(self.coding.bits(), self.columns)
    }

    fn scale_groups(&self) -> usize {
        self.columns.div_ceil(self.coding.group_columns(self.columns))
    }

    fn scale_row_bytes(&self) -> usize {
        self.scale_groups() * self.scaled.source.bytes()
    }

    /// Rows of codes, and of scales, that must stay together.
    fn multiples(&self) -> (usize, usize) {
        let ScaledTensor { rows_per_scale, rows_before, .. } = *self.scaled;
        match (self.transposed, rows_per_scale) {
            (true, _) => (1, 1),
            (false, 1) => (GROUP_ROWS, GROUP_ROWS),
            (false, _) if rows_before.is_multiple_of(GROUP_ROWS) => (GROUP_ROWS, 1),
            // The second row of scales begins inside of a group.
            (false, _) => (GROUP_ROWS, (rows_before + self.rows).div_ceil(rows_per_scale)),
        }
    }

    /// The packed groups of some rows.
    fn groups(&self, rows: &Range<usize>) -> Range<usize> {
        let bytes = packed_group_bytes(WeightFormat::Codes(self.coding), self.columns);
        rows.start / GROUP_ROWS * bytes..rows.end.div_ceil(GROUP_ROWS) * bytes
    }

    fn take_codes(&self, place: &mut [u8], first: usize, piece: &[u8]) {
        let rows = first..first + piece.len() / self.row_bytes();
        if !self.transposed {
            let shape = (rows.len(), self.columns);
            pack_codes(self.coding, shape, self.scaled.order, piece, &mut place[self.groups(&rows)]);
            return;
        }
        // A row of the file is a column in memory.
        let mut levels = [0.0; LEVELS_AT_ONCE];
        for (row, codes) in rows.zip(piece.chunks_exact(self.row_bytes())) {
            for first in (0..self.columns).step_by(LEVELS_AT_ONCE) {
                let count = LEVELS_AT_ONCE.min(self.columns - first);
                let levels = &mut levels[..count];
                let order = self.scaled.order;
                let start = order.row_bytes(self.coding.bits(), first);
                let codes = &codes[start..][..order.row_bytes(self.coding.bits(), count)];
                levels_of_row(self.coding, order, self.codebook(), codes, levels);
                for (index, level) in levels.iter().enumerate() {
                    *self.transposed_value(place, row, first + index) = *level;
                }
            }
        }
    }

    /// The value at `row` and `column` of the file in a transposed place.
    fn transposed_value<'p>(&self, place: &'p mut [u8], row: usize, column: usize) -> &'p mut f32 {
        let floats: &mut [f32] = bytemuck::cast_slice_mut(place);
        &mut floats[(column / GROUP_ROWS * self.rows + row) * GROUP_ROWS + column % GROUP_ROWS]
    }

    /// `first` counts rows of scales.
    fn take_scales(&self, place: &mut [u8], part: ScalePart, first: usize, piece: &[u8]) {
        let ScaledTensor { source, rows_per_scale, rows_before, .. } = *self.scaled;
        let count = piece.len() / self.scale_row_bytes();
        let row = |scale_row: usize| (scale_row * rows_per_scale).saturating_sub(rows_before).min(self.rows);
        let rows = row(first)..row(first + count);
        let before = if first == 0 { rows_before } else { 0 };
        if !self.transposed {
            let scales = ScaleRows { bytes: piece, source, rows_per_scale, rows_before: before };
            let shape = (rows.len(), self.columns);
            pack_scales(self.coding, shape, part, scales, &mut place[self.groups(&rows)]);
            return;
        }
        let (groups, group) = (self.scale_groups(), self.coding.group_columns(self.columns));
        for (index, row) in rows.enumerate() {
            let scale_row = (before + index) / rows_per_scale;
            for column in 0..self.columns {
                let scale = scale_at(source, piece, scale_row * groups + column / group);
                let value = self.transposed_value(place, row, column);
                match part {
                    ScalePart::Scales => *value *= scale,
                    ScalePart::Biases => *value += scale,
                }
            }
        }
    }
}

/// Levels that are made at a time: whole words of every width.
const LEVELS_AT_ONCE: usize = 960;

/// Reads and packs all parts of `tensor` into `place`. `count` is told the bytes of each piece.
///
/// # Errors
/// What reading or `count` reports.
pub(crate) fn load(
    tensor: &DenseTensor,
    scaled: &ScaledTensor,
    place: &mut [u8],
    reader: &mut dyn TensorReader,
    count: &mut dyn FnMut(usize) -> Result<(), ModelError>,
) -> Result<(), ModelError> {
    let matrix = Matrix::of(tensor, scaled);
    if !matrix.transposed && !matrix.codebook().is_empty() {
        pack_codebook(matrix.coding, matrix.columns, matrix.codebook(), place);
    }
    if matrix.transposed {
        place.fill(0);
    }
    let (code_rows, scale_rows) = matrix.multiples();
    let mut first = 0;
    reader.read(tensor.bytes, matrix.row_bytes(), code_rows, &mut |piece| {
        matrix.take_codes(place, first, piece);
        first += piece.len() / matrix.row_bytes();
        count(piece.len())
    })?;
    let parts = [(ScalePart::Scales, Some(scaled.scales)), (ScalePart::Biases, scaled.biases)];
    for (part, bytes) in parts {
        let Some(bytes) = bytes else { continue };
        let mut first = 0;
        reader.read(bytes, matrix.scale_row_bytes(), scale_rows, &mut |piece| {
            matrix.take_scales(place, part, first, piece);
            first += piece.len() / matrix.scale_row_bytes();
            count(piece.len())
        })?;
    }
    Ok(())
}

/// Bytes that a reader must be able to hand out in one piece.
pub(crate) fn largest_piece(tensor: &DenseTensor, scaled: &ScaledTensor) -> usize {
    let matrix = Matrix::of(tensor, scaled);
    let (code_rows, scale_rows) = matrix.multiples();
    (matrix.row_bytes() * code_rows).max(matrix.scale_row_bytes() * scale_rows)
}
