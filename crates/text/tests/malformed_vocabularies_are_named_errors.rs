//! A vocabulary comes from a downloaded file. Whatever is wrong with it must be an error that names the token, merge
//! or key: not a panic, and not a tokenizer that quietly gives other ids.

use crate::common::{StoredVocabulary, byte_pairs, score_merges};
use coldpress_text::{TextError, Tokenizer, TokenizerSource, known_pre_tokenizers};
use proptest::prelude::*;

/// A few tokens and merges that are valid.
fn small() -> StoredVocabulary {
    let mut vocabulary = byte_pairs().vocabulary;
    vocabulary.tokens = ["a", "b", "c", "ab", "abc", "<|im_end|>", "bc"].map(str::to_owned).to_vec();
    vocabulary.types = vec![1, 1, 1, 1, 1, 3, 1];
    vocabulary.merges = ["a b", "ab c", "b c"].map(str::to_owned).to_vec();
    (vocabulary.bos, vocabulary.eos) = (None, Some(5));
    (vocabulary.add_bos, vocabulary.add_eos) = (None, None);
    vocabulary
}

/// The error after `change`; the unchanged vocabulary is valid.
fn error_after(mut vocabulary: StoredVocabulary, change: impl FnOnce(&mut StoredVocabulary)) -> TextError {
    vocabulary.tokenizer("qwen2").expect("valid before the change");
    change(&mut vocabulary);
    vocabulary.tokenizer("qwen2").err().expect("refused after the change")
}

macro_rules! assert_refused {
    ($vocabulary:expr, $change:expr, $pattern:pat) => {
        let error = error_after($vocabulary, $change);
        assert!(matches!(error, $pattern), "{error:?}");
    };
}

#[test]
fn bad_tokens() {
    assert_refused!(
        small(),
        |v| v.tokens[6] = "ab".into(),
        TextError::DuplicateToken { first: 3, second: 6, .. }
    );
    assert_refused!(small(), |v| v.types[2] = 7, TextError::UnknownTokenType { id: 2, number: 7 });
    assert_refused!(small(), |v| v.types[2] = -1, TextError::UnknownTokenType { id: 2, number: -1 });
    assert_refused!(small(), |v| v.types.push(1), TextError::LengthMismatch { found: 8, tokens: 7, .. });
    assert_refused!(small(), |v| v.eos = Some(7), TextError::SpecialIdOutOfRange { id: 7, tokens: 7, .. });
    assert_refused!(small(), |v| v.add_bos = Some(true), TextError::SpecialIdMissing { .. });
    assert_refused!(small(), |v| v.model = "bert".into(), TextError::UnsupportedModel(_));
    assert_refused!(
        small(),
        |v| (v.tokens.clear(), v.types.clear(), v.merges.clear(), v.eos = None).3,
        TextError::EmptyVocabulary
    );
    let not_utf8 = TokenizerSource {
        model: "gpt2",
        pre: Some("qwen2"),
        tokens: vec![b"a", b"\xFF\xFE"],
        ..Default::default()
    };
    assert!(matches!(Tokenizer::from_gguf(not_utf8), Err(TextError::TokenNotUtf8 { id: 1, .. })));
}

#[test]
fn bad_merges() {
    assert_refused!(
        small(),
        |v| v.merges.push("a b".into()),
        TextError::DuplicateMerge { first: 0, second: 3, .. }
    );
    assert_refused!(small(), |v| v.merges[1] = "ab x".into(), TextError::MergeTokenAbsent { rank: 1, .. });
    assert_refused!(small(), |v| v.merges[1] = "c a".into(), TextError::MergeTokenAbsent { rank: 1, .. });
    for bad in ["ab", "a ", " ", "", "a  b"] {
        let error = error_after(small(), |v| v.merges[2] = bad.into());
        assert!(
            matches!(
                error,
                TextError::BadMerge { rank: 2, .. } | TextError::MergeTokenAbsent { rank: 2, .. }
            ),
            "{bad:?}: {error:?}"
        );
    }
    assert_refused!(
        small(),
        |v| v.merges.clear(),
        TextError::MissingKey { key: "tokenizer.ggml.merges", .. }
    );
}

#[test]
fn a_byte_token_is_exactly_two_hexadecimal_digits() {
    // A sign or a third digit has led other programs to write before the start of a buffer.
    for bad in
        ["<0x-1>", "<0x+1>", "<0x0>", "<0x000>", "<0xG0>", "<0x 1>", "0x00", "<0x00", "<0X00>", "<0xé>", ""]
    {
        let error = error_after(score_merges().vocabulary, |v| v.tokens[20] = bad.into());
        assert!(
            matches!(&error, TextError::BadByteToken { id: 20, text } if text == bad),
            "{bad:?}: {error:?}"
        );
    }
}

#[test]
fn bad_scores() {
    let fixture = || score_merges().vocabulary;
    assert_refused!(fixture(), |v| v.scores[300] = f32::NAN, TextError::BadScore { id: 300 });
    assert_refused!(fixture(), |v| v.scores.truncate(300), TextError::LengthMismatch { .. });
    assert_refused!(
        fixture(),
        |v| v.scores.clear(),
        TextError::MissingKey { key: "tokenizer.ggml.scores", .. }
    );
}

#[test]
fn an_unknown_pre_tokenizer_is_named_with_the_known_ones() {
    let vocabulary = small();
    for pre in [Some("qwen9"), Some(""), None] {
        let error = Tokenizer::from_gguf(vocabulary.source(pre)).err().expect("refused");
        assert!(matches!(error, TextError::UnknownPreTokenizer { .. }));
        let message = error.to_string();
        assert!(known_pre_tokenizers().all(|name| message.contains(name)), "{message}");
        assert!(message.contains(pre.map_or("missing", |pre| pre)), "{message}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any bytes in any place: an error or a working tokenizer.
    #[test]
    fn anything_is_an_error_or_a_tokenizer(
        model in prop::sample::select(vec!["gpt2", "llama"]),
        tokens in prop::collection::vec(prop::collection::vec(prop_oneof![Just(b'a'), Just(b' '), Just(b'<'), any::<u8>()], 0..4), 0..30),
        types in prop::collection::vec(0i32..8, 0..30),
        merges in prop::collection::vec("[a< ]{0,4}", 0..4),
        scores in prop::collection::vec(any::<f32>(), 0..30),
        id in prop::option::of(0u32..40),
        same_length in any::<bool>(),
    ) {
        let count = tokens.len();
        let (mut types, mut scores) = (types, scores);
        if same_length {
            types.resize(count, 1);
            scores.resize(count, 0.0);
        }
        let source = TokenizerSource {
            model, pre: Some("qwen2"), tokens: tokens.iter().map(Vec::as_slice).collect(), token_types: types, scores,
            merges: merges.iter().map(String::as_bytes).collect(), unk_id: id, ..TokenizerSource::default()
        };
        if let Ok(tokenizer) = Tokenizer::from_gguf(source) {
            let ids = tokenizer.encode_prompt("a <a> \u{FDD0}ä", coldpress_text::ParseSpecial::Yes);
            prop_assert!(ids.iter().all(|&id| (id as usize) < count));
            tokenizer.decode(&ids);
        }
    }
}
