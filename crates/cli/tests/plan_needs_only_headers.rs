//! `plan` works for a download that has only begun, for another machine, and says where each figure comes from.
//!
//! What could go wrong: a plan that wants weights, a cut file that `run` starts with, a flag for another machine that changes
//! nothing, a figure that is not a number, an assumption that passes for a measurement, a smallest budget that does not work.

use crate::common::{about_demo, coldpress, demo, object, run, stderr, stdout};
use serde_json::Value;

fn plan(arguments: &[&str]) -> Value {
    object(&about_demo("plan", &[&["--json", "--no-probe"], arguments].concat()))
}

/// The beginning of the bundled model, its header and a little of the weights, as a file.
fn begun(folder: &tempfile::TempDir, bytes: usize) -> String {
    let whole = std::fs::read(demo()).expect("the bundled model");
    let path = folder.path().join("begun.gguf");
    std::fs::write(&path, &whole[..bytes]).expect("a file");
    path.to_str().expect("a UTF-8 path").to_owned()
}

#[test]
fn a_download_that_has_only_begun_can_be_planned_but_not_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let whole_bytes = std::fs::metadata(demo()).expect("the bundled model").len();
    let bytes = whole_bytes as usize / 2;
    let path = begun(&folder, bytes);
    let cut = object(&run(&["plan", &path, "--json", "--ctx", "512"]));
    let whole = plan(&["--ctx", "512"]);
    assert_eq!(cut["plan"]["dense"], whole["plan"]["dense"]);
    assert_eq!(cut["room"]["smallest_budget"], whole["room"]["smallest_budget"]);
    let missing = cut["missing"].as_u64().expect("bytes");
    assert!(missing > 0 && missing <= whole_bytes - bytes as u64, "{missing}");
    assert_eq!(cut["download"]["needed"], cut["missing"]);
    assert_eq!(whole["missing"], 0);
    assert_ne!(cut["prediction"]["rates"]["disk"]["origin"], "given");
    assert_ne!(cut["prediction"]["hit_rate"]["origin"], "measured");
    let text = stdout(&run(&["plan", &path, "--no-probe"]));
    assert!(text.contains("still to come"), "{text}");
    assert_eq!(run(&["run", &path, "-p", "x"]).status.code(), Some(4));

    let path = begun(&folder, 1000);
    let refused = run(&["plan", &path]);
    assert_eq!(refused.status.code(), Some(4), "a header that is cut: {}", stderr(&refused));
    assert!(stderr(&refused).contains("begun.gguf"));
}

#[test]
fn another_machine_has_other_figures_and_they_are_given() {
    let here = plan(&["--ctx", "512", "--cold-fraction", "0.75"]);
    let there =
        plan(&["--ctx", "512", "--cold-fraction", "0.75", "--disk", "20MB/s", "--bandwidth", "1GB/s"]);
    let origin = |plan: &Value, rate: &str| plan["prediction"]["rates"][rate]["origin"].clone();
    for rate in ["disk", "memory", "int8", "arrange"] {
        assert_eq!(origin(&here, rate), "assumed", "{rate}");
    }
    assert_eq!((origin(&there, "disk"), origin(&there, "memory")), ("given".into(), "given".into()));
    let rate =
        |plan: &Value| plan["prediction"]["decode"]["tokens_per_second"]["high"].as_f64().expect("a rate");
    assert!(rate(&there) < rate(&here), "{there} {here}");

    let large = plan(&["--ram", "640GiB"]);
    assert_eq!(large["usable"], 640_u64 << 30);
    assert_eq!(large["residency"], "resident");
    let small = about_demo("plan", &["--ram", "16MiB", "--no-probe"]);
    assert_eq!(small.status.code(), Some(3), "{}", stderr(&small));
    let message = stderr(&small);
    for part in ["dense weights", "KV cache", "scratch", "expert slots", "is the smallest that works"] {
        assert!(message.contains(part), "{message} lacks {part}");
    }
    for wrong in [["--disk", "fast"], ["--disk", "3GB"], ["--ram", "50%"], ["--ram", "unlimited"]] {
        assert_eq!(about_demo("plan", &wrong).status.code(), Some(2), "{wrong:?}");
    }
}

/// Every number is one, bands are in order, and every origin is one of three words.
fn check_figures(value: &Value, path: &str) {
    match value {
        Value::Object(fields) => {
            if let (Some(low), Some(high)) = (fields.get("low"), fields.get("high")) {
                let (low, high) = (low.as_f64().expect(path), high.as_f64().expect(path));
                assert!(
                    low.is_finite() && high.is_finite() && 0.0 <= low && low <= high,
                    "{path}: {low} {high}"
                );
            }
            if let Some(origin) = fields.get("origin").filter(|_| path.contains("prediction")) {
                assert!(
                    ["measured", "assumed", "given"].contains(&origin.as_str().expect(path)),
                    "{path}: {origin}"
                );
            }
            fields.iter().for_each(|(name, value)| check_figures(value, &format!("{path}/{name}")));
        }
        Value::Array(values) => values.iter().for_each(|value| check_figures(value, path)),
        _ => {}
    }
}

#[test]
fn every_figure_is_a_number_with_an_origin() {
    for arguments in
        [vec![], vec!["--cold-fraction", "0.75"], vec!["--budget", "unlimited"], vec!["--prompt-tokens", "1"]]
    {
        let mut all = vec!["--json", "--ctx", "512"];
        all.extend(&arguments);
        let plan = object(&about_demo("plan", &all));
        check_figures(&plan, "");
        let prediction = &plan["prediction"];
        for rate in ["memory", "int8"] {
            assert_eq!(prediction["rates"][rate]["origin"], "measured", "{arguments:?} {rate}");
        }
        for stage in ["prefill", "decode"] {
            assert!(prediction[stage]["terms"].as_array().is_some_and(|terms| !terms.is_empty()), "{plan}");
        }
        assert_eq!(plan["weight_copies"], 1);
    }
}

#[test]
fn the_text_tells_what_fits_how_fast_and_in_words() {
    let text = stdout(&about_demo("plan", &["--cold-fraction", "0.75", "--ctx", "512", "--no-probe"]));
    for part in [
        "dense ",
        "kv ",
        "scratch ",
        "slots ",
        "residency streamed: ",
        "is the smallest that works",
        "are best for this budget",
        "of experts per token",
        "a 200-word answer takes",
        "assumed",
    ] {
        assert!(text.contains(part), "{part:?} is missing in\n{text}");
    }
    assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
}

#[test]
fn the_smallest_budget_of_a_plan_works_and_one_byte_less_does_not() {
    let smallest = plan(&["--ctx", "512"])["room"]["smallest_budget"].as_u64().expect("bytes");
    for (budget, code) in [(smallest, 0), (smallest - 1, 3)] {
        let output = about_demo("plan", &["--ctx", "512", "--no-probe", "--budget", &budget.to_string()]);
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
    }
}

#[test]
fn bench_says_whether_the_prediction_held() {
    let arguments =
        ["--cold-fraction", "0.75", "--prompt-tokens", "32", "--gen-tokens", "8", "--repeat", "1"];
    let report = object(&about_demo("bench", &[&arguments[..], &["--json"]].concat()));
    let prediction = &report["configurations"][0]["prediction"];
    check_figures(&prediction["of"], "prediction");
    let compared = prediction["compared"].as_array().expect("a list");
    assert_eq!(compared.len(), 2, "{prediction}");
    for one in compared {
        let band = |end: &str| one["predicted"][end].as_f64().expect("a figure");
        let measured = one["measured"].as_f64().expect("a figure");
        let inside = band("low") <= measured && measured <= band("high");
        assert_eq!(one["verdict"], if inside { "inside" } else { "outside" }, "{one}");
    }
    let text = stdout(&about_demo("bench", &arguments));
    assert!(
        text.lines().any(|line| line.starts_with("  prediction: first token ") && line.contains("decode")),
        "{text}"
    );
}

#[test]
fn little_locked_memory_is_enough() {
    let shell = |limit: &str| {
        let program = env!("CARGO_BIN_EXE_coldpress");
        let demo = demo();
        let run = format!(
            "ulimit -l {limit}; '{program}' run '{}' --ctx 512 --cold-fraction 0.75 -p x --max-tokens 2 && '{program}' doctor",
            demo.display()
        );
        std::process::Command::new("sh").args(["-c", &run]).env_remove("HOME").output().expect("a shell")
    };
    let output = shell("64");
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.contains("limit 64.0 KiB, which is enough"), "{text}");
    let text = stdout(&shell("16"));
    let line = text.lines().find(|line| line.contains("locked memory")).expect("a check");
    assert!(line.starts_with("hint") && line.contains("16.0 KiB") && line.contains("ulimit -l"), "{line}");
}

#[test]
fn doctor_ends_with_1_when_a_model_cannot_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let sound = demo();
    let sound = sound.to_str().expect("a UTF-8 path");
    let output = run(&["doctor", sound]);
    assert_eq!(output.status.code(), Some(0), "{} {}", stdout(&output), stderr(&output));
    assert!(stdout(&output).contains("\nverdict: "), "{}", stdout(&output));
    let whole = std::fs::metadata(sound).expect("the bundled model").len() as usize;
    let cut = begun(&folder, whole - 100_000);
    let output = run(&["doctor", &cut]);
    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
    let text = stdout(&output);
    assert!(text.contains("verdict: blocked by: model") && text.contains("finish the download"), "{text}");
    let report: Value = serde_json::from_slice(&run(&["doctor", &cut, "--json"]).stdout).expect("one object");
    assert_eq!(report["verdict"], "block");
    assert!(report["checks"].as_array().is_some_and(|checks| checks.len() > 10), "{report}");
    assert_eq!(coldpress(&["doctor", "no/such/folder"]).output().expect("runs").status.code(), Some(2));
}
