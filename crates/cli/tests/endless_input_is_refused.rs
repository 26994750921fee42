//! A prompt that cannot fit the context is refused after reading a little more than could fit, whatever its length: the
//! budget bounds the whole process, and text is part of it.

use std::io::Write;
use std::process::Stdio;

use crate::common::{coldpress, demo};

#[test]
fn a_pipe_that_never_ends_gives_an_error() {
    let demo = demo();
    let demo = demo.to_str().expect("a UTF-8 path");
    let mut child = coldpress(&["run", demo, "--raw", "--ctx", "64"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut input = child.stdin.take().expect("piped");
    let line = [b'a'; 65_536];
    let mut written = 0usize;
    while input.write_all(&line).is_ok() {
        written += line.len();
        assert!(written < 64 << 20, "64 MiB were read for a context of 64 tokens");
    }
    let output = child.wait_with_output().expect("the program ends");
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("hold at most"), "{message}");
}

#[test]
fn json_tells_of_a_failure_too() {
    let demo = demo();
    let demo = demo.to_str().expect("a UTF-8 path");
    let output = coldpress(&["run", demo, "-p", "x", "--json", "--budget", "1MiB"])
        .output()
        .expect("the program starts");
    assert_eq!(output.status.code(), Some(3));
    let object: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!(object["error"]["exit_code"], 3);
    assert!(object["error"]["does_not_fit"]["smallest_budget"].as_u64() > Some(1 << 20));
}

#[test]
#[cfg(unix)]
fn a_signal_ends_a_program_that_waits_for_input() {
    let demo = demo();
    let demo = demo.to_str().expect("a UTF-8 path");
    for arguments in [vec!["chat", demo, "--ctx", "128"], vec!["run", demo, "--raw", "--ctx", "128"]] {
        let mut child = coldpress(&arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        std::thread::sleep(std::time::Duration::from_millis(1500));
        let killed = std::process::Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
        assert!(killed.expect("kill runs").success());
        let started = std::time::Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().expect("the child exists") {
                break status;
            }
            assert!(started.elapsed().as_secs() < 5, "{arguments:?} ignores the signal");
            std::thread::sleep(std::time::Duration::from_millis(10));
        };
        assert_eq!(status.code(), Some(130), "{arguments:?}");
    }
}
