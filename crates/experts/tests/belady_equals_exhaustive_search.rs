//! The optimum of the simulator is the optimum: on small random routing it has exactly the hits of a search over everything
//! that a cache could keep after each visit. A bound that is too low would make policies look better than they are, one that
//! is too high would hide what is left to gain.

use coldpress_experts::{Fingerprint, RoutingTrace, Visits, order_by_last_use};
use coldpress_testkit::Random;

const LAYERS: usize = 2;
const EXPERTS: usize = 4;
const TOP_K: usize = 2;

/// Most hits over all ways to keep at most `slots` of 8 records after each visit.
fn search(visits: &[u32], slots: u32) -> u64 {
    // Per set of kept records: the most hits so far, if the set can be reached.
    let mut best: Vec<Option<u64>> = vec![None; 1 << (LAYERS * EXPERTS)];
    best[0] = Some(0);
    for visit in visits {
        let mut next = vec![None; best.len()];
        for (before, hits) in best.iter().enumerate() {
            let Some(hits) = hits else { continue };
            let hits = hits + u64::from((before as u32 & visit).count_ones());
            let all = before as u32 | visit;
            let mut kept = all;
            loop {
                if kept.count_ones() <= slots {
                    let entry: &mut Option<u64> = &mut next[kept as usize];
                    *entry = (*entry).max(Some(hits));
                }
                if kept == 0 {
                    break;
                }
                kept = (kept - 1) & all;
            }
        }
        best = next;
    }
    best.into_iter().flatten().max().expect("a cache can always be empty")
}

#[test]
fn on_small_random_routing() {
    let mut random = Random::new(11);
    for case in 0..40 {
        let counts = vec![EXPERTS; LAYERS];
        let mut trace = RoutingTrace::new(Fingerprint::from_bytes([0; 32]), counts, TOP_K, 1 << 20);
        let mut sets = Vec::new();
        for _ in 0..8 {
            let rows = if random.chance(0.2) { 2 } else { 1 };
            for layer in 0..LAYERS {
                let choices: Vec<u32> = (0..rows).flat_map(|_| random.distinct(TOP_K, EXPERTS)).collect();
                let (mut last_use, mut experts) = (Vec::new(), Vec::new());
                order_by_last_use(choices.iter().copied(), TOP_K, EXPERTS, &mut last_use, &mut experts);
                sets.push(experts.iter().fold(0, |set, expert| set | 1 << (layer * EXPERTS) << expert));
                trace.record(layer, choices.into_iter());
            }
        }
        let visits = Visits::of(&trace);
        for slots in 1..=6 {
            assert_eq!(
                visits.belady(slots as usize).hits,
                search(&sets, slots),
                "case {case}, {slots} slots"
            );
        }
    }
}
