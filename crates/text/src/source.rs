//! What a model file says about its tokenizer, as plain data.
//!
//! The engine fills [`TokenizerSource`] from the `tokenizer.ggml.*` keys of a GGUF file. Strings stay borrowed
//! bytes, so that no second copy of a vocabulary exists while the tokenizer is built. Nothing is checked here:
//! see `tokenizer.rs`.

/// The `tokenizer.ggml.*` keys of a GGUF file, borrowed. Empty vectors and `None` mean "key absent".
#[derive(Clone, Debug, Default)]
pub struct TokenizerSource<'a> {
    /// `tokenizer.ggml.model`: `gpt2` (byte-level BPE) or `llama` (SentencePiece BPE by score).
    pub model: &'a str,
    /// `tokenizer.ggml.pre`, or the user's override: which regular expressions split text before BPE.
    pub pre: Option<&'a str>,
    /// `tokenizer.ggml.tokens`: the text of each token, index = id.
    pub tokens: Vec<&'a [u8]>,
    /// `tokenizer.ggml.token_type`: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
    pub token_types: Vec<i32>,
    /// `tokenizer.ggml.scores`, needed by `llama`.
    pub scores: Vec<f32>,
    /// `tokenizer.ggml.merges`: `left right`, the most important first; needed by `gpt2`.
    pub merges: Vec<&'a [u8]>,
    /// `tokenizer.ggml.bos_token_id`.
    pub bos_id: Option<u32>,
    /// `tokenizer.ggml.eos_token_id`.
    pub eos_id: Option<u32>,
    /// `tokenizer.ggml.eot_token_id`, the end of a turn.
    pub eot_id: Option<u32>,
    /// `tokenizer.ggml.eom_token_id`, the end of a message that expects a tool result.
    pub eom_id: Option<u32>,
    /// `tokenizer.ggml.unknown_token_id`.
    pub unk_id: Option<u32>,
    /// `tokenizer.ggml.add_bos_token`; absent means the default of the tokenizer family.
    pub add_bos: Option<bool>,
    /// `tokenizer.ggml.add_eos_token`; absent means no.
    pub add_eos: Option<bool>,
    /// `tokenizer.ggml.add_space_prefix`; absent means yes for `llama`. Not used by `gpt2`.
    pub add_space_prefix: Option<bool>,
}

/// What a token is for, as GGUF numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenType {
    /// Ordinary text.
    Normal,
    /// Stands for text the vocabulary cannot express.
    Unknown,
    /// Structure (`<|im_end|>`): found in text only when the caller asks for it, hidden when decoding.
    Control,
    /// Added text that is always one token.
    UserDefined,
    /// A reserved row of the vocabulary.
    Unused,
    /// One raw byte, written `<0x0A>`.
    Byte,
}

impl TokenType {
    /// The type for a number of `tokenizer.ggml.token_type`; 0 ("undefined") counts as normal.
    pub fn from_gguf(number: i32) -> Option<TokenType> {
        Some(match number {
            0 | 1 => TokenType::Normal,
            2 => TokenType::Unknown,
            3 => TokenType::Control,
            4 => TokenType::UserDefined,
            5 => TokenType::Unused,
            6 => TokenType::Byte,
            _ => return None,
        })
    }
}
