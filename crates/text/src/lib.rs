//! Text for language models: tokenizers, chat templates, decoding token by token.
//!
//! Owns everything between a user's words and token ids. Refuses vocabularies and templates that are malformed,
//! and never guesses: an unknown pre-tokenizer or a failing template is an error, not another prompt.
//! Start with [`Tokenizer`].

#![forbid(unsafe_code)]

mod bpe;
mod byte_level;
mod chat;
mod conversation;
mod date;
mod dialect;
mod error;
mod grammar;
mod guard;
mod memory;
mod message;
mod normalizer;
mod pre_tokenizer;
mod python_json;
mod python_methods;
mod python_text;
mod rank_file;
mod render_input;
mod source;
mod special;
mod split_pattern;
mod spm;
mod stop;
mod stop_strings;
mod stream;
mod template;
mod template_source;
mod tokenizer;
mod tokenizer_config;
mod tokenizer_file;
mod tokenizer_folder;
mod tokenizer_steps;
mod vocabulary;

pub use date::DateTime;
pub use dialect::{AnswerEvent, AnswerParser, Dialect, ParserOptions, ToolSignature};
pub use error::TextError;
pub use grammar::{Constraint, GrammarCompiler, GrammarSource};
pub use message::Message;
pub use pre_tokenizer::known_pre_tokenizers;
pub use source::{TokenType, TokenizerSource};
pub use special::ParseSpecial;
pub use stop_strings::StopStrings;
pub use stream::{DecodeOptions, StreamDecoder};
pub use template::{ChatTemplate, RenderOptions};
pub use tokenizer::Tokenizer;
pub use tokenizer_config::TokenizerConfig;
pub use tokenizer_folder::TokenizerFolder;
