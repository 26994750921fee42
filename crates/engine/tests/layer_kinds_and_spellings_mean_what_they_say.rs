//! Layers that differ from their neighbours, and configurations in the spelling of published checkpoints.
//!
//! What could go wrong: chunks of positions that begin elsewhere, a temperature that grows one position too early, dense layers among
//! routed ones in other places, windows in layers that have none, a key of a published configuration that is read as
//! another one. The references have some of this in one place only; where there is none, two ways to say the same are compared.

use serde_json::{Value, json};

use crate::checkpoint::{Checkpoint, Reference, Tensor};
use crate::families::{self, BOUND, bits, distance, exact, refusal};

fn logits_of(checkpoint: &Checkpoint, ids: &[u32]) -> Vec<f32> {
    families::logits_of(checkpoint.write().path(), &exact(), ids)
}

fn set(checkpoint: &mut Checkpoint, changes: &[(&str, Value)]) {
    for (key, value) in changes {
        checkpoint.config[*key] = value.clone();
    }
}

/// A chunk ends after its last position, and queries grow from the last position of the floor on.
#[test]
fn chunks_and_temperature_of_llama4_begin_where_they_say() {
    let Some(reference) = Reference::open("llama4_text") else { return };
    let mut checkpoint = Checkpoint::read(&reference.folder);
    let mut run = |chunk: u32, floor: u32, count: usize| {
        set(&mut checkpoint, &[("attention_chunk_size", json!(chunk)), ("floor_scale", json!(floor))]);
        bits(&logits_of(&checkpoint, &reference.ids[..count]))
    };
    for (count, same) in [(15, true), (16, true), (17, false)] {
        assert_eq!(run(16, 500, count) == run(500, 500, count), same, "{count} tokens in chunks of 16");
    }
    for (count, same) in [(14, true), (15, true), (16, false), (17, false)] {
        assert_eq!(run(500, 16, count) == run(500, 500, count), same, "{count} tokens with a floor of 16");
    }
}

/// The checkpoint with all experts of `layer` like its first one, and with that one as the layer's dense network: weights of
/// the chosen experts that sum to one make the two the same.
fn with_one_expert(checkpoint: &Checkpoint, layer: usize) -> (Checkpoint, Checkpoint) {
    let prefix = format!("model.layers.{layer}.mlp.");
    let (mut routed, mut dense) = (checkpoint.clone(), checkpoint.clone());
    dense.tensors.retain(|tensor| !tensor.name.starts_with(&prefix));
    for part in ["gate_proj", "up_proj", "down_proj"] {
        let first = routed.tensor(&format!("{prefix}experts.0.{part}.weight")).clone();
        let experts = checkpoint.config["num_local_experts"].as_u64().expect("a number");
        for expert in 1..experts {
            routed.tensor(&format!("{prefix}experts.{expert}.{part}.weight")).bytes = first.bytes.clone();
        }
        dense.tensors.push(Tensor { name: format!("{prefix}{part}.weight"), ..first });
    }
    dense.config["intermediate_size"] = checkpoint.config["moe_intermediate_size"].clone();
    (routed, dense)
}

#[test]
fn dense_layers_of_qwen_are_those_that_a_list_or_a_step_names() {
    let Some(reference) = Reference::open("qwen3_moe") else { return };
    let checkpoint = Checkpoint::read(&reference.folder);
    let cases: [(usize, &[(&str, Value)]); 3] = [
        (0, &[("mlp_only_layers", json!([0]))]),
        (1, &[("mlp_only_layers", json!([1]))]),
        (0, &[("decoder_sparse_step", json!(2))]),
    ];
    for (layer, changes) in cases {
        let (routed, mut dense) = with_one_expert(&checkpoint, layer);
        set(&mut dense, changes);
        let worst = distance(&logits_of(&routed, &reference.ids), &logits_of(&dense, &reference.ids));
        println!("{changes:?}: largest difference {worst:e}");
        assert!(worst < BOUND, "{changes:?}: logits differ by {worst}");
    }
    let mut beyond = checkpoint.clone();
    set(&mut beyond, &[("mlp_only_layers", json!([2]))]);
    assert!(refusal(&beyond).contains("mlp_only_layers has layer 2, there are 2"), "{}", refusal(&beyond));
    let mut without = checkpoint;
    set(&mut without, &[("decoder_sparse_step", json!(2))]);
    assert!(refusal(&without).contains("model.layers.0.mlp.gate_proj.weight"), "{}", refusal(&without));
}

/// Windows have to be switched on, and are in those layers that the family says; a text as long as the window sees no
/// difference.
#[test]
fn windows_of_qwen_are_where_they_should_be() {
    // Layers with a window when none is listed, for bounds of 0, 1 and beyond all layers.
    let cases = [
        ("qwen2", [true, true, false]),
        ("qwen3", [true, true, false]),
        ("qwen2_moe", [false, true, true]),
        ("qwen3_moe", [true, true, true]),
    ];
    for (name, expected) in cases {
        let Some(reference) = Reference::open(name) else { continue };
        let mut checkpoint = Checkpoint::read(&reference.folder);
        let count = 17;
        checkpoint.config.as_object_mut().expect("an object").remove("layer_types");
        let mut run = |switched: bool, window: u32, bound: u32| {
            let changes = [
                ("use_sliding_window", json!(switched)),
                ("sliding_window", json!(window)),
                ("max_window_layers", json!(bound)),
            ];
            set(&mut checkpoint, &changes);
            bits(&logits_of(&checkpoint, &reference.ids[..count]))
        };
        let without = run(false, 16, 0);
        for (bound, windows) in [0, 1, 100].into_iter().zip(expected) {
            assert_eq!(run(true, 16, bound) != without, windows, "{name} with a bound of {bound}");
            assert!(run(true, 17, bound) == without, "{name}: a window as long as the text");
        }
        let kinds = |kind: &str| {
            json!(vec![kind; checkpoint.config["num_hidden_layers"].as_u64().expect("a number") as usize])
        };
        let (all, none) = (kinds("sliding_attention"), kinds("full_attention"));
        if name == "qwen3_moe" {
            continue;
        }
        let listed = |kinds: Value| {
            let mut other = checkpoint.clone();
            set(&mut other, &[("layer_types", kinds), ("sliding_window", json!(16))]);
            bits(&logits_of(&other, &reference.ids[..count]))
        };
        assert!(listed(all) != without, "{name}: a list of layers with a window");
        assert!(listed(none) == without, "{name}: a list of layers without a window");
    }
}

/// The configuration of MiMo-V2-Flash with the keys of its published checkpoint.
fn as_published(config: &Value) -> Value {
    let mut published = config.clone();
    let object = published.as_object_mut().expect("an object");
    for key in
        ["layer_types", "mlp_layer_types", "rope_parameters", "rms_norm_eps", "dtype", "sliding_window"]
    {
        object.remove(key);
    }
    let ropes = &config["rope_parameters"];
    let further = json!({
        "add_full_attention_sink_bias": false,
        "add_swa_attention_sink_bias": true,
        "attention_chunk_size": 7,
        "hybrid_layer_pattern": [0, 1],
        "layernorm_epsilon": config["rms_norm_eps"],
        "moe_layer_freq": [0, 1],
        "n_shared_experts": null,
        "partial_rotary_factor": ropes["full_attention"]["partial_rotary_factor"],
        "rope_theta": ropes["full_attention"]["rope_theta"],
        "routed_scaling_factor": null,
        "scoring_func": "sigmoid",
        "sliding_window": 7,
        "sliding_window_size": 7,
        "swa_head_dim": config["head_dim"],
        "swa_num_attention_heads": config["num_attention_heads"],
        "swa_num_key_value_heads": 4,
        "swa_rope_theta": ropes["sliding_attention"]["rope_theta"],
        "swa_v_head_dim": config["v_head_dim"],
        "topk_method": "noaux_tc",
        "torch_dtype": "float32",
    });
    object.extend(further.as_object().expect("an object").clone());
    published
}

#[test]
fn the_published_spelling_of_mimo_is_the_same_model() {
    let Some(reference) = Reference::open("mimo_v2_flash") else { return };
    let checkpoint = Checkpoint::read(&reference.folder);
    let expected = bits(&logits_of(&checkpoint, &reference.ids));
    let published = Checkpoint { config: as_published(&checkpoint.config), ..checkpoint };
    assert!(bits(&logits_of(&published, &reference.ids)) == expected, "another model");
    let refused = [
        ("hybrid_layer_pattern", json!([0]), "hybrid_layer_pattern has 1 entries for 2 layers"),
        ("layer_types", json!(["full_attention", "full_attention"]), "name different layers"),
        ("moe_layer_freq", json!([1, 1]), "model.layers.0.mlp.gate.weight"),
        ("swa_head_dim", json!(16), "means the same"),
        ("swa_num_key_value_heads", json!(3), "4 query heads cannot share 3 key heads"),
        ("add_full_attention_sink_bias", json!(true), "add_full_attention_sink_bias is bool true"),
        ("add_swa_attention_sink_bias", json!(false), "attention_sink_bias"),
        ("topk_method", json!("greedy"), "topk_method is string \"greedy\""),
    ];
    for (key, value, part) in refused {
        let mut other = published.clone();
        set(&mut other, &[(key, value)]);
        assert!(refusal(&other).contains(part), "{key}: {}", refusal(&other));
    }
}

/// Layers of Granite 4 by the names of published checkpoints, and the switches that its tiny reference leaves alone.
#[test]
fn kinds_and_switches_of_granite4_mean_what_they_say() {
    let Some(reference) = Reference::open("granitemoehybrid") else { return };
    let checkpoint = Checkpoint::read(&reference.folder);
    let expected = logits_of(&checkpoint, &reference.ids);
    let with = |changes: &[(&str, Value)]| {
        let mut other = checkpoint.clone();
        set(&mut other, changes);
        logits_of(&other, &reference.ids)
    };
    let same: [&[(&str, Value)]; 4] = [
        &[("layer_types", json!(["mamba", "attention"])), ("position_embedding_type", json!("nope"))],
        &[("mamba_d_head", json!("auto"))],
        &[("time_step_limit", json!([0.0, 1e30]))],
        &[("time_step_limit", Value::Null), ("mamba_chunk_size", json!(7))],
    ];
    for changes in same {
        assert!(bits(&with(changes)) == bits(&expected), "{changes:?}: other bits");
    }
    let others: [&[(&str, Value)]; 3] = [
        &[("position_embedding_type", json!("rope"))],
        &[("time_step_limit", json!([0.0, 0.5]))],
        &[("time_step_limit", json!([1.0, 1e30]))],
    ];
    for changes in others {
        let found = distance(&with(changes), &expected);
        assert!(found > 10.0 * BOUND, "{changes:?} changes logits by {found} only");
    }
    let refused = [
        ("layer_types", json!(["mamba", "conv"]), "layer_types is 'conv' in layer 1"),
        ("layer_types", json!(["mamba"]), "layer_types has 1 entries for 2 layers"),
        ("position_embedding_type", json!("alibi"), "position_embedding_type is string \"alibi\""),
        ("time_step_limit", json!([1.0, 0.5]), "time_step_limit is not two bounds"),
        ("time_step_limit", json!(["0", "1"]), "expected an array of floats"),
        ("mamba_n_heads", json!(3), "do not make 128 channels"),
        ("mamba_n_heads", json!(0), "mamba_n_heads is 0"),
        ("mamba_n_groups", json!(3), "4 heads of 32 in 3 groups"),
        ("mamba_d_conv", json!(3), "the metadata asks for"),
        ("mamba_d_conv", json!(9), "reaches over 9 positions"),
        ("mamba_proj_bias", json!(true), "mamba_proj_bias is true, but layer 0 has no such bias"),
    ];
    for (key, value, part) in refused {
        let mut other = checkpoint.clone();
        set(&mut other, &[(key, value)]);
        assert!(refusal(&other).contains(part), "{key}: {}", refusal(&other));
    }
    let mut small = checkpoint.clone();
    set(&mut small, &[("mamba_n_heads", json!(16)), ("mamba_d_head", json!(8))]);
    assert!(refusal(&small).contains("heads of 8 elements"), "{}", refusal(&small));
}

/// Granite 4 without experts is Granite 4 whose experts answer nothing.
#[test]
fn granite4_without_experts_has_its_shared_network_alone() {
    let Some(reference) = Reference::open("granitemoehybrid") else { return };
    let mut silent = Checkpoint::read(&reference.folder);
    let mut dense = silent.clone();
    for layer in 0..2 {
        let name = format!("model.layers.{layer}.block_sparse_moe.output_linear.weight");
        silent.tensor(&name).map(|_, _| 0.0);
    }
    dense.tensors.retain(|tensor| !tensor.name.contains("block_sparse_moe"));
    set(&mut dense, &[("num_local_experts", json!(0)), ("num_experts_per_tok", json!(0))]);
    let (silent, dense) = (logits_of(&silent, &reference.ids), logits_of(&dense, &reference.ids));
    assert_eq!(distance(&silent, &dense), 0.0);
    assert!(distance(&dense, &reference.logits) > 10.0 * BOUND);
}

/// MiniMax-01 in the spelling of the checkpoints that bring code of their own.
#[test]
fn the_published_spelling_of_minimax_is_the_same_model() {
    let Some(reference) = Reference::open("minimax") else { return };
    let checkpoint = Checkpoint::read(&reference.folder);
    let expected = logits_of(&checkpoint, &reference.ids);
    let mut published = checkpoint.clone();
    // Checkpoints need not hold what follows from the configuration.
    let derived = ["slope_rate", "query_decay", "key_decay", "diagonal_decay"];
    published.tensors.retain(|tensor| !derived.iter().any(|name| tensor.name.ends_with(name)));
    let object = published.config.as_object_mut().expect("an object");
    let names = [
        ("full_attn_alpha_factor", "layernorm_full_attention_alpha"),
        ("full_attn_beta_factor", "layernorm_full_attention_beta"),
        ("linear_attn_alpha_factor", "layernorm_linear_attention_alpha"),
        ("linear_attn_beta_factor", "layernorm_linear_attention_beta"),
        ("mlp_alpha_factor", "layernorm_mlp_alpha"),
        ("mlp_beta_factor", "layernorm_mlp_beta"),
    ];
    for (ours, theirs) in names {
        let value = object.remove(ours).expect("a factor");
        object.insert(theirs.to_owned(), value);
    }
    for key in ["layer_types", "rope_parameters", "block_size"] {
        object.remove(key);
    }
    let further = json!({
        "attn_type_list": [0, 0, 1],
        "model_type": "minimax_text_01",
        "postnorm": true,
        "rope_theta": checkpoint.config["rope_parameters"]["rope_theta"],
        "rotary_dim": 16,
        "shared_intermediate_size": 0,
        "shared_moe_mode": "sigmoid",
    });
    object.extend(further.as_object().expect("an object").clone());
    for model_type in ["minimax_text_01", "minimax_m1"] {
        set(&mut published, &[("model_type", json!(model_type))]);
        assert!(bits(&logits_of(&published, &reference.ids)) == bits(&expected), "{model_type}: other bits");
    }
    let mut half = published.clone();
    set(&mut half, &[("rotary_dim", json!(8))]);
    assert!(distance(&logits_of(&half, &reference.ids), &expected) > 10.0 * BOUND, "rotary_dim");
    let refused = [
        ("attn_type_list", json!([0, 1]), "attn_type_list has 2 entries for 3 layers"),
        ("attn_type_list", json!([1, 0, 1]), "self_attn.q_proj.weight"),
        ("attn_type_list", Value::Null, "layer_types is missing"),
        ("layer_types", json!(vec!["full_attention"; 3]), "name different layers"),
        ("postnorm", json!(false), "postnorm is bool false"),
        ("layernorm_mlp_alpha", json!(0.0), "layernorm_mlp_alpha is 0, not a positive number"),
        ("mlp_alpha_factor", json!(3.0), "means the same"),
        ("shared_intermediate_size", json!(64), "shared_intermediate_size is uint64 64"),
    ];
    for (key, value, part) in refused {
        let mut other = published.clone();
        set(&mut other, &[(key, value)]);
        assert!(refusal(&other).contains(part), "{key}: {}", refusal(&other));
    }
}
