//! A text model inside a larger one gives the bits that it gives alone, and the other parts cost no memory.
//!
//! What could go wrong: a key of the outer configuration that is taken for one of the text model's, a tensor that is looked for in
//! the wrong place, a vision tower that is held, a switch of the outer configuration that is silently ignored.

use serde_json::{Value, json};

use crate::checkpoint::{Checkpoint, Reference, Tensor};
use crate::families::{BOUND, bits, distance, exact, logits_of, refusal, vector};

/// The checkpoint inside a larger one; `name` says where its tensors are.
fn wrapped(checkpoint: &Checkpoint, model_type: &str, name: impl Fn(&str) -> String) -> Checkpoint {
    let tensors = checkpoint.tensors.iter();
    let mut tensors: Vec<Tensor> =
        tensors.map(|tensor| Tensor { name: name(&tensor.name), ..tensor.clone() }).collect();
    for other in ["vision_tower.encoder.blocks.0.wqkv.weight", "mm_projector.linear_1.weight"] {
        tensors.push(vector(other, &[1.0; 64]));
    }
    let config = json!({
        "model_type": model_type,
        "architectures": ["WithPictures"],
        "text_config": checkpoint.config,
        "vision_config": { "hidden_size": 32, "num_hidden_layers": 3, "model_type": "tower" },
        "media_placeholder_token_id": 163605,
        "image_token_id": 7,
        "projection_hidden_size": 32,
        "tie_word_embeddings": false,
        "dtype": "float32",
        "use_cache": true,
    });
    Checkpoint { config, tensors, side_files: Default::default() }
}

#[test]
fn the_same_bits_and_the_same_memory_as_alone() {
    let cases = [
        ("deepseek_v3", "kimi_k25", false),
        ("deepseek_v3_fp8", "kimi_k25", false),
        ("glm_moe_dsa", "with_pictures", true),
        ("qwen3_moe", "qwen3_vl_moe", true),
        ("qwen3_5_moe_text", "qwen3_5_moe", true),
    ];
    for (inner, outer, head_outside) in cases {
        let Some(reference) = Reference::open(inner) else { continue };
        let mut alone = Checkpoint::read(&reference.folder);
        if outer == "kimi_k25" {
            alone.config["model_type"] = json!("kimi_k2");
            alone.config["num_nextn_predict_layers"] = json!(1);
            let further = vector("model.layers.2.eh_proj.weight", &[0.0; 64]);
            alone.tensors.push(further);
        }
        let plan = |checkpoint: &Checkpoint| {
            let plan = coldpress::plan(checkpoint.write().path(), &exact()).expect("fits").plan;
            (plan.dense, plan.kv, plan.scratch, plan.slots)
        };
        let wrapped = wrapped(&alone, outer, |name| match name.strip_prefix("model.") {
            Some(rest) if head_outside => format!("model.language_model.{rest}"),
            None if head_outside => name.to_owned(),
            _ => format!("language_model.{name}"),
        });
        let run =
            |checkpoint: &Checkpoint| bits(&logits_of(checkpoint.write().path(), &exact(), &reference.ids));
        assert!(run(&wrapped) == run(&alone), "{inner} in {outer}: other bits");
        assert_eq!(plan(&wrapped), plan(&alone), "{inner} in {outer}");
    }
}

#[test]
fn what_belongs_to_no_other_part_is_refused_by_name() {
    let Some(reference) = Reference::open("deepseek_v3") else { return };
    let alone = Checkpoint::read(&reference.folder);
    let whole = wrapped(&alone, "kimi_k25", |name| format!("language_model.{name}"));
    let cases: [(&str, Value, &str); 4] = [
        ("/quantization_config", json!({ "quant_method": "gptq" }), "quantization_config.quant_method is"),
        ("/residual_gain", json!(2), "residual_gain is"),
        ("/text_config/residual_gain", json!(2), "text_config.residual_gain is"),
        ("/text_config/model_type", json!("unheard_of"), "kimi_k25, unheard_of"),
    ];
    for (pointer, value, part) in cases {
        let mut other = whole.clone();
        let (object, key) = pointer.rsplit_once('/').expect("a pointer");
        let object = other.config.pointer_mut(object).expect("an object");
        object[key] = value;
        let error = refusal(&other);
        assert!(error.contains(part), "{pointer}: {error}");
    }
    let mut other = whole;
    other.tensors.push(vector("language_model.memory.weight", &[1.0; 8]));
    assert!(refusal(&other).contains("language_model.memory.weight"), "{}", refusal(&other));
}

/// Folders as transformers writes them (`fixtures/make_wrapped.py`).
const WRITTEN: [&str; 5] = ["qwen3_vl_moe", "qwen3_5_moe", "glm4v_moe", "llama4", "mistral3"];

fn is_packed(tensor: &Tensor) -> bool {
    tensor.name.ends_with("experts.gate_up_proj") || tensor.name.ends_with("experts.down_proj")
}

/// A packed tensor with rows and columns of each expert exchanged.
fn turned(tensor: &Tensor) -> Tensor {
    let [experts, rows, columns] = [0, 1, 2].map(|at| tensor.shape[at] as usize);
    let size = tensor.bytes.len() / (experts * rows * columns);
    let places = (0..experts * rows * columns).map(|at| {
        let (expert, column, row) = (at / (rows * columns), at / rows % columns, at % rows);
        (expert * rows * columns + row * columns + column) * size
    });
    let bytes = places.flat_map(|at| tensor.bytes[at..at + size].to_vec()).collect();
    Tensor { shape: vec![experts as u64, columns as u64, rows as u64], bytes, ..tensor.clone() }
}

#[test]
fn folders_as_transformers_writes_them_agree_with_it() {
    for name in WRITTEN {
        let reference = Reference::open(&format!("wrapped/{name}")).expect("a fixture");
        let checkpoint = Checkpoint::read(&reference.folder);
        let logits = logits_of(checkpoint.write().path(), &exact(), &reference.ids);
        let worst = distance(&logits, &reference.logits);
        println!("{name}: {worst:e}");
        assert!(worst < BOUND, "{name}: logits differ by {worst}");
    }
}

/// Gate and up of these models are square together, so that only down says which way both lie: as published, with a row per input, or
/// as newer programs write them, with a row per output.
#[test]
fn packed_experts_lie_either_way() {
    for name in ["qwen3_vl_moe", "llama4"] {
        let reference = Reference::open(&format!("wrapped/{name}")).expect("a fixture");
        let written = Checkpoint::read(&reference.folder);
        let gate_up = written.tensors.iter().find(|tensor| tensor.name.ends_with("experts.gate_up_proj"));
        assert_eq!(gate_up.expect("packed").shape, [4, 32, 32], "{name}");
        let with = |turns: &dyn Fn(&Tensor) -> bool| {
            let mut other = written.clone();
            let packed = other.tensors.iter_mut().filter(|tensor| is_packed(tensor) && turns(tensor));
            packed.for_each(|tensor| *tensor = turned(tensor));
            other
        };
        let run =
            |checkpoint: &Checkpoint| bits(&logits_of(checkpoint.write().path(), &exact(), &reference.ids));
        assert!(run(&with(&|_| true)) == run(&written), "{name}: other bits when turned");
    }
}

/// A model whose gate and up are not square says it if down lies the other way.
#[test]
fn experts_that_lie_both_ways_are_refused() {
    let Some(reference) = Reference::open("llama4_text") else { return };
    let mut checkpoint = Checkpoint::read(&reference.folder);
    checkpoint.config["intermediate_size"] = json!(16);
    for tensor in checkpoint.tensors.iter_mut() {
        let narrower = |tensor: &Tensor, shape: [u64; 3]| {
            let bytes = (shape.iter().product::<u64>() * 4) as usize;
            Tensor { shape: shape.to_vec(), bytes: tensor.bytes[..bytes].to_vec(), ..tensor.clone() }
        };
        match &tensor.name {
            name if name.ends_with("experts.gate_up_proj") => *tensor = narrower(tensor, [8, 64, 32]),
            name if name.ends_with("experts.down_proj") => *tensor = narrower(tensor, [8, 64, 16]),
            _ => {}
        }
    }
    let error = refusal(&checkpoint);
    assert!(
        error.contains("gate_up_proj of the experts has a row per input, down_proj a row per output"),
        "{error}"
    );
}

/// Qwen3-VL's text part has the names of Qwen3-MoE in GGUF files, under an architecture of its own.
#[test]
fn files_of_qwen3_vl_are_those_of_qwen3_moe() {
    let source = crate::common::fixture("qwen3moe.gguf");
    let file = coldpress_formats::ModelFile::open(&source).expect("a fixture");
    let renamed = file.metadata().iter().filter_map(|(key, value)| {
        Some((format!("qwen3vlmoe.{}", key.strip_prefix("qwen3moe.")?), value.clone()))
    });
    let mut keys: Vec<(String, coldpress_formats::Value)> = renamed.collect();
    keys.push(("general.architecture".into(), "qwen3vlmoe".into()));
    keys.push(("qwen3vlmoe.n_deepstack_layers".into(), 3u32.into()));
    let keys: Vec<(&str, _)> = keys.iter().map(|(key, value)| (key.as_str(), value.clone())).collect();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.gguf");
    crate::checkpoint::as_gguf::rewrite(&source, &path, &keys, |_| None);
    let ids: Vec<u32> = (0..30).map(|place| place * 7 % 256).collect();
    assert!(bits(&logits_of(&path, &exact(), &ids)) == bits(&logits_of(&source, &exact(), &ids)));
}
