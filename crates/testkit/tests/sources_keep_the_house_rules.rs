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
