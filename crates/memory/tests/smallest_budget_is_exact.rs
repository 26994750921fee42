//! A refusal that names a budget which then fails too sends people in circles, and one that asks for too much keeps
//! them out. For random models the named budget must work, one byte less must not, and every plan must add up.

use coldpress_memory::plan::{KvWindow, Plan, PlanInput, RecordClass, RowCacheWish, plan};
use coldpress_memory::{Bytes, Suggestion};
use proptest::prelude::*;

prop_compose! {
    fn model()(
        fixed in 0_u64..1 << 28,
        dense in 0_u64..1 << 34,
        kv in (0_u64..1 << 24, 0_u64..1 << 18, 0_u64..1 << 16, 0_u32..5000),
        context in (0_u32..300_000, any::<bool>(), 0_u32..2048),
        scratch in (0_u64..1 << 24, 0_u64..1 << 20),
        chunk in (0_u32..5000, 0_u32..100),
        read_ring in 0_u64..1 << 26,
        rows in prop::option::of((0_u64..1 << 26, 0_u64..1 << 36)),
        records in prop::collection::vec((0_u64..1 << 25, 0_u64..600), 0..4),
        records_minimum in 0_u64..100,
        cold_fraction in prop::option::of(0.0..=1.0),
        kv_tokens in (0_u32..20_000, prop::sample::select(vec![0_u32, 1, 64])),
        page_bytes in prop::sample::select(vec![4096_u64, 16384]),
    ) -> PlanInput {
        PlanInput {
            budget: Bytes::ZERO,
            usable: Bytes::MAX,
            fixed: Bytes(fixed),
            dense: Bytes(dense),
            kv_fixed: Bytes(kv.0),
            kv_per_token: Bytes(kv.1),
            kv_tokens_minimum: kv_tokens.0,
            kv_page_tokens: kv_tokens.1,
            kv_windows: vec![KvWindow { bytes_per_token: Bytes(kv.2), tokens_max: kv.3 }],
            context: context.0,
            context_explicit: context.1,
            context_minimum: context.2,
            scratch_fixed: Bytes(scratch.0),
            scratch_per_chunk_token: Bytes(scratch.1),
            scratch_per_block_token: Bytes::ZERO,
            block_tokens: u32::MAX,
            chunk_tokens_wanted: chunk.0,
            chunk_tokens_minimum: chunk.1,
            read_ring: Bytes(read_ring),
            row_cache: rows.map_or_else(RowCacheWish::default, |(minimum, more)| RowCacheWish {
                minimum: Bytes(minimum),
                maximum: Bytes(minimum + more),
            }),
            records: records
                .into_iter()
                .map(|(bytes, count)| RecordClass { record_bytes: Bytes(bytes), count })
                .collect(),
            records_minimum,
            cold_fraction,
            page_bytes,
            other_savings: vec![Suggestion { flag: "--parallel 1".to_owned(), saves: Bytes(1) }],
        }
    }
}

/// Room of one more slot.
fn next_slot(input: &PlanInput, plan: &Plan) -> Bytes {
    plan.record_bytes.saturating_add(Bytes(input.page_bytes))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn named_budget_works_and_one_byte_less_does_not(mut input in model()) {
        let Err(refusal) = plan(&input) else {
            // Only a model that needs nothing fits a budget of nothing.
            return Ok(());
        };
        prop_assert_eq!(refusal.parts.iter().map(|part| part.1).sum::<Bytes>(), refusal.smallest_budget);
        input.budget = refusal.smallest_budget;
        let smallest = plan(&input).map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert!(smallest.total() <= input.budget);
        input.budget = Bytes(refusal.smallest_budget.0 - 1);
        prop_assert!(plan(&input).is_err());
    }

    #[test]
    fn plans_add_up_and_obey_their_limits(mut input in model(), budget in 0_u64..1 << 37) {
        input.budget = Bytes(budget);
        let Ok(plan) = plan(&input) else { return Ok(()) };
        prop_assert!(plan.total() <= input.budget);
        let total = input.records_total();
        let minimum = input.records_minimum.min(total);
        prop_assert!((minimum..=total).contains(&plan.slot_count));
        if let Some(cold) = input.cold_fraction {
            prop_assert!(plan.slot_count <= minimum.max(((1.0 - cold) * total as f64) as u64));
        } else if plan.slot_count < total {
            // Rows have at most a sixteenth of what slots could have.
            let rows = plan.row_cache.saturating_sub(input.row_cache.minimum);
            prop_assert!(rows.saturating_mul(15) <= plan.slots.saturating_add(next_slot(&input, &plan)));
            prop_assert!(plan.total().saturating_add(next_slot(&input, &plan)).saturating_add(Bytes(input.page_bytes)) > input.budget, "a slot was left unused");
        }
        prop_assert!((input.row_cache.minimum..=input.row_cache.maximum).contains(&plan.row_cache));
        prop_assert_eq!(plan.everything_resident, plan.slot_count == total);
        prop_assert!(!input.context_explicit || plan.context == input.context);
        prop_assert!(plan.context >= input.context.min(input.context_minimum));
        prop_assert!(plan.chunk_tokens >= input.chunk_tokens_wanted.min(input.chunk_tokens_minimum));
        prop_assert!(plan.kv_tokens >= u64::from(plan.context.max(input.kv_tokens_minimum)));
        prop_assert!(plan.context <= input.context && plan.chunk_tokens <= input.chunk_tokens_wanted);
    }

    #[test]
    fn a_larger_budget_never_gives_a_smaller_model(mut input in model(), budget in 0_u64..1 << 36, more in 0_u64..1 << 34) {
        input.budget = Bytes(budget);
        let Ok(small) = plan(&input) else { return Ok(()) };
        input.budget = Bytes(budget + more);
        let large = plan(&input).map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert!((large.context, large.chunk_tokens) >= (small.context, small.chunk_tokens));
    }

    #[test]
    fn sums_beyond_64_bits_are_refusals_not_panics(mut input in model(), huge in prop::collection::vec(any::<u64>(), 8)) {
        input.fixed = Bytes(huge[0]);
        input.dense = Bytes(huge[1]);
        input.kv_per_token = Bytes(huge[2]);
        input.scratch_per_chunk_token = Bytes(huge[3]);
        input.read_ring = Bytes(huge[4]);
        input.records = vec![RecordClass { record_bytes: Bytes(huge[5]), count: huge[6] }];
        input.records_minimum = huge[7];
        for budget in [0, 1 << 34, u64::MAX - 1, u64::MAX] {
            input.budget = Bytes(budget);
            let _ = plan(&input).map_err(|refusal| refusal.to_string());
        }
    }
}
