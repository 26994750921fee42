//! From `tokenizer.*` keys of a GGUF file to a tokenizer and a chat template.
//!
//! Key names are those of the GGUF specification. What the values mean and which are refused is decided in
//! `coldpress-text`.

use coldpress_formats::{FormatError, Metadata};
use coldpress_text::{ChatTemplate, Tokenizer, TokenizerSource};

use crate::error::EngineError;

/// What the file says about its tokenizer; `pre_tokenizer` is the user's override.
///
/// # Errors
/// `tokenizer.ggml.model` is absent, or a key has a value of another type.
pub(crate) fn tokenizer_source<'a>(
    metadata: &'a Metadata,
    pre_tokenizer: Option<&'a str>,
) -> Result<TokenizerSource<'a>, FormatError> {
    let strings = |key: &str| -> Result<Vec<&[u8]>, FormatError> {
        Ok(metadata.opt_byte_string_array(key)?.map_or_else(Vec::new, |strings| strings.iter().collect()))
    };
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let id = |name: &str| metadata.opt_u32(&key(&format!("{name}_token_id")));
    let flag = |name: &str| metadata.opt_bool(&key(name));
    Ok(TokenizerSource {
        model: metadata.string("tokenizer.ggml.model")?,
        pre: match pre_tokenizer {
            Some(name) => Some(name),
            None => metadata.opt_string("tokenizer.ggml.pre")?,
        },
        tokens: strings("tokenizer.ggml.tokens")?,
        token_types: metadata.opt_i32_array("tokenizer.ggml.token_type")?.unwrap_or_default(),
        scores: metadata.opt_f32_array("tokenizer.ggml.scores")?.unwrap_or_default(),
        merges: strings("tokenizer.ggml.merges")?,
        bos_id: id("bos")?,
        eos_id: id("eos")?,
        eot_id: id("eot")?,
        eom_id: id("eom")?,
        unk_id: id("unknown")?,
        add_bos: flag("add_bos_token")?,
        add_eos: flag("add_eos_token")?,
        add_space_prefix: flag("add_space_prefix")?,
    })
}

/// Builds the tokenizer of a model file.
///
/// # Errors
/// Keys are absent, malformed, or ask for a tokenizer that is not known.
pub(crate) fn tokenizer(metadata: &Metadata, pre_tokenizer: Option<&str>) -> Result<Tokenizer, EngineError> {
    Tokenizer::from_gguf(tokenizer_source(metadata, pre_tokenizer)?).map_err(EngineError::Tokenizer)
}

/// The chat template of a model file, if it has one.
///
/// # Errors
/// The template does not parse.
pub(crate) fn chat_template(
    metadata: &Metadata,
    tokenizer: &Tokenizer,
) -> Result<Option<ChatTemplate>, EngineError> {
    let Some(source) = metadata.opt_string("tokenizer.chat_template")? else { return Ok(None) };
    let text = |id: Option<u32>| id.map(|id| String::from_utf8_lossy(tokenizer.token_bytes(id)));
    let (bos, eos) = (text(tokenizer.bos()).unwrap_or_default(), text(tokenizer.eos()).unwrap_or_default());
    let template = ChatTemplate::new(source, &bos, &eos).map_err(EngineError::Tokenizer)?;
    match metadata.opt_string("tokenizer.chat_template.tool_use")? {
        Some(source) => template.with_tool_use(source).map(Some).map_err(EngineError::Tokenizer),
        None => Ok(Some(template)),
    }
}
