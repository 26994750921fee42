//! `trace` writes what `simulate` reads: every policy and the optimum at every size, as table, JSON and a drawing that needs
//! nothing else. Neither overwrites a file of another kind.

use crate::common::{about_demo, object, run, stderr, stdout};

#[test]
fn from_prompt_to_table_and_drawing() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = |name: &str| folder.path().join(name).to_str().expect("a UTF-8 path").to_owned();
    let (trace, svg, precious) = (place("a.cptrace"), place("a.svg"), place("precious"));
    std::fs::write(&precious, "mine").expect("written");
    let record = |out: &str| {
        about_demo(
            "trace",
            &[
                "--raw",
                "-p",
                "The old house",
                "-p",
                "def read",
                "--gen-tokens",
                "12",
                "--ctx",
                "256",
                "--out",
                out,
                "--json",
            ],
        )
    };
    let report = object(&record(&trace));
    assert_eq!(report["cut"], false);
    assert_eq!(report["decode_passes"], 22);
    assert_eq!(object(&record(&trace))["file_bytes"], report["file_bytes"], "a trace may replace a trace");

    let simulated = object(&run(&["simulate", &trace, "--capacity", "32,25%,100%", "--json", "--svg", &svg]));
    assert_eq!(simulated["slots"], serde_json::json!([32, 64, 256]));
    let policies = simulated["policies"].as_array().expect("rows");
    assert_eq!(policies.len(), 9);
    for row in policies {
        for (counts, optimum) in row["counts"]
            .as_array()
            .expect("columns")
            .iter()
            .zip(simulated["belady"].as_array().expect("columns"))
        {
            assert!(counts["hits"].as_u64() <= optimum["hits"].as_u64(), "{row}");
        }
    }
    let drawing = std::fs::read_to_string(&svg).expect("a drawing");
    assert!(drawing.contains("prefers-color-scheme: dark") && drawing.contains("least-stale"));
    for outside in ["<script", "href", "url(", "@import"] {
        assert!(!drawing.contains(outside), "{outside}");
    }
    let text = stdout(&run(&["simulate", &trace, "--policy", "global-lru"]));
    assert!(
        text.contains("global-lru") && text.contains("belady") && !text.contains("least-stale"),
        "{text}"
    );

    for refused in [record(&precious), run(&["simulate", &trace, "--svg", &precious])] {
        assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    }
    assert_eq!(std::fs::read_to_string(&precious).expect("still there"), "mine");
    let wrong = run(&["simulate", &precious]);
    assert!(!wrong.status.success() && stderr(&wrong).contains("precious"), "{}", stderr(&wrong));
}
