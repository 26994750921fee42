//! A step of `tokenizer.json` that is read wrongly gives other ids without an error. The `tokenizers` crate reads the same file and
//! must give the same ids, for every kind of step that is supported, on texts of many scripts and on random ones.

use coldpress_text::{ParseSpecial, Tokenizer, TokenizerConfig};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::LazyLock;

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

fn split(pattern: &str, behavior: &str, invert: bool) -> Value {
    json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert})
}

fn byte_level(use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
}

fn sequence(steps: &[Value]) -> Value {
    json!({"type": "Sequence", "pretokenizers": steps})
}

fn added(id: usize, content: &str, special: bool, lstrip: bool, rstrip: bool) -> Value {
    json!({"id": id, "content": content, "single_word": false, "lstrip": lstrip, "rstrip": rstrip, "normalized": false, "special": special})
}

fn around(before: &str, id: usize) -> Value {
    json!({"type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": before, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {before: {"id": before, "ids": [id], "tokens": [before]}}})
}

/// A byte-level file with the vocabulary of the fixture.
fn byte_level_file(normalizer: Value, pre_tokenizer: Value, ignore_merges: bool) -> Value {
    let vocabulary = crate::common::byte_pairs().vocabulary;
    // The crate numbers added tokens that are not in the vocabulary by itself, so all of them are.
    let vocab: BTreeMap<&str, usize> = vocabulary.tokens.iter().map(String::as_str).zip(0..).collect();
    let mut added_tokens = Vec::new();
    for (id, kind) in vocabulary.types.iter().enumerate().filter(|(_, kind)| **kind != 1) {
        // One takes the space before it, one the space after it.
        added_tokens.push(added(id, &vocabulary.tokens[id], *kind == 3, id % 3 == 1, id % 3 == 2));
    }
    let first = added_tokens[0].clone();
    let (id, content) = (first["id"].as_u64().unwrap() as usize, first["content"].as_str().unwrap());
    // Both ways of writing merges.
    let merge = |merge: &String| match ignore_merges {
        true => json!(merge.split_once(' ').map(|(left, right)| [left, right])),
        false => json!(merge),
    };
    let merges: Vec<Value> = vocabulary.merges.iter().map(merge).collect();
    json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": added_tokens, "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer, "decoder": byte_level(true),
        "post_processor": {"type": "Sequence", "processors": [byte_level(true), around(content, id)]},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": false, "byte_fallback": false, "ignore_merges": ignore_merges, "vocab": vocab, "merges": merges}})
}

/// A file in the manner of Llama 2: characters, byte tokens, marks for spaces.
fn character_file(normalizer: Value, pre_tokenizer: Value, byte_fallback: bool) -> Value {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).to_vec();
    if byte_fallback {
        tokens.extend((0..256).map(|byte| format!("<0x{byte:02X}>")));
    }
    tokens.extend("▁abcdefghijklmnopqrstuvwxyzHWé中,.'\n".chars().map(String::from));
    let mut merges = Vec::new();
    for word in ["▁▁", "▁▁▁▁", "▁hello", "▁world", "lo", "▁the", "ing", "▁Hel", "中中", "\n\n", "ab▁c"]
    {
        let letters: Vec<String> = word.chars().map(String::from).collect();
        let mut left = letters[0].clone();
        for right in &letters[1..] {
            let joined = format!("{left}{right}");
            if !merges.contains(&json!([left, right])) {
                merges.push(json!([left, right]));
            }
            if !tokens.contains(&joined) {
                tokens.push(joined.clone());
            }
            left = joined;
        }
    }
    let mark = tokens.iter().position(|token| token == "▁▁").unwrap();
    let vocab: BTreeMap<&String, usize> = tokens.iter().zip(0..).collect();
    let count = tokens.len();
    let added_tokens = json!([
        added(0, "<unk>", true, false, false),
        added(1, "<s>", true, false, false),
        added(2, "</s>", true, false, false),
        added(mark, "▁▁", false, false, false),
        added(count, "<tool>", false, false, false)
    ]);
    json!({"version": "1.0", "added_tokens": added_tokens, "normalizer": normalizer, "pre_tokenizer": pre_tokenizer,
        "post_processor": around("<s>", 1), "decoder": null,
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": byte_fallback, "vocab": vocab, "merges": merges}})
}

fn files() -> Vec<(&'static str, Value)> {
    let nfc = || json!({"type": "NFC"});
    let replace = || json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let prepend =
        json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replace()]});
    let no_op = json!({"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false});
    let metaspace = |scheme: &str, split: bool| json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split});
    let digits = |single: bool| json!({"type": "Digits", "individual_digits": single});
    vec![
        ("GPT-2", byte_level_file(Value::Null, byte_level(true), false)),
        (
            "Llama 3",
            byte_level_file(
                Value::Null,
                sequence(&[split(LLAMA3, "Isolated", false), byte_level(false)]),
                true,
            ),
        ),
        (
            "Qwen",
            byte_level_file(nfc(), sequence(&[split(LLAMA3, "Isolated", false), byte_level(false)]), false),
        ),
        ("NFKC", byte_level_file(json!({"type": "NFKC"}), byte_level(true), false)),
        (
            "matches only",
            byte_level_file(Value::Null, sequence(&[split(GPT2, "Removed", true), byte_level(false)]), false),
        ),
        (
            "gaps only",
            byte_level_file(
                Value::Null,
                sequence(&[split("[0-9]+", "Removed", false), byte_level(true)]),
                false,
            ),
        ),
        (
            "ends",
            byte_level_file(
                Value::Null,
                sequence(&[split("[ ,.]", "MergedWithPrevious", false), byte_level(false)]),
                false,
            ),
        ),
        (
            "begins",
            byte_level_file(
                Value::Null,
                sequence(&[split("[ ,.]", "MergedWithNext", false), byte_level(false)]),
                false,
            ),
        ),
        ("digits", byte_level_file(Value::Null, sequence(&[digits(true), byte_level(true)]), false)),
        (
            "numbers and signs",
            byte_level_file(
                Value::Null,
                sequence(&[
                    json!({"type": "Punctuation", "behavior": "Isolated"}),
                    digits(false),
                    byte_level(false),
                ]),
                false,
            ),
        ),
        ("Llama 2", character_file(prepend.clone(), Value::Null, true)),
        ("Llama 2 without bytes", character_file(prepend, Value::Null, false)),
        ("Gemma", character_file(replace(), no_op, true)),
        ("Metaspace first", character_file(Value::Null, metaspace("first", false), true)),
        ("Metaspace always", character_file(Value::Null, metaspace("always", true), true)),
        ("Metaspace never", character_file(Value::Null, metaspace("never", true), true)),
    ]
}

type Pair = (&'static str, Tokenizer, tokenizers::Tokenizer);

static PAIRS: LazyLock<Vec<Pair>> = LazyLock::new(|| {
    let pair = |(name, file): (&'static str, Value)| {
        let text = file.to_string();
        let ours = Tokenizer::from_tokenizer_json(text.as_bytes(), &TokenizerConfig::default())
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        (name, ours, text.parse().unwrap_or_else(|error| panic!("{name}: {error}")))
    };
    files().into_iter().map(pair).collect()
});

fn check(text: &str) {
    for (name, ours, reference) in PAIRS.iter() {
        let expected = reference.encode(text, false).expect("encodes");
        assert_eq!(ours.encode(text, ParseSpecial::Yes), expected.get_ids(), "{name}: {text:?}");
        let prompt = reference.encode(text, true).expect("encodes");
        let (mut wanted, plain) = (prompt.get_ids(), expected.get_ids());
        // A start token is there once, also if the text brings its own.
        if plain.first() == wanted.first() {
            wanted = plain;
        }
        assert_eq!(ours.encode_prompt(text, ParseSpecial::Yes), wanted, "{name}, prompt: {text:?}");
    }
}

#[test]
fn stored_texts_have_the_ids_of_the_tokenizers_crate() {
    for text in crate::common::byte_pairs().texts.iter().chain(&crate::common::score_merges().texts) {
        check(text);
    }
    for text in [
        " <|im_end|>  x <|im_start|>\n <|endoftext|> y",
        "  hello world  the</s>  Hello<s> thing ",
        "▁▁ ▁ ▁▁▁<tool>▁",
        "日本<unk>日  ☠☠a☠",
        "e\u{301} ﬁ ① \u{212b} x\u{323}\u{307}",
        "a1b22c333,.4",
        "  ",
        " ",
        "<s>",
        "hello<tool> world",
        "\n\n\n",
    ] {
        check(text);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_texts_have_the_ids_of_the_tokenizers_crate(
        parts in prop::collection::vec(prop_oneof![
            prop::sample::select(vec![" ", "  ", "\n", "\r\n", "▁", "▁▁", "hello", " world", "the", "1234", "é", "e\u{301}", "中中", "<s>", "</s>", "<tool>", "<|im_end|>", "'s", ",", "☠"]).prop_map(str::to_owned),
            any::<char>().prop_map(String::from),
        ], 0..16),
    ) {
        check(&parts.concat());
    }
}

#[test]
fn the_configuration_names_the_tokens_around_a_text() {
    let file = character_file(Value::Null, Value::Null, true).to_string();
    let config = |json: Value| TokenizerConfig::from_json(json.to_string().as_bytes()).unwrap();
    let read = |config: &TokenizerConfig| Tokenizer::from_tokenizer_json(file.as_bytes(), config).unwrap();
    let tokenizer = read(&config(
        json!({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "add_bos_token": false, "add_eos_token": true}),
    ));
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(1), Some(2)));
    assert_eq!(tokenizer.encode_prompt("a", ParseSpecial::No).last(), Some(&2));
    assert_ne!(tokenizer.encode_prompt("a", ParseSpecial::No)[0], 1);
    let mut stops = config(json!({"eos_token": "</s>"}));
    stops.add_generation_config(br#"{"eos_token_id": [2, 5, 999999]}"#).unwrap();
    assert_eq!(read(&stops).stop_tokens(), [2, 5]);
    let unknown = config(json!({"bos_token": "<nobody>"}));
    let error = Tokenizer::from_tokenizer_json(file.as_bytes(), &unknown).err().unwrap().to_string();
    assert!(error.contains("bos_token") && error.contains("<nobody>"), "{error}");
}
