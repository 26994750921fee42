//! On recorded routing the default policy has at least the hits of every other policy less one point, and nothing beats the
//! optimum. What could go wrong: a change to a policy or to the split that looks harmless and costs reads on every token.
//!
//! The traces are those of `docs/streaming.md`: dictionary questions, and prose that turns into code.

use std::path::Path;

use coldpress_experts::{PolicyKind, RoutingTrace, Visits};

fn fixture(name: &str) -> Visits {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    Visits::of(&RoutingTrace::read(&path).expect("the fixture is a trace"))
}

#[test]
fn by_no_more_than_a_point_behind_at_any_capacity() {
    for name in ["dictionary.cptrace", "change.cptrace"] {
        let visits = fixture(name);
        for share in [0.06, 0.125, 0.18, 0.25, 0.375, 0.5, 0.75] {
            let slots = visits.slots_for(share);
            let default = visits.replay(PolicyKind::DEFAULT, slots).hit_rate();
            let optimum = visits.belady(slots);
            for (policy, kind) in PolicyKind::ALL {
                let counts = visits.replay(kind, slots);
                assert!(
                    default >= counts.hit_rate() - 0.01,
                    "{name}, {slots} slots: {policy} has {:.3}, the default {default:.3}",
                    counts.hit_rate()
                );
                assert!(counts.hits <= optimum.hits, "{policy} beats the optimum");
                assert_eq!(counts.hits + counts.misses, optimum.hits + optimum.misses);
            }
        }
    }
}

#[test]
fn with_a_slot_for_every_expert_only_first_uses_miss() {
    let visits = fixture("dictionary.cptrace");
    let optimum = visits.belady(visits.record_count());
    for (policy, kind) in PolicyKind::ALL {
        assert_eq!(visits.replay(kind, visits.record_count()), optimum, "{policy}");
    }
}
