//! A pack that does not belong to the model, is from another version, was cut short or never finished is refused at open; the
//! message names the file, what is wrong, and what to do. A pack of the same shapes but other weights is the dangerous one.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use coldpress_experts::pack::{VerifyConfig, partial_path, write_pack};
use coldpress_experts::{ExpertError, Fingerprint, PackFault, PackFile};
use coldpress_memory::Ledger;
use coldpress_testkit::{ExpertSource, SourceShape, crc32c};
use coldpress_workers::{Team, Workers};

fn make(team: &Team<'_>, folder: &Path, shape: &SourceShape) -> (ExpertSource, std::path::PathBuf) {
    std::fs::create_dir_all(folder).unwrap();
    let source = ExpertSource::create(folder, shape);
    let path = folder.join("pack.cpack");
    let ledger = Ledger::unlimited();
    write_pack(source.pack_config(&path, &ledger), team, &AtomicBool::new(false), |_, _| {}).unwrap();
    (source, path)
}

fn open(source: &ExpertSource, path: &Path) -> Result<PackFile, ExpertError> {
    PackFile::open(path, &source.geometry(), &Fingerprint::of(&source.files, &source.layers)?)
}

/// Changes a field of the header and makes its checksum right again.
fn forge(bytes: &[u8], at: usize, value: u32) -> Vec<u8> {
    let mut forged = bytes.to_vec();
    forged[at..at + 4].copy_from_slice(&value.to_le_bytes());
    let checksum = crc32c(&forged[..4092]);
    forged[4092..4096].copy_from_slice(&checksum.to_le_bytes());
    forged
}

#[test]
fn every_kind_of_wrong_file_has_its_message() {
    let folder = tempfile::tempdir().unwrap();
    Workers::new(2).enter(|team| {
        let (source, path) = make(team, &folder.path().join("a"), &SourceShape::default());
        let good = std::fs::read(&path).unwrap();
        let spoiled = folder.path().join("spoiled.cpack");
        let longer = [good.as_slice(), &[0; 4096]].concat();
        let mut damaged = good.clone();
        damaged[2000] ^= 1;
        let cases: Vec<(Vec<u8>, &str)> = vec![
            (damaged, "the header is damaged"),
            (vec![], "not a coldpress pack file"),
            (b"GGUF".repeat(2000), "not a coldpress pack file"),
            (good[..90].to_vec(), "not a coldpress pack file"),
            (good[..2000].to_vec(), "2000 bytes long, wanted 4096"),
            (good[..4096].to_vec(), "4096 bytes long, wanted"),
            (good[..good.len() - 1].to_vec(), "cut short"),
            (longer, "cut short or extended"),
            (forge(&good, 8, 2), "version 2, this program reads 1"),
            (forge(&good, 12, 9), "layout 9, this program reads 1"),
            (forge(&good, 16, 1 << 30), "its header claims 1073741824 bytes"),
            (forge(&good, 40, 0), "never finished"),
            (forge(&good, 40, 7), "never finished"),
            (forge(&good, 48, 7), "other weights of the same shape"),
            (forge(&good, 80, 2), "2 routed layers, this model has 3"),
            (forge(&good, 80, u32::MAX), "4294967295 routed layers"),
            (forge(&good, 96, 9), "routed layer 0"),
            (forge(&good, 24, 1), "must be zero"),
        ];
        for (bytes, wanted) in cases {
            std::fs::write(&spoiled, bytes).unwrap();
            let message = open(&source, &spoiled).expect_err(wanted).to_string();
            assert!(
                message.contains("spoiled.cpack") && message.contains(wanted),
                "wanted {wanted:?}: {message}"
            );
            let advice = message.contains("coldpress pack");
            assert!(advice, "the message says what to do: {message}");
        }
        let missing = open(&source, &folder.path().join("none.cpack")).expect_err("missing").to_string();
        assert!(missing.contains("none.cpack"), "{missing}");
        assert!(missing.contains("run `coldpress pack MODEL` again, or remove the file"), "{missing}");
    });
}

#[test]
fn a_pack_of_other_weights_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    Workers::new(2).enter(|team| {
        let (_, path) = make(team, &folder.path().join("a"), &SourceShape::default());
        let (other, _) =
            make(team, &folder.path().join("b"), &SourceShape { seed: 2, ..SourceShape::default() });
        let fault = open(&other, &path).expect_err("other weights");
        assert!(matches!(fault, ExpertError::Pack { fault: PackFault::Fingerprint { .. }, .. }), "{fault}");
        let wider = SourceShape { inner: 512, ..SourceShape::default() };
        let (wider, _) = make(team, &folder.path().join("c"), &wider);
        let fault = open(&wider, &path).expect_err("other shapes");
        assert!(matches!(fault, ExpertError::Pack { fault: PackFault::Geometry { .. }, .. }), "{fault}");
    });
}

/// The fingerprint samples; a change between the samples is for `verify_against_source`.
#[test]
fn a_pack_of_slightly_other_weights_is_found_by_comparing() {
    let folder = tempfile::tempdir().unwrap();
    Workers::new(2).enter(|team| {
        let (source, path) = make(team, folder.path(), &SourceShape::default());
        let ledger = Ledger::unlimited();
        let config =
            VerifyConfig { layers: &source.layers, files: &source.files, ledger: &ledger, read_ahead: 2 };
        open(&source, &path).unwrap().verify_against_source(config, team, |_, _| true).expect("the same");
        let file = source.layers[1].up.file;
        let mut bytes = std::fs::read(&source.files[file].path).unwrap();
        let at = source.layers[1].up.offsets.offset(2).unwrap() as usize + 9000;
        bytes[at] ^= 1;
        std::fs::write(&source.files[file].path, bytes).unwrap();
        let pack = open(&source, &path).expect("no sample lies there");
        pack.verify(config, team, |_, _| true).expect("the pack itself is whole");
        let message = pack.verify_against_source(config, team, |_, _| true).expect_err("differs").to_string();
        assert!(message.contains("routed layer 1 expert 2 differs"), "{message}");
    });
}

#[test]
fn a_partial_pack_of_another_model_is_started_anew() {
    let folder = tempfile::tempdir().unwrap();
    Workers::new(2).enter(|team| {
        let (_, path) = make(team, &folder.path().join("a"), &SourceShape::default());
        let (other, wanted) =
            make(team, &folder.path().join("b"), &SourceShape { seed: 2, ..SourceShape::default() });
        let destination = folder.path().join("c.cpack");
        std::fs::copy(&path, partial_path(&destination)).unwrap();
        let ledger = Ledger::unlimited();
        let config = other.pack_config(&destination, &ledger);
        let report = write_pack(config, team, &AtomicBool::new(false), |_, _| {}).unwrap();
        assert_eq!((report.records_written, report.records_kept), (24, 0));
        assert!(std::fs::read(&destination).unwrap() == std::fs::read(&wanted).unwrap());
    });
}

#[test]
fn a_pipe_is_refused_and_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let source = ExpertSource::create(folder.path(), &SourceShape::default());
    let pipe = folder.path().join("pipe.cpack");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let message = open(&source, &pipe).expect_err("no pack").to_string();
    assert!(message.contains("pipe.cpack") && message.contains("not a regular file"), "{message}");
}
