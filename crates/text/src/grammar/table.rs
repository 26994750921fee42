//! The tokens of a tokenizer as llguidance sees them: a trie of bytes, without everything that is no text.
//!
//! Owns which tokens can be part of a constrained answer. Control tokens, unused rows and bytes that UTF-8 never
//! holds are not in the trie; stop tokens are listed apart, because whether they are allowed is not a question of bytes.

use llguidance::toktrie::{INVALID_TOKEN, SimpleVob, TokRxInfo, TokTrie};

use super::limits::{TOKEN_BYTES_MAX, TOKENS_MAX, VOCABULARY_BYTES_MAX};
use crate::special::is_structure;
use crate::{TextError, TokenType, Tokenizer};

/// The trie of all tokens, and one of some of them.
const TRIES: u64 = 2;

/// Per node of a trie while it is built, beside its 8 bytes: 20, in a vector that may just have doubled.
const BUILDER_BYTES_PER_NODE: u64 = 60;

/// A byte string of its own and what the allocator adds.
const BYTES_PER_WORD: u64 = 24 + 32;

/// Small tables.
const BASE_BYTES: u64 = 1 << 20;

/// The tokens of one tokenizer.
pub(super) struct TokenTable {
    trie: TokTrie,
    /// Tokens that are no text but may be written out while a model reasons, ascending.
    controls: Vec<(u32, Box<[u8]>)>,
    stops: Vec<u32>,
}

impl TokenTable {
    pub(super) fn new(tokenizer: &Tokenizer) -> Result<TokenTable, TextError> {
        let tokens = tokenizer.vocab_size();
        let stops: Vec<u32> =
            tokenizer.stop_tokens().iter().copied().filter(|&id| (id as usize) < tokens).collect();
        let mut words = Vec::with_capacity(tokens);
        let mut controls = Vec::new();
        let mut bytes = 0;
        for id in 0..tokens as u32 {
            let token = tokenizer.token_bytes(id);
            let is_text = is_text(tokenizer.token_type(id)) && stops.binary_search(&id).is_err();
            if is_text && token.len() <= TOKEN_BYTES_MAX && !token.contains(&TokTrie::SPECIAL_TOKEN_MARKER) {
                bytes += token.len();
                words.push(token.to_vec());
            } else {
                words.push(Vec::new());
                if !token.is_empty() {
                    controls.push((id, token.into()));
                }
            }
        }
        if tokens > TOKENS_MAX || bytes > VOCABULARY_BYTES_MAX {
            return Err(TextError::VocabularyTooLargeForGrammars {
                tokens,
                bytes,
                tokens_max: TOKENS_MAX,
                bytes_max: VOCABULARY_BYTES_MAX,
            });
        }
        let trie = TokTrie::from(&TokRxInfo::new(tokens as u32, INVALID_TOKEN), &words);
        Ok(TokenTable { trie, controls, stops })
    }

    /// Upper bound of what this table and the masks over it take, in bytes, also while they are built.
    pub(super) fn bytes(tokenizer: &Tokenizer) -> u64 {
        let mut ids: Vec<u32> = (0..tokenizer.vocab_size() as u32).collect();
        ids.sort_unstable_by_key(|&id| tokenizer.token_bytes(id));
        let (mut text, mut nodes, mut before) = (0, 1, &[][..]);
        for token in ids.iter().map(|&id| tokenizer.token_bytes(id)) {
            let shared = token.iter().zip(before).take_while(|(a, b)| a == b).count();
            text += token.len() as u64;
            // The same text twice is one node more.
            nodes += (token.len() - shared).max(1) as u64;
            before = token;
        }
        let tokens = ids.len() as u64;
        // Nodes (a vector that may have doubled), text, offsets, the sorted order.
        let trie = 16 * nodes + text + 12 * tokens;
        // The builder has room for three nodes per token, or grows beyond that.
        let builder = BUILDER_BYTES_PER_NODE * if nodes > 3 * tokens { nodes } else { tokens };
        let building = builder + BYTES_PER_WORD * tokens + text + 8 * tokens;
        TRIES * trie + building + BASE_BYTES
    }

    pub(super) fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    pub(super) fn tokens(&self) -> usize {
        self.trie.vocab_size()
    }

    /// Tokens that end an answer, ascending.
    pub(super) fn stops(&self) -> &[u32] {
        &self.stops
    }

    pub(super) fn is_stop(&self, id: u32) -> bool {
        self.stops.binary_search(&id).is_ok()
    }

    /// Whether the token is text that a grammar can be about.
    pub(super) fn is_text(&self, id: u32) -> bool {
        !self.trie.token(id).is_empty()
    }

    /// What the token writes, control tokens included.
    pub(super) fn written(&self, id: u32) -> &[u8] {
        let text = self.trie.token(id);
        if !text.is_empty() {
            return text;
        }
        match self.controls.binary_search_by_key(&id, |&(control, _)| control) {
            Ok(index) => &self.controls[index].1,
            Err(_) => &[],
        }
    }

    /// Leaves only text: grammars can name tokens by number.
    pub(super) fn keep_text(&self, allowed: &mut SimpleVob) {
        for &(id, _) in &self.controls {
            allowed.disallow_token(id);
        }
        for &id in &self.stops {
            allowed.disallow_token(id);
        }
    }
}

fn is_text(kind: TokenType) -> bool {
    !is_structure(kind) && kind != TokenType::Unused
}
