//! Checked construction of a [`ModelSpec`] from a model file.
//!
//! Every tensor that a family names is looked up, its shape and type are compared with what the architecture needs, and
//! it is marked as used. [`SpecBuilder::finish`] refuses a file with tensors that nobody asked for: a tensor that is
//! silently ignored is an answer that is silently wrong.
//! Metadata is untrusted: dimensions are bounded before they are multiplied.

mod convolution;
mod counts;
mod experts;
mod factors;
mod fused;
mod later_tokens;
mod rows;
mod scaled;

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;

use coldpress_experts::{LayerExperts, RowTable, weight_format};
use coldpress_formats::{Array, Metadata, ModelFile, TensorInfo, TensorType, Value};
use coldpress_kernels::WeightFormat;
use coldpress_kernels::blocks::has_big_endian_form;

use crate::containers::{Derived, codes_of};
use crate::error::ModelError;
use crate::latent::HeadMatrices;
use crate::names::{HuggingFace, Names, number};
use crate::nested::Nested;
use crate::roles::{Role, TensorRole};
use counts::Counts;
pub(crate) use counts::LayerCount;

use crate::spec::{
    DenseKind, DenseTensor, ExpertRotations, FileBytes, LinearSpec, MatrixHandle, NormSpec, Picked,
    TableHandle, VectorHandle,
};

/// Largest value accepted for any single dimension of a model.
const DIMENSION_MAX: u64 = 1 << 24;
/// Dense tensors start at multiples of this in the dense buffer.
const PLACE_ALIGNMENT: usize = 64;

/// Collects the tensors of one model. All names are canonical ones, see `names.rs`.
pub struct SpecBuilder<'a> {
    file: &'a ModelFile,
    names: Names,
    used: HashSet<&'a str>,
    /// What the tensors that were asked for are for.
    roles: RefCell<HashMap<&'a str, Role>>,
    notes_roles: bool,
    tensors: Vec<DenseTensor>,
    experts: Vec<LayerExperts>,
    row_tables: Vec<RowTable>,
    counts: Counts,
    /// Added to the weights of every RMSNorm.
    norm_offset: f32,
    /// Blocks behind the layers, which lists may have entries for.
    later_blocks: usize,
    /// Per layer of `experts`.
    rotations: Vec<ExpertRotations>,
    derived: Derived,
}

impl<'a> SpecBuilder<'a> {
    /// Starts the spec of a GGUF file; `architecture` is the prefix of its metadata keys.
    pub fn gguf(file: &'a ModelFile, architecture: &str) -> Self {
        Self::new(file, Names::Gguf { prefix: architecture.to_owned() })
    }

    /// Starts the spec of a Hugging Face folder.
    pub(crate) fn hugging_face(file: &'a ModelFile, table: &'static HuggingFace) -> Self {
        Self::new(file, Names::HuggingFace { table, used: RefCell::new(BTreeSet::new()), nested: None })
    }

    /// Starts the spec of the text model in a Hugging Face folder with more than that.
    pub(crate) fn nested(file: &'a ModelFile, table: &'static HuggingFace) -> Self {
        let nested = Some(Nested::of(file));
        let mut builder =
            Self::new(file, Names::HuggingFace { table, used: RefCell::new(BTreeSet::new()), nested });
        let names = file.tensors().map(|tensor| tensor.name.as_str());
        builder.used.extend(names.filter(|name| Nested::is_other_tensor(name)));
        builder
    }

    /// `model_type` of a Hugging Face folder, of its text model where there is more.
    pub(crate) fn model_type(&self) -> Option<&'static str> {
        match self.names {
            Names::Gguf { .. } => None,
            Names::HuggingFace { table, .. } => Some(table.model_type),
        }
    }

    fn new(file: &'a ModelFile, names: Names) -> Self {
        let norm_offset = match &names {
            Names::Gguf { .. } => 0.0,
            Names::HuggingFace { table, .. } => table.norm_offset,
        };
        Self {
            norm_offset,
            rotations: Vec::new(),
            derived: Derived::default(),
            file,
            names,
            used: HashSet::new(),
            roles: RefCell::default(),
            notes_roles: false,
            tensors: Vec::new(),
            experts: Vec::new(),
            row_tables: Vec::new(),
            counts: Counts::default(),
            later_blocks: 0,
        }
    }

    /// `for_gguf` or `for_hugging_face`, whichever the file is.
    pub fn by_source<T>(&self, for_gguf: T, for_hugging_face: T) -> T {
        match self.names {
            Names::Gguf { .. } => for_gguf,
            Names::HuggingFace { .. } => for_hugging_face,
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

    /// The file's key of this name.
    ///
    /// # Errors
    /// The file says two things about it.
    pub fn key(&self, name: &str) -> Result<String, ModelError> {
        self.names.key(self.metadata(), name).map_err(|detail| self.bad(detail))
    }

    /// An integer, also 0; a list of equal integers, one per layer, counts as one.
    pub fn integer(&self, name: &str) -> Result<Option<u64>, ModelError> {
        let key = self.key(name)?;
        let Some(Value::Array(list)) = self.metadata().get(&key) else {
            return Ok(self.metadata().opt_u64(&key)?);
        };
        let values: Option<BTreeSet<i128>> = list.integers().map(Iterator::collect);
        let single = values.filter(|values| values.len() == 1).and_then(|values| values.first().copied());
        match single.and_then(|value| u64::try_from(value).ok()) {
            Some(value) => Ok(Some(value)),
            None => Err(self.unsupported(format!("{key} differs from layer to layer"))),
        }
    }

    /// One integer or switch per layer; one for all of them stands for a list.
    ///
    /// # Errors
    /// The list has another length, or something else in it.
    pub fn per_layer(&self, name: &str, layers: usize) -> Result<Option<Vec<u64>>, ModelError> {
        let key = self.key(name)?;
        let list: Option<Vec<u64>> = match self.metadata().get(&key) {
            None => return Ok(None),
            Some(Value::Array(Array::Bool(list))) => Some(list.iter().map(|&on| on.into()).collect()),
            Some(Value::Array(list)) => {
                list.integers().and_then(|all| all.map(|value| u64::try_from(value).ok()).collect())
            }
            Some(_) => {
                let all = self.metadata().opt_u64(&key)?;
                return Ok(all.map(|value| vec![value; layers]));
            }
        };
        match list {
            Some(mut list) if self.is_per_layer(list.len(), layers) => {
                list.truncate(layers);
                Ok(Some(list))
            }
            Some(list) => Err(self.bad(format!("{key} has {} entries for {layers} layers", list.len()))),
            None => Err(self.bad(format!("{key} is not a list of whole numbers"))),
        }
    }

    /// A dimension: an integer between 1 and 2^24.
    pub fn dimension(&self, name: &str) -> Result<usize, ModelError> {
        match self.optional_dimension(name)? {
            Some(value) => Ok(value),
            // For the error.
            None => Ok(self.metadata().u64(&self.key(name)?)? as usize),
        }
    }

    /// A dimension that may be absent.
    pub fn optional_dimension(&self, name: &str) -> Result<Option<usize>, ModelError> {
        match self.integer(name)? {
            Some(value) if (1..=DIMENSION_MAX).contains(&value) => Ok(Some(value as usize)),
            None => Ok(None),
            Some(value) => {
                let key = self.key(name)?;
                Err(self
                    .bad(format!("{key} is {value}; a model needs a value between 1 and {DIMENSION_MAX}")))
            }
        }
    }

    /// A finite float that may be absent. JSON does not tell 10000 from 10000.0, so there an integer is one too.
    pub fn optional_float(&self, name: &str) -> Result<Option<f32>, ModelError> {
        let key = self.key(name)?;
        let json = self.by_source(false, true);
        let value = match self.metadata().get(&key).filter(|_| json).and_then(number) {
            Some(value) => Some(value as f32),
            None => self.metadata().opt_f32(&key)?,
        };
        match value {
            Some(value) if !value.is_finite() => {
                Err(self.bad(format!("{key} is {value}, not a finite number")))
            }
            value => Ok(value),
        }
    }

    /// A finite float, or `default` where the key is absent.
    pub fn float_or(&self, name: &str, default: f32) -> Result<f32, ModelError> {
        Ok(self.optional_float(name)?.unwrap_or(default))
    }

    /// A finite float above zero, or `default` where the key is absent.
    pub fn positive_or(&self, name: &str, default: f32) -> Result<f32, ModelError> {
        let value = self.float_or(name, default)?;
        if value > 0.0 {
            return Ok(value);
        }
        Err(self.bad(format!("{} is {value}, not a positive number", self.key(name)?)))
    }

    /// A finite float above zero.
    pub fn positive(&self, name: &str) -> Result<f32, ModelError> {
        if self.optional_float(name)?.is_none() {
            // For the error.
            self.metadata().f32(&self.key(name)?)?;
        }
        self.positive_or(name, 0.0)
    }

    /// A list of finite floats.
    pub fn floats(&self, name: &str) -> Result<Option<Vec<f32>>, ModelError> {
        let key = self.key(name)?;
        let list = match self.metadata().get(&key) {
            Some(Value::Array(Array::Int64(list))) => Some(list.iter().map(|&value| value as f32).collect()),
            _ => self.metadata().opt_f32_array(&key)?,
        };
        match list {
            Some(values) if !values.iter().all(|value| value.is_finite()) => {
                Err(self.bad(format!("{key} has values that are not finite numbers")))
            }
            list => Ok(list),
        }
    }

    /// A flag that may be absent.
    pub fn flag(&self, name: &str) -> Result<Option<bool>, ModelError> {
        Ok(self.metadata().opt_bool(&self.key(name)?)?)
    }

    /// Whether the configuration of a text model inside a larger one says something else about a key than the larger one.
    pub fn is_contradicted(&self, key: &str) -> bool {
        let nested = matches!(self.names, Names::HuggingFace { nested: Some(_), .. });
        nested && Nested::contradicts_itself(self.metadata(), key)
    }

    /// A text that may be absent.
    pub fn text(&self, name: &str) -> Result<Option<&'a str>, ModelError> {
        Ok(self.metadata().opt_string(&self.key(name)?)?)
    }

    fn find(&self, name: &str) -> Option<&'a TensorInfo> {
        let info = self.name_in_file(name).and_then(|name| self.file.tensor(&name))?;
        self.note(name, info);
        Some(info)
    }

    fn require(&self, name: &str) -> Result<&'a TensorInfo, ModelError> {
        let info = self.file.require(&self.name_in_file(name).unwrap_or_else(|| name.to_owned()))?;
        self.note(name, info);
        Ok(info)
    }

    /// Notes what a tensor is for, by the canonical name that led to it.
    fn note(&self, name: &str, info: &'a TensorInfo) {
        if self.notes_roles {
            self.roles.borrow_mut().insert(&info.name, Role::of_canonical(name));
        }
    }

    /// From now on [`Self::roles`] knows what is asked for. A model that is only to run does without.
    pub(crate) fn note_roles(&mut self) {
        self.notes_roles = true;
    }

    /// What each tensor of the file is for, in the order of the file.
    pub(crate) fn roles(&self) -> Vec<TensorRole> {
        let noted = self.roles.borrow();
        let role = |tensor: &TensorInfo| match noted.get(tensor.name.as_str()) {
            Some(&role) if role != Role::Unknown => role,
            _ if Nested::is_other_tensor(&tensor.name) => Role::OtherParts,
            _ => Role::of_any(&tensor.name),
        };
        let has_place = |tensor: &TensorInfo| self.used.contains(tensor.name.as_str());
        self.file
            .tensors()
            .map(|tensor| TensorRole { role: role(tensor), has_place: has_place(tensor) })
            .collect()
    }

    /// The tensor of the file, or its module where it is codes, behind a canonical tensor.
    fn name_in_file(&self, name: &str) -> Option<String> {
        let holds_codes = |name: &str| {
            name.strip_suffix(".weight").is_some_and(|module| codes_of(self.file, module).is_some())
        };
        self.names.tensor(name, |name| self.file.tensor(name).is_some() || holds_codes(name))
    }

    /// Whether the file holds a tensor of this name.
    pub fn has(&self, name: &str) -> bool {
        self.find(name).is_some() || self.find_codes(name).is_some()
    }

    /// Shape of a tensor, innermost dimension first.
    pub fn shape(&self, name: &str) -> Result<&'a [u64], ModelError> {
        match self.find_codes(name) {
            Some(codes) => Ok(&codes.shape),
            None => Ok(&self.require(name)?.shape),
        }
    }

    /// Takes a tensor for used that says what another one says.
    pub fn pass_over(&mut self, name: &str) {
        self.used.extend(self.find(name).map(|info| info.name.as_str()));
    }

    /// Takes all tensors for used whose names begin like this in a file of their model alone: parts of a checkpoint that are not computed. They
    /// cost no memory.
    pub fn pass_over_all(&mut self, beginning: &str) {
        let beginning = self.names.in_file(beginning.to_owned());
        let all = self.file.tensors().map(|tensor| tensor.name.as_str());
        self.used.extend(all.filter(|name| name.starts_with(&beginning)));
    }

    fn take(&mut self, name: &str, shape: &[usize]) -> Result<(&'a TensorInfo, WeightFormat), ModelError> {
        let info = self.require(name)?;
        // Dimensions of 1 at the outside say nothing.
        let outermost =
            info.shape.iter().rposition(|&dim| dim != 1).map_or(1, |last| last + 1).max(shape.len());
        let found = &info.shape[..outermost.min(info.shape.len())];
        let name = &info.name;
        if !found.iter().map(|&dim| dim as usize).eq(shape.iter().copied()) {
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
        if self.file.big_endian() && !has_big_endian_form(format) {
            return Err(self.unsupported(format!(
                "tensor {name} has type {format}, whose byte order in big-endian files is not defined; use the \
                 little-endian file of the model"
            )));
        }
        self.used.insert(info.name.as_str());
        Ok((info, format))
    }

    fn push(&mut self, info: &TensorInfo, format: WeightFormat, kind: DenseKind) -> usize {
        let start = self.tensors.last().map_or(0, |last| last.place.end.next_multiple_of(PLACE_ALIGNMENT));
        let mut tensor = DenseTensor {
            name: info.name.clone(),
            format,
            kind,
            bytes: FileBytes { file: info.file, offset: info.offset, byte_len: info.byte_len },
            scaled: None,
            offset_added: 0.0,
            picked: Picked::ALL,
            factor: None,
            place: start..start,
        };
        tensor.place.end = start + tensor.resident_bytes();
        self.tensors.push(tensor);
        self.tensors.len() - 1
    }

    /// A matrix of `rows` outputs and `columns` inputs.
    pub fn matrix(&mut self, name: &str, rows: usize, columns: usize) -> Result<MatrixHandle, ModelError> {
        // A one-row matrix is stored as a vector in some files.
        let one_row = rows == 1 && self.find(name).is_some_and(|info| info.shape.len() == 1);
        let shape: &[usize] = if one_row { &[columns] } else { &[columns, rows] };
        let kind = DenseKind::Matrix { rows, columns };
        if let Some(found) = self.find_dense(name, rows, columns, None)? {
            return Ok(MatrixHandle(self.push_scaled(&found, kind, 0, rows)));
        }
        let (info, format) = self.take(name, shape)?;
        let factor = self.factor(name)?;
        let index = self.push(info, format, kind);
        self.tensors[index].factor = factor;
        Ok(MatrixHandle(index))
    }

    /// One matrix per head, cut from a tensor with `[columns, head_rows]` of every head: the rows `part` of each, with rows and
    /// columns exchanged if `transposed`.
    pub fn head_matrices(
        &mut self,
        name: &str,
        (heads, head_rows): (usize, usize),
        part: Range<usize>,
        columns: usize,
        transposed: bool,
    ) -> Result<HeadMatrices, ModelError> {
        let flat = self.shape(name)?.len() == 2;
        let (of_all, count) = if flat { (head_rows * heads, None) } else { (head_rows, Some(heads)) };
        let shape: &[usize] = if flat { &[columns, head_rows * heads] } else { &[columns, head_rows, heads] };
        let rows = part.len();
        let kind = match transposed {
            true => DenseKind::Transposed { rows: columns, columns: rows },
            false => DenseKind::Matrix { rows, columns },
        };
        let factor = self.factor(name)?;
        let first = MatrixHandle(self.tensors.len());
        if let Some(found) = self.find_dense(name, of_all, columns, count)? {
            for row in (0..heads).map(|head| head * head_rows + part.start) {
                self.push_scaled(&found, kind, row, rows);
            }
            return Ok(HeadMatrices { first });
        }
        let (info, format) = self.take(name, shape)?;
        let row_bytes = format.row_bytes(columns) as u64;
        for head in 0..heads {
            let index = self.push(info, format, kind);
            let tensor = &mut self.tensors[index];
            tensor.factor = factor;
            tensor.bytes.offset += (head * head_rows + part.start) as u64 * row_bytes;
            tensor.bytes.byte_len = rows as u64 * row_bytes;
        }
        Ok(HeadMatrices { first })
    }

    /// A matrix of floats, for products with what is not rounded to 8 bits.
    pub fn float_matrix(
        &mut self,
        name: &str,
        rows: usize,
        columns: usize,
    ) -> Result<MatrixHandle, ModelError> {
        let handle = self.matrix(name, rows, columns)?;
        let DenseTensor { name, format, .. } = &self.tensors[handle.0];
        if format.takes_int8() {
            let detail = format!("tensor {name} has type {format}; it must be F32, F16 or BF16");
            return Err(self.unsupported(detail));
        }
        Ok(handle)
    }

    /// All values of a matrix of `rows` and `columns` as a vector, row by row.
    pub fn flat(&mut self, name: &str, rows: usize, columns: usize) -> Result<VectorHandle, ModelError> {
        let (info, format) = self.take(name, &[columns, rows])?;
        Ok(VectorHandle(self.push(info, format, DenseKind::Vector { length: rows * columns })))
    }

    /// A table of whole numbers below `below`, `rows` of `columns` each.
    pub fn table(
        &mut self,
        name: &str,
        rows: usize,
        columns: usize,
        below: usize,
    ) -> Result<TableHandle, ModelError> {
        let info = self.require(name)?;
        if !info.shape.iter().map(|&dim| dim as usize).eq([columns, rows]) {
            let detail =
                format!("tensor {} has shape {:?}, not {:?}", info.name, info.shape, [columns, rows]);
            return Err(self.bad(detail));
        }
        let number_bytes = match info.tensor_type {
            TensorType::I32 => 4,
            TensorType::I64 if !self.file.big_endian() => 8,
            other => {
                let detail = format!("tensor {} has type {}, not I32 or I64", info.name, other.name());
                return Err(self.unsupported(detail));
            }
        };
        self.used.insert(info.name.as_str());
        let kind = DenseKind::Table { rows, columns, number_bytes, below: below as u32 };
        Ok(TableHandle(self.push(info, WeightFormat::F32, kind)))
    }

    /// A vector of `length` values, held as f32.
    pub fn vector(&mut self, name: &str, length: usize) -> Result<VectorHandle, ModelError> {
        let (info, format) = self.take(name, &[length])?;
        Ok(VectorHandle(self.push(info, format, DenseKind::Vector { length })))
    }

    /// As [`SpecBuilder::vector`], of a tensor with this shape, innermost dimension first.
    pub fn flat_vector(&mut self, name: &str, shape: &[usize]) -> Result<VectorHandle, ModelError> {
        let (info, format) = self.take(name, shape)?;
        Ok(VectorHandle(self.push(info, format, DenseKind::Vector { length: shape.iter().product() })))
    }

    /// The weights of an RMSNorm.
    pub fn rms_norm(&mut self, name: &str, length: usize) -> Result<VectorHandle, ModelError> {
        let handle = self.vector(&format!("{name}.weight"), length)?;
        self.tensors[handle.0].offset_added = self.norm_offset;
        Ok(handle)
    }

    /// The weights of RMSNorms are in the file as they are multiplied, whatever the family's checkpoints do.
    pub fn norms_are_whole(&mut self) {
        self.norm_offset = 0.0;
    }

    /// A norm: LayerNorm where the file has a bias for it, else RMSNorm.
    pub fn norm(&mut self, name: &str, length: usize) -> Result<NormSpec, ModelError> {
        let bias = format!("{name}.bias");
        if !self.has(&bias) {
            return self.rms_norm(name, length).map(NormSpec::Rms);
        }
        let weight = self.vector(&format!("{name}.weight"), length)?;
        Ok(NormSpec::Layer { weight, bias: self.vector(&bias, length)? })
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

    /// Returns the collected tensors and experts, or names what the file holds beyond what `family` takes into account:
    /// keys of its configuration, tensors. `context` is the longest context in positions.
    pub fn finish(
        self,
        family: &str,
        context: usize,
    ) -> Result<(Vec<DenseTensor>, Vec<LayerExperts>), ModelError> {
        let holds_codes = self.holds_codes();
        if let Some(what) = self.names.not_understood(self.metadata(), context as u64, holds_codes) {
            return Err(self.unsupported(format!("{what}, which coldpress does not compute in '{family}'")));
        }
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
            "{} tensors have no place in architecture '{family}': {shown}{}",
            unused.len(),
            if unused.len() > 5 { ", …" } else { "" }
        )))
    }
}

fn supported_formats() -> String {
    WeightFormat::ALL.iter().map(|format| format.name()).collect::<Vec<_>>().join(", ")
}
