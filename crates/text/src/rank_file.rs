//! Vocabularies that list tokens by rank without merges: tiktoken's files and Mistral's `tekken.json`.
//!
//! A token's rank is its importance and, with an offset in tekken, its id. Owns the base64 and the layout of both; the tokens are
//! handed on in GPT-2's byte alphabet. Formats: tiktoken (`load_tiktoken_bpe`), mistral-common (`tokens/tokenizers/tekken.py`).

use serde::Deserialize;

use crate::byte_level::ByteLevelTable;
use crate::normalizer::Normalizer;
use crate::pre_tokenizer::{Pieces, PreTokenizer, Stage};
use crate::special::SpecialRules;
use crate::tokenizer::{Algorithm, Recipe, SpacePrefix};
use crate::tokenizer_config::TokenizerConfig;
use crate::tokenizer_file::{CONTROL, NORMAL, TOKEN_LIMIT, TokenTable};
use crate::tokenizer_steps::Around;
use crate::{TextError, Tokenizer};

const TIKTOKEN: &str = "tiktoken.model";
const TEKKEN: &str = "tekken.json";

/// Special ids that Kimi keeps behind the ranks; those without a name are reserved.
const KIMI_RESERVED: u32 = 256;

fn malformed(file: &'static str, reason: String) -> TextError {
    TextError::MalformedFile { file, reason }
}

impl Tokenizer {
    /// Builds a tokenizer from the lines of a tiktoken file (`base64 rank`). The file says nothing about splitting, so
    /// `pre_tokenizer` names the patterns (see [`crate::known_pre_tokenizers`]); `config` brings the special tokens.
    ///
    /// # Errors
    /// Names the first line that is malformed, or an unknown pre-tokenizer.
    pub fn from_tiktoken(
        ranks: &[u8],
        pre_tokenizer: Option<&str>,
        config: &TokenizerConfig,
    ) -> Result<Tokenizer, TextError> {
        let mut pre_tokenizer_stages = PreTokenizer::for_name(pre_tokenizer)?;
        pre_tokenizer_stages.whole_pieces_first = true;
        let alphabet = ByteLevelTable::new();
        let mut tokens = Vec::new();
        for (index, line) in ranks.split(|&byte| byte == b'\n').enumerate() {
            let line = line.trim_ascii();
            if line.is_empty() {
                continue;
            }
            let fail = |what: &str| malformed(TIKTOKEN, format!("line {}: {what}", index + 1));
            if tokens.len() >= TOKEN_LIMIT {
                return Err(fail("too many tokens"));
            }
            let space = line.iter().position(|&byte| byte == b' ').ok_or_else(|| fail("there is no rank"))?;
            let bytes = decode_base64(&line[..space]).ok_or_else(|| fail("the token is not base64"))?;
            let rank = std::str::from_utf8(&line[space + 1..]).ok().and_then(|rank| rank.parse::<u32>().ok());
            tokens.push((alphabet.encode(&bytes), rank.ok_or_else(|| fail("the rank is not a number"))?));
        }
        let ranked = tokens.iter().map(|(_, rank)| rank + 1).max().unwrap_or(0);
        let reserved = if pre_tokenizer == Some("kimi-k2") { KIMI_RESERVED } else { 0 };
        let named: std::collections::HashSet<u32> =
            config.added_tokens.iter().map(|token| token.id).collect();
        let unnamed = (ranked..ranked.saturating_add(reserved)).filter(|id| !named.contains(id));
        let unnamed: Vec<(u32, String)> =
            unnamed.map(|id| (id, format!("<|reserved_token_{id}|>"))).collect();
        let mut table = TokenTable::new(TIKTOKEN, tokens.len() + config.added_tokens.len() + unnamed.len());
        for (text, rank) in &tokens {
            table.set(*rank, text, NORMAL)?;
        }
        for token in &config.added_tokens {
            table.set(token.id, &token.content, CONTROL)?;
        }
        for (id, text) in &unnamed {
            table.set(*id, text, CONTROL)?;
        }
        build(table, pre_tokenizer_stages, config)
    }

    /// Builds the tokenizer of a `tekken.json`. Its texts start with `<s>` and end with `</s>`.
    ///
    /// # Errors
    /// Names what is malformed, or a split pattern that is not supported.
    pub fn from_tekken(json: &[u8], config: &TokenizerConfig) -> Result<Tokenizer, TextError> {
        let file: TekkenFile =
            serde_json::from_slice(json).map_err(|error| malformed(TEKKEN, error.to_string()))?;
        let specials = file.config.default_num_special_tokens;
        let size = file.config.default_vocab_size;
        let (Some(ranked), true) = (size.checked_sub(specials), (size as usize) < TOKEN_LIMIT) else {
            return Err(malformed(
                TEKKEN,
                format!("{specials} special tokens do not fit a vocabulary of {size}"),
            ));
        };
        let stage = Stage::from_pattern(&file.config.pattern, Pieces::MatchesAndGaps).map_err(|reason| {
            let component = format!("the split pattern {:?}", file.config.pattern);
            TextError::UnsupportedComponent { file: TEKKEN, component, detail: reason }
        })?;
        let alphabet = ByteLevelTable::new();
        let mut tokens = Vec::with_capacity(file.vocab.len().min(ranked as usize));
        for token in file.vocab.iter().filter(|token| token.rank < ranked) {
            let bytes = decode_base64(token.token_bytes.as_bytes());
            let bytes =
                bytes.ok_or_else(|| malformed(TEKKEN, format!("token {} is not base64", token.rank)))?;
            tokens.push((alphabet.encode(&bytes), token.rank + specials));
        }
        let names = special_names(file.special_tokens, specials)?;
        let mut table = TokenTable::new(TEKKEN, tokens.len() + names.len());
        for (text, id) in &tokens {
            table.set(*id, text, NORMAL)?;
        }
        for (id, text) in (0..).zip(&names) {
            table.set(id, text, CONTROL)?;
        }
        let name = |given: &Option<String>, default: &str| given.clone().or_else(|| Some(default.to_owned()));
        let config = TokenizerConfig {
            bos_token: name(&config.bos_token, "<s>"),
            eos_token: name(&config.eos_token, "</s>"),
            add_bos: config.add_bos.or(Some(true)),
            ..config.clone()
        };
        build(table, PreTokenizer::from_stages(vec![stage], true), &config)
    }
}

fn build(
    table: TokenTable<'_>,
    pre_tokenizer: PreTokenizer,
    config: &TokenizerConfig,
) -> Result<Tokenizer, TextError> {
    let source = table.source(config, &Around::default(), None)?;
    Tokenizer::build(
        source,
        Recipe {
            algorithm: Algorithm::Ranks { pre_tokenizer },
            normalizer: Normalizer::default(),
            marks_spaces: false,
            space_prefix: SpacePrefix::Never,
            special: SpecialRules::default(),
            stop_ids: config.stop_ids.clone(),
        },
    )
}

#[derive(Deserialize)]
struct TekkenFile {
    config: TekkenConfig,
    vocab: Vec<TekkenToken>,
    #[serde(default)]
    special_tokens: Option<Vec<TekkenSpecial>>,
}

#[derive(Deserialize)]
struct TekkenConfig {
    pattern: String,
    default_vocab_size: u32,
    default_num_special_tokens: u32,
}

#[derive(Deserialize)]
struct TekkenToken {
    rank: u32,
    token_bytes: String,
}

#[derive(Deserialize)]
struct TekkenSpecial {
    rank: u32,
    token_str: String,
}

/// The special tokens of files that list none (those before 2025), in order of their ids.
const OLD_SPECIALS: [&str; 20] = [
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
];

/// The texts of ids 0 to `count`; ids without a name are `<SPECIAL_id>`.
fn special_names(listed: Option<Vec<TekkenSpecial>>, count: u32) -> Result<Vec<String>, TextError> {
    let mut names: Vec<String> = (0..count).map(|id| format!("<SPECIAL_{id}>")).collect();
    let old = || {
        let old = OLD_SPECIALS.into_iter().take(count as usize);
        (0..).zip(old).map(|(rank, text)| TekkenSpecial { rank, token_str: text.to_owned() }).collect()
    };
    for special in listed.unwrap_or_else(old) {
        let place = names.get_mut(special.rank as usize).ok_or_else(|| {
            malformed(
                TEKKEN,
                format!("special token {:?} has rank {} of {count}", special.token_str, special.rank),
            )
        })?;
        *place = special.token_str;
    }
    Ok(names)
}

/// Standard base64 with its padding.
fn decode_base64(text: &[u8]) -> Option<Vec<u8>> {
    let data = text.iter().rposition(|&byte| byte != b'=').map_or(0, |last| last + 1);
    if !text.len().is_multiple_of(4) || text.len() - data > 2 {
        return None;
    }
    let mut out = Vec::with_capacity(data * 3 / 4);
    let (mut bits, mut held) = (0u32, 0);
    for &byte in &text[..data] {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        held += 6;
        if held >= 8 {
            held -= 8;
            out.push((bits >> held) as u8);
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::decode_base64;

    #[test]
    fn base64_is_that_of_rfc_4648() {
        for (text, bytes) in
            [("", &b""[..]), ("Zg==", b"f"), ("Zm8=", b"fo"), ("Zm9v", b"foo"), ("/+8=", b"\xff\xef")]
        {
            assert_eq!(decode_base64(text.as_bytes()).as_deref(), Some(bytes));
        }
        for bad in ["Zg", "Z===", "Zm9*", "Zm=v"] {
            assert!(decode_base64(bad.as_bytes()).is_none(), "{bad}");
        }
    }
}
