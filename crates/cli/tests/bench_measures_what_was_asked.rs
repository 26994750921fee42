//! Every configuration, depth and run that was asked for is measured, from the state that was asked for, within its budget.
//!
//! What could go wrong: a run that finds its prompt in the cache of the one before and measures nothing; the memory peak of
//! an earlier, larger configuration beside a later budget; a configuration that fails after hours of others.

mod common;

use common::{about_demo, coldpress, demo, object, stderr, stdout};
use serde_json::Value;

#[test]
fn every_configuration_depth_and_run_is_there() {
    let options = "--budget 100MiB,40MiB --residency auto,streamed --depths 0,64 --prompt-tokens 48 --gen-tokens 5 --repeat 2";
    let options: Vec<&str> = options.split(' ').chain(["--threads", "2", "--json"]).collect();
    let report = object(&about_demo("bench", &options));
    let configurations = report["configurations"].as_array().expect("configurations");
    let modes: Vec<&Value> = configurations.iter().map(|one| &one["residency"]).collect();
    assert_eq!(modes, ["resident", "streamed", "streamed", "streamed"]);
    for (configuration, budget) in configurations.iter().zip([100_u64, 100, 40, 40]) {
        assert_eq!(configuration["budget_bytes"], budget << 20);
        assert_eq!(configuration["context"], 64 + 48 + 5);
        assert_eq!(configuration["threads"], 2);
        let peak = configuration["peak_bytes"]["rss"].as_u64().expect("a peak");
        assert!(peak > 4 << 20 && peak <= budget << 20, "peak {peak} of {budget} MiB");
        let depths = configuration["depths"].as_array().expect("depths");
        assert_eq!(depths.len(), 2);
        for (measured, depth) in depths.iter().zip([0, 64]) {
            assert_eq!(measured["depth"], depth);
            assert_eq!(measured["fill"].is_null(), depth == 0);
            assert!(depth == 0 || measured["fill"]["tokens"] == depth);
            let runs = measured["runs"].as_array().expect("runs");
            assert_eq!(runs.len(), 2);
            for run in runs {
                assert_eq!((&run["prefill"]["tokens"], &run["decode"]["tokens"]), (&48.into(), &5.into()));
            }
            for part in ["prefill", "decode"] {
                let rate = |name: &str| measured[part]["tokens_per_second"][name].as_f64().expect("a rate");
                assert!(rate("min") <= rate("median") && rate("median") <= rate("max"), "{measured}");
                assert!(rate("min") > 0.0);
            }
        }
    }
}

#[test]
fn decode_uses_top_k_experts_per_layer_and_token() {
    let report = object(&about_demo(
        "bench",
        &["--prompt-tokens", "20", "--gen-tokens", "6", "--repeat", "1", "--json"],
    ));
    let model = &report["model"];
    let per_token =
        model["moe_layers"].as_u64().expect("layers") * model["experts_per_token"].as_u64().expect("top-k");
    let decode = &report["configurations"][0]["depths"][0]["decode"]["experts_per_token"];
    let looked_up = decode["hits"].as_f64().expect("hits") + decode["misses"].as_f64().expect("misses");
    assert_eq!(looked_up, per_token as f64);
}

#[test]
fn the_tables_are_quiet_and_end_with_the_command() {
    let options = ["--prompt-tokens", "16", "--gen-tokens", "2", "--repeat", "1"];
    let output = about_demo("bench", &options);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stderr(&output), "", "a pipe gets no progress");
    let text = stdout(&output);
    for part in ["prefill", "decode", "tok/s", "attention", "disk wait", "residue", "peak "] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    let last = text.lines().last().expect("a last line");
    let command = last.strip_prefix("again: coldpress ").expect("the command");
    let again = coldpress(&command.split(' ').collect::<Vec<_>>()).output().expect("the program starts");
    assert!(again.status.success(), "{command}: {}", stderr(&again));
}

#[test]
fn refusals_come_before_measurements() {
    let context = about_demo("bench", &["--prompt-tokens", "2000", "--depths", "0,100"]);
    assert_eq!(context.status.code(), Some(2), "{}", stderr(&context));
    for part in ["100", "2000", "64", "2164", "2048", "--depths"] {
        assert!(stderr(&context).contains(part), "{} lacks {part}", stderr(&context));
    }
    let budget = about_demo("bench", &["--prompt-tokens", "16", "--budget", "100MiB,9MiB", "--json"]);
    assert_eq!(budget.status.code(), Some(3), "{}", stderr(&budget));
    let failure: Value = serde_json::from_str(&stdout(&budget)).expect("one JSON object");
    assert_eq!(failure["error"]["exit_code"], 3);
    for wrong in [
        ["--repeat", "0"],
        ["--prompt-tokens", "0"],
        ["--gen-tokens", "x"],
        ["--depths", "0,-1"],
        ["--budget", "1GiB,10foo"],
        ["--residency", "auto,somewhere"],
        ["--prompt-tokens", "18446744073709551615"],
        ["--depths", "18446744073709551615"],
    ] {
        let output = about_demo("bench", &wrong);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {}", stderr(&output));
        assert!(!stderr(&output).contains("panicked"), "{}", stderr(&output));
    }
    let missing = demo().with_file_name("no-such-model.gguf");
    let output =
        coldpress(&["bench", missing.to_str().expect("a UTF-8 path")]).output().expect("the program starts");
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
}
