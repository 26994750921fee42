//! One wrong bit anywhere in a pack - header, record header, weights, padding - is found before a kernel sees the record: at
//! open or when the record is read, by `verify` too. Half of the positions are chosen, half random.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use coldpress_experts::pack::{VerifyConfig, write_pack};
use coldpress_experts::{ExpertError, ExpertStore, Fingerprint, PackFile, StoreConfig};
use coldpress_memory::Ledger;
use coldpress_testkit::{ExpertSource, Random, SourceShape, visit_records};
use coldpress_workers::{Team, Workers};

/// What notices a wrong byte of the pack.
fn use_pack(team: &Team<'_>, source: &ExpertSource, path: &Path) -> Result<(), ExpertError> {
    let fingerprint = Fingerprint::of(&source.files, &source.layers)?;
    let pack = PackFile::open(path, &source.geometry(), &fingerprint)?;
    let ledger = Ledger::unlimited();
    let config =
        VerifyConfig { layers: &source.layers, files: &source.files, ledger: &ledger, read_ahead: 2 };
    let verified = pack.verify(config, team, |_, _| true);
    let mut store = ExpertStore::open(StoreConfig { pack: Some(pack), ..source.store_config(4) })?;
    let mut visited = Ok(());
    for layer in 0..source.layers.len() {
        let experts: Vec<u32> = (0..source.layers[layer].expert_count as u32).collect();
        visited = visited.and(visit_records(&mut store, team, layer, &experts).map(drop));
    }
    assert_eq!(verified.is_ok(), visited.is_ok(), "verify and use agree");
    visited
}

#[test]
fn one_bit_is_enough() {
    let folder = tempfile::tempdir().unwrap();
    let source = ExpertSource::create(folder.path(), &SourceShape { experts: 3, ..SourceShape::default() });
    let path = folder.path().join("pack.cpack");
    Workers::new(2).enter(|team| {
        let ledger = Ledger::unlimited();
        write_pack(source.pack_config(&path, &ledger), team, &AtomicBool::new(false), |_, _| {}).unwrap();
        use_pack(team, &source, &path).expect("an intact pack passes");
        let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let length = file.metadata().unwrap().len();
        let record_bytes = source.geometry().layer(0).record_bytes as u64;
        let used_bytes = source.geometry().layer(0).used_bytes as u64;
        let mut positions: Vec<u64> = (0..100).step_by(4).chain([4092, 4095]).collect();
        // The header of the second record, the edges of its matrices, its padding, the last byte of all.
        positions.extend((0..64).step_by(4).map(|at| 4096 + record_bytes + at));
        positions
            .extend([64, used_bytes - 1, used_bytes, record_bytes - 1].map(|at| 4096 + record_bytes + at));
        positions.push(length - 1);
        let mut random = Random::new(17);
        positions.extend((0..positions.len()).map(|_| random.next_u64() % length));
        assert!(positions.len() > 90);
        for position in positions {
            let mut byte = [0];
            file.read_exact_at(&mut byte, position).unwrap();
            let wrong = byte[0] ^ (1 << random.below(8));
            file.write_all_at(&[wrong], position).unwrap();
            let error = use_pack(team, &source, &path).expect_err("a wrong bit").to_string();
            assert!(error.contains("pack.cpack"), "byte {position}: {error}");
            file.write_all_at(&byte, position).unwrap();
        }
        use_pack(team, &source, &path).expect("the pack is intact again");
    });
}
