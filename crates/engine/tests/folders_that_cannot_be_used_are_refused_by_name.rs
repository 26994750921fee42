//! Folders whose configuration asks for something that is not computed, or whose tensors are missing or differ, are refused with the
//! key and value, or the tensor.

use coldpress::LoadConfiguration;
use serde_json::{Value, json};

use crate::checkpoint::{Checkpoint, Reference};
use crate::families::{CODES, exact, refusal};

/// Each family with another value under a key is refused with a message that has the last part in it and names the file.
fn refused_with(cases: &[(&str, &str, Value, &str)]) {
    for (name, key, value, part) in cases {
        let Some(reference) = Reference::open(name) else { continue };
        let mut checkpoint = Checkpoint::read(&reference.folder);
        checkpoint.config[*key] = value.clone();
        let error = refusal(&checkpoint);
        assert!(error.contains(part) && error.contains("config.json"), "{name} with {key}: {error}");
    }
}

#[test]
fn what_gpt_oss_asks_for_and_is_not_computed_is_refused() {
    let cases = [
        ("gpt_oss", "layer_types", json!(["full_attention"]), "layer_types has 1 entries for 2 layers"),
        ("gpt_oss", "layer_types", json!(["full_attention", "chunked_attention"]), "layer_types is"),
        ("gpt_oss", "initial_context_length", json!(64), "means the same"),
        (CODES, "quantization_config", json!({ "quant_method": "fp8" }), "quant_method is string \"fp8\""),
        (CODES, "intermediate_size", json!(32), "the metadata asks for"),
        (CODES, "hidden_size", json!(48), "the metadata asks for"),
    ];
    refused_with(&cases);
}

#[test]
fn what_is_not_computed_is_refused_by_key_and_value() {
    let cases = [
        ("qwen3_moe", "hidden_act", json!("gelu"), "hidden_act is string \"gelu\""),
        ("qwen3_moe", "a_new_switch", json!(7), "a_new_switch is uint64 7"),
        ("qwen3_moe", "quantization_config", json!({ "bits": 4 }), "quantization_config.bits is"),
        ("qwen3_moe", "num_experts", json!(4), "means the same"),
        ("qwen3_moe", "rope_theta", json!(1), "means the same"),
        ("qwen3_moe", "vocab_size", json!(287), "vocab_size is 287, but the embedding has 288 rows"),
        (
            "qwen3_moe",
            "num_hidden_layers",
            json!(1),
            "have no place in architecture 'qwen3moe': model.layers.1.",
        ),
        ("qwen3_moe", "num_hidden_layers", json!(3), "model.layers.2."),
        ("qwen3_moe", "model_type", json!("qwen9"), "'qwen9' is not supported"),
        ("qwen3_moe", "attention_bias", json!(true), "attention_bias is true, but layer 0 has no bias"),
        (
            "llama",
            "rope_scaling",
            json!({ "rope_type": "yarn", "factor": 2.0 }),
            "rope_scaling.rope_type is 'yarn'",
        ),
        ("glm4_moe", "n_group", json!(3), "2 of 8 experts cannot be chosen from 1 of 3 groups"),
        ("glm4_moe", "topk_group", json!(0), "topk_group is 0"),
        ("hy_v3", "mlp_layer_types", json!(["dense"]), "mlp_layer_types has 1 entries for 2 layers"),
        ("llama4_text", "layer_types", json!(["full_attention"]), "layer_types has 1 entries for 4 layers"),
        ("glm4_moe", "use_qk_norm", json!(false), "self_attn.k_norm"),
        ("minimax_m2", "rotary_dim", json!(4), "rotary_dim is 4, but 8 elements are to be rotated"),
        ("minimax_m2", "scoring_func", json!("softmax"), "scoring_func is string \"softmax\""),
        ("mimo_v2_flash", "v_head_dim", json!(32), "value heads of 32 with key heads of 24 elements"),
        ("mimo_v2_flash", "layer_types", json!(["full_attention"]), "layer_types has 1 entries for 2 layers"),
        ("lfm2_moe", "layer_types", json!(["conv", "sliding_attention"]), "layer_types is neither"),
        ("lfm2_moe", "conv_L_cache", json!(4), "the metadata asks for"),
        ("lfm2_moe", "conv_bias", json!(true), "conv_bias is true, but layer 0 has no bias"),
        ("lfm2_moe", "use_pos_enc", json!(false), "use_pos_enc is bool false"),
        ("qwen3_next", "layer_types", json!(["linear_attention"]), "layer_types has 1 entries for 2 layers"),
        ("qwen3_next", "linear_num_key_heads", json!(3), "cannot share 3 key heads evenly"),
        ("qwen3_next", "linear_value_head_dim", json!(8), "value heads of 8 elements"),
        ("qwen3_next", "linear_conv_kernel_dim", json!(9), "reaches over 9 positions"),
        ("qwen3_next", "attn_output_gate", json!(7), "attn_output_gate is uint64 7"),
        ("qwen3_5_moe_text", "linear_conv_kernel_dim", json!(3), "the metadata asks for"),
        ("kimi_linear", "linear_head_dim", json!(32), "the metadata asks for"),
        ("kimi_linear", "mla_use_nope", json!(7), "mla_use_nope is uint64 7"),
        ("bailing_hybrid", "kda_lower_bound", json!(1.0), "a negative bound"),
        ("bailing_hybrid", "topk_group", json!(5), "2 of 8 experts cannot be chosen from 5 of 4 groups"),
        ("llama", "mlp_bias", json!(true), "mlp_bias is bool true"),
        ("llama", "tie_word_embeddings", json!("no"), "tie_word_embeddings"),
        ("qwen2", "tie_word_embeddings", json!(false), "lm_head.weight"),
        ("gemma3", "final_logit_softcapping", json!(30.0), "final_logit_softcapping is float64 30"),
        ("gemma3", "layer_types", json!(["full_attention"]), "layer_types has 1 entries for 7 layers"),
    ];
    refused_with(&cases);
}

#[test]
fn experts_that_are_missing_or_differ_are_named() {
    let reference = Reference::open("qwen3_moe").expect("a fixture");
    let checkpoint = Checkpoint::read(&reference.folder);
    let name = "model.layers.1.mlp.experts.5.up_proj.weight";
    let mut without = checkpoint.clone();
    without.tensors.retain(|tensor| tensor.name != name);
    assert!(refusal(&without).contains(name), "{}", refusal(&without));
    let mut other = checkpoint.clone();
    *other.tensor(name) = other.tensor(name).rounded("F16");
    assert!(
        refusal(&other).contains(&format!("{name} is F16, expert 0 of its layer is F32")),
        "{}",
        refusal(&other)
    );
    let mut wide = checkpoint;
    wide.tensor(name).shape.reverse();
    assert!(refusal(&wide).contains(name), "{}", refusal(&wide));
}

#[test]
fn longer_texts_than_phimoe_was_made_for_are_refused() {
    let Some(reference) = Reference::open("phimoe") else { return };
    let folder = reference.linked("config.json");
    assert!(coldpress::plan(folder.path(), &LoadConfiguration::default().context(128)).is_ok());
    let error =
        coldpress::plan(folder.path(), &LoadConfiguration::default().context(129)).expect_err("too long");
    assert!(error.to_string().contains("beyond 128"), "{error}");
}

#[test]
fn a_folder_is_inspected_packed_and_planned_before_it_is_whole() {
    let reference = Reference::open("qwen3_moe").expect("a fixture");
    let checkpoint = Checkpoint::read(&reference.folder);
    let folder = checkpoint.write_shards(3);
    let inspection = coldpress::inspect(folder.path(), false).expect("inspects");
    assert_eq!((inspection.files.len(), inspection.not_runnable), (4, None));
    assert_eq!(inspection.metadata["model_type"], "qwen3_moe");
    let summary = coldpress::model_summary(folder.path()).expect("a summary");
    assert_eq!((summary.experts, summary.experts_per_token, summary.quantization.as_str()), (8, 2, "F32"));

    let last = folder.path().join("model-00003-of-00003.safetensors");
    let length = std::fs::metadata(&last).expect("a shard").len();
    std::fs::File::options().write(true).open(&last).expect("a shard").set_len(length - 1000).expect("cut");
    assert!(coldpress::plan(folder.path(), &exact()).is_err());
    assert_eq!(coldpress::model_file_bytes(folder.path()).expect("headers are enough").0, {
        let lengths = inspection.files.iter().map(|file| file.bytes.0);
        lengths.sum::<u64>()
    });
    std::fs::remove_file(&last).expect("removed");
    let error = coldpress::model_file_bytes(folder.path()).expect_err("a shard is missing").to_string();
    assert!(error.contains("missing: model-00003-of-00003.safetensors"), "{error}");
}
