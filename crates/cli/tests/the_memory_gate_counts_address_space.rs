//! Under a limit on address space (`ulimit -v`) a run that does not fit is refused with exit code 3, the figures and a way out that
//! works, and nothing is said of swapping, which such a limit knows nothing of.
//!
//! What could go wrong: a mapped pack is not in the plan, passes the gate and fails at its mapping; the heaps of threads take the
//! address space that the plan counts on; the limit that is named is still too small.

use std::path::Path;
use std::process::{Command, Output};

use crate::common::{about_demo, demo, object, stderr};

/// The program on the bundled model under a limit in KiB.
fn limited(limit_kib: u64, home: &Path, arguments: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_coldpress");
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit -v {limit_kib} && exec \"$0\" \"$@\""), program]);
    command.env_clear().env("HOME", home).args(arguments).output().expect("sh runs")
}

/// A run with these options.
fn run(limit_kib: u64, home: &Path, options: &[&str]) -> Output {
    let demo = demo();
    let demo = demo.to_str().expect("a UTF-8 path");
    let arguments = ["run", demo, "--raw", "-p", "The old house", "--max-tokens", "2", "--threads", "4"];
    limited(limit_kib, home, &[&arguments, options].concat())
}

/// The limit that a refusal names.
fn named(refused: &Output) -> u64 {
    let said = stderr(refused);
    assert_eq!(refused.status.code(), Some(3), "{said}");
    for part in ["nothing was loaded", "too little", "ulimit -v"] {
        assert!(said.contains(part), "{said} lacks {part}");
    }
    assert!(!said.contains("swap") && !said.contains("killed"), "{said}");
    let named = said.split("(ulimit -v ").last().and_then(|rest| rest.split(' ').next());
    named.and_then(|figure| figure.parse().ok()).unwrap_or_else(|| panic!("no limit in {said}"))
}

#[test]
fn a_mapped_pack_is_refused_before_it_is_mapped_and_the_limit_that_is_named_works() {
    let folder = tempfile::tempdir().expect("a folder");
    let pack = folder.path().join("demo.cpack");
    let pack = pack.to_str().expect("UTF-8");
    assert!(about_demo("pack", &["--out", pack]).status.success());
    let options =
        ["--residency", "mapped", "--pack", pack, "--cold-fraction", "1", "--ctx", "256", "--chunk", "32"];
    // Plenty for the plan, which holds few experts, and too little for the whole pack.
    let demo = demo();
    let plan = ["plan", demo.to_str().expect("UTF-8"), "--json", "--no-probe", "--threads", "4"];
    let plan = object(&limited(1 << 20, folder.path(), &[&plan[..], &options].concat()));
    let number = |name: &str| plan["gate"]["address_space"][name].as_u64().expect(name);
    let (needed, left, limit) = (number("needed"), number("left"), number("limit"));
    assert_eq!(number("mapping"), std::fs::metadata(pack).expect("the pack").len());
    let enough = limit - left + needed;
    let refused = run((enough - (1 << 20)) >> 10, folder.path(), &options);
    assert!(stderr(&refused).contains("--residency streamed"), "{}", stderr(&refused));
    let works = named(&refused);
    let again = run(works, folder.path(), &options);
    assert_eq!(again.status.code(), Some(0), "under {works} KiB: {}", stderr(&again));
    let streamed = run(
        (enough - (1 << 20)) >> 10,
        folder.path(),
        &["--ctx", "256", "--chunk", "32", "--cold-fraction", "1"],
    );
    assert_eq!(streamed.status.code(), Some(0), "the other way out: {}", stderr(&streamed));
    let open =
        run((enough - (4 << 20)) >> 10, folder.path(), &[&options[..], &["--memory-gate", "off"]].concat());
    assert!(stderr(&open).contains("the system will refuse to map the pack"), "{}", stderr(&open));
}

#[test]
fn a_plan_beyond_the_limit_is_refused_and_the_limit_that_is_named_works() {
    let folder = tempfile::tempdir().expect("a folder");
    let options = ["--budget", "unlimited", "--ctx", "8192", "--kv", "f32"];
    let refused = run(100 << 10, folder.path(), &options);
    let works = named(&refused);
    let again = run(works, folder.path(), &options);
    assert_eq!(again.status.code(), Some(0), "under {works} KiB: {}", stderr(&again));
    let open = run(100 << 10, folder.path(), &[&options[..], &["--memory-gate", "off"]].concat());
    assert!(stderr(&open).contains("the system will refuse an allocation"), "{}", stderr(&open));
    assert!(!stderr(&open).contains("swap"), "{}", stderr(&open));
}
