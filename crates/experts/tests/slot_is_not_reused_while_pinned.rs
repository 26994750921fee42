//! A record that a kernel may be reading keeps its bytes while others are loaded around it, and a policy that names a slot
//! in use is stopped before anything is overwritten. A peer computed the wrong expert this way, without a crash.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use coldpress_experts::{EvictionPolicy, ExpertKey, ExpertStore, PolicyKind, ReaderChoice, StoreConfig};
use coldpress_testkit::{ExpertSource, SourceShape, visit_records};
use coldpress_workers::Workers;

#[test]
fn records_in_use_keep_their_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let source = ExpertSource::create(folder.path(), &SourceShape::default());
    let expected = source.expected_records();
    let experts: Vec<u32> = (0..8).collect();
    Workers::new(2).enter(|team| {
        for reader in [ReaderChoice::Auto, ReaderChoice::Pread] {
            for slots in [1, 2, 3, 5] {
                let reader = match &reader {
                    ReaderChoice::Pread => ReaderChoice::Pread,
                    _ => ReaderChoice::Auto,
                };
                let mut store =
                    ExpertStore::open(StoreConfig { reader, ..source.store_config(slots) }).unwrap();
                for layer in [0, 1, 2, 0, 1, 2] {
                    let mut visit = store.begin(layer, &experts).unwrap();
                    while let Some(ready) = visit.next_ready(team).unwrap() {
                        // Long enough for every read that could be in flight to land.
                        let end = Instant::now() + Duration::from_millis(2);
                        while Instant::now() < end {
                            for (position, record) in ready.iter() {
                                let key = ExpertKey { layer: layer as u32, expert: experts[position] };
                                assert!(record.bytes() == expected[&key], "{key} with {slots} slots");
                            }
                        }
                    }
                }
            }
        }
    });
}

/// Names slot 0 whatever its state.
struct Reckless(Box<dyn EvictionPolicy>);

impl EvictionPolicy for Reckless {
    fn name(&self) -> &'static str {
        "reckless"
    }

    fn begin_visit(&mut self, layer: u32, stamp: u64) {
        self.0.begin_visit(layer, stamp);
    }

    fn seeded(&mut self, slot: usize, uses: u32) {
        self.0.seeded(slot, uses);
    }

    fn inserted(&mut self, slot: usize, key: ExpertKey, stamp: u64) {
        self.0.inserted(slot, key, stamp);
    }

    fn used(&mut self, slot: usize, stamp: u64) {
        self.0.used(slot, stamp);
    }

    fn resize(&mut self, numbers: usize, slots: usize) {
        self.0.resize(numbers, slots);
    }

    fn removed(&mut self, slot: usize) {
        self.0.removed(slot);
    }

    fn victim(&mut self, _layer: u32, _is_evictable: &dyn Fn(usize) -> bool) -> Option<usize> {
        Some(0)
    }
}

#[test]
fn a_policy_that_names_a_slot_in_use_is_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let source = ExpertSource::create(folder.path(), &SourceShape::default());
    Workers::new(1).enter(|team| {
        let policy: Box<dyn EvictionPolicy> = Box::new(Reckless(PolicyKind::DEFAULT.build(2, &[8, 8, 8])));
        let config = StoreConfig { policy: Some(policy), ..source.store_config(2) };
        let mut store = ExpertStore::open(config).unwrap();
        let expected = source.expected_records();
        for (visits, state) in [(0, "Loading"), (1, "Resident { pins: 1 }")] {
            if visits == 1 {
                visit_records(&mut store, team, 0, &[0, 1]).unwrap();
            }
            // Both slots are taken by hits or reads of this visit when a slot for the third expert is wanted.
            let panic =
                catch_unwind(AssertUnwindSafe(|| drop(store.begin(0, &[0, 1, 2])))).expect_err("stopped");
            let message = panic.downcast_ref::<String>().expect("a formatted message");
            assert!(message.contains("Evict") && message.contains(state), "{message}");
            let records = visit_records(&mut store, team, 0, &[0, 1]).expect("usable after the panic");
            assert!(records[&0] == expected[&ExpertKey { layer: 0, expert: 0 }]);
        }
    });
}
