//! Ctrl-C and a reader that goes away end a run or a series of measurements at once, without a panic and without a killed process.

use std::io::Read;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::common::{coldpress, demo};

/// A run that would go on for a long time.
fn long_run() -> Child {
    let demo = demo();
    let demo = demo.to_str().expect("a UTF-8 path");
    let arguments = [
        "run",
        demo,
        "--raw",
        "-p",
        "The old",
        "--ignore-eos",
        "--max-tokens",
        "2000",
        "--cold-fraction",
        "0.9",
    ];
    coldpress(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts")
}

fn ends_within(child: &mut Child, limit: Duration) -> i32 {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("the child exists") {
            return status.code().expect("no signal ended it");
        }
        assert!(started.elapsed() < limit, "still running after {limit:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn messages(child: &mut Child) -> String {
    let mut text = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut text).expect("UTF-8");
    text
}

#[test]
#[cfg(unix)]
fn ctrl_c_ends_with_130_and_the_final_line() {
    let mut child = long_run();
    let mut out = child.stdout.take().expect("piped");
    out.read_exact(&mut [0; 8]).expect("the answer has begun");
    let killed = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(killed.expect("kill runs").success());
    let mut rest = Vec::new();
    out.read_to_end(&mut rest).expect("the rest");
    assert_eq!(ends_within(&mut child, Duration::from_secs(10)), 130);
    let messages = messages(&mut child);
    assert!(messages.starts_with("peak ") && !messages.contains("panicked"), "{messages}");
}

#[test]
fn a_closed_pipe_ends_quietly() {
    let mut child = long_run();
    let mut out = child.stdout.take().expect("piped");
    out.read_exact(&mut [0; 8]).expect("the answer has begun");
    drop(out);
    assert_eq!(ends_within(&mut child, Duration::from_secs(10)), 0);
    assert_eq!(messages(&mut child), "");
}

#[test]
#[cfg(unix)]
fn ctrl_c_ends_measurements_with_130_and_half_a_report_is_none() {
    let demo = demo();
    let arguments = ["bench", demo.to_str().expect("a UTF-8 path"), "--repeat", "1000000000", "--json"];
    let mut command = coldpress(&arguments);
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    // Nothing is printed on the way; by then it loads or measures, and a stop means the same in both.
    std::thread::sleep(Duration::from_millis(700));
    let killed = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(killed.expect("kill runs").success());
    assert_eq!(ends_within(&mut child, Duration::from_secs(10)), 130);
    let mut out = String::new();
    child.stdout.take().expect("piped").read_to_string(&mut out).expect("UTF-8");
    assert_eq!((out.as_str(), messages(&mut child).as_str()), ("", ""));
}
