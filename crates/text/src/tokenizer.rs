//! The tokenizer: text to ids and back, built from the metadata of a GGUF file or from tokenizer files.
//!
//! Owns the checks on a vocabulary (everything in it is untrusted) and the order of work: special tokens are cut
//! out first (`special.rs`), the text between them is normalised if a file asks for it (`normalizer.rs`; GGUF does not, as in
//! llama.cpp) and goes to BPE by merges (`bpe.rs`) or by scores and ranks (`spm.rs`). Files are read in `tokenizer_file.rs`.

use std::borrow::Cow;

use crate::bpe::{BytePairEncoder, MergeList, Units};
use crate::byte_level::ByteLevelTable;
use crate::guard::ControlLookAlikes;
use crate::normalizer::Normalizer;
use crate::pre_tokenizer::PreTokenizer;
use crate::source::{TokenType, TokenizerSource};
use crate::special::{Fragment, ParseSpecial, SpecialRules, SpecialTokens, is_structure};
use crate::spm::{SPACE_MARK, ScoreMergeEncoder};
use crate::stream::{DecodeOptions, StreamDecoder};
use crate::vocabulary::{TokenIndex, Vocabulary, VocabularyBuilder};
use crate::{TextError, stop};

/// Largest number of tokens and of text bytes, so that ids and offsets fit 32 bits.
const LIMIT: usize = 1 << 31;

enum Encoder {
    BytePairs(BytePairEncoder),
    ScoreMerges(ScoreMergeEncoder),
}

/// How text becomes tokens, beyond what [`TokenizerSource`] says.
pub(crate) struct Recipe<'a> {
    pub(crate) algorithm: Algorithm<'a>,
    pub(crate) normalizer: Normalizer,
    /// Whether the vocabulary writes spaces as [`SPACE_MARK`]. If not, it writes bytes in GPT-2's alphabet.
    pub(crate) marks_spaces: bool,
    pub(crate) space_prefix: SpacePrefix,
    pub(crate) special: SpecialRules<'a>,
    /// Further ids that end generation.
    pub(crate) stop_ids: Vec<u32>,
}

pub(crate) enum Algorithm<'a> {
    Merges {
        list: MergeList<'a>,
        pre_tokenizer: PreTokenizer,
        units: Units,
    },
    /// SentencePiece: characters are merged, the highest score first.
    Scores,
    /// tiktoken: bytes are merged, the lowest id first.
    Ranks {
        pre_tokenizer: PreTokenizer,
    },
}

/// Where a space is put before text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpacePrefix {
    Never,
    /// Before every stretch of text that starts or follows a special token.
    Always,
    /// The same, unless it begins with a space.
    UnlessThere,
    /// Before the start of the whole text only, unless it begins with a space.
    AtStartUnlessThere,
}

/// A tokenizer. Immutable and shared freely between threads.
pub struct Tokenizer {
    vocabulary: Vocabulary,
    encoder: Encoder,
    normalizer: Normalizer,
    marks_spaces: bool,
    space_prefix: SpacePrefix,
    special: SpecialTokens,
    look_alikes: ControlLookAlikes,
    bos: Option<u32>,
    eos: Option<u32>,
    add_bos: bool,
    add_eos: bool,
    stop_tokens: Vec<u32>,
}

impl Tokenizer {
    /// Builds the tokenizer of a GGUF file and checks the whole vocabulary.
    ///
    /// # Errors
    /// Names the first token, merge or key that is wrong; an unknown `pre` lists the known ones.
    pub fn from_gguf(mut source: TokenizerSource<'_>) -> Result<Tokenizer, TextError> {
        let algorithm = match source.model {
            "gpt2" => {
                let pre_tokenizer = PreTokenizer::for_name(source.pre)?;
                if source.bos_id.is_some() && source.add_bos.is_none() {
                    source.add_bos = Some(pre_tokenizer.add_bos);
                }
                // The list is longer than the vocabulary and not needed once it is read.
                let list = MergeList::Joined(std::mem::take(&mut source.merges));
                Algorithm::Merges { list, pre_tokenizer, units: Units::Bytes }
            }
            "llama" => {
                apply_llama_defaults(&mut source);
                source.add_bos = source.add_bos.or(Some(source.bos_id.is_some()));
                Algorithm::Scores
            }
            other => return Err(TextError::UnsupportedModel(other.to_owned())),
        };
        let scores = matches!(algorithm, Algorithm::Scores);
        let prefixed = scores && source.add_space_prefix.unwrap_or(true);
        Tokenizer::build(
            source,
            Recipe {
                algorithm,
                normalizer: Normalizer::default(),
                marks_spaces: scores,
                space_prefix: if prefixed { SpacePrefix::Always } else { SpacePrefix::Never },
                special: SpecialRules::default(),
                stop_ids: Vec::new(),
            },
        )
    }

    pub(crate) fn build(mut source: TokenizerSource<'_>, recipe: Recipe<'_>) -> Result<Tokenizer, TextError> {
        check_sizes(&source)?;
        let index = index_tokens(&source)?;
        check_special_ids(&source)?;
        let vocabulary = read_vocabulary(&source, recipe.marks_spaces)?;
        let encoder = match recipe.algorithm {
            Algorithm::Merges { list, pre_tokenizer, units } => Encoder::BytePairs(BytePairEncoder::new(
                &source,
                list,
                pre_tokenizer,
                units,
                &vocabulary,
                &index,
            )?),
            Algorithm::Scores => Encoder::ScoreMerges(ScoreMergeEncoder::by_score(&mut source, &vocabulary)?),
            Algorithm::Ranks { pre_tokenizer } => {
                Encoder::ScoreMerges(ScoreMergeEncoder::by_rank(pre_tokenizer, &source, &vocabulary)?)
            }
        };
        let (add_bos, add_eos) = (source.add_bos.unwrap_or(false), source.add_eos.unwrap_or(false));
        for (set, flag, id, key) in [
            (add_bos, "tokenizer.ggml.add_bos_token", source.bos_id, "tokenizer.ggml.bos_token_id"),
            (add_eos, "tokenizer.ggml.add_eos_token", source.eos_id, "tokenizer.ggml.eos_token_id"),
        ] {
            if set && id.is_none() {
                return Err(TextError::SpecialIdMissing { flag, key });
            }
        }
        let control_id = |text: &str| {
            let id = index.find(text.as_bytes(), |id| source.tokens[id as usize])?;
            (vocabulary.token_type(id) == TokenType::Control).then_some(id)
        };
        let mut stop_tokens = stop::stops_by_text(control_id);
        stop_tokens.extend([source.eos_id, source.eot_id, source.eom_id].into_iter().flatten());
        stop_tokens.extend(recipe.stop_ids.into_iter().filter(|&id| (id as usize) < vocabulary.len()));
        stop_tokens.sort_unstable();
        stop_tokens.dedup();
        let special = SpecialTokens::new(&vocabulary, &recipe.special)?;
        let look_alikes = ControlLookAlikes::new(&vocabulary)?;
        Ok(Tokenizer {
            vocabulary,
            encoder,
            normalizer: recipe.normalizer,
            marks_spaces: recipe.marks_spaces,
            space_prefix: recipe.space_prefix,
            special,
            look_alikes,
            bos: source.bos_id,
            eos: source.eos_id,
            add_bos,
            add_eos,
            stop_tokens,
        })
    }

    /// Number of tokens. The model's output head may be wider; ids beyond decode to nothing.
    pub fn vocab_size(&self) -> usize {
        self.vocabulary.len()
    }

    /// The token that starts a text, if the model has one.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The token that ends a text, if the model has one.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// Ids that end generation, ascending: `eos`, `eot` and `eom` of the file and the end-of-turn tokens known by
    /// their text (the list is in `stop.rs`). Tool markers are not among them.
    pub fn stop_tokens(&self) -> &[u32] {
        &self.stop_tokens
    }

    /// The text of a token as it would be written out, also for control tokens; byte tokens may not be UTF-8.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.vocabulary.bytes(id)
    }

    /// The type of a token; ids beyond the vocabulary count as unused.
    pub fn token_type(&self, id: u32) -> TokenType {
        self.vocabulary.token_type(id)
    }

    /// Whether a token is found as a whole in a template's text: control, unknown and user-defined tokens.
    pub fn is_special(&self, id: u32) -> bool {
        let kind = self.token_type(id);
        kind == TokenType::UserDefined || crate::special::is_structure(kind)
    }

    /// Whether text after a special token gets a space before it that was not there.
    pub fn adds_space(&self) -> bool {
        self.adds_space_prefix()
    }

    /// The id of the control or user-defined token written `text`.
    pub fn special_id(&self, text: &str) -> Option<u32> {
        let mut parts = Vec::new();
        self.special.matcher(ParseSpecial::Yes).split(text, &mut |part| parts.push(part));
        match parts[..] {
            [Fragment::Token(id)] => Some(id),
            _ => None,
        }
    }

    /// The ids of a text, without anything added to its start or end.
    pub fn encode(&self, text: &str, parse: ParseSpecial) -> Vec<u32> {
        let mut ids = Vec::new();
        let mut after_special = true;
        self.encode_into(text, parse, &mut after_special, &mut ids);
        ids
    }

    /// The ids of a text as a prompt: with the start and end tokens the file asks for, each exactly once, also if
    /// the text itself begins or ends with one.
    pub fn encode_prompt(&self, text: &str, parse: ParseSpecial) -> Vec<u32> {
        let mut ids = self.encode(text, parse);
        self.ensure_bos(&mut ids);
        if let Some(eos) = self.eos.filter(|&eos| self.add_eos && ids.last() != Some(&eos)) {
            ids.push(eos);
        }
        ids
    }

    pub(crate) fn ensure_bos(&self, ids: &mut Vec<u32>) {
        if let Some(bos) = self.bos.filter(|&bos| self.add_bos && ids.first() != Some(&bos)) {
            ids.insert(0, bos);
        }
    }

    /// Appends the ids of `text`. `after_special` says whether a special token or the start came before.
    pub(crate) fn encode_into(
        &self,
        text: &str,
        parse: ParseSpecial,
        after_special: &mut bool,
        ids: &mut Vec<u32>,
    ) {
        self.special.matcher(parse).split(text, &mut |fragment| match fragment {
            Fragment::Token(id) => {
                ids.push(id);
                *after_special = true;
            }
            Fragment::Text(text) => {
                self.encode_plain(text, *after_special, ids);
                *after_special = false;
            }
        });
    }

    /// Calls `fragment` with the special tokens of `text` and the text between them.
    pub(crate) fn split_special<'t>(&self, text: &'t str, fragment: &mut dyn FnMut(Fragment<'t>)) {
        self.special.matcher(ParseSpecial::Yes).split(text, fragment);
    }

    pub(crate) fn look_alikes(&self) -> &ControlLookAlikes {
        &self.look_alikes
    }

    fn encode_plain(&self, text: &str, after_special: bool, ids: &mut Vec<u32>) {
        let mut text = self.normalizer.apply(text);
        if self.marks_spaces && text.contains(SPACE_MARK) {
            text = Cow::Owned(text.replace(SPACE_MARK, " "));
        }
        let prefixed = match self.space_prefix {
            SpacePrefix::Never => false,
            SpacePrefix::Always => after_special,
            SpacePrefix::UnlessThere => after_special && !text.starts_with(' '),
            SpacePrefix::AtStartUnlessThere => after_special && ids.is_empty() && !text.starts_with(' '),
        };
        if prefixed {
            text.to_mut().insert(0, ' ');
        }
        match &self.encoder {
            Encoder::BytePairs(encoder) => encoder.encode(&self.vocabulary, &text, ids),
            Encoder::ScoreMerges(encoder) => encoder.encode(&self.vocabulary, &text, ids),
        }
    }

    /// The text of ids that start a text; control tokens are left away. The inverse of [`Tokenizer::encode`].
    pub fn decode(&self, ids: &[u32]) -> String {
        self.decode_with(ids, DecodeOptions::default())
    }

    /// The text of ids. Bytes that are not UTF-8 become U+FFFD.
    pub fn decode_with(&self, ids: &[u32], options: DecodeOptions) -> String {
        let mut decoder = self.stream_decoder_with(options);
        let mut text = String::new();
        for &id in ids {
            decoder.push_to(id, &mut text);
        }
        text.push_str(&decoder.finish());
        text
    }

    /// A decoder for ids that come one by one and start a text.
    pub fn stream_decoder(&self) -> StreamDecoder<'_> {
        self.stream_decoder_with(DecodeOptions::default())
    }

    /// A decoder for ids that come one by one. Raw continuations should set [`DecodeOptions::continuation`].
    pub fn stream_decoder_with(&self, options: DecodeOptions) -> StreamDecoder<'_> {
        StreamDecoder::new(self, options)
    }

    pub(crate) fn piece(&self, id: u32, options: DecodeOptions) -> &[u8] {
        if !options.show_control && is_structure(self.vocabulary.token_type(id)) {
            return &[];
        }
        self.vocabulary.bytes(id)
    }

    pub(crate) fn adds_space_prefix(&self) -> bool {
        self.space_prefix != SpacePrefix::Never
    }

    /// Bytes this tokenizer's tables hold, without the lazily built automata of the regular expressions.
    pub fn resident_bytes(&self) -> usize {
        let encoder = match &self.encoder {
            Encoder::BytePairs(encoder) => encoder.resident_bytes(),
            Encoder::ScoreMerges(encoder) => encoder.resident_bytes(),
        };
        self.vocabulary.resident_bytes()
            + self.special.resident_bytes()
            + self.look_alikes.resident_bytes()
            + encoder
    }
}

fn check_sizes(source: &TokenizerSource<'_>) -> Result<(), TextError> {
    let tokens = source.tokens.len();
    if tokens == 0 {
        return Err(TextError::EmptyVocabulary);
    }
    let bytes = source.tokens.iter().fold(0usize, |sum, token| sum.saturating_add(token.len()));
    if tokens >= LIMIT || bytes >= LIMIT || source.merges.len() >= LIMIT {
        return Err(TextError::VocabularyTooLarge { tokens, bytes });
    }
    if !source.token_types.is_empty() && source.token_types.len() != tokens {
        let found = source.token_types.len();
        return Err(TextError::LengthMismatch { key: "tokenizer.ggml.token_type", found, tokens });
    }
    Ok(())
}

/// Finds tokens by their text as the file writes it. Empty texts are padding and may repeat.
fn index_tokens(source: &TokenizerSource<'_>) -> Result<TokenIndex, TextError> {
    let mut index = TokenIndex::with_capacity(source.tokens.len());
    for (id, &text) in source.tokens.iter().enumerate() {
        let id = id as u32;
        let lossy = || String::from_utf8_lossy(text).into_owned();
        if std::str::from_utf8(text).is_err() {
            return Err(TextError::TokenNotUtf8 { id, lossy: lossy() });
        }
        if text.is_empty() {
            continue;
        }
        if let Err(first) = index.insert(id, |id| source.tokens[id as usize]) {
            return Err(TextError::DuplicateToken { first, second: id, text: lossy() });
        }
    }
    Ok(index)
}

/// SentencePiece fixes these ids; files made by old converters leave the keys away.
fn apply_llama_defaults(source: &mut TokenizerSource<'_>) {
    let exists = |id: u32| ((id as usize) < source.tokens.len()).then_some(id);
    source.unk_id = source.unk_id.or(exists(0));
    source.bos_id = source.bos_id.or(exists(1));
    source.eos_id = source.eos_id.or(exists(2));
}

fn check_special_ids(source: &TokenizerSource<'_>) -> Result<(), TextError> {
    let tokens = source.tokens.len();
    for (key, id) in [
        ("tokenizer.ggml.bos_token_id", source.bos_id),
        ("tokenizer.ggml.eos_token_id", source.eos_id),
        ("tokenizer.ggml.eot_token_id", source.eot_id),
        ("tokenizer.ggml.eom_token_id", source.eom_id),
        ("tokenizer.ggml.unknown_token_id", source.unk_id),
    ] {
        if let Some(id) = id.filter(|&id| id as usize >= tokens) {
            return Err(TextError::SpecialIdOutOfRange { key, id, tokens });
        }
    }
    Ok(())
}

fn read_vocabulary(source: &TokenizerSource<'_>, marks_spaces: bool) -> Result<Vocabulary, TextError> {
    let bytes = source.tokens.iter().map(|token| token.len()).sum();
    let mut builder = Vocabulary::builder(source.tokens.len(), bytes);
    let table = ByteLevelTable::new();
    for (id, &text) in source.tokens.iter().enumerate() {
        let text = std::str::from_utf8(text).expect("checked by index_tokens");
        let token_type = token_type(source, id, text)?;
        push_bytes(&mut builder, &table, id, text, token_type, marks_spaces)?;
        builder.finish_token(token_type);
    }
    Ok(builder.build())
}

fn token_type(source: &TokenizerSource<'_>, id: usize, text: &str) -> Result<TokenType, TextError> {
    let id = id as u32;
    let listed = match source.token_types.get(id as usize) {
        Some(&number) => TokenType::from_gguf(number).ok_or(TextError::UnknownTokenType { id, number })?,
        None if source.unk_id == Some(id) => TokenType::Unknown,
        None if [source.bos_id, source.eos_id, source.eot_id, source.eom_id].contains(&Some(id)) => {
            TokenType::Control
        }
        None if source.model == "llama" && byte_value(text).is_some() => TokenType::Byte,
        None => TokenType::Normal,
    };
    // Some converters list these as ordinary or user-defined, and text could then end a turn.
    Ok(if stop::is_end_marker(text) { TokenType::Control } else { listed })
}

/// Appends the bytes a token stands for.
fn push_bytes(
    builder: &mut VocabularyBuilder,
    table: &ByteLevelTable,
    id: usize,
    text: &str,
    token_type: TokenType,
    marks_spaces: bool,
) -> Result<(), TextError> {
    match token_type {
        TokenType::Byte => {
            let bad = || TextError::BadByteToken { id: id as u32, text: text.to_owned() };
            builder.bytes.push(byte_value(text).ok_or_else(bad)?);
        }
        TokenType::Normal | TokenType::Unused if marks_spaces => {
            for (index, part) in text.split(SPACE_MARK).enumerate() {
                if index > 0 {
                    builder.bytes.push(b' ');
                }
                builder.bytes.extend_from_slice(part.as_bytes());
            }
        }
        TokenType::Normal | TokenType::Unused => {
            if !table.decode(text, &mut builder.bytes) {
                builder.bytes.extend_from_slice(text.as_bytes());
            }
        }
        TokenType::Control | TokenType::Unknown | TokenType::UserDefined => {
            builder.bytes.extend_from_slice(text.as_bytes());
        }
    }
    Ok(())
}

/// The byte of `<0xHH>` with exactly two hexadecimal digits.
fn byte_value(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let exact = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    if exact { u8::from_str_radix(digits, 16).ok() } else { None }
}
