//! Scripts branch on the exit code: 0 ok, 1 failed, 2 bad usage, 3 does not fit the budget, 4 bad model file.

use crate::common::{coldpress, demo, run, run_demo, stderr, stdout};

fn code_and_message(arguments: &[&str]) -> (Option<i32>, String) {
    let output = run(arguments);
    (output.status.code(), stderr(&output))
}

#[test]
fn ok_is_0_and_the_last_line_shows_peak_and_budget() {
    let output = run_demo(&["--raw", "-p", "The old house", "--max-tokens", "4", "--cold-fraction", "0.75"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(!stdout(&output).is_empty());
    let messages = stderr(&output);
    let last = messages.lines().last().expect("a final line");
    for part in
        ["peak ", " of budget ", " tok/s prefill", " tok/s decode", "experts ", " hits", " misses", " read"]
    {
        assert!(last.contains(part), "{last:?} lacks {part:?}");
    }
    assert_eq!(messages.lines().count(), 1, "a pipe gets no progress: {messages:?}");
}

#[test]
fn bad_usage_is_2() {
    let demo = demo();
    let demo = demo.to_str().expect("a UTF-8 path");
    for arguments in [
        vec!["run"],
        vec!["run", demo, "-p", "x", "--budget", "10foo"],
        vec!["run", demo, "-p", "x", "--budget", "0"],
        vec!["run", demo, "-p", "x", "--cold-fraction", "1.5"],
        vec!["run", demo, "-p", "x", "--policy", "clairvoyant"],
        vec!["run", demo, "-p", "x", "--threads", "0"],
        vec!["run", demo, "-p", "x", "--ctx", "0"],
        vec!["run", demo, "-p", "x", "--max-tokens", "0"],
        vec!["run", demo, "-p", "x", "--temperature", "-1"],
        vec!["run", demo, "-p", "x", "--temperature", "nan"],
        vec!["run", demo, "-p", "x", "--parse-special"],
        vec!["run", demo, "-p", "x", "--raw", "--system", "y"],
        vec!["run", demo, "-p", "x", "--residency", "resident", "--cold-fraction", "0.5"],
        vec!["run", demo, "--raw", "-p", ""],
        vec!["logits", demo, "--ids", "1,x", "--out", "unused.npy"],
    ] {
        let (code, message) = code_and_message(&arguments);
        assert_eq!(code, Some(2), "{arguments:?}: {message}");
        assert!(!message.contains("panicked"), "{message}");
    }
}

#[test]
fn a_variable_with_a_value_that_means_nothing_is_2() {
    let demo = demo();
    let output = coldpress(&["plan", demo.to_str().expect("a UTF-8 path")])
        .env("COLDPRESS_ISA", "mmx")
        .output()
        .expect("the program starts");
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("COLDPRESS_ISA"), "{}", stderr(&output));
}

#[test]
fn a_budget_that_cannot_work_is_3_and_the_one_it_names_works() {
    let output = run_demo(&["-p", "x", "--budget", "10MiB"]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    let message = stderr(&output);
    for part in ["dense weights", "KV cache", "scratch", "expert slots", "MiB", "missing"] {
        assert!(message.contains(part), "{message} lacks {part:?}");
    }
    let smallest =
        message.lines().find_map(|line| line.strip_prefix("--budget ")).expect("the smallest budget");
    let smallest: u64 = smallest.split(' ').next().expect("a figure").parse().expect("bytes");
    let exactly = smallest.to_string();
    let below = (smallest - 1).to_string();
    assert_eq!(run_demo(&["-p", "x", "--max-tokens", "2", "--budget", &exactly]).status.code(), Some(0));
    assert_eq!(run_demo(&["-p", "x", "--max-tokens", "2", "--budget", &below]).status.code(), Some(3));
}

#[test]
fn a_bad_model_file_is_4_and_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let whole = std::fs::read(demo()).expect("the bundled model");
    let cases: [(&str, &[u8]); 4] = [
        ("empty", b""),
        ("magic", b"GGUF"),
        ("text", b"not a model at all"),
        ("cut", &whole[..whole.len() / 2]),
    ];
    for (name, bytes) in cases {
        let path = folder.path().join(format!("{name}.gguf"));
        std::fs::write(&path, bytes).expect("a file");
        let path = path.to_str().expect("a UTF-8 path");
        let mut commands =
            vec![vec!["run", path, "-p", "x"], vec!["inspect", path], vec!["pack", path, "--out", "x"]];
        // The header of the cut file is whole, and a plan needs no more.
        if name != "cut" {
            commands.push(vec!["plan", path]);
        }
        for arguments in commands {
            let (code, message) = code_and_message(&arguments);
            assert_eq!(code, Some(4), "{arguments:?}: {message}");
            assert!(message.contains(&format!("{name}.gguf")), "{message} does not name the file");
        }
    }
    let (code, message) = code_and_message(&["run", "no/such/file.gguf", "-p", "x"]);
    assert_eq!(code, Some(4), "{message}");
}
