//! Running the built program on the bundled model.
#![allow(dead_code, reason = "each test uses a part")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The bundled model.
pub fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo.gguf")
}

/// The program, without the user's environment.
pub fn coldpress(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_coldpress"));
    let ours = std::env::vars_os().map(|(name, _)| name).filter(|name| {
        let name = name.to_string_lossy();
        name.starts_with("COLDPRESS_") || name == "XDG_CACHE_HOME" || name == "HOME"
    });
    for name in ours {
        command.env_remove(name);
    }
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Runs to the end.
pub fn run(arguments: &[&str]) -> Output {
    coldpress(arguments).output().expect("the program starts")
}

/// `run` on the bundled model.
pub fn run_demo(arguments: &[&str]) -> Output {
    let demo = demo();
    let mut all = vec!["run", demo.to_str().expect("a UTF-8 path"), "--ctx", "512"];
    all.extend(arguments);
    run(&all)
}

/// A command of the program about the bundled model.
pub fn about_demo(command: &str, arguments: &[&str]) -> Output {
    let demo = demo();
    run(&[&[command, demo.to_str().expect("a UTF-8 path")], arguments].concat())
}

/// The one JSON object that a successful command printed.
pub fn object(output: &Output) -> serde_json::Value {
    assert!(output.status.success(), "{}", stderr(output));
    let text = stdout(output);
    assert_eq!(text.lines().count(), 1, "{text}");
    serde_json::from_str(&text).expect("one JSON object")
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("standard output is UTF-8")
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("standard error is UTF-8")
}
