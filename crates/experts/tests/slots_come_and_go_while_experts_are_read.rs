//! However much memory slots may take from one moment to the next, every expert that is asked for arrives, as it is, and
//! between two visits no more is held than allowed.
//!
//! A record that is lost with its slab, a slot that is handed out without memory, a read into memory that was given back, or
//! bytes that the ledger does not get back would show here.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use coldpress_experts::pack::write_pack;
use coldpress_experts::{
    ExpertStore, Fingerprint, Guess, PackFile, PolicyKind, ReadAheadMode, ReaderChoice, Residency,
    StoreConfig,
};
use coldpress_memory::sys::ReleaseMode;
use coldpress_memory::{Bytes, Ledger, Purpose};
use coldpress_testkit::{ExpertSource, FaultRates, Random, SimulatedReader, SourceShape};
use coldpress_workers::{Team, Workers};

const LAYERS: usize = 3;
const EXPERTS: usize = 8;
const CHOSEN: usize = 3;

/// Waits until slots hold at most `bytes`: a thread that finds memory ahead of the reads may have a slab for a moment longer.
fn held_at_most(ledger: &Ledger, bytes: u64) -> bool {
    let began = Instant::now();
    while ledger.used_for(Purpose::ExpertSlots).0 > bytes {
        if began.elapsed() > Duration::from_secs(5) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// Visits with a target that jumps about, also in the middle of a visit. Returns how often slots came and went.
fn visits(
    team: &Team<'_>,
    source: &ExpertSource,
    store: &mut ExpertStore,
    ledger: &Ledger,
    seed: u64,
) -> usize {
    let expected: Vec<Vec<u8>> = source.expected_records().into_values().collect();
    let mut random = Random::new(seed);
    let control = store.control();
    let begun_with = store.slot_bytes().0;
    let slab = begun_with.div_ceil(store.slot_count() as u64).max(store.geometry().record_bytes_max() as u64);
    // A slot of a mapped file costs more than its record, a slot of a store with all experts as much as the largest later on.
    let slab = slab + (64 << 10);
    let mut changes = 0;
    for pass in 0..12 {
        for layer in 0..LAYERS {
            let before = store.slot_bytes();
            let target = begun_with * random.below(13) as u64 / 10;
            control.set_target(Bytes(target));
            let experts = random.distinct(CHOSEN, EXPERTS);
            let mut left = experts.len();
            let mut visit = store.begin(layer, &experts).expect("begins");
            assert!(held_at_most(ledger, target.max(slab)), "pass {pass}: {target} allowed, {ledger:?}");
            let mut named = false;
            loop {
                if random.below(4) == 0 {
                    control.set_target(Bytes(begun_with * random.below(11) as u64 / 10));
                }
                if !named && visit.is_idle() {
                    named = true;
                    let guesses = random.distinct(CHOSEN, EXPERTS);
                    visit.prefetch((layer + 1) % LAYERS, guesses.into_iter(), Guess::Likely);
                }
                let Some(ready) = visit.next_ready(team).expect("nothing fails") else { break };
                for (position, record) in ready.iter() {
                    let wanted = &expected[layer * EXPERTS + experts[position] as usize];
                    assert!(record.bytes() == wanted, "pass {pass}, layer {layer}");
                    left -= 1;
                }
            }
            drop(visit);
            assert_eq!(left, 0, "pass {pass}, layer {layer}: each expert is handed out");
            changes += usize::from(store.slot_bytes() != before);
        }
        if pass % 4 == 3 {
            store.release_slots().expect("released");
            assert!(held_at_most(ledger, 0), "everything was given back: {ledger:?}");
        }
    }
    changes
}

fn pack(team: &Team<'_>, folder: &Path, source: &ExpertSource) -> PackFile {
    let path = folder.join("pack.cpack");
    let ledger = Ledger::unlimited();
    write_pack(source.pack_config(&path, &ledger), team, &AtomicBool::new(false), |_, _| {}).expect("packs");
    let fingerprint = Fingerprint::of(&source.files, &source.layers).expect("reads");
    PackFile::open(&path, &source.geometry(), &fingerprint).expect("opens")
}

#[test]
fn every_record_arrives_whatever_slots_may_take() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = ExpertSource::create(folder.path(), &SourceShape::default());
    let rates = FaultRates { short: 0.2, interrupted: 0.1, ..FaultRates::default() };
    Workers::new(2).enter(|team| {
        let pack = pack(team, folder.path(), &source);
        for (index, (_, policy)) in PolicyKind::ALL.into_iter().enumerate() {
            for slots in [CHOSEN, 12, LAYERS * EXPERTS] {
                for residency in [
                    Residency::Streamed { slots },
                    Residency::Resident,
                    Residency::Mapped { places: slots, release: ReleaseMode::Soft },
                ] {
                    if residency == Residency::Resident && slots != LAYERS * EXPERTS {
                        continue;
                    }
                    let seed = (index * 100 + slots) as u64;
                    let ledger = Ledger::unlimited();
                    let config = StoreConfig {
                        residency,
                        pack: matches!(residency, Residency::Mapped { .. }).then(|| pack.clone()),
                        policy: Some(policy.build(slots, &[EXPERTS; LAYERS])),
                        reader: ReaderChoice::Custom(Box::new(SimulatedReader::new(seed, 16, rates))),
                        ledger: ledger.clone(),
                        read_ahead: 4,
                        prefetch: ReadAheadMode::On,
                        ..source.store_config(slots)
                    };
                    let mut store = ExpertStore::open(config).expect("opens");
                    let changes = visits(team, &source, &mut store, &ledger, seed);
                    assert!(changes > 3, "{policy:?}, {residency:?}: {changes} changes");
                    drop(store);
                    assert_eq!(ledger.snapshot().used.0, 0, "all memory came back");
                }
            }
        }
    });
}

#[test]
fn a_store_that_held_everything_holds_everything_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = ExpertSource::create(folder.path(), &SourceShape::default());
    Workers::new(1).enter(|team| {
        let config = StoreConfig { residency: Residency::Resident, ..source.store_config(1) };
        let mut store = ExpertStore::open(config).expect("opens");
        let everything = Bytes((LAYERS * EXPERTS * store.geometry().record_bytes_max()) as u64);
        store.preload_all(team, |_, _| true).expect("reads");
        store.control().set_target(Bytes(store.slot_bytes().0 / 3));
        store.follow_target().expect("follows");
        assert!(store.slot_count() < LAYERS * EXPERTS / 2);
        store.control().set_target(everything);
        store.follow_target().expect("follows");
        assert_eq!(store.slot_count(), LAYERS * EXPERTS);
        store.preload_all(team, |_, _| true).expect("reads");
        let before = store.statistics();
        store.preload_all(team, |_, _| true).expect("reads");
        let counted = store.statistics().since(&before);
        assert_eq!((counted.reads, counted.misses), (0, 0), "everything is there");
    });
}

#[test]
fn a_store_without_memory_for_one_slab_says_so_and_goes_on_later() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = ExpertSource::create(folder.path(), &SourceShape::default());
    Workers::new(1).enter(|team| {
        let ledger = Ledger::new(Bytes::from_mib(64));
        let config = StoreConfig { ledger: ledger.clone(), ..source.store_config(6) };
        let mut store = ExpertStore::open(config).expect("opens");
        store.release_slots().expect("released");
        assert!(held_at_most(&ledger, 0));
        let taken = ledger.reserve(Purpose::Scratch, ledger.free()).expect("what is free");
        let refused = store.begin(0, &[1, 2]).err().expect("there is no memory").to_string();
        assert!(refused.contains("expert slots"), "{refused}");
        drop(taken);
        let mut visit = store.begin(0, &[1, 2]).expect("begins");
        let mut arrived = 0;
        while let Some(ready) = visit.next_ready(team).expect("reads") {
            arrived += ready.len();
        }
        assert_eq!(arrived, 2);
    });
}
