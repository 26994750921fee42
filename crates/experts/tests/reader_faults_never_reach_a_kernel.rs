//! Readers that stop short, get interrupted, fail and deliver wrong bits: transient faults are retried, the others end in an
//! error that names file and place, no wrong record is ever handed out, and the store goes on working.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use coldpress_experts::pack::write_pack;
use coldpress_experts::reader::PreadPool;
use coldpress_experts::{
    ExpertError, ExpertKey, ExpertStore, Fingerprint, PackFile, ReaderChoice, StoreConfig,
};
use coldpress_memory::Ledger;
use coldpress_testkit::{
    ExpertSource, FaultRates, FaultyReader, Random, SimulatedReader, SourceShape, visit_records,
};
use coldpress_workers::{Team, Workers};

fn pack(team: &Team<'_>, folder: &Path) -> (ExpertSource, PackFile) {
    let source = ExpertSource::create(folder, &SourceShape::default());
    let path = folder.join("pack.cpack");
    let ledger = Ledger::unlimited();
    write_pack(source.pack_config(&path, &ledger), team, &AtomicBool::new(false), |_, _| {}).unwrap();
    let fingerprint = Fingerprint::of(&source.files, &source.layers).unwrap();
    let pack = PackFile::open(&path, &source.geometry(), &fingerprint).unwrap();
    (source, pack)
}

/// Many visits over a reader with `rates`; returns the number of failed experts.
fn stress(team: &Team<'_>, source: &ExpertSource, pack: Option<PackFile>, rates: FaultRates) -> usize {
    let reader = ReaderChoice::Custom(Box::new(SimulatedReader::new(11, 9, rates)));
    let mut store = ExpertStore::open(StoreConfig { reader, pack, ..source.store_config(5) }).unwrap();
    let expected: Vec<Vec<u8>> = source.expected_records().into_values().collect();
    let mut random = Random::new(2);
    let mut failed = 0;
    for round in 0..400 {
        let layer = round % 3;
        let experts = random.distinct(6, 8);
        let mut seen = BTreeSet::new();
        let mut errors = 0;
        let mut visit = store.begin(layer, &experts).unwrap();
        loop {
            match visit.next_ready(team) {
                Ok(None) => break,
                Ok(Some(ready)) => {
                    for (position, record) in ready.iter() {
                        assert!(seen.insert(position));
                        assert!(record.bytes() == expected[layer * 8 + experts[position] as usize]);
                    }
                }
                Err(error) => {
                    errors += 1;
                    assert!(matches!(error, ExpertError::Io { .. } | ExpertError::Damaged { .. }), "{error}");
                }
            }
        }
        assert_eq!(seen.len() + errors, experts.len(), "each expert is handed out or reported");
        failed += errors;
    }
    failed
}

#[test]
fn random_faults_are_retried_or_reported() {
    let folder = tempfile::tempdir().unwrap();
    Workers::new(2).enter(|team| {
        let (source, pack) = pack(team, folder.path());
        let transient = FaultRates { short: 0.3, interrupted: 0.2, again: 0.1, ..FaultRates::default() };
        assert_eq!(stress(team, &source, None, transient), 0, "transient faults are not errors");
        assert_eq!(
            stress(team, &source, Some(pack.clone()), transient),
            0,
            "transient faults are not errors"
        );
        let broken = FaultRates { broken: 0.05, ..transient };
        assert!(stress(team, &source, None, broken) > 0);
        let flipped = FaultRates { flipped: 0.2, broken: 0.02, ..transient };
        assert!(stress(team, &source, Some(pack), flipped) > 0);
    });
}

#[test]
fn a_wrong_record_is_read_again_once() {
    let folder = tempfile::tempdir().unwrap();
    Workers::new(1).enter(|team| {
        let (source, pack) = pack(team, folder.path());
        for (wrong_reads, survives) in [(1, true), (2, false)] {
            let mut left = wrong_reads;
            let reader = FaultyReader::new(Box::new(PreadPool::new(1, 8).unwrap()), move |completion| {
                if left > 0 {
                    left -= 1;
                    completion.request.memory[5000] ^= 4;
                }
            });
            let reader = ReaderChoice::Custom(Box::new(reader));
            let pack = Some(pack.clone());
            let mut store =
                ExpertStore::open(StoreConfig { reader, pack, ..source.store_config(2) }).unwrap();
            let first = visit_records(&mut store, team, 1, &[3]);
            assert_eq!(store.statistics().records_read_again, 1);
            if !survives {
                let message = first.as_ref().expect_err("wrong twice").to_string();
                for part in ["pack.cpack", "routed layer 1 expert 3", "damaged", "checksum", "coldpress pack"]
                {
                    assert!(message.contains(part), "{message}");
                }
            }
            assert_eq!(first.is_ok(), survives);
            let records = visit_records(&mut store, team, 1, &[3]).unwrap();
            assert!(
                records[&3] == source.expected_records()[&ExpertKey { layer: 1, expert: 3 }],
                "usable after the error"
            );
        }
    });
}

#[test]
fn errors_name_file_and_offset() {
    let folder = tempfile::tempdir().unwrap();
    let source = ExpertSource::create(folder.path(), &SourceShape { files: 1, ..SourceShape::default() });
    let path: PathBuf = source.files[0].path.clone();
    Workers::new(1).enter(|team| {
        for reader in [ReaderChoice::Auto, ReaderChoice::Pread] {
            let mut store = ExpertStore::open(StoreConfig { reader, ..source.store_config(4) }).unwrap();
            // The file shrinks behind the back of the open store.
            let whole = std::fs::read(&path).unwrap();
            let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
            file.set_len(whole.len() as u64 / 2).unwrap();
            let message = visit_records(&mut store, team, 2, &[7]).expect_err("beyond the end").to_string();
            assert!(message.contains(path.to_str().unwrap()) && message.contains("cut short"), "{message}");
            std::fs::write(&path, &whole).unwrap();
            visit_records(&mut store, team, 2, &[7]).expect("usable again");
        }
    });
}
