//! The `tojson` filter as transformers defines it: Python's `json.dumps` without HTML escaping.
//!
//! `tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`; floats are written as
//! Python's `repr` writes them. Source: transformers `utils/chat_template_utils.py`, Python `json.encoder`.

use std::fmt::Write;

use minijinja::value::{Kwargs, Rest, Value, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Error, ErrorKind, State};

use crate::python_text::Meter;

/// Nesting beyond this is refused; JSON parsers stop at similar depths.
pub(crate) const DEPTH_LIMIT: usize = 128;

struct JsonWriter<'a, 'state, 'env> {
    meter: Meter<'a, 'state, 'env>,
    out: String,
    ensure_ascii: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
    /// The noncharacter that marks user text; it stays itself under `ensure_ascii`, to be dropped later.
    mark: Option<char>,
}

/// The filter. Positional arguments come in the order of the Python function.
pub(crate) fn tojson(state: &State, value: &Value, arguments: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    type Arguments = (Option<Value>, Option<Value>, Option<Value>, Option<Value>, Kwargs);
    let arguments = arguments.into_values();
    let (ensure_ascii, indent, separators, sort_keys, keywords): Arguments = from_args(&arguments)?;
    let argument = |positional: Option<Value>, name: &str| -> Result<Option<Value>, Error> {
        let given = if positional.is_some() { positional } else { keywords.get(name)? };
        Ok(given.filter(|value| !value.is_none() && !value.is_undefined()))
    };
    let ensure_ascii = argument(ensure_ascii, "ensure_ascii")?;
    let indent = argument(indent, "indent")?.map(|value| indent_unit(&value)).transpose()?;
    let separators = argument(separators, "separators")?;
    let sort_keys = argument(sort_keys, "sort_keys")?;
    keywords.assert_all_used()?;
    let item_separator = if indent.is_some() { "," } else { ", " };
    let (item_separator, key_separator) = match separators {
        Some(pair) => (part(&pair, 0)?, part(&pair, 1)?),
        None => (item_separator.to_owned(), ": ".to_owned()),
    };
    let mark = state.lookup(crate::template::MARK_VARIABLE);
    let mut writer = JsonWriter {
        meter: Meter::new(state),
        out: String::new(),
        ensure_ascii: ensure_ascii.is_some_and(|value| value.is_true()),
        indent,
        item_separator,
        key_separator,
        sort_keys: sort_keys.is_some_and(|value| value.is_true()),
        mark: mark.as_ref().and_then(Value::as_str).and_then(|text| text.chars().next()),
    };
    writer.write(value, 0)?;
    Ok(Value::from(writer.out))
}

/// A filter that some templates expect from their renderer: `json.loads` of a text. Not one of transformers'.
pub(crate) fn from_json(text: &str) -> Result<Value, Error> {
    let value: serde_json::Value =
        serde_json::from_str(text).map_err(|error| invalid(format!("from_json: {error}")))?;
    crate::render_input::unmarked(&value).map_err(|error| invalid(error.to_string()))
}

/// The text `json.dumps(value, ensure_ascii=False)` gives; `None` for values nested too deeply.
pub(crate) fn json_text(value: &serde_json::Value) -> Option<String> {
    let mut out = String::new();
    write_json(value, 0, &mut out).then_some(out)
}

/// Gives false, and stops, where the value is nested too deeply.
fn write_json(value: &serde_json::Value, depth: usize, out: &mut String) -> bool {
    use serde_json::Value as Json;
    if depth > DEPTH_LIMIT {
        return false;
    }
    match value {
        Json::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                if !write_json(item, depth + 1, out) {
                    return false;
                }
            }
            out.push(']');
        }
        Json::Object(fields) => {
            out.push('{');
            for (index, (key, item)) in fields.iter().enumerate() {
                let _ = write!(out, "{}{}: ", if index > 0 { ", " } else { "" }, Json::from(key.as_str()));
                if !write_json(item, depth + 1, out) {
                    return false;
                }
            }
            out.push('}');
        }
        Json::Number(number) if number.is_f64() => {
            python_float(number.as_f64().unwrap_or(f64::NAN), out);
        }
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) => {
            let _ = write!(out, "{value}");
        }
    }
    true
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

fn part(pair: &Value, index: usize) -> Result<String, Error> {
    let item = pair.get_item_by_index(index)?;
    item.as_str().map(str::to_owned).ok_or_else(|| invalid("tojson: separators is a pair of strings"))
}

/// Python takes a number of spaces or the text of one level.
pub(crate) fn indent_unit(value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.to_owned());
    }
    let spaces =
        if value.kind() == ValueKind::Bool { Some(i64::from(value.is_true())) } else { value.as_i64() };
    match spaces {
        Some(spaces) if spaces <= 64 => Ok(" ".repeat(spaces.max(0) as usize)),
        _ => Err(invalid("an indent is a number up to 64 or a string")),
    }
}

impl JsonWriter<'_, '_, '_> {
    fn write(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > DEPTH_LIMIT {
            return Err(invalid("tojson: the value is nested too deeply"));
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => write_number(value, &mut self.out)?,
            ValueKind::String => self.write_string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.write_list(value, depth)?,
            ValueKind::Map => self.write_map(value, depth)?,
            other => return Err(invalid(format!("tojson: a value of type {other} is not JSON"))),
        }
        self.meter.charge(self.out.len())
    }

    fn write_list(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('[');
        let mut empty = true;
        for item in value.try_iter()? {
            self.start_item(empty, depth + 1);
            empty = false;
            self.write(&item, depth + 1)?;
        }
        self.close(']', empty, depth);
        Ok(())
    }

    fn write_map(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let mut entries = Vec::new();
        for key in value.try_iter()? {
            let item = value.get_item(&key)?;
            entries.push((key_text(&key)?, item));
        }
        if self.sort_keys {
            entries.sort_by(|left, right| left.0.cmp(&right.0));
        }
        self.out.push('{');
        let empty = entries.is_empty();
        for (index, (key, item)) in entries.iter().enumerate() {
            self.start_item(index == 0, depth + 1);
            self.write_string(key);
            self.out.push_str(&self.key_separator);
            self.write(item, depth + 1)?;
        }
        self.close('}', empty, depth);
        Ok(())
    }

    fn start_item(&mut self, first: bool, depth: usize) {
        if !first {
            self.out.push_str(&self.item_separator);
        }
        self.new_line(depth);
    }

    fn close(&mut self, bracket: char, empty: bool, depth: usize) {
        if !empty {
            self.new_line(depth);
        }
        self.out.push(bracket);
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(unit) = &self.indent {
            self.out.push('\n');
            for _ in 0..depth {
                self.out.push_str(unit);
            }
        }
    }

    fn write_string(&mut self, text: &str) {
        self.out.push('"');
        for character in text.chars() {
            match character {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{C}' => self.out.push_str("\\f"),
                _ if character < ' ' || self.escapes(character) => {
                    for unit in character.encode_utf16(&mut [0; 2]) {
                        let _ = write!(self.out, "\\u{unit:04x}");
                    }
                }
                _ => self.out.push(character),
            }
        }
        self.out.push('"');
    }

    fn escapes(&self, character: char) -> bool {
        self.ensure_ascii && character > '~' && Some(character) != self.mark
    }
}

/// A key as `json.dumps` writes it: numbers, booleans and null become text.
fn key_text(key: &Value) -> Result<String, Error> {
    let mut text = String::new();
    match key.kind() {
        ValueKind::String => text.push_str(key.as_str().unwrap_or_default()),
        ValueKind::Bool => text.push_str(if key.is_true() { "true" } else { "false" }),
        ValueKind::None => text.push_str("null"),
        ValueKind::Number => write_number(key, &mut text)?,
        other => return Err(invalid(format!("tojson: a key of type {other} is not JSON"))),
    }
    Ok(text)
}

fn write_number(value: &Value, out: &mut String) -> Result<(), Error> {
    if value.is_integer() {
        let _ = write!(out, "{value}");
        return Ok(());
    }
    let number = f64::try_from(value.clone())?;
    python_float(number, out);
    Ok(())
}

/// Python's `repr` of a float: shortest digits, exponent below 1e-4 and from 1e16.
pub(crate) fn python_float(number: f64, out: &mut String) {
    if number.is_nan() {
        out.push_str("NaN");
        return;
    }
    if number.is_infinite() {
        out.push_str(if number > 0.0 { "Infinity" } else { "-Infinity" });
        return;
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').expect("{:e} writes an exponent");
    let exponent: i32 = exponent.parse().expect("{:e} writes a decimal exponent");
    if number != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        let _ = write!(out, "{digits}e{sign}{:02}", exponent.abs());
    } else {
        let _ = write!(out, "{number:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::python_float;

    #[test]
    fn floats_are_written_as_python_writes_them() {
        for (number, text) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (123456789012345680.0, "1.2345678901234568e+17"),
            (1.7976931348623157e308, "1.7976931348623157e+308"),
            (5e-324, "5e-324"),
            (f64::NEG_INFINITY, "-Infinity"),
        ] {
            let mut out = String::new();
            python_float(number, &mut out);
            assert_eq!(out, text);
        }
    }
}
