//! `doctor` takes less than 5 s and 600 MB, prints one object, is quiet in pipes, and follows `COLDPRESS_ISA`.
//!
//! What could go wrong: a probe that grows with the number of processors, a table of kernels that runs do not use, a forced
//! instruction set that only a part of the report knows of.

mod common;

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use common::{coldpress, object, run, stderr, stdout};

/// Waits for the end; the largest resident memory seen on the way (Linux; elsewhere nothing is seen).
fn peak_until_the_end(child: &mut Child) -> u64 {
    let status = format!("/proc/{}/status", child.id());
    let mut peak_kib = 0;
    while child.try_wait().expect("the program can be waited for").is_none() {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse().ok());
        peak_kib = peak_kib.max(kib.unwrap_or(0));
        std::thread::sleep(Duration::from_millis(5));
    }
    peak_kib * 1024
}

#[test]
fn doctor() {
    let started = Instant::now();
    let mut child = coldpress(&["doctor", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let peak = peak_until_the_end(&mut child);
    let output = child.wait_with_output().expect("the program ends");
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    assert!(peak < 600_000_000, "{peak} bytes");
    assert_eq!(stderr(&output), "");
    let best = object(&output);
    let threads = best["threads"].as_u64().expect("threads");
    for list in ["bandwidth", "int8_peak"] {
        let measured = best[list].as_array().expect("a list");
        assert_eq!(measured.first().expect("one")["threads"], 1);
        assert_eq!(measured.last().expect("one")["threads"], threads);
    }
    let supported = best["instruction_sets"].as_array().expect("a list");
    let supported = supported.iter().filter(|set| set["supported"] == true).map(|set| &set["name"]);
    assert!(supported.clone().any(|name| *name == best["isa"]), "{best}");

    let mut forced = coldpress(&["doctor", "--json"]);
    let scalar = object(&forced.env("COLDPRESS_ISA", "scalar").output().expect("the program starts"));
    assert_eq!(scalar["isa"], "scalar");
    let kernels = scalar["kernels"].as_array().expect("a list");
    assert_eq!(kernels.len(), best["kernels"].as_array().expect("a list").len());
    assert!(kernels.iter().all(|kernel| kernel["isa"] == "scalar"), "{scalar}");
    let peak = |report: &serde_json::Value| report["int8_peak"][0]["operations_per_second"].as_f64();
    assert!(best["isa"] == "scalar" || peak(&scalar) < peak(&best), "{scalar} {best}");

    let text = stdout(&run(&["doctor"]));
    for part in ["isa", "kernels", "memory", "reader", "bandwidth", "int8 peak", "GB/s", "GOP/s", "Q4_K"] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
}

#[test]
fn an_instruction_set_of_another_machine_is_bad_usage() {
    let foreign = if cfg!(target_arch = "x86_64") { "neon" } else { "avx2" };
    let output = coldpress(&["doctor"]).env("COLDPRESS_ISA", foreign).output().expect("the program starts");
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains(foreign));
    assert_eq!(run(&["doctor", "--fast"]).status.code(), Some(2));
    assert_eq!(run(&["doctor", "/dev/null"]).status.code(), Some(2), "neither a file nor a folder");
}
