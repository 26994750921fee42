//! Folders whose matrices are codes with scales (MLX with the names that mlx-lm gives, FP8, FP4): their logits are those of the reference that computes with the values
//! the codes stand for, and nothing about how they are read changes a bit.
//!
//! What could go wrong: scales of the wrong group or of the neighbour's block, the last block of a matrix that is cut, codes of the
//! other half of a byte, a matrix per head that starts inside a block, an expert's scales from another expert.

use coldpress::{GenerateOptions, LoadConfiguration, PackUse, Residency, Silent};

use crate::checkpoint::{Checkpoint, Reference};
use crate::common::{load, logits};
use crate::families::{self, BOUND, bits, distance, logits_of};

/// Folders of the shared oracles and of the fixtures, with the largest difference of a logit.
const FOLDERS: &[(&str, f32)] = &[
    ("mlx/affine4-g32", BOUND),
    ("mlx/affine3-g32", BOUND),
    ("mlx/mxfp4", BOUND),
    ("jang/jang-2l", BOUND),
    ("jang/jang-4k", BOUND),
    ("jang/jangh", BOUND),
    ("jang/jangtq2", BOUND),
    ("jang/jangtq4", BOUND),
    ("jang/jangtq2-minimax", BOUND),
    ("deepseek_v3_fp8", BOUND),
    ("deepseek_v4_fp4", BOUND),
    ("mlx-lm/deepseek_v3", BOUND),
    ("mlx-lm/ernie4_5_moe", BOUND),
    ("mlx-lm/gpt_oss_mxfp4", BOUND),
    ("mlx-lm/granitemoehybrid", BOUND),
    ("mlx-lm/kimi_linear", BOUND_OF_MLX),
    ("mlx-lm/lfm2_moe", BOUND),
    ("mlx-lm/llama4_text", BOUND_OF_MLX),
    ("mlx-lm/longcat_flash", BOUND_OF_MLX),
    ("mlx-lm/qwen3_5_moe_text", BOUND),
    ("mlx-lm/qwen3_next", BOUND),
];

/// In these families mlx-lm itself is up to 5.5e-5 from transformers with the same weights in float32.
const BOUND_OF_MLX: f32 = 1e-4;

/// The longest prompt has 160 positions.
fn exact() -> LoadConfiguration {
    families::exact().context(256)
}

fn references() -> impl Iterator<Item = (&'static str, f32, Reference)> {
    FOLDERS
        .iter()
        .filter_map(|(name, bound)| Reference::open(name).map(|reference| (*name, *bound, reference)))
}

#[test]
fn logits_and_continuation_are_those_of_the_reference() {
    for (name, bound, reference) in references() {
        for config in ["config.json", "config.published.json"] {
            if !reference.folder.join(config).exists() {
                continue;
            }
            let folder = reference.linked(config);
            let mut runtime = load(folder.path(), &exact());
            let worst = distance(&logits(&mut runtime, &reference.ids), &reference.logits);
            println!("{name} with {config}: largest difference {worst:e}");
            assert!(worst < bound, "{name} with {config}: logits differ by {worst}");
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
    for (name, _, reference) in references() {
        let folder = reference.linked("config.json");
        let packs = tempfile::tempdir().expect("a folder");
        let resident = exact().residency(Residency::Resident);
        let expected = bits(&logits_of(folder.path(), &resident, &reference.ids));
        for chunk in [1, 7, 31, 32, 33, 64] {
            let streamed = exact().chunk_tokens(chunk).residency(Residency::Streamed).slots(4);
            let got = bits(&logits_of(folder.path(), &streamed, &reference.ids));
            assert!(got == expected, "{name}: other bits in chunks of {chunk}, streamed");
        }
        for start in ["written", "read"] {
            let packed = exact().pack(PackUse::BuildIfAbsent(packs.path().to_owned()));
            let got = bits(&logits_of(folder.path(), &packed, &reference.ids));
            assert!(got == expected, "{name}: other bits with a pack that was {start}");
        }
    }
}

/// A scale or a bias of another size is another weight.
#[test]
fn every_scale_and_bias_counts() {
    let in_one_file = |(_, _, reference): &(&str, f32, Reference)| {
        let names = ["model.safetensors", "model-00001-of-00001.safetensors"];
        names.iter().any(|name| reference.folder.join(name).exists())
    };
    for (name, _, reference) in references().filter(in_one_file) {
        let checkpoint = Checkpoint::read(&reference.folder);
        let expected = logits_of(checkpoint.write().path(), &exact(), &reference.ids);
        let is_scale = |name: &str| {
            // The scores of an indexer are only compared with each other: one factor for all of them changes no order.
            let ends = [".scales", ".biases", ".scale", ".weight_scale_inv", ".tq_norms", ".tq2_scales"];
            ends.iter().any(|end| name.ends_with(end)) && !name.ends_with("indexer.wq_b.scale")
        };
        let names: Vec<String> = checkpoint
            .tensors
            .iter()
            .map(|tensor| tensor.name.clone())
            .filter(|name| is_scale(name))
            .collect();
        assert!(!names.is_empty(), "{name} has scales");
        for scale in names {
            let mut changed = Checkpoint::read(&reference.folder);
            // Of exponents and floats alike: another size.
            changed.tensor(&scale).bytes.iter_mut().for_each(|byte| *byte ^= 1);
            let got = logits_of(changed.write().path(), &exact(), &reference.ids);
            assert!(bits(&got) != bits(&expected), "{name}: {scale} has no effect");
        }
    }
}
