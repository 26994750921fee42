//! Folders of Hugging Face, each family against logits of another program: transformers for the mixtures, mlx-lm for the dense
//! families, both in float32 (`fixtures/make_dense.py`, and the README of the shared oracle folder).
//!
//! What could go wrong: a norm, bias, gate, factor or window that is forgotten, a rotation with the wrong pairs, an expert from
//! another place of a fused tensor or from another shard, a key of the configuration that is read as something else. Every
//! constant of the references is perturbed so that leaving one out shows, and a test here changes each and wants to see it.

use std::path::Path;

use crate::checkpoint::as_gguf::{self, Change};
use crate::checkpoint::{Checkpoint, Reference, Tensor, shared};
use crate::common::{load, logits, npy_f32};
use coldpress::{GenerateOptions, KvType, LoadConfiguration, PackUse, Residency, Runtime, Silent};
use coldpress_formats::Value;
use serde_json::json;

/// Two implementations in float32 differ by about 3e-6 in these models.
const BOUND: f32 = 2e-5;

/// Its experts are codes of four bits, which meet activations of eight; everything else is exact.
const CODES: &str = "gpt_oss_mxfp4";
/// What the rounding of activations to eight bits may do to logits.
const BOUND_OF_EIGHT_BITS: f32 = 1e-1;

/// Folder, name of the GGUF file with the same weights rounded to F16.
const MIXTURES: [(&str, Option<&str>); 16] = [
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
];

const DENSE: [&str; 4] = ["llama", "qwen2", "qwen3", "gemma3"];

fn all() -> impl Iterator<Item = (&'static str, Reference)> {
    let names = MIXTURES.iter().map(|&(name, _)| name).chain(DENSE);
    names.filter_map(|name| Some((name, Reference::open(name)?)))
}

fn exact() -> LoadConfiguration {
    LoadConfiguration::default().kv_type(KvType::F32).context(128)
}

fn logits_of(folder: &Path, configuration: &LoadConfiguration, ids: &[u32]) -> Vec<f32> {
    logits(&mut load(folder, configuration), ids)
}

fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn logits_and_continuation_are_those_of_the_reference() {
    for (name, reference) in all() {
        for config in ["config.json", "config.published.json"] {
            if !reference.folder.join(config).exists() {
                continue;
            }
            let folder = reference.linked(config);
            let mut runtime = load(folder.path(), &exact());
            let worst = distance(&logits(&mut runtime, &reference.ids), &reference.logits);
            println!("{name} with {config}: largest difference {worst:e}");
            let bound = if name == CODES { BOUND_OF_EIGHT_BITS } else { BOUND };
            assert!(worst < bound, "{name} with {config}: logits differ by {worst}");
            if name == CODES {
                continue;
            }
            let mut session = runtime.session().expect("the budget has room");
            let max_tokens = reference.continuation.len();
            let options = GenerateOptions { max_tokens, ignore_eos: true, ..GenerateOptions::default() };
            let answer =
                runtime.generate(&mut session, &reference.ids, &options, &mut Silent).expect("generates");
            assert_eq!(answer.tokens, reference.continuation, "{name}: greedy continuation");
        }
    }
}

#[test]
fn chunks_residency_and_packs_change_no_bit() {
    for (name, reference) in all() {
        let folder = reference.linked("config.json");
        let packs = tempfile::tempdir().expect("a folder");
        let expected =
            bits(&logits_of(folder.path(), &exact().residency(Residency::Resident), &reference.ids));
        for chunk in [1, 7, 31, 32, 33, 64] {
            let streamed = exact().chunk_tokens(chunk).residency(Residency::Streamed).slots(4);
            let got = bits(&logits_of(folder.path(), &streamed, &reference.ids));
            assert!(got == expected, "{name}: other bits in chunks of {chunk}, streamed");
        }
        if !DENSE.contains(&name) {
            for start in ["written", "read"] {
                let packed = exact().pack(PackUse::BuildIfAbsent(packs.path().to_owned()));
                let got = bits(&logits_of(folder.path(), &packed, &reference.ids));
                assert!(got == expected, "{name}: other bits with a pack that was {start}");
            }
        }
    }
}

#[test]
fn the_file_with_the_same_weights_gives_the_same_logits() {
    for (name, gguf) in MIXTURES {
        let Some(gguf) = gguf else { continue };
        let (Some(reference), Some(file)) =
            (Reference::open(name), shared(&format!("oracle/gguf/{gguf}.gguf")))
        else {
            continue;
        };
        let expected = npy_f32(&file.with_extension("logits.npy"));
        let got = logits_of(&file, &exact(), &reference.ids);
        let worst = distance(&got, &expected);
        println!("{gguf}: largest difference from transformers {worst:e}");
        assert!(worst < BOUND, "{gguf}: logits differ by {worst}");
        // All matrices of the file were rounded; routers are stored as F32 nevertheless.
        let mut rounded = Checkpoint::read(&reference.folder);
        rounded.change_config(&file.with_extension("json"));
        round_as_converters(&mut rounded);
        let worst = distance(&logits_of(rounded.write().path(), &exact(), &reference.ids), &got);
        println!("{name}: largest difference between folder and file {worst:e}");
        assert!(worst < BOUND, "{name}: the folder differs from {gguf}.gguf by {worst}");
    }
}

/// Rounds what GGUF twins hold as F16, and to the same values what they hold as F32 but had rounded.
fn round_as_converters(checkpoint: &mut Checkpoint) {
    let floats = checkpoint.tensors.iter_mut().filter(|tensor| tensor.dtype == "F32");
    for tensor in floats.filter(|tensor| tensor.shape.len() > 1) {
        let widened = is_router(&tensor.name) || is_bias(tensor);
        *tensor = if widened { tensor.widened("F16") } else { tensor.rounded("F16") };
    }
}

/// One vector for each expert, in one tensor.
fn is_bias(tensor: &Tensor) -> bool {
    tensor.name.ends_with("_bias")
}

/// Codes and exponents of a folder are read from four places and put in another order, those of a GGUF file are blocks already:
/// the same records, so the same bits.
#[test]
fn codes_of_a_folder_and_blocks_of_a_file_give_the_same_bits() {
    let (Some(reference), Some(file)) = (Reference::open(CODES), shared("oracle/gguf/gpt-oss-mxfp4.gguf"))
    else {
        return;
    };
    let expected = npy_f32(&file.with_extension("logits.npy"));
    let got = logits_of(&file, &exact(), &reference.ids);
    let worst = distance(&got, &expected);
    println!("gpt-oss-mxfp4: largest difference from transformers {worst:e}");
    assert!(worst < BOUND_OF_EIGHT_BITS, "gpt-oss-mxfp4: logits differ by {worst}");
    let mut rounded = Checkpoint::read(&reference.folder);
    rounded.change_config(&file.with_extension("json"));
    round_as_converters(&mut rounded);
    let folder = rounded.write_shards(3);
    assert!(bits(&logits_of(folder.path(), &exact(), &reference.ids)) == bits(&got), "other bits");

    // With the experts as floats nothing is rounded.
    let checkpoint = Checkpoint::read(&reference.folder).with_codes_as_floats();
    let worst = distance(&logits_of(checkpoint.write().path(), &exact(), &reference.ids), &reference.logits);
    println!("{CODES} as floats: largest difference {worst:e}");
    assert!(worst < BOUND, "{CODES} as floats: logits differ by {worst}");
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
    for (name, key, value, part) in cases {
        let Some(reference) = Reference::open(name) else { continue };
        let mut checkpoint = Checkpoint::read(&reference.folder);
        checkpoint.config[key] = value;
        let error = refusal(&checkpoint);
        assert!(error.contains(part) && error.contains("config.json"), "{name} with {key}: {error}");
    }
}

fn is_router(name: &str) -> bool {
    let routers = [
        "mlp.gate.weight",
        "moe.gate.weight",
        "router.layer.weight",
        "mlp.router.weight",
        "gate.wg.weight",
        "shared_expert_gate.weight",
    ];
    routers.iter().any(|router| name.ends_with(router)) || name.ends_with("correction_bias")
}

#[test]
fn shards_and_types_change_nothing_but_rounding() {
    for name in ["qwen3_moe", "granitemoe", "gemma3", "gpt_oss"] {
        let Some(reference) = Reference::open(name) else { continue };
        let checkpoint = Checkpoint::read(&reference.folder);
        let whole = bits(&logits_of(checkpoint.write().path(), &exact(), &reference.ids));
        // Neighbours lie in different files, so the experts of a layer do, and the matrices of an expert.
        let folder = checkpoint.write_shards(3);
        let sharded = bits(&logits_of(folder.path(), &exact().slots(4), &reference.ids));
        assert!(sharded == whole, "{name}: other bits from three files");
        for dtype in ["F16", "BF16"] {
            let change = |convert: &dyn Fn(&Tensor) -> Tensor| Checkpoint {
                config: checkpoint.config.clone(),
                tensors: checkpoint.tensors.iter().map(convert).collect(),
            };
            let stored = change(&|tensor| tensor.rounded(dtype)).write_shards(2);
            let widened = change(&|tensor| tensor.widened(dtype)).write();
            let stored = bits(&logits_of(stored.path(), &exact(), &reference.ids));
            assert!(
                stored == bits(&logits_of(widened.path(), &exact(), &reference.ids)),
                "{name} in {dtype}"
            );
        }
    }
}

/// Every tensor but the large ones of attention and experts: norms, biases, routers, gates.
fn is_constant(tensor: &Tensor) -> bool {
    let dimensions = tensor.shape.iter().filter(|&&dimension| dimension > 1).count();
    dimensions == 1 || is_router(&tensor.name) || is_bias(tensor)
}

#[test]
fn every_constant_counts() {
    for (name, reference) in all() {
        let checkpoint = Checkpoint::read(&reference.folder);
        let expected = logits_of(checkpoint.write().path(), &exact(), &reference.ids);
        let mut changed = 0;
        for tensor in checkpoint.tensors.iter().filter(|tensor| is_constant(tensor)) {
            let mut other = checkpoint.clone();
            // A key bias adds the same to all scores of a query, but for the rotation; half of it must turn.
            other.tensor(&tensor.name).map(|at, value| if at % 2 == 0 { value + 0.1 } else { value * 0.5 });
            let got = logits_of(other.write().path(), &exact(), &reference.ids);
            let found = distance(&got, &expected);
            assert!(found > 10.0 * BOUND, "{name}: {} changes logits by {found} only", tensor.name);
            changed += 1;
        }
        println!("{name}: {changed} constants");
        assert!(changed >= 5, "{name} has {changed} constants");
    }
}

/// Keys of configurations with another value each, by family.
const NUMBERS: &[(&str, &[(&str, f64)])] = &[
    (
        "qwen3_moe",
        &[("rms_norm_eps", 1e-2), ("/rope_parameters/rope_theta", 500.0), ("num_experts_per_tok", 3.0)],
    ),
    ("qwen2_moe", &[("rms_norm_eps", 1e-2), ("/rope_parameters/rope_theta", 500.0)]),
    (
        "granitemoe",
        &[
            ("attention_multiplier", 0.3),
            ("embedding_multiplier", 5.0),
            ("residual_multiplier", 0.5),
            ("logits_scaling", 3.0),
        ],
    ),
    (
        "phimoe",
        &[("/rope_parameters/short_mscale", 1.2), ("router_jitter_noise", 0.3), ("rms_norm_eps", 1e-2)],
    ),
    ("hunyuan_v1_moe", &[("/rope_parameters/alpha", 20.0), ("/rope_parameters/rope_theta", 500.0)]),
    ("ernie4_5_moe", &[("moe_k", 3.0), ("/rope_parameters/rope_theta", 500.0), ("moe_norm_min", 5.0)]),
    (
        "deepseek_v2",
        &[
            ("/rope_parameters/factor", 2.0),
            ("/rope_parameters/mscale", 1.0),
            ("/rope_parameters/mscale_all_dim", 1.0),
            ("/rope_parameters/beta_fast", 16.0),
            ("/rope_parameters/original_max_position_embeddings", 256.0),
            ("/rope_parameters/rope_theta", 500.0),
            ("routed_scaling_factor", 1.0),
            ("topk_group", 2.0),
            ("num_experts_per_tok", 3.0),
        ],
    ),
    (
        "glm4_moe",
        &[
            ("rms_norm_eps", 1e-2),
            ("/rope_parameters/rope_theta", 500.0),
            ("/rope_parameters/partial_rotary_factor", 0.25),
            ("routed_scaling_factor", 1.0),
            ("num_experts_per_tok", 3.0),
        ],
    ),
    (
        "deepseek_v3",
        &[
            ("/rope_parameters/mscale_all_dim", 0.5),
            ("routed_scaling_factor", 1.0),
            ("n_group", 2.0),
            ("topk_group", 1.0),
            ("topk_group", 4.0),
            ("rms_norm_eps", 1e-2),
        ],
    ),
    (
        "glm4_moe_lite",
        &[("/rope_parameters/rope_theta", 500.0), ("routed_scaling_factor", 1.0), ("rms_norm_eps", 1e-2)],
    ),
    (
        "minimax_m2",
        &[("rms_norm_eps", 1e-2), ("/rope_parameters/rope_theta", 500.0), ("num_experts_per_tok", 3.0)],
    ),
    (
        "mimo_v2_flash",
        &[
            ("attention_value_scale", 1.0),
            ("sliding_window", 7.0),
            ("sliding_window", 9.0),
            ("/rope_parameters/full_attention/rope_theta", 500.0),
            ("/rope_parameters/sliding_attention/rope_theta", 500.0),
            ("routed_scaling_factor", 2.0),
        ],
    ),
    (
        "gpt_oss",
        &[
            ("rms_norm_eps", 1e-2),
            ("num_experts_per_tok", 3.0),
            ("sliding_window", 7.0),
            ("sliding_window", 9.0),
            ("swiglu_alpha", 1.5),
            ("swiglu_limit", 5.0),
            ("/rope_parameters/rope_theta", 500.0),
            ("/rope_parameters/factor", 2.0),
            ("/rope_parameters/beta_fast", 8.0),
            ("/rope_parameters/beta_slow", 0.5),
            ("/rope_parameters/original_max_position_embeddings", 64.0),
        ],
    ),
    (
        "llama",
        &[("/rope_scaling/factor", 4.0), ("/rope_scaling/low_freq_factor", 2.0), ("rope_theta", 500.0)],
    ),
    (
        "gemma3",
        &[
            ("query_pre_attn_scalar", 16.0),
            ("sliding_window", 7.0),
            ("sliding_window", 9.0),
            ("sliding_window_pattern", 5.0),
            ("rope_theta", 500.0),
            ("rope_local_base_freq", 500.0),
        ],
    ),
];

#[test]
fn every_number_of_a_configuration_counts() {
    for (name, numbers) in NUMBERS {
        let Some(reference) = Reference::open(name) else { continue };
        let checkpoint = Checkpoint::read(&reference.folder);
        let expected = logits_of(checkpoint.write().path(), &exact(), &reference.ids);
        for &(key, value) in *numbers {
            let mut other = checkpoint.clone();
            let pointer = if key.starts_with('/') { key.to_owned() } else { format!("/{key}") };
            let place = other.config.pointer_mut(&pointer).unwrap_or_else(|| panic!("{name} has no {key}"));
            *place = if value.fract() == 0.0 { (value as u64).into() } else { value.into() };
            let found = distance(&logits_of(other.write().path(), &exact(), &reference.ids), &expected);
            assert!(found > 10.0 * BOUND, "{name}: {key} = {value} changes logits by {found} only");
        }
    }
}

/// A window of `w` positions is the same as none for texts of `w`, and is not for one more.
#[test]
fn a_window_begins_where_it_says() {
    for name in ["gemma3", "gpt_oss", "mimo_v2_flash"] {
        let Some(reference) = Reference::open(name) else { continue };
        let mut checkpoint = Checkpoint::read(&reference.folder);
        let window = 16;
        let mut with_window = |window: u64, count: usize| {
            checkpoint.config["sliding_window"] = window.into();
            bits(&logits_of(checkpoint.write().path(), &exact(), &reference.ids[..count]))
        };
        for (count, same) in [(window - 1, true), (window, true), (window + 1, false)] {
            let narrow = with_window(window as u64, count);
            let what = format!("{name}: {count} tokens with a window of {window}");
            assert_eq!(narrow == with_window(200, count), same, "{what}");
        }
    }
}

/// Weights of the chosen experts that are not divided by their sum are other weights.
#[test]
fn renormalised_weights_are_a_switch() {
    for name in ["glm4_moe", "mimo_v2_flash"] {
        let Some(reference) = Reference::open(name) else { continue };
        let mut checkpoint = Checkpoint::read(&reference.folder);
        checkpoint.config["norm_topk_prob"] = false.into();
        let found =
            distance(&logits_of(checkpoint.write().path(), &exact(), &reference.ids), &reference.logits);
        assert!(found > 10.0 * BOUND, "{name}: norm_topk_prob changes logits by {found} only");
    }
}

/// The blocks that predict later tokens are in the file and nowhere else: same logits, same memory.
#[test]
fn blocks_for_later_tokens_cost_nothing() {
    let (Some(reference), Some(file)) = (Reference::open("glm4_moe"), shared("oracle/gguf/glm4moe.gguf"))
    else {
        return;
    };
    let run = |path: &Path| {
        let plan = coldpress::plan(path, &exact()).expect("a plan").plan;
        let memory = (plan.dense, plan.kv, plan.scratch, plan.records_total);
        (bits(&logits_of(path, &exact(), &reference.ids)), memory)
    };
    let plain = Checkpoint::read(&reference.folder);
    let layer = |number: usize| format!("model.layers.{number}.");
    let mut longer = plain.clone();
    longer.config["num_nextn_predict_layers"] = 1.into();
    let block = plain.tensors.iter().filter_map(|tensor| {
        let name = tensor.name.strip_prefix(&layer(1))?;
        Some(Tensor { name: layer(2) + name, ..tensor.clone() })
    });
    longer.tensors.extend(block);
    let mut further = plain.tensors[0].clone();
    further.name = layer(2) + "shared_head.head.weight";
    longer.tensors.push(further);
    assert!(
        run(plain.write().path()) == run(longer.write().path()),
        "a folder with a block after its layers"
    );
    longer.config["num_nextn_predict_layers"] = 0.into();
    assert!(refusal(&longer).contains("model.layers.2."), "{}", refusal(&longer));

    // Files count these blocks among the layers.
    let folder = tempfile::tempdir().expect("a folder");
    let longer = folder.path().join("model.gguf");
    let keys =
        [("glm4moe.block_count", Value::Uint32(3)), ("glm4moe.nextn_predict_layers", Value::Uint32(1))];
    as_gguf::rewrite(&file, &longer, &keys, |name| match name {
        "output.weight" => Some("blk.2.nextn.shared_head_head.weight".to_owned()),
        name => name.strip_prefix("blk.1.").map(|rest| format!("blk.2.{rest}")),
    });
    assert!(run(&file) == run(&longer), "a file with a block after its layers");
}

/// What the model refuses to be loaded with.
fn refusal(checkpoint: &Checkpoint) -> String {
    match Runtime::load(checkpoint.write().path(), &exact(), &mut Silent) {
        Ok(_) => panic!("it was loaded with {}", checkpoint.config),
        Err(error) => error.to_string(),
    }
}

#[test]
fn what_is_not_computed_is_refused_by_key_and_value() {
    let cases = [
        ("qwen3_moe", "decoder_sparse_step", json!(2), "decoder_sparse_step is uint64 2"),
        ("qwen3_moe", "mlp_only_layers", json!([0]), "mlp_only_layers is"),
        ("qwen3_moe", "use_sliding_window", json!(true), "use_sliding_window is bool true"),
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
        ("glm4_moe", "n_group", json!(2), "n_group is 2, of which 1 are used"),
        ("glm4_moe", "use_qk_norm", json!(false), "self_attn.k_norm"),
        ("minimax_m2", "rotary_dim", json!(4), "rotary_dim is 4, but 8 elements are to be rotated"),
        ("minimax_m2", "scoring_func", json!("softmax"), "scoring_func is string \"softmax\""),
        ("mimo_v2_flash", "v_head_dim", json!(32), "value heads of 32 with key heads of 24 elements"),
        ("mimo_v2_flash", "layer_types", json!(["full_attention"]), "layer_types has 1 entries for 2 layers"),
        ("mimo_v2_flash", "hybrid_layer_pattern", json!([0, 1]), "hybrid_layer_pattern is"),
        ("llama", "mlp_bias", json!(true), "mlp_bias is bool true"),
        ("llama", "tie_word_embeddings", json!("no"), "tie_word_embeddings"),
        ("qwen2", "tie_word_embeddings", json!(false), "lm_head.weight"),
        ("gemma3", "final_logit_softcapping", json!(30.0), "final_logit_softcapping is float64 30"),
        ("gemma3", "layer_types", json!(["full_attention"]), "layer_types has 1 entries for 7 layers"),
    ];
    for (name, key, value, part) in cases {
        let Some(reference) = Reference::open(name) else { continue };
        let mut checkpoint = Checkpoint::read(&reference.folder);
        checkpoint.config[key] = value;
        let error = refusal(&checkpoint);
        assert!(error.contains(part) && error.contains("config.json"), "{name} with {key}: {error}");
    }
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
fn a_folder_is_inspected_packed_and_planned_before_it_is_whole() {
    let reference = Reference::open("qwen3_moe").expect("a fixture");
    let checkpoint = Checkpoint::read(&reference.folder);
    let folder = checkpoint.write_shards(3);
    let inspection = coldpress::inspect(folder.path()).expect("inspects");
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

#[test]
fn longer_texts_than_phimoe_was_made_for_are_refused() {
    let Some(reference) = Reference::open("phimoe") else { return };
    let folder = reference.linked("config.json");
    assert!(coldpress::plan(folder.path(), &LoadConfiguration::default().context(128)).is_ok());
    let error =
        coldpress::plan(folder.path(), &LoadConfiguration::default().context(129)).expect_err("too long");
    assert!(error.to_string().contains("beyond 128"), "{error}");
}

/// A vector of a file.
fn vector(name: &str, values: &[f32]) -> Tensor {
    Tensor {
        name: name.to_owned(),
        dtype: "F32".to_owned(),
        shape: vec![values.len() as u64],
        bytes: values.iter().flat_map(|value| value.to_le_bytes()).collect(),
    }
}

/// Families of which no GGUF file is at hand: one is written here as converters write it, and equals its folder.
#[test]
fn a_file_written_from_a_folder_equals_it() {
    for name in DENSE.into_iter().chain(["phimoe"]) {
        let Some(reference) = Reference::open(name) else { continue };
        let checkpoint = Checkpoint::read(&reference.folder);
        let config = &checkpoint.config;
        let count = |key: &str| Value::Uint32(config[key].as_u64().expect("a number") as u32);
        let float = |value: f64| Value::Float32(value as f32);
        let theta = config["rope_theta"].as_f64().unwrap_or(10_000.0);
        let mut keys = vec![
            ("block_count", count("num_hidden_layers")),
            ("context_length", count("max_position_embeddings")),
            ("embedding_length", count("hidden_size")),
            ("feed_forward_length", count("intermediate_size")),
            ("attention.head_count", count("num_attention_heads")),
            ("attention.head_count_kv", count("num_key_value_heads")),
            ("attention.layer_norm_rms_epsilon", float(1e-5)),
            ("rope.freq_base", float(theta)),
        ];
        if config["head_dim"].is_u64() {
            keys.push(("attention.key_length", count("head_dim")));
        }
        let mut further = Vec::new();
        let mut change = Change::Nothing;
        match name {
            "llama" => {
                change = Change::Permute(4, 2);
                // Head size 8, base 10000, original context 64, factor 8, bounds 1 and 4 periods.
                let divisor = |pair: i32| {
                    let periods = 64.0 / (std::f64::consts::TAU * 10f64.powi(pair));
                    match periods {
                        p if p < 1.0 => 8.0,
                        p if p > 4.0 => 1.0,
                        p => 1.0 / ((1.0 - (p - 1.0) / 3.0) / 8.0 + (p - 1.0) / 3.0),
                    }
                };
                let divisors: Vec<f32> = (0..4).map(|pair| divisor(pair) as f32).collect();
                further.push(vector("rope_freqs.weight", &divisors));
            }
            "gemma3" => {
                change = Change::Gemma;
                keys.push(("attention.sliding_window", count("sliding_window")));
            }
            "phimoe" => {
                let rope = &config["rope_parameters"];
                let list =
                    |key: &str| -> Vec<f32> { serde_json::from_value(rope[key].clone()).expect("a list") };
                further.push(vector("rope_factors_short.weight", &list("short_factor")));
                further.push(vector("rope_factors_long.weight", &list("long_factor")));
                keys.push(("expert_count", count("num_local_experts")));
                keys.push(("expert_used_count", count("num_experts_per_tok")));
                keys.push((
                    "rope.scaling.attn_factor",
                    float(rope["short_mscale"].as_f64().expect("a number")),
                ));
                keys.push(("rope.scaling.original_context_length", Value::Uint32(128)));
            }
            _ => {}
        }
        let architecture = config["model_type"].as_str().expect("a name").trim_end_matches("_text");
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("model.gguf");
        as_gguf::write(&checkpoint, &file, architecture, &keys, &further, change);
        let mut same = checkpoint.clone();
        if name == "gemma3" {
            // A file does not state the scalar: it is the size of a head in all models but one.
            same.config["query_pre_attn_scalar"] = same.config["head_dim"].clone();
        }
        let folder = logits_of(same.write().path(), &exact(), &reference.ids);
        let worst = distance(&logits_of(&file, &exact(), &reference.ids), &folder);
        println!("{name}: largest difference between folder and written file {worst:e}");
        assert!(worst < BOUND, "{name}: the written file differs by {worst}");
    }
}

/// The folders with latent attention, as far as they are there.
fn latent() -> impl Iterator<Item = (&'static str, Reference)> {
    ["deepseek_v2", "deepseek_v3", "glm4_moe_lite"]
        .into_iter()
        .filter_map(|name| Some((name, Reference::open(name)?)))
}

#[test]
fn latent_attention_keeps_one_row_per_position_in_the_cache() {
    for (name, reference) in latent() {
        let folder = reference.linked("config.json");
        for (kv_type, element) in [(KvType::F16, 2), (KvType::F32, 4)] {
            for threads in [1, 2] {
                let configuration =
                    LoadConfiguration::default().kv_type(kv_type).context(512).threads(threads);
                let plan = coldpress::plan(folder.path(), &configuration).expect("fits").plan;
                // Two layers, a latent of 32 elements and 16 rotated ones.
                assert_eq!(plan.kv.0, 512 * 2 * 48 * element, "{name}");
                let mut runtime = load(folder.path(), &configuration);
                let _session = runtime.session().expect("the cache was planned");
                let used = runtime.status().ledger.used_for;
                let taken =
                    |purpose: &str| used.iter().find(|(of, _)| of.name() == purpose).expect("a purpose").1;
                let (kv, scratch) = (taken("KV cache"), taken("scratch"));
                assert_eq!(plan.kv, kv, "{name}");
                assert!(
                    plan.scratch >= scratch && plan.scratch.0 as f64 <= scratch.0 as f64 * 1.05,
                    "{name}: scratch planned {}, taken {scratch}",
                    plan.scratch
                );
            }
        }
    }
}

#[test]
fn switches_of_latent_attention_and_its_router_count() {
    for (name, reference) in latent() {
        let checkpoint = Checkpoint::read(&reference.folder);
        let expected = logits_of(checkpoint.write().path(), &exact(), &reference.ids);
        let changes = [
            ("rope_interleave", json!(false)),
            ("norm_topk_prob", json!(false)),
            ("topk_method", json!("greedy")),
        ];
        for (key, value) in changes {
            if checkpoint.config.get(key).is_none_or(|stated| *stated == value) {
                continue;
            }
            let mut other = checkpoint.clone();
            other.config[key] = value;
            let found = distance(&logits_of(other.write().path(), &exact(), &reference.ids), &expected);
            assert!(found > 10.0 * BOUND, "{name}: {key} changes logits by {found} only");
        }
    }
}

/// Layers that predict further tokens lie behind the last one; Kimi K2 is DeepSeek-V3 by another name.
#[test]
fn predicting_layers_cost_nothing_and_change_nothing() {
    let Some(reference) = Reference::open("deepseek_v3") else { return };
    let checkpoint = Checkpoint::read(&reference.folder);
    let expected = bits(&logits_of(checkpoint.write().path(), &exact(), &reference.ids));
    let mut kimi = checkpoint.clone();
    kimi.config["model_type"] = json!("kimi_k2");
    assert!(bits(&logits_of(kimi.write().path(), &exact(), &reference.ids)) == expected);

    let mut longer = checkpoint.clone();
    for tensor in checkpoint.tensors.iter().filter(|tensor| tensor.name.starts_with("model.layers.1.")) {
        let name = tensor.name.replace("layers.1.", "layers.2.");
        longer.tensors.push(Tensor { name, ..tensor.clone() });
    }
    assert!(refusal(&longer).contains("model.layers.2."), "{}", refusal(&longer));
    longer.config["num_nextn_predict_layers"] = json!(1);
    let plan = |checkpoint: &Checkpoint| {
        let plan = coldpress::plan(checkpoint.write().path(), &exact()).expect("fits").plan;
        (plan.dense, plan.kv, plan.scratch, plan.slots)
    };
    assert_eq!(plan(&longer), plan(&checkpoint));
    assert!(bits(&logits_of(longer.write().path(), &exact(), &reference.ids)) == expected);
}

/// Files from before the cache was compressed hold the matrices of keys and values in one tensor, keys the other way round.
#[test]
fn older_files_with_latent_attention_give_the_same_bits() {
    let Some(path) = shared("oracle/gguf/deepseek2.gguf") else { return };
    let Some(reference) = Reference::open("deepseek_v3") else { return };
    let (heads, key, value, rank) = (4, 24, 16, 32);
    let file = coldpress_formats::ModelFile::open(&path).expect("a good file");
    let bytes = std::fs::read(&path).expect("a file");
    let mut writer = coldpress_formats::GgufWriter::new();
    for (name, stated) in file.metadata().iter() {
        match name {
            "deepseek2.attention.key_length" | "deepseek2.attention.value_length" => {}
            _ => {
                writer.metadata(name.strip_suffix("_mla").unwrap_or(name), stated.clone());
            }
        }
    }
    let mut contents: Vec<(String, Vec<u8>)> = Vec::new();
    let data = |name: &str| {
        let info = file.require(name).expect("a tensor");
        &bytes[info.offset as usize..(info.offset + info.byte_len) as usize]
    };
    for info in file.tensors() {
        if info.name.ends_with("attn_v_b.weight") {
            continue;
        }
        let Some(stem) = info.name.strip_suffix("k_b.weight") else {
            writer.tensor(&info.name, info.tensor_type, &info.shape);
            contents.push((info.name.clone(), data(&info.name).to_vec()));
            continue;
        };
        let (keys, values) = (data(&info.name), data(&format!("{stem}v_b.weight")));
        let mut both = Vec::new();
        for head in 0..heads {
            let keys = &keys[head * rank * key * 2..];
            let turned = (0..key).flat_map(|column| (0..rank).map(move |row| (row * key + column) * 2));
            both.extend(turned.flat_map(|at| [keys[at], keys[at + 1]]));
            both.extend(&values[head * value * rank * 2..][..value * rank * 2]);
        }
        let name = format!("{stem}kv_b.weight");
        writer.tensor(&name, info.tensor_type, &[rank as u64, (heads * (key + value)) as u64]);
        contents.push((name, both));
    }
    let folder = tempfile::tempdir().expect("a folder");
    let older = folder.path().join("older.gguf");
    let content = |name: &str| &contents.iter().find(|(of, _)| of == name).expect("a planned tensor").1;
    writer.write(&older, |info, out| out.write_all(content(&info.name))).expect("written");
    assert!(
        bits(&logits_of(&older, &exact(), &reference.ids))
            == bits(&logits_of(&path, &exact(), &reference.ids))
    );
}
