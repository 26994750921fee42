//! Whatever is named for the next layer, right or wrong, in time or not, whole or damaged: every record that is asked for
//! arrives, as it is, and nobody hears of the others.
//!
//! A head that is joined with the wrong rest, a slot that is lost with a forgotten head, a policy that evicts for one guess
//! after the other, or a failed guess that somebody is told of would show here.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use coldpress_experts::pack::write_pack;
use coldpress_experts::{
    ExpertStore, Fingerprint, Guess, PackFile, ReadAheadMode, ReaderChoice, StoreConfig,
};
use coldpress_memory::Ledger;
use coldpress_testkit::{ExpertSource, FaultRates, Random, SimulatedReader, SourceShape};
use coldpress_workers::{Team, Workers};

const LAYERS: usize = 3;
const EXPERTS: usize = 8;
const CHOSEN: usize = 3;

fn pack(team: &Team<'_>, folder: &Path) -> (ExpertSource, PackFile) {
    let source = ExpertSource::create(folder, &SourceShape::default());
    let path = folder.join("pack.cpack");
    let ledger = Ledger::unlimited();
    write_pack(source.pack_config(&path, &ledger), team, &AtomicBool::new(false), |_, _| {}).expect("packs");
    let fingerprint = Fingerprint::of(&source.files, &source.layers).expect("reads");
    let pack = PackFile::open(&path, &source.geometry(), &fingerprint).expect("opens");
    (source, pack)
}

/// Visits like those of decoding: each layer names the next one's experts, of which `right` in a hundred are asked for.
/// Returns how many experts failed.
fn decode(
    team: &Team<'_>,
    source: &ExpertSource,
    store: &mut ExpertStore,
    right: usize,
    guess: Guess,
    seed: u64,
) -> usize {
    let expected: Vec<Vec<u8>> = source.expected_records().into_values().collect();
    let mut random = Random::new(seed);
    let mut next = random.distinct(CHOSEN, EXPERTS);
    let mut failed = 0;
    for pass in 0..30 {
        for layer in 0..LAYERS {
            let experts = std::mem::replace(&mut next, random.distinct(CHOSEN, EXPERTS));
            let mut left = experts.len();
            let mut visit = store.begin(layer, &experts).expect("begins");
            let mut named = false;
            loop {
                if !named && visit.is_idle() {
                    named = true;
                    let guesses = match random.below(100) < right {
                        true => next.clone(),
                        false => random.distinct(CHOSEN, EXPERTS),
                    };
                    visit.prefetch((layer + 1) % LAYERS, guesses.into_iter(), guess);
                }
                match visit.next_ready(team) {
                    Ok(None) => break,
                    Ok(Some(ready)) => {
                        for (position, record) in ready.iter() {
                            let wanted = &expected[layer * EXPERTS + experts[position] as usize];
                            assert!(record.bytes() == wanted, "pass {pass}, layer {layer}");
                            left -= 1;
                        }
                    }
                    Err(_) => {
                        failed += 1;
                        left -= 1;
                    }
                }
            }
            assert_eq!(left, 0, "pass {pass}, layer {layer}: each expert is handed out or reported");
        }
    }
    failed
}

#[test]
fn every_record_is_as_it_is_and_all_memory_comes_back() {
    let folder = tempfile::tempdir().expect("a folder");
    Workers::new(2).enter(|team| {
        let (source, pack) = pack(team, folder.path());
        let rates = FaultRates { short: 0.2, interrupted: 0.1, ..FaultRates::default() };
        for (index, pack) in [None, Some(pack)].into_iter().enumerate() {
            for slots in [CHOSEN, CHOSEN + 1, 12, LAYERS * EXPERTS] {
                for (right, guess) in [(0, Guess::Likely), (60, Guess::Likely), (100, Guess::Certain)] {
                    for split in [1, 3] {
                        let seed = (index * 100 + slots * 10 + right + split) as u64;
                        let ledger = Ledger::unlimited();
                        let config = StoreConfig {
                            pack: pack.clone(),
                            reader: ReaderChoice::Custom(Box::new(SimulatedReader::new(seed, 16, rates))),
                            ledger: ledger.clone(),
                            read_ahead: 4,
                            split,
                            prefetch: ReadAheadMode::On,
                            ..source.store_config(slots)
                        };
                        let mut store = ExpertStore::open(config).expect("opens");
                        assert_eq!(decode(team, &source, &mut store, right, guess, seed), 0);
                        let counted = store.statistics();
                        // A pack's checksums would heal a head that got the wrong rest: the record would only be read twice.
                        assert_eq!(counted.records_read_again, 0, "the disk damages nothing: {counted:?}");
                        let all_fit = slots == LAYERS * EXPERTS;
                        assert!(all_fit || counted.prefetched > 20, "{slots} slots, {right} %: {counted:?}");
                        if right == 100 && !all_fit {
                            assert!(counted.prefetch_used * 10 >= counted.prefetched * 9, "{counted:?}");
                        }
                        drop(store);
                        assert_eq!(ledger.snapshot().used.0, 0, "all memory came back");
                    }
                }
            }
        }
    });
}

#[test]
fn wrong_guesses_share_the_slots_that_the_first_ones_took() {
    let folder = tempfile::tempdir().expect("a folder");
    Workers::new(1).enter(|team| {
        let (source, pack) = pack(team, folder.path());
        let read_ahead = 4;
        // Twelve records, and a slot for each head that can be on its way.
        let config = StoreConfig {
            pack: Some(pack),
            reader: ReaderChoice::Pread,
            read_ahead,
            prefetch: ReadAheadMode::On,
            ..source.store_config(12 + read_ahead / 2)
        };
        let mut store = ExpertStore::open(config).expect("opens");
        let experts: Vec<u32> = (0..4).collect();
        for visit in 0..300 {
            let mut visited = store.begin(visit % LAYERS, &experts).expect("begins");
            visited.prefetch((visit + 1) % LAYERS, 4..8, Guess::Likely);
            while visited.next_ready(team).expect("reads").is_some() {}
            drop(visited);
            // What a layer computes: the heads arrive meanwhile.
            std::thread::sleep(std::time::Duration::from_micros(500));
        }
        let counted = store.statistics();
        assert!(counted.prefetched > 50 && counted.prefetch_used == 0, "{counted:?}");
        assert_eq!((counted.misses, counted.evictions), (12, 0), "{counted:?}");
    });
}

#[test]
fn a_guess_that_fails_is_nobodys_error() {
    let folder = tempfile::tempdir().expect("a folder");
    Workers::new(1).enter(|team| {
        let (source, pack) = pack(team, folder.path());
        for pack in [None, Some(pack)] {
            let rates = FaultRates { broken: 0.05, ..FaultRates::default() };
            let config = |prefetch| StoreConfig {
                pack: pack.clone(),
                reader: ReaderChoice::Custom(Box::new(SimulatedReader::new(3, 16, rates))),
                read_ahead: 4,
                prefetch,
                ..source.store_config(8)
            };
            let mut store = ExpertStore::open(config(ReadAheadMode::On)).expect("opens");
            let failed = decode(team, &source, &mut store, 50, Guess::Likely, 4);
            let counted = store.statistics();
            assert!(failed > 0, "reads of records fail at that rate");
            // Each failure that is told belongs to an expert that was asked for and not in memory.
            assert!(failed as u64 <= counted.misses / 4, "{failed} of {counted:?}");
        }
    });
}
