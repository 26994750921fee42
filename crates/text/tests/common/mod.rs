//! Loads the fixtures. How they are made: `tests/fixtures/make_*.py`.

#![allow(dead_code, reason = "each test file uses a part of this module")]

use coldpress_text::{TextError, Tokenizer, TokenizerSource};
use serde::Deserialize;
use std::collections::BTreeMap;

/// A vocabulary as the fixtures store it.
#[derive(Clone, Deserialize)]
pub struct StoredVocabulary {
    pub model: String,
    pub tokens: Vec<String>,
    pub types: Vec<i32>,
    #[serde(default)]
    pub scores: Vec<f32>,
    #[serde(default)]
    pub merges: Vec<String>,
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub unk: Option<u32>,
    pub add_bos: Option<bool>,
    pub add_eos: Option<bool>,
    pub add_space_prefix: Option<bool>,
}

impl StoredVocabulary {
    pub fn source<'a>(&'a self, pre: Option<&'a str>) -> TokenizerSource<'a> {
        TokenizerSource {
            model: &self.model,
            pre,
            tokens: self.tokens.iter().map(String::as_bytes).collect(),
            token_types: self.types.clone(),
            scores: self.scores.clone(),
            merges: self.merges.iter().map(String::as_bytes).collect(),
            bos_id: self.bos,
            eos_id: self.eos,
            unk_id: self.unk,
            add_bos: self.add_bos,
            add_eos: self.add_eos,
            add_space_prefix: self.add_space_prefix,
            ..TokenizerSource::default()
        }
    }

    pub fn tokenizer(&self, pre: &str) -> Result<Tokenizer, TextError> {
        Tokenizer::from_gguf(self.source(Some(pre)))
    }
}

/// Ids for each text of a fixture.
#[derive(Deserialize)]
pub struct References {
    pub plain: Vec<Vec<u32>>,
    pub special: Option<Vec<Vec<u32>>>,
    pub prompt: Option<Vec<Vec<u32>>>,
}

#[derive(Deserialize)]
pub struct TokenizerFixture {
    pub texts: Vec<String>,
    pub vocabulary: StoredVocabulary,
    pub references: BTreeMap<String, References>,
}

pub fn byte_pairs() -> TokenizerFixture {
    serde_json::from_str(include_str!("../fixtures/byte_pairs.json")).expect("the fixture is valid")
}

pub fn score_merges() -> TokenizerFixture {
    serde_json::from_str(include_str!("../fixtures/score_merges.json")).expect("the fixture is valid")
}
