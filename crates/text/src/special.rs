//! Finding special tokens in text.
//!
//! Matching is leftmost, then longest, in one pass over the text. Which tokens count depends on the caller:
//! user-defined tokens always, control and unknown tokens only where the text is trusted (`ParseSpecial::Yes`).

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};

use crate::TextError;
use crate::source::TokenType;
use crate::vocabulary::Vocabulary;

/// Whether control tokens written out in a text become those tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseSpecial {
    /// Yes: for trusted text such as a template's.
    Yes,
    /// No: `<|im_end|>` is encoded as the letters it is written with.
    No,
}

/// A stretch of text between special tokens, or one such token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fragment<'t> {
    Text(&'t str),
    Token(u32),
}

/// A set of tokens to be found in text.
pub(crate) struct TokenMatcher {
    automaton: Option<AhoCorasick>,
    ids: Box<[u32]>,
}

impl TokenMatcher {
    fn new(vocabulary: &Vocabulary, wanted: impl Fn(TokenType) -> bool) -> Result<TokenMatcher, TextError> {
        let has_text = |&id: &u32| wanted(vocabulary.token_type(id)) && !vocabulary.bytes(id).is_empty();
        let ids: Box<[u32]> = vocabulary.ids().filter(has_text).collect();
        let automaton = if ids.is_empty() {
            None
        } else {
            let built = AhoCorasick::builder()
                .match_kind(MatchKind::LeftmostLongest)
                .kind(Some(AhoCorasickKind::ContiguousNFA))
                .build(ids.iter().map(|&id| vocabulary.bytes(id)));
            Some(built.map_err(|error| TextError::SpecialMatcher(error.to_string()))?)
        };
        Ok(TokenMatcher { automaton, ids })
    }

    /// Calls `fragment` with each part of `text` in order; texts are never empty.
    pub(crate) fn split<'t>(&self, text: &'t str, fragment: &mut dyn FnMut(Fragment<'t>)) {
        let mut start = 0;
        for found in self.automaton.iter().flat_map(|automaton| automaton.find_iter(text)) {
            if start < found.start() {
                fragment(Fragment::Text(&text[start..found.start()]));
            }
            fragment(Fragment::Token(self.ids[found.pattern().as_usize()]));
            start = found.end();
        }
        if start < text.len() {
            fragment(Fragment::Text(&text[start..]));
        }
    }

    fn resident_bytes(&self) -> usize {
        self.ids.len() * 4 + self.automaton.as_ref().map_or(0, AhoCorasick::memory_usage)
    }
}

/// The two sets of special tokens of a vocabulary.
pub(crate) struct SpecialTokens {
    user_defined: TokenMatcher,
    all: TokenMatcher,
}

impl SpecialTokens {
    pub(crate) fn new(vocabulary: &Vocabulary) -> Result<SpecialTokens, TextError> {
        let user_defined = TokenMatcher::new(vocabulary, |kind| kind == TokenType::UserDefined)?;
        let all = TokenMatcher::new(vocabulary, |kind| kind == TokenType::UserDefined || is_structure(kind))?;
        Ok(SpecialTokens { user_defined, all })
    }

    pub(crate) fn matcher(&self, parse: ParseSpecial) -> &TokenMatcher {
        match parse {
            ParseSpecial::Yes => &self.all,
            ParseSpecial::No => &self.user_defined,
        }
    }

    pub(crate) fn resident_bytes(&self) -> usize {
        self.user_defined.resident_bytes() + self.all.resident_bytes()
    }
}

/// Whether tokens of this type are found only in trusted text, and hidden when decoding.
pub(crate) fn is_structure(kind: TokenType) -> bool {
    matches!(kind, TokenType::Control | TokenType::Unknown)
}
