//! The crates of the workspace depend on each other only along the edges of ARCHITECTURE.md.
//!
//! A new edge is a decision about the structure, not a detail of a change: whoever adds one changes this table and the
//! document together.

use std::collections::BTreeMap;
use std::process::Command;

/// Allowed edges: crate, crates it may use.
const EDGES: [(&str, &[&str]); 11] = [
    ("coldpress-formats", &[]),
    ("coldpress-memory", &[]),
    ("coldpress-workers", &[]),
    ("coldpress-text", &[]),
    ("coldpress-kernels", &["coldpress-workers"]),
    (
        "coldpress-experts",
        &["coldpress-formats", "coldpress-memory", "coldpress-workers", "coldpress-kernels"],
    ),
    (
        "coldpress-model",
        &[
            "coldpress-formats",
            "coldpress-memory",
            "coldpress-workers",
            "coldpress-kernels",
            "coldpress-experts",
        ],
    ),
    (
        "coldpress",
        &[
            "coldpress-formats",
            "coldpress-memory",
            "coldpress-workers",
            "coldpress-kernels",
            "coldpress-experts",
            "coldpress-model",
            "coldpress-text",
        ],
    ),
    ("coldpress-server", &["coldpress"]),
    ("coldpress-hub", &["coldpress-memory"]),
    ("coldpress-cli", &["coldpress", "coldpress-server", "coldpress-hub"]),
];

/// For tests only: may use anything, and nothing but tests may use it.
const TEST_SUPPORT: &str = "coldpress-testkit";

#[test]
fn dependencies_point_one_way() {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("cargo prints JSON");
    let allowed: BTreeMap<&str, &[&str]> = EDGES.into_iter().collect();
    let mut seen = 0;
    for package in metadata["packages"].as_array().expect("a list of packages") {
        let name = package["name"].as_str().expect("a name");
        if name == TEST_SUPPORT {
            continue;
        }
        let allowed = allowed.get(name).unwrap_or_else(|| panic!("{name} is not in the table of edges"));
        seen += 1;
        for dependency in package["dependencies"].as_array().expect("a list of dependencies") {
            let target = dependency["name"].as_str().expect("a name");
            let ours = target == "coldpress" || target.starts_with("coldpress-");
            let for_tests = dependency["kind"] == "dev";
            assert!(
                !ours || for_tests || allowed.contains(&target),
                "{name} uses {target}: not an edge of the table"
            );
        }
    }
    assert_eq!(seen, EDGES.len(), "a crate of the table is missing from the workspace");
}
