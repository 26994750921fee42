//! Tokenizer files come from anywhere. A malformed one is an error that names what is wrong, never a panic, a hang or gigabytes;
//! and a step that is not supported is refused by its name.

use coldpress_text::{TextError, Tokenizer, TokenizerConfig, TokenizerFolder};
use proptest::prelude::*;
use serde_json::{Value, json};

fn file() -> Value {
    json!({"added_tokens": [{"id": 3, "content": "<s>", "special": true}], "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true}, "post_processor": null,
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}})
}

fn read(file: &Value) -> Result<Tokenizer, TextError> {
    Tokenizer::from_tokenizer_json(file.to_string().as_bytes(), &TokenizerConfig::default())
}

#[track_caller]
fn refused(change: impl FnOnce(&mut Value), words: &[&str]) {
    let mut file = file();
    change(&mut file);
    let error = read(&file).err().expect("is refused").to_string();
    for word in words {
        assert!(error.contains(word), "{error} does not name {word}");
    }
}

#[test]
fn the_unchanged_file_is_accepted() {
    assert_eq!(read(&file()).unwrap().vocab_size(), 4);
}

#[test]
fn a_step_that_is_not_supported_is_named() {
    refused(|file| file["model"]["type"] = json!("Unigram"), &["Unigram"]);
    refused(|file| file["model"] = json!({"type": "Unigram", "vocab": [["a", 0.1]]}), &["Unigram"]);
    refused(|file| file["model"]["dropout"] = json!(0.1), &["dropout"]);
    refused(|file| file["model"]["continuing_subword_prefix"] = json!("##"), &["continuing_subword_prefix"]);
    refused(|file| file["normalizer"] = json!({"type": "Lowercase"}), &["Lowercase"]);
    refused(
        |file| file["normalizer"] = json!({"type": "Precompiled", "precompiled_charsmap": "x"}),
        &["Precompiled"],
    );
    refused(|file| file["pre_tokenizer"] = json!({"type": "WhitespaceSplit"}), &["WhitespaceSplit"]);
    refused(|file| file["post_processor"] = json!({"type": "BertProcessing"}), &["BertProcessing"]);
    refused(|file| file["added_tokens"][0]["single_word"] = json!(true), &["<s>", "single word"]);
    let split = |pattern: &str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
    refused(|file| file["pre_tokenizer"] = split("a(?=b)"), &["a(?=b)"]);
    refused(|file| file["pre_tokenizer"] = split(r"(\p{L}{1000}){1000}"), &["1000"]);
    refused(|file| file["pre_tokenizer"] = split("("), &["split pattern"]);
    refused(|file| file["pre_tokenizer"] = split(&"a|".repeat(20_000)), &["limit"]);
}

#[test]
fn a_vocabulary_that_contradicts_itself_is_named() {
    refused(|file| file["model"]["vocab"]["b"] = json!(0), &["id 0", "a", "b"]);
    refused(|file| file["added_tokens"][0]["id"] = json!(2), &["id 2", "ab", "<s>"]);
    refused(|file| file["added_tokens"][0]["id"] = json!(4_000_000_000u32), &["4000000000"]);
    refused(|file| file["model"]["vocab"]["b"] = json!(-1), &["line"]);
    refused(|file| file["model"]["merges"] = json!(["a c"]), &["\"c\""]);
    refused(|file| file["model"]["merges"] = json!(["ab"]), &["ab"]);
    refused(|file| file["model"]["merges"] = json!([["a", "b", "c"]]), &["two tokens"]);
    refused(|file| file["model"]["merges"] = json!(["a b", "a b"]), &["repeats"]);
    refused(|file| file["model"]["unk_token"] = json!("<unk>"), &["unk_token", "<unk>"]);
    refused(|file| file["model"]["vocab"] = json!({}), &[]);
    refused(|file| file["model"] = Value::Null, &["tokenizer.json"]);
}

#[test]
fn nesting_is_bounded() {
    let mut steps = String::new();
    for _ in 0..100_000 {
        steps.push_str(r#"{"type":"Sequence","pretokenizers":["#);
    }
    let text = format!(r#"{{"pre_tokenizer": {steps}"#);
    let error = Tokenizer::from_tokenizer_json(text.as_bytes(), &TokenizerConfig::default()).err().unwrap();
    assert!(matches!(error, TextError::MalformedFile { .. }), "{error}");
    assert!(TokenizerConfig::from_json("[".repeat(100_000).as_bytes()).is_err());
}

#[test]
fn rank_files_are_checked_line_by_line() {
    let config = TokenizerConfig::default();
    for (text, word) in [
        ("YQ==", "line 1"),
        ("YQ== 0\nY 1", "line 2"),
        ("YQ== x", "rank"),
        ("YQ== 4294967295", "4294967295"),
        ("YQ== 0\nYg== 0", "id 0"),
    ] {
        let error =
            Tokenizer::from_tiktoken(text.as_bytes(), Some("qwen2"), &config).err().unwrap().to_string();
        assert!(error.contains(word), "{error}");
    }
    assert!(matches!(
        Tokenizer::from_tiktoken(b"YQ== 0", None, &config),
        Err(TextError::UnknownPreTokenizer { .. })
    ));
    let tekken = |size: u32, specials: u32, rank: u32| {
        json!({"config": {"pattern": r"\p{L}+", "default_vocab_size": size, "default_num_special_tokens": specials},
            "vocab": [{"rank": 0, "token_bytes": "YQ=="}], "special_tokens": [{"rank": rank, "token_str": "<s>"}]})
    };
    for file in [tekken(1, 2, 0), tekken(4_000_000_000, 1, 0), tekken(10, 3, 3), tekken(10, 3, 1)] {
        // The last has no end token.
        assert!(Tokenizer::from_tekken(file.to_string().as_bytes(), &config).is_err());
    }
}

#[test]
fn a_folder_without_a_tokenizer_says_so() {
    let error = TokenizerFolder::open(std::path::Path::new("/nonexistent")).err().unwrap();
    assert!(matches!(&error, TextError::NoTokenizerFile { folder } if folder == "/nonexistent"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_damaged_file_never_panics(cut in 0usize..500, byte in any::<u8>(), place in 0usize..500) {
        let mut text = file().to_string().into_bytes();
        let length = text.len();
        text[place % length] = byte;
        let _ = Tokenizer::from_tokenizer_json(&text, &TokenizerConfig::default());
        text.truncate(cut % length);
        let _ = Tokenizer::from_tokenizer_json(&text, &TokenizerConfig::default());
        let _ = Tokenizer::from_tekken(&text, &TokenizerConfig::default());
        let _ = Tokenizer::from_tiktoken(&text, Some("qwen2"), &TokenizerConfig::default());
        let _ = TokenizerConfig::from_json(&text);
    }
}
