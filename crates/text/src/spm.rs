//! BPE without a list of merges: neighbours are merged while their joined text is a token.
//!
//! Two kinds: SentencePiece (`tokenizer.ggml.model` = `llama`) merges characters, the highest score first, and what is left
//! without a token becomes byte tokens; tiktoken (the ranks of Kimi and Mistral's tekken) merges the bytes of one piece of the
//! pre-tokenizer, the lowest id first.
//!
//! GGUF stores scores and no merges for this kind, and score ties make a merge list ambiguous, so the BPE model
//! of the `tokenizers` crate cannot be filled without guessing. This follows llama.cpp (`llm_tokenizer_spm`),
//! except that plain text can never become a control, unknown or byte token.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::TextError;
use crate::pre_tokenizer::PreTokenizer;
use crate::source::{TokenType, TokenizerSource};
use crate::vocabulary::{TokenIndex, Vocabulary};

/// Stands for a space inside tokens: U+2581 LOWER ONE EIGHTH BLOCK.
pub(crate) const SPACE_MARK: &str = "\u{2581}";

pub(crate) struct ScoreMergeEncoder {
    /// Empty: a token's score is its id, the lowest first.
    scores: Box<[f32]>,
    /// Present if pieces of text are merged from bytes.
    pre_tokenizer: Option<PreTokenizer>,
    /// Tokens plain text may become, by their text as the file writes it, with [`SPACE_MARK`] turned into a space.
    index: TokenIndex,
    byte_ids: Box<[Option<u32>; 256]>,
    unknown: Option<u32>,
    longest_token: usize,
}

impl ScoreMergeEncoder {
    /// SentencePiece.
    pub(crate) fn by_score(
        source: &mut TokenizerSource<'_>,
        vocabulary: &Vocabulary,
    ) -> Result<ScoreMergeEncoder, TextError> {
        let scores = std::mem::take(&mut source.scores);
        if scores.is_empty() {
            return Err(TextError::MissingKey { key: "tokenizer.ggml.scores", model: "llama" });
        }
        if scores.len() != vocabulary.len() {
            return Err(TextError::LengthMismatch {
                key: "tokenizer.ggml.scores",
                found: scores.len(),
                tokens: vocabulary.len(),
            });
        }
        if let Some(id) = scores.iter().position(|score| score.is_nan()) {
            return Err(TextError::BadScore { id: id as u32 });
        }
        ScoreMergeEncoder::new(source, vocabulary, scores.into_boxed_slice(), None)
    }

    /// tiktoken: `source` writes the bytes of its tokens in GPT-2's alphabet.
    pub(crate) fn by_rank(
        pre_tokenizer: PreTokenizer,
        source: &TokenizerSource<'_>,
        vocabulary: &Vocabulary,
    ) -> Result<ScoreMergeEncoder, TextError> {
        ScoreMergeEncoder::new(source, vocabulary, Box::default(), Some(pre_tokenizer))
    }

    fn new(
        source: &TokenizerSource<'_>,
        vocabulary: &Vocabulary,
        scores: Box<[f32]>,
        pre_tokenizer: Option<PreTokenizer>,
    ) -> Result<ScoreMergeEncoder, TextError> {
        let mut index = TokenIndex::with_capacity(vocabulary.len());
        let mut byte_ids = Box::new([None; 256]);
        let mut longest_token = 0;
        for id in vocabulary.ids() {
            let bytes = vocabulary.bytes(id);
            match vocabulary.token_type(id) {
                TokenType::Byte => byte_ids[bytes[0] as usize] = Some(id),
                TokenType::UserDefined if pre_tokenizer.is_some() => {}
                TokenType::Control | TokenType::Unknown => {}
                // A space in the text of a token is reachable only by matching it whole, as a user-defined token.
                _ if bytes.is_empty() || source.tokens[id as usize].contains(&b' ') => {}
                TokenType::Normal | TokenType::UserDefined | TokenType::Unused => {
                    if let (true, [byte]) = (pre_tokenizer.is_some(), bytes) {
                        byte_ids[*byte as usize] = Some(id);
                    }
                    longest_token = longest_token.max(bytes.len());
                    // Texts are unique, and without spaces they stay so when the mark becomes a space.
                    let _ = index.insert(id, |id| vocabulary.bytes(id));
                }
            }
        }
        if source.unk_id.is_none()
            && let Some(byte) = byte_ids.iter().position(Option::is_none)
        {
            return Err(TextError::IncompleteBytes { byte: byte as u8 });
        }
        let unknown = source.unk_id;
        Ok(ScoreMergeEncoder { scores, pre_tokenizer, index, byte_ids, unknown, longest_token })
    }

    /// Appends the ids of `text`, which holds no special tokens.
    pub(crate) fn encode(&self, vocabulary: &Vocabulary, text: &str, out: &mut Vec<u32>) {
        let mut run = Run {
            encoder: self,
            vocabulary,
            text: text.as_bytes(),
            symbols: Vec::new(),
            queue: BinaryHeap::new(),
        };
        match &self.pre_tokenizer {
            None => {
                run.encode(text.char_indices().map(|(start, character)| (start, character.len_utf8())), out)
            }
            Some(pre_tokenizer) => pre_tokenizer.split(text, &mut |piece| {
                // tiktoken takes a piece that is a token whole, without merging.
                if let Some(id) = self.index.find(piece.as_bytes(), |id| vocabulary.bytes(id)) {
                    out.push(id);
                    return;
                }
                run.text = piece.as_bytes();
                run.encode((0..piece.len()).map(|start| (start, 1)), out);
            }),
        }
    }

    pub(crate) fn resident_bytes(&self) -> usize {
        self.scores.len() * 4 + self.index.resident_bytes()
    }
}

/// A stretch of the text; merged symbols have length 0.
#[derive(Clone, Copy)]
struct Symbol {
    start: usize,
    length: usize,
    previous: usize,
    next: usize,
}

const END: usize = usize::MAX;

/// A possible merge of the symbol `left` with the one after it into `length` bytes.
struct Candidate {
    score: f32,
    left: usize,
    length: usize,
}

impl Ord for Candidate {
    /// Highest score first, then leftmost.
    fn cmp(&self, other: &Candidate) -> Ordering {
        self.score
            .total_cmp(&other.score)
            .then(other.left.cmp(&self.left))
            .then(self.length.cmp(&other.length))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Candidate) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Candidate) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Candidate {}

struct Run<'a> {
    encoder: &'a ScoreMergeEncoder,
    vocabulary: &'a Vocabulary,
    text: &'a [u8],
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Candidate>,
}

impl Run<'_> {
    /// Merges `units`, start and length of each, and appends the ids.
    fn encode(&mut self, units: impl Iterator<Item = (usize, usize)>, out: &mut Vec<u32>) {
        self.symbols.clear();
        for (start, length) in units {
            let index = self.symbols.len();
            let previous = index.checked_sub(1).unwrap_or(END);
            self.symbols.push(Symbol { start, length, previous, next: index + 1 });
        }
        let Some(last) = self.symbols.last_mut() else { return };
        last.next = END;
        for left in 0..self.symbols.len() {
            self.offer(left);
        }
        while let Some(candidate) = self.queue.pop() {
            self.apply(&candidate);
        }
        let mut index = 0;
        while index != END {
            let symbol = self.symbols[index];
            self.emit(&self.text[symbol.start..symbol.start + symbol.length], out);
            index = symbol.next;
        }
    }

    fn apply(&mut self, candidate: &Candidate) {
        let left = self.symbols[candidate.left];
        if left.length == 0 || left.next == END {
            return;
        }
        let right = self.symbols[left.next];
        // Either symbol has grown since this was queued.
        if left.length + right.length != candidate.length {
            return;
        }
        self.symbols[left.next].length = 0;
        self.symbols[candidate.left] = Symbol { length: candidate.length, next: right.next, ..left };
        if right.next != END {
            self.symbols[right.next].previous = candidate.left;
        }
        if left.previous != END {
            self.offer(left.previous);
        }
        self.offer(candidate.left);
    }

    /// Queues the merge of `left` with the symbol after it, if their joined text is a token.
    fn offer(&mut self, left: usize) {
        let symbol = self.symbols[left];
        if symbol.next == END {
            return;
        }
        let length = symbol.length + self.symbols[symbol.next].length;
        if length > self.encoder.longest_token {
            return;
        }
        if let Some(id) = self.find(&self.text[symbol.start..symbol.start + length]) {
            // Ids are below 2^24 where they rank, so a float holds them exactly.
            let score = self.encoder.scores.get(id as usize).copied().unwrap_or(-(id as f32));
            self.queue.push(Candidate { score, left, length });
        }
    }

    fn find(&self, bytes: &[u8]) -> Option<u32> {
        self.encoder.index.find(bytes, |id| self.vocabulary.bytes(id))
    }

    fn emit(&self, bytes: &[u8], out: &mut Vec<u32>) {
        match self.find(bytes) {
            Some(id) => out.push(id),
            None => {
                let ids =
                    bytes.iter().map(|&byte| self.encoder.byte_ids[byte as usize].or(self.encoder.unknown));
                out.extend(ids.map(|id| id.expect("checked while building: all bytes or an unknown token")));
            }
        }
    }
}
