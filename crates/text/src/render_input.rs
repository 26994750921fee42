//! Turns a conversation from JSON into template values, marking user text on the way. Where the conversation comes from:
//! `conversation.rs`; what marks are for: `guard.rs`.

use indexmap::IndexMap;
use minijinja::value::Value;
use serde_json::Value as Json;

use crate::TextError;
use crate::conversation::Conversation;
use crate::guard::{ControlLookAlikes, noncharacters};
use crate::python_json::DEPTH_LIMIT;
use crate::template::MARK_VARIABLE;

/// What happens to user text before the template sees it.
#[derive(Clone, Copy)]
pub(crate) enum Marking<'a> {
    None,
    /// Look-alikes of control tokens are broken up with `mark`.
    Break {
        look_alikes: &'a ControlLookAlikes,
        mark: char,
    },
}

/// The template variables made from user input, and the size of that input in bytes.
pub(crate) struct RenderInput {
    variables: Vec<(String, Value)>,
    pub(crate) bytes: usize,
}

impl RenderInput {
    pub(crate) fn new(
        conversation: &Conversation<'_>,
        marking: Marking<'_>,
    ) -> Result<RenderInput, TextError> {
        let mut converter = Converter { marking, bytes: 0, message: 0 };
        let mut list = Vec::with_capacity(conversation.messages.len());
        for (index, message) in conversation.messages.iter().enumerate() {
            converter.message = index;
            let mut fields = Vec::with_capacity(message.len());
            for (key, value) in message {
                // The role was checked to be a word, and templates compare it and write it inside control tokens.
                let value =
                    if *key == "role" { Value::from(value.as_str()) } else { converter.value(value, 1)? };
                fields.push((converter.key(key)?, value));
            }
            list.push(mapping(fields));
        }
        let mut variables = Vec::with_capacity(conversation.variables.len() + 2);
        for (name, value) in &conversation.variables {
            variables.push(((*name).to_owned(), converter.value(value, 1)?));
        }
        variables.push(("messages".to_owned(), Value::from(list)));
        if let Marking::Break { mark, .. } = marking {
            variables.push((MARK_VARIABLE.to_owned(), Value::from(mark.to_string())));
        }
        Ok(RenderInput { variables, bytes: converter.bytes })
    }

    /// The context of a render; the user's variables cannot replace those of `fixed`.
    pub(crate) fn into_context<const N: usize>(self, fixed: [(&str, Value); N]) -> Value {
        let fixed = fixed.into_iter().map(|(name, value)| (name.to_owned(), value));
        mapping(self.variables.into_iter().chain(fixed))
    }
}

/// A template mapping that keeps the order of its entries, as Python's do.
fn mapping(entries: impl IntoIterator<Item = (String, Value)>) -> Value {
    let map: IndexMap<Value, Value> =
        entries.into_iter().map(|(key, value)| (Value::from(key), value)).collect();
    Value::from(map)
}

/// A template value for JSON that comes from a template value.
pub(crate) fn unmarked(value: &Json) -> Result<Value, TextError> {
    Converter { marking: Marking::None, bytes: 0, message: 0 }.value(value, 1)
}

struct Converter<'a> {
    marking: Marking<'a>,
    bytes: usize,
    /// Index of the message being converted, for errors.
    message: usize,
}

impl Converter<'_> {
    fn value(&mut self, value: &Json, depth: usize) -> Result<Value, TextError> {
        if depth > DEPTH_LIMIT {
            let reason = format!("values are nested more than {DEPTH_LIMIT} levels deep");
            return Err(TextError::BadMessage { index: self.message, reason });
        }
        self.bytes += 1;
        Ok(match value {
            Json::Null => Value::from(()),
            Json::Bool(flag) => Value::from(*flag),
            Json::Number(number) => number_value(number),
            Json::String(text) => Value::from(self.text(text, true)?),
            Json::Array(items) => {
                let items = items.iter().map(|item| self.value(item, depth + 1));
                Value::from(items.collect::<Result<Vec<Value>, _>>()?)
            }
            Json::Object(fields) => {
                let mut entries = Vec::with_capacity(fields.len());
                for (key, item) in fields {
                    entries.push((self.key(key)?, self.value(item, depth + 1)?));
                }
                mapping(entries)
            }
        })
    }

    /// A key: seams are left alone, because templates look keys up by their name.
    fn key(&mut self, key: &str) -> Result<String, TextError> {
        self.text(key, false)
    }

    fn text(&mut self, text: &str, seams: bool) -> Result<String, TextError> {
        self.bytes += text.len();
        match self.marking {
            Marking::None => Ok(text.to_owned()),
            Marking::Break { look_alikes, mark } => Ok(look_alikes.break_up(text, mark, seams)?.into_owned()),
        }
    }
}

fn number_value(number: &serde_json::Number) -> Value {
    if let Some(integer) = number.as_i64() {
        Value::from(integer)
    } else if let Some(integer) = number.as_u64() {
        Value::from(integer)
    } else {
        Value::from(number.as_f64().unwrap_or(f64::NAN))
    }
}

/// A noncharacter that occurs nowhere in the input of a render.
pub(crate) fn free_mark(conversation: &Conversation<'_>, trusted: &[&str]) -> Result<char, TextError> {
    let mut used = Vec::new();
    let mut note = |text: &str| {
        // Every noncharacter begins with one of these bytes in UTF-8, and most text has neither.
        if text.bytes().any(|byte| byte >= 0xEF) {
            used.extend(text.chars().filter(|&character| is_noncharacter(character)));
        }
    };
    trusted.iter().for_each(|text| note(text));
    for (name, value) in conversation.messages.iter().flatten().chain(&conversation.variables) {
        note(name);
        visit(value, 1, &mut note);
    }
    noncharacters().find(|candidate| !used.contains(candidate)).ok_or(TextError::NoFreeNoncharacter)
}

fn is_noncharacter(character: char) -> bool {
    let code = u32::from(character);
    (0xFDD0..=0xFDEF).contains(&code) || code & 0xFFFE == 0xFFFE
}

/// Calls `note` with every string of a value. Stops where the conversion refuses the depth anyway.
fn visit(value: &Json, depth: usize, note: &mut dyn FnMut(&str)) {
    if depth > DEPTH_LIMIT {
        return;
    }
    match value {
        Json::String(text) => note(text),
        Json::Array(items) => items.iter().for_each(|item| visit(item, depth + 1, note)),
        Json::Object(fields) => {
            for (key, value) in fields {
                note(key);
                visit(value, depth + 1, note);
            }
        }
        Json::Null | Json::Bool(_) | Json::Number(_) => {}
    }
}
