//! Values as Python's `str` and `repr` write them, for `{{ value }}` and the `string` filter.
//!
//! minijinja agrees with Python except for floats with an exponent, alone or inside lists and mappings. Text is paid
//! for with fuel while it is written, because lists that hold each other print exponentially long.

use std::fmt::Write;

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind, Output, State};

use crate::python_json::{DEPTH_LIMIT, indent_unit, python_float};

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
        _ => write_repr(value, 0, &mut Meter::new(state), &mut out)?,
    }
    Ok(out)
}

fn write_repr(
    value: &Value,
    depth: usize,
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
                write_repr(&item, depth + 1, meter, out)?;
                count += 1;
            }
            out.push_str(if count == 1 && value.is_tuple() { "," } else { "" });
            out.push_str(close);
        }
        ValueKind::Map => {
            out.push('{');
            for (index, key) in value.try_iter()?.enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                write_repr(&key, depth + 1, meter, out)?;
                out.push_str(": ");
                write_repr(&value.get_item(&key)?, depth + 1, meter, out)?;
            }
            out.push('}');
        }
        // minijinja writes strings in its debug form as Python's repr does.
        ValueKind::String | ValueKind::Bytes => write!(out, "{value:?}")?,
        _ => write!(out, "{value}")?,
    }
    meter.charge(out.len())
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
