//! Storage of a vocabulary: one text buffer, offsets and types, plus an index from text to id.
//!
//! A hash map of strings costs about 100 bytes per token; these tables cost the text plus 5 bytes, and 8 more
//! where an index is needed. The index is keyed with random state, so a crafted vocabulary cannot make it slow.

use std::hash::{BuildHasher, RandomState};

use crate::TokenType;

/// The bytes each token stands for, and its type. Index = id.
pub(crate) struct Vocabulary {
    bytes: Box<[u8]>,
    ends: Box<[u32]>,
    types: Box<[TokenType]>,
}

impl Vocabulary {
    pub(crate) fn builder(tokens: usize, bytes: usize) -> VocabularyBuilder {
        VocabularyBuilder {
            bytes: Vec::with_capacity(bytes),
            ends: Vec::with_capacity(tokens),
            types: Vec::with_capacity(tokens),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The bytes of a token; empty for ids beyond the vocabulary (output heads may be padded).
    pub(crate) fn bytes(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else { return &[] };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start as usize..end as usize]
    }

    /// The type of a token; ids beyond the vocabulary count as unused.
    pub(crate) fn token_type(&self, id: u32) -> TokenType {
        self.types.get(id as usize).copied().unwrap_or(TokenType::Unused)
    }

    pub(crate) fn ids(&self) -> std::ops::Range<u32> {
        0..self.ends.len() as u32
    }

    pub(crate) fn resident_bytes(&self) -> usize {
        self.bytes.len() + self.ends.len() * 4 + self.types.len()
    }
}

pub(crate) struct VocabularyBuilder {
    pub(crate) bytes: Vec<u8>,
    ends: Vec<u32>,
    types: Vec<TokenType>,
}

impl VocabularyBuilder {
    /// Ends the current token at the end of `bytes`. The caller has checked that offsets fit 32 bits.
    pub(crate) fn finish_token(&mut self, token_type: TokenType) {
        self.ends.push(self.bytes.len() as u32);
        self.types.push(token_type);
    }

    pub(crate) fn build(self) -> Vocabulary {
        Vocabulary {
            bytes: self.bytes.into_boxed_slice(),
            ends: self.ends.into_boxed_slice(),
            types: self.types.into_boxed_slice(),
        }
    }
}

const EMPTY: u32 = u32::MAX;

/// Open-addressing table of ids, at most half full. The texts live elsewhere: `text_of` gives them.
pub(crate) struct TokenIndex {
    slots: Box<[u32]>,
    hasher: RandomState,
}

impl TokenIndex {
    pub(crate) fn with_capacity(tokens: usize) -> TokenIndex {
        let slots = (tokens * 2).next_power_of_two();
        TokenIndex { slots: vec![EMPTY; slots].into_boxed_slice(), hasher: RandomState::new() }
    }

    /// Adds `id`; if its text is there already, gives the id that has it and changes nothing.
    pub(crate) fn insert<'a>(&mut self, id: u32, text_of: impl Fn(u32) -> &'a [u8]) -> Result<(), u32> {
        match self.probe(text_of(id), &text_of) {
            Ok(existing) => Err(existing),
            Err(slot) => {
                self.slots[slot] = id;
                Ok(())
            }
        }
    }

    pub(crate) fn find<'a>(&self, text: &[u8], text_of: impl Fn(u32) -> &'a [u8]) -> Option<u32> {
        self.probe(text, &text_of).ok()
    }

    fn probe<'a>(&self, text: &[u8], text_of: &impl Fn(u32) -> &'a [u8]) -> Result<u32, usize> {
        let mask = self.slots.len() - 1;
        let mut slot = self.hasher.hash_one(text) as usize & mask;
        loop {
            match self.slots[slot] {
                EMPTY => return Err(slot),
                id if text_of(id) == text => return Ok(id),
                _ => slot = (slot + 1) & mask,
            }
        }
    }

    pub(crate) fn resident_bytes(&self) -> usize {
        self.slots.len() * 4
    }
}
