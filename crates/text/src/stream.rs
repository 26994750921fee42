//! Decoding token by token without ever cutting a character.
//!
//! A character may be spread over several tokens, so bytes wait until they are a whole character or cannot become
//! one. Bytes that cannot are replaced by U+FFFD, one per maximal subpart (Unicode 16, section 3.9), which is what
//! `String::from_utf8_lossy` does: pieces joined always equal [`Tokenizer::decode_with`] of all ids.

use crate::Tokenizer;

/// How tokens become text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecodeOptions {
    /// Write control and unknown tokens out (`<|im_end|>`) instead of leaving them away.
    pub show_control: bool,
    /// The ids continue a text: keep a first space that SentencePiece would add to the start of every text.
    pub continuation: bool,
}

/// Room for the start of a character and the token that may complete it; longer tokens make more.
const WAITING_BYTES: usize = 32;

/// Decoder of one generation; see [`Tokenizer::stream_decoder`].
pub struct StreamDecoder<'a> {
    tokenizer: &'a Tokenizer,
    options: DecodeOptions,
    /// The start of a character whose remaining bytes have not come yet: at most 3 bytes between calls.
    waiting: Vec<u8>,
    drop_space: bool,
}

impl<'a> StreamDecoder<'a> {
    pub(crate) fn new(tokenizer: &'a Tokenizer, options: DecodeOptions) -> StreamDecoder<'a> {
        let drop_space = tokenizer.adds_space_prefix() && !options.continuation;
        StreamDecoder { tokenizer, options, waiting: Vec::with_capacity(WAITING_BYTES), drop_space }
    }

    /// The whole characters that are complete with this token; may be empty.
    pub fn push(&mut self, id: u32) -> String {
        let mut text = String::new();
        self.push_to(id, &mut text);
        text
    }

    /// Like [`StreamDecoder::push`], appending to `out`.
    pub fn push_to(&mut self, id: u32, out: &mut String) {
        let mut bytes = self.tokenizer.piece(id, self.options);
        if self.drop_space && !bytes.is_empty() {
            self.drop_space = false;
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
        }
        // Most tokens are whole characters and need no copy.
        if self.waiting.is_empty() {
            let taken = take_characters(bytes, out);
            self.waiting.extend_from_slice(&bytes[taken..]);
        } else {
            self.waiting.extend_from_slice(bytes);
            let taken = take_characters(&self.waiting, out);
            self.waiting.drain(..taken);
        }
    }

    /// Ends the text: a character that never became complete is one U+FFFD.
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.waiting).into_owned()
    }
}

/// Appends what `bytes` says for certain; gives the number of bytes used.
fn take_characters(bytes: &[u8], out: &mut String) -> usize {
    let mut used = 0;
    loop {
        match std::str::from_utf8(&bytes[used..]) {
            Ok(text) => {
                out.push_str(text);
                return bytes.len();
            }
            Err(error) => {
                let valid = used + error.valid_up_to();
                out.push_str(std::str::from_utf8(&bytes[used..valid]).expect("valid_up_to bytes are valid"));
                used = valid;
                let Some(bad) = error.error_len() else { return used };
                out.push(char::REPLACEMENT_CHARACTER);
                used += bad;
            }
        }
    }
}
