//! Rules of CONTRIBUTING.md that a program can check: length of files, module headers, where `unsafe` may stand, no
//! unfinished work.

use std::fs;
use std::path::{Path, PathBuf};

const LINES_MAX: usize = 600;

/// Places that may hold `unsafe`, as beginnings of paths below `crates/`.
const UNSAFE_ALLOWED: [&str; 5] =
    ["kernels/src/", "workers/src/", "memory/src/sys/", "experts/src/reader/", "experts/src/slots.rs"];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a readable folder") {
        let path = entry.expect("a readable entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

fn all_sources() -> Vec<(String, String)> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = Vec::new();
    sources(&crates, &mut found);
    assert!(found.len() > 50, "only {} sources found", found.len());
    let name = |path: &Path| path.strip_prefix(&crates).expect("below crates").display().to_string();
    found.iter().map(|path| (name(path), fs::read_to_string(path).expect("a readable file"))).collect()
}

#[test]
fn files_are_short_and_say_what_they_own() {
    for (name, text) in all_sources() {
        let lines = text.lines().count();
        assert!(lines <= LINES_MAX, "{name} has {lines} lines; split it along what its parts own");
        assert!(text.starts_with("//!"), "{name} does not begin with a module header");
    }
}

#[test]
fn unsafe_stands_only_where_it_may() {
    let code = |line: &str| !line.trim_start().starts_with("//");
    for (name, text) in all_sources() {
        let in_library = name.contains("/src/");
        let allowed = UNSAFE_ALLOWED.iter().any(|place| name.starts_with(place));
        let word = concat!("un", "safe ");
        let uses = text.lines().filter(|line| code(line) && line.contains(word)).count();
        assert!(!in_library || allowed || uses == 0, "{name} has {uses} lines with {word}");
    }
}

#[test]
fn nothing_is_unfinished() {
    let marks = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X"), concat!("to", "do!(")];
    for (name, text) in all_sources() {
        for mark in marks {
            assert!(!text.contains(mark), "{name} contains {mark}");
        }
    }
}

/// Test programs are listed by hand: a file that no list names would never run, and neither would tests in the sources of a crate that
/// builds none.
#[test]
fn every_test_file_runs() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for (name, text) in all_sources() {
        if let Some((package, _)) = name.split_once("/src/") {
            let manifest = fs::read_to_string(crates.join(package).join("Cargo.toml")).expect("a manifest");
            let builds_tests = !manifest.contains("[lib]\ntest = false");
            assert!(
                builds_tests || !text.contains(concat!("#[te", "st]")),
                "{name} has tests that are not built"
            );
            assert!(builds_tests || !text.contains("/// ```\n"), "{name} has examples that are not built");
        }
        // Unit tests lie below `src`.
        let Some((package, file)) = name.split_once("/tests/").filter(|(package, _)| !package.contains('/'))
        else {
            continue;
        };
        let manifest = fs::read_to_string(crates.join(package).join("Cargo.toml")).expect("a manifest");
        if file.contains('/') || !manifest.contains("autotests = false") {
            continue;
        }
        let all = fs::read_to_string(crates.join(package).join("tests/all.rs")).expect("a list");
        let module = format!("mod {};", file.trim_end_matches(".rs"));
        let listed = all.lines().any(|line| line == module);
        assert!(
            listed || manifest.contains(&format!("\"tests/{file}\"")),
            "{name} is in no list: name it in tests/all.rs"
        );
    }
}
