//! A model in a page: bytes by what tensors are for, layers that are alike as one, how its experts are, what to know before it is run.
//!
//! Owns: [`RoleShare`], [`LayerGroup`], [`ExpertFacts`] and the list of problems. Refuses: weights; everything comes from headers. Roles are
//! `coldpress_model::Role`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use coldpress_experts::Geometry;
use coldpress_formats::{FileFormat, ModelFile};
use coldpress_memory::Bytes;
use coldpress_model::{ModelSpec, Role, TensorRole};

/// What the tensors of one role and type take.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct RoleShare {
    /// What they are for.
    pub role: &'static str,
    /// Their type.
    #[serde(rename = "type")]
    pub tensor_type: &'static str,
    /// How many there are.
    pub tensors: usize,
    /// Bytes.
    pub bytes: Bytes,
}

/// Layers in a row whose tensors have the same roles, types and sizes.
#[derive(Clone, Debug, serde::Serialize)]
pub struct LayerGroup {
    /// The first layer.
    pub first: usize,
    /// The last one.
    pub last: usize,
    /// What each of them has.
    pub each: Vec<RoleShare>,
}

/// The routed experts of a model that can be run.
#[derive(Clone, Debug, serde::Serialize)]
pub struct ExpertFacts {
    /// Layers with routed experts.
    pub layers: usize,
    /// Fewest and most experts of a layer.
    pub per_layer: [usize; 2],
    /// Experts per token, in the layer with most.
    pub per_token: usize,
    /// Bytes of an expert in memory, the smallest and the largest.
    pub bytes: [Bytes; 2],
}

/// Tensors of one role and type together, roles in the order of a page, the largest type first.
pub(crate) fn shares<'a>(
    tensors: impl Iterator<Item = (&'a coldpress_formats::TensorInfo, &'a TensorRole)>,
) -> Vec<RoleShare> {
    let mut sums: BTreeMap<(Role, &'static str), (usize, u64)> = BTreeMap::new();
    for (tensor, role) in tensors {
        let (tensors, bytes) = sums.entry((role.role, tensor.tensor_type.name())).or_default();
        *tensors += 1;
        *bytes += tensor.byte_len;
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|&((role, _), (_, bytes))| (role, std::cmp::Reverse(bytes)));
    let share = |((role, tensor_type), (tensors, bytes)): ((Role, _), (usize, u64))| RoleShare {
        role: role.name(),
        tensor_type,
        tensors,
        bytes: Bytes(bytes),
    };
    sums.into_iter().map(share).collect()
}

/// The layers of a file, those that are alike together.
pub(crate) fn layer_groups(file: &ModelFile, roles: &[TensorRole]) -> Vec<LayerGroup> {
    let mut layers: BTreeMap<usize, Vec<_>> = BTreeMap::new();
    for (tensor, role) in file.tensors().zip(roles) {
        let is_layer = !matches!(role.role, Role::OtherParts | Role::LaterTokens);
        if let Some(layer) = layer_of(&tensor.name).filter(|_| is_layer) {
            layers.entry(layer).or_default().push((tensor, role));
        }
    }
    let mut groups: Vec<LayerGroup> = Vec::new();
    for (layer, tensors) in layers {
        let each = shares(tensors.into_iter());
        match groups.last_mut() {
            Some(group) if group.last + 1 == layer && group.each == each => group.last = layer,
            _ => groups.push(LayerGroup { first: layer, last: layer, each }),
        }
    }
    groups
}

/// Number of the layer in a tensor's name, in files of both kinds.
fn layer_of(name: &str) -> Option<usize> {
    let mut parts = name.split('.');
    parts.find(|part| matches!(*part, "blk" | "layers"))?;
    parts.next()?.parse().ok()
}

/// `None` for a model without routed experts.
pub(crate) fn expert_facts(spec: &ModelSpec) -> Option<ExpertFacts> {
    let counts = spec.experts.iter().map(|layer| layer.expert_count);
    let geometry = Geometry::new(&spec.experts).ok()?;
    let bytes = (0..spec.experts.len()).map(|layer| Bytes(geometry.layer(layer).record_bytes as u64));
    Some(ExpertFacts {
        layers: spec.experts.len(),
        per_layer: [counts.clone().min()?, counts.max()?],
        per_token: spec.moe_blocks().map(|moe| moe.router.top_k).max()?,
        bytes: [bytes.clone().min()?, bytes.max()?],
    })
}

/// Keys that tell how a folder holds its matrices, with the name of that.
const CONTAINERS: [(&str, &str); 6] = [
    ("jangtq.version", "JANGH"),
    ("weight_format", "JANGTQ"),
    ("jang_config.format", "JANG"),
    ("quantization_config.quant_method", "codes of quantization_config"),
    ("text_config.quantization_config.quant_method", "codes of quantization_config"),
    ("quantization.bits", "MLX"),
];

/// What kind of file it is, in words.
pub(crate) fn container(file: &ModelFile) -> String {
    let parts = file.files().len();
    match file.format() {
        FileFormat::Gguf if parts > 1 => format!("GGUF, a set of {parts} files"),
        FileFormat::Gguf => "GGUF".to_owned(),
        // One of the files is config.json.
        FileFormat::HuggingFace => {
            let known = CONTAINERS.iter().find(|(key, _)| file.metadata().get(key).is_some());
            let method = file.metadata().opt_string("quantization_config.quant_method").ok().flatten();
            let codes = known.map(|(_, name)| format!(", {}", method.unwrap_or(name))).unwrap_or_default();
            format!(
                "folder, safetensors in {} {}{codes}",
                parts.saturating_sub(1),
                if parts == 2 { "file" } else { "files" }
            )
        }
    }
}

/// What somebody should know before the model is run, each with a way out.
pub(crate) fn problems(path: &Path, file: &ModelFile, refusal: Option<&str>) -> Vec<String> {
    let mut problems: Vec<String> = refusal.map(str::to_owned).into_iter().collect();
    let is_there = |names: &[&str]| names.iter().any(|name| path.join(name).exists());
    let (tokenizer, template) = match file.format() {
        FileFormat::Gguf => (
            file.metadata().get("tokenizer.ggml.tokens").is_some(),
            file.metadata().get("tokenizer.chat_template").is_some(),
        ),
        FileFormat::HuggingFace => (
            is_there(&["tokenizer.json", "tekken.json", "tiktoken.model"]),
            is_there(&["chat_template.jinja", "chat_template.json", "additional_chat_templates"])
                || names_a_template(&path.join("tokenizer_config.json")),
        ),
    };
    if !tokenizer {
        problems.push(
            "there is no tokenizer: text needs one; get the tokenizer files of the model again".to_owned(),
        );
    }
    if !template {
        problems.push(
            "there is no chat template: conversations need one; use `run --raw`, or get the files of the instruction-tuned \
             model"
                .to_owned(),
        );
    }
    problems
}

/// Whether the configuration of a tokenizer has a template among its keys.
fn names_a_template(path: &Path) -> bool {
    const BYTES_MAX: u64 = 4 << 20;
    // A pipe would be waited for.
    if !path.is_file() {
        return false;
    }
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(BYTES_MAX).read_to_end(&mut bytes));
    let key = b"\"chat_template\"";
    read.is_ok() && bytes.windows(key.len()).any(|window| window == key)
}

#[cfg(test)]
mod tests {
    use super::layer_of;

    #[test]
    fn layers_are_numbered_in_names_of_both_kinds() {
        assert_eq!(layer_of("blk.12.attn_q.weight"), Some(12));
        assert_eq!(layer_of("language_model.model.layers.3.mlp.gate.weight"), Some(3));
        assert_eq!(layer_of("token_embd.weight"), None);
        assert_eq!(layer_of("model.layers.norm"), None);
    }
}
