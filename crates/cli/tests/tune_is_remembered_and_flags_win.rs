//! What `tune` finds is used by later runs, a variable wins over it and a flag over both, and `plan` says whose word counts.
//! A profile that makes no sense is ignored with a note.

mod common;

use std::path::Path;

use common::{coldpress, demo, object, stderr};

fn about_demo(
    command: &str,
    folder: &Path,
    policy: Option<&str>,
    arguments: &[&str],
) -> std::process::Output {
    let demo = demo();
    let mut all =
        vec![command, demo.to_str().expect("a UTF-8 path"), "--cold-fraction", "0.75", "--ctx", "512"];
    all.extend(arguments);
    let mut command = coldpress(&all);
    command.env("COLDPRESS_PRESTACK_CACHE_DIR", folder);
    if let Some(policy) = policy {
        command.env("COLDPRESS_POLICY", policy);
    }
    command.output().expect("the program starts")
}

fn planned(folder: &Path, policy: Option<&str>, arguments: &[&str]) -> (String, String) {
    let plan = object(&about_demo("plan", folder, policy, &[arguments, &["--json"]].concat()));
    let word = |key: &str| plan["policy"][key].as_str().expect("a word").to_owned();
    (word("name"), word("origin"))
}

#[test]
fn default_profile_environment_flag() {
    let folder = tempfile::tempdir().expect("a folder");
    let of = |name: &str, origin: &str| (name.to_owned(), origin.to_owned());
    assert_eq!(planned(folder.path(), None, &[]), of("per-layer-lfu", "default"));
    let tuned = object(&about_demo("tune", folder.path(), None, &["--gen-tokens", "20", "--json"]));
    let path = tuned["path"].as_str().expect("a path").to_owned();
    let best = tuned["profile"]["policy"].as_str().expect("a name").to_owned();
    assert_eq!(planned(folder.path(), None, &[]), of(&best, "profile"));

    let text = std::fs::read_to_string(&path).expect("the profile");
    std::fs::write(&path, text.replace(&best, "global-lru")).expect("written");
    assert_eq!(planned(folder.path(), None, &[]), of("global-lru", "profile"));
    assert_eq!(planned(folder.path(), Some("least-stale"), &[]), of("least-stale", "environment"));
    let flag = ["--policy", "per-layer-s3-fifo"];
    assert_eq!(planned(folder.path(), Some("least-stale"), &flag), of("per-layer-s3-fifo", "flag"));

    std::fs::write(&path, text.replace(&best, "no-such-policy")).expect("written");
    assert_eq!(planned(folder.path(), None, &[]), of("per-layer-lfu", "default"));
    let run = about_demo("run", folder.path(), None, &["--raw", "-p", "A", "--max-tokens", "2"]);
    assert!(stderr(&run).contains("no-such-policy"), "{}", stderr(&run));
}
