//! Every constant of a family counts: changing any norm, bias, gate or router, or any number or switch of a configuration, changes
//! the logits by much more than two implementations differ. Next: `families/mod.rs` (the families).

use serde_json::json;

use crate::checkpoint::{Checkpoint, Reference};
use crate::families::{BOUND, all, distance, exact, is_constant, latent, logits_of};

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
            ("n_group", 2.0),
        ],
    ),
    (
        "hy_v3",
        &[
            ("rms_norm_eps", 1e-2),
            ("/rope_parameters/rope_theta", 500.0),
            ("router_scaling_factor", 1.0),
            ("num_experts_per_tok", 3.0),
        ],
    ),
    (
        "llama4_text",
        &[
            ("attention_chunk_size", 7.0),
            ("attention_chunk_size", 9.0),
            ("floor_scale", 7.0),
            ("floor_scale", 9.0),
            ("attn_scale", 0.1),
            ("/rope_parameters/rope_theta", 500.0),
            ("rms_norm_eps", 1e-2),
            ("num_experts_per_tok", 2.0),
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
        "deepseek_v32",
        &[
            ("index_topk", 7.0),
            ("index_topk", 9.0),
            ("/rope_parameters/mscale_all_dim", 0.5),
            ("/rope_parameters/rope_theta", 500.0),
            ("routed_scaling_factor", 1.0),
        ],
    ),
    (
        "glm_moe_dsa",
        &[
            ("index_topk", 7.0),
            ("index_topk", 9.0),
            ("/rope_parameters/rope_theta", 500.0),
            ("rms_norm_eps", 1e-2),
        ],
    ),
    (
        "longcat_flash",
        &[
            ("routed_scaling_factor", 1.0),
            ("moe_topk", 2.0),
            ("/rope_parameters/rope_theta", 500.0),
            ("rms_norm_eps", 1e-2),
        ],
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
        "lfm2_moe",
        &[
            ("norm_eps", 1e-2),
            ("num_experts_per_tok", 3.0),
            ("routed_scaling_factor", 1.0),
            ("/rope_parameters/rope_theta", 500.0),
        ],
    ),
    (
        "granitemoehybrid",
        &[
            ("attention_multiplier", 0.3),
            ("embedding_multiplier", 5.0),
            ("residual_multiplier", 0.5),
            ("logits_scaling", 3.0),
            ("rms_norm_eps", 1e-2),
            ("num_experts_per_tok", 3.0),
        ],
    ),
    (
        "minimax",
        &[
            ("full_attn_alpha_factor", 1.0),
            ("full_attn_beta_factor", 1.0),
            ("linear_attn_alpha_factor", 1.0),
            ("linear_attn_beta_factor", 1.0),
            ("mlp_alpha_factor", 1.0),
            ("mlp_beta_factor", 1.0),
            ("/rope_parameters/rope_theta", 500.0),
            ("rms_norm_eps", 1e-2),
            ("num_experts_per_tok", 3.0),
        ],
    ),
    (
        "qwen3_next",
        &[
            ("rms_norm_eps", 1e-2),
            ("num_experts_per_tok", 3.0),
            ("/rope_parameters/rope_theta", 500.0),
            ("/rope_parameters/partial_rotary_factor", 0.5),
        ],
    ),
    (
        "qwen3_5_moe_text",
        &[("rms_norm_eps", 1e-2), ("num_experts_per_tok", 3.0), ("/rope_parameters/rope_theta", 500.0)],
    ),
    (
        "kimi_linear",
        &[("rms_norm_eps", 1e-2), ("num_experts_per_token", 3.0), ("routed_scaling_factor", 1.0)],
    ),
    (
        "qwen4_exp_text",
        &[
            ("rms_norm_eps", 1e-2),
            ("num_experts_per_tok", 3.0),
            ("/rope_parameters/rope_theta", 500.0),
            ("/rope_parameters/partial_rotary_factor", 0.25),
            ("indexer_budget", 4.0),
            ("indexer_budget", 12.0),
            ("indexer_compress_ratio", 2.0),
            ("seed", 1235.0),
            ("ngram_vocab_size_base", 98.0),
            ("eos_token_id", 3.0),
        ],
    ),
    (
        "bailing_hybrid",
        &[
            ("rms_norm_eps", 1e-2),
            ("num_experts_per_token", 3.0),
            ("routed_scaling_factor", 1.0),
            ("topk_group", 1.0),
            ("topk_group", 4.0),
            ("kda_lower_bound", -2.5),
        ],
    ),
    (
        "deepseek_v4",
        &[
            ("rms_norm_eps", 1e-2),
            ("sliding_window", 7.0),
            ("sliding_window", 9.0),
            ("index_topk", 3.0),
            ("index_topk", 5.0),
            ("swiglu_limit", 0.8),
            ("routed_scaling_factor", 1.0),
            ("hc_eps", 1e-2),
            ("hc_sinkhorn_iters", 1.0),
            ("/rope_parameters/compress/factor", 2.0),
            ("/rope_parameters/compress/beta_fast", 16.0),
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

/// Weights of the chosen experts that are not divided by their sum are other weights.
#[test]
fn renormalised_weights_are_a_switch() {
    for name in ["glm4_moe", "mimo_v2_flash", "lfm2_moe"] {
        let Some(reference) = Reference::open(name) else { continue };
        let mut checkpoint = Checkpoint::read(&reference.folder);
        checkpoint.config["norm_topk_prob"] = false.into();
        let found =
            distance(&logits_of(checkpoint.write().path(), &exact(), &reference.ids), &reference.logits);
        assert!(found > 10.0 * BOUND, "{name}: norm_topk_prob changes logits by {found} only");
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
