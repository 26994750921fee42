//! The forward pass of each family against logits that transformers computed in float32 from the same F16 weights.
//!
//! A wrong norm, router, rotation or bias changes these logits by far more than the bound: every constant tensor of the
//! reference models was perturbed so that leaving one out shows. Two independent float32 implementations of these models
//! (transformers and llama.cpp) differ by 3e-6, and so do we; the bound leaves room for another order of sums.

use crate::common::{Reference, load, logits};
use coldpress::{GenerateOptions, KvType, LoadConfiguration, Silent};

const BOUND: f32 = 2e-5;

fn check(name: &str) {
    let reference = Reference::open(name);
    let mut runtime = load(&reference.model, &LoadConfiguration::default().kv_type(KvType::F32));
    let got = logits(&mut runtime, &reference.ids);
    assert_eq!(got.len(), reference.logits.len());
    let worst = got.iter().zip(&reference.logits).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    println!("{name}: largest difference {worst:e}");
    assert!(worst < BOUND, "{name}: logits differ by {worst}");

    let mut session = runtime.session().expect("the budget has room");
    let options = GenerateOptions {
        max_tokens: reference.continuation.len(),
        ignore_eos: true,
        ..GenerateOptions::default()
    };
    let answer = runtime.generate(&mut session, &reference.ids, &options, &mut Silent).expect("generates");
    assert_eq!(answer.tokens, reference.continuation, "{name}: greedy continuation");
}

#[test]
fn qwen3moe() {
    check("qwen3moe");
}

#[test]
fn qwen2moe() {
    check("qwen2moe");
}

#[test]
fn mixtral() {
    check("mixtral");
}
