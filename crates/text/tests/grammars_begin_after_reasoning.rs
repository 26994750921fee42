//! With `after_reasoning` everything is allowed until the marker was written, however tokens cut it, and the grammar's first
//! byte is the first one behind it.

use crate::grammar_support::{Random, allowed, demo_compiler, demo_tokenizer};
use coldpress_text::{Constraint, GrammarCompiler, GrammarSource, ParseSpecial, Tokenizer};

fn digits() -> GrammarSource {
    GrammarSource::Regex("[0-9]{2}".to_owned())
}

fn byte_token(tokenizer: &Tokenizer, byte: u8) -> u32 {
    let mut ids = 0..tokenizer.vocab_size() as u32;
    ids.find(|&id| tokenizer.token_bytes(id) == [byte]).expect("every byte is a token")
}

fn feed(constraint: &mut Constraint, ids: &[u32]) {
    for &id in ids {
        constraint.accept(id).unwrap_or_else(|error| panic!("{error} in {ids:?}"));
    }
}

#[test]
fn grammars_begin_after_reasoning() {
    let tokenizer = demo_tokenizer();
    for (marker, shown) in [(None, "</think>"), (Some("[/THINK]"), "[/THINK]"), (Some("aab"), "aab")] {
        for before in ["", "12 is {\"a\": ", "</thin <//think> [/THIN ", "aa"] {
            let text = format!("{before}{shown}");
            for bytewise in [false, true] {
                let ids = if bytewise {
                    text.bytes().map(|byte| byte_token(tokenizer, byte)).collect()
                } else {
                    tokenizer.encode(&text, ParseSpecial::No)
                };
                let mut constraint =
                    demo_compiler().compile(&digits()).expect("a constraint").after_reasoning(marker);
                for &id in &ids {
                    let free = allowed(&mut constraint, tokenizer);
                    assert!(
                        free.len() > 8_000 && free.contains(&id),
                        "{text:?}: {} tokens are free",
                        free.len()
                    );
                    assert!(!constraint.may_end() && !constraint.must_end());
                    assert!(
                        !tokenizer.stop_tokens().iter().any(|stop| free.contains(stop)),
                        "no end while it reasons"
                    );
                    constraint.accept(id).expect("a free token");
                }
                let digits = allowed(&mut constraint, tokenizer);
                assert!(
                    digits.iter().all(|&id| tokenizer.token_bytes(id).iter().all(u8::is_ascii_digit)),
                    "{text:?}"
                );
                feed(&mut constraint, &[byte_token(tokenizer, b'4'), byte_token(tokenizer, b'2')]);
                assert!(constraint.must_end());
            }
        }
    }
}

#[test]
fn an_empty_marker_changes_nothing() {
    let tokenizer = demo_tokenizer();
    let mut plain = demo_compiler().compile(&digits()).expect("a constraint");
    let mut empty = demo_compiler().compile(&digits()).expect("a constraint").after_reasoning(Some(""));
    assert_eq!(allowed(&mut plain, tokenizer), allowed(&mut empty, tokenizer));
}

/// The marker as a control token, and tokens that hold the end of the marker and more.
#[test]
fn a_token_that_goes_on_behind_the_marker_is_not_allowed() {
    let mut vocabulary = crate::common::byte_pairs().vocabulary;
    let mut add = |text: &str, kind: i32| {
        vocabulary.tokens.push(text.to_owned());
        vocabulary.types.push(kind);
        (vocabulary.tokens.len() - 1) as u32
    };
    let whole = add("</think>", 3);
    // In the byte alphabet, Ċ is a line feed.
    let (more, space, end_more, end_space) =
        (add("</think>x", 1), add("</think>ĊĊ", 1), add("k>7", 1), add("k>Ċ", 1));
    let tokenizer = vocabulary.tokenizer("gpt-2").expect("a vocabulary");
    let compiler = GrammarCompiler::new(&tokenizer).expect("a compiler");
    let begin = || compiler.compile(&digits()).expect("a constraint").after_reasoning(None);
    let digit = byte_token(&tokenizer, b'5');

    let free = allowed(&mut begin(), &tokenizer);
    assert!(
        free.contains(&whole) && free.contains(&space) && free.contains(&end_more) && !free.contains(&more)
    );
    assert!(begin().accept(more).is_err());
    for marker in [vec![whole], vec![space], tokenizer.encode("</thin", ParseSpecial::No)] {
        let mut constraint = begin();
        feed(&mut constraint, &marker);
        if marker != [whole] && marker != [space] {
            let free = allowed(&mut constraint, &tokenizer);
            assert!(!free.contains(&end_more) && free.contains(&end_space));
            assert!(constraint.accept(end_more).is_err());
            feed(&mut constraint, &[end_space]);
        }
        feed(&mut constraint, &[digit, digit]);
        assert!(constraint.must_end());
    }
}

/// Random tokens never trip the marker's search, and the grammar holds from the first complete marker on.
#[test]
fn random_reasoning_stays_free() {
    let tokenizer = demo_tokenizer();
    for seed in 0..8 {
        let mut random = Random::new(seed);
        let mut constraint =
            demo_compiler().compile(&digits()).expect("a constraint").after_reasoning(Some(">"));
        for _ in 0..200 {
            let free = allowed(&mut constraint, tokenizer);
            let id = free[random.below(free.len())];
            constraint.accept(id).expect("an allowed token");
            if tokenizer.token_bytes(id).contains(&b'>') {
                break;
            }
            assert!(!constraint.may_end());
        }
    }
}
