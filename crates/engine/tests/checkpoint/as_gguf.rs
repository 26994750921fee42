//! A checkpoint written as a GGUF file, as the converters of llama.cpp write it: for families of which no file is at hand.
//!
//! Names are those of `gguf/tensor_mapping.py` and `gguf/constants.py` (PyPI gguf 0.19), written down here by themselves.

use std::path::Path;

use coldpress_formats::{GgufWriter, ModelFile, TensorType, Value};

use super::{Checkpoint, Tensor};
use crate::common::fixture;

/// Name in a layer of a checkpoint, name in a layer of a file.
const LAYER: &[(&str, &str)] = &[
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("block_sparse_moe.gate", "ffn_gate_inp"),
    ("feed_forward.gate_proj", "ffn_gate"),
    ("feed_forward.up_proj", "ffn_up"),
    ("feed_forward.down_proj", "ffn_down"),
    ("feed_forward.router", "ffn_gate_inp"),
    ("feed_forward.shared_expert.gate_proj", "ffn_gate_shexp"),
    ("feed_forward.shared_expert.up_proj", "ffn_up_shexp"),
    ("feed_forward.shared_expert.down_proj", "ffn_down_shexp"),
];
const GEMMA_NORMS: &[(&str, &str)] = &[
    ("post_attention_layernorm", "post_attention_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
];
const MODEL: &[(&str, &str)] =
    &[("model.embed_tokens", "token_embd"), ("model.norm", "output_norm"), ("lm_head", "output")];
const EXPERTS: &[(&str, &str)] = &[("w1", "ffn_gate_exps"), ("w3", "ffn_up_exps"), ("w2", "ffn_down_exps")];

/// What a family's converter does beyond renaming.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Nothing,
    /// Rows of q and k in the order of interleaved pairs; the numbers of heads.
    Permute(usize, usize),
    /// Norms plus one, and their names.
    Gemma,
}

/// Writes the checkpoint as a file of `architecture` with these keys (without the architecture) and further tensors.
pub fn write(
    checkpoint: &Checkpoint,
    path: &Path,
    architecture: &str,
    keys: &[(&str, Value)],
    further: &[Tensor],
    change: Change,
) {
    let mut writer = GgufWriter::new();
    writer
        .metadata("general.architecture", Value::String(coldpress_formats::ByteString(architecture.into())));
    // The same vocabulary of 288 entries.
    let other = ModelFile::open(fixture("qwen3moe.gguf")).expect("a fixture");
    for (key, value) in other.metadata().iter().filter(|(key, _)| key.starts_with("tokenizer.")) {
        writer.metadata(key, value.clone());
    }
    for (key, value) in keys {
        writer.metadata(format!("{architecture}.{key}"), value.clone());
    }
    let mut tensors: Vec<Tensor> = Vec::new();
    for tensor in &checkpoint.tensors {
        let mut tensor = tensor.clone();
        let stacked = rename(&mut tensor, change);
        match tensors.iter_mut().find(|other| stacked && other.name == tensor.name) {
            Some(stack) => {
                stack.shape[0] += 1;
                stack.bytes.extend(tensor.bytes);
            }
            None => tensors.push(tensor),
        }
    }
    tensors.extend(further.iter().cloned());
    for tensor in &tensors {
        let shape: Vec<u64> = tensor.shape.iter().rev().copied().collect();
        writer.tensor(&tensor.name, TensorType::F32, &shape);
    }
    let bytes =
        |name: &str| &tensors.iter().find(|tensor| tensor.name == name).expect("a planned tensor").bytes;
    writer.write(path, |info, out| out.write_all(bytes(&info.name))).expect("written");
}

/// Gives a tensor its name in a file; whether it is one expert of a stack.
fn rename(tensor: &mut Tensor, change: Change) -> bool {
    let name = tensor.name.clone();
    let (stem, ending) = name.rsplit_once('.').expect("an ending");
    let Some(rest) = stem.strip_prefix("model.layers.") else {
        let (_, ours) = MODEL.iter().find(|(theirs, _)| *theirs == stem).expect("a known tensor");
        tensor.name = format!("{ours}.{ending}");
        add_one(tensor, change, ours);
        return false;
    };
    let (layer, part) = rest.split_once('.').expect("a layer");
    if let Some(rest) = part.strip_prefix("block_sparse_moe.experts.") {
        let (_, matrix) = rest.split_once('.').expect("an expert");
        let (_, ours) = EXPERTS.iter().find(|(theirs, _)| *theirs == matrix).expect("a known matrix");
        tensor.name = format!("blk.{layer}.{ours}.{ending}");
        tensor.shape.insert(0, 1);
        return true;
    }
    let gemma = GEMMA_NORMS.iter().filter(|_| change == Change::Gemma);
    let (_, ours) = gemma.chain(LAYER).find(|(theirs, _)| *theirs == part).expect("a known tensor");
    tensor.name = format!("blk.{layer}.{ours}.{ending}");
    add_one(tensor, change, ours);
    match (change, *ours) {
        (Change::Permute(heads, _), "attn_q") | (Change::Permute(_, heads), "attn_k") => {
            permute(tensor, heads)
        }
        _ => {}
    }
    false
}

fn add_one(tensor: &mut Tensor, change: Change, ours: &str) {
    if change == Change::Gemma && ours.ends_with("norm") {
        tensor.map(|_, value| value + 1.0);
    }
}

/// Row `i` of the first half of a head and row `i` of the second become neighbours.
fn permute(tensor: &mut Tensor, heads: usize) {
    let rows = tensor.shape[0] as usize;
    let row_bytes = tensor.bytes.len() / rows;
    let (head, half) = (rows / heads, rows / heads / 2);
    let source = |row: usize| row / head * head + row % head / 2 + row % 2 * half;
    let moved =
        (0..rows).flat_map(|row| &tensor.bytes[source(row) * row_bytes..(source(row) + 1) * row_bytes]);
    tensor.bytes = moved.copied().collect();
}

/// Writes the file `source` once more with other keys (whole names), and tensors a second time under the names that `again`
/// gives them.
pub fn rewrite(source: &Path, path: &Path, keys: &[(&str, Value)], again: impl Fn(&str) -> Option<String>) {
    let file = ModelFile::open(source).expect("a file");
    let data = std::fs::read(source).expect("a file");
    let mut writer = GgufWriter::new();
    for (key, value) in file.metadata().iter().filter(|(key, _)| !keys.iter().any(|(own, _)| own == key)) {
        writer.metadata(key, value.clone());
    }
    for (key, value) in keys {
        writer.metadata(*key, value.clone());
    }
    let mut places = Vec::new();
    for tensor in file.tensors() {
        for name in [Some(tensor.name.clone()), again(&tensor.name)].into_iter().flatten() {
            writer.tensor(&name, tensor.tensor_type, &tensor.shape);
            places.push((name, tensor.offset as usize..(tensor.offset + tensor.byte_len) as usize));
        }
    }
    let bytes = |name: &str| {
        let (_, place) = places.iter().find(|(own, _)| own == name).expect("a planned tensor");
        &data[place.clone()]
    };
    writer.write(path, |info, out| out.write_all(bytes(&info.name))).expect("written");
}
