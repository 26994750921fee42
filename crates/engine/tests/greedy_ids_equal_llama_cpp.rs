//! The tiny models of every family, from the files that llama.cpp reads: token after token what llama.cpp finds most likely.
//!
//! References: `fixtures/llama_cpp_ids.json` (`tools/llama_cpp_ids.py`). llama.cpp rounds activations to f16 for F16 weights and to
//! eight bits for MXFP4; coldpress does the second only. That moves logits of these models by a hundredth, so both may part below a gap
//! of [`GAP_MAX`] and nowhere else. After a parting the texts differ and are not compared. `fewer` is the same model with one
//! expert less per token.

use std::path::Path;

use coldpress::{GenerateOptions, LoadConfiguration, Residency, Silent};

use crate::checkpoint::shared;
use crate::common::{fixture, load};
use crate::families::{MIXTURES, bits, exact, logits_of};

const GAP_MAX: f64 = 0.05;
/// As [`GAP_MAX`] for files whose weights all have few bits: both round activations to eight bits, each in its own way.
const GAP_MAX_OF_FEW_BITS: f64 = 0.1;
const FEW_BITS: [&str; 2] = ["qwen3moe-iq2", "qwen3moe-kquant"];

#[derive(serde::Deserialize)]
struct Goldens {
    models: std::collections::BTreeMap<String, Golden>,
}

#[derive(serde::Deserialize)]
struct Golden {
    #[serde(default)]
    ids: Vec<u32>,
    #[serde(default)]
    gap: Vec<f64>,
    fewer: Option<Box<Golden>>,
    /// What llama.cpp said instead.
    refused: Option<String>,
}

/// How many tokens are the same.
fn check(
    name: &str,
    model: &Path,
    configuration: &LoadConfiguration,
    prompt: &[u32],
    golden: &Golden,
) -> usize {
    let mut runtime = load(model, configuration);
    let options =
        GenerateOptions { max_tokens: golden.ids.len(), ignore_eos: true, ..GenerateOptions::default() };
    let mut session = runtime.session().expect("the budget has room");
    let answer = runtime.generate(&mut session, prompt, &options, &mut Silent).expect("generates").tokens;
    let parting = answer.iter().zip(&golden.ids).position(|(ours, theirs)| ours != theirs);
    if let Some(step) = parting {
        let gap = golden.gap[step];
        println!("{name} parts at step {step}, gap {gap}");
        let most =
            if FEW_BITS.iter().any(|few| name.starts_with(few)) { GAP_MAX_OF_FEW_BITS } else { GAP_MAX };
        assert!(gap < most, "{name} parts at step {step}, where the gap is {gap}: {answer:?}");
    }
    parting.unwrap_or(golden.ids.len())
}

#[test]
fn every_family_continues_as_llama_cpp_does() {
    let text = std::fs::read_to_string(fixture("llama_cpp_ids.json")).expect("the fixture is there");
    let goldens: Goldens = serde_json::from_str(&text).expect("goldens");
    let (mut same, mut all) = (0, 0);
    for (name, golden) in &goldens.models {
        if let Some(reason) = &golden.refused {
            println!("{name}: llama.cpp does not run it: {reason}");
            continue;
        }
        let Some(model) = shared(&format!("oracle/gguf/{name}.gguf")) else { return };
        let experts = match coldpress::plan(&model, &exact()) {
            Ok(plan) => plan.model.experts_per_token as u32,
            Err(refused) => {
                let compared = MIXTURES.iter().any(|(_, file)| *file == Some(name.as_str()));
                assert!(!compared, "{name} is compared with transformers and refused: {refused}");
                println!("{name}: not computed here: {refused}");
                continue;
            }
        };
        let reference = std::fs::read_to_string(model.with_extension("json")).expect("ids");
        let reference: serde_json::Value = serde_json::from_str(&reference).expect("JSON");
        let prompt: Vec<u32> = serde_json::from_value(reference["input_ids"].clone()).expect("ids");
        let configuration = exact().context(256);
        same += check(name, &model, &configuration, &prompt, golden);
        all += golden.ids.len();
        // Layers that name their experts by token id keep them here.
        let fewer = golden.fewer.as_ref().filter(|_| name != "deepseek4");
        if let Some(fewer) = fewer {
            let configuration = configuration.experts_per_token(experts - 1);
            same += check(&format!("{name} with one expert less"), &model, &configuration, &prompt, fewer);
            all += fewer.ids.len();
        }
    }
    println!("{same} of {all} tokens are the same before the first parting of each model");
    // Most partings would be a fault, whatever their gaps.
    assert!(same * 10 >= all * 9, "{same} of {all} tokens");
}

/// How far log probabilities may be from those of llama.cpp: its activations have eleven bits for F16 weights, and eight, as ours, for
/// MXFP4, but in other blocks.
const SMALL: [(&str, f64); 2] = [("deepseek2", 1e-2), ("gpt-oss-mxfp4", 5e-2)];

fn log_probabilities(logits: &[f32]) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - largest).exp()).sum();
    logits.iter().map(|&logit| f64::from(logit - largest) - sum.ln()).collect()
}

/// Latent attention and groups, sinks and MXFP4, on any machine: the models lie in the repository (`tools/small_twins.py`).
#[test]
fn small_mixtures_have_the_probabilities_of_llama_cpp() {
    for (name, bound) in SMALL {
        let model = fixture(&format!("small_{name}.gguf"));
        let text =
            std::fs::read_to_string(fixture(&format!("small_{name}.json"))).expect("the fixture is there");
        let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let prompt: Vec<u32> = serde_json::from_value(json["input_ids"].clone()).expect("ids");
        let after: std::collections::BTreeMap<String, Vec<f64>> =
            serde_json::from_value(json["after"].clone()).expect("log probabilities");
        let logits = logits_of(&model, &exact(), &prompt);
        for (position, expected) in &after {
            let row = position.parse::<usize>().expect("a position") - 1;
            let found = log_probabilities(&logits[row * expected.len()..][..expected.len()]);
            let apart = found.iter().zip(expected).map(|(found, expected)| (found - expected).abs());
            let worst = apart.fold(0.0, f64::max);
            println!("{name} after {position} tokens: {worst:.1e} apart");
            assert!(worst < bound, "{name} after {position} tokens: {worst} apart");
        }
        let golden: Golden = serde_json::from_str(&text).expect("a continuation");
        assert_eq!(check(name, &model, &exact(), &prompt, &golden), golden.ids.len(), "{name}");
        let streamed = exact().residency(Residency::Streamed).slots(3).chunk_tokens(7).threads(1);
        assert!(
            bits(&logits_of(&model, &streamed, &prompt)) == bits(&logits),
            "{name}: other bits, streamed"
        );
    }
}
