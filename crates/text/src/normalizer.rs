//! Unicode normalisation that a tokenizer file asks for, applied to the text between special tokens.
//!
//! Uses the tables of the `tokenizers` crate, whose Unicode version is older than today's: models saw text that went through them.

use std::borrow::Cow;

use unicode_normalization_alignments::UnicodeNormalization;

/// A Unicode normalisation form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Nfc,
    Nfd,
    Nfkc,
    Nfkd,
}

/// The forms in their order; usually none or one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Normalizer {
    pub(crate) forms: Vec<Form>,
}

impl Normalizer {
    /// The normalised text.
    pub(crate) fn apply<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let mut text = Cow::Borrowed(text);
        for &form in &self.forms {
            // ASCII is the same in every form.
            if text.is_ascii() {
                continue;
            }
            text = Cow::Owned(match form {
                Form::Nfc => text.nfc().map(|(character, _)| character).collect(),
                Form::Nfd => text.nfd().map(|(character, _)| character).collect(),
                Form::Nfkc => text.nfkc().map(|(character, _)| character).collect(),
                Form::Nfkd => text.nfkd().map(|(character, _)| character).collect(),
            });
        }
        text
    }
}
