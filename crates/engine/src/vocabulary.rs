//! From the `tokenizer.*` keys of a GGUF file, or the tokenizer files of a model folder, to a tokenizer and a chat template.
//!
//! Key names are those of the GGUF specification. What the values mean and which are refused is decided in
//! `coldpress-text`.

use std::path::Path;

use coldpress_formats::{FileFormat, FormatError, Metadata, ModelFile};
use coldpress_text::{ChatTemplate, Tokenizer, TokenizerFolder, TokenizerSource};

use crate::error::EngineError;
use crate::files::drop_cached;

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

/// The text side of a model: where its tokenizer and its templates are.
pub(crate) enum Vocabulary<'a> {
    /// Keys of a GGUF file.
    Keys(&'a Metadata),
    /// Files of a folder.
    Folder(TokenizerFolder),
}

impl<'a> Vocabulary<'a> {
    /// The vocabulary of a model; of a folder, configuration and templates are read.
    ///
    /// # Errors
    /// The folder has no tokenizer, or a file of it is malformed.
    pub fn of(file: &'a ModelFile) -> Result<Self, EngineError> {
        match file.format() {
            FileFormat::Gguf => Ok(Self::Keys(file.metadata())),
            FileFormat::HuggingFace => {
                let folder = file.metadata().path().parent().unwrap_or(Path::new("."));
                TokenizerFolder::open(folder).map(Self::Folder).map_err(EngineError::Tokenizer)
            }
        }
    }

    /// Upper bound for the memory that the tokenizer takes, in bytes.
    ///
    /// # Errors
    /// Keys are absent or of another type; a file's size cannot be read.
    pub fn estimated_bytes(&self, pre_tokenizer: Option<&str>) -> Result<u64, EngineError> {
        match self {
            Self::Keys(metadata) => Ok(tokenizer_source(metadata, pre_tokenizer)?.estimated_bytes()),
            Self::Folder(folder) => folder.estimated_bytes().map_err(EngineError::Tokenizer),
        }
    }

    /// Builds the tokenizer.
    ///
    /// # Errors
    /// Keys are absent, malformed, or ask for a tokenizer that is not known; so are files.
    pub fn tokenizer(&self, pre_tokenizer: Option<&str>) -> Result<Tokenizer, EngineError> {
        match self {
            Self::Keys(metadata) => Tokenizer::from_gguf(tokenizer_source(metadata, pre_tokenizer)?),
            Self::Folder(folder) => {
                let tokenizer = folder.tokenizer(pre_tokenizer);
                drop_cached(folder.vocabulary_file());
                tokenizer
            }
        }
        .map_err(EngineError::Tokenizer)
    }

    /// The text of the chat template, if there is one.
    pub fn template_source(&self) -> Option<&str> {
        match self {
            Self::Keys(metadata) => metadata.opt_string("tokenizer.chat_template").ok().flatten(),
            Self::Folder(folder) => folder.config().template("default"),
        }
    }

    /// Whether the pre-tokenizer that the user names is asked for.
    pub fn takes_pre_tokenizer(&self) -> bool {
        match self {
            Self::Keys(metadata) => {
                metadata.opt_string("tokenizer.ggml.model").ok().flatten() == Some("gpt2")
            }
            Self::Folder(folder) => folder.takes_pre_tokenizer(),
        }
    }

    /// The chat template, if there is one.
    ///
    /// # Errors
    /// The template does not parse.
    pub fn chat_template(&self, tokenizer: &Tokenizer) -> Result<Option<ChatTemplate>, EngineError> {
        match self {
            Self::Keys(metadata) => gguf_template(metadata, tokenizer),
            Self::Folder(folder) => folder.chat_template().map_err(EngineError::Tokenizer),
        }
    }
}

fn gguf_template(metadata: &Metadata, tokenizer: &Tokenizer) -> Result<Option<ChatTemplate>, EngineError> {
    let Some(source) = metadata.opt_string("tokenizer.chat_template")? else { return Ok(None) };
    let text = |id: Option<u32>| id.map(|id| String::from_utf8_lossy(tokenizer.token_bytes(id)));
    let (bos, eos) = (text(tokenizer.bos()).unwrap_or_default(), text(tokenizer.eos()).unwrap_or_default());
    let template = ChatTemplate::new(source, &bos, &eos).map_err(EngineError::Tokenizer)?;
    match metadata.opt_string("tokenizer.chat_template.tool_use")? {
        Some(source) => template.with_tool_use(source).map(Some).map_err(EngineError::Tokenizer),
        None => Ok(Some(template)),
    }
}
