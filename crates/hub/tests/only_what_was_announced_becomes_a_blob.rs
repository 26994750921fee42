//! Lengths and hashes: what differs from the hub's word is removed, and said.

use std::fs;

use crate::common::mock_hub::{Fault, MockHub, sha256};
use crate::common::{User, bytes};

/// The message of a pull of one file under these faults; nothing may be left of the file.
fn refused(path: &str, faults: Vec<Fault>) -> String {
    let content = bytes(100_000, 1);
    let hub = MockHub::new(&[("config.json", b"{}"), ("model.safetensors", b"weights"), (path, &content)]);
    hub.faults(path, faults);
    let mut user = User::of(&hub);
    let message = user.refusal();
    assert!(!user.blob(path, &content).exists() && !user.linked(path).exists(), "{message}");
    message
}

#[test]
fn a_large_file_with_another_sha256_is_removed_and_both_hashes_are_said() {
    let content = bytes(100_000, 1);
    let mut corrupt = content.clone();
    corrupt[50_000] ^= 1;
    let hub = MockHub::new(&[("m.gguf", &content)]);
    hub.faults("m.gguf", [Fault::Corrupt]);
    let mut user = User::of(&hub);
    let message = user.refusal();
    for part in
        ["m.gguf has the SHA-256", &sha256(&content), &sha256(&corrupt), "97.7 KiB that arrived are removed"]
    {
        assert!(message.contains(part), "{message} lacks {part}");
    }
    assert!(!user.part("m.gguf", &content).exists());
    user.pull(None).expect("the next pull works");
}

#[test]
fn a_small_file_is_checked_as_git_does() {
    assert!(refused("tokenizer.json", vec![Fault::Corrupt]).contains("tokenizer.json has the git SHA-1"));
}

#[test]
fn a_wrong_hash_after_a_cut_is_found_too() {
    let content = bytes(100_000, 1);
    let hub = MockHub::new(&[("m.gguf", &content)]);
    hub.faults("m.gguf", [Fault::Cut(30_000), Fault::Corrupt]);
    let message = User::of(&hub).refusal();
    assert!(message.contains("has the SHA-256"), "{message}");
}

#[test]
fn another_length_is_refused_after_a_second_try() {
    for by in [-5, 5] {
        let content = bytes(100_000, 1);
        let hub = MockHub::new(&[("m.gguf", &content)]);
        hub.faults("m.gguf", [Fault::Longer(by)]);
        User::of(&hub).pull(None).expect("the second try has the right length");
        let message = refused("tokenizer.json", vec![Fault::Longer(by), Fault::Longer(by)]);
        let wanted = format!("is to have 100000 bytes, the server gives {}", 100_000 + by);
        assert!(message.contains(&wanted), "{message}");
    }
}

#[test]
fn a_body_without_end_is_left_at_the_announced_length() {
    let content = bytes(100_000, 1);
    let hub = MockHub::new(&[("m.gguf", &content)]);
    hub.faults("m.gguf", [Fault::Endless, Fault::Endless]);
    let mut user = User::of(&hub);
    let message = user.refusal();
    assert!(message.contains("is to have 100000 bytes, the server gives"), "{message}");
    let part = fs::metadata(user.part("m.gguf", &content)).map_or(0, |data| data.len());
    assert!(part <= 100_000, "{part} bytes were kept");
}

#[test]
fn a_compressed_body_is_not_taken_for_the_file() {
    let message = refused("tokenizer.json", vec![Fault::Compressed, Fault::Compressed]);
    assert!(message.contains("comes compressed, which was not asked for"), "{message}");
}

#[test]
fn an_index_with_another_hash_is_not_believed() {
    let index = "model.safetensors.index.json";
    let json = br#"{"weight_map": {"a": "x.safetensors"}}"#;
    let hub = MockHub::new(&[("config.json", b"{}"), ("x.safetensors", b"weights"), (index, json)]);
    hub.faults(index, [Fault::Corrupt, Fault::Corrupt]);
    let mut user = User::of(&hub);
    let message = user.plan(None).expect_err("refused").to_string();
    assert!(message.contains("index.json has the git SHA-1"), "{message}");
    assert_eq!(user.plan(None).expect("a plan").files.len(), 3);
}

#[test]
fn an_index_that_names_what_is_not_there_is_refused() {
    let index = "model.safetensors.index.json";
    let json = br#"{"weight_map": {"a": "x-1.safetensors", "b": "x-2.safetensors"}}"#;
    let hub = MockHub::new(&[("config.json", b"{}"), ("x-1.safetensors", b"weights"), (index, json)]);
    let message = User::of(&hub).refusal();
    assert!(
        message.contains("file x-2.safetensors of model.safetensors.index.json is missing there"),
        "{message}"
    );
}
