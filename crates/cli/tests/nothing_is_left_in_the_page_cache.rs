//! After a command, no page of the model or of its pack is left in the page cache: reads that fill it push out what the budget
//! promised to leave alone, and inside a memory limit they are charged to us.
//!
//! What went wrong: headers were read with the system's read-ahead, which left up to megabytes behind each start; fingerprints
//! gave back what they had read and not what had been read ahead of them; the header of a finished pack stayed.
//! `--residency paged` and `mapped` use the page cache by design and are not asked here.
#![cfg(target_os = "linux")]

mod common;

use std::fs::File;
use std::path::{Path, PathBuf};

use coldpress_memory::sys;
use common::{coldpress, demo, stderr};

/// Bytes of `path` in the page cache; none of a file that does not exist.
fn cached(path: &Path) -> u64 {
    File::open(path).map_or(0, |file| sys::page_cache_bytes(&file, u64::MAX).expect("figures").0)
}

/// A folder on a disk with a copy of the bundled model that nothing holds in memory; `None` where there is no disk.
fn cold_model() -> Option<(tempfile::TempDir, PathBuf)> {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let model = folder.path().join("model.gguf");
    std::fs::copy(demo(), &model).expect("a copy");
    if sys::device_facts(&model).expect("facts").is_memory {
        println!("SKIPPED: the target folder lies in memory, where files are the page cache");
        return None;
    }
    let file = File::options().read(true).write(true).open(&model).expect("the copy");
    sys::sync_file(&file).expect("synced");
    sys::drop_page_cache(&file, 0..u64::MAX / 2).expect("dropped");
    assert_eq!(cached(&model), 0, "the copy cannot be dropped from the page cache");
    Some((folder, model))
}

/// Runs a command on the model with `cache` as its cache folder, and fails if it leaves pages of one of the files.
fn leaves_nothing(cache: &Path, prestack: &str, arguments: &[&str], files: &[(&Path, u64)]) {
    let output = coldpress(arguments)
        .env("COLDPRESS_PRESTACK_CACHE_DIR", cache)
        .env("COLDPRESS_PRESTACK", prestack)
        .output()
        .expect("runs");
    assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
    for (file, bytes_max) in files {
        let left = cached(file);
        assert!(
            left <= *bytes_max,
            "{arguments:?} left {left} bytes of {} in the page cache",
            file.display()
        );
    }
}

const PROMPT: &str = "The old house stood at the end of the lane, and";

#[test]
fn by_any_command_on_a_model_and_its_pack() {
    let Some((folder, model)) = cold_model() else { return };
    let text = |path: &Path| path.to_str().expect("a UTF-8 path").to_owned();
    let (pack, trace) = (folder.path().join("model.cpack"), folder.path().join("a.cptrace"));
    let (name, pack_name, trace_name) = (text(&model), text(&pack), text(&trace));
    let none = folder.path().join("no-cache");
    let both = [(model.as_path(), 0), (pack.as_path(), 0)];
    let run = ["run", &name, "--raw", "-p", PROMPT, "--max-tokens", "16", "--ctx", "512"];
    let cold = ["--cold-fraction", "0.75"];
    let packed = ["--pack", &pack_name];
    let commands: Vec<Vec<&str>> = vec![
        vec!["inspect", &name],
        vec!["plan", &name],
        vec!["plan", &name, "--no-probe", "--budget", "40MiB", "--ctx", "256"],
        run.to_vec(),
        [&run[..], &cold].concat(),
        [&run[..], &cold, &["--reader", "pread"]].concat(),
        vec!["pack", &name, "--out", &pack_name],
        vec!["pack", &name, "--out", &pack_name],
        vec!["pack", &name, "--out", &pack_name, "--verify"],
        [&run[..], &packed].concat(),
        [&run[..], &packed, &cold].concat(),
        [&["trace"][..], &run[1..5], &cold, &["--gen-tokens", "16", "--out", &trace_name]].concat(),
        [
            &["bench", &name, "--prompt-tokens", "64", "--gen-tokens", "8", "--repeat", "1"][..],
            &cold,
            &packed,
        ]
        .concat(),
        vec!["doctor", &name],
    ];
    for arguments in commands {
        leaves_nothing(&none, "0", &arguments, &both);
    }
    // What is there of an unfinished pack is read to find out what is missing.
    let partial = folder.path().join("model.cpack.partial");
    std::fs::rename(&pack, &partial).expect("renamed");
    leaves_nothing(&none, "0", &["pack", &name, "--out", &pack_name], &both);
}

#[test]
fn while_packs_are_built_or_filled_and_hotlists_kept() {
    let Some((folder, model)) = cold_model() else { return };
    let name = model.to_str().expect("a UTF-8 path");
    let run =
        ["run", name, "--raw", "-p", PROMPT, "--max-tokens", "32", "--ctx", "512", "--cold-fraction", "0.75"];
    let packs = |cache: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(cache).expect("a cache folder").flatten().map(|entry| entry.path());
        entries.filter(|path| path.to_string_lossy().contains(".cpack")).collect()
    };
    // One page of header and one with a byte per record: written one byte at a time, so not past the cache.
    for (prestack, bytes_max) in [("lazy", 32 << 10), ("1", 0)] {
        let cache = folder.path().join(prestack);
        for _start in 0..2 {
            leaves_nothing(&cache, prestack, &run, &[(&model, 0)]);
            let found = packs(&cache);
            assert_eq!(found.len(), 1, "{prestack}: {found:?}");
            let left = cached(&found[0]);
            assert!(left <= bytes_max, "{prestack}: {left} bytes of {} left", found[0].display());
        }
    }
}

/// Where direct reads are refused, or buffered ones were measured to be faster, reads give their pages back. A remembered
/// measurement asks for that here, because a file system that refuses direct reads is hard to come by.
#[test]
fn by_buffered_reads_either() {
    let Some((folder, model)) = cold_model() else { return };
    let device = sys::device_facts(&model).expect("facts");
    let cache = folder.path().join("cache");
    std::fs::create_dir(&cache).expect("a folder");
    for class in 12..31 {
        let entry = format!(
            r#"{{"version":1,"device":{},"file_system":{},"file_system_bytes":{},"size_class":{class},"uring":false,"depth":4,"split":1,"access":"dropped","bytes_per_second":1e9}}"#,
            device.device, device.file_system, device.bytes.0
        );
        let place = cache.join(format!("disk-{:x}-{class}-model.json", device.device));
        std::fs::write(place, entry).expect("writes");
    }
    let name = model.to_str().expect("a UTF-8 path");
    let run = ["run", name, "--raw", "-p", PROMPT, "--max-tokens", "32", "--ctx", "512", "--json"];
    for share in ["0", "0.75"] {
        let arguments = [&run[..], &["--cold-fraction", share]].concat();
        leaves_nothing(&cache, "0", &arguments, &[(&model, 0)]);
        let output =
            coldpress(&arguments).env("COLDPRESS_PRESTACK_CACHE_DIR", &cache).output().expect("runs");
        let report = common::object(&output);
        assert_eq!(
            report["reading"]["access"], "dropped",
            "the reads were not buffered: {}",
            report["reading"]
        );
    }
}
