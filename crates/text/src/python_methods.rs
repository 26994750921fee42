//! Methods of Python's `str`, `list` and `dict` that templates call, and the `trim` filter.
//!
//! Owns the methods where minijinja-contrib has none or differs: Python counts U+001C to U+001F as white space, splits lines at
//! more characters, and refuses an empty separator. All others are those of `minijinja_contrib::pycompat`.
//! Methods that change a value (`append`, `pop`) do not exist, as in the sandbox that transformers renders in.

use minijinja::value::{Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State};
use minijinja_contrib::pycompat::unknown_method_callback;

/// Widest text that the methods which pad make.
const PADDED_WIDTH_LIMIT: usize = 4096;

/// Callback of the environment for methods that a value does not have itself.
pub(crate) fn call(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let own = match value.kind() {
        ValueKind::String => string_method(value.as_str().unwrap_or_default(), method, args)?,
        ValueKind::Seq => list_method(value, method, args)?,
        ValueKind::Map => match method {
            "copy" => from_args(args).map(|()| Some(value.clone()))?,
            _ => None,
        },
        _ => None,
    };
    let result = match own {
        Some(result) => result,
        None => return unknown_method_callback(state, value, method, args),
    };
    Ok(if value.is_safe() && result.as_str().is_some() { keep_safe(&result) } else { result })
}

fn keep_safe(text: &Value) -> Value {
    Value::from_safe_string(text.as_str().unwrap_or_default().to_owned())
}

/// The `trim` filter: `str.strip`.
pub(crate) fn trim(state: &State, value: &Value, chars: Option<&str>) -> Result<Value, Error> {
    let text = crate::python_text::string(state, value)?;
    let stripped = Value::from(strip(text.as_str().unwrap_or_default(), chars, true, true));
    Ok(if value.is_safe() { keep_safe(&stripped) } else { stripped })
}

fn string_method(text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match method {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<&str>,) = from_args(args)?;
            Value::from(strip(text, chars, method != "rstrip", method != "lstrip"))
        }
        "split" | "rsplit" => {
            let (separator, limit): (Option<&str>, Option<i64>) = from_args(args)?;
            let limit = limit.and_then(|limit| usize::try_from(limit).ok());
            let parts = split(text, separator, limit, method == "rsplit")?;
            parts.into_iter().map(Value::from).collect()
        }
        "splitlines" => {
            let (keep_ends,): (Option<bool>,) = from_args(args)?;
            split_lines(text, keep_ends.unwrap_or(false)).into_iter().map(Value::from).collect()
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            let last = method == "rpartition";
            let found = if last { text.rsplit_once(separator) } else { text.split_once(separator) };
            let parts = match found {
                Some((before, after)) => [before, separator, after],
                None if last => ["", "", text],
                None => [text, "", ""],
            };
            parts.into_iter().map(Value::from).collect()
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "index" | "rindex" => {
            let (part,): (&str,) = from_args(args)?;
            let found = if method == "index" { text.find(part) } else { text.rfind(part) };
            let at = found.ok_or_else(|| failed(format!("{method}: the text does not contain {part:?}")))?;
            Value::from(text[..at].chars().count())
        }
        "ljust" | "rjust" | "zfill" => padded(text, method, args)?,
        "casefold" => from_args(args).map(|()| Value::from(text.to_lowercase()))?,
        "swapcase" => from_args(args).map(|()| Value::from(swapped_case(text)))?,
        _ => return Ok(None),
    }))
}

fn list_method(list: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match method {
        "copy" => from_args(args).map(|()| list.clone())?,
        "index" => {
            let (wanted,): (&Value,) = from_args(args)?;
            let found = list.try_iter()?.position(|item| item == *wanted);
            Value::from(found.ok_or_else(|| failed(format!("index: the list does not contain {wanted}")))?)
        }
        _ => return Ok(None),
    }))
}

fn failed(message: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

/// What `str.isspace` calls white space.
fn is_python_space(character: char) -> bool {
    character.is_whitespace() || ('\u{1C}'..='\u{1F}').contains(&character)
}

fn strip<'t>(text: &'t str, chars: Option<&str>, start: bool, end: bool) -> &'t str {
    let stripped = |character: char| match chars {
        Some(chars) => chars.contains(character),
        None => is_python_space(character),
    };
    let text = if start { text.trim_start_matches(stripped) } else { text };
    if end { text.trim_end_matches(stripped) } else { text }
}

/// `str.split` and `str.rsplit`, at most `limit` times.
fn split<'t>(
    text: &'t str,
    separator: Option<&str>,
    limit: Option<usize>,
    from_end: bool,
) -> Result<Vec<&'t str>, Error> {
    let pieces = limit.map_or(usize::MAX, |limit| limit.saturating_add(1));
    let mut parts: Vec<&str> = match separator {
        Some("") => return Err(failed("split: the separator is empty".to_owned())),
        Some(separator) if from_end => text.rsplitn(pieces, separator).collect(),
        Some(separator) => return Ok(text.splitn(pieces, separator).collect()),
        None if from_end => split_at_spaces_from_end(text, pieces),
        None => return Ok(split_at_spaces(text, pieces)),
    };
    parts.reverse();
    Ok(parts)
}

/// The words of a text; the last of at most `pieces` is the rest of the text as it is.
fn split_at_spaces(text: &str, pieces: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = strip(text, None, true, false);
    while !rest.is_empty() {
        let end = if parts.len() + 1 == pieces { None } else { rest.find(is_python_space) };
        let (word, after) = rest.split_at(end.unwrap_or(rest.len()));
        parts.push(word);
        rest = strip(after, None, true, false);
    }
    parts
}

/// The same from the end: the last word comes first.
fn split_at_spaces_from_end(text: &str, pieces: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = strip(text, None, false, true);
    while !rest.is_empty() {
        let space = if parts.len() + 1 == pieces {
            None
        } else {
            rest.char_indices().rfind(|(_, c)| is_python_space(*c))
        };
        let start = space.map_or(0, |(at, character)| at + character.len_utf8());
        parts.push(&rest[start..]);
        rest = strip(&rest[..start], None, false, true);
    }
    parts
}

fn split_lines(text: &str, keep_ends: bool) -> Vec<&str> {
    let ends_line = |character: char| {
        matches!(
            character,
            '\n' | '\r' | '\u{B}' | '\u{C}' | '\u{1C}'..='\u{1E}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut lines = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let Some(end) = rest.find(ends_line) else {
            lines.push(rest);
            break;
        };
        let break_bytes = if rest[end..].starts_with("\r\n") {
            2
        } else {
            rest[end..].chars().next().map_or(0, char::len_utf8)
        };
        lines.push(&rest[..if keep_ends { end + break_bytes } else { end }]);
        rest = &rest[end + break_bytes..];
    }
    lines
}

fn padded(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (width, fill): (i64, Option<&str>) = from_args(args)?;
    let width = usize::try_from(width).unwrap_or(0);
    if width > PADDED_WIDTH_LIMIT {
        return Err(failed(format!("{method}: the width is {width}; the limit is {PADDED_WIDTH_LIMIT}")));
    }
    let missing = width.saturating_sub(text.chars().count());
    let fill = if method == "zfill" { "0" } else { fill.unwrap_or(" ") };
    let padding = fill.repeat(missing);
    Ok(Value::from(match (method, text.strip_prefix(['+', '-'])) {
        ("ljust", _) => format!("{text}{padding}"),
        ("zfill", Some(digits)) => format!("{}{padding}{digits}", &text[..1]),
        _ => format!("{padding}{text}"),
    }))
}

fn swapped_case(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_uppercase() {
            out.extend(character.to_lowercase());
        } else {
            out.extend(character.to_uppercase());
        }
    }
    out
}
