//! The JSON object of a bench is consistent in itself: cold runs, thirds, bytes, and the share of the physical limit.
//!
//! What could go wrong: a limit of another run or depth beside a time, bytes per token that are not the bytes over the tokens, a
//! warm median with the cold run in it, thirds that leave tokens out, tokens that differ between budgets and nobody says so.

mod common;

use common::{about_demo, object};
use serde_json::Value;

const GENERATED: f64 = 25.0;

fn number(value: &Value, pointer: &str) -> f64 {
    let found = value.pointer(pointer).and_then(Value::as_f64);
    found.unwrap_or_else(|| panic!("{pointer} is no number in {value}"))
}

fn near(a: f64, b: f64, tolerance: f64) {
    assert!((a - b).abs() <= tolerance, "{a} is not {b}");
}

/// A part of a run.
fn check_part(part: &Value) {
    let wall = number(part, "/wall_ms");
    let sum: f64 =
        ["disk_wait", "compute", "host"].map(|name| number(part, &format!("/time_ms/{name}"))).iter().sum();
    near(sum, number(part, "/phases_sum_ms"), 0.01);
    near(wall - number(part, "/phases_sum_ms"), number(part, "/residue_ms"), 0.01);
    let tokens = number(part, "/tokens");
    for name in
        ["device_bytes_read", "bytes_read", "prefetched_bytes", "prefetch_used_bytes", "hits", "misses"]
    {
        let all = number(part, &format!("/experts/{name}"));
        near(number(part, &format!("/experts_per_token/{name}")), all / tokens, 1e-6 * all.max(1.0));
    }
    let (hits, misses) = (number(part, "/experts/hits"), number(part, "/experts/misses"));
    near(number(part, "/hit_rate"), hits / (hits + misses), 1e-9);
}

/// Gives the share of the wall time that lies within the thirds.
fn check_thirds(decode: &Value) -> f64 {
    let names = ["first", "middle", "last"];
    let tokens: f64 = names.map(|name| number(decode, &format!("/thirds/{name}/tokens"))).iter().sum();
    assert_eq!(tokens, GENERATED);
    assert_eq!(decode["thirds"]["first"]["tokens"], 8);
    assert_eq!(decode["thirds"]["last"]["tokens"], 8);
    let sum: f64 = names.map(|name| number(decode, &format!("/thirds/{name}/wall_ms"))).iter().sum();
    let wall = number(decode, "/wall_ms");
    assert!(sum <= wall + 0.01, "{sum} of {wall} ms");
    for name in names {
        let third = &decode["thirds"][name];
        near(
            number(third, "/tokens_per_second") * number(third, "/wall_ms") / 1e3,
            number(third, "/tokens"),
            0.01,
        );
    }
    sum / wall
}

fn check_limit(part: &Value, streams: bool, rate: Option<f64>) {
    let limit = &part["limit"];
    let (time, computing) = (number(limit, "/limit_ms"), number(limit, "/computing_ms"));
    near(number(limit, "/percent"), 100.0 * time / number(part, "/wall_ms"), 0.1);
    assert!(computing > 0.0 && computing <= number(part, "/wall_ms") + 0.01, "{limit}");
    let missed = number(limit, "/missed_bytes");
    assert!(missed <= number(part, "/experts/bytes_read"));
    assert_eq!(missed > 0.0, streams, "{part}");
    match (limit["reading_ms"].as_f64(), rate) {
        (Some(reading), Some(rate)) => {
            near(reading, missed / rate * 1e3, 0.01);
            near(time, reading.max(computing), 0.001);
            assert_eq!(limit["bound"], if reading > computing { "reading" } else { "computing" });
        }
        (Some(reading), None) => assert_eq!((reading, missed), (0.0, 0.0)),
        (None, _) => {
            assert!(limit["reading_unknown"].is_string() && limit["bound"] == "computing", "{limit}");
            near(time, computing, 0.001);
        }
    }
}

#[test]
fn figures_fit_each_other() {
    let options =
        "--budget 100MiB,38MiB --residency auto --prompt-tokens 96 --gen-tokens 25 --repeat 3 --json";
    let report = object(&about_demo("bench", &options.split(' ').collect::<Vec<_>>()));
    assert_eq!(report["same_tokens"], true);
    let disk = report["limit"]["disk"].as_array().expect("what was measured of the disk");
    assert_eq!(disk.len(), 1, "one file and one size of read: {disk:?}");
    let figures = disk[0]["figures"].as_array().expect("figures").iter();
    let rates: Vec<f64> = figures.filter_map(|figure| figure["bytes_per_second"].as_f64()).collect();
    let rate = (!rates.is_empty()).then(|| rates.iter().copied().fold(0.0, f64::max));
    for words in ["measured", "assumed"] {
        assert!(report["limit"][words].as_str().is_some_and(|text| text.len() > 40), "{words}");
    }
    let configurations = report["configurations"].as_array().expect("configurations");
    assert_eq!(configurations.len(), 2);
    for (configuration, streams) in configurations.iter().zip([false, true]) {
        assert_eq!(configuration["residency"], if streams { "streamed" } else { "resident" });
        assert_eq!(configuration["residency_asked"], "auto");
        assert_eq!(configuration["same_tokens"], true);
        let depth = &configuration["depths"][0];
        let runs = depth["runs"].as_array().expect("runs");
        assert_eq!(runs.iter().map(|run| run["cold"] == true).collect::<Vec<_>>(), [true, false, false]);
        let mut most_in_thirds = 0.0_f64;
        for run in runs {
            assert_eq!(run["ttft_ms"], run["prefill"]["wall_ms"]);
            check_part(&run["prefill"]);
            check_part(&run["decode"]);
            most_in_thirds = most_in_thirds.max(check_thirds(&run["decode"]));
            assert!(run["prefill"]["thirds"].is_null());
        }
        // What comes after the last token (its text, the figures) belongs to no third; a busy machine may stretch it once.
        assert!(most_in_thirds > 0.9, "thirds hold {most_in_thirds} of the time");
        for (kind, count) in [("cold", 1), ("warm", 2)] {
            for name in ["prefill", "decode"] {
                let part = &depth[kind][name];
                assert_eq!((&part["cold"], &part["runs"]), (&(kind == "cold").into(), &count.into()));
                let run = part["median_run"].as_u64().expect("an index") as usize;
                assert_eq!(runs[run]["cold"], kind == "cold");
                assert_eq!(runs[run][name]["wall_ms"], part["wall_ms"]);
                check_part(part);
                let reads = number(part, "/experts/misses") > 0.0;
                assert_eq!(reads, streams, "{part}");
                check_limit(part, streams, rate);
            }
        }
        assert_eq!(depth["decode"], depth["warm"]["decode"], "warm runs speak for a measurement");
        let fastest_resident =
            number(&configurations[0]["depths"][0]["warm"]["decode"], "/limit/computing_ms");
        let computing = number(&depth["warm"]["decode"], "/limit/computing_ms");
        assert!(computing <= fastest_resident + 0.001, "a resident configuration bounds the others");
    }
}

#[test]
fn one_run_stands_for_all_and_few_tokens_have_no_thirds() {
    let options = "--prompt-tokens 8 --gen-tokens 2 --repeat 1 --depths 16,0 --json";
    let report = object(&about_demo("bench", &options.split(' ').collect::<Vec<_>>()));
    let depths = &report["configurations"][0]["depths"];
    // Filling the deeper cache was the cold pass.
    for depth in [0, 1] {
        assert!(depths[depth]["cold"].is_null());
        assert_eq!(depths[depth]["decode"]["runs"], 1);
        assert!(depths[depth]["decode"]["thirds"].is_null());
    }
    let options = "--prompt-tokens 8 --gen-tokens 2 --repeat 1 --json";
    let report = object(&about_demo("bench", &options.split(' ').collect::<Vec<_>>()));
    let depth = &report["configurations"][0]["depths"][0];
    assert!(depth["warm"].is_null());
    assert_eq!(depth["decode"], depth["cold"]["decode"]);
}
