//! A token is allowed exactly if its bytes keep the answer a beginning of a match: compared, for every token of the
//! vocabulary, with the automaton that regex-automata builds from the same expression.

use crate::grammar_support::{Random, allowed, demo_compiler, demo_tokenizer, draw, written};
use coldpress_text::{GrammarSource, TokenType, Tokenizer};
use regex_automata::dfa::{Automaton, dense};
use regex_automata::util::primitives::StateID;
use regex_automata::util::syntax;
use regex_automata::{Anchored, MatchKind};

const EXPRESSIONS: [&str; 16] = [
    "(yes|no|maybe)",
    "[0-9]{3}",
    "a*",
    "",
    "(ab|a)*c?",
    "[^\\n]{1,12}",
    "(?s:.)*",
    "\\w+@\\w+\\.(com|org)",
    "-?(0|[1-9][0-9]*)(\\.[0-9]{1,4})?",
    "The answer is (\\d+ )?(north|south)\\.",
    "\\p{Greek}{2,4}",
    "[а-я]+(, [а-я]+)*",
    "(?i)select [a-z]+( from [a-z]+)?;",
    "/usr/(lib|bin)/[a-z]+\\\\?",
    "\"([^\"\\\\]|\\\\.)*\"",
    "(a|b)*a(a|b){5}",
];

fn automaton(pattern: &str) -> dense::DFA<Vec<u32>> {
    dense::Builder::new()
        .configure(
            dense::Config::new()
                .match_kind(MatchKind::All)
                .start_kind(regex_automata::dfa::StartKind::Anchored),
        )
        .syntax(syntax::Config::new())
        .build(pattern)
        .expect(pattern)
}

fn start(dfa: &dense::DFA<Vec<u32>>) -> StateID {
    dfa.universal_start_state(Anchored::Yes).expect("no expression here looks behind its start")
}

/// The state after some bytes; `None` if no match begins with them. The automaton reports a match one byte late, so a state that
/// is not dead may still lead nowhere.
fn walk(dfa: &dense::DFA<Vec<u32>>, from: StateID, bytes: &[u8]) -> Option<StateID> {
    let state = bytes.iter().fold(from, |state, &byte| dfa.next_state(state, byte));
    let goes_on = || (0..=255).any(|byte| !dfa.is_dead_state(dfa.next_state(state, byte)));
    (!dfa.is_dead_state(state) && (is_match(dfa, state) || goes_on())).then_some(state)
}

fn is_match(dfa: &dense::DFA<Vec<u32>>, state: StateID) -> bool {
    dfa.is_match_state(dfa.next_eoi_state(state))
}

fn is_text(tokenizer: &Tokenizer, id: u32) -> bool {
    let control =
        matches!(tokenizer.token_type(id), TokenType::Control | TokenType::Unknown | TokenType::Unused);
    !control && !tokenizer.token_bytes(id).is_empty()
}

#[test]
fn masks_equal_brute_force() {
    let tokenizer = demo_tokenizer();
    let text: Vec<u32> = (0..tokenizer.vocab_size() as u32).filter(|&id| is_text(tokenizer, id)).collect();
    for pattern in EXPRESSIONS {
        let dfa = automaton(pattern);
        let source = GrammarSource::Regex(pattern.to_owned());
        for seed in 0..6 {
            let mut constraint =
                demo_compiler().compile(&source).unwrap_or_else(|error| panic!("{pattern}: {error}"));
            let mut random = Random::new(seed);
            let mut state = start(&dfa);
            let mut ids = Vec::new();
            for _ in 0..8 {
                assert_eq!(constraint.may_end(), is_match(&dfa, state), "{pattern} after {ids:?}");
                let wanted: Vec<u32> = text
                    .iter()
                    .copied()
                    .filter(|&id| walk(&dfa, state, tokenizer.token_bytes(id)).is_some())
                    .collect();
                assert_eq!(
                    constraint.must_end(),
                    constraint.may_end() && wanted.is_empty(),
                    "{pattern} after {ids:?}"
                );
                let mut found = allowed(&mut constraint, tokenizer);
                found.retain(|id| !tokenizer.stop_tokens().contains(id));
                if wanted != found {
                    let differs = |id: &&u32| wanted.contains(id) != found.contains(id);
                    let id = *text.iter().find(differs).expect("they differ");
                    panic!(
                        "{pattern} after {:?}: token {:?}: brute force {}, mask {}",
                        String::from_utf8_lossy(&written(tokenizer, &ids)),
                        String::from_utf8_lossy(tokenizer.token_bytes(id)),
                        wanted.contains(&id),
                        found.contains(&id)
                    );
                }
                if found.is_empty() {
                    break;
                }
                let id = found[random.below(found.len())];
                constraint.accept(id).expect("an allowed token");
                state = walk(&dfa, state, tokenizer.token_bytes(id)).expect("alive");
                ids.push(id);
            }
        }
    }
}

#[test]
fn answers_match_the_expression() {
    let tokenizer = demo_tokenizer();
    for pattern in EXPRESSIONS {
        let whole = regex_automata::meta::Regex::new(&format!("\\A(?:{pattern})\\z")).expect(pattern);
        let mut complete = 0;
        for seed in 0..12 {
            let source = GrammarSource::Regex(pattern.to_owned());
            let constraint = demo_compiler().compile(&source).expect("a constraint");
            let Some(ids) = draw(constraint, tokenizer, seed, 300) else { continue };
            let text = written(tokenizer, &ids);
            assert!(whole.is_match(&text), "{pattern}: {:?}", String::from_utf8_lossy(&text));
            complete += 1;
        }
        assert!(complete >= 6, "{pattern}: {complete} answers");
    }
}

/// A grammar of nested brackets, which no automaton describes: checked by counting.
#[test]
fn a_lark_grammar_nests() {
    let tokenizer = demo_tokenizer();
    let lark = "start: \"(\" start* \")\"\n";
    for seed in 0..12 {
        let constraint =
            demo_compiler().compile(&GrammarSource::Lark(lark.to_owned())).expect("a constraint");
        let mut random = Random::new(seed);
        let answer = crate::grammar_support::draw_with(constraint, tokenizer, 200, &mut |choices, length| {
            let closing: Vec<u32> =
                choices.iter().copied().filter(|&id| tokenizer.token_bytes(id)[0] == b')').collect();
            let preferred =
                if !closing.is_empty() && random.below(20) < 9 + length / 4 { &closing } else { choices };
            preferred[random.below(preferred.len())]
        });
        let text = written(tokenizer, &answer.expect("an end"));
        let mut depth = 0i32;
        for (index, byte) in text.iter().enumerate() {
            depth += if *byte == b'(' { 1 } else { -1 };
            assert!(depth > 0 || index + 1 == text.len(), "{:?}", String::from_utf8_lossy(&text));
        }
        assert!(depth == 0 && !text.is_empty());
    }
}
