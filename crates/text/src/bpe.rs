//! BPE with a list of merges: units are merged pair by pair, the pair of lowest rank first. Units are bytes
//! (`tokenizer.ggml.model` = `gpt2`, and the byte-level `tokenizer.json`), or characters with bytes for those that are no token
//! (the `tokenizer.json` of Llama 2, Mistral and Gemma).
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

/// What text is made of before the first merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Units {
    Bytes,
    /// `fuse_unknown`: neighbours without a token become one unknown token.
    Characters {
        fuse_unknown: bool,
    },
}

/// The merges of a file, the most important first.
pub(crate) enum MergeList<'a> {
    /// `left right`, as GGUF stores them.
    Joined(Vec<&'a [u8]>),
    Pairs(Vec<(&'a [u8], &'a [u8])>),
}

pub(crate) struct BytePairEncoder {
    pre_tokenizer: PreTokenizer,
    /// Key: left id, right id. The map's keys are random per process, so crafted merges cannot slow it down.
    merges: HashMap<(u32, u32), Merge>,
    units: Units,
    /// The token of each byte: of its character in the byte alphabet, or of type byte.
    byte_ids: Box<[u32; 256]>,
    /// Tokens of characters; present if units are characters.
    characters: Option<TokenIndex>,
    /// Present if whole pieces are looked up before merging.
    whole_pieces: Option<TokenIndex>,
    unknown: Option<u32>,
}

impl BytePairEncoder {
    /// `index` finds the tokens of `source` by their text as written in the file.
    pub(crate) fn new(
        source: &TokenizerSource<'_>,
        merges: MergeList<'_>,
        pre_tokenizer: PreTokenizer,
        units: Units,
        vocabulary: &Vocabulary,
        index: &TokenIndex,
    ) -> Result<BytePairEncoder, TextError> {
        if matches!(&merges, MergeList::Joined(list) if list.is_empty()) {
            return Err(TextError::MissingKey { key: "tokenizer.ggml.merges", model: "gpt2" });
        }
        let merges = read_merges(source, merges, index)?;
        let table = ByteLevelTable::new();
        let mut byte_ids = Box::new([NO_TOKEN; 256]);
        let mut scratch = Vec::new();
        let new_index = || TokenIndex::with_capacity(vocabulary.len());
        let mut whole_pieces = pre_tokenizer.whole_pieces_first.then(new_index);
        let mut characters = (units != Units::Bytes).then(new_index);
        for id in vocabulary.ids() {
            scratch.clear();
            let text = std::str::from_utf8(source.tokens[id as usize]).expect("checked while reading tokens");
            let plain = match vocabulary.token_type(id) {
                TokenType::Normal | TokenType::Unused => true,
                TokenType::Byte => {
                    byte_ids[vocabulary.bytes(id)[0] as usize] = id;
                    false
                }
                _ => false,
            };
            if !plain || text.is_empty() {
                continue;
            }
            if units == Units::Bytes {
                if !table.decode(text, &mut scratch) {
                    continue;
                }
                if let [byte] = scratch[..] {
                    byte_ids[byte as usize] = id;
                }
            }
            // Texts are unique and the byte alphabet is one to one. Where the mark of a space stands beside a real space, the first is taken.
            for index in [&mut whole_pieces, &mut characters].into_iter().flatten() {
                let _ = index.insert(id, |id| vocabulary.bytes(id));
            }
        }
        let unknown = source.unk_id;
        Ok(BytePairEncoder { pre_tokenizer, merges, units, byte_ids, characters, whole_pieces, unknown })
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
            match self.units {
                Units::Bytes => word.start(piece.bytes().map(|byte| self.byte_ids[byte as usize])),
                Units::Characters { .. } => {
                    word.start(piece.chars().flat_map(|character| self.character(vocabulary, character)));
                }
            }
            word.merge_all(self);
            self.emit(&word, out);
        });
    }

    /// The ids of a character: its token, or those of its bytes if all of them have one, or one without a token.
    fn character(&self, vocabulary: &Vocabulary, character: char) -> impl Iterator<Item = u32> + use<> {
        let mut buffer = [0; 4];
        let bytes = character.encode_utf8(&mut buffer).as_bytes();
        let characters = self.characters.as_ref();
        let mut ids = [NO_TOKEN; 4];
        let mut count = 1;
        if let Some(id) = characters.and_then(|index| index.find(bytes, |id| vocabulary.bytes(id))) {
            ids[0] = id;
        } else if bytes.iter().all(|&byte| self.byte_ids[byte as usize] != NO_TOKEN) {
            count = bytes.len();
            for (id, &byte) in ids.iter_mut().zip(bytes) {
                *id = self.byte_ids[byte as usize];
            }
        }
        ids.into_iter().take(count)
    }

    fn emit(&self, word: &Word, out: &mut Vec<u32>) {
        let fuse = self.units == Units::Characters { fuse_unknown: true };
        let mut after_unknown = false;
        for id in word.ids() {
            if id != NO_TOKEN {
                out.push(id);
            } else if let Some(unknown) = self.unknown.filter(|_| !(fuse && after_unknown)) {
                out.push(unknown);
            }
            after_unknown = id == NO_TOKEN;
        }
    }

    pub(crate) fn resident_bytes(&self) -> usize {
        // Key and value are 8 bytes each, plus one control byte; the table is a power of two, at most 7/8 full.
        let buckets = (self.merges.capacity() * 8 / 7).next_power_of_two();
        let indices = [&self.whole_pieces, &self.characters].into_iter().flatten();
        buckets * 17 + indices.map(TokenIndex::resident_bytes).sum::<usize>()
    }
}

fn read_merges(
    source: &TokenizerSource<'_>,
    list: MergeList<'_>,
    index: &TokenIndex,
) -> Result<HashMap<(u32, u32), Merge>, TextError> {
    let count = match &list {
        MergeList::Joined(merges) => merges.len(),
        MergeList::Pairs(pairs) => pairs.len(),
    };
    let mut merges = HashMap::with_capacity(count);
    let mut joined = Vec::new();
    for rank in 0..count {
        let (left, right) = match &list {
            MergeList::Joined(merges) => halves(rank, merges[rank])?,
            MergeList::Pairs(pairs) => pairs[rank],
        };
        let text = || format!("{} {}", String::from_utf8_lossy(left), String::from_utf8_lossy(right));
        joined.clear();
        joined.extend_from_slice(left);
        joined.extend_from_slice(right);
        let find = |part: &[u8]| {
            index.find(part, |id| source.tokens[id as usize]).ok_or_else(|| TextError::MergeTokenAbsent {
                rank,
                merge: text(),
                token: String::from_utf8_lossy(part).into_owned(),
            })
        };
        let pair = (find(left)?, find(right)?);
        let entry = Merge { rank: rank as u32, id: find(&joined)? };
        if let Some(first) = merges.insert(pair, entry) {
            return Err(TextError::DuplicateMerge {
                first: first.rank as usize,
                second: rank,
                merge: text(),
            });
        }
    }
    Ok(merges)
}

/// The two tokens of `left right`.
fn halves(rank: usize, merge: &[u8]) -> Result<(&[u8], &[u8]), TextError> {
    // The first character belongs to the left token even if it is a space.
    let space = merge.iter().skip(1).position(|&byte| byte == b' ').map(|position| position + 1);
    match space.filter(|&space| space + 1 < merge.len()) {
        Some(space) => Ok((&merge[..space], &merge[space + 1..])),
        None => Err(TextError::BadMerge { rank, text: String::from_utf8_lossy(merge).into_owned() }),
    }
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
    /// Begins with these ids, unmerged.
    fn start(&mut self, ids: impl Iterator<Item = u32>) {
        self.symbols.clear();
        self.queue.clear();
        self.symbols.extend(ids.zip(0..END).map(|(id, index)| Symbol {
            id,
            previous: index.wrapping_sub(1),
            next: index + 1,
        }));
        if let Some(last) = self.symbols.last_mut() {
            last.next = END;
        }
    }

    fn merge_all(&mut self, encoder: &BytePairEncoder) {
        let count = self.symbols.len() as u32;
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
