//! Greedy continuations of trained models against llama.cpp: tokenizer, template, forward pass and sampling together.
//!
//! References: `tools/llama_reference.py`. Two engines that quantise activations differently may part where the model
//! hesitates. Two builds of llama.cpp differ by up to 0.5 in these gaps, and exact arithmetic (the same weights as F32, f32
//! activations) parts from llama.cpp at 0.36; so a parting below 0.5 is no fault of either, above it is an error. After a
//! parting the texts differ and are not compared. `docs/correctness.md` lists every parting.

mod common;

use std::path::Path;

use coldpress::{FinishReason, GenerateOptions, LoadConfiguration, Message, Silent};
use common::{demo, fixture, load, outside};

const GAP_MAX: f64 = 0.5;

#[derive(serde::Deserialize)]
struct Continuation {
    prompt: String,
    ids: Vec<u32>,
    gap: Vec<f64>,
}

fn check(model: &Path, reference: &str) {
    let text = std::fs::read_to_string(fixture(reference)).expect("the fixture is there");
    let continuations: Vec<Continuation> = serde_json::from_str(&text).expect("a list of continuations");
    let mut runtime = load(model, &LoadConfiguration::default().context(1024));
    for Continuation { prompt, ids, gap } in continuations {
        let prompt_ids = match prompt.strip_prefix("chat:") {
            Some(question) => runtime.encode_chat(&[Message::new("user", question)]),
            None => runtime.encode(&prompt, false),
        };
        let options = GenerateOptions { max_tokens: ids.len(), ..GenerateOptions::default() };
        let mut session = runtime.session().expect("the budget has room");
        let answer = runtime
            .generate(&mut session, &prompt_ids.expect("encodes"), &options, &mut Silent)
            .expect("generates");
        match answer.tokens.iter().zip(&ids).position(|(ours, theirs)| ours != theirs) {
            Some(step) => {
                println!("{prompt:?} parts at step {step} of {}, gap {}", ids.len(), gap[step]);
                assert!(
                    gap[step] < GAP_MAX,
                    "{prompt:?} parts at step {step}, where the gap is {}",
                    gap[step]
                );
            }
            None => {
                println!("{prompt:?} equal for {} steps", answer.tokens.len());
                // The reference holds the stop token, an answer does not.
                let stopped = usize::from(answer.finish_reason == FinishReason::Stop);
                assert_eq!(answer.tokens.len() + stopped, ids.len(), "{prompt:?} ends elsewhere");
            }
        }
    }
}

#[test]
fn bundled_model() {
    check(&demo(), "llama_cpp_demo.json");
}

#[test]
#[ignore = "needs COLDPRESS_REFERENCE_MODELS; tools/get_smollm2.sh fetches the model"]
fn smollm2() {
    let Some(model) = outside("SmolLM2-135M-Instruct.Q4_1.gguf") else { return };
    check(&model, "llama_cpp_smollm2.json");
    let mut runtime = load(&model, &LoadConfiguration::default().context(512));
    let question = "What is the capital of France? Answer briefly.";
    let prompt = runtime.encode_chat(&[Message::new("user", question)]).expect("encodes");
    let mut session = runtime.session().expect("the budget has room");
    let answer =
        runtime.generate(&mut session, &prompt, &GenerateOptions::default(), &mut Silent).expect("generates");
    assert_eq!(answer.text, "The capital of France is Paris.");
}

/// One of the prompts is longer than the window of most layers, 512 positions.
#[test]
#[ignore = "needs COLDPRESS_REFERENCE_MODELS; tools/get_gemma3.sh fetches the model"]
fn gemma3() {
    let Some(model) = outside("gemma-3-270m.Q4_K_M.gguf") else { return };
    check(&model, "llama_cpp_gemma3.json");
}

#[test]
#[ignore = "needs COLDPRESS_REFERENCE_MODELS with the two trained models"]
fn trained_moe_models() {
    for name in ["demo-q8_0", "routing-q8_0"] {
        let Some(model) = outside(&format!("{name}.gguf")) else { continue };
        check(&model, &format!("llama_cpp_{name}.json"));
    }
}
