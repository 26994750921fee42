//! Families of which no GGUF file is at hand: one is written here as converters write it, and equals its folder.

use coldpress_formats::Value;

use crate::checkpoint::as_gguf::{self, Change};
use crate::checkpoint::{Checkpoint, Reference};
use crate::families::{BOUND, DENSE, distance, exact, logits_of, vector};

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
