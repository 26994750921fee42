//! Lossy settings are never a default, are shown wherever a run shows its settings, and `eval` says what they cost.
//!
//! What could go wrong: a profile that switches one on, a final line or an object that does not say it, an `eval` of nothing that looks
//! like a success, a hang or a panic on files that are no text.

use crate::common::{about_demo, coldpress, demo, object, run_demo, stderr, stdout};

#[test]
fn lossy_is_said_in_every_place() {
    let answer = ["--raw", "-p", "The old house", "--max-tokens", "3"];
    let exact = object(&run_demo(&[&answer[..], &["--json"]].concat()));
    assert_eq!((&exact["exact"], exact["lossy"].as_array().map(Vec::len)), (&true.into(), Some(0)));
    let lossy = object(&run_demo(&[&answer[..], &["--json", "--kv", "q4"]].concat()));
    assert_eq!((&lossy["exact"], &lossy["lossy"][0]), (&false.into(), &"kv q4".into()));
    let line = stderr(&run_demo(&[&answer[..], &["--kv", "q8"]].concat()));
    assert!(line.trim_end().ends_with("lossy: kv q8"), "{line}");
    assert!(!stderr(&run_demo(&answer)).contains("lossy"));
    let plan = about_demo("plan", &["--no-probe", "--kv", "q4"]);
    assert!(stdout(&plan).contains("lossy: kv q4"), "{}", stdout(&plan));
    let plan = object(&about_demo("plan", &["--no-probe", "--kv", "q4", "--json"]));
    assert_eq!(plan["lossy"][0], "kv q4");
}

/// Routing that reads less is said like a smaller KV cache; as many experts as the model says are no news.
#[test]
fn lossy_routing_is_said_in_every_place() {
    let plan = |more: &[&str]| object(&about_demo("plan", &[&["--no-probe", "--json"], more].concat()));
    let trained = plan(&[])["model"]["experts_per_token"].as_u64().expect("a number");
    let (fewer, same, more) = ((trained - 1).to_string(), trained.to_string(), (trained + 1).to_string());
    let words = format!("{fewer} of {trained} experts per token");
    let answer = ["--raw", "-p", "The old house", "--max-tokens", "3", "--cold-fraction", "0.75"];
    let both = [&answer[..], &["--experts-per-token", &fewer, "--cache-bias", "0.1"]].concat();
    let found = object(&run_demo(&[&both[..], &["--json"]].concat()));
    assert_eq!(found["exact"], false);
    assert_eq!(found["lossy"], serde_json::json!([words, "cache bias 0.1"]));
    let line = stderr(&run_demo(&both));
    assert!(line.trim_end().ends_with(&format!("lossy: {words}, cache bias 0.1")), "{line}");
    assert!(line.contains("answers depend on the budget"), "{line}");
    let override_form = format!("expert_used_count={fewer}");
    assert_eq!(plan(&["--experts-per-token", &override_form])["lossy"], serde_json::json!([words]));
    assert_eq!(plan(&["--experts-per-token", &same])["lossy"], serde_json::json!([]));
    assert_eq!(plan(&["--cache-bias", "0"])["lossy"], serde_json::json!([]));
    let refused = about_demo("plan", &["--no-probe", "--experts-per-token", &more]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains(&format!("give 1 to {trained}")), "{}", stderr(&refused));
    for wrong in
        [["--experts-per-token", "0"], ["--cache-bias", "1.5"], ["--experts-per-token", "block_count=3"]]
    {
        assert_eq!(about_demo("plan", &wrong).status.code(), Some(2), "{wrong:?}");
    }
    let bench = ["--prompt-tokens", "16", "--gen-tokens", "4", "--repeat", "1", "--cold-fraction", "0.75"];
    let bench = about_demo("bench", &[&bench[..], &["--experts-per-token", &fewer]].concat());
    assert!(stdout(&bench).contains(&format!("lossy: {words}")), "{}", stdout(&bench));
}

#[test]
fn no_profile_and_no_default_is_lossy() {
    for arguments in [&[][..], &["--low-ram"]] {
        let plan = object(&about_demo("plan", &[&["--json", "--no-probe"], arguments].concat()));
        assert_eq!(plan["kv_type"], "f16", "{arguments:?}");
        assert_eq!(plan["lossy"].as_array().map(Vec::len), Some(0), "{arguments:?}");
    }
}

#[test]
fn eval_measures_what_a_type_costs() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = folder.path().join("text.md");
    std::fs::write(&text, include_str!("../../../LICENSE-APACHE")).expect("writes");
    let text = text.to_str().expect("a UTF-8 path");
    let eval = |more: &[&str]| {
        about_demo("eval", &[&["--text", text, "--tokens", "200", "--ctx", "100"], more].concat())
    };
    let found = object(&eval(&["--kv", "q8", "--json"]));
    assert!(found["kl_mean"].as_f64().is_some_and(|kl| kl > 0.0 && kl < 0.1), "{found}");
    assert_eq!((&found["asked"]["kv_type"], &found["lossy"][0]), (&"q8".into(), &"kv q8".into()));
    assert!(found["exact"]["perplexity"].as_f64() > Some(1.0));
    assert_eq!(found["windows"], 2);
    let shown = eval(&["--kv", "q4"]);
    for part in ["mean KL", "p99 KL", "largest KL", "same best token", "perplexity", "lossy: kv q4"] {
        assert!(stdout(&shown).contains(part), "{} lacks {part}", stdout(&shown));
    }
    assert_eq!(stderr(&shown).lines().count(), 1, "a pipe gets no progress: {}", stderr(&shown));
    // The variable counts as everywhere.
    let demo = demo();
    let arguments =
        ["eval", demo.to_str().expect("a UTF-8 path"), "--text", text, "--tokens", "64", "--json"];
    let found = object(&coldpress(&arguments).env("COLDPRESS_KV", "q4").output().expect("starts"));
    assert_eq!(found["asked"]["kv_type"], "q4");
    let shown = stdout(&eval(&["--cache-bias", "0.2", "--cold-fraction", "0.75"]));
    for part in ["experts per token (exact)", "experts read", "one token at a time", "lossy: cache bias 0.2"]
    {
        assert!(shown.contains(part), "{shown} lacks {part}");
    }
    let f32 = object(&eval(&["--kv", "q8", "--exact-kv", "f32", "--json"]));
    assert_eq!(f32["exact"]["kv_type"], "f32");
    // Exactly the same twice is nothing to compare.
    for same in [&[][..], &["--kv", "f16"], &["--kv", "f32", "--exact-kv", "f32"]] {
        let refused = eval(same);
        assert_eq!(refused.status.code(), Some(2), "{same:?}");
        for part in ["nothing to compare", "--kv q8", "--kv q4", "--experts-per-token N", "--cache-bias X"] {
            assert!(stderr(&refused).contains(part), "{} lacks {part}", stderr(&refused));
        }
    }
}

#[test]
fn eval_refuses_what_is_no_text() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).expect("writes");
        path.to_str().expect("a UTF-8 path").to_owned()
    };
    let absent = folder.path().join("absent").to_str().expect("a UTF-8 path").to_owned();
    for (path, part) in [
        (file("empty", b""), "is empty"),
        (file("blank", b" \n\n "), "is empty"),
        (file("short", b"A word."), "too little to compare"),
        (file("latin", b"caf\xe9 au lait"), "not UTF-8 (byte 3)"),
        (file("cut", b"caf\xc3"), "not UTF-8 (byte 3)"),
        (absent, "cannot open"),
    ] {
        let refused = about_demo("eval", &["--kv", "q8", "--text", &path]);
        assert_eq!(refused.status.code(), Some(2), "{path}: {}", stderr(&refused));
        assert!(stderr(&refused).contains(part), "{} lacks {part}", stderr(&refused));
    }
    // A character that only our own limit cuts is no fault of the file.
    let long = format!("x{}", "ä".repeat(200_000));
    let fine =
        about_demo("eval", &["--kv", "q8", "--tokens", "33", "--text", &file("long", long.as_bytes())]);
    assert!(fine.status.success(), "{}", stderr(&fine));
    // Endless input ends.
    let endless = about_demo("eval", &["--kv", "q8", "--text", "/dev/zero", "--tokens", "40"]);
    assert!(!stderr(&endless).contains("panicked"));
}
