//! How checkpoints of Hugging Face hold matrices as codes: which tensors belong to a matrix, and what they mean.
//!
//! One file per container. A [`Container`] is asked for a matrix by the name of its module; it says whether the file holds the matrix
//! in its way, with which coding, and where codes, scales and biases are. Widths and groups follow from the shapes, because the
//! columns are known from the model; the configuration must not say otherwise. Refuses: guesses, and methods that are not here.
//! Next: `builder/scaled.rs` (which asks).

mod compressed_tensors;
mod float8;
mod jangh;
mod jangtq;
mod mlx;
mod pcg64;

use std::sync::Arc;

use coldpress_formats::{Metadata, ModelFile, TensorInfo, TensorType, Value};
use coldpress_kernels::layout::CodeOrder;
use coldpress_kernels::vector::Rotation;
use coldpress_kernels::{Coding, ScaleSource};

pub(crate) use jangtq::Derived;

/// A matrix that is looked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'n> {
    /// Name of the module in the file: that of the weight without `.weight`.
    pub module: &'n str,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub columns: usize,
    /// Experts, where one tensor holds the matrices of all.
    pub count: Option<usize>,
    /// What was worked out for other matrices.
    pub derived: &'n Derived,
}

/// A matrix of codes.
#[derive(Clone, Debug)]
pub(crate) struct Found<'a> {
    pub coding: Coding,
    pub order: CodeOrder,
    pub codes: &'a TensorInfo,
    pub scales: &'a TensorInfo,
    pub source: ScaleSource,
    /// Rows that share a row of scales.
    pub rows_per_scale: usize,
    pub biases: Option<&'a TensorInfo>,
    /// Bits of the f32 values of a codebook.
    pub codebook: Option<Arc<[u32]>>,
    /// What inputs go through before they meet the matrix.
    pub rotation: Option<Rotation>,
    /// Tensors that say nothing beyond this.
    pub also: Vec<&'a TensorInfo>,
}

/// One way to hold matrices as codes.
pub(crate) struct Container {
    /// What the name of the module is followed by in the name of the tensor of codes.
    pub codes: &'static str,
    /// The matrix, where the file holds it in this way.
    ///
    /// # Errors
    /// It is held in this way, and something about it is contradictory or not computed.
    pub find: for<'a> fn(&'a ModelFile, Wanted<'_>) -> Result<Option<Found<'a>>, String>,
}

/// All of them. The first that knows a matrix counts.
const CONTAINERS: &[Container] = &[
    mlx::CONTAINER,
    float8::BLOCKS,
    float8::FP4,
    compressed_tensors::PACKED,
    jangtq::CONTAINER,
    jangh::CONTAINER,
];

/// The matrix, where the file holds it as codes.
pub(crate) fn find<'a>(file: &'a ModelFile, wanted: Wanted<'_>) -> Result<Option<Found<'a>>, String> {
    for container in CONTAINERS {
        if let Some(found) = (container.find)(file, wanted)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// The tensor of codes of a module, whatever it is made of.
pub(crate) fn codes_of<'a>(file: &'a ModelFile, module: &str) -> Option<&'a TensorInfo> {
    CONTAINERS.iter().find_map(|container| file.tensor(&format!("{module}{}", container.codes)))
}

/// Methods of `quantization_config.quant_method` that are read here; what they say is compared with the tensors.
const METHODS: &[&str] = &["compressed-tensors", "fbgemm_fp8", "fp8", "mxfp4"];

/// Beginnings of the keys of a configuration that describe codes.
const KEYS: [&str; 7] = [
    "quantization.",
    "quantization_config.",
    "jang_config.",
    "jangtq.",
    "jangtq_runtime.",
    "mxtq_",
    "weight_format",
];

/// Whether a key of a configuration describes codes: [`check`] looks at those.
pub(crate) fn is_about_codes(key: &str) -> bool {
    KEYS.iter().any(|beginning| key.starts_with(beginning))
}

/// Keys of JANG bundles with what they say, none of which is computed.
const NOT_READ: [(&str, &str); 2] = [
    (
        "jang_config.quantization.hadamard_rotation",
        "the matrices of this bundle are rotated, which is not computed",
    ),
    (
        "jang_config.quantization.codebook_vq",
        "experts are groups of codebook entries (JANG VQ), which is not computed",
    ),
];

/// Refuses methods that are not read here, and bundles of JANG that contradict themselves.
pub(crate) fn check(file: &ModelFile) -> Result<(), String> {
    let metadata = file.metadata();
    jangh::check(file)?;
    for key in ["weight_format", "jang_config.weight_format"] {
        if let Some(found) =
            metadata.get(key).filter(|_| metadata.opt_string(key).ok().flatten() != Some("mxtq"))
        {
            let found = found.describe();
            return Err(format!("{key} is {found}; of bundles with this key those of \"mxtq\" are read"));
        }
    }
    for (key, name) in NOT_READ {
        if metadata.get(key).is_some_and(|value| *value != Value::Bool(false)) {
            return Err(format!("{key} says that {name}: use a GGUF, MLX or plain file of the model"));
        }
    }
    if let Some(tensor) = file.tensors().find(|tensor| tensor.name.ends_with(".bit_map")) {
        return Err(format!(
            "tensor {} belongs to an MXQ bundle of version 1, a draft that nothing writes any more: use a JANG, GGUF, MLX or plain \
             file of the model",
            tensor.name
        ));
    }
    for key in ["quantization_config.quant_method", "text_config.quantization_config.quant_method"] {
        let Ok(Some(method)) = metadata.opt_string(key) else { continue };
        if !METHODS.contains(&method) {
            return Err(format!(
                "{key} is \"{method}\"; of those only {} are read: use a GGUF, MLX, FP8 or plain file of the model",
                METHODS.join(", ")
            ));
        }
    }
    Ok(())
}

/// A whole number of a configuration about codes, for a module or for all.
fn setting(metadata: &Metadata, module: &str, name: &str) -> Option<u64> {
    let of_module = KEYS[..2].iter().map(|begin| format!("{begin}{module}.{name}"));
    let of_all = KEYS[..2].iter().map(|begin| format!("{begin}{name}"));
    of_module.chain(of_all).find_map(|key| metadata.opt_u64(&key).ok().flatten())
}

/// The tensor whose name is that of the module and `ending`.
fn beside<'a>(file: &'a ModelFile, module: &str, ending: &str) -> Option<&'a TensorInfo> {
    file.tensor(&format!("{module}{ending}"))
}

/// What codes cannot be read without.
fn required<'a>(
    file: &'a ModelFile,
    codes: &TensorInfo,
    module: &str,
    ending: &str,
) -> Result<&'a TensorInfo, String> {
    let name = &codes.name;
    beside(file, module, ending)
        .ok_or_else(|| format!("tensor {name} holds codes, and there is no {module}{ending}"))
}

/// Refuses codes that are not words.
fn expect_words(codes: &TensorInfo) -> Result<(), String> {
    match codes.tensor_type {
        TensorType::U32 => Ok(()),
        other => Err(format!("tensor {} has type {other}, codes are words of 32 bits", codes.name)),
    }
}

/// Compares a shape, innermost dimension first; dimensions of 1 at the outside say nothing.
fn expect_shape(info: &TensorInfo, inner: &[usize], count: Option<usize>) -> Result<(), String> {
    let wanted: Vec<u64> = inner.iter().copied().chain(count).map(|dimension| dimension as u64).collect();
    let trim = |shape: &[u64]| {
        let kept = shape.iter().rposition(|&dimension| dimension != 1).map_or(0, |last| last + 1);
        shape[..kept].to_vec()
    };
    if trim(&info.shape) == trim(&wanted) {
        return Ok(());
    }
    Err(format!("tensor {} has shape {:?}, the model asks for {wanted:?}", info.name, info.shape))
}

/// How scales of a type are written; `None` for what is no scale.
fn float_source(tensor_type: TensorType) -> Option<ScaleSource> {
    match tensor_type {
        TensorType::F32 => Some(ScaleSource::F32),
        TensorType::F16 => Some(ScaleSource::F16),
        TensorType::Bf16 => Some(ScaleSource::Bf16),
        TensorType::F8E8m0 => Some(ScaleSource::E8m0),
        _ => None,
    }
}

fn source_of(info: &TensorInfo) -> Result<ScaleSource, String> {
    float_source(info.tensor_type).ok_or_else(|| {
        format!("tensor {} has type {}; scales are F32, F16, BF16 or F8_E8M0", info.name, info.tensor_type)
    })
}
