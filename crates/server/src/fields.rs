//! Reading a JSON object field by field, so that nothing is swallowed.
//!
//! Owns [`Fields`]: every field of a request is taken, ignored by name (and told in a header), or refused by name.
//! What nobody asked for is an error that names it. A `null` counts as absent, as the client packages mean it.

use serde_json::{Map, Value};

use crate::errors::ApiError;

/// Characters of a wrong value that a message shows.
const SHOWN_CHARACTERS: usize = 40;

/// The fields of one JSON object.
#[derive(Debug)]
pub struct Fields {
    fields: Map<String, Value>,
    place: String,
    asked: Vec<&'static str>,
    /// Fields that were accepted without effect, with their place.
    pub ignored: Vec<String>,
}

impl Fields {
    /// Takes an object apart; `place` is where it stands (`tools[0]`), empty for the request itself.
    ///
    /// # Errors
    /// If it is not an object.
    pub fn new(value: Value, place: &str) -> Result<Self, ApiError> {
        match value {
            Value::Object(fields) => {
                Ok(Self { fields, place: place.to_owned(), asked: Vec::new(), ignored: Vec::new() })
            }
            other if place.is_empty() => Err(ApiError::new(
                crate::errors::ErrorKind::Invalid,
                format!("the body is {}; it must be a JSON object", shown(&other)),
            )),
            other => {
                Err(ApiError::field(place, format!("{place} is {}; it must be an object", shown(&other))))
            }
        }
    }

    /// The field's name with its place.
    pub fn full_name(&self, name: &str) -> String {
        if self.place.is_empty() { name.to_owned() } else { format!("{}.{name}", self.place) }
    }

    /// An error about this field: `sentence` follows its name.
    pub fn error(&self, name: &str, sentence: &str) -> ApiError {
        let name = self.full_name(name);
        ApiError::field(&name, format!("{name} {sentence}"))
    }

    /// The field, left where it is.
    pub fn peek(&self, name: &str) -> Option<&Value> {
        self.fields.get(name)
    }

    fn wrong(&self, name: &str, value: &Value, wanted: &str) -> ApiError {
        self.error(name, &format!("is {}; it must be {wanted}", shown(value)))
    }

    /// Takes the field as it is.
    pub fn take(&mut self, name: &'static str) -> Option<Value> {
        self.asked.push(name);
        self.fields.remove(name).filter(|value| !value.is_null())
    }

    fn with<T>(
        &mut self,
        name: &'static str,
        wanted: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(value) => match read(&value) {
                Some(read) => Ok(Some(read)),
                None => Err(self.wrong(name, &value, wanted)),
            },
        }
    }

    /// A text.
    ///
    /// # Errors
    /// If the field is something else.
    pub fn string(&mut self, name: &'static str) -> Result<Option<String>, ApiError> {
        self.with(name, "a string", |value| value.as_str().map(str::to_owned))
    }

    /// A text that must be there.
    ///
    /// # Errors
    /// If the field is absent or something else.
    pub fn required_string(&mut self, name: &'static str) -> Result<String, ApiError> {
        self.string(name)?.ok_or_else(|| self.error(name, "is missing"))
    }

    /// True or false.
    ///
    /// # Errors
    /// If the field is something else.
    pub fn flag(&mut self, name: &'static str) -> Result<Option<bool>, ApiError> {
        self.with(name, "true or false", Value::as_bool)
    }

    /// A number from `least` to `most`.
    ///
    /// # Errors
    /// If the field is something else.
    pub fn number(&mut self, name: &'static str, least: f64, most: f64) -> Result<Option<f32>, ApiError> {
        let wanted = format!("a number from {least} to {most}");
        self.with(name, &wanted, |value| {
            value.as_f64().filter(|number| (least..=most).contains(number)).map(|number| number as f32)
        })
    }

    /// A whole number from `least` to `most`. `1.0` counts as whole: some clients write every number that way.
    ///
    /// # Errors
    /// If the field is something else.
    pub fn integer(&mut self, name: &'static str, least: i64, most: i64) -> Result<Option<i64>, ApiError> {
        let wanted = format!("a whole number from {least} to {most}");
        self.with(name, &wanted, |value| whole(value).filter(|number| (least..=most).contains(number)))
    }

    /// One of some words.
    ///
    /// # Errors
    /// If the field is something else.
    pub fn word(
        &mut self,
        name: &'static str,
        words: &[&'static str],
    ) -> Result<Option<&'static str>, ApiError> {
        let wanted = format!("one of {}", words.join(", "));
        self.with(name, &wanted, |value| words.iter().copied().find(|word| value.as_str() == Some(*word)))
    }

    /// A list.
    ///
    /// # Errors
    /// If the field is something else.
    pub fn list(&mut self, name: &'static str) -> Result<Option<Vec<Value>>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Array(values)) => Ok(Some(values)),
            Some(other) => Err(self.wrong(name, &other, "a list")),
        }
    }

    /// An object, to be read field by field.
    ///
    /// # Errors
    /// If the field is something else.
    pub fn object(&mut self, name: &'static str) -> Result<Option<Fields>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(value) => Fields::new(value, &self.full_name(name)).map(Some),
        }
    }

    /// A text or a list of texts.
    ///
    /// # Errors
    /// If the field is something else.
    pub fn strings(&mut self, name: &'static str) -> Result<Vec<String>, ApiError> {
        let read = self.with(name, "a string or a list of strings", |value| match value {
            Value::String(text) => Some(vec![text.clone()]),
            Value::Array(values) => values.iter().map(|value| value.as_str().map(str::to_owned)).collect(),
            _ => None,
        })?;
        Ok(read.unwrap_or_default())
    }

    /// Accepts these fields without effect, and remembers those that are there.
    pub fn ignore(&mut self, names: &[&'static str]) {
        for &name in names {
            if self.take(name).is_some() {
                self.ignored.push(self.full_name(name));
            }
        }
    }

    /// Refuses a field that changes the answer and is not supported; a value that asks for nothing (`false`, empty) is
    /// accepted.
    ///
    /// # Errors
    /// If the field is there; `reason` follows its name.
    pub fn refuse(&mut self, name: &'static str, reason: &str) -> Result<(), ApiError> {
        let asks = |value: &Value| match value {
            Value::Bool(flag) => *flag,
            Value::Array(values) => !values.is_empty(),
            Value::Object(fields) => !fields.is_empty(),
            Value::String(text) => !text.is_empty(),
            _ => true,
        };
        match self.take(name) {
            Some(value) if asks(&value) => Err(self.error(name, reason)),
            _ => Ok(()),
        }
    }

    /// Ends the object: every field must have been asked for. Gives the names of those that had no effect.
    ///
    /// # Errors
    /// If there is another field; it is named, with the known name it resembles.
    pub fn finish(self) -> Result<Vec<String>, ApiError> {
        let unknown: Vec<&String> =
            self.fields.iter().filter(|(_, value)| !value.is_null()).map(|(name, _)| name).collect();
        let Some(first) = unknown.first() else { return Ok(self.ignored) };
        let names: Vec<String> = unknown.iter().map(|name| short(&self.full_name(name))).collect();
        let kind = if names.len() == 1 { "is not a known field" } else { "are not known fields" };
        let hint =
            nearest(first, &self.asked).map_or(String::new(), |name| format!("; did you mean {name}?"));
        Err(ApiError::field(&names[0], format!("{} {kind}{hint}", names.join(", "))))
    }

    /// Ends an object of which unknown fields do no harm: they are told in the header.
    pub fn finish_leniently(mut self) -> Vec<String> {
        let unknown: Vec<String> = self
            .fields
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, _)| short(&self.full_name(name)))
            .collect();
        self.ignored.extend(unknown);
        self.ignored
    }
}

/// A whole number, also one written as `1.0`.
pub fn whole(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| {
        let number = value.as_f64()?;
        (number.fract() == 0.0 && number.abs() < 9.0e15).then_some(number as i64)
    })
}

/// The value as a message shows it, cut where it is long.
pub fn shown(value: &Value) -> String {
    match value {
        Value::Object(_) => "an object".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        other => short(&other.to_string()),
    }
}

fn short(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARACTERS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// The known name with the most characters in common, if that is more than two thirds.
fn nearest(name: &str, known: &[&'static str]) -> Option<&'static str> {
    let common = |other: &str| {
        let mut left: Vec<char> = other.chars().collect();
        let found = name.chars().filter(|character| {
            let place = left.iter().position(|other| other == character);
            place.map(|place| left.swap_remove(place)).is_some()
        });
        2 * found.count() * 100 / (name.chars().count() + other.chars().count()).max(1)
    };
    let best = known.iter().copied().max_by_key(|other| common(other))?;
    (common(best) > 75).then_some(best)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_field_that_nobody_asked_for_is_named() {
        let mut fields = Fields::new(json!({ "temperatur": 1, "n": null }), "").expect("an object");
        assert_eq!(fields.number("temperature", 0.0, 2.0), Ok(None));
        let error = fields.finish().expect_err("an unknown field");
        assert_eq!(error.message, "temperatur is not a known field; did you mean temperature?");
        assert_eq!(error.param.as_deref(), Some("temperatur"));
    }

    #[test]
    fn a_wrong_value_is_shown_with_what_would_be_right() {
        let mut fields =
            Fields::new(json!({ "top_p": 3, "n": 1.0, "s": ["a", 1] }), "options").expect("an object");
        let error = fields.number("top_p", 0.0, 1.0).expect_err("out of range");
        assert_eq!(error.message, "options.top_p is 3; it must be a number from 0 to 1");
        assert_eq!(fields.integer("n", 1, 8), Ok(Some(1)));
        assert!(fields.strings("s").is_err());
    }

    #[test]
    fn what_asks_for_nothing_is_not_refused() {
        let mut fields = Fields::new(json!({ "echo": false, "suffix": "x" }), "").expect("an object");
        assert_eq!(fields.refuse("echo", "is not supported"), Ok(()));
        assert!(fields.refuse("suffix", "is not supported").is_err());
    }
}
