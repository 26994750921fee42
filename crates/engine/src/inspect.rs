//! What is inside a model file: metadata, tensors, and what coldpress makes of it.

use std::path::Path;

use coldpress_experts::Fingerprint;
use coldpress_formats::{Array, TensorInfo, Value as MetadataValue};
use coldpress_memory::Bytes;
use coldpress_model::describe_with_roles;
use serde_json::{Map, Value, json};

use crate::error::EngineError;
use crate::files::{open_model, open_model_headers};
use crate::inspect_summary::{
    ExpertFacts, LayerGroup, RoleShare, container, expert_facts, layer_groups, problems, shares,
};

/// Array elements shown of each metadata array.
const ELEMENTS_SHOWN: usize = 8;
/// Characters shown of each metadata string.
const CHARACTERS_SHOWN: usize = 2000;

/// The contents of a model file.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Inspection {
    /// What kind of file it is.
    pub container: String,
    /// Architecture of a model that can be run, as GGUF calls it.
    pub family: Option<&'static str>,
    /// Layers, hidden size, vocabulary and longest context of a model that can be run.
    pub dimensions: Option<[usize; 4]>,
    /// Its routed experts.
    pub experts: Option<ExpertFacts>,
    /// Files of the set.
    pub files: Vec<InspectedFile>,
    /// Whether numbers are stored with the high byte first.
    pub big_endian: bool,
    /// Metadata by key; long strings and arrays are shortened.
    pub metadata: Map<String, Value>,
    /// The tensors in file order.
    pub tensors: Vec<InspectedTensor>,
    /// Bytes of all tensors.
    pub tensor_bytes: Bytes,
    /// Bytes by what the tensors are for; they add up to `tensor_bytes`.
    pub roles: Vec<RoleShare>,
    /// Tensors that the architecture has no place for; empty where the model was not understood so far.
    pub without_place: Vec<String>,
    /// The layers, those that are alike together.
    pub layers: Vec<LayerGroup>,
    /// What to know before it is run, with the way out.
    pub problems: Vec<String>,
    /// BLAKE3 over headers and samples of experts, by which packs, profiles and snapshots know their model.
    pub fingerprint: Option<String>,
    /// Why coldpress cannot run it; absent when it can.
    pub not_runnable: Option<String>,
    /// Where its tensors decide against its metadata.
    pub notes: Vec<String>,
}

/// One file.
#[derive(Clone, Debug, serde::Serialize)]
pub struct InspectedFile {
    /// Its path.
    pub path: String,
    /// Its length.
    pub bytes: Bytes,
}

/// One tensor.
#[derive(Clone, Debug, serde::Serialize)]
pub struct InspectedTensor {
    /// Its name.
    pub name: String,
    /// Its type.
    #[serde(rename = "type")]
    pub tensor_type: &'static str,
    /// Its shape, innermost dimension first.
    pub shape: Vec<u64>,
    /// Index into the files.
    pub file: usize,
    /// First byte in that file.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
}

impl From<&TensorInfo> for InspectedTensor {
    fn from(tensor: &TensorInfo) -> Self {
        Self {
            name: tensor.name.clone(),
            tensor_type: tensor.tensor_type.name(),
            shape: tensor.shape.clone(),
            file: tensor.file,
            offset: tensor.offset,
            bytes: tensor.byte_len,
        }
    }
}

/// Bytes of a model's files, all parts of a split set together.
///
/// # Errors
/// A file cannot be read or is malformed.
pub fn model_file_bytes(path: &Path) -> Result<Bytes, EngineError> {
    let file = open_model_headers(path)?;
    let there: u64 = file.files().iter().map(|file| file.len).sum();
    // Of a download that is still running, what it will have.
    Ok(Bytes(there.saturating_add(file.missing_bytes())))
}

/// Reads the header of a model file, and where `with_fingerprint` some megabytes of samples of its experts.
///
/// # Errors
/// The file cannot be read or is malformed.
pub fn inspect(path: &Path, with_fingerprint: bool) -> Result<Inspection, EngineError> {
    let file = open_model(path)?;
    let (spec, roles) = describe_with_roles(&file);
    let without_place = file.tensors().zip(&roles).filter(|(_, role)| !role.has_place);
    let without_place: Vec<String> = without_place.map(|(tensor, _)| tensor.name.clone()).collect();
    let not_runnable = spec.as_ref().err().map(ToString::to_string);
    let spec = spec.ok();
    let fingerprint = match &spec {
        Some(spec) if with_fingerprint => Some(Fingerprint::of(file.files(), &spec.experts)?.to_string()),
        _ => None,
    };
    Ok(Inspection {
        container: container(&file),
        family: spec.as_ref().map(|spec| spec.family),
        dimensions: spec
            .as_ref()
            .map(|spec| [spec.layers.len(), spec.hidden, spec.vocabulary, spec.trained_context]),
        experts: spec.as_ref().and_then(expert_facts),
        files: file
            .files()
            .iter()
            .map(|file| InspectedFile { path: file.path.display().to_string(), bytes: Bytes(file.len) })
            .collect(),
        big_endian: file.big_endian(),
        metadata: file.metadata().iter().map(|(key, value)| (key.to_owned(), shortened(value))).collect(),
        tensors: file.tensors().map(InspectedTensor::from).collect(),
        tensor_bytes: Bytes(file.tensor_bytes()),
        roles: shares(file.tensors().zip(&roles)),
        layers: layer_groups(&file, &roles),
        problems: problems(path, &file, not_runnable.as_deref()),
        without_place,
        fingerprint,
        notes: spec.map(|spec| spec.notes).unwrap_or_default(),
        not_runnable,
    })
}

/// A metadata value as JSON. Integers beyond 64 bits do not exist in the format; floats that JSON cannot write become text.
fn shortened(value: &MetadataValue) -> Value {
    match value {
        MetadataValue::Bool(value) => json!(value),
        MetadataValue::Float32(value) => float(f64::from(*value)),
        MetadataValue::Float64(value) => float(*value),
        MetadataValue::String(text) => {
            let text = text.to_str_lossy();
            match text.char_indices().nth(CHARACTERS_SHOWN) {
                Some((end, _)) => json!(format!("{}…", &text[..end])),
                None => json!(text),
            }
        }
        MetadataValue::Array(array) => json!({
            "array": array.element_type().name(),
            "length": array.len(),
            "first": first_elements(array),
        }),
        integer => integer.integer().map_or(Value::Null, whole),
    }
}

fn first_elements(array: &Array) -> Vec<Value> {
    if let Some(integers) = array.integers() {
        return integers.take(ELEMENTS_SHOWN).map(whole).collect();
    }
    match array {
        Array::Float32(elements) => {
            elements.iter().take(ELEMENTS_SHOWN).map(|&x| float(f64::from(x))).collect()
        }
        Array::Float64(elements) => elements.iter().take(ELEMENTS_SHOWN).map(|&x| float(x)).collect(),
        Array::Bool(elements) => elements.iter().take(ELEMENTS_SHOWN).map(|&x| json!(x)).collect(),
        Array::String(strings) => {
            strings.iter().take(ELEMENTS_SHOWN).map(|text| json!(String::from_utf8_lossy(text))).collect()
        }
        Array::Array(arrays) => arrays.iter().take(ELEMENTS_SHOWN).map(|array| json!(array.len())).collect(),
        _ => Vec::new(),
    }
}

fn whole(value: i128) -> Value {
    match (u64::try_from(value), i64::try_from(value)) {
        (Ok(value), _) => json!(value),
        (_, Ok(value)) => json!(value),
        _ => json!(value.to_string()),
    }
}

fn float(value: f64) -> Value {
    if value.is_finite() { json!(value) } else { json!(value.to_string()) }
}
