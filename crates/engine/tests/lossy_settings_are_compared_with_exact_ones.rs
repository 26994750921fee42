//! A comparison of a way to compute with itself finds exactly nothing, one with fewer bits finds something, both within the budget; a
//! type of the KV cache is refused by name where a model's heads do not suit it or nobody measured it.
//!
//! What could go wrong: both ways write one cache, the kept logits belong to another position, the two caches or the logits are not
//! in the plan, the result depends on the chunk, an unmeasured type slips through.

use crate::common::{demo, fixture, load};
use coldpress::{Comparison, ComparisonObserver, EngineError, KvType, LoadConfiguration, Runtime, Silent};

/// A text that nobody edits.
const TEXT: &str = include_str!("../../../LICENSE-APACHE");

fn configuration(kv: KvType, exact: KvType) -> LoadConfiguration {
    LoadConfiguration::default().context(96).kv_type(kv).comparing(exact)
}

fn compare(configuration: &LoadConfiguration) -> Comparison {
    let mut runtime = load(&demo(), configuration);
    runtime.compare(TEXT, 300, &mut Silent).expect("a comparison")
}

#[test]
fn a_way_compared_with_itself_is_exactly_the_same() {
    for kv in [KvType::F16, KvType::F32] {
        assert!(!configuration(kv, kv).differs_from_exact());
        let same = compare(&configuration(kv, kv));
        assert_eq!((same.kl_mean, same.kl_p99, same.kl_max), (0.0, 0.0, 0.0));
        assert_eq!(same.top1_agreement, 1.0);
        assert_eq!(same.exact.perplexity.to_bits(), same.asked.perplexity.to_bits());
        assert!(same.lossy.is_empty());
        // 300 tokens in windows of at most 96, each of which has no next token for its last one.
        assert_eq!(same.tokens + same.windows, 300);
        assert!(same.exact.perplexity > 1.0 && same.exact.perplexity < 8192.0, "{same:?}");
    }
}

#[test]
fn fewer_bits_cost_more_and_the_same_whatever_the_chunk() {
    let costs = [KvType::F32, KvType::Q8, KvType::Q4].map(|kv| {
        let whole = compare(&configuration(kv, KvType::F16));
        for chunk in [1, 40] {
            let pieces = compare(&configuration(kv, KvType::F16).chunk_tokens(chunk).threads(1));
            assert_eq!(whole, pieces, "chunks of {chunk}");
        }
        let words = kv.is_lossy().then(|| format!("kv {}", kv.name()));
        assert_eq!(whole.lossy, Vec::from_iter(words));
        assert!(whole.kl_max >= whole.kl_p99 && whole.kl_p99 >= whole.kl_mean, "{whole:?}");
        whole
    });
    // The steps of 4 bits are 16 times as coarse as those of 8, and still no wreck: that would be nats.
    assert!(costs.iter().all(|cost| cost.kl_mean > 0.0), "{costs:?}");
    assert!(costs[0].kl_mean < costs[2].kl_mean, "{costs:?}");
    assert!(costs[1].kl_mean * 2.0 < costs[2].kl_mean && costs[2].kl_mean < 0.2, "{costs:?}");
    let bytes = costs.map(|cost| cost.asked.kv_bytes_per_token * 32 * 16 / cost.exact.kv_bytes_per_token);
    // 32 numbers take 128, 34 and 18 bytes where f16 takes 64.
    assert_eq!(bytes, [128 * 8, 34 * 8, 18 * 8]);
}

#[test]
fn both_caches_and_the_kept_logits_are_in_the_plan() {
    let usual = coldpress::plan(&demo(), &LoadConfiguration::default().context(512)).expect("fits").plan;
    let configuration = LoadConfiguration::default().context(512).kv_type(KvType::Q8).comparing(KvType::F16);
    let plan = coldpress::plan(&demo(), &configuration).expect("fits").plan;
    assert!(plan.kv > usual.kv && plan.scratch > usual.scratch);
    // Whatever was not planned would not fit the smallest budget.
    let refusal = coldpress::plan(&demo(), &configuration.clone().budget("1MiB".parse().expect("a size")));
    let Err(EngineError::DoesNotFit(refusal)) = refusal else { panic!("1 MiB is too little") };
    let smallest = refusal.smallest_budget.0.to_string();
    let tight = configuration.budget(smallest.parse().expect("a size"));
    let mut runtime = load(&demo(), &tight);
    runtime.compare(TEXT, 200, &mut Silent).expect("a comparison");
    let ledger = runtime.status().ledger;
    assert!(ledger.peak <= ledger.budget);
    // Afterwards it answers as ever.
    let mut session = runtime.session().expect("a session");
    let ids = runtime.encode("The old house", false).expect("short");
    let options = coldpress::GenerateOptions { max_tokens: 4, ..Default::default() };
    runtime.generate(&mut session, &ids, &options, &mut Silent).expect("an answer");
}

struct StopsAtOnce;

impl ComparisonObserver for StopsAtOnce {
    fn should_stop(&mut self) -> bool {
        true
    }
}

#[test]
fn too_little_text_and_a_stop_are_errors_by_name() {
    let mut runtime = load(&demo(), &configuration(KvType::Q8, KvType::F16));
    let error = runtime.compare("A word.", 300, &mut Silent).expect_err("too short");
    assert!(error.to_string().contains("too little to compare"), "{error}");
    assert!(matches!(runtime.compare(TEXT, 300, &mut StopsAtOnce), Err(EngineError::Cancelled)));
    let mut plain = load(&demo(), &LoadConfiguration::default().context(96));
    assert!(matches!(plain.compare(TEXT, 300, &mut Silent), Err(EngineError::BadOption(_))));
}

fn refusal(model: &std::path::Path, configuration: LoadConfiguration) -> String {
    match Runtime::load(model, &configuration, &mut Silent) {
        Err(EngineError::BadOption(text)) => text,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("{} was let in", model.display()),
    }
}

#[test]
fn a_type_that_does_not_suit_the_heads_is_refused_with_what_does() {
    // Heads of 16 elements; the family is on the list.
    for kv in [KvType::Q8, KvType::Q4] {
        let text = refusal(&fixture("mixtral.gguf"), LoadConfiguration::default().kv_type(kv));
        for part in [kv.name(), "16 elements", "blocks of 32", "allowed: f16, f32", "--kv"] {
            assert!(text.contains(part), "{text} lacks {part}");
        }
    }
}

#[test]
fn a_family_that_was_not_measured_is_refused_with_what_is_allowed() {
    let families = coldpress::allowed_kv_types("no such family").map(KvType::name);
    assert_eq!(families.collect::<Vec<_>>(), ["f16", "f32"]);
    let families = coldpress::allowed_kv_types("qwen3moe").map(KvType::name);
    assert_eq!(families.collect::<Vec<_>>(), ["f16", "f32", "q8", "q4"]);
    let text = refusal(&fixture("qwen2moe.gguf"), LoadConfiguration::default().kv_type(KvType::Q8));
    assert!(text.contains("allowed: f16, f32"), "{text}");
}

#[test]
fn what_is_lossy_is_in_the_status_of_a_runtime() {
    let lossy = |kv| load(&demo(), &LoadConfiguration::default().context(64).kv_type(kv)).status().plan.lossy;
    assert_eq!(lossy(KvType::Q4), ["kv q4"]);
    assert!(lossy(KvType::F16).is_empty() && lossy(KvType::F32).is_empty());
}
