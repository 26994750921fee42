//! A record that is read in parallel parts is the record that one read gives, in every order of arrival, and is counted right.
//!
//! Parts that are joined in the order in which they end, a part that is lost on a failed read, or a slot that comes back
//! shorter than it was would show here as wrong bytes or as a panic of the slot memory.

use std::collections::BTreeMap;

use coldpress_experts::pack::write_pack;
use coldpress_experts::{
    ExpertKey, ExpertStore, Fingerprint, PackFile, ReaderChoice, SPLIT_MAX, StoreConfig,
};
use coldpress_memory::{Ledger, Purpose};
use coldpress_testkit::{ExpertSource, FaultRates, SimulatedReader, SourceShape, visit_records};
use coldpress_workers::Workers;

fn packed(folder: &std::path::Path, workers: &Workers) -> (ExpertSource, PackFile) {
    let source = ExpertSource::create(folder, &SourceShape::default());
    let destination = folder.join("model.cpack");
    let ledger = Ledger::unlimited();
    let cancel = std::sync::atomic::AtomicBool::new(false);
    workers
        .enter(|team| write_pack(source.pack_config(&destination, &ledger), team, &cancel, |_, _| {}))
        .expect("packs");
    let fingerprint = Fingerprint::of(&source.files, &source.layers).expect("reads");
    let pack = PackFile::open(&destination, &source.geometry(), &fingerprint).expect("opens");
    (source, pack)
}

fn all_records(
    store: &mut ExpertStore,
    source: &ExpertSource,
    workers: &Workers,
) -> BTreeMap<ExpertKey, Vec<u8>> {
    let mut all = BTreeMap::new();
    for (layer, experts) in source.layers.iter().enumerate() {
        let experts: Vec<u32> = (0..experts.expert_count as u32).rev().collect();
        let records = workers.enter(|team| visit_records(store, team, layer, &experts)).expect("reads");
        let key = |expert| ExpertKey { layer: layer as u32, expert };
        all.extend(records.into_iter().map(|(expert, record)| (key(expert), record)));
    }
    all
}

#[test]
fn whatever_the_split_and_the_order_of_arrival() {
    let folder = tempfile::tempdir().expect("a folder");
    let workers = Workers::new(2);
    let (source, pack) = packed(folder.path(), &workers);
    let expected = source.expected_records();
    for split in 1..=SPLIT_MAX {
        for seed in 0..4 {
            let rates = FaultRates { short: 0.2, interrupted: 0.1, again: 0.1, ..FaultRates::default() };
            let reader = Box::new(SimulatedReader::new(seed, 5 * split, rates));
            let ledger = Ledger::unlimited();
            let config = StoreConfig {
                pack: Some(pack.clone()),
                reader: ReaderChoice::Custom(reader),
                ledger: ledger.clone(),
                split,
                ..source.store_config(6)
            };
            let mut store = ExpertStore::open(config).expect("opens");
            assert!(all_records(&mut store, &source, &workers) == expected, "split {split}, seed {seed}");
            drop(store);
            assert_eq!(ledger.snapshot().used.0, 0, "split {split}, seed {seed}: all memory came back");
        }
    }
}

#[test]
fn each_part_is_one_read_and_no_byte_is_read_twice() {
    let folder = tempfile::tempdir().expect("a folder");
    let workers = Workers::new(1);
    let (source, pack) = packed(folder.path(), &workers);
    let geometry = source.geometry();
    for split in [1, 2, 3, 8] {
        let config = StoreConfig {
            pack: Some(pack.clone()),
            reader: ReaderChoice::Pread,
            split,
            ..source.store_config(4)
        };
        let mut store = ExpertStore::open(config).expect("opens");
        all_records(&mut store, &source, &workers);
        let parts = |key: ExpertKey| {
            let bytes = geometry.layer(key.layer as usize).record_bytes;
            bytes.div_ceil(bytes.div_ceil(split).next_multiple_of(4096))
        };
        let statistics = store.statistics();
        assert_eq!(statistics.reads, geometry.keys().map(parts).sum::<usize>() as u64, "split {split}");
        assert_eq!(statistics.device_bytes_read, geometry.records_bytes(), "split {split}");
        assert_eq!(statistics.read_retries, 0);
    }
}

#[test]
fn a_broken_part_fails_its_record_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let workers = Workers::new(1);
    let (source, pack) = packed(folder.path(), &workers);
    let expected = source.expected_records();
    let rates = FaultRates { broken: 0.1, flipped: 0.1, ..FaultRates::default() };
    let config = StoreConfig {
        pack: Some(pack),
        reader: ReaderChoice::Custom(Box::new(SimulatedReader::new(7, 16, rates))),
        split: 4,
        ..source.store_config(4)
    };
    let mut store = ExpertStore::open(config).expect("opens");
    let (mut good, mut failed) = (0, 0);
    for _ in 0..8 {
        for layer in 0..source.layers.len() {
            let experts: Vec<u32> = (0..8).collect();
            workers.enter(|team| {
                let mut visit = store.begin(layer, &experts).expect("begins");
                loop {
                    match visit.next_ready(team) {
                        Ok(None) => break,
                        Err(_) => failed += 1,
                        Ok(Some(ready)) => {
                            for (position, record) in ready.iter() {
                                let key = ExpertKey { layer: layer as u32, expert: experts[position] };
                                assert!(record.bytes() == expected[&key], "{key}");
                                good += 1;
                            }
                        }
                    }
                }
            });
        }
    }
    assert_eq!(good + failed, 8 * source.geometry().record_count());
    assert!(good > 20 && failed > 20, "{good} good, {failed} failed");
    assert!(store.statistics().records_read_again > 0);
}

/// The owner of each byte is one piece: cutting and joining gives back what was there, and strangers cannot be joined.
#[test]
fn pieces_join_their_neighbours_only() {
    use coldpress_experts::slots::SlotMemory;
    let ledger = Ledger::unlimited();
    let mut pieces = SlotMemory::carve(&ledger, Purpose::ExpertSlots, &[12288, 8192]).expect("memory");
    let (second, mut first) = (pieces.pop().expect("two"), pieces.pop().expect("two"));
    first.iter_mut().enumerate().for_each(|(at, byte)| *byte = at as u8);
    let mut middle = first.split_off(4096);
    let end = middle.split_off(4096);
    assert_eq!((first.len(), middle.len(), end.len()), (4096, 4096, 4096));
    let mixed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| first.join(end)));
    assert!(mixed.is_err(), "a piece that is not the neighbour was joined");
    first.join(middle);
    assert!(first.iter().enumerate().all(|(at, byte)| *byte == at as u8));
    let other = SlotMemory::carve(&ledger, Purpose::ExpertSlots, &[4096]).expect("memory");
    let strangers = other.into_iter().next().expect("one");
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| first.join(strangers))).is_err());
    drop(second);
}
