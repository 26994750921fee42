//! A text model inside a larger one gives the bits that it gives alone, and the other parts cost no memory.
//!
//! What could go wrong: a key of the outer configuration that is taken for one of the text model's, a tensor that is looked for in
//! the wrong place, a vision tower that is held, a switch of the outer configuration that is silently ignored.

use serde_json::{Value, json};

use crate::checkpoint::{Checkpoint, Reference, Tensor};
use crate::families::{bits, exact, logits_of, refusal, vector};

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
    Checkpoint { config, tensors }
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
