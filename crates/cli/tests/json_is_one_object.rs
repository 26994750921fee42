//! `--json` prints one object on standard output with the promised fields, and says the same as the text.

use crate::common::{demo, object, run, run_demo, stdout};
use serde_json::Value;

#[test]
fn a_run_has_every_promised_field() {
    let arguments = [
        "--raw",
        "-p",
        "Once there was a little rabbit who",
        "--max-tokens",
        "12",
        "--cold-fraction",
        "0.75",
    ];
    let plain = stdout(&run_demo(&arguments));
    let json = object(&run_demo(&[&arguments[..], &["--json"]].concat()));
    assert_eq!(json["text"].as_str().expect("text"), plain.trim_end_matches('\n'));
    assert_eq!(json["tokens"].as_array().expect("ids").len(), 12);
    assert_eq!(json["completion_tokens"], 12);
    assert_eq!(json["finish_reason"], "length");
    assert_eq!(json["residency"], "streamed");
    assert_eq!(json["exact"], true);
    for field in [
        "/prompt_tokens",
        "/ttft_ms",
        "/prefill_tokens_per_second",
        "/decode_tokens_per_second",
        "/policy",
        "/policy_origin",
        "/prefetch/setting",
        "/prefetch/origin",
        "/reading/reader",
        "/reading/depth",
        "/reading/split",
        "/reading/access",
        "/reading/direct",
        "/reading/basis",
        "/threads",
        "/isa",
        "/budget_bytes",
        "/planned/fixed",
        "/planned/dense",
        "/planned/kv",
        "/planned/scratch",
        "/planned/slots",
        "/peak_bytes/rss",
        "/peak_bytes/anon",
        "/peak_bytes/cgroup",
        "/experts/hits",
        "/experts/misses",
        "/experts/bytes_read",
        "/experts/device_bytes_read",
        "/experts/reads",
        "/experts/prefetched",
        "/experts/prefetch_used",
        "/time_ms/disk_wait",
        "/time_ms/compute",
        "/time_ms/host",
        "/phases_ms/prefill/attention",
        "/phases_ms/decode/disk_wait",
        "/lossy",
    ] {
        assert!(json.pointer(field).is_some(), "{field} is missing in {json}");
    }
    assert!(json["experts"]["misses"].as_u64() > Some(0), "a cold cache misses");
    assert!(json["experts"]["evictions"].as_u64() > Some(0), "a small cache evicts");
    assert!(json["peak_bytes"]["rss"].as_u64() <= json["budget_bytes"].as_u64());
}

#[test]
fn plan_shows_what_run_uses() {
    let demo = demo();
    let demo = demo.to_str().expect("a UTF-8 path");
    let budget = ["--budget", "60MiB"];
    let plan = object(&run(&[&["plan", demo, "--json", "--ctx", "512"], &budget[..]].concat()));
    let ran = object(&run_demo(&[&["-p", "x", "--max-tokens", "1", "--json"], &budget[..]].concat()));
    for part in ["fixed", "dense", "kv", "scratch", "slots"] {
        assert_eq!(plan["plan"][part], ran["planned"][part], "{part}");
    }
    assert_eq!(plan["residency"], ran["residency"]);
}

#[test]
fn a_budget_may_be_a_share_of_the_model() {
    let demo = demo();
    let bytes = std::fs::metadata(&demo).expect("the model").len();
    let demo = demo.to_str().expect("a UTF-8 path");
    let planned = |budget| {
        object(&run(&["plan", demo, "--json", "--ctx", "512", "--budget", budget]))["plan"]["budget"].clone()
    };
    assert_eq!(planned("300%model"), bytes * 3);
    assert_eq!(planned("250 % model"), bytes * 5 / 2);
    let small = ["--prompt-tokens", "8", "--gen-tokens", "2", "--repeat", "1", "--json"];
    let bench = object(&run(&[&["bench", demo, "--budget", "300%model,unlimited"], &small[..]].concat()));
    assert_eq!(bench["configurations"][0]["budget_bytes"], bytes * 3);
    assert_eq!(run(&["plan", "no-such-model", "--budget", "50%model"]).status.code(), Some(4));
    assert_eq!(run(&["plan", demo, "--budget", "0%model"]).status.code(), Some(2));
}

#[test]
fn inspect_and_pack() {
    let demo = demo();
    let demo = demo.to_str().expect("a UTF-8 path");
    let inspection = object(&run(&["inspect", demo, "--json"]));
    assert_eq!(inspection["metadata"]["general.architecture"], "qwen3moe");
    assert_eq!(inspection["not_runnable"], Value::Null);
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().to_str().expect("a UTF-8 path");
    let first = object(&run(&["pack", demo, "--out", out, "--json"]));
    assert_eq!(first["records"], 256);
    assert_eq!(first["records_written"], 256);
    assert_eq!(object(&run(&["pack", demo, "--out", out, "--json"]))["records_written"], 0);
    let path = first["path"].as_str().expect("a path");
    assert_eq!(object(&run(&["pack", demo, "--out", out, "--verify", "--json"]))["records"], 256);
    let packed = object(&run_demo(&[
        "-p",
        "x",
        "--max-tokens",
        "3",
        "--json",
        "--pack",
        path,
        "--cold-fraction",
        "0.9",
    ]));
    let unpacked = object(&run_demo(&["-p", "x", "--max-tokens", "3", "--json", "--cold-fraction", "0.9"]));
    assert_eq!(packed["tokens"], unpacked["tokens"]);
    assert!(
        packed["experts"]["reads"].as_u64() < unpacked["experts"]["reads"].as_u64(),
        "one read per expert"
    );
}

#[test]
fn a_pack_that_fills_serves_the_next_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let demo = demo();
    let demo = demo.to_str().expect("a UTF-8 path");
    let run = || {
        let mut command = crate::common::coldpress(&[
            "run",
            demo,
            "-p",
            "x",
            "--max-tokens",
            "8",
            "--ctx",
            "128",
            "--json",
            "--cold-fraction",
            "0.9",
        ]);
        command.env("COLDPRESS_PRESTACK", "lazy").env("COLDPRESS_PRESTACK_CACHE_DIR", folder.path());
        let output = command.output().expect("the program starts");
        let notes = String::from_utf8_lossy(&output.stderr).into_owned();
        (object(&output), notes)
    };
    let ((first, notes), (second, _)) = (run(), run());
    assert_eq!(notes.matches(".cpack.partial").count(), 1, "one line announces it: {notes}");
    assert_eq!(first["tokens"], second["tokens"]);
    let count = |run: &Value, name: &str| run["experts"][name].as_u64().expect("a number");
    assert!(count(&first, "lazy_writes") > 0 || notes.contains("not added to it"), "{first} {notes}");
    assert_eq!(count(&first, "lazy_writes") > 0, count(&second, "lazy_reads") > 0, "{first} {second}");
}

#[test]
fn a_pack_built_before_the_first_token_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let demo = demo();
    let arguments = [
        "run",
        demo.to_str().expect("a UTF-8 path"),
        "-p",
        "x",
        "--max-tokens",
        "2",
        "--ctx",
        "128",
        "--json",
    ];
    let run = || {
        let mut command = crate::common::coldpress(&arguments);
        command.env("COLDPRESS_PRESTACK", "1").env("COLDPRESS_PRESTACK_CACHE_DIR", folder.path());
        object(&command.output().expect("the program starts"))
    };
    let (first, second) = (run(), run());
    assert!(first["pack"].as_str().expect("a path").ends_with(".cpack"), "{first}");
    assert_eq!(first["pack"], second["pack"]);
    assert_eq!(first["tokens"], second["tokens"]);
}
