//! Byte-level BPE (`tokenizer.ggml.model` = `gpt2`): bytes are merged pair by pair, the pair of lowest rank first.
//!
//! The `tokenizers` crate does the same in about six times the memory (Qwen3: 45 MiB), with a thread-local cache
//! that outlives the model; here it is the reference in the tests. Reads only [`PreTokenizer`] pieces.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use crate::TextError;
use crate::byte_level::ByteLevelTable;
use crate::pre_tokenizer::PreTokenizer;
use crate::source::{TokenType, TokenizerSource};
use crate::vocabulary::{TokenIndex, Vocabulary};

/// Id of a byte that no token stands for.
const NO_TOKEN: u32 = u32::MAX;

/// Rank and result of merging a pair.
#[derive(Clone, Copy)]
struct Merge {
    rank: u32,
    id: u32,
}

pub(crate) struct BytePairEncoder {
    pre_tokenizer: PreTokenizer,
    /// Key: left id, right id. The map's keys are random per process, so crafted merges cannot slow it down.
    merges: HashMap<(u32, u32), Merge>,
    byte_ids: Box<[u32; 256]>,
    /// Present if whole pieces are looked up before merging.
    whole_pieces: Option<TokenIndex>,
    unknown: Option<u32>,
}

impl BytePairEncoder {
    /// `index` finds the tokens of `source` by their text as written in the file.
    pub(crate) fn new(
        source: &mut TokenizerSource<'_>,
        vocabulary: &Vocabulary,
        index: &TokenIndex,
    ) -> Result<BytePairEncoder, TextError> {
        let pre_tokenizer = PreTokenizer::for_name(source.pre)?;
        if source.merges.is_empty() {
            return Err(TextError::MissingKey { key: "tokenizer.ggml.merges", model: "gpt2" });
        }
        let merges = read_merges(source, index)?;
        // The list is longer than the vocabulary and no longer needed.
        source.merges = Vec::new();
        let table = ByteLevelTable::new();
        let mut byte_ids = Box::new([NO_TOKEN; 256]);
        let mut scratch = Vec::new();
        let mut whole_pieces =
            pre_tokenizer.whole_pieces_first.then(|| TokenIndex::with_capacity(vocabulary.len()));
        for id in vocabulary.ids() {
            scratch.clear();
            let text = std::str::from_utf8(source.tokens[id as usize]).expect("checked while reading tokens");
            let plain = matches!(vocabulary.token_type(id), TokenType::Normal | TokenType::Unused);
            if !plain || !table.decode(text, &mut scratch) {
                continue;
            }
            if let [byte] = scratch[..] {
                byte_ids[byte as usize] = id;
            }
            if let Some(whole_pieces) = &mut whole_pieces {
                // Texts are unique and the byte alphabet is one to one, so nothing is there already.
                let _ = whole_pieces.insert(id, |id| vocabulary.bytes(id));
            }
        }
        Ok(BytePairEncoder { pre_tokenizer, merges, byte_ids, whole_pieces, unknown: source.unk_id })
    }

    /// Default of `tokenizer.ggml.add_bos_token` for this family.
    pub(crate) fn adds_bos_by_default(&self) -> bool {
        self.pre_tokenizer.add_bos
    }

    /// Appends the ids of `text`, which holds no special tokens.
    ///
    /// A byte without a token becomes the unknown token if there is one and is dropped otherwise, as in llama.cpp.
    pub(crate) fn encode(&self, vocabulary: &Vocabulary, text: &str, out: &mut Vec<u32>) {
        let mut word = Word::default();
        self.pre_tokenizer.split(text, &mut |piece| {
            let whole = self.whole_pieces.as_ref();
            if let Some(id) = whole.and_then(|index| index.find(piece.as_bytes(), |id| vocabulary.bytes(id)))
            {
                out.push(id);
                return;
            }
            word.merge_all(piece.as_bytes(), self);
            out.extend(word.ids().filter_map(|id| if id == NO_TOKEN { self.unknown } else { Some(id) }));
        });
    }

    pub(crate) fn resident_bytes(&self) -> usize {
        // Key and value are 8 bytes each, plus one control byte; the table is a power of two, at most 7/8 full.
        let buckets = (self.merges.capacity() * 8 / 7).next_power_of_two();
        buckets * 17 + self.whole_pieces.as_ref().map_or(0, TokenIndex::resident_bytes)
    }
}

fn read_merges(
    source: &TokenizerSource<'_>,
    index: &TokenIndex,
) -> Result<HashMap<(u32, u32), Merge>, TextError> {
    let mut merges = HashMap::with_capacity(source.merges.len());
    let mut joined = Vec::new();
    let lossy = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
    for (rank, &merge) in source.merges.iter().enumerate() {
        // The first character belongs to the left token even if it is a space.
        let space = merge.iter().skip(1).position(|&byte| byte == b' ').map(|position| position + 1);
        let Some(space) = space.filter(|&space| space + 1 < merge.len()) else {
            return Err(TextError::BadMerge { rank, text: lossy(merge) });
        };
        let (left, right) = (&merge[..space], &merge[space + 1..]);
        joined.clear();
        joined.extend_from_slice(left);
        joined.extend_from_slice(right);
        let find = |text: &[u8]| {
            index.find(text, |id| source.tokens[id as usize]).ok_or_else(|| TextError::MergeTokenAbsent {
                rank,
                merge: lossy(merge),
                token: lossy(text),
            })
        };
        let pair = (find(left)?, find(right)?);
        let entry = Merge { rank: rank as u32, id: find(&joined)? };
        if let Some(first) = merges.insert(pair, entry) {
            return Err(TextError::DuplicateMerge {
                first: first.rank as usize,
                second: rank,
                merge: lossy(merge),
            });
        }
    }
    Ok(merges)
}

/// A symbol of the word being merged; `next` and `previous` are indices, `END` at the ends.
#[derive(Clone, Copy)]
struct Symbol {
    id: u32,
    previous: u32,
    next: u32,
}

const END: u32 = u32::MAX;

/// Buffers of one merge run, reused from piece to piece.
#[derive(Default)]
struct Word {
    symbols: Vec<Symbol>,
    /// Lowest rank first, then leftmost: (rank, left index, left id, right id).
    queue: BinaryHeap<Reverse<(u32, u32, u32, u32)>>,
}

impl Word {
    fn merge_all(&mut self, piece: &[u8], encoder: &BytePairEncoder) {
        self.symbols.clear();
        self.queue.clear();
        let count = piece.len() as u32;
        self.symbols.extend(piece.iter().zip(0..count).map(|(&byte, index)| Symbol {
            id: encoder.byte_ids[byte as usize],
            previous: if index == 0 { END } else { index - 1 },
            next: if index + 1 == count { END } else { index + 1 },
        }));
        for left in 0..count.saturating_sub(1) {
            self.offer(left, encoder);
        }
        while let Some(Reverse((_, left, left_id, right_id))) = self.queue.pop() {
            let symbol = self.symbols[left as usize];
            // An entry is stale once one of its symbols was merged into another.
            if symbol.id != left_id || symbol.next == END || self.symbols[symbol.next as usize].id != right_id
            {
                continue;
            }
            let merge = encoder.merges[&(left_id, right_id)];
            let right = symbol.next as usize;
            let after = self.symbols[right].next;
            self.symbols[right].id = NO_TOKEN;
            self.symbols[left as usize] = Symbol { id: merge.id, next: after, ..symbol };
            if after != END {
                self.symbols[after as usize].previous = left;
                self.offer(left, encoder);
            }
            if symbol.previous != END {
                self.offer(symbol.previous, encoder);
            }
        }
    }

    /// Queues the pair that starts at `left`, if it can be merged.
    fn offer(&mut self, left: u32, encoder: &BytePairEncoder) {
        let symbol = self.symbols[left as usize];
        let right_id = self.symbols[symbol.next as usize].id;
        if let Some(merge) = encoder.merges.get(&(symbol.id, right_id)) {
            self.queue.push(Reverse((merge.rank, left, symbol.id, right_id)));
        }
    }

    fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        let mut index = if self.symbols.is_empty() { END } else { 0 };
        std::iter::from_fn(move || {
            let symbol = self.symbols.get(index as usize)?;
            index = symbol.next;
            Some(symbol.id)
        })
    }
}
