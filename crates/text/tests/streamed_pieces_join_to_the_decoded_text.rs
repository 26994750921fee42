//! A character may be spread over several tokens. If a stream cut it, users would see U+FFFD where the whole text has
//! none; if it waited too long, text would be lost at the end.

use crate::common::{byte_pairs, score_merges};
use coldpress_text::{DecodeOptions, ParseSpecial, Tokenizer};
use proptest::prelude::*;
use std::sync::LazyLock;

static TOKENIZERS: LazyLock<[Tokenizer; 2]> = LazyLock::new(|| {
    [byte_pairs(), score_merges()]
        .map(|fixture| fixture.vocabulary.tokenizer("qwen2").expect("a valid vocabulary"))
});

fn options() -> impl Strategy<Value = DecodeOptions> {
    (any::<bool>(), any::<bool>())
        .prop_map(|(show_control, continuation)| DecodeOptions { show_control, continuation })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    /// Ids of any kind, also beyond the vocabulary; low ids are single bytes, so most of this is not valid UTF-8.
    #[test]
    fn pieces_joined_are_the_text(ids in prop::collection::vec(prop_oneof![0u32..300, 0u32..2_000], 0..40), options in options()) {
        for tokenizer in TOKENIZERS.iter() {
            let mut bytes = Vec::new();
            let mut decoder = tokenizer.stream_decoder_with(options);
            let mut joined = String::new();
            for &id in &ids {
                let kind = tokenizer.token_type(id);
                let hidden = matches!(kind, coldpress_text::TokenType::Control | coldpress_text::TokenType::Unknown);
                if options.show_control || !hidden {
                    bytes.extend_from_slice(tokenizer.token_bytes(id));
                }
                joined.push_str(&decoder.push(id));
            }
            joined.push_str(&decoder.finish());
            prop_assert_eq!(&joined, &tokenizer.decode_with(&ids, options));
            // The replacement rule of Unicode is the one of the standard library.
            let whole = String::from_utf8_lossy(&bytes).into_owned();
            let without_space = whole.strip_prefix(' ').unwrap_or(&whole);
            prop_assert!(joined == whole || (!options.continuation && joined == without_space));
        }
    }

    /// Valid text never shows a replacement character on the way.
    #[test]
    fn no_piece_of_valid_text_holds_a_replacement_character(text in "\\PC{0,30}") {
        prop_assume!(!text.contains(char::REPLACEMENT_CHARACTER));
        for tokenizer in TOKENIZERS.iter() {
            let mut decoder = tokenizer.stream_decoder();
            for id in tokenizer.encode(&text, ParseSpecial::No) {
                prop_assert!(!decoder.push(id).contains(char::REPLACEMENT_CHARACTER));
            }
            prop_assert_eq!(decoder.finish(), "");
        }
    }
}

#[test]
fn a_character_comes_with_its_last_byte() {
    let tokenizer = &TOKENIZERS[0];
    let ids = tokenizer.encode("🙂", ParseSpecial::No);
    assert!(ids.len() > 1);
    let mut decoder = tokenizer.stream_decoder();
    let pieces: Vec<String> = ids.iter().map(|&id| decoder.push(id)).collect();
    assert!(pieces[..pieces.len() - 1].iter().all(String::is_empty));
    assert_eq!(pieces.last().map(String::as_str), Some("🙂"));

    let mut decoder = tokenizer.stream_decoder();
    assert_eq!(decoder.push(ids[0]), "");
    assert_eq!(decoder.finish(), "\u{FFFD}");
}

#[test]
fn ids_beyond_the_vocabulary_are_empty() {
    for tokenizer in TOKENIZERS.iter() {
        let beyond = tokenizer.vocab_size() as u32;
        assert_eq!(tokenizer.decode(&[beyond, beyond + 250, u32::MAX]), "");
        assert!(tokenizer.token_bytes(beyond).is_empty());
    }
}
