//! A Hugging Face folder is taken by every command that takes a GGUF file.
//!
//! What could go wrong: a command that looks for a `.gguf` by itself, or takes the folder for something else.

use std::path::{Path, PathBuf};

use crate::common::{object, run, stdout};

fn folder() -> tempfile::TempDir {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/tests/fixtures/hugging_face");
    let folder = tempfile::tempdir().expect("a folder");
    let files = [
        "qwen3_moe/config.json",
        "qwen3_moe/model.safetensors",
        "tokenizer/tokenizer.json",
        "tokenizer/tokenizer_config.json",
    ];
    for file in files {
        let from: PathBuf = fixtures.join(file);
        std::fs::copy(&from, folder.path().join(from.file_name().expect("a name"))).expect("copied");
    }
    folder
}

#[test]
fn every_command_takes_a_folder() {
    let folder = folder();
    let path = folder.path().to_str().expect("a UTF-8 path");
    let answer = object(&run(&[
        "run",
        path,
        "--raw",
        "-p",
        "house",
        "--max-tokens",
        "6",
        "--ignore-eos",
        "--cold-fraction",
        "0.5",
        "--ctx",
        "128",
        "--json",
    ]));
    assert_eq!(answer["tokens"].as_array().expect("ids").len(), 6);
    assert!(answer["experts"]["misses"].as_u64().expect("a count") > 0, "experts are streamed: {answer}");
    // The template of the folder is used, and its control tokens end the answer or do not.
    let chat = object(&run(&["run", path, "-p", "house", "--max-tokens", "2", "--ctx", "128", "--json"]));
    let raw = answer["prompt_tokens"].as_u64().expect("a count");
    assert!(chat["prompt_tokens"].as_u64().expect("a count") > raw, "{chat}");
    let plan = object(&run(&["plan", path, "--ctx", "128", "--json"]));
    assert!(plan.to_string().contains("qwen3moe"), "{plan}");
    let inspected = object(&run(&["inspect", path, "--json"]));
    assert_eq!(inspected["metadata"]["model_type"], "qwen3_moe");
    let out = folder.path().join("folder.cpack");
    let packed = run(&["pack", path, "--out", out.to_str().expect("a UTF-8 path")]);
    assert!(packed.status.success() && out.exists(), "{packed:?}");
    let bench = run(&["bench", path, "--prompt-tokens", "16", "--gen-tokens", "4", "--json"]);
    assert!(bench.status.success(), "{bench:?}");
    let logits = folder.path().join("logits.npy");
    let arguments = ["logits", path, "--ids", "5,6,7", "--out", logits.to_str().expect("a UTF-8 path")];
    let written = run(&arguments);
    assert!(written.status.success() && logits.exists(), "{written:?}");
    assert!(stdout(&run(&["doctor", path])).contains("model"));
}
