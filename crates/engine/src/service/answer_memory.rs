//! How the model itself wrote what clients send back.
//!
//! A client returns an answer as text. Encoding that text again need not give the ids the model produced (a model may write a
//! word in two tokens where the tokenizer has one), and most clients leave the reasoning away. Then the new prompt parts
//! from the computed one in the middle of the history and everything after that is computed again. So the service remembers
//! the latest answers: the ids of each stretch of text between control tokens where they are not what the tokenizer would
//! give, and the reasoning that belonged to an answer. The template still decides whether reasoning is shown; ids replace
//! only the very same text. Bounded: the oldest are forgotten. Where snapshots are kept, this is kept beside them: keys and
//! values of an answer are found after a restart only by those who know its ids.

use std::collections::{HashMap, VecDeque};

use coldpress_text::{ParseSpecial, Tokenizer};

/// Bytes of everything remembered.
pub(crate) const BYTES_MAX: usize = 4 << 20;
/// What an entry takes beside its content.
const ENTRY_BYTES: usize = 128;

type Key = [u8; 16];

/// See the module header.
#[derive(Default)]
pub(crate) struct AnswerMemory {
    entries: HashMap<Key, Entry>,
    /// Oldest first.
    order: VecDeque<Key>,
    bytes: usize,
    /// Whether something was learnt since [`AnswerMemory::changes`].
    changed: bool,
}

enum Entry {
    Ids(Vec<u32>),
    Reasoning(String),
}

impl Entry {
    fn bytes(&self) -> usize {
        ENTRY_BYTES
            + match self {
                Self::Ids(ids) => ids.len() * size_of::<u32>(),
                Self::Reasoning(text) => text.len(),
            }
    }
}

fn key(kind: &str, parts: &[&str]) -> Key {
    let mut hasher = blake3::Hasher::new();
    hasher.update(kind.as_bytes());
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    let mut key = Key::default();
    key.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    key
}

impl AnswerMemory {
    fn put(&mut self, key: Key, entry: Entry) {
        self.changed = true;
        self.bytes += entry.bytes();
        match self.entries.insert(key, entry) {
            Some(before) => self.bytes -= before.bytes(),
            None => self.order.push_back(key),
        }
        while self.bytes > BYTES_MAX {
            let Some(oldest) = self.order.pop_front() else { return };
            if let Some(entry) = self.entries.remove(&oldest) {
                self.bytes -= entry.bytes();
            }
        }
    }

    /// Looks at the ids of a prompt and its answer, whose first `prompt_tokens` are the prompt: remembers the stretches
    /// between special tokens that reach into the answer and that the tokenizer would write with other ids.
    pub fn learn_ids(&mut self, ids: &[u32], prompt_tokens: usize, tokenizer: &Tokenizer) {
        if tokenizer.adds_space() {
            // The text of a stretch would not be the text it is found by.
            return;
        }
        let is_special = |id: &u32| tokenizer.is_special(*id);
        let start = ids[..prompt_tokens].iter().rposition(is_special).map_or(0, |special| special + 1);
        for stretch in ids[start..].split(is_special).filter(|stretch| !stretch.is_empty()) {
            let bytes: Vec<u8> = stretch.iter().flat_map(|&id| tokenizer.token_bytes(id)).copied().collect();
            let Ok(text) = String::from_utf8(bytes) else { continue };
            if tokenizer.encode(&text, ParseSpecial::No) != stretch {
                self.put(key("ids", &[&text]), Entry::Ids(stretch.to_vec()));
            }
        }
    }

    /// The ids that the model wrote `text` with, where they are not the tokenizer's.
    pub fn ids(&self, text: &str) -> Option<&[u32]> {
        match self.entries.get(&key("ids", &[text]))? {
            Entry::Ids(ids) => Some(ids),
            Entry::Reasoning(_) => None,
        }
    }

    /// Remembers the reasoning of an answer. `tool_calls` are its calls as the client got them.
    pub fn learn_reasoning(&mut self, content: &str, tool_calls: &str, reasoning: &str) {
        let key = key("reasoning", &[content.trim(), tool_calls]);
        self.put(key, Entry::Reasoning(reasoning.to_owned()));
    }

    /// The reasoning of the answer with this content and these calls.
    pub fn reasoning(&self, content: &str, tool_calls: &str) -> Option<&str> {
        match self.entries.get(&key("reasoning", &[content.trim(), tool_calls]))? {
            Entry::Reasoning(text) => Some(text),
            Entry::Ids(_) => None,
        }
    }
}

const MAGIC: [u8; 8] = *b"cpanswer";
const VERSION: u32 = 1;
/// Magic, version, checksum of what follows.
const HEADER_BYTES: usize = 16;
const IDS: u8 = 0;
const REASONING: u8 = 1;

/// Takes the first `count` bytes off `rest`.
fn take<'a>(rest: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(count)?;
    *rest = left;
    Some(taken)
}

fn number(four: &[u8]) -> u32 {
    u32::from_le_bytes([four[0], four[1], four[2], four[3]])
}

impl AnswerMemory {
    /// Everything remembered as bytes for a file, if something was learnt since the last call.
    pub fn changes(&mut self) -> Option<Vec<u8>> {
        if !std::mem::take(&mut self.changed) {
            return None;
        }
        let mut bytes = vec![0; HEADER_BYTES];
        for (key, entry) in self.order.iter().filter_map(|key| Some((key, self.entries.get(key)?))) {
            let (kind, content) = match entry {
                Entry::Ids(ids) => (IDS, ids.iter().flat_map(|id| id.to_le_bytes()).collect()),
                Entry::Reasoning(text) => (REASONING, text.as_bytes().to_vec()),
            };
            bytes.extend_from_slice(key);
            bytes.push(kind);
            bytes.extend_from_slice(&(content.len() as u32).to_le_bytes());
            bytes.extend_from_slice(&content);
        }
        let checksum = crc32c::crc32c(&bytes[HEADER_BYTES..]);
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
        Some(bytes)
    }

    /// What [`AnswerMemory::changes`] gave; `None` for anything else.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let header = take(&mut rest, HEADER_BYTES)?;
        let right = header[..8] == MAGIC && number(&header[8..12]) == VERSION;
        if !right || number(&header[12..16]) != crc32c::crc32c(rest) {
            return None;
        }
        let mut memory = Self::default();
        while !rest.is_empty() {
            let mut key = Key::default();
            key.copy_from_slice(take(&mut rest, size_of::<Key>())?);
            let kind = take(&mut rest, 1)?[0];
            let length = number(take(&mut rest, 4)?) as usize;
            let content = take(&mut rest, length)?;
            let entry = match kind {
                IDS => Entry::Ids(content.chunks_exact(4).map(number).collect()),
                REASONING => Entry::Reasoning(String::from_utf8(content.to_vec()).ok()?),
                _ => return None,
            };
            memory.put(key, entry);
        }
        memory.changed = false;
        Some(memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasoning_is_found_by_what_it_led_to() {
        let mut memory = AnswerMemory::default();
        memory.learn_reasoning("Four. ", "", "Two and two.");
        memory.learn_reasoning("", "[{\"id\":\"call_1\"}]", "Ask the clock.");
        assert_eq!(memory.reasoning("Four.", ""), Some("Two and two."));
        assert_eq!(memory.reasoning("", "[{\"id\":\"call_1\"}]"), Some("Ask the clock."));
        assert_eq!(memory.reasoning("Four.", "[]"), None);
        assert_eq!(memory.ids("Four."), None);
    }

    #[test]
    fn the_oldest_are_forgotten_when_it_is_full() {
        let mut memory = AnswerMemory::default();
        let text = "x".repeat(BYTES_MAX / 4);
        for answer in ["a", "b", "a", "c", "d", "e"] {
            memory.learn_reasoning(answer, "", &text);
            assert!(memory.bytes <= BYTES_MAX);
        }
        assert_eq!(memory.reasoning("a", ""), None);
        assert!(memory.reasoning("e", "").is_some());
        assert_eq!(memory.entries.len(), memory.order.len());
    }

    #[test]
    fn it_comes_back_from_a_file_and_a_damaged_file_is_none() {
        let mut memory = AnswerMemory::default();
        assert_eq!(memory.changes(), None);
        memory.learn_reasoning("Four.", "", "Two and two.");
        memory.put(key("ids", &["four"]), Entry::Ids(vec![7, 70_000]));
        let bytes = memory.changes().expect("something was learnt");
        assert_eq!(memory.changes(), None, "it was asked before");
        let mut back = AnswerMemory::from_bytes(&bytes).expect("as it was written");
        assert_eq!(back.reasoning("Four.", ""), Some("Two and two."));
        assert_eq!(back.ids("four"), Some(&[7, 70_000][..]));
        assert_eq!((back.bytes, back.order.len(), back.changes()), (memory.bytes, 2, None));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(AnswerMemory::from_bytes(&damaged).is_none(), "byte {at}");
            assert!(AnswerMemory::from_bytes(&bytes[..at]).is_none(), "{at} bytes");
        }
    }
}
