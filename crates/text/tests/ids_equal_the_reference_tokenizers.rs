//! A wrong split before BPE gives other ids without any error, and the model only answers a little worse. The ids of
//! llama.cpp and of the models' own patterns are the truth here, on texts where patterns differ: contractions, digits,
//! Han, Kana, marks, runs of spaces, CRLF, emoji.

use crate::common::{References, TokenizerFixture, byte_pairs, score_merges};
use coldpress_text::ParseSpecial;

fn check(name: &str, texts: &[String], references: &References, tokenizer: &coldpress_text::Tokenizer) {
    for (index, text) in texts.iter().enumerate() {
        assert_eq!(
            tokenizer.encode(text, ParseSpecial::No),
            references.plain[index],
            "{name}, plain: {text:?}"
        );
        if let Some(special) = &references.special {
            assert_eq!(
                tokenizer.encode(text, ParseSpecial::Yes),
                special[index],
                "{name}, special: {text:?}"
            );
        }
        if let Some(prompt) = &references.prompt {
            assert_eq!(
                tokenizer.encode_prompt(text, ParseSpecial::No),
                prompt[index],
                "{name}, prompt: {text:?}"
            );
        }
    }
}

#[test]
fn byte_pair_ids_equal_the_references_for_every_family() {
    let TokenizerFixture { texts, vocabulary, references } = byte_pairs();
    assert!(references.len() >= 18);
    for (name, references) in &references {
        check(name, &texts, references, &vocabulary.tokenizer(name).expect("a valid vocabulary"));
    }
}

#[test]
fn score_merge_ids_equal_llama_cpp() {
    let TokenizerFixture { texts, vocabulary, references } = score_merges();
    for (name, references) in &references {
        let mut vocabulary = vocabulary.clone();
        if name == "without_prefix" {
            vocabulary.add_space_prefix = Some(false);
            vocabulary.add_eos = Some(true);
        }
        check(name, &texts, references, &vocabulary.tokenizer("default").expect("a valid vocabulary"));
    }
}

#[test]
fn decoding_gives_the_text_back() {
    for fixture in [byte_pairs(), score_merges()] {
        let tokenizer = fixture.vocabulary.tokenizer("qwen2").expect("a valid vocabulary");
        for text in &fixture.texts {
            // SentencePiece writes a space as U+2581, so that character itself comes back as a space.
            let expected = if fixture.vocabulary.model == "llama" {
                text.replace('\u{2581}', " ")
            } else {
                text.clone()
            };
            // A space after a special token is added by SentencePiece and is not part of the text.
            let ids = tokenizer.encode(text, ParseSpecial::No);
            if fixture.vocabulary.model == "gpt2" || !text.contains("[[keep]]") {
                assert_eq!(tokenizer.decode(&ids), expected);
            }
        }
    }
}
