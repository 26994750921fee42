//! The committed corpus of the fuzz target holds every case that the tests know, so the fuzzer starts at each
//! known edge.
//!
//! What could go wrong: a new edge gets a test, but the fuzzer never sees it. To write the corpus anew:
//! `COLDPRESS_WRITE_CORPUS=1 cargo test -p coldpress-formats --test all fuzz_corpus_is_current`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::cases;

const LARGEST_BYTES: usize = 4096;

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/gguf")
}

/// File names with their bytes: the cases, and the fixtures written by gguf-py.
fn wanted() -> BTreeMap<String, Vec<u8>> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let fixture = |name: &str| (format!("fixture_{name}"), fs::read(fixtures.join(name)).expect("a fixture"));
    let mut wanted: BTreeMap<String, Vec<u8>> =
        cases::all().into_iter().map(|case| (case.name.to_owned(), case.bytes)).collect();
    wanted.extend(["little_endian.gguf", "big_endian.gguf", "alignment_64.gguf"].map(fixture));
    wanted
}

#[test]
fn the_corpus_equals_the_cases() {
    let wanted = wanted();
    if std::env::var_os("COLDPRESS_WRITE_CORPUS").is_some() {
        fs::remove_dir_all(corpus()).ok();
        fs::create_dir_all(corpus()).expect("a corpus folder");
        for (name, bytes) in &wanted {
            fs::write(corpus().join(name), bytes).expect("a written file");
        }
    }
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(corpus()).expect("the corpus folder") {
        let entry = entry.expect("an entry");
        let name = entry.file_name().to_string_lossy().into_owned();
        found.insert(name, fs::read(entry.path()).expect("a corpus file"));
    }
    let names = |files: &BTreeMap<String, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&found), names(&wanted));
    for (name, bytes) in &found {
        assert!(bytes == &wanted[name], "{name} differs from its case");
        assert!(bytes.len() < LARGEST_BYTES, "{name} has {} bytes", bytes.len());
    }
}
