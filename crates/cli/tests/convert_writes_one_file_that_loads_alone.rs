//! `convert`: a file that loads alone and answers like the model, a pack by the same words as `pack`, and refusals that name the way out.
//!
//! What could go wrong: a tokenizer or template that stays behind, a type for experts that reaches other matrices or the other way round,
//! options of one kind of target that the other takes in silence.

use crate::common::{demo, object, run, run_demo, stderr, stdout};

#[test]
fn a_file_and_a_pack_are_written_and_used() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = |name: &str| folder.path().join(name).to_str().expect("a UTF-8 path").to_owned();
    let demo = demo();
    let demo = demo.to_str().expect("a UTF-8 path");
    let copy = place("copy.gguf");
    let written = run(&["convert", demo, "--to", "gguf", "--out", &copy]);
    assert!(stdout(&written).contains("tensors as they were"), "{}{}", stdout(&written), stderr(&written));
    let answer = ["-p", "The old house", "--max-tokens", "6", "--json"];
    let text =
        |model: &str| object(&run(&[&["run", model, "--ctx", "512"], &answer[..]].concat()))["text"].clone();
    assert_eq!(text(&copy), object(&run_demo(&answer))["text"], "with its own tokenizer and chat template");

    let smaller = place("smaller.gguf");
    let report =
        object(&run(&["convert", demo, "--to", "gguf", "--out", &smaller, "--experts", "mxfp4", "--json"]));
    assert_eq!((&report["lossless"], &report["converted"]), (&false.into(), &24.into()), "{report}");
    assert!(text(&smaller).as_str().is_some_and(|text| !text.is_empty()));

    let packs = place("packs");
    let packed =
        object(&run(&["convert", demo, "--to", "pack", "--experts", "mxfp4", "--out", &packs, "--json"]));
    assert_eq!(packed["lossy"], "experts mxfp4");

    let refused = |more: &[&str], words: &str| {
        let output = run(&[&["convert", demo], more].concat());
        assert_eq!(output.status.code(), Some(2), "{more:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(words), "{more:?}: {}", stderr(&output));
    };
    refused(&["--to", "gguf"], "--out");
    refused(&["--to", "gguf", "--out", &copy], "not overwritten");
    refused(&["--to", "gguf", "--out", &place("x.gguf"), "--experts", "iq4_nl"], "q4_k");
    refused(&["--to", "gguf", "--out", &place("x.gguf"), "--budget", "1GiB"], "for a pack");
    refused(&["--to", "pack", "--type", "q8_0"], "--experts");
    refused(&["--to", "pack", "--experts", "f16"], "keep");
}
