//! `tokenizer.json`: the vocabulary, merges and steps of a Hugging Face tokenizer.
//!
//! Owns the reading of model, vocabulary, merges and added tokens, with their texts borrowed from the file where they hold no
//! escapes. Supports the BPE model; others are refused by name. The steps around the model: `tokenizer_steps.rs`. Format: the
//! `tokenizers` crate. Everything in the file is untrusted: ids and lists are bounded, nesting is bounded by the parser.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value as Json;

use crate::bpe::{MergeList, Units};
use crate::normalizer::Normalizer;
use crate::pre_tokenizer::PreTokenizer;
use crate::source::TokenizerSource;
use crate::special::{SpecialRules, TokenTrim};
use crate::spm::SPACE_MARK;
use crate::tokenizer::{Algorithm, Recipe, SpacePrefix};
use crate::tokenizer_config::TokenizerConfig;
use crate::tokenizer_steps::{Around, Steps};
use crate::{TextError, Tokenizer};

pub(crate) const FILE: &str = "tokenizer.json";

/// Ids may leave this many holes beyond twice the number of tokens, so that one id cannot ask for gigabytes.
const HOLES: usize = 1 << 16;

/// Most tokens: far above the largest vocabularies, and exact as a float.
pub(crate) const TOKEN_LIMIT: usize = 1 << 23;

// Types of `tokenizer.ggml.token_type`.
pub(crate) const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
pub(crate) const CONTROL: i32 = 3;
pub(crate) const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// A token that is cut out of text before the model sees it.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct AddedToken {
    pub(crate) id: u32,
    pub(crate) content: String,
    #[serde(default)]
    pub(crate) single_word: bool,
    #[serde(default)]
    pub(crate) lstrip: bool,
    #[serde(default)]
    pub(crate) rstrip: bool,
    #[serde(default)]
    pub(crate) normalized: bool,
    #[serde(default)]
    pub(crate) special: bool,
}

#[derive(Deserialize)]
struct FileFields<'a> {
    #[serde(default)]
    added_tokens: Option<Vec<AddedToken>>,
    #[serde(default)]
    normalizer: Json,
    #[serde(default)]
    pre_tokenizer: Json,
    #[serde(default)]
    post_processor: Json,
    #[serde(borrow)]
    model: ModelFields<'a>,
}

#[derive(Deserialize)]
struct ModelFields<'a> {
    #[serde(rename = "type", default)]
    kind: Option<String>,
    #[serde(borrow)]
    vocab: Vocab<'a>,
    #[serde(borrow, default)]
    merges: Merges<'a>,
    #[serde(default)]
    unk_token: Option<String>,
    #[serde(default)]
    byte_fallback: Option<bool>,
    #[serde(default)]
    fuse_unk: Option<bool>,
    #[serde(default)]
    ignore_merges: Option<bool>,
    #[serde(default)]
    dropout: Option<f64>,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    end_of_word_suffix: Option<String>,
}

#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// Texts and ids in the order of the file; `None` if it is not a mapping (other models have lists).
struct Vocab<'a>(Option<Vec<(Cow<'a, str>, u32)>>);

#[derive(Default)]
struct Merges<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<'de: 'a, 'a> Deserialize<'de> for Vocab<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Vocab<'a>, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Vocab<'de>;
            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a vocabulary")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vocab<'de>, A::Error> {
                let mut tokens = Vec::new();
                while let Some((Text(text), id)) = map.next_entry()? {
                    tokens.push((text, id));
                }
                Ok(Vocab(Some(tokens)))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vocab<'de>, A::Error> {
                while list.next_element::<serde::de::IgnoredAny>()?.is_some() {}
                Ok(Vocab(None))
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Merges<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Merges<'a>, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Merges<'de>;
            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a list of merges")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Merges<'de>, A::Error> {
                let mut merges = Vec::new();
                while let Some(Merge(left, right)) = list.next_element()? {
                    merges.push((left, right));
                }
                Ok(Merges(merges))
            }
        }
        deserializer.deserialize_seq(Reader)
    }
}

/// A merge: `"left right"` or `["left", "right"]`.
struct Merge<'a>(Cow<'a, str>, Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Merge<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Merge<'a>, D::Error> {
        struct Reader;
        fn halves(text: &str) -> Option<(&str, &str)> {
            text.split_once(' ')
                .filter(|(left, right)| !left.is_empty() && !right.is_empty() && !right.contains(' '))
        }
        const WANTED: &str = "two tokens with one space between them";
        impl<'de> Visitor<'de> for Reader {
            type Value = Merge<'de>;
            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a merge: two tokens")
            }
            fn visit_borrowed_str<E: serde::de::Error>(self, text: &'de str) -> Result<Merge<'de>, E> {
                let (left, right) = halves(text)
                    .ok_or_else(|| E::invalid_value(serde::de::Unexpected::Str(text), &WANTED))?;
                Ok(Merge(Cow::Borrowed(left), Cow::Borrowed(right)))
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Merge<'de>, E> {
                let (left, right) = halves(text)
                    .ok_or_else(|| E::invalid_value(serde::de::Unexpected::Str(text), &WANTED))?;
                Ok(Merge(Cow::Owned(left.to_owned()), Cow::Owned(right.to_owned())))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Merge<'de>, A::Error> {
                let (Some(Text(left)), Some(Text(right)), None) = (
                    list.next_element()?,
                    list.next_element()?,
                    list.next_element::<serde::de::IgnoredAny>()?,
                ) else {
                    return Err(serde::de::Error::invalid_length(0, &"two tokens"));
                };
                Ok(Merge(left, right))
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

fn malformed(reason: String) -> TextError {
    TextError::MalformedFile { file: FILE, reason }
}

fn refused(component: impl Into<String>) -> TextError {
    TextError::UnsupportedComponent { file: FILE, component: component.into(), detail: String::new() }
}

impl Tokenizer {
    /// Builds the tokenizer of a `tokenizer.json` and checks it whole. `config` is the `tokenizer_config.json` beside it; without
    /// one, the start and end tokens are those of the post-processor.
    ///
    /// # Errors
    /// Names the first thing that is malformed, or the step of the file that is not supported.
    pub fn from_tokenizer_json(json: &[u8], config: &TokenizerConfig) -> Result<Tokenizer, TextError> {
        let file: FileFields<'_> =
            serde_json::from_slice(json).map_err(|error| malformed(error.to_string()))?;
        let FileFields { added_tokens, normalizer, pre_tokenizer, post_processor, model } = file;
        check_model(&model)?;
        let steps = Steps::new(&normalizer, &pre_tokenizer)?;
        let around = Around::new(&post_processor)?;
        let mut added = added_tokens.unwrap_or_default();
        // Later versions of transformers list tokens in the configuration only.
        let listed: std::collections::HashSet<u32> = added.iter().map(|token| token.id).collect();
        added.extend(config.added_tokens.iter().filter(|token| !listed.contains(&token.id)).cloned());
        let Vocab(Some(vocabulary)) = &model.vocab else {
            return Err(malformed("the vocabulary is not a mapping".to_owned()));
        };
        let mut table = TokenTable::new(FILE, vocabulary.len() + added.len());
        for (text, id) in vocabulary {
            let byte = model.byte_fallback == Some(true) && is_byte_token(text);
            table.set(*id, text, if byte { BYTE } else { NORMAL })?;
        }
        let special = add_tokens(&mut table, &added, &steps)?;
        let unknown = model.unk_token.as_deref().map(|text| table.find("unk_token", text)).transpose()?;
        if let Some(id) = unknown {
            table.types[id as usize] = UNKNOWN;
        }
        let source = table.source(config, &around, unknown)?;
        let Merges(merges) = &model.merges;
        let pairs = merges.iter().map(|(left, right)| (left.as_bytes(), right.as_bytes())).collect();
        let whole_pieces_first = model.ignore_merges == Some(true);
        let units = match steps.byte_level {
            true => Units::Bytes,
            false => Units::Characters { fuse_unknown: model.fuse_unk == Some(true) },
        };
        Tokenizer::build(
            source,
            Recipe {
                algorithm: Algorithm::Merges {
                    list: MergeList::Pairs(pairs),
                    pre_tokenizer: PreTokenizer::from_stages(steps.stages, whole_pieces_first),
                    units,
                },
                normalizer: Normalizer { forms: steps.forms },
                marks_spaces: steps.marks_spaces,
                space_prefix: steps.space_prefix.unwrap_or(SpacePrefix::Never),
                special,
                stop_ids: config.stop_ids.clone(),
            },
        )
    }
}

fn check_model(model: &ModelFields<'_>) -> Result<(), TextError> {
    if let Some(kind) = model.kind.as_deref().filter(|kind| *kind != "BPE") {
        return Err(refused(format!("the model {kind}")));
    }
    if model.dropout.is_some_and(|share| share != 0.0) {
        return Err(refused("BPE with dropout"));
    }
    for (name, value) in [
        ("continuing_subword_prefix", &model.continuing_subword_prefix),
        ("end_of_word_suffix", &model.end_of_word_suffix),
    ] {
        if value.as_ref().is_some_and(|text| !text.is_empty()) {
            return Err(refused(format!("BPE with {name}")));
        }
    }
    Ok(())
}

fn is_byte_token(text: &str) -> bool {
    text.len() == 6
        && text.starts_with("<0x")
        && text.ends_with('>')
        && u8::from_str_radix(&text[3..5], 16).is_ok()
}

fn add_tokens<'a>(
    table: &mut TokenTable<'a>,
    added: &'a [AddedToken],
    steps: &Steps,
) -> Result<SpecialRules<'a>, TextError> {
    let mut rules = SpecialRules::default();
    for token in added {
        let text = token.content.as_str();
        if token.single_word {
            return Err(refused(format!("the added token {text:?} as a single word")));
        }
        let normalizer = Normalizer { forms: steps.forms.clone() };
        let changed = normalizer.apply(text) != text
            || (steps.marks_spaces && text.contains(' '))
            || steps.space_prefix == Some(SpacePrefix::Always);
        if token.normalized && changed {
            return Err(refused(format!("the added token {text:?}, which the normalizer changes")));
        }
        if token.lstrip || token.rstrip {
            rules.trims.push(TokenTrim { id: token.id, before: token.lstrip, after: token.rstrip });
        }
        let marked = steps.marks_spaces && !token.special && text.contains(SPACE_MARK);
        if marked && table.has(token.id, text) {
            // Such a token stands for spaces, which the model finds, and for marks that are written out.
            rules.literals.push((text, token.id));
        } else {
            table.set(token.id, text, if token.special { CONTROL } else { USER_DEFINED })?;
        }
    }
    Ok(rules)
}

/// Tokens by id, as [`TokenizerSource`] wants them.
pub(crate) struct TokenTable<'a> {
    file: &'static str,
    limit: usize,
    tokens: Vec<&'a [u8]>,
    types: Vec<i32>,
}

impl<'a> TokenTable<'a> {
    /// `expected` is the number of tokens that will be set.
    pub(crate) fn new(file: &'static str, expected: usize) -> TokenTable<'a> {
        let limit = (2 * expected + HOLES).min(TOKEN_LIMIT);
        TokenTable { file, limit, tokens: Vec::new(), types: Vec::new() }
    }

    pub(crate) fn set(&mut self, id: u32, text: &'a str, kind: i32) -> Result<(), TextError> {
        let at = id as usize;
        let fail = |reason: String| TextError::MalformedFile { file: self.file, reason };
        if at >= self.limit {
            return Err(fail(format!(
                "token {text:?} has id {id}; with this many tokens the limit is {}",
                self.limit
            )));
        }
        if at >= self.tokens.len() {
            self.tokens.resize(at + 1, b"");
            self.types.resize(at + 1, UNUSED);
        }
        let existing = self.tokens[at];
        if !existing.is_empty() && existing != text.as_bytes() {
            let existing = String::from_utf8_lossy(existing);
            return Err(fail(format!("id {id} belongs to {existing:?} and to {text:?}")));
        }
        self.tokens[at] = text.as_bytes();
        self.types[at] = kind;
        Ok(())
    }

    fn has(&self, id: u32, text: &str) -> bool {
        self.tokens.get(id as usize) == Some(&text.as_bytes())
    }

    /// The id of a token that `name` asks for.
    fn find(&self, name: &str, text: &str) -> Result<u32, TextError> {
        // Special tokens come first or last, and this is asked a few times per file.
        let at = self.tokens.iter().position(|token| *token == text.as_bytes()).filter(|_| !text.is_empty());
        at.map(|at| at as u32).ok_or_else(|| TextError::MalformedFile {
            file: self.file,
            reason: format!("{name} is {text:?}, which is not in the vocabulary"),
        })
    }

    pub(crate) fn source(
        mut self,
        config: &TokenizerConfig,
        around: &Around,
        unknown: Option<u32>,
    ) -> Result<TokenizerSource<'a>, TextError> {
        let id = |name: &str, text: Option<&String>| text.map(|text| self.find(name, text)).transpose();
        // The post-processor adds its own tokens; a configuration that names others decides if it also says whether.
        let bos_id = id("bos_token", config.bos_token.as_ref().or(around.before.as_ref()))?;
        let eos_id = id("eos_token", config.eos_token.as_ref().or(around.after.as_ref()))?;
        let add_bos = config.add_bos.unwrap_or(around.before.is_some()) && bos_id.is_some();
        let add_eos = config.add_eos.unwrap_or(around.after.is_some()) && eos_id.is_some();
        for id in [bos_id, eos_id].into_iter().flatten() {
            self.types[id as usize] = CONTROL;
        }
        Ok(TokenizerSource {
            tokens: self.tokens,
            token_types: self.types,
            bos_id,
            eos_id,
            unk_id: unknown,
            add_bos: Some(add_bos),
            add_eos: Some(add_eos),
            ..TokenizerSource::default()
        })
    }
}
