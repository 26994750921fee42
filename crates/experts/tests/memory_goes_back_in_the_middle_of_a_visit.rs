//! During a visit to many experts every slab has a slot in use. If memory went back slab by slab only, a long prompt would keep all of it
//! until the visit ends, and whoever takes memory meanwhile would end the process.

use std::sync::Mutex;

use coldpress_experts::{ExpertStore, Residency, StoreConfig};
use coldpress_kernels::WeightFormat;
use coldpress_memory::sys::process_memory;
use coldpress_memory::{Bytes, Ledger};
use coldpress_testkit::{ExpertSource, SourceShape};
use coldpress_workers::{Team, Workers};

const EXPERTS: usize = 40;

/// Two layers; with 80 slots of 0.4 MB a slab has five.
fn source(folder: &std::path::Path) -> ExpertSource {
    let shape = SourceShape {
        formats: vec![[WeightFormat::Q8_0; 3]; 2],
        experts: EXPERTS,
        hidden: 256,
        inner: 512,
        ..SourceShape::default()
    };
    ExpertSource::create(folder, &shape)
}

fn visit(store: &mut ExpertStore, team: &Team<'_>, layer: usize, experts: &[u32]) -> usize {
    let mut visit = store.begin(layer, experts).expect("begins");
    let mut arrived = 0;
    while let Some(ready) = visit.next_ready(team).expect("reads") {
        arrived += ready.len();
    }
    arrived
}

/// Only one test at a time: one measures the memory of the process.
static ALONE: Mutex<()> = Mutex::new(());

/// Bytes of this process in memory.
fn anon() -> u64 {
    process_memory().expect("figures").anon.0
}

#[test]
#[cfg(target_os = "linux")]
fn pages_of_idle_slots_go_at_once_and_their_slabs_after_the_visit() {
    let _alone = ALONE.lock();
    let folder = tempfile::tempdir().expect("a folder");
    let source = source(folder.path());
    let expected: Vec<Vec<u8>> = source.expected_records().into_values().collect();
    Workers::new(1).enter(|team| {
        let ledger = Ledger::unlimited();
        let slots = 2 * EXPERTS;
        let config = StoreConfig {
            residency: Residency::Streamed { slots },
            ledger: ledger.clone(),
            ..source.store_config(slots)
        };
        let mut store = ExpertStore::open(config).expect("opens");
        // In turns, so that records of both layers lie in each slab.
        for expert in 0..EXPERTS as u32 {
            assert_eq!(
                [visit(&mut store, team, 0, &[expert]), visit(&mut store, team, 1, &[expert])],
                [1, 1]
            );
        }
        let (held, control) = (store.slot_bytes(), store.control());
        let all: Vec<u32> = (0..EXPERTS as u32).collect();
        let before = anon();
        let mut visit = store.begin(0, &all).expect("begins");
        let (mut arrived, mut looks) = (0, 0);
        control.set_target(Bytes(held.0 / 2));
        while let Some(ready) = visit.next_ready(team).expect("reads") {
            let given_back = before.saturating_sub(anon());
            assert!(looks > 0 || ledger.used() >= held, "every slab has a slot in use");
            assert!(given_back > held.0 * 4 / 10, "{given_back} of {held:?} at look {looks}");
            for (position, record) in ready.iter() {
                assert!(record.bytes() == expected[position], "expert {position}");
            }
            (arrived, looks) = (arrived + ready.len(), looks + 1);
        }
        drop(visit);
        assert!(arrived == EXPERTS && looks >= 3, "{arrived} arrived in {looks} looks");
        store.follow_target().expect("follows");
        assert!(store.slot_bytes().0 <= held.0 / 2, "{:?}", store.slot_bytes());

        control.set_target(held);
        assert_eq!(self::visit(&mut store, team, 1, &all), EXPERTS);
        assert_eq!(store.slot_bytes(), held, "every slot is there again");
        assert_eq!(
            [self::visit(&mut store, team, 0, &all), self::visit(&mut store, team, 1, &all)],
            [EXPERTS; 2]
        );
        drop(store);
        assert_eq!(ledger.used(), Bytes::ZERO);
    });
}

#[test]
fn a_visit_without_room_for_anything_still_ends() {
    let _alone = ALONE.lock();
    let folder = tempfile::tempdir().expect("a folder");
    let source = source(folder.path());
    Workers::new(1).enter(|team| {
        let slots = 2 * EXPERTS;
        let config = StoreConfig { residency: Residency::Streamed { slots }, ..source.store_config(slots) };
        let mut store = ExpertStore::open(config).expect("opens");
        for expert in 0..EXPERTS as u32 {
            let layers = [0, 1].map(|layer| visit(&mut store, team, layer, &[expert]));
            assert_eq!(layers, [1, 1]);
        }
        // A part of what is asked for has to be read while nothing may be held.
        let all: Vec<u32> = (0..EXPERTS as u32).collect();
        let control = store.control();
        control.set_target(Bytes(store.slot_bytes().0 * 3 / 4));
        let mut visit = store.begin(0, &all).expect("begins");
        control.set_target(Bytes::ZERO);
        let mut arrived = 0;
        while let Some(ready) = visit.next_ready(team).expect("reads") {
            arrived += ready.len();
        }
        drop(visit);
        assert_eq!(arrived, EXPERTS);
        assert!(store.statistics().misses > 2 * EXPERTS as u64, "something was read in this visit");
    });
}
