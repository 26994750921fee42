//! The phases of a bench run add up to its wall time within 5 %, and what waits for the disk is called so.
//!
//! What could go wrong: a part of the forward pass that no phase counts, time counted twice (the wait for reads lies inside
//! the experts' time), a phase under the name of another. The wall time is read outside the library.

mod common;

use common::{about_demo, object};
use serde_json::Value;

const PHASES: [&str; 7] = ["attention", "experts", "arrange", "dense", "head", "disk_wait", "host"];

fn number(value: &Value, pointer: &str) -> f64 {
    let found = value.pointer(pointer).and_then(Value::as_f64);
    found.unwrap_or_else(|| panic!("{pointer} is no number in {value}"))
}

fn check(part: &Value) {
    let wall = number(part, "/wall_ms");
    let phases = part["phases_ms"].as_object().expect("phases");
    assert_eq!(phases.keys().collect::<Vec<_>>(), PHASES);
    let sum: f64 = phases.values().map(|time| time.as_f64().expect("a number")).sum();
    assert!((wall - sum).abs() <= 0.05 * wall, "{sum} of {wall} ms: {part}");
    assert!((number(part, "/phases_sum_ms") - sum).abs() < 0.01, "{part}");
    assert!((number(part, "/residue_ms") - (wall - sum)).abs() < 0.01, "{part}");
    for phase in ["attention", "experts", "dense", "head", "host"] {
        assert!(number(part, &format!("/phases_ms/{phase}")) > 0.0, "{phase} takes no time: {part}");
    }
    let rate = number(part, "/tokens_per_second") * wall / 1e3;
    assert!((rate - number(part, "/tokens")).abs() < 0.01 * rate, "{part}");
}

#[test]
fn streamed_and_resident() {
    let sizes = ["--prompt-tokens", "128", "--gen-tokens", "24", "--repeat", "2", "--json"];
    let bench = |options: &[&str]| object(&about_demo("bench", &[&sizes[..], options].concat()));
    for (options, streams) in [(["--cold-fraction", "0.75"], true), (["--residency", "resident"], false)] {
        let report = bench(&options);
        let runs = report["configurations"][0]["depths"][0]["runs"].as_array().expect("runs");
        assert_eq!(runs.len(), 2);
        for part in runs.iter().flat_map(|run| [&run["prefill"], &run["decode"]]) {
            check(part);
            let counted_ms = number(part, "/experts/disk_wait_us") / 1e3;
            let wait_ms = number(part, "/phases_ms/disk_wait");
            assert!((wait_ms - counted_ms).abs() < 0.01, "the store waited {counted_ms} ms: {part}");
            let arranged = number(part, "/phases_ms/arrange");
            assert_eq!(arranged > 0.0, streams, "{part}");
            assert_eq!(number(part, "/experts/misses") > 0.0, streams, "{part}");
            assert!(streams || wait_ms == 0.0, "nothing is read when all experts are in memory: {part}");
        }
    }
}

#[test]
fn a_deeper_cache_costs_attention_and_nothing_else() {
    let options = ["--prompt-tokens", "32", "--gen-tokens", "32", "--repeat", "3", "--json"];
    let depths = ["--residency", "resident", "--depths", "0,1900"];
    let report = object(&about_demo("bench", &[&options[..], &depths[..]].concat()));
    let attention = |depth: usize| {
        let runs = report["configurations"][0]["depths"][depth]["runs"].as_array().expect("runs");
        let times = runs.iter().map(|run| number(&run["decode"], "/phases_ms/attention"));
        times.fold(f64::INFINITY, f64::min)
    };
    // Sixty times as many keys per query; projections stay the same, so this is a careful bound.
    assert!(attention(1) > 1.3 * attention(0), "{} ms deep, {} ms shallow", attention(1), attention(0));
}
