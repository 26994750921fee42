//! `tokenizer_config.json` and `generation_config.json`: what a model folder says beside its vocabulary.
//!
//! Owns the names of the start and end tokens, the flags that add them, added tokens listed here only, and chat templates
//! (one text, or a list with names). Fields with a value of an unexpected type count as absent, as in transformers.

use serde_json::Value as Json;

use crate::TextError;
use crate::tokenizer_file::AddedToken;

pub(crate) const CONFIG_FILE: &str = "tokenizer_config.json";

/// What `tokenizer_config.json` says, and the ids that `generation_config.json` ends on.
#[derive(Clone, Debug, Default)]
pub struct TokenizerConfig {
    /// The token that starts a text.
    pub bos_token: Option<String>,
    /// The token that ends a text.
    pub eos_token: Option<String>,
    /// Whether prompts start with `bos_token`; absent means what the post-processor of the vocabulary's file says.
    pub add_bos: Option<bool>,
    /// Whether prompts end with `eos_token`.
    pub add_eos: Option<bool>,
    /// Name of the Python class that reads this tokenizer.
    pub class: Option<String>,
    /// Chat templates by name; a single one is called `default`.
    pub templates: Vec<(String, String)>,
    /// Ids that end generation.
    pub stop_ids: Vec<u32>,
    pub(crate) added_tokens: Vec<AddedToken>,
}

impl TokenizerConfig {
    /// Reads the text of `tokenizer_config.json`.
    ///
    /// # Errors
    /// If it is not a JSON object.
    pub fn from_json(json: &[u8]) -> Result<TokenizerConfig, TextError> {
        let config: Json = parse(CONFIG_FILE, json)?;
        if !config.is_object() {
            let reason = "it is not a JSON object".to_owned();
            return Err(TextError::MalformedFile { file: CONFIG_FILE, reason });
        }
        let mut result = TokenizerConfig {
            bos_token: token(&config["bos_token"]),
            eos_token: token(&config["eos_token"]),
            add_bos: config["add_bos_token"].as_bool(),
            add_eos: config["add_eos_token"].as_bool(),
            class: config["tokenizer_class"].as_str().map(str::to_owned),
            templates: Vec::new(),
            stop_ids: Vec::new(),
            added_tokens: added_tokens(&config["added_tokens_decoder"]),
        };
        result.add_templates(&config["chat_template"]);
        Ok(result)
    }

    /// Adds the text of `chat_template.json` (`{"chat_template": …}`); its templates take the place of those before.
    ///
    /// # Errors
    /// If it is not JSON.
    pub fn add_template_json(&mut self, json: &[u8]) -> Result<(), TextError> {
        let value: Json = parse("chat_template.json", json)?;
        self.add_templates(&value["chat_template"]);
        Ok(())
    }

    /// Adds a template; it takes the place of one of the same name.
    pub fn add_template(&mut self, name: &str, source: &str) {
        self.templates.retain(|(existing, _)| existing != name);
        self.templates.push((name.to_owned(), source.to_owned()));
    }

    /// Adds the ids that `generation_config.json` ends generation on: a number or a list.
    ///
    /// # Errors
    /// If it is not JSON.
    pub fn add_generation_config(&mut self, json: &[u8]) -> Result<(), TextError> {
        let value: Json = parse("generation_config.json", json)?;
        let id = |value: &Json| value.as_u64().and_then(|id| u32::try_from(id).ok());
        match &value["eos_token_id"] {
            Json::Array(ids) => self.stop_ids.extend(ids.iter().filter_map(id)),
            single => self.stop_ids.extend(id(single)),
        }
        Ok(())
    }

    /// The template called `name`.
    pub fn template(&self, name: &str) -> Option<&str> {
        self.templates.iter().find(|(existing, _)| existing == name).map(|(_, source)| source.as_str())
    }

    fn add_templates(&mut self, value: &Json) {
        match value {
            Json::String(source) => self.add_template("default", source),
            Json::Array(list) => {
                for entry in list {
                    if let (Some(name), Some(source)) = (entry["name"].as_str(), entry["template"].as_str()) {
                        self.add_template(name, source);
                    }
                }
            }
            Json::Object(named) => {
                for (name, source) in named {
                    if let Some(source) = source.as_str() {
                        self.add_template(name, source);
                    }
                }
            }
            _ => {}
        }
    }
}

pub(crate) fn parse(file: &'static str, json: &[u8]) -> Result<Json, TextError> {
    serde_json::from_slice(json).map_err(|error| TextError::MalformedFile { file, reason: error.to_string() })
}

/// A token is written as its text or as an object with its text.
fn token(value: &Json) -> Option<String> {
    value.as_str().or_else(|| value["content"].as_str()).map(str::to_owned)
}

fn added_tokens(decoder: &Json) -> Vec<AddedToken> {
    let entries = decoder.as_object().into_iter().flatten();
    entries
        .filter_map(|(id, token)| {
            let flag = |name: &str| token[name].as_bool().unwrap_or(false);
            Some(AddedToken {
                id: id.parse().ok()?,
                content: token["content"].as_str()?.to_owned(),
                single_word: flag("single_word"),
                lstrip: flag("lstrip"),
                rstrip: flag("rstrip"),
                normalized: flag("normalized"),
                special: flag("special"),
            })
        })
        .collect()
}
