//! Text for language models: tokenizers, chat templates, decoding token by token.
//!
//! Owns everything between a user's words and token ids. Refuses vocabularies and templates that are malformed,
//! and never guesses: an unknown pre-tokenizer or a failing template is an error, not another prompt.
//! Start with [`Tokenizer`].

#![forbid(unsafe_code)]

mod bpe;
mod byte_level;
mod chat;
mod date;
mod error;
mod guard;
mod memory;
mod message;
mod pre_tokenizer;
mod python_json;
mod python_text;
mod render_input;
mod source;
mod special;
mod spm;
mod stop;
mod stream;
mod template;
mod template_source;
mod tokenizer;
mod vocabulary;

pub use date::DateTime;
pub use error::TextError;
pub use message::Message;
pub use pre_tokenizer::known_pre_tokenizers;
pub use source::{TokenType, TokenizerSource};
pub use special::ParseSpecial;
pub use stream::{DecodeOptions, StreamDecoder};
pub use template::{ChatTemplate, RenderOptions};
pub use tokenizer::Tokenizer;
