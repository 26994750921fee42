//! "Does not fit" without numbers leaves people guessing. The whole text of a refusal is pinned here: every part in
//! MiB, the sum, the gap, the flags that help (largest saving first) and the smallest budget that works.

use coldpress_memory::plan::{PlanInput, RecordClass, RowCacheWish, plan};
use coldpress_memory::{Bytes, Suggestion};

fn mixtral_like() -> PlanInput {
    PlanInput {
        budget: Bytes::from_mib(800),
        usable: Bytes::from_gib(16),
        fixed: Bytes::from_mib(64),
        dense: Bytes::from_mib(610),
        kv_fixed: Bytes::ZERO,
        kv_per_token: Bytes::from_kib(48),
        kv_tokens_minimum: 0,
        kv_page_tokens: 1,
        kv_windows: Vec::new(),
        context: 4096,
        context_explicit: true,
        context_minimum: 512,
        scratch_fixed: Bytes::from_mib(10),
        scratch_per_chunk_token: Bytes::from_kib(72),
        scratch_per_block_token: Bytes::ZERO,
        block_tokens: u32::MAX,
        chunk_tokens_wanted: 2048,
        chunk_tokens_minimum: 32,
        read_ring: Bytes::from_mib(16),
        row_cache: RowCacheWish::default(),
        records: vec![
            RecordClass { record_bytes: Bytes::from_kib(3460), count: 1000 },
            RecordClass { record_bytes: Bytes::from_kib(2820), count: 1000 },
        ],
        records_minimum: 12,
        cold_fraction: None,
        page_bytes: 4096,
        other_savings: Vec::new(),
    }
}

#[test]
fn refusal_of_an_explicit_context() {
    let mut input = mixtral_like();
    input.other_savings.push(Suggestion { flag: "--parallel 1".to_owned(), saves: Bytes::from_mib(24) });
    let refusal = plan(&input).expect_err("too small");
    let text = "\
the model does not fit into a budget of 800.0 MiB
  fixed                         64.0 MiB
  dense weights                610.0 MiB
  KV cache (context 4096)      192.0 MiB
  scratch (chunk 32)            12.3 MiB
  read ring                     16.0 MiB
  expert slots (12 × 3.4 MiB)   40.6 MiB
  needed at least              934.8 MiB
  missing                      134.8 MiB
--ctx 1024 saves 144.0 MiB, which is enough
--parallel 1 saves 24.0 MiB
--budget 980205568 is the smallest that works";
    assert_eq!(refusal.to_string(), text);
}

#[test]
fn a_context_nobody_asked_for_shrinks_before_the_refusal() {
    let mut input = mixtral_like();
    input.context_explicit = false;
    let plan_1024 = plan(&input).expect("fits with a shorter context");
    assert_eq!((plan_1024.context, plan_1024.chunk_tokens), (1024, 128));
    let notes: Vec<String> = plan_1024.notes.iter().map(ToString::to_string).collect();
    assert_eq!(
        notes,
        [
            "context shortened from 4096 to 1024 tokens to fit; --ctx asks for another",
            "prefill chunk shortened from 2048 to 128 tokens to fit: prompts take longer",
        ]
    );
    input.budget = Bytes::from_mib(700);
    let refusal = plan(&input).expect_err("too small for any context");
    assert!(refusal.to_string().contains("KV cache (context 512)"), "{refusal}");
    assert!(refusal.suggestions.is_empty(), "the context is at its minimum: {refusal}");
}

#[test]
fn no_limit_plans_everything_and_warns_beyond_the_machine() {
    let mut input = mixtral_like();
    input.budget = Bytes::MAX;
    input.usable = Bytes::from_gib(4);
    let plan = plan(&input).expect("no limit never refuses");
    assert!(plan.everything_resident);
    assert_eq!(plan.slot_count, 2000);
    assert_eq!(plan.slots, Bytes::from_kib(3460 * 2000));
    assert!(
        plan.notes[0].to_string().starts_with("the plan takes 7.6 GiB but only 4.0 GiB of memory"),
        "{:?}",
        plan.notes
    );
}

#[test]
fn cold_fraction_limits_the_slots_but_keeps_the_minimum() {
    let mut input = mixtral_like();
    input.budget = Bytes::from_gib(14);
    for (cold, slots) in [(0.0, 2000), (0.7, 600), (0.9999, 12), (1.0, 12), (f64::NAN, 2000)] {
        input.cold_fraction = Some(cold);
        assert_eq!(plan(&input).expect("fits").slot_count, slots, "cold fraction {cold}");
    }
}

#[test]
fn a_budget_just_below_the_smallest_does_not_look_like_it() {
    let mut input = mixtral_like();
    let smallest = plan(&input).expect_err("too small").smallest_budget;
    for (short, decimals) in [(60 << 10, 2), (6 << 10, 3)] {
        input.budget = smallest.saturating_sub(Bytes(short));
        let text = plan(&input).expect_err("too small").to_string();
        let figures = |line: &str| line.split(' ').rev().nth(1).expect("a figure").to_owned();
        let (first, needed) = (
            text.lines().next().map(figures),
            text.lines().rfind(|line| line.contains("needed")).map(figures),
        );
        assert_ne!(first, needed, "{text}");
        assert_eq!(first.expect("a figure").split('.').nth(1).map(str::len), Some(decimals), "{text}");
    }
    input.budget = smallest.saturating_sub(Bytes(1));
    let text = plan(&input).expect_err("too small").to_string();
    assert!(text.contains(&format!("a budget of {} B", smallest.0 - 1)), "{text}");
    assert!(text.contains(&format!("{} B", smallest.0)) && text.contains(" 1 B\n"), "{text}");
}
