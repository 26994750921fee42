//! `coldpress status` shows every running program with its memory, and nothing of those that have ended or were killed.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{coldpress, demo};
use serde_json::Value;

fn within(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = coldpress(arguments);
    command.env("XDG_RUNTIME_DIR", folder);
    command
}

fn programs(folder: &Path) -> Vec<Value> {
    let output = within(folder, &["status", "--json"]).output().expect("runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let object: Value = serde_json::from_slice(&output.stdout).expect("one object");
    object["programs"].as_array().expect("a list").clone()
}

fn text(folder: &Path) -> String {
    let output = within(folder, &["status"]).output().expect("runs");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// A conversation that has answered once and waits for the next question.
fn chat(folder: &Path, options: &[&str]) -> Child {
    let demo = demo();
    let demo = demo.to_str().expect("a UTF-8 path");
    let arguments = ["chat", demo, "--ctx", "512", "--max-tokens", "4"];
    let mut child = within(folder, &[&arguments, options].concat())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    child.stdin.as_mut().expect("a pipe").write_all(b"Where is the house?\n").expect("asks");
    let lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    let seen: Vec<String> =
        lines.map_while(Result::ok).take_while(|line| !line.starts_with("peak")).collect();
    assert!(seen.iter().any(|line| line.starts_with("ready: one token after")), "{seen:?}");
    child
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(30), "{what}: still not so");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn what_runs_is_shown_and_what_ended_is_not() {
    let folder = tempfile::tempdir().expect("a folder");
    assert!(text(folder.path()).starts_with("no program of coldpress is running (looked in "));
    let mut chat = chat(folder.path(), &["--cold-fraction", "0.75", "--idle-after", "0.3"]);
    wait_for("the experts are given back", || {
        let programs = programs(folder.path());
        programs.first().is_some_and(|program| program["now"]["released"] == "experts")
    });
    let program = programs(folder.path()).remove(0);
    assert_eq!(program["pid"], chat.id());
    assert_eq!(program["now"]["experts"]["slot_bytes"], 0);
    assert!(program["now"]["ledger"]["used"].as_u64().expect("bytes") > 1 << 20);
    assert!(program["press"]["cold_fraction"].as_f64().is_some(), "{program}");
    let shown = text(folder.path());
    for wanted in ["chat", "demo.gguf", "gave back experts", "budget", "expert slots 0 B", "% of", "pressure"]
    {
        assert!(shown.contains(wanted), "{wanted} in {shown}");
    }
    chat.kill().expect("killed");
    chat.wait().expect("ended");
    assert!(programs(folder.path()).is_empty());
    let left = fs::read_dir(folder.path().join("coldpress")).expect("the folder").count();
    assert_eq!(left, 0, "the state of the killed program was removed");
}

#[test]
fn loading_a_resident_model_is_no_miss() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut chat = chat(folder.path(), &["--residency", "resident"]);
    wait_for("the answer is counted", || {
        let programs = programs(folder.path());
        programs.first().is_some_and(|program| program["now"]["experts"]["hits"].as_u64() > Some(0))
    });
    let experts = programs(folder.path()).remove(0)["now"]["experts"].clone();
    assert_eq!(experts["misses"], 0, "{experts}");
    assert!(experts["bytes_read"].as_u64() > Some(1 << 20), "it was read all the same: {experts}");
    assert!(text(folder.path()).contains("100.0 % of"), "{}", text(folder.path()));
    chat.kill().expect("killed");
    chat.wait().expect("ended");
}

#[test]
fn every_command_that_loads_a_model_shows_itself() {
    let folder = tempfile::tempdir().expect("a folder");
    let demo = demo();
    let demo = demo.to_str().expect("a UTF-8 path");
    let place = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    let (trace, logits) = (place("a.cptrace"), place("a.npy"));
    let ids = vec!["1"; 4000].join(",");
    for arguments in [
        &["bench", demo, "--repeat", "100000"][..],
        &["run", demo, "--raw", "-p", "A", "--ignore-eos", "--max-tokens", "4000"],
        &["trace", demo, "-p", "A", "--ignore-eos", "--gen-tokens", "4000", "--out", &trace],
        &["logits", demo, "--ids", &ids, "--out", &logits],
    ] {
        let start = || {
            let mut command = within(folder.path(), arguments);
            command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("starts")
        };
        let mut child = start();
        wait_for(arguments[0], || {
            // A fast machine may be done before anybody looks.
            if child.try_wait().expect("can be asked").is_some() {
                child = start();
            }
            programs(folder.path()).iter().any(|program| program["command"] == arguments[0])
        });
        child.kill().expect("killed");
        child.wait().expect("ended");
        assert!(programs(folder.path()).is_empty());
    }
}

#[test]
fn files_of_others_are_left_alone_and_break_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let states = folder.path().join("coldpress");
    fs::create_dir(&states).expect("a folder");
    let mine = std::process::id();
    fs::write(states.join(format!("{mine}.json")), "not json").expect("writes");
    fs::write(states.join("notes.txt"), "mine").expect("writes");
    fs::write(states.join("4294967295.json"), "{}").expect("writes");
    assert!(programs(folder.path()).is_empty());
    assert!(states.join("notes.txt").exists() && !states.join("4294967295.json").exists());
    fs::write(
        states.join(format!("{mine}.json")),
        "{\"pid\": \"x\", \"model\": \"a\\u001b[31mb\", \"now\": [1]}",
    )
    .expect("writes");
    let shown = text(folder.path());
    assert!(shown.contains("a?[31mb") && !shown.contains('\u{1b}'), "no control characters: {shown}");
    assert!(shown.contains("no sign of life"), "a state that is old says so: {shown}");
    // A name that no program would give its file.
    fs::rename(states.join(format!("{mine}.json")), states.join(format!("0{mine}.json"))).expect("renames");
    assert!(programs(folder.path()).is_empty());
}
