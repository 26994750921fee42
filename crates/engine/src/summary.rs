//! What a model is, in a few figures from the headers of its files.
//!
//! Owns the figures that `plan`, `inspect` and traces show of a model. Looks at neither weights nor budget nor machine; what they
//! mean for memory is in `plan.rs`.

use std::path::Path;

use coldpress_experts::Geometry;
use coldpress_formats::{ModelFile, TensorType};
use coldpress_memory::Bytes;
use coldpress_model::{ModelSpec, describe};

use crate::error::EngineError;
use crate::files::open_model;

/// What a model is, in a few figures.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct ModelSummary {
    /// Architecture.
    pub family: String,
    /// Name stated in the file.
    pub name: Option<String>,
    /// Decoder layers.
    pub layers: usize,
    /// Layers with routed experts.
    pub moe_layers: usize,
    /// Routed experts of one layer (the largest number).
    pub experts: usize,
    /// Experts per token.
    pub experts_per_token: usize,
    /// Rows of the embedding.
    pub vocabulary: usize,
    /// Longest context the file states.
    pub trained_context: usize,
    /// Width of the hidden state.
    pub hidden: usize,
    /// Weights of all tensors.
    pub parameters: u64,
    /// The format that most bytes of the tensors are in.
    pub quantization: String,
    /// Bytes of all tensors in the file.
    pub tensor_bytes: Bytes,
    /// Bytes of the routed experts as records.
    pub expert_bytes: Bytes,
}

/// What a model is, from the headers of its files.
///
/// # Errors
/// The file is bad.
pub fn model_summary(path: &Path) -> Result<ModelSummary, EngineError> {
    let file = open_model(path)?;
    let spec = describe(&file).map_err(EngineError::BadModel)?;
    let geometry = if spec.experts.is_empty() { None } else { Some(Geometry::new(&spec.experts)?) };
    Ok(summary(&file, &spec, geometry.as_ref()))
}

/// The figures of a model that was opened and described.
pub(crate) fn summary(file: &ModelFile, spec: &ModelSpec, geometry: Option<&Geometry>) -> ModelSummary {
    ModelSummary {
        family: spec.family.to_owned(),
        name: spec.name.clone(),
        layers: spec.layers.len(),
        moe_layers: spec.experts.len(),
        experts: spec.experts.iter().map(|layer| layer.expert_count).max().unwrap_or(0),
        experts_per_token: spec.experts_per_token(),
        vocabulary: spec.vocabulary,
        trained_context: spec.trained_context,
        hidden: spec.hidden,
        parameters: file.tensors().map(|tensor| tensor.shape.iter().product::<u64>()).sum(),
        quantization: most_of(file),
        tensor_bytes: Bytes(file.tensor_bytes()),
        expert_bytes: Bytes(geometry.map_or(0, Geometry::records_bytes)),
    }
}

/// Name of the format that most bytes of the tensors are in.
fn most_of(file: &ModelFile) -> String {
    let mut bytes: Vec<(TensorType, u64)> = Vec::new();
    for tensor in file.tensors() {
        match bytes.iter_mut().find(|(known, _)| *known == tensor.tensor_type) {
            Some((_, sum)) => *sum += tensor.byte_len,
            None => bytes.push((tensor.tensor_type, tensor.byte_len)),
        }
    }
    let most = bytes.into_iter().max_by_key(|&(_, sum)| sum);
    most.map_or_else(String::new, |(tensor_type, _)| tensor_type.to_string())
}
