//! A run remembers which experts it used, the next one starts with them in free slots, and the text stays the same. A hotlist
//! that is damaged or belongs to another model is ignored with a note, and `COLDPRESS_HOTLIST=0` leaves none behind.

use std::path::{Path, PathBuf};

use crate::common::{coldpress, demo, object, stderr};

fn run(folder: &Path, hotlist: &str) -> (serde_json::Value, String) {
    let demo = demo();
    let arguments = [
        "run",
        demo.to_str().expect("a UTF-8 path"),
        "--raw",
        "--cold-fraction",
        "0.5",
        "--ctx",
        "256",
        "--max-tokens",
        "24",
        "--prefetch",
        "off",
        "--json",
        "-p",
        "The old house stood at the end of the lane, and",
    ];
    let output = coldpress(&arguments)
        .env("COLDPRESS_PRESTACK_CACHE_DIR", folder)
        .env("COLDPRESS_HOTLIST", hotlist)
        .output()
        .expect("the program starts");
    (object(&output), stderr(&output))
}

fn hotlists(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| path.extension().is_some_and(|extension| extension == "hotlist")).collect()
}

#[test]
fn and_changes_no_text() {
    let folder = tempfile::tempdir().expect("a folder");
    let (cold, _) = run(folder.path(), "0");
    assert!(hotlists(folder.path()).is_empty());
    let (first, _) = run(folder.path(), "1");
    let (warm, notes) = run(folder.path(), "1");
    let misses = |report: &serde_json::Value| report["experts"]["misses"].as_u64().expect("a count");
    assert_eq!(cold["text"], first["text"]);
    assert_eq!(cold["text"], warm["text"]);
    assert_eq!(misses(&cold), misses(&first));
    assert!(misses(&warm) + 40 < misses(&cold), "{} and {}", misses(&warm), misses(&cold));
    assert!(!notes.contains("hotlist"), "{notes}");

    let path = hotlists(folder.path()).pop().expect("a hotlist");
    let good = std::fs::read(&path).expect("a file");
    let mut foreign = good.clone();
    foreign[20] ^= 1;
    let mut flipped = good.clone();
    flipped[60] ^= 1;
    for bad in [&[][..], &good[..good.len() - 1], &foreign, &flipped, &vec![0xff; 1 << 20]] {
        std::fs::write(&path, bad).expect("written");
        let (report, notes) = run(folder.path(), "1");
        assert_eq!(report["text"], cold["text"]);
        assert_eq!(misses(&report), misses(&cold));
        assert!(notes.contains("hotlist"), "{notes}");
        assert_ne!(std::fs::read(&path).expect("a file"), bad, "replaced by a good one");
    }
}
