//! How much memory a tokenizer takes, known before it is built.

use std::mem::size_of;

use crate::TokenType;
use crate::pre_tokenizer::{STAGE_CACHE_BYTES, stage_count};
use crate::source::TokenizerSource;

/// What one compiled pre-tokenizer pattern takes at most: the largest measured is 0.5 MiB.
const STAGE_PROGRAM_BYTES: usize = 768 << 10;

/// What the matchers of special tokens take per byte of their text, while they are built: measured 60 to 150.
const BYTES_PER_SPECIAL_BYTE: usize = 256;

/// Small tables, and what the allocator keeps back.
const BASE_BYTES: usize = 2 << 20;

impl TokenizerSource<'_> {
    /// Upper bound for the memory that [`crate::Tokenizer::from_gguf`] adds to a process, in bytes: the tokenizer, what is
    /// freed after it was built, and the arrays of this struct. Each further thread that encodes at the same time
    /// may add [`TokenizerSource::bytes_per_encoding_thread`]. The file's own strings are not counted.
    pub fn estimated_bytes(&self) -> u64 {
        let tokens = self.tokens.len();
        let text: usize = self.tokens.iter().map(|token| token.len()).sum();
        let arrays = size_of::<&[u8]>() * (tokens + self.merges.len())
            + 4 * (self.token_types.len() + self.scores.len());
        let vocabulary = text + tokens * (size_of::<u32>() + size_of::<TokenType>());
        // One index while the vocabulary is read, one to encode with.
        let indices = 2 * size_of::<u32>() * (2 * tokens).next_power_of_two();
        // A hash map of 16-byte entries with a byte of control each, at most 7/8 full.
        let merges = 17 * (self.merges.len() * 8 / 7 + 1).next_power_of_two();
        let special = BYTES_PER_SPECIAL_BYTE * self.special_text_bytes();
        let stages = stage_count(self.pre) * STAGE_PROGRAM_BYTES;
        let fixed = arrays + vocabulary + indices + merges + special + stages + BASE_BYTES;
        fixed as u64 + self.bytes_per_encoding_thread()
    }

    /// Upper bound for the memory that one encoding thread keeps, in bytes, beside the text and its ids.
    pub fn bytes_per_encoding_thread(&self) -> u64 {
        // An automaton that searches forwards and one that finds the start of a match.
        (stage_count(self.pre) * 2 * STAGE_CACHE_BYTES) as u64
    }

    fn special_text_bytes(&self) -> usize {
        // Types 2 to 4 are unknown, control and user-defined.
        let listed = self.tokens.iter().zip(&self.token_types);
        listed.filter(|(_, kind)| (2..=4).contains(*kind)).map(|(token, _)| token.len()).sum()
    }
}
