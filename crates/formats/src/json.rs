//! JSON of strangers: config.json as metadata, and where in a text the parser stopped.
//!
//! An object becomes keys with dots (`rope_parameters.rope_theta`), a list of one kind of scalars an array, `null` no key
//! at all. Lists of anything else are kept as the text of their JSON, so that no getter takes them for a value. Depth is
//! bounded by the parser (128), the number of keys and their length by [`crate::limits`].

use std::fmt;
use std::path::Path;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value as Json;

use crate::error::FormatError;
use crate::limits;
use crate::metadata::Metadata;
use crate::value::{Array, ByteString, StringArray, Value};

/// The keys and values of a config.json; `path` is for errors.
///
/// # Errors
/// It is longer than [`limits::MAX_CONFIG_BYTES`], not a JSON object, nests too deep, or names a key twice.
pub fn config_metadata(path: &Path, json: &[u8]) -> Result<Metadata, FormatError> {
    if json.len() as u64 > limits::MAX_CONFIG_BYTES {
        let (value, limit) = (json.len() as u64, limits::MAX_CONFIG_BYTES);
        return Err(FormatError::OverLimit {
            path: path.to_owned(),
            what: "its length",
            offset: 0,
            value,
            limit,
        });
    }
    let mut entries = Vec::new();
    let mut parser = serde_json::Deserializer::from_slice(json);
    let config = Flatten { key: String::new(), entries: &mut entries };
    let parsed = config.deserialize(&mut parser).and_then(|()| parser.end());
    parsed.map_err(|error| malformed(path, "the configuration", json, &error))?;
    Metadata::new(path, entries)
}

/// The error for a text that `error` is about.
pub(crate) fn malformed(
    path: &Path,
    what: &'static str,
    json: &[u8],
    error: &serde_json::Error,
) -> FormatError {
    let line_start = match error.line().checked_sub(2) {
        // Lines count from 1; the second begins behind the first line feed.
        Some(skipped) => {
            let feeds = json.iter().enumerate().filter(|&(_, &byte)| byte == b'\n');
            feeds.map(|(at, _)| at + 1).nth(skipped).unwrap_or(0)
        }
        None => 0,
    };
    let offset = (line_start + error.column().saturating_sub(1)) as u64;
    let text = error.to_string();
    let problem = text.rsplit_once(" at line ").map_or(text.as_str(), |(problem, _)| problem).to_owned();
    FormatError::BadJson { path: path.to_owned(), what, offset, problem }
}

/// Adds what it reads to `entries`, under `key`.
struct Flatten<'a> {
    key: String,
    entries: &'a mut Vec<(String, Value)>,
}

impl Flatten<'_> {
    fn add<E: serde::de::Error>(self, value: Value) -> Result<(), E> {
        if self.key.is_empty() {
            return Err(E::custom("it is not an object"));
        }
        if self.entries.len() as u64 >= limits::MAX_KEYS {
            return Err(E::custom(format_args!("it has more than {} keys", limits::MAX_KEYS)));
        }
        self.entries.push((self.key, value));
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Flatten<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Flatten<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<(), E> {
        if self.key.is_empty() { Err(E::custom("it is not an object")) } else { Ok(()) }
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<(), E> {
        self.add(Value::Bool(value))
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<(), E> {
        self.add(Value::Int64(value))
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<(), E> {
        self.add(Value::Uint64(value))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<(), E> {
        self.add(Value::Float64(value))
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<(), E> {
        self.add(Value::String(ByteString(value.as_bytes().to_vec())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let mut elements = Vec::new();
        while let Some(element) = list.next_element::<Json>()? {
            elements.push(element);
        }
        self.add(list_value(elements))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<(), A::Error> {
        while let Some(name) = object.next_key::<String>()? {
            let key = if self.key.is_empty() { name } else { format!("{}.{name}", self.key) };
            if key.is_empty() || key.len() as u64 > limits::MAX_KEY_BYTES {
                let problem =
                    format_args!("a key of {} bytes; keys have 1 to {}", key.len(), limits::MAX_KEY_BYTES);
                return Err(serde::de::Error::custom(problem));
            }
            object.next_value_seed(Flatten { key, entries: &mut *self.entries })?;
        }
        Ok(())
    }
}

fn list_value(elements: Vec<Json>) -> Value {
    fn all<T>(elements: &[Json], convert: impl Fn(&Json) -> Option<T>) -> Option<Vec<T>> {
        elements.iter().map(convert).collect()
    }
    if let Some(numbers) = all(&elements, Json::as_i64) {
        return Value::Array(Array::Int64(numbers));
    }
    if let Some(numbers) = all(&elements, Json::as_f64) {
        return Value::Array(Array::Float64(numbers));
    }
    if let Some(flags) = all(&elements, Json::as_bool) {
        return Value::Array(Array::Bool(flags));
    }
    if elements.iter().all(Json::is_string) {
        let texts = elements.iter().filter_map(Json::as_str).map(str::as_bytes);
        return Value::Array(Array::String(StringArray::from_iter(texts)));
    }
    Value::String(ByteString(Json::Array(elements).to_string().into_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Metadata, FormatError> {
        config_metadata(Path::new("config.json"), text.as_bytes())
    }

    #[test]
    fn nested_objects_become_keys_with_dots() {
        let text = r#"{"a": 1, "b": {"c": 2.5, "d": {"e": true}}, "f": null, "g": [1, 2], "h": [1, 2.5], "i": ["x"], "j": [null]}"#;
        let metadata = read(text).expect("a configuration");
        assert_eq!(metadata.u64("a").expect("a number"), 1);
        assert_eq!(metadata.f32("b.c").expect("a float"), 2.5);
        assert!(metadata.bool("b.d.e").expect("a flag"));
        assert!(metadata.get("f").is_none());
        assert_eq!(metadata.u32_array("g").expect("a list"), [1, 2]);
        assert_eq!(metadata.f32_array("h").expect("a list"), [1.0, 2.5]);
        assert_eq!(metadata.string_array("i").expect("a list"), ["x"]);
        assert_eq!(metadata.string("j").expect("its text"), "[null]");
    }

    #[test]
    fn malformed_text_is_refused_with_its_place() {
        let error = |text: &str| read(text).expect_err("an error").to_string();
        assert!(error("{\"a\": 1,\n \"b\" 2}").contains("offset 14"), "{}", error("{\"a\": 1,\n \"b\" 2}"));
        assert!(error("[1]").contains("not an object"));
        assert!(error("null").contains("not an object"));
        assert!(error("{\"a\": 1, \"a\": 2}").contains("twice"));
        assert!(error("{} {}").contains("trailing"));
        let deep = format!("{{\"a\": {}{}}}", "[".repeat(5000), "]".repeat(5000));
        assert!(error(&deep).contains("recursion limit"), "{}", error(&deep));
    }
}
