//! Matrices of codes with scales: dense ones and those of experts, as a container (`containers/`) finds them.

use coldpress_experts::{ExpertBytes, ExpertOffsets, ExpertPlace, LayerExperts, Projection, Scaled, Stored};
use coldpress_formats::TensorInfo;
use coldpress_kernels::WeightFormat;

use super::SpecBuilder;
use crate::containers::{self, Found, Wanted};
use crate::error::ModelError;
use crate::names::Names;
use crate::spec::{DenseKind, ExpertRotations, FileBytes, ScaledTensor};

/// A matrix of the experts of a layer, and what belongs to its codes.
pub(super) type ExpertMatrix = (Projection, Option<Scaled>);

impl<'a> SpecBuilder<'a> {
    /// Refuses a folder whose configuration names a way to hold codes that is not read.
    ///
    /// # Errors
    /// It does; the key is named.
    pub fn check_codes(&self) -> Result<(), ModelError> {
        match self.names {
            Names::Gguf { .. } => Ok(()),
            Names::HuggingFace { .. } => {
                containers::check(self.file).map_err(|detail| self.unsupported(detail))
            }
        }
    }

    /// Whether any matrix so far is made of codes.
    pub(super) fn holds_codes(&self) -> bool {
        let of_experts = |layer: &LayerExperts| matches!(layer.stored, Stored::WithScales(_));
        self.tensors.iter().any(|tensor| tensor.scaled.is_some()) || self.experts.iter().any(of_experts)
    }

    /// Name of the module of a matrix in the file.
    fn module(&self, name: &str) -> Option<String> {
        match self.names {
            Names::Gguf { .. } => None,
            Names::HuggingFace { .. } => {
                self.name_in_file(name).and_then(|name| name.strip_suffix(".weight").map(str::to_owned))
            }
        }
    }

    /// The tensor of codes of a matrix that has no tensor of its own name.
    pub(super) fn find_codes(&self, name: &str) -> Option<&'a TensorInfo> {
        containers::codes_of(self.file, &self.module(name)?)
    }

    /// The matrix `name`, where the file holds it as codes; its tensors are marked as used.
    pub(super) fn find_scaled(
        &mut self,
        name: &str,
        rows: usize,
        columns: usize,
        count: Option<usize>,
    ) -> Result<Option<Found<'a>>, ModelError> {
        let Some(module) = self.module(name) else { return Ok(None) };
        let wanted = Wanted { module: &module, rows, columns, count, derived: &self.derived };
        let found = containers::find(self.file, wanted).map_err(|detail| self.unsupported(detail))?;
        if let Some(found) = &found {
            let all = [Some(found.codes), Some(found.scales), found.biases].into_iter().flatten();
            for info in all.chain(found.also.iter().copied()) {
                self.used.insert(&info.name);
                self.note(name, info);
            }
        }
        Ok(found)
    }

    /// As [`Self::find_scaled`], for a matrix that is not one of an expert.
    pub(super) fn find_dense(
        &mut self,
        name: &str,
        rows: usize,
        columns: usize,
        count: Option<usize>,
    ) -> Result<Option<Found<'a>>, ModelError> {
        let found = self.find_scaled(name, rows, columns, count)?;
        match &found {
            Some(Found { rotation: Some(_), codes, .. }) => {
                let name = &codes.name;
                Err(self.unsupported(format!(
                    "tensor {name} is for rotated inputs; of experts such are computed"
                )))
            }
            _ => Ok(found),
        }
    }

    /// A dense matrix of codes: `rows` rows from row `first` on of the tensors.
    pub(super) fn push_scaled(
        &mut self,
        found: &Found<'a>,
        kind: DenseKind,
        first: usize,
        rows: usize,
    ) -> usize {
        let whole_rows = found.rows();
        let index = self.push(found.codes, WeightFormat::Codes(found.coding), kind);
        let cut = |info: &TensorInfo, all: usize, first: usize, count: usize| {
            let row_bytes = info.byte_len / all.max(1) as u64;
            FileBytes {
                file: info.file,
                offset: info.offset + first as u64 * row_bytes,
                byte_len: count as u64 * row_bytes,
            }
        };
        let shared = found.rows_per_scale;
        let (all_scales, first_scale) = (whole_rows.div_ceil(shared), first / shared);
        let scales = (first % shared + rows).div_ceil(shared);
        let tensor = &mut self.tensors[index];
        tensor.bytes = cut(found.codes, whole_rows, first, rows);
        tensor.scaled = Some(Box::new(ScaledTensor {
            order: found.order,
            scales: cut(found.scales, all_scales, first_scale, scales),
            source: found.source,
            rows_per_scale: shared,
            rows_before: first % shared,
            biases: found.biases.map(|biases| cut(biases, all_scales, first_scale, scales)),
            codebook: found.codebook.clone(),
        }));
        index
    }

    /// One tensor of codes with the matrices of all experts.
    pub(super) fn stacked_scaled(
        &self,
        found: &Found<'a>,
        count: usize,
        rows: usize,
        columns: usize,
    ) -> ExpertMatrix {
        let of = |info: &TensorInfo| ExpertBytes {
            file: info.file,
            offsets: ExpertOffsets::Stride { first: info.offset, stride: info.byte_len / count as u64 },
        };
        let codes = of(found.codes);
        let projection = Projection {
            format: WeightFormat::Codes(found.coding),
            rows,
            columns,
            file: codes.file,
            offsets: codes.offsets,
            big_endian: false,
        };
        (projection, Some(found.scaled(of(found.scales), found.biases.map(of))))
    }

    /// Tensors of codes of each expert; `found` has one entry per expert.
    pub(super) fn apart_scaled(
        &self,
        found: &[Found<'a>],
        rows: usize,
        columns: usize,
    ) -> Result<ExpertMatrix, ModelError> {
        let Some(first) = found.first() else { return Err(self.bad("a layer has no experts")) };
        if let Some(other) = found.iter().find(|other| !other.is_like(first)) {
            return Err(self.unsupported(format!(
                "{} is {}, expert 0 of its layer is {}; all experts of a layer must be alike",
                other.codes.name, other.coding, first.coding
            )));
        }
        let places = |info: &dyn Fn(&Found<'a>) -> &'a TensorInfo| {
            let place = |found| ExpertPlace { file: info(found).file, offset: info(found).offset };
            ExpertBytes {
                file: info(first).file,
                offsets: ExpertOffsets::Places(found.iter().map(place).collect()),
            }
        };
        let codes = places(&|found| found.codes);
        let biases = first.biases.map(|biases| places(&move |found| found.biases.unwrap_or(biases)));
        let projection = Projection {
            format: WeightFormat::Codes(first.coding),
            rows,
            columns,
            file: codes.file,
            offsets: codes.offsets,
            big_endian: false,
        };
        Ok((projection, Some(first.scaled(places(&|found| found.scales), biases))))
    }

    /// Halves of the rows of a matrix of experts: gate and up in one.
    pub(super) fn halves(&self, (both, scaled): &ExpertMatrix) -> Result<[ExpertMatrix; 2], ModelError> {
        let rows = both.rows / 2;
        let later = |bytes: &ExpertBytes, distance: u64| match bytes.offsets {
            ExpertOffsets::Stride { first, stride } => Ok(ExpertBytes {
                file: bytes.file,
                offsets: ExpertOffsets::Stride { first: first + distance, stride },
            }),
            _ => Err(self.bad("gate and up of each expert lie in tensors of their own, and together")),
        };
        let codes = ExpertBytes { file: both.file, offsets: both.offsets.clone() };
        let gate = Projection { rows, ..both.clone() };
        let Some(scaled) = scaled else {
            let distance = both.format.row_bytes(both.columns) as u64 * rows as u64;
            let up = Projection { offsets: later(&codes, distance)?.offsets, ..gate.clone() };
            return Ok([(gate, None), (up, None)]);
        };
        let WeightFormat::Codes(coding) = both.format else { return Err(self.bad("scales without codes")) };
        if !rows.is_multiple_of(scaled.rows_per_scale) {
            return Err(self.unsupported(format!(
                "gate and up have {rows} rows each in one matrix, whose scales are shared by {} rows",
                scaled.rows_per_scale
            )));
        }
        let distance = (rows * scaled.order.row_bytes(coding.bits(), both.columns)) as u64;
        let groups = both.columns.div_ceil(coding.group_columns(both.columns));
        let scales = (rows / scaled.rows_per_scale * groups * scaled.source.bytes()) as u64;
        let up = Projection { offsets: later(&codes, distance)?.offsets, ..gate.clone() };
        let biases = scaled.biases.as_ref().map(|biases| later(biases, scales)).transpose()?;
        let of_up = Scaled { scales: later(&scaled.scales, scales)?, biases, ..scaled.clone() };
        Ok([(gate, Some(scaled.clone())), (up, Some(of_up))])
    }

    /// The layer's experts of three matrices.
    pub(super) fn push_matrices(
        &mut self,
        count: usize,
        matrices: [ExpertMatrix; 3],
    ) -> Result<usize, ModelError> {
        let [(gate, of_gate), (up, of_up), (down, of_down)] = matrices;
        let rotation = |scaled: &Option<Scaled>| scaled.as_ref().and_then(|scaled| scaled.rotation.clone());
        let rotations = ExpertRotations { input: rotation(&of_gate), inner: rotation(&of_down) };
        if rotation(&of_up) != rotations.input {
            let layer = self.experts.len();
            return Err(self.unsupported(format!(
                "gate and up of the experts of mixture {layer} are for inputs that were rotated in different ways"
            )));
        }
        let scaled = [of_gate, of_up, of_down];
        let stored = match scaled.iter().any(Option::is_some) {
            true => Stored::WithScales(Box::new(scaled)),
            false => Stored::Apart,
        };
        let layer =
            self.push_experts(LayerExperts { expert_count: count, gate, up, down, stored, quantised: None });
        self.rotations[layer] = rotations;
        Ok(layer)
    }
}

impl Found<'_> {
    /// Rows of the codes, of all experts together where they are stacked.
    fn rows(&self) -> usize {
        self.codes.shape.iter().skip(1).product::<u64>() as usize
    }

    fn is_like(&self, other: &Found<'_>) -> bool {
        (self.coding, self.order, self.source, self.rows_per_scale, self.biases.is_some())
            == (other.coding, other.order, other.source, other.rows_per_scale, other.biases.is_some())
            && self.codebook == other.codebook
            && self.rotation == other.rotation
    }

    fn scaled(&self, scales: ExpertBytes, biases: Option<ExpertBytes>) -> Scaled {
        Scaled {
            order: self.order,
            scales,
            source: self.source,
            rows_per_scale: self.rows_per_scale,
            biases,
            codebook: self.codebook.clone(),
            rotation: self.rotation.clone(),
        }
    }
}
