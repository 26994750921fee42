//! What `tune` finds is used by later runs, a variable wins over it and a flag over both, and `plan` says whose word counts,
//! for the policy and for reading ahead each by itself. A profile that makes no sense is ignored with a note.

use std::path::Path;

use crate::common::{coldpress, demo, object, stderr};
use serde_json::{Value, json};

fn about_demo(
    command: &str,
    folder: &Path,
    variables: &[(&str, &str)],
    arguments: &[&str],
) -> std::process::Output {
    let demo = demo();
    let mut all =
        vec![command, demo.to_str().expect("a UTF-8 path"), "--cold-fraction", "0.75", "--ctx", "512"];
    all.extend(arguments);
    let mut command = coldpress(&all);
    command.env("COLDPRESS_PRESTACK_CACHE_DIR", folder).envs(variables.iter().copied());
    command.output().expect("the program starts")
}

/// Policy and prefetch of the plan, each with its origin.
fn planned(folder: &Path, variables: &[(&str, &str)], arguments: &[&str]) -> [String; 2] {
    let plan = object(&about_demo("plan", folder, variables, &[arguments, &["--json"]].concat()));
    let word = |path: &str| plan.pointer(path).and_then(Value::as_str).expect("a word").to_owned();
    [
        format!("{} {}", word("/policy/name"), word("/policy/origin")),
        format!("{} {}", word("/policy/prefetch/setting"), word("/policy/prefetch/origin")),
    ]
}

#[test]
fn default_profile_environment_flag() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    assert_eq!(planned(folder, &[], &[]), ["per-layer-lfu default", "auto default"]);
    let tuned = object(&about_demo("tune", folder, &[], &["--gen-tokens", "20", "--json"]));
    let path = tuned["path"].as_str().expect("a path").to_owned();
    let word = |key: &str| tuned["profile"][key].as_str().expect("a name").to_owned();
    let (policy, prefetch) = (word("policy"), word("prefetch"));
    assert_eq!(planned(folder, &[], &[]), [format!("{policy} profile"), format!("{prefetch} profile")]);
    for way in ["off", "on"] {
        let rates = tuned["prefetch"][way].as_array().expect("stretches");
        assert_eq!(rates.len(), 4);
        assert!(rates.iter().all(|rate| rate.as_f64() > Some(0.0)), "{tuned}");
    }
    assert_eq!(tuned["prefetch"]["tokens"], 19);
    assert!(tuned["reading"]["reader"] != "auto" && tuned["reading"]["basis"].is_string(), "{tuned}");

    let write = |policy: &str, prefetch: &str| {
        let mut profile = tuned["profile"].clone();
        profile["policy"] = json!(policy);
        profile["prefetch"] = json!(prefetch);
        std::fs::write(&path, profile.to_string()).expect("written");
    };
    write("global-lru", "off");
    assert_eq!(planned(folder, &[], &[]), ["global-lru profile", "off profile"]);
    let variables = [("COLDPRESS_POLICY", "least-stale"), ("COLDPRESS_PREFETCH", "on")];
    assert_eq!(planned(folder, &variables, &[]), ["least-stale environment", "on environment"]);
    assert_eq!(planned(folder, &variables[1..], &[]), ["global-lru profile", "on environment"]);
    let flags = ["--policy", "per-layer-s3-fifo", "--prefetch", "auto"];
    assert_eq!(planned(folder, &variables, &flags), ["per-layer-s3-fifo flag", "auto flag"]);
    assert_eq!(planned(folder, &[], &flags[..2]), ["per-layer-s3-fifo flag", "off profile"]);

    let bench = object(&about_demo_bench(folder, &["--json"]));
    let configuration = &bench["configurations"][0];
    assert_eq!(configuration["policy"], "global-lru");
    assert_eq!(configuration["policy_origin"], "profile");
    assert_eq!(configuration["prefetch"], json!({ "setting": "off", "origin": "profile" }));
    let ran = object(&about_demo("run", folder, &[], &["--raw", "-p", "A", "--max-tokens", "2", "--json"]));
    assert_eq!(ran["prefetch"], json!({ "setting": "off", "origin": "profile" }));
    assert_eq!(ran["experts"]["prefetched"], 0);
}

fn about_demo_bench(folder: &Path, arguments: &[&str]) -> std::process::Output {
    let demo = demo();
    let small = ["--prompt-tokens", "8", "--gen-tokens", "4", "--repeat", "1", "--cold-fraction", "0.75"];
    let mut all = vec!["bench", demo.to_str().expect("a UTF-8 path")];
    all.extend(small.iter().chain(arguments));
    let mut command = coldpress(&all);
    command.env("COLDPRESS_PRESTACK_CACHE_DIR", folder);
    command.output().expect("the program starts")
}

#[test]
fn a_profile_that_makes_no_sense_is_ignored_with_a_note() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let tuned = object(&about_demo("tune", folder, &[], &["--gen-tokens", "2", "--json"]));
    let path = tuned["path"].as_str().expect("a path").to_owned();
    assert_eq!(tuned["profile"]["prefetch"], "auto", "one decoded token says nothing");
    let with = |key: &str, value: Value| {
        let mut profile = tuned["profile"].clone();
        profile[key] = value;
        profile.to_string()
    };
    let without = |key: &str| {
        let mut profile = tuned["profile"].clone();
        profile.as_object_mut().expect("an object").remove(key);
        profile.to_string()
    };
    let bad = [
        (with("policy", json!("no-such-policy")), "no-such-policy"),
        (with("policy", json!("\u{1b}[2J")), "is not a policy"),
        (with("prefetch", json!("sometimes")), "sometimes"),
        (with("prefetch", json!(1)), "not used"),
        (without("prefetch"), "prefetch"),
        (with("version", json!(1)), "of version 1"),
        (with("version", json!(u64::MAX)), "of version"),
        (with("version", json!(-1)), "not used"),
        (with("fingerprint", json!("0")), "another model"),
        (with("slots", json!(1e99)), "not used"),
        (String::new(), "not used"),
        ("[".repeat(100_000), "not used"),
        ("{".to_owned() + &" ".repeat(1 << 20) + "}", "not used"),
    ];
    let run = || about_demo("run", folder, &[], &["--raw", "-p", "A", "--max-tokens", "1"]);
    for (text, word) in bad {
        std::fs::write(&path, text).expect("written");
        assert_eq!(planned(folder, &[], &[]), ["per-layer-lfu default", "auto default"], "{word}");
        let output = run();
        let said = stderr(&output);
        assert!(output.status.success() && said.contains(word) && said.contains("profile"), "{word}: {said}");
        assert!(!said.contains('\u{1b}'), "{said:?}");
    }
    std::fs::remove_file(&path).expect("removed");
    std::fs::create_dir(&path).expect("a folder in its place");
    assert!(stderr(&run()).contains("not a regular file"));
}
