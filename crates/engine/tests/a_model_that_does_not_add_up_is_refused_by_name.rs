//! A readable file whose metadata and tensors contradict each other, or that asks for something coldpress does not compute,
//! is refused before any weight is read, by the name of what is wrong. Silence here would be a wrong answer later.

use std::path::Path;

use crate::common::fixture;
use coldpress::{EngineError, LoadConfiguration};
use coldpress_formats::{GgufWriter, ModelFile, TensorType, Value};

/// What is changed in a copy of a good model.
#[derive(Default)]
struct Change {
    set: Vec<(&'static str, Value)>,
    remove_key: Option<&'static str>,
    remove_tensor: Option<&'static str>,
    rename_tensor: Option<(&'static str, &'static str)>,
    reshape: Option<(&'static str, TensorType, Vec<u64>)>,
}

/// Writes the copy; tensor data is zeros, because nothing may read it.
fn write(model: &str, change: &Change, path: &Path) {
    let file = ModelFile::open(fixture(model)).expect("the fixture is good");
    let mut writer = GgufWriter::new();
    for (key, value) in file.metadata().iter() {
        let replaced = change.set.iter().any(|(set, _)| *set == key);
        if !replaced && change.remove_key != Some(key) {
            writer.metadata(key, value.clone());
        }
    }
    for (key, value) in &change.set {
        writer.metadata(*key, value.clone());
    }
    for tensor in file.tensors().filter(|tensor| change.remove_tensor != Some(tensor.name.as_str())) {
        let name = match change.rename_tensor {
            Some((from, to)) if tensor.name == from => to,
            _ => tensor.name.as_str(),
        };
        match &change.reshape {
            Some((reshaped, tensor_type, shape)) if *reshaped == tensor.name => {
                writer.tensor(name, *tensor_type, shape)
            }
            _ => writer.tensor(name, tensor.tensor_type, &tensor.shape),
        };
    }
    let written = writer.write(path, |tensor, out| out.write_all(&vec![0; tensor.byte_len as usize]));
    written.expect("a readable file");
}

fn refusal(model: &str, change: Change) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("changed.gguf");
    write(model, &change, &path);
    match coldpress::plan(&path, &LoadConfiguration::default()) {
        Ok(_) => panic!("accepted"),
        Err(error) => {
            assert!(error.is_bad_model(), "not a fault of the file: {error}");
            assert!(!matches!(error, EngineError::DoesNotFit(_)));
            error.to_string()
        }
    }
}

fn check(model: &str, change: Change, parts: &[&str]) {
    let message = refusal(model, change);
    for part in parts {
        assert!(message.contains(part), "{message:?} lacks {part:?}");
    }
}

#[test]
fn an_unchanged_copy_is_accepted() {
    let folder = tempfile::tempdir().expect("a folder");
    for model in ["qwen3moe.gguf", "qwen2moe.gguf", "mixtral.gguf"] {
        let path = folder.path().join(model);
        write(model, &Change::default(), &path);
        coldpress::plan(&path, &LoadConfiguration::default()).expect("the writer changes nothing by itself");
    }
}

#[test]
fn an_architecture_that_is_not_there() {
    let set = vec![("general.architecture", Value::from("mamba"))];
    check("qwen3moe.gguf", Change { set, ..Change::default() }, &["mamba", "qwen3moe", "llama"]);
}

#[test]
fn a_missing_or_renamed_tensor() {
    for name in ["blk.1.attn_q.weight", "blk.0.ffn_up_exps.weight", "output_norm.weight"] {
        check("qwen3moe.gguf", Change { remove_tensor: Some(name), ..Change::default() }, &[name]);
    }
    let change = Change { remove_tensor: Some("blk.1.attn_k.bias"), ..Change::default() };
    // Biases are optional where the family has them: the file is consistent without one.
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("no-bias.gguf");
    write("qwen2moe.gguf", &change, &path);
    coldpress::plan(&path, &LoadConfiguration::default()).expect("a bias may be absent");
}

#[test]
fn a_tensor_that_nothing_uses() {
    let change =
        Change { rename_tensor: Some(("blk.0.attn_q.bias", "blk.0.attn_q.zeros")), ..Change::default() };
    check("qwen2moe.gguf", change, &["blk.0.attn_q.zeros", "no place"]);
}

#[test]
fn shapes_that_contradict_the_metadata() {
    let wrong = ("blk.0.ffn_gate_exps.weight", TensorType::F16, vec![64, 32, 7]);
    check("qwen3moe.gguf", Change { reshape: Some(wrong), ..Change::default() }, &["ffn_gate_exps", "7"]);
    let key = "qwen3moe.expert_feed_forward_length";
    check("qwen3moe.gguf", Change { set: vec![(key, Value::from(999u32))], ..Change::default() }, &["999"]);
}

#[test]
fn numbers_that_no_model_has() {
    for (name, value) in [
        ("attention.head_count", 0),
        ("attention.head_count", 3),
        ("attention.head_count_kv", 0),
        ("block_count", u32::MAX),
        ("expert_used_count", 0),
        ("context_length", 0),
        ("rope.dimension_count", 7),
        ("rope.dimension_count", 1 << 20),
    ] {
        let key: &'static str = format!("qwen3moe.{name}").leak();
        refusal("qwen3moe.gguf", Change { set: vec![(key, Value::from(value))], ..Change::default() });
    }
    for value in [f32::NAN, f32::INFINITY, 0.0, -1.0] {
        let set = vec![("qwen3moe.rope.freq_base", Value::from(value))];
        check("qwen3moe.gguf", Change { set, ..Change::default() }, &["rope.freq_base"]);
    }
}

#[test]
fn features_that_are_not_computed() {
    let set = vec![("qwen3moe.rope.scaling.type", Value::from("yarn"))];
    check("qwen3moe.gguf", Change { set, ..Change::default() }, &["rope.scaling.type", "yarn"]);
    let reshape = Some(("output.weight", TensorType::Q8_1, vec![64, 288]));
    check("qwen3moe.gguf", Change { reshape, ..Change::default() }, &["output.weight", "Q8_1", "Q4_K"]);
}

#[test]
fn metadata_that_is_absent_or_of_another_type() {
    let change = Change { remove_key: Some("qwen3moe.embedding_length"), ..Change::default() };
    check("qwen3moe.gguf", change, &["qwen3moe.embedding_length"]);
    let set = vec![("qwen3moe.block_count", Value::from("two"))];
    check("qwen3moe.gguf", Change { set, ..Change::default() }, &["qwen3moe.block_count"]);
}
