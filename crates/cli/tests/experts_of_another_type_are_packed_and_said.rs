//! `pack --experts TYPE` writes a pack that `--experts TYPE` and `--pack FILE` use, that is checked like any other, and that every place
//! which names lossy settings names. Without it, and for values that are no types, the way out is said.
//!
//! What could go wrong: a run that takes the pack of the file's own types instead, a plan that counts slots of the file's records,
//! a lossy pack that nobody is told of, `keep` that changes something.

use crate::common::{about_demo, demo, object, run, run_demo, stderr, stdout};

#[test]
fn a_quantised_pack_is_written_checked_used_and_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path().to_str().expect("a UTF-8 path");
    let answer = ["--raw", "-p", "The old house", "--max-tokens", "3", "--json", "--prestack-dir", place];
    let asked = [&answer[..], &["--experts", "mxfp4"]].concat();

    let refused = run_demo(&asked);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("coldpress pack MODEL --experts mxfp4"), "{}", stderr(&refused));

    let packed = about_demo("pack", &["--out", place, "--experts", "mxfp4"]);
    assert!(stdout(&packed).contains("lossy: experts mxfp4"), "{}{}", stdout(&packed), stderr(&packed));
    let packed = object(&about_demo("pack", &["--out", place, "--experts", "mxfp4", "--json"]));
    assert_eq!((&packed["records_written"], &packed["lossy"]), (&0.into(), &"experts mxfp4".into()));
    let verified = about_demo("pack", &["--out", place, "--experts", "mxfp4", "--verify"]);
    assert!(stdout(&verified).contains("records are what the model file gives"), "{}", stderr(&verified));

    let kept = object(&run_demo(&answer));
    assert_eq!(kept["lossy"], serde_json::json!([]));
    let found = object(&run_demo(&asked));
    assert_eq!((&found["exact"], &found["lossy"][0]), (&false.into(), &"experts mxfp4".into()));
    // The name of the file says nothing: what is in it does.
    let file = packed["path"].as_str().expect("a path");
    let named = ["--raw", "-p", "The old house", "--max-tokens", "3", "--json", "--pack", file];
    let named = object(&run_demo(&named));
    assert_eq!((&named["lossy"][0], &named["text"]), (&"experts mxfp4".into(), &found["text"]));

    let plan = |more: &[&str]| {
        let usual = ["--no-probe", "--json", "--prestack-dir", place, "--cold-fraction", "0.5"];
        object(&about_demo("plan", &[&usual[..], more].concat()))
    };
    let (file_types, quantised) = (plan(&[]), plan(&["--experts", "mxfp4"]));
    assert_eq!((&quantised["lossy"][0], &quantised["pack"]), (&"experts mxfp4".into(), &file.into()));
    let slots = |plan: &serde_json::Value| plan["plan"]["slots"].as_u64().expect("bytes");
    assert!(slots(&quantised) < slots(&file_types), "{} and {}", slots(&quantised), slots(&file_types));

    // The demo's experts are Q4_0: what would be no smaller is left alone, and that is said.
    let kept = object(&about_demo("pack", &["--out", place, "--experts", "q8_0", "--json"]));
    assert_eq!(kept["lossy"], serde_json::Value::Null);
    assert!(
        kept["exceptions"][0].as_str().is_some_and(|line| line.contains("would be no smaller")),
        "{kept}"
    );

    let demo = demo();
    let wrong = run(&["pack", demo.to_str().expect("a UTF-8 path"), "--experts", "q9", "--out", place]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(stderr(&wrong).contains("q4_k"), "{}", stderr(&wrong));
}
