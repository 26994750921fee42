//! Fewer experts per token are the model with another top-k, bit for bit. A preference for experts in memory changes answers only where
//! something is not in memory, leaves prompts alone, reads less, and gives the same again from the same start.
//!
//! What could go wrong: weights that are still shared out among all experts, memory planned for experts that nobody uses, a number
//! that is not possible and is taken, a preference that depends on when reads come back, keys and values of a lossy run that an
//! exact one takes for its own.

use std::path::Path;

use coldpress::service::{Request, Serving};
use coldpress::{
    Bytes, ChoiceOrigin, EngineError, GenerateOptions, LoadConfiguration, Prefetch, Residency, Runtime,
    Silent,
};
use coldpress_formats::Value;

use crate::asking::{ask, configuration, prompt, service, serving};
use crate::checkpoint::{Checkpoint, Reference, as_gguf};
use crate::common::{demo, fixture, load};
use crate::families::{MIXTURES, bits, exact, logits_of};

/// A text that nobody edits.
const TEXT: &str = include_str!("../../../LICENSE-APACHE");

fn lossy(path: &Path, configuration: &LoadConfiguration) -> Vec<String> {
    coldpress::plan(path, configuration).expect("a plan").lossy
}

fn refusal(path: &Path, configuration: &LoadConfiguration) -> String {
    match Runtime::load(path, configuration, &mut Silent) {
        Err(EngineError::BadOption(text)) => text,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("{configuration:?} was let in"),
    }
}

#[test]
fn fewer_experts_are_the_model_whose_file_says_so() {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, architecture) in [("mixtral", "llama"), ("qwen2moe", "qwen2moe"), ("qwen3moe", "qwen3moe")] {
        let (file, other) = (fixture(&format!("{name}.gguf")), folder.path().join(format!("{name}.gguf")));
        let key = format!("{architecture}.expert_used_count");
        as_gguf::rewrite(&file, &other, &[(key.as_str(), Value::Uint32(1))], |_| None);
        let ids = prompt(5, 40).iter().map(|id| id % 256).collect::<Vec<_>>();
        let run = |path: &Path, configuration: &LoadConfiguration| {
            let plan = coldpress::plan(path, configuration).expect("a plan").plan;
            (bits(&logits_of(path, configuration, &ids)), plan.scratch, plan.slot_count)
        };
        let fewer = run(&file, &exact().experts_per_token(1));
        assert!(fewer == run(&other, &exact()), "{name}: not the file that says 1");
        assert!(fewer.0 != run(&file, &exact()).0, "{name}: 1 of 2 experts changes nothing");
        assert!(run(&file, &exact().experts_per_token(2)) == run(&file, &exact()), "{name}: 2 of 2");
        assert_eq!(lossy(&file, &exact().experts_per_token(1)), ["1 of 2 experts per token"]);
        assert!(lossy(&file, &exact().experts_per_token(2)).is_empty());
    }
}

/// Every router and every name of the key: a folder whose config.json says less.
#[test]
fn fewer_experts_are_the_folder_whose_configuration_says_so() {
    let keys = ["num_experts_per_tok", "moe_topk", "moe_k", "experts_per_token", "num_experts_per_token"];
    for (name, _) in MIXTURES {
        // The sparse mixer has two experts by definition, a table of experts as many as it names.
        if ["phimoe", "deepseek_v4"].contains(&name) {
            continue;
        }
        let Some(reference) = Reference::open(name) else { continue };
        let mut checkpoint = Checkpoint::read(&reference.folder);
        let expected = logits_of(checkpoint.write().path(), &exact().experts_per_token(1), &reference.ids);
        let known = checkpoint.config.as_object().expect("an object").keys().cloned().collect::<Vec<_>>();
        for key in known.iter().filter(|key| keys.contains(&key.as_str())) {
            let value = &mut checkpoint.config[key];
            *value = match value {
                serde_json::Value::Array(layers) => vec![1; layers.len()].into(),
                _ => 1.into(),
            };
        }
        let got = logits_of(checkpoint.write().path(), &exact(), &reference.ids);
        assert!(bits(&got) == bits(&expected), "{name}");
    }
}

#[test]
fn what_cannot_be_is_refused_with_the_numbers() {
    let file = fixture("qwen3moe.gguf");
    let text = refusal(&file, &exact().experts_per_token(3));
    for part in ["3 experts per token", "trained with 2", "1 to 2", "--experts-per-token"] {
        assert!(text.contains(part), "{text} lacks {part}");
    }
    assert!(refusal(&file, &exact().experts_per_token(0)).contains("at least 1"));
    let text = refusal(&file, &exact().experts_per_token(1).cache_bias(0.5));
    assert!(text.contains("1 experts per layer") && text.contains("--cache-bias"), "{text}");
    for wrong in [-0.1, 1.1, f32::NAN] {
        assert!(refusal(&file, &exact().cache_bias(wrong)).contains("between 0 and 1"), "{wrong}");
    }
    let dense = Reference::open("llama").expect("in the repository").linked("config.json");
    for asked in [exact().experts_per_token(1), exact().cache_bias(0.5)] {
        assert!(refusal(dense.path(), &asked).contains("no routed experts"));
    }
    if let Some(sparse) = Reference::open("phimoe") {
        let folder = sparse.linked("config.json");
        assert!(refusal(folder.path(), &exact().cache_bias(0.5)).contains("no other can take its place"));
    }
}

/// Little memory, and nothing that depends on the clock.
fn streamed() -> LoadConfiguration {
    let configuration = LoadConfiguration::default().context(256).residency(Residency::Streamed).slots(64);
    configuration.prefetch(Prefetch::Off, ChoiceOrigin::Flag).threads(1)
}

/// Tokens of an answer, and experts that were read for it.
fn answer(configuration: &LoadConfiguration) -> (Vec<u32>, u64) {
    let mut runtime = load(&demo(), configuration);
    let ids = runtime.encode("The old house stood at the end of the lane, and", false).expect("short");
    let options = GenerateOptions { max_tokens: 60, ignore_eos: true, ..GenerateOptions::default() };
    let mut session = runtime.session().expect("a session");
    let tokens = runtime.generate(&mut session, &ids, &options, &mut Silent).expect("an answer").tokens;
    (tokens, runtime.status().experts.expect("experts").misses)
}

#[test]
fn experts_in_memory_are_preferred_and_the_same_start_gives_the_same_again() {
    // No chunk asks a layer for more experts than it has slots: beyond that the order in which reads land has a say.
    let streamed = || streamed().chunk_tokens(3);
    let exact = answer(&streamed());
    let biased = answer(&streamed().cache_bias(0.2));
    println!("{} experts read exactly, {} with a bias", exact.1, biased.1);
    assert!(biased.1 * 10 < exact.1 * 9, "a bias reads less: {} of {}", biased.1, exact.1);
    assert_ne!(biased.0, exact.0);
    assert_eq!(answer(&streamed().cache_bias(0.2)), biased);
    assert_eq!(answer(&streamed().cache_bias(0.2).threads(2)), biased, "threads change nothing");
    // Where everything is in memory nothing is preferred.
    let resident = LoadConfiguration::default().context(256).residency(Residency::Resident);
    assert_eq!(answer(&resident.cache_bias(0.2)).0, exact.0);
    assert_eq!(lossy(&demo(), &streamed().cache_bias(0.2)), ["cache bias 0.2"]);
    assert!(lossy(&demo(), &streamed().cache_bias(0.0)).is_empty());
}

#[test]
fn prompts_are_left_alone() {
    let ids = prompt(9, 48);
    let exact = bits(&logits_of(&demo(), &streamed(), &ids));
    assert!(bits(&logits_of(&demo(), &streamed().cache_bias(0.5), &ids)) == exact, "48 tokens at once");
    let alone = streamed().cache_bias(0.5).chunk_tokens(1);
    assert!(bits(&logits_of(&demo(), &alone, &ids)) != exact, "one token at a time");
}

#[test]
fn what_it_costs_is_measured() {
    let compared = |configuration: LoadConfiguration| {
        let configuration = configuration.context(96).comparing(coldpress::KvType::F16);
        load(&demo(), &configuration).compare(TEXT, 200, &mut Silent).expect("a comparison")
    };
    let experts = load(&demo(), &streamed()).status().plan.model.experts_per_token as u32;
    let same = compared(streamed().experts_per_token(experts));
    assert_eq!((same.kl_max, same.top1_agreement, same.lossy.len()), (0.0, 1.0, 0));
    let fewer = compared(streamed().experts_per_token(experts - 1));
    assert_eq!(
        (fewer.exact.experts_per_token, fewer.asked.experts_per_token),
        (experts as usize, experts as usize - 1)
    );
    assert!(fewer.kl_mean > 0.0 && fewer.kl_mean < 1.0 && fewer.top1_agreement < 1.0, "{fewer:?}");
    let biases = [0.05, 0.3].map(|bias| compared(streamed().cache_bias(bias)));
    assert!(biases[0].kl_mean > 0.0 && biases[0].kl_mean < biases[1].kl_mean, "{biases:?}");
    assert!(biases[1].asked.expert_bytes_read < biases[0].asked.expert_bytes_read, "{biases:?}");
    assert_eq!(biases[0].lossy, ["cache bias 0.05"]);
    // The text is the same, so both have the same perplexity where they are exact.
    assert_eq!(biases[0].exact.perplexity.to_bits(), fewer.exact.perplexity.to_bits());
}

#[test]
fn keys_and_values_of_a_lossy_run_are_its_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let asked = || {
        let snapshots = Some((folder.path().to_owned(), Bytes(1 << 30)));
        configuration(Serving { snapshots, ..serving(1) })
    };
    let cached = |configuration: &LoadConfiguration| {
        let service = service(configuration);
        let told = ask(&service.client(), Request::new(prompt(31, 150), 4)).answer();
        service.stop();
        told.cached
    };
    for configuration in
        [asked(), asked().experts_per_token(1), asked().cache_bias(0.1), asked().cache_bias(0.2)]
    {
        assert_eq!(cached(&configuration), 0, "{:?}", lossy(&demo(), &configuration));
        assert!(cached(&configuration) >= 128, "its own are found again");
    }
}
