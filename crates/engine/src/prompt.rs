//! Prompts: from text and messages to token ids, on any thread.

use std::sync::Arc;
use std::time::SystemTime;

use coldpress_text::{ChatTemplate, DateTime, Message, ParseSpecial, RenderOptions, Tokenizer};
use serde_json::{Map, Value};

use crate::error::EngineError;

/// What a conversation is rendered with beside its messages.
#[derive(Clone, Debug, Default)]
pub struct ChatOptions {
    /// Tools the model may call: the objects of the OpenAI protocol, as templates expect them.
    pub tools: Option<Vec<Value>>,
    /// Whether the model should reason before it answers; `None` leaves it to the template.
    pub thinking: Option<bool>,
    /// Further variables of the template. They win over those of the configuration.
    pub variables: Map<String, Value>,
    /// Let the model go on with the last message instead of beginning an answer.
    pub continue_last: bool,
}

/// Tokenizer and chat template of a model, shared by everybody who makes prompts for it.
#[derive(Clone)]
pub struct PromptEncoder {
    inner: Arc<Inner>,
}

struct Inner {
    tokenizer: Arc<Tokenizer>,
    template: Option<ChatTemplate>,
    /// Template variables of the configuration.
    variables: Map<String, Value>,
    context: usize,
    /// Bytes of text beyond which no prompt can fit the context: the context's length in the longest tokens.
    bytes_max: usize,
}

impl PromptEncoder {
    pub(crate) fn new(
        tokenizer: Arc<Tokenizer>,
        template: Option<ChatTemplate>,
        variables: Map<String, Value>,
        context: usize,
    ) -> Self {
        let longest = (0..tokenizer.vocab_size() as u32).map(|id| tokenizer.token_bytes(id).len()).max();
        let bytes_max = longest.unwrap_or(0).saturating_mul(context);
        Self { inner: Arc::new(Inner { tokenizer, template, variables, context, bytes_max }) }
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.inner.tokenizer
    }

    /// The model's chat template, if its file has one.
    pub fn template(&self) -> Option<&ChatTemplate> {
        self.inner.template.as_ref()
    }

    /// Positions of the context.
    pub fn context(&self) -> usize {
        self.inner.context
    }

    /// Bytes of text beyond which no prompt can fit the context.
    pub fn bytes_max(&self) -> usize {
        self.inner.bytes_max
    }

    fn check(&self, bytes: usize) -> Result<(), EngineError> {
        let (bytes_max, context) = (self.inner.bytes_max, self.inner.context);
        if bytes <= bytes_max {
            return Ok(());
        }
        Err(EngineError::TextTooLong { bytes, bytes_max, context })
    }

    /// Ids of a plain text, with a begin-of-text token where the model wants one. `parse_special` reads control tokens in
    /// the text as such.
    ///
    /// # Errors
    /// The text cannot fit the context.
    pub fn encode(&self, text: &str, parse_special: bool) -> Result<Vec<u32>, EngineError> {
        self.check(text.len())?;
        let parse = if parse_special { ParseSpecial::Yes } else { ParseSpecial::No };
        Ok(self.inner.tokenizer.encode_prompt(text, parse))
    }

    /// Ids of a conversation through the model's chat template, ready for the assistant's answer.
    ///
    /// # Errors
    /// The file has no template, or the template refuses the messages.
    pub fn encode_chat(&self, messages: &[Message], options: &ChatOptions) -> Result<Vec<u32>, EngineError> {
        self.encode_chat_with(messages, options, &mut |_| None)
    }

    /// As [`PromptEncoder::encode_chat`]; `known` may give other ids of a stretch of text, see
    /// [`Tokenizer::encode_chat_with`].
    pub(crate) fn encode_chat_with(
        &self,
        messages: &[Message],
        options: &ChatOptions,
        known: &mut dyn FnMut(&str) -> Option<Vec<u32>>,
    ) -> Result<Vec<u32>, EngineError> {
        let Some(template) = &self.inner.template else {
            return Err(EngineError::BadOption("this model file has no chat template".to_owned()));
        };
        self.check(messages.iter().map(|message| message.text_bytes()).sum())?;
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let date = DateTime::from_unix_seconds(i64::try_from(since_epoch.as_secs()).unwrap_or(i64::MAX));
        let mut extra = self.inner.variables.clone();
        extra.extend(options.thinking.map(|thinking| ("enable_thinking".to_owned(), Value::from(thinking))));
        extra.extend(options.variables.clone());
        let options = RenderOptions {
            add_generation_prompt: !options.continue_last,
            continue_last: options.continue_last,
            date: Some(date),
            tools: options.tools.clone(),
            extra,
            ..RenderOptions::default()
        };
        let tokenizer = &self.inner.tokenizer;
        tokenizer.encode_chat_with(template, messages, &options, known).map_err(EngineError::Template)
    }
}
