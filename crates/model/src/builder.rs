//! Checked construction of a [`ModelSpec`] from a model file.
//!
//! Every tensor that a family names is looked up, its shape and type are compared with what the architecture needs, and
//! it is marked as used. [`SpecBuilder::finish`] refuses a file with tensors that nobody asked for: a tensor that is
//! silently ignored is an answer that is silently wrong.
//! Metadata is untrusted: dimensions are bounded before they are multiplied.

use std::collections::HashSet;

use coldpress_experts::{ExpertOffsets, LayerExperts, Projection, weight_format};
use coldpress_formats::{Metadata, ModelFile, TensorInfo};
use coldpress_kernels::WeightFormat;

use crate::error::ModelError;
use crate::spec::{DenseKind, DenseTensor, LinearSpec, MatrixHandle, VectorHandle};

/// Largest value accepted for any single dimension of a model.
const DIMENSION_MAX: u64 = 1 << 24;
/// Dense tensors start at multiples of this in the dense buffer.
const PLACE_ALIGNMENT: usize = 64;

/// Collects the tensors of one model.
pub struct SpecBuilder<'a> {
    file: &'a ModelFile,
    prefix: String,
    used: HashSet<&'a str>,
    tensors: Vec<DenseTensor>,
    experts: Vec<LayerExperts>,
}

impl<'a> SpecBuilder<'a> {
    /// Starts a spec; `architecture` is the prefix of the file's metadata keys.
    pub fn new(file: &'a ModelFile, architecture: &str) -> Self {
        Self {
            file,
            prefix: architecture.to_owned(),
            used: HashSet::new(),
            tensors: Vec::new(),
            experts: Vec::new(),
        }
    }

    /// The file's metadata.
    pub fn metadata(&self) -> &'a Metadata {
        self.file.metadata()
    }

    /// Name of the model file for messages.
    pub fn file_name(&self) -> String {
        self.file.files().first().map_or_else(String::new, |file| file.path.display().to_string())
    }

    /// An error that says what is wrong with the file.
    pub fn bad(&self, detail: impl Into<String>) -> ModelError {
        ModelError::BadModel { file: self.file_name(), detail: detail.into() }
    }

    /// An error that names a feature which is not computed.
    pub fn unsupported(&self, detail: impl Into<String>) -> ModelError {
        ModelError::Unsupported { file: self.file_name(), detail: detail.into() }
    }

    /// The metadata key `{architecture}.{name}`.
    pub fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.prefix)
    }

    /// A dimension: an integer between 1 and 2^24.
    pub fn dimension(&self, name: &str) -> Result<usize, ModelError> {
        let key = self.key(name);
        let value = self.metadata().u64(&key)?;
        self.check_dimension(&key, value)
    }

    /// A dimension that may be absent.
    pub fn optional_dimension(&self, name: &str) -> Result<Option<usize>, ModelError> {
        let key = self.key(name);
        match self.metadata().opt_u64(&key)? {
            Some(value) => self.check_dimension(&key, value).map(Some),
            None => Ok(None),
        }
    }

    fn check_dimension(&self, key: &str, value: u64) -> Result<usize, ModelError> {
        if (1..=DIMENSION_MAX).contains(&value) {
            Ok(value as usize)
        } else {
            Err(self.bad(format!("{key} is {value}; a model needs a value between 1 and {DIMENSION_MAX}")))
        }
    }

    /// A finite float, or `default` where the key is absent.
    pub fn float_or(&self, name: &str, default: f32) -> Result<f32, ModelError> {
        let key = self.key(name);
        let value = self.metadata().opt_f32(&key)?.unwrap_or(default);
        if value.is_finite() {
            Ok(value)
        } else {
            Err(self.bad(format!("{key} is {value}, not a finite number")))
        }
    }

    /// Whether the file holds a tensor of this name.
    pub fn has(&self, name: &str) -> bool {
        self.file.tensor(name).is_some()
    }

    /// Shape of a tensor, innermost dimension first.
    pub fn shape(&self, name: &str) -> Result<&'a [u64], ModelError> {
        Ok(&self.file.require(name)?.shape)
    }

    fn take(&mut self, name: &str, shape: &[usize]) -> Result<(&'a TensorInfo, WeightFormat), ModelError> {
        let info = self.file.require(name)?;
        if !info.shape.iter().map(|&dim| dim as usize).eq(shape.iter().copied()) {
            let want = shape;
            return Err(
                self.bad(format!("tensor {name} has shape {:?}, the metadata asks for {want:?}", info.shape))
            );
        }
        let Some(format) = weight_format(info.tensor_type) else {
            return Err(self.unsupported(format!(
                "tensor {name} has type {}, which coldpress cannot compute with; convert the file to {}",
                info.tensor_type.name(),
                supported_formats()
            )));
        };
        self.used.insert(info.name.as_str());
        Ok((info, format))
    }

    fn push(&mut self, info: &TensorInfo, format: WeightFormat, kind: DenseKind) -> usize {
        let start = self.tensors.last().map_or(0, |last| last.place.end.next_multiple_of(PLACE_ALIGNMENT));
        let mut tensor = DenseTensor {
            name: info.name.clone(),
            format,
            kind,
            file: info.file,
            offset: info.offset,
            byte_len: info.byte_len,
            place: start..start,
        };
        tensor.place.end = start + tensor.resident_bytes();
        self.tensors.push(tensor);
        self.tensors.len() - 1
    }

    /// A matrix of `rows` outputs and `columns` inputs.
    pub fn matrix(&mut self, name: &str, rows: usize, columns: usize) -> Result<MatrixHandle, ModelError> {
        // A one-row matrix is stored as a vector in some files.
        let one_row = rows == 1 && self.file.tensor(name).is_some_and(|info| info.shape.len() == 1);
        let shape: &[usize] = if one_row { &[columns] } else { &[columns, rows] };
        let (info, format) = self.take(name, shape)?;
        Ok(MatrixHandle(self.push(info, format, DenseKind::Matrix { rows, columns })))
    }

    /// A vector of `length` values, held as f32.
    pub fn vector(&mut self, name: &str, length: usize) -> Result<VectorHandle, ModelError> {
        let (info, format) = self.take(name, &[length])?;
        Ok(VectorHandle(self.push(info, format, DenseKind::Vector { length })))
    }

    /// A vector where the file has one.
    pub fn optional_vector(&mut self, name: &str, length: usize) -> Result<Option<VectorHandle>, ModelError> {
        if self.has(name) { self.vector(name, length).map(Some) } else { Ok(None) }
    }

    /// `{stem}.weight` and, where present, `{stem}.bias`.
    pub fn linear(&mut self, stem: &str, rows: usize, columns: usize) -> Result<LinearSpec, ModelError> {
        let weight = self.matrix(&format!("{stem}.weight"), rows, columns)?;
        let bias = self.optional_vector(&format!("{stem}.bias"), rows)?;
        Ok(LinearSpec { weight, bias })
    }

    /// The routed experts of layer `layer`: stacked tensors `ffn_{gate,up,down}_exps`, or one tensor per expert as older
    /// converters wrote them. Returns the layer number of the expert store.
    pub fn experts(
        &mut self,
        layer: usize,
        count: usize,
        hidden: usize,
        width: usize,
    ) -> Result<usize, ModelError> {
        let gate = self.projection(layer, "gate", count, width, hidden)?;
        let up = self.projection(layer, "up", count, width, hidden)?;
        let down = self.projection(layer, "down", count, hidden, width)?;
        self.experts.push(LayerExperts { expert_count: count, gate, up, down });
        Ok(self.experts.len() - 1)
    }

    fn projection(
        &mut self,
        layer: usize,
        part: &str,
        count: usize,
        rows: usize,
        columns: usize,
    ) -> Result<Projection, ModelError> {
        let big_endian = self.file.big_endian();
        let stacked = format!("blk.{layer}.ffn_{part}_exps.weight");
        if self.has(&stacked) || !self.has(&format!("blk.{layer}.ffn_{part}.0.weight")) {
            let (info, format) = self.take(&stacked, &[columns, rows, count])?;
            let offsets = ExpertOffsets::Stride { first: info.offset, stride: info.byte_len / count as u64 };
            return Ok(Projection { format, rows, columns, file: info.file, offsets, big_endian });
        }
        let mut offsets = Vec::with_capacity(count);
        let mut common: Option<(WeightFormat, usize)> = None;
        for expert in 0..count {
            let name = format!("blk.{layer}.ffn_{part}.{expert}.weight");
            let (info, format) = self.take(&name, &[columns, rows])?;
            if *common.get_or_insert((format, info.file)) != (format, info.file) {
                return Err(self.unsupported(format!(
                    "{name} differs from expert 0 of its layer in type or split part; convert the model again \
                     with stacked expert tensors"
                )));
            }
            offsets.push(info.offset);
        }
        let (format, file) = common.ok_or_else(|| self.bad(format!("layer {layer} has no experts")))?;
        Ok(Projection { format, rows, columns, file, offsets: ExpertOffsets::Each(offsets), big_endian })
    }

    /// Returns the collected tensors and experts, or names the tensors that nothing uses.
    pub fn finish(self) -> Result<(Vec<DenseTensor>, Vec<LayerExperts>), ModelError> {
        let unused: Vec<&str> = self
            .file
            .tensors()
            .map(|tensor| tensor.name.as_str())
            .filter(|name| !self.used.contains(name))
            .collect();
        if unused.is_empty() {
            return Ok((self.tensors, self.experts));
        }
        let shown = unused.iter().take(5).copied().collect::<Vec<_>>().join(", ");
        Err(self.unsupported(format!(
            "{} tensors have no place in architecture '{}': {shown}{}",
            unused.len(),
            self.prefix,
            if unused.len() > 5 { ", …" } else { "" }
        )))
    }
}

fn supported_formats() -> String {
    WeightFormat::ALL.iter().map(|format| format.name()).collect::<Vec<_>>().join(", ")
}
