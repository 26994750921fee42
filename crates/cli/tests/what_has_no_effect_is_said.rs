//! A setting that changes nothing is named with the reason, and only then.
//!
//! What could go wrong: a flag that is taken and ignored in silence, so that somebody measures what they did not choose; a note
//! about a setting that has an effect, or about one that nobody gave; a context beyond the model's that nobody warned of.

use crate::common::{about_demo, coldpress, demo, object, run_demo, stderr};
use serde_json::Value;

fn plan(arguments: &[&str]) -> Value {
    object(&about_demo("plan", &[&["--json", "--no-probe"], arguments].concat()))
}

/// The notes of a plan about settings without effect.
fn without_effect(arguments: &[&str]) -> Vec<String> {
    let plan = plan(arguments);
    let notes = plan["notes"].as_array().expect("a list").iter();
    let notes = notes.map(|note| note.as_str().expect("a sentence").to_owned());
    notes.filter(|note| note.contains("has no effect here")).collect()
}

#[test]
fn a_run_names_the_flags_that_it_does_not_use() {
    let run = |arguments: &[&str]| {
        let output = run_demo(&[&["-p", "A", "--max-tokens", "1"], arguments].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        stderr(&output)
    };
    for (arguments, flag) in [
        (&["--raw", "--idle-after", "5"][..], "--idle-after 5"),
        (&["--raw", "--idle-release", "all"], "--idle-release all"),
        (&["--raw", "--thinking", "on"], "--thinking on"),
        (&["--raw", "--route-telemetry", "on"], "--route-telemetry on"),
        (&["--raw", "--seed", "5"], "--seed"),
        (&["--raw", "--top-k", "40"], "--top-k"),
        (&["--raw", "--top-p", "0.9"], "--top-p"),
        (&["--raw", "--min-p", "0.1"], "--min-p"),
    ] {
        let said = run(arguments);
        assert!(said.contains(&format!("note: {flag} has no effect here: ")), "{arguments:?}: {said}");
    }
    let said = run(&["--raw", "--seed", "5", "--temperature", "0.5", "--top-k", "40"]);
    assert!(!said.contains("no effect"), "{said}");
    // A variable is a standing choice for other commands.
    let demo = demo();
    let arguments = ["run", demo.to_str().expect("UTF-8"), "--raw", "-p", "A", "--max-tokens", "1"];
    let output = coldpress(&arguments).env("COLDPRESS_IDLE_AFTER", "5").output().expect("the program starts");
    assert!(!stderr(&output).contains("no effect"), "{}", stderr(&output));
}

#[test]
fn a_plan_names_what_does_not_apply_to_it() {
    assert!(without_effect(&[]).is_empty());
    let streamed = ["--cold-fraction", "0.5"];
    for (arguments, said, reason) in [
        (&["--router-advice-cap", "1MiB"][..], "flag --router-advice-cap 1MiB", "router advice is off"),
        (&["--router-advice", "on"], "flag --router-advice on", "mapped"),
        (&["--force-mode", "force"], "flag --force-mode force", "mapped"),
        (&["--split", "4"], "flag --split 4", "pack"),
        (&["--idle-release", "all"], "flag --idle-release all", "--idle-after"),
    ] {
        let notes = without_effect(&[&streamed, arguments].concat());
        assert_eq!(notes.len(), 1, "{notes:?}");
        assert!(notes[0].contains(said) && notes[0].contains(reason), "{notes:?}");
    }
    let resident = without_effect(&["--policy", "global-lru", "--prefetch", "on"]);
    assert!(resident.len() == 2 && resident[0].contains("every expert stays in memory"), "{resident:?}");
    assert!(
        without_effect(&["--policy", "global-lru", "--cold-fraction", "0.5", "--prefetch", "on"]).is_empty()
    );
    assert!(without_effect(&["--idle-release", "all", "--idle-after", "9"]).is_empty());
    let chosen = ["--low-ram", "--ctx", "64", "--chunk", "32", "--hotlist", "on", "--thinking", "auto"];
    assert!(without_effect(&chosen)[0].contains("flag --low-ram"), "{:?}", without_effect(&chosen));
    assert!(without_effect(&chosen[..7]).is_empty());
}

#[test]
fn a_cap_of_router_advice_is_no_number_where_there_is_no_advice() {
    let value = |arguments: &[&str]| {
        let plan = plan(arguments);
        let settings = plan["settings"].as_array().expect("a list");
        let cap = settings.iter().find(|setting| setting["name"] == "router advice cap").expect("the cap");
        cap["value"].as_str().expect("words").to_owned()
    };
    assert_eq!(value(&[]), "unused");
    assert_eq!(value(&["--router-advice", "on", "--cold-fraction", "0.5"]), "unused, for mapped only");
}

#[test]
fn a_context_beyond_what_the_model_was_trained_for_is_told() {
    let trained = plan(&[])["model"]["trained_context"].as_u64().expect("a number");
    let notes = |context: u64| plan(&["--ctx", &context.to_string()])["notes"].to_string();
    assert!(!notes(trained).contains("was trained for"), "{}", notes(trained));
    let wanted = format!(
        "the context of {} tokens is longer than the {trained} that the model was trained for",
        2 * trained
    );
    assert!(notes(2 * trained).contains(&wanted), "{}", notes(2 * trained));
    let beyond = (2 * trained).to_string();
    let run = about_demo("run", &["--ctx", &beyond, "--raw", "-p", "A", "--max-tokens", "1"]);
    assert!(run.status.success() && stderr(&run).contains(&wanted), "{}", stderr(&run));
}
