//! `pull` against a hub on the loopback interface: the path that it prints is one that `run` takes, also after a kill in the middle.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::common::{coldpress, demo, object, run_demo, stderr, stdout};

#[path = "../../hub/tests/common/mock_hub.rs"]
mod mock_hub;

use mock_hub::{COMMIT, Fault, MockHub, REPO, sha256};

const PROMPT: [&str; 5] = ["--raw", "-p", "The old house", "--max-tokens", "8"];

fn pull_command(hub: &MockHub, home: &TempDir, arguments: &[&str]) -> Command {
    let mut command = coldpress(&[&["pull"], arguments].concat());
    for name in [
        "HF_TOKEN",
        "HF_HUB_CACHE",
        "HF_HUB_OFFLINE",
        "TRANSFORMERS_OFFLINE",
        "SSL_CERT_FILE",
        "HF_TOKEN_PATH",
    ] {
        command.env_remove(name);
    }
    command.env("HF_ENDPOINT", hub.url()).env("HF_HOME", home.path());
    command
}

fn pull(hub: &MockHub, home: &TempDir, arguments: &[&str]) -> Output {
    pull_command(hub, home, arguments).output().expect("the program starts")
}

fn home() -> TempDir {
    TempDir::new().expect("a folder")
}

fn repo(home: &TempDir) -> PathBuf {
    home.path().join("hub/models--org--model")
}

/// A pull of the bundled model that takes seconds, with some of it arrived.
fn slow_pull(hub: &MockHub, home: &TempDir, model: &[u8]) -> (Child, PathBuf) {
    hub.faults("demo.gguf", [Fault::Slow(200_000, Duration::from_millis(50))]);
    let mut command = pull_command(hub, home, &[REPO]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    let part = repo(home).join("blobs").join(format!("{}.incomplete", sha256(model)));
    let started = Instant::now();
    while fs::metadata(&part).map_or(0, |data| data.len()) < 1_000_000 {
        assert!(started.elapsed() < Duration::from_secs(30), "nothing arrives");
        std::thread::sleep(Duration::from_millis(10));
    }
    (child, part)
}

/// Pulls the rest of what is in `part`, and runs the model.
fn goes_on(hub: &MockHub, home: &TempDir, part: &Path, model: &[u8]) {
    let arrived = fs::metadata(part).expect("the part is kept").len();
    assert!(arrived < model.len() as u64);
    let output = pull(hub, home, &[REPO]);
    assert!(output.status.success(), "{}", stderr(&output));
    let ranges: Vec<_> = hub.seen_files().into_iter().map(|seen| seen.range).collect();
    assert_eq!(ranges, [None, Some(format!("bytes={arrived}-{}", model.len() - 1))]);
    assert!(fs::read(stdout(&output).trim_end()).expect("the model") == model);
    assert!(!part.exists());
}

#[test]
fn the_path_that_pull_prints_is_one_that_run_takes() {
    let model = fs::read(demo()).expect("the bundled model");
    let (hub, home) = (MockHub::new(&[("demo.gguf", &model), ("README.md", b"read me")]), home());
    let pulled = pull(&hub, &home, &[REPO]);
    assert!(pulled.status.success(), "{}", stderr(&pulled));
    let path = stdout(&pulled);
    let path = path.strip_suffix('\n').expect("one line");
    assert_eq!(Path::new(path), repo(&home).join("snapshots").join(COMMIT).join("demo.gguf"));
    let ran = coldpress(&[&["run", path, "--ctx", "512"], &PROMPT[..]].concat())
        .output()
        .expect("the program starts");
    assert!(ran.status.success(), "{}", stderr(&ran));
    assert_eq!(stdout(&ran), stdout(&run_demo(&PROMPT)));
    let said = stderr(&pulled);
    assert!(said.lines().count() == 1 && said.contains("org/model at 01234567: 1 file, "), "{said}");
    // A second time nothing is fetched, and the hub need not be there.
    let again = pull(&hub, &home, &[REPO]);
    assert!(
        stderr(&again).contains("all of it was there") && stdout(&again) == stdout(&pulled),
        "{}",
        stderr(&again)
    );
    let mut offline = pull_command(&hub, &home, &[REPO]);
    drop(hub);
    assert_eq!(
        stdout(&offline.env("HF_HUB_OFFLINE", "1").output().expect("the program starts")),
        stdout(&pulled)
    );
}

#[test]
fn a_pull_that_was_killed_goes_on_where_it_was() {
    let model = fs::read(demo()).expect("the bundled model");
    let (hub, home) = (MockHub::new(&[("demo.gguf", &model)]), home());
    let (mut child, part) = slow_pull(&hub, &home, &model);
    child.kill().expect("killed");
    child.wait().expect("ended");
    goes_on(&hub, &home, &part, &model);
}

#[test]
#[cfg(unix)]
fn ctrl_c_ends_with_130_and_keeps_the_part() {
    let model = fs::read(demo()).expect("the bundled model");
    let (hub, home) = (MockHub::new(&[("demo.gguf", &model)]), home());
    let (child, part) = slow_pull(&hub, &home, &model);
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(killed.expect("kill runs").success());
    let started = Instant::now();
    let output = child.wait_with_output().expect("ended");
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("what has arrived is kept") && stdout(&output).is_empty(),
        "{}",
        stderr(&output)
    );
    goes_on(&hub, &home, &part, &model);
}

#[test]
fn a_dry_run_says_what_where_and_how_much_and_writes_nothing() {
    let hub = MockHub::new(&[("m-Q4_0.gguf", &[1; 3000]), ("m-Q8_0.gguf", &[2; 6000])]);
    let home = home();
    let name = format!("{REPO}:q8_0");
    let text = stdout(&pull(&hub, &home, &[&name, "--dry-run"]));
    let path = repo(&home).join("snapshots").join(COMMIT).join("m-Q8_0.gguf");
    for part in [
        "5.9 KiB  fetch",
        "1 file, 5.9 KiB; 5.9 KiB would be fetched, ",
        " are free in ",
        path.to_str().expect("UTF-8"),
    ] {
        assert!(text.contains(part), "{text} lacks {part}");
    }
    assert_eq!(fs::read_dir(home.path()).expect("a folder").count(), 0);
    let planned = object(&pull(&hub, &home, &[&name, "--dry-run", "--json"]));
    assert_eq!((&planned["dry_run"], &planned["missing_bytes"]), (&true.into(), &6000.into()));
    let pulled = object(&pull(&hub, &home, &[&name, "--json"]));
    assert_eq!((&pulled["dry_run"], &pulled["files"]), (&false.into(), &planned["files"]));
    assert_eq!(pulled["path"], path.to_str().expect("UTF-8"));
    let elsewhere = home.path().join("elsewhere");
    let there =
        object(&pull(&hub, &home, &[&name, "--json", "--cache-dir", elsewhere.to_str().expect("UTF-8")]));
    assert!(there["path"].as_str().is_some_and(|path| Path::new(path).starts_with(&elsewhere)), "{there}");
}

#[test]
fn exit_codes_and_messages_tell_what_to_do() {
    let hub = MockHub::new(&[("m-Q4_0.gguf", &[1; 3000]), ("m-Q8_0.gguf", &[2; 6000])]);
    let home = home();
    for (arguments, code, said) in [
        (&["../x"][..], 2, "it is ORGANISATION/NAME"),
        (&[REPO], 2, "choose one as org/model:QUANT\n  Q4_0  "),
        (&["org/model:q5_0"], 2, "no model called \"q5_0\""),
        (&[REPO, "--revision", "../x"], 2, "leaves its folder"),
        (&["org/other"], 1, "check the name"),
    ] {
        let output = pull(&hub, &home, arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", stderr(&output));
        assert!(
            stderr(&output).contains(said) && stdout(&output).is_empty(),
            "{arguments:?}: {}",
            stderr(&output)
        );
    }
    let failed = pull(&hub, &home, &["org/other", "--json"]);
    let failed: serde_json::Value = serde_json::from_str(&stdout(&failed)).expect("one object");
    assert_eq!(failed["error"]["exit_code"], 1);
    let mut wrong = pull_command(&hub, &home, &[REPO]);
    let wrong = wrong.env("HF_ENDPOINT", "hub.example").output().expect("the program starts");
    assert_eq!(wrong.status.code(), Some(2), "{}", stderr(&wrong));
}
