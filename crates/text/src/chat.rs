//! Messages to token ids: the template renders, its control tokens become ids, user text stays text.

use crate::message::Message;
use crate::special::{Fragment, ParseSpecial};
use crate::template::{ChatTemplate, RenderOptions};
use crate::{TextError, Tokenizer};

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
        let (text, mark) = template.render_marked(messages, options, self.look_alikes())?;
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
