//! The context that a plan offers for a budget works; one token more does not, or is not wanted.
//!
//! What could go wrong: a search that ends one off, a default context that is too long for a small machine though the file
//! claims a million tokens, a smallest budget that is not the one of the refusal.

use coldpress_memory::Bytes;
use coldpress_memory::plan::{
    PlanInput, RecordClass, RowCacheWish, context_room, plan, resident_budget, smallest_budget,
};

fn input(budget: u64) -> PlanInput {
    PlanInput {
        budget: Bytes(budget),
        usable: Bytes::MAX,
        fixed: Bytes(10 << 20),
        dense: Bytes(50 << 20),
        kv_fixed: Bytes::ZERO,
        kv_per_token: Bytes(48 << 10),
        kv_tokens_minimum: 0,
        kv_page_tokens: 64,
        kv_windows: Vec::new(),
        context: 8192,
        context_explicit: false,
        context_minimum: 512,
        scratch_fixed: Bytes(1 << 20),
        scratch_per_chunk_token: Bytes(4 << 10),
        scratch_per_block_token: Bytes(32 << 10),
        block_tokens: 512,
        chunk_tokens_wanted: 512,
        chunk_tokens_minimum: 32,
        read_ring: Bytes(8 << 20),
        row_cache: RowCacheWish::default(),
        records: vec![RecordClass { record_bytes: Bytes(1 << 20), count: 1000 }],
        records_minimum: 10,
        cold_fraction: None,
        page_bytes: 4096,
        other_savings: Vec::new(),
    }
}

#[test]
fn the_longest_context_is_exact() {
    for budget in [120_u64, 200, 400, 900, 3000] {
        let input = input(budget << 20);
        let room = context_room(&input, 1 << 20).expect("some context fits");
        let at = |context: u32| {
            plan(&PlanInput { context, context_explicit: true, ..input.clone() }).map(|plan| plan.slot_count)
        };
        assert!(at(room.longest).is_ok(), "{budget}: {room:?}");
        assert!(at(room.longest + 1).is_err(), "{budget}: {room:?}");
        assert!(room.best <= room.longest, "{budget}: {room:?}");
        let unlimited = context_room(&PlanInput { budget: Bytes::MAX, ..input.clone() }, 1 << 20);
        assert_eq!(unlimited.map(|room| (room.best, room.longest)), Some((1 << 20, 1 << 20)));
    }
    // The best context costs the slots a sixteenth at most.
    let large = input(900 << 20);
    let slots = |context: u32| {
        let chunk_tokens_wanted = 32;
        let asked = PlanInput { context, context_explicit: true, chunk_tokens_wanted, ..large.clone() };
        plan(&asked).expect("fits").slot_count
    };
    let best = context_room(&large, 1 << 20).expect("room").best;
    assert!(slots(best) >= slots(512) - slots(512) / 16 && slots(best + 100) < slots(512) - slots(512) / 16);
    assert_eq!(context_room(&input(1 << 20), 1 << 20), None);
}

#[test]
fn the_budgets_named_are_those_that_work() {
    let refused = plan(&input(1)).expect_err("one byte is not enough");
    assert_eq!(smallest_budget(&input(1)), refused.smallest_budget);
    let all = resident_budget(&input(1), 8192, 512);
    assert!(plan(&input(all.0)).expect("fits").everything_resident);
    assert!(!plan(&input(all.0 - 4096)).expect("fits").everything_resident);
}
