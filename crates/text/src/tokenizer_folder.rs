//! A model folder's tokenizer files: vocabulary, configuration and chat templates together.
//!
//! Owns which files are looked for and which wins: `tokenizer.json`, then `tekken.json`, then `tiktoken.model`; for templates
//! `chat_template.jinja` and `additional_chat_templates/`, then `chat_template.json`, then the field of `tokenizer_config.json`.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use crate::tokenizer_config::TokenizerConfig;
use crate::{ChatTemplate, TextError, Tokenizer};

/// Largest vocabulary file; the largest known is 35 MB.
const VOCABULARY_LIMIT_BYTES: u64 = 256 << 20;

/// Largest configuration or template.
const CONFIG_LIMIT_BYTES: u64 = 16 << 20;

/// Memory while a tokenizer is built, per byte of its file and beside it.
const BYTES_PER_FILE_BYTE: u64 = 6;
const BASE_BYTES: u64 = 16 << 20;

/// Most templates of a folder beside the default one.
const TEMPLATE_LIMIT: usize = 32;

/// The tokenizer files of a folder; the vocabulary is read when [`TokenizerFolder::tokenizer`] asks for it.
#[derive(Clone, Debug)]
pub struct TokenizerFolder {
    vocabulary: PathBuf,
    config: TokenizerConfig,
}

impl TokenizerFolder {
    /// Finds the tokenizer of a folder and reads its configuration and templates.
    ///
    /// # Errors
    /// The folder holds no tokenizer, or a file of it cannot be read, is too large or malformed.
    pub fn open(folder: &Path) -> Result<TokenizerFolder, TextError> {
        let candidates = ["tokenizer.json", "tekken.json", "tiktoken.model"].map(|name| folder.join(name));
        let Some(vocabulary) = candidates.into_iter().find(|path| path.is_file()) else {
            return Err(TextError::NoTokenizerFile { folder: folder.display().to_string() });
        };
        let optional = |name: &str| read_optional(&folder.join(name), CONFIG_LIMIT_BYTES);
        let mut config = match optional("tokenizer_config.json")? {
            Some(json) => TokenizerConfig::from_json(&json)?,
            None => TokenizerConfig::default(),
        };
        // The model's configuration names the same id where nothing else says how generation ends.
        let ends = match optional("generation_config.json")? {
            Some(json) => Some(json),
            None => optional("config.json")?,
        };
        if let Some(json) = ends {
            config.add_generation_config(&json)?;
        }
        if let Some(json) = optional("chat_template.json")? {
            config.add_template_json(&json)?;
        }
        if let Some(source) = optional("chat_template.jinja")? {
            config.add_template("default", &text_of("chat_template.jinja", source)?);
        }
        let mut further = further_templates(&folder.join("additional_chat_templates"))?;
        further.sort();
        for path in further {
            if let (Some(name), Some(source)) =
                (path.file_stem().and_then(|name| name.to_str()), read_optional(&path, CONFIG_LIMIT_BYTES)?)
            {
                config.add_template(name, &text_of("a chat template", source)?);
            }
        }
        Ok(TokenizerFolder { vocabulary, config })
    }

    /// Upper bound for the memory that [`TokenizerFolder::tokenizer`] adds to a process, in bytes, the file's text included: measured
    /// 2.3 to 5.5 times the file for eight real ones, beside small tables.
    ///
    /// # Errors
    /// The file's size cannot be read.
    pub fn estimated_bytes(&self) -> Result<u64, TextError> {
        let unreadable =
            |error| TextError::FileUnreadable { path: self.vocabulary.display().to_string(), error };
        let file = std::fs::metadata(&self.vocabulary).map_err(unreadable)?.len();
        Ok(BASE_BYTES.saturating_add(BYTES_PER_FILE_BYTE.saturating_mul(file)))
    }

    /// The file that the vocabulary is read from.
    pub fn vocabulary_file(&self) -> &Path {
        &self.vocabulary
    }

    /// Whether the vocabulary's file has no split patterns, so that a name for them is asked for.
    pub fn takes_pre_tokenizer(&self) -> bool {
        self.vocabulary.file_name().is_some_and(|name| name == "tiktoken.model")
    }

    /// What the configuration says, templates included.
    pub fn config(&self) -> &TokenizerConfig {
        &self.config
    }

    /// Builds the tokenizer. `pre_tokenizer` names the split patterns where the vocabulary's file has none (tiktoken).
    ///
    /// # Errors
    /// The file cannot be read, is malformed, or asks for what is not supported.
    pub fn tokenizer(&self, pre_tokenizer: Option<&str>) -> Result<Tokenizer, TextError> {
        let bytes = read_optional(&self.vocabulary, VOCABULARY_LIMIT_BYTES)?
            .ok_or_else(|| TextError::NoTokenizerFile { folder: self.vocabulary.display().to_string() })?;
        match self.vocabulary.file_name().and_then(|name| name.to_str()) {
            Some("tekken.json") => Tokenizer::from_tekken(&bytes, &self.config),
            Some("tiktoken.model") => {
                // The class of Kimi's tokenizer holds its patterns in its source.
                let kimi = self.config.class.as_deref() == Some("TikTokenTokenizer");
                Tokenizer::from_tiktoken(&bytes, pre_tokenizer.or(kimi.then_some("kimi-k2")), &self.config)
            }
            _ => Tokenizer::from_tokenizer_json(&bytes, &self.config),
        }
    }

    /// The chat template with the tokens it may write, if the folder has one.
    ///
    /// # Errors
    /// A template does not parse.
    pub fn chat_template(&self) -> Result<Option<ChatTemplate>, TextError> {
        let Some(source) = self.config.template("default") else { return Ok(None) };
        let token = |token: &Option<String>| token.clone().unwrap_or_default();
        let template =
            ChatTemplate::new(source, &token(&self.config.bos_token), &token(&self.config.eos_token))?;
        match self.config.template("tool_use") {
            Some(source) => template.with_tool_use(source).map(Some),
            None => Ok(Some(template)),
        }
    }
}

/// The bytes of a file; `None` if there is none.
fn read_optional(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, TextError> {
    let unreadable = |error| TextError::FileUnreadable { path: path.display().to_string(), error };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(error)),
    };
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > limit {
        let bytes = bytes.len() as u64;
        return Err(TextError::FileTooLarge { file: path.display().to_string(), bytes, limit });
    }
    Ok(Some(bytes))
}

fn text_of(file: &'static str, bytes: Vec<u8>) -> Result<String, TextError> {
    String::from_utf8(bytes).map_err(|error| TextError::MalformedFile { file, reason: error.to_string() })
}

fn further_templates(folder: &Path) -> Result<Vec<PathBuf>, TextError> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(Vec::new()) };
    let is_template = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "jinja");
    let found: Vec<PathBuf> =
        entries.flatten().map(|entry| entry.path()).filter(is_template).take(TEMPLATE_LIMIT + 1).collect();
    if found.len() > TEMPLATE_LIMIT {
        let reason = format!("there are more than {TEMPLATE_LIMIT} templates");
        return Err(TextError::MalformedFile { file: "additional_chat_templates", reason });
    }
    Ok(found)
}
