//! The families that are compared with other programs, and what tests of them have in common.
//!
//! To add a family: its folder in `MIXTURES`, its numbers in `every_constant_of_a_family_counts.rs`.

use std::path::Path;

use crate::checkpoint::{Checkpoint, Reference, Tensor};
use crate::common::{load, logits};
use coldpress::{KvType, LoadConfiguration, Runtime, Silent};

/// Two implementations in float32 differ by about 3e-6 in these models.
pub const BOUND: f32 = 2e-5;

/// Its experts are codes of four bits, which meet activations of eight; everything else is exact.
pub const CODES: &str = "gpt_oss_mxfp4";

/// What the rounding of activations to eight bits may do to logits.
pub const BOUND_OF_EIGHT_BITS: f32 = 1e-1;

/// How far logits may be from those of transformers. The model of Qwen3.5 makes roundings larger: transformers itself is 6.6e-5 away from
/// it in float64, and 9.5e-5 with weights rounded to F16 (`fixtures/make_float64.py`).
pub fn bound(name: &str) -> f32 {
    match name {
        CODES => BOUND_OF_EIGHT_BITS,
        "qwen3_5_moe_text" => 1e-4,
        _ => BOUND,
    }
}

/// Folder, name of the GGUF file with the same weights rounded to F16.
pub const MIXTURES: [(&str, Option<&str>); 30] = [
    ("qwen3_moe", Some("qwen3moe")),
    ("qwen2_moe", Some("qwen2moe")),
    ("mixtral", Some("mixtral")),
    ("olmoe", Some("olmoe")),
    ("granitemoe", Some("granitemoe")),
    ("phimoe", None),
    ("hunyuan_v1_moe", Some("hunyuan-moe")),
    ("ernie4_5_moe", Some("ernie4_5-moe")),
    ("deepseek_v2", None),
    ("deepseek_v3", Some("deepseek2")),
    ("glm4_moe_lite", Some("glm4moe-lite")),
    ("glm4_moe", Some("glm4moe")),
    ("minimax_m2", Some("minimax-m2")),
    ("mimo_v2_flash", Some("mimo2")),
    ("gpt_oss", Some("gpt-oss")),
    (CODES, None),
    ("hy_v3", Some("hy_v3")),
    ("llama4_text", Some("llama4")),
    ("lfm2_moe", Some("lfm2moe")),
    ("granitemoehybrid", Some("granitehybrid")),
    ("minimax", None),
    ("deepseek_v32", Some("deepseek32")),
    ("glm_moe_dsa", Some("glm-dsa")),
    ("longcat_flash", None),
    ("qwen3_next", Some("qwen3next")),
    ("qwen3_5_moe_text", Some("qwen35moe")),
    ("kimi_linear", Some("kimi-linear")),
    ("bailing_hybrid", Some("bailingmoe3")),
    ("qwen4_exp_text", None),
    ("deepseek_v4", None),
];

pub const DENSE: [&str; 4] = ["llama", "qwen2", "qwen3", "gemma3"];

pub fn all() -> impl Iterator<Item = (&'static str, Reference)> {
    let names = MIXTURES.iter().map(|&(name, _)| name).chain(DENSE);
    names.filter_map(|name| Some((name, Reference::open(name)?)))
}

pub fn exact() -> LoadConfiguration {
    LoadConfiguration::default().kv_type(KvType::F32).context(128)
}

pub fn logits_of(folder: &Path, configuration: &LoadConfiguration, ids: &[u32]) -> Vec<f32> {
    logits(&mut load(folder, configuration), ids)
}

pub fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Rounds what GGUF twins hold as F16, and to the same values what they hold as F32 but had rounded.
pub fn round_as_converters(checkpoint: &mut Checkpoint) {
    let floats = checkpoint.tensors.iter_mut().filter(|tensor| tensor.dtype == "F32");
    for tensor in floats.filter(|tensor| tensor.shape.len() > 1) {
        let widened = is_router(&tensor.name) || is_bias(tensor) || is_filter(tensor);
        *tensor = if widened { tensor.widened("F16") } else { tensor.rounded("F16") };
    }
}

/// One vector for each expert, in one tensor.
pub fn is_bias(tensor: &Tensor) -> bool {
    tensor.name.ends_with("_bias")
}

/// One filter for each channel of a convolution over positions.
pub fn is_filter(tensor: &Tensor) -> bool {
    matches!(tensor.shape[..], [_, 1, _])
}

pub fn is_router(name: &str) -> bool {
    let routers = [
        "mlp.gate.weight",
        "feed_forward.gate.weight",
        "moe.gate.weight",
        "router.layer.weight",
        "mlp.router.weight",
        "mlp.router.gate.weight",
        "feed_forward.router.weight",
        "gate.wg.weight",
        "ffn.gate.weight",
        "shared_expert_gate.weight",
        "router.classifier.weight",
        "indexer.weights_proj.weight",
    ];
    routers.iter().any(|router| name.ends_with(router)) || name.ends_with("correction_bias")
}

/// Every tensor but the large ones of attention and experts: norms, biases, routers, gates. The pace at which heads of MiniMax
/// forget, and what n-grams are hashed with, follow from the configuration, what the file says of it is not read.
pub fn is_constant(tensor: &Tensor) -> bool {
    if tensor.name.ends_with(".slope_rate") || tensor.dtype != "F32" {
        return false;
    }
    let dimensions = tensor.shape.iter().filter(|&&dimension| dimension > 1).count();
    dimensions == 1
        || is_router(&tensor.name)
        || is_bias(tensor)
        || is_filter(tensor)
        || is_small(&tensor.name)
}

/// Mixers of residual streams, and biases by the place in a group of positions.
fn is_small(name: &str) -> bool {
    name.contains("hc_") || name.ends_with(".ape") || name.contains("block_inject")
}

/// What the model refuses to be loaded with.
pub fn refusal(checkpoint: &Checkpoint) -> String {
    match Runtime::load(checkpoint.write().path(), &exact(), &mut Silent) {
        Ok(_) => panic!("it was loaded with {}", checkpoint.config),
        Err(error) => error.to_string(),
    }
}

/// A vector of a file.
pub fn vector(name: &str, values: &[f32]) -> Tensor {
    Tensor {
        name: name.to_owned(),
        dtype: "F32".to_owned(),
        shape: vec![values.len() as u64],
        bytes: values.iter().flat_map(|value| value.to_le_bytes()).collect(),
    }
}

/// The folders with latent attention, as far as they are there.
pub fn latent() -> impl Iterator<Item = (&'static str, Reference)> {
    ["deepseek_v2", "deepseek_v3", "glm4_moe_lite", "deepseek_v32", "glm_moe_dsa", "longcat_flash"]
        .into_iter()
        .filter_map(|name| Some((name, Reference::open(name)?)))
}
