//! The BPE here is written for small memory, and its patterns avoid look-ahead. The `tokenizers` crate, with the
//! models' patterns as their tokenizer.json has them, must give the same ids on any text.

use coldpress_text::{ParseSpecial, Tokenizer};
use proptest::prelude::*;
use std::sync::LazyLock;
use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{PreTokenizerWrapper, SplitDelimiterBehavior};

/// Name and the patterns of the original tokenizer.json, look-ahead included.
const ORIGINALS: &[(&str, &[&str])] = &[
    ("gpt-2", &[r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"]),
    (
        "qwen2",
        &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
    ),
    (
        "llama-bpe",
        &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
    ),
    (
        "deepseek-v3",
        &[
            r"\p{N}{1,3}",
            "[一-龥\u{3040}-ゟ゠-ヿ]+",
            r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
        ],
    ),
    (
        "bailingmoe",
        &[
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
        ],
    ),
];

type Pair = (&'static str, Tokenizer, tokenizers::Tokenizer);

static TOKENIZERS: LazyLock<Vec<Pair>> = LazyLock::new(|| {
    let vocabulary = crate::common::byte_pairs().vocabulary;
    let pair = |&(name, patterns): &(&'static str, &[&str])| {
        let ids = vocabulary.tokens.iter().cloned().zip(0..).collect::<tokenizers::models::bpe::Vocab>();
        let split =
            |merge: &String| merge.split_once(' ').map(|(left, right)| (left.to_owned(), right.to_owned()));
        let merges = vocabulary.merges.iter().filter_map(split).collect();
        let whole = name == "llama-bpe";
        let model =
            BPE::builder().vocab_and_merges(ids, merges).ignore_merges(whole).build().expect("a valid BPE");
        let mut reference = tokenizers::Tokenizer::new(model);
        let stage = |pattern: &&str| {
            let pattern = SplitPattern::Regex((*pattern).to_owned());
            let split =
                Split::new(pattern, SplitDelimiterBehavior::Isolated, false).expect("a valid pattern");
            PreTokenizerWrapper::Split(split)
        };
        let mut stages: Vec<PreTokenizerWrapper> = patterns.iter().map(stage).collect();
        stages.push(PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, false, false)));
        reference.with_pre_tokenizer(Some(Sequence::new(stages)));
        (name, vocabulary.tokenizer(name).expect("a valid vocabulary"), reference)
    };
    ORIGINALS.iter().map(pair).collect()
});

/// Texts made of pieces at which patterns part, and of any characters.
fn texts() -> impl Strategy<Value = String> {
    let special = prop::sample::select(vec![
        " ",
        "  ",
        "\n",
        "\r\n",
        "\t",
        "'s",
        "'LL",
        "'",
        "the",
        " and",
        "Üb",
        "12",
        "3",
        "½",
        "٣",
        "你",
        "の",
        "é",
        "e\u{301}",
        "🙂",
        "—",
        "(",
        "...",
        "\u{a0}",
        "\u{3000}",
        "<|im_end|>",
        "ǅ",
        "_x",
        "//",
    ]);
    let part = prop_oneof![3 => special.prop_map(str::to_owned), 1 => any::<char>().prop_map(String::from)];
    prop::collection::vec(part, 0..30).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn ids_are_the_same_on_any_text(text in texts()) {
        // "[[keep]]" is a user-defined token of the fixture, and the reference has none.
        prop_assume!(!text.contains("[["));
        for (name, tokenizer, reference) in TOKENIZERS.iter() {
            let expected = reference.encode(text.as_str(), false).expect("the reference encodes any text");
            prop_assert_eq!(tokenizer.encode(&text, ParseSpecial::No), expected.get_ids(), "{}", name);
        }
    }
}
