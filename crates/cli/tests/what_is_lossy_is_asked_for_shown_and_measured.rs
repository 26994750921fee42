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
    let f32 = object(&eval(&["--kv", "q8", "--exact-kv", "f32", "--json"]));
    assert_eq!(f32["exact"]["kv_type"], "f32");
    // Exactly the same twice is nothing to compare.
    for same in [&[][..], &["--kv", "f16"], &["--kv", "f32", "--exact-kv", "f32"]] {
        let refused = eval(same);
        assert_eq!(refused.status.code(), Some(2), "{same:?}");
        for part in ["nothing to compare", "--kv q8", "--kv q4"] {
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
