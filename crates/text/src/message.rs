//! Chat messages as templates see them: JSON objects with a role.

use serde_json::{Map, Value};

use crate::TextError;

/// One message: a JSON object with a `role`, usually a `content`, and whatever else a template reads
/// (`tool_calls`, `tool_call_id`, `name`, `reasoning_content`).
#[derive(Clone, Debug, PartialEq)]
pub struct Message(Map<String, Value>);

impl Message {
    /// A message of text.
    pub fn new(role: &str, content: &str) -> Message {
        let mut fields = Map::new();
        fields.insert("role".to_owned(), Value::from(role));
        fields.insert("content".to_owned(), Value::from(content));
        Message(fields)
    }

    /// A message with any fields, passed to the template as they are.
    ///
    /// # Errors
    /// If the value is not an object. The role is checked when the message is rendered.
    pub fn from_json(value: Value) -> Result<Message, TextError> {
        match value {
            Value::Object(fields) => Ok(Message(fields)),
            _ => Err(TextError::BadMessage { index: 0, reason: "it is not a JSON object".to_owned() }),
        }
    }

    /// Bytes of the content where it is plain text.
    pub fn text_bytes(&self) -> usize {
        self.0.get("content").and_then(Value::as_str).map_or(0, str::len)
    }

    /// The fields.
    pub fn fields(&self) -> &Map<String, Value> {
        &self.0
    }

    /// Checks that the role is a word: templates write it between control tokens, some inside one (`<|user|>`).
    pub(crate) fn check_role(&self, index: usize) -> Result<(), TextError> {
        let bad = |reason: String| Err(TextError::BadMessage { index, reason });
        match self.0.get("role") {
            Some(Value::String(role)) => {
                let word =
                    |character: char| character.is_ascii_alphanumeric() || matches!(character, '_' | '-');
                if role.is_empty() || !role.chars().all(word) {
                    return bad(format!("the role is {role:?}; a role is letters, digits, _ and -"));
                }
                Ok(())
            }
            Some(_) => bad("the role is not a string".to_owned()),
            None => bad("it has no role".to_owned()),
        }
    }
}
