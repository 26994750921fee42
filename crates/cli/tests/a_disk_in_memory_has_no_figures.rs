//! `disk` gives no figure for files that lie in memory, leaves nothing behind, and says what is wrong with a bad path.
//!
//! A rate of the page cache printed as that of a disk would be believed: it is ten times what the run then gets.

use std::path::Path;

use crate::common::coldpress;

#[test]
fn and_nothing_is_left_behind() {
    let memory = Path::new("/dev/shm");
    let Ok(folder) = tempfile::tempdir_in(memory) else {
        println!("SKIPPED: there is no file system in memory");
        return;
    };
    let output = coldpress(&["disk", "--json"]).arg(folder.path()).output().expect("runs");
    let message = String::from_utf8_lossy(&output.stderr);
    if message.contains("are free") {
        println!("SKIPPED: {message}");
        return;
    }
    assert!(output.status.success(), "{message}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one object");
    assert_eq!(report["device"]["is_memory"], true);
    let figures = report["figures"].as_array().expect("a list");
    assert!(figures.len() > 20);
    for figure in figures {
        assert!(figure["bytes_per_second"].is_null() && figure["latency_us_p50"].is_null(), "{figure}");
        assert!(
            figure["not_a_figure"].as_str().is_some_and(|reason| reason.starts_with("cached")),
            "{figure}"
        );
    }
    let output = coldpress(&["disk"]).arg(folder.path()).output().expect("runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("not a figure: cached"), "{text}");
    assert_eq!(std::fs::read_dir(folder.path()).expect("readable").count(), 0, "a file was left behind");
}

#[test]
fn a_path_that_does_not_exist_is_named() {
    let output = coldpress(&["disk", "/no/such/place"]).output().expect("runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/no/such/place"));
}
