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

/// A special token that takes the white space before it (`lstrip`) or after it (`rstrip`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenTrim {
    pub(crate) id: u32,
    pub(crate) before: bool,
    pub(crate) after: bool,
}

/// What a tokenizer file says about its special tokens beyond their texts.
#[derive(Clone, Debug, Default)]
pub(crate) struct SpecialRules<'a> {
    pub(crate) trims: Vec<TokenTrim>,
    /// Texts that are always one token, beside the texts of the vocabulary.
    pub(crate) literals: Vec<(&'a str, u32)>,
}

/// A set of tokens to be found in text.
pub(crate) struct TokenMatcher {
    automaton: Option<AhoCorasick>,
    ids: Box<[u32]>,
    /// Sorted by id; most vocabularies have none.
    trims: Box<[TokenTrim]>,
}

impl TokenMatcher {
    fn new(
        vocabulary: &Vocabulary,
        rules: &SpecialRules<'_>,
        wanted: impl Fn(TokenType) -> bool,
    ) -> Result<TokenMatcher, TextError> {
        let has_text = |&id: &u32| wanted(vocabulary.token_type(id)) && !vocabulary.bytes(id).is_empty();
        let mut ids: Vec<u32> = vocabulary.ids().filter(has_text).collect();
        let texts: Vec<&[u8]> = ids.iter().map(|&id| vocabulary.bytes(id)).collect();
        let literals = rules.literals.iter().filter(|(text, _)| !text.is_empty());
        ids.extend(literals.clone().map(|(_, id)| *id));
        let automaton = if ids.is_empty() {
            None
        } else {
            let built = AhoCorasick::builder()
                .match_kind(MatchKind::LeftmostLongest)
                .kind(Some(AhoCorasickKind::ContiguousNFA))
                .build(texts.into_iter().chain(literals.map(|(text, _)| text.as_bytes())));
            Some(built.map_err(|error| TextError::SpecialMatcher(error.to_string()))?)
        };
        let mut trims = rules.trims.clone();
        trims.sort_unstable_by_key(|trim| trim.id);
        Ok(TokenMatcher { automaton, ids: ids.into(), trims: trims.into() })
    }

    /// Calls `fragment` with each part of `text` in order; texts are never empty.
    pub(crate) fn split<'t>(&self, text: &'t str, fragment: &mut dyn FnMut(Fragment<'t>)) {
        let mut start = 0;
        for found in self.automaton.iter().flat_map(|automaton| automaton.find_iter(text)) {
            let id = self.ids[found.pattern().as_usize()];
            let trim = self.trims.binary_search_by_key(&id, |trim| trim.id).ok().map(|at| self.trims[at]);
            // Space taken by the token before may hide a token that is only space.
            let mut before = text.get(start..found.start()).unwrap_or_default();
            if trim.is_some_and(|trim| trim.before) {
                before = before.trim_end();
            }
            if !before.is_empty() {
                fragment(Fragment::Text(before));
            }
            fragment(Fragment::Token(id));
            start = start.max(found.end());
            if trim.is_some_and(|trim| trim.after) {
                start = text.len() - text[start..].trim_start().len();
            }
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
    pub(crate) fn new(vocabulary: &Vocabulary, rules: &SpecialRules<'_>) -> Result<SpecialTokens, TextError> {
        let user_defined = TokenMatcher::new(vocabulary, rules, |kind| kind == TokenType::UserDefined)?;
        let wanted = |kind: TokenType| kind == TokenType::UserDefined || is_structure(kind);
        let all = TokenMatcher::new(vocabulary, rules, wanted)?;
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
