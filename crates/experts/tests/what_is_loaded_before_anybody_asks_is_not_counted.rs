//! Loading all experts, or the hottest ones, before the first request is no hit, no miss and no use, in every count there is.
//!
//! What could go wrong: a model that is wholly in memory reports as many misses as it has experts, and a hit rate below one.

use coldpress_experts::{ExpertStore, Residency, StoreConfig};
use coldpress_memory::Ledger;
use coldpress_testkit::{ExpertSource, SourceShape};
use coldpress_workers::Workers;

/// Hits, misses, and uses and hits of the telemetry.
fn counts(store: &ExpertStore) -> [u64; 4] {
    let statistics = store.statistics();
    let telemetry = store.telemetry().expect("it is on");
    let experts = || telemetry.layers.iter().flatten();
    let (uses, hits) =
        (experts().map(|count| count.uses).sum::<u32>(), experts().map(|count| count.hits).sum::<u32>());
    [statistics.hits, statistics.misses, u64::from(uses), u64::from(hits)]
}

#[test]
fn a_resident_store_that_was_loaded_has_only_hits() {
    let folder = tempfile::tempdir().unwrap();
    let source = ExpertSource::create(folder.path(), &SourceShape::default());
    let config = StoreConfig { residency: Residency::Resident, ..source.store_config(1) };
    let mut store = ExpertStore::open(config).unwrap();
    store.record_telemetry(&Ledger::unlimited()).unwrap();
    Workers::new(1).enter(|team| {
        store.preload_all(team, |_, _| true).unwrap();
        assert_eq!(counts(&store), [0; 4]);
        assert!(store.statistics().bytes_read > 0, "what was read was read");
        let mut visit = store.begin(1, &[2, 3]).unwrap();
        while visit.next_ready(team).unwrap().is_some() {}
    });
    assert_eq!(counts(&store), [2, 0, 2, 2]);
}

#[test]
fn a_store_that_was_warmed_has_no_uses_yet() {
    let folder = tempfile::tempdir().unwrap();
    let source = ExpertSource::create(folder.path(), &SourceShape::default());
    let open = || ExpertStore::open(source.store_config(4)).unwrap();
    Workers::new(1).enter(|team| {
        let mut earlier = open();
        let mut visit = earlier.begin(0, &[1, 2]).unwrap();
        while visit.next_ready(team).unwrap().is_some() {}
        drop(visit);
        let hotlist = earlier.hotlist(&Default::default());
        let mut store = open();
        store.record_telemetry(&Ledger::unlimited()).unwrap();
        assert_eq!(store.warm(team, &hotlist, || true).unwrap(), 2);
        assert_eq!(counts(&store), [0; 4]);
    });
}
