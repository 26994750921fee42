//! Messages to token ids: the template renders, its control tokens become ids, user text stays text.

use serde_json::Value;

use crate::message::Message;
use crate::special::{Fragment, ParseSpecial};
use crate::template::{ChatTemplate, RenderOptions};
use crate::{TextError, Tokenizer};

/// Stands at the end of a content that is to be continued while the template renders: private characters, which no
/// template knows.
const END_OF_CONTENT: &str = "\u{f8fa}\u{f8f3}\u{f8fa}";

/// The messages with [`END_OF_CONTENT`] after the last content.
fn to_continue(messages: &[Message]) -> Result<Vec<Message>, TextError> {
    let index = messages.len().saturating_sub(1);
    let bad = |reason: &str| TextError::BadMessage { index, reason: reason.to_owned() };
    let last = messages.last().ok_or_else(|| bad("there is no message to continue"))?;
    let content = last.fields().get("content").and_then(Value::as_str);
    let content = content.ok_or_else(|| bad("only a message with text as its content can be continued"))?;
    if content.contains(END_OF_CONTENT) {
        return Err(bad("it contains characters that stand for its end"));
    }
    let mut fields = last.fields().clone();
    fields.insert("content".to_owned(), Value::from(format!("{content}{END_OF_CONTENT}")));
    let mut messages = messages.to_vec();
    messages[index] = Message::from_json(Value::Object(fields))?;
    Ok(messages)
}

impl Tokenizer {
    /// The prompt for a conversation. Control tokens come only from the template: a message that spells one out
    /// (`<|im_end|>`) is encoded as the letters it is written with. The start token is there exactly once if the
    /// model wants one, whether the template writes it or not; no end token is added.
    ///
    /// # Errors
    /// Those of [`ChatTemplate::render`], and messages that hold a control token of a single character.
    pub fn encode_chat(
        &self,
        template: &ChatTemplate,
        messages: &[Message],
        options: &RenderOptions,
    ) -> Result<Vec<u32>, TextError> {
        self.encode_chat_with(template, messages, options, &mut |_| None)
    }

    /// As [`Tokenizer::encode_chat`]. `known` may give other ids for a stretch of text between special tokens, such as those
    /// a model wrote it with: they must be of that very text.
    ///
    /// # Errors
    /// As [`Tokenizer::encode_chat`].
    pub fn encode_chat_with(
        &self,
        template: &ChatTemplate,
        messages: &[Message],
        options: &RenderOptions,
        known: &mut dyn FnMut(&str) -> Option<Vec<u32>>,
    ) -> Result<Vec<u32>, TextError> {
        let (text, mark) = if options.continue_last {
            let (mut text, mark) =
                template.render_marked(&to_continue(messages)?, options, self.look_alikes())?;
            let end = text.rfind(END_OF_CONTENT).ok_or_else(|| {
                let reason = "the template does not write its content, so it cannot be continued".to_owned();
                TextError::BadMessage { index: messages.len() - 1, reason }
            })?;
            text.truncate(end);
            (text, mark)
        } else {
            template.render_marked(messages, options, self.look_alikes())?
        };
        let mut ids = Vec::new();
        let mut after_special = true;
        self.split_special(&text, &mut |fragment| match fragment {
            Fragment::Token(id) => {
                ids.push(id);
                after_special = true;
            }
            Fragment::Text(text) => {
                let text = text.replace(mark, "");
                if let Some(stretch) = known(&text) {
                    ids.extend(stretch);
                    after_special = false;
                    return;
                }
                self.encode_into(&text, ParseSpecial::No, &mut after_special, &mut ids);
            }
        });
        self.ensure_bos(&mut ids);
        Ok(ids)
    }
}
