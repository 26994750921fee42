//! The byte <-> character table of byte-level BPE.
//!
//! GPT-2 writes each byte of a token as one printable character: bytes that are printable in Latin-1 stand for
//! themselves, the other 68 are numbered upwards from U+0100 (so a space is `Ġ`, a newline `Ċ`).
//! Source: `bytes_to_unicode` in the GPT-2 reference encoder.

use std::ops::RangeInclusive;

const SELF_REPRESENTED: [RangeInclusive<u8>; 3] = [b'!'..=b'~', 0xA1..=0xAC, 0xAE..=0xFF];

/// First character that stands for a byte that is not printable.
const FIRST_SHIFTED: u32 = 0x100;

/// Byte for each character below U+0144, `None` for characters that stand for no byte.
pub(crate) struct ByteLevelTable {
    bytes: [Option<u8>; 0x144],
    characters: [char; 256],
}

impl ByteLevelTable {
    pub(crate) fn new() -> ByteLevelTable {
        let mut bytes = [None; 0x144];
        let mut characters = ['\0'; 256];
        let mut next_shifted = FIRST_SHIFTED;
        for byte in 0..=u8::MAX {
            let character = if SELF_REPRESENTED.iter().any(|range| range.contains(&byte)) {
                u32::from(byte)
            } else {
                next_shifted += 1;
                next_shifted - 1
            };
            bytes[character as usize] = Some(byte);
            characters[usize::from(byte)] = char::from_u32(character).expect("below the surrogates");
        }
        ByteLevelTable { bytes, characters }
    }

    /// The text that stands for `bytes`.
    pub(crate) fn encode(&self, bytes: &[u8]) -> String {
        bytes.iter().map(|&byte| self.characters[usize::from(byte)]).collect()
    }

    /// Appends the bytes that `text` stands for; gives false and appends nothing if a character stands for no byte.
    pub(crate) fn decode(&self, text: &str, out: &mut Vec<u8>) -> bool {
        let start = out.len();
        for character in text.chars() {
            match self.bytes.get(character as usize).copied().flatten() {
                Some(byte) => out.push(byte),
                None => {
                    out.truncate(start);
                    return false;
                }
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::ByteLevelTable;

    #[test]
    fn known_characters_stand_for_their_bytes() {
        let table = ByteLevelTable::new();
        let mut out = Vec::new();
        assert!(table.decode("ĠaĊĀŃ¡ÿ", &mut out));
        assert_eq!(out, [b' ', b'a', b'\n', 0x00, 0xAD, 0xA1, 0xFF]);
        assert_eq!(table.encode(b" a\n\x00\xAD\xA1\xFF"), "ĠaĊĀŃ¡ÿ");
        assert!(!table.decode("a b", &mut out), "a plain space is not part of the alphabet");
        assert_eq!(out.len(), 7);
    }

    #[test]
    fn every_byte_has_exactly_one_character() {
        let table = ByteLevelTable::new();
        let mut seen: Vec<u8> = table.bytes.iter().flatten().copied().collect();
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..=u8::MAX));
    }
}
