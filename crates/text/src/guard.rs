//! Keeps control tokens out of user text that passes through a chat template.
//!
//! A template mixes its own control tokens with user text, and the result is tokenised as one string. So before
//! rendering, everything in user text that reads like a control token is broken up with a Unicode noncharacter
//! that occurs nowhere in the input; afterwards the noncharacter is dropped from the pieces between control
//! tokens. Filters of the template (`trim`, `split`) still see the text. User text that ends with the first
//! half of a control token, or begins with the second half, is marked too, so that no token can grow across the seam.

use std::borrow::Cow;

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};

use crate::TextError;
use crate::source::TokenType;
use crate::special::is_structure;
use crate::vocabulary::Vocabulary;

/// Finds text that reads like a control token. Built once per vocabulary.
pub(crate) struct ControlLookAlikes {
    automaton: Option<AhoCorasick>,
    ids: Box<[u32]>,
    /// Control tokens of one character: nothing can be put inside them.
    characters: Box<[(char, u32)]>,
    /// Texts of the control tokens, sorted, and the same texts reversed by character, sorted.
    sorted: Box<[Box<str>]>,
    sorted_reversed: Box<[Box<str>]>,
    longest: usize,
}

impl ControlLookAlikes {
    pub(crate) fn new(vocabulary: &Vocabulary) -> Result<ControlLookAlikes, TextError> {
        let mut texts = Vec::new();
        let mut ids = Vec::new();
        let mut characters = Vec::new();
        for id in vocabulary.ids().filter(|&id| is_structure(vocabulary.token_type(id))) {
            debug_assert_ne!(vocabulary.token_type(id), TokenType::Byte);
            let text =
                std::str::from_utf8(vocabulary.bytes(id)).expect("control tokens keep their checked text");
            let mut rest = text.chars();
            match (rest.next(), rest.next()) {
                (None, _) => {}
                (Some(only), None) => characters.push((only, id)),
                (Some(_), Some(_)) => {
                    texts.push(text);
                    ids.push(id);
                }
            }
        }
        let automaton = if texts.is_empty() {
            None
        } else {
            let built = AhoCorasick::builder()
                .kind(Some(AhoCorasickKind::ContiguousNFA))
                .match_kind(MatchKind::Standard)
                .build(&texts);
            Some(built.map_err(|error| TextError::SpecialMatcher(error.to_string()))?)
        };
        let longest = texts.iter().map(|text| text.len()).max().unwrap_or(0);
        Ok(ControlLookAlikes {
            automaton,
            ids: ids.into(),
            characters: characters.into(),
            longest,
            sorted_reversed: sorted(texts.iter().map(|text| text.chars().rev().collect())),
            sorted: sorted(texts.iter().map(|text| Box::from(*text))),
        })
    }

    pub(crate) fn resident_bytes(&self) -> usize {
        let texts = |list: &[Box<str>]| list.iter().map(|text| 32 + text.len()).sum::<usize>();
        self.automaton.as_ref().map_or(0, AhoCorasick::memory_usage)
            + self.ids.len() * 4
            + texts(&self.sorted)
            + texts(&self.sorted_reversed)
    }

    /// `text` with `mark` put inside every look-alike; `seams` also marks halves of tokens at both ends.
    pub(crate) fn break_up<'t>(
        &self,
        text: &'t str,
        mark: char,
        seams: bool,
    ) -> Result<Cow<'t, str>, TextError> {
        if let Some(&(character, id)) =
            self.characters.iter().find(|(character, _)| text.contains(*character))
        {
            return Err(TextError::ControlCharacterInText { code_point: u32::from(character), id });
        }
        let mut cuts = Vec::new();
        if seams && !is_identifier(text) {
            if self.begins_inside_token(text) {
                cuts.push(0);
            }
            if self.ends_inside_token(text) {
                cuts.push(text.len());
            }
        }
        for found in self.automaton.iter().flat_map(|automaton| automaton.find_overlapping_iter(text)) {
            let first = text[found.start()..].chars().next().map_or(0, char::len_utf8);
            cuts.push(found.start() + first);
        }
        if cuts.is_empty() {
            return Ok(Cow::Borrowed(text));
        }
        cuts.sort_unstable();
        cuts.dedup();
        let mut broken = String::with_capacity(text.len() + cuts.len() * mark.len_utf8());
        let mut start = 0;
        for cut in cuts {
            broken.push_str(&text[start..cut]);
            broken.push(mark);
            start = cut;
        }
        broken.push_str(&text[start..]);
        Ok(Cow::Owned(broken))
    }

    /// Whether some ending of `text` is the beginning of a control token.
    fn ends_inside_token(&self, text: &str) -> bool {
        let near = text.len().saturating_sub(self.longest);
        text.char_indices()
            .rev()
            .map(|(at, _)| at)
            .take_while(|&at| at >= near)
            .any(|at| begins_one(&self.sorted, &text[at..]))
    }

    /// Whether some beginning of `text` is the ending of a control token.
    fn begins_inside_token(&self, text: &str) -> bool {
        let head: Vec<char> = text.chars().take(self.longest).collect();
        (1..=head.len()).any(|count| {
            let reversed: String = head[..count].iter().rev().collect();
            begins_one(&self.sorted_reversed, &reversed)
        })
    }
}

fn sorted(texts: impl Iterator<Item = Box<str>>) -> Box<[Box<str>]> {
    let mut texts: Vec<Box<str>> = texts.collect();
    texts.sort_unstable();
    texts.into()
}

/// Whether `start` is the beginning of an entry of a sorted list.
fn begins_one(sorted: &[Box<str>], start: &str) -> bool {
    let at = sorted.partition_point(|entry| **entry < *start);
    sorted.get(at).is_some_and(|entry| entry.starts_with(start))
}

/// Words a template compares with (`text`, `function`, `user`): marks would make the comparison fail.
fn is_identifier(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// All 66 noncharacters of Unicode (section 23.7), those of the Arabic block first.
pub(crate) fn noncharacters() -> impl Iterator<Item = char> {
    let plane_ends = (0..=0x10u32).flat_map(|plane| [plane << 16 | 0xFFFE, plane << 16 | 0xFFFF]);
    (0xFDD0..=0xFDEF).chain(plane_ends).filter_map(char::from_u32)
}
