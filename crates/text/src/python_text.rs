//! Values as Python's `str` and `repr` write them, for `{{ value }}` and the `string` filter.
//!
//! minijinja differs from Python in floats with an exponent and in characters that Python does not print (`\u200b`), alone or
//! inside lists and mappings. Text is paid for with fuel while it is written, because lists that hold each other print
//! exponentially long.

use std::fmt::Write;
use std::sync::LazyLock;

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind, Output, State};
use regex_automata::meta::Regex;

use crate::python_json::{DEPTH_LIMIT, indent_unit, python_float};
use crate::template::MARK_VARIABLE;

/// Bytes between two charges.
const CHARGE_BYTES: usize = 4096;

/// Fuel per charge: what minijinja takes for serialising as much (16 units per byte, 64 units per fuel).
const CHARGE_FUEL: u64 = CHARGE_BYTES as u64 / 4;

/// Takes fuel for text while it grows.
pub(crate) struct Meter<'a, 'template, 'env> {
    state: &'a State<'template, 'env>,
    charged: usize,
}

impl<'a, 'template, 'env> Meter<'a, 'template, 'env> {
    pub(crate) fn new(state: &'a State<'template, 'env>) -> Meter<'a, 'template, 'env> {
        Meter { state, charged: 0 }
    }

    /// Pays for text that is now `length` bytes long.
    pub(crate) fn charge(&mut self, length: usize) -> Result<(), Error> {
        while length - self.charged >= CHARGE_BYTES {
            self.charged += CHARGE_BYTES;
            self.state.consume_fuel(CHARGE_FUEL)?;
        }
        Ok(())
    }
}

/// Formatter of the environment: writes what Python's `str(value)` gives.
pub(crate) fn write_value(
    out: &mut Output<'_>,
    state: &mut State<'_, '_>,
    value: &Value,
) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => out.write_str(text)?,
        None => out.write_str(&python_str(state, value)?)?,
    }
    Ok(())
}

/// The `string` filter.
pub(crate) fn string(state: &State, value: &Value) -> Result<Value, Error> {
    match value.as_str() {
        Some(_) => Ok(value.clone()),
        None => python_str(state, value).map(Value::from),
    }
}

fn python_str(state: &State, value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    match value.kind() {
        ValueKind::Undefined => {}
        _ => {
            let mark = state.lookup(MARK_VARIABLE);
            let mark = mark.as_ref().and_then(Value::as_str).and_then(|text| text.chars().next());
            write_repr(value, 0, mark, &mut Meter::new(state), &mut out)?;
        }
    }
    Ok(out)
}

fn write_repr(
    value: &Value,
    depth: usize,
    mark: Option<char>,
    meter: &mut Meter<'_, '_, '_>,
    out: &mut String,
) -> Result<(), Error> {
    if depth > DEPTH_LIMIT {
        return Err(Error::new(ErrorKind::InvalidOperation, "the value is nested too deeply to be written"));
    }
    match value.kind() {
        ValueKind::Number if !value.is_integer() => {
            python_float(f64::try_from(value.clone()).unwrap_or(f64::NAN), out);
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let (open, close) = if value.is_tuple() { ("(", ")") } else { ("[", "]") };
            out.push_str(open);
            let mut count = 0;
            for item in value.try_iter()? {
                out.push_str(if count > 0 { ", " } else { "" });
                write_repr(&item, depth + 1, mark, meter, out)?;
                count += 1;
            }
            out.push_str(if count == 1 && value.is_tuple() { "," } else { "" });
            out.push_str(close);
        }
        ValueKind::Map => {
            out.push('{');
            for (index, key) in value.try_iter()?.enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                write_repr(&key, depth + 1, mark, meter, out)?;
                out.push_str(": ");
                write_repr(&value.get_item(&key)?, depth + 1, mark, meter, out)?;
            }
            out.push('}');
        }
        ValueKind::String => string_repr(value.as_str().unwrap_or_default(), mark, out),
        _ => write!(out, "{value}")?,
    }
    meter.charge(out.len())
}

/// A string in quotes, with escapes for what Python does not print. `mark` is the mark of user text, which is dropped later.
fn string_repr(text: &str, mark: Option<char>, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for character in text.chars() {
        match character {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            _ if character == quote => out.extend(['\\', quote]),
            _ if Some(character) == mark || is_printable(character) => out.push(character),
            _ => {
                let code = u32::from(character);
                let _ = match code {
                    0..=0xFF => write!(out, "\\x{code:02x}"),
                    0x100..=0xFFFF => write!(out, "\\u{code:04x}"),
                    _ => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push(quote);
}

/// `str.isprintable`: no control or format characters, unassigned ones, or spaces other than U+0020.
fn is_printable(character: char) -> bool {
    if character.is_ascii() {
        return (' '..='~').contains(&character);
    }
    static UNPRINTED: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"[\p{C}\p{Z}]").expect("a constant pattern"));
    !UNPRINTED.is_match(character.encode_utf8(&mut [0; 4]).as_bytes())
}

/// The `indent` filter of Jinja2: `indent(text, width=4, first=False, blank=False)`; keeps a line break at the end.
pub(crate) fn indent(
    text: &str,
    width: Option<Value>,
    first: Option<bool>,
    blank: Option<bool>,
    keywords: Kwargs,
) -> Result<String, Error> {
    let width = if width.is_some() { width } else { keywords.get("width")? };
    let first = first.or(keywords.get("first")?).unwrap_or(false);
    let blank = blank.or(keywords.get("blank")?).unwrap_or(false);
    keywords.assert_all_used()?;
    let indention = width.map_or_else(|| Ok(" ".repeat(4)), |width| indent_unit(&width))?;
    let mut out = String::new();
    for (index, line) in text.split('\n').enumerate() {
        out.push_str(if index > 0 { "\n" } else { "" });
        let wanted = if index == 0 { first } else { blank || !line.is_empty() };
        out.push_str(if wanted { &indention } else { "" });
        out.push_str(line);
    }
    Ok(out)
}
