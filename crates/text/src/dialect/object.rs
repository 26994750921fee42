//! One JSON object, character by character, by the grammar of RFC 8259.
//!
//! Says where the object ends and where text stops being JSON. The only text it accepts beyond the grammar is a raw
//! control character inside a string, and it says so, so that the caller can escape it.

/// Deepest nesting accepted; serde_json reads up to 127 levels.
const DEPTH_MAX: usize = 120;

/// What a character was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scanned {
    /// Part of the object.
    Taken,
    /// Part of the object, but it must be written as an escape.
    Unescaped,
    /// The closing brace of the object.
    Closed,
    /// It cannot follow.
    Invalid,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Container {
    Object,
    Array,
}

#[derive(Clone, Copy, Debug)]
enum Expect {
    Open,
    FirstKey,
    Key,
    Colon,
    Value,
    FirstValue,
    Comma,
    Text { key: bool },
    Escape { key: bool },
    Hex { key: bool, left: u8 },
    Literal(&'static str),
    Number(Number),
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    Minus,
    Zero,
    Whole,
    Point,
    Fraction,
    Exponent,
    ExponentSign,
    ExponentDigits,
}

/// See the module.
#[derive(Debug)]
pub(super) struct ObjectScanner {
    expect: Expect,
    containers: Vec<Container>,
}

impl ObjectScanner {
    pub fn new() -> ObjectScanner {
        ObjectScanner { expect: Expect::Open, containers: Vec::new() }
    }

    /// Takes the next character. The first must be the opening brace.
    pub fn push(&mut self, character: char) -> Scanned {
        match self.expect {
            Expect::Open if character == '{' => self.open(Container::Object),
            Expect::Text { key } => self.text(character, key),
            Expect::Escape { key } => self.escape(character, key),
            Expect::Hex { key, left } => match character.is_ascii_hexdigit() {
                true if left > 1 => self.then(Expect::Hex { key, left: left - 1 }),
                true => self.then(Expect::Text { key }),
                false => Scanned::Invalid,
            },
            Expect::Literal(rest) => match rest.strip_prefix(character) {
                Some("") => self.then(Expect::Comma),
                Some(rest) => self.then(Expect::Literal(rest)),
                None => Scanned::Invalid,
            },
            Expect::Number(part) => self.number(character, part),
            Expect::Open | Expect::Nothing => Scanned::Invalid,
            _ if super::call::is_space(character) => Scanned::Taken,
            _ => self.structure(character),
        }
    }

    fn then(&mut self, expect: Expect) -> Scanned {
        self.expect = expect;
        Scanned::Taken
    }

    fn open(&mut self, container: Container) -> Scanned {
        if self.containers.len() == DEPTH_MAX {
            return Scanned::Invalid;
        }
        self.containers.push(container);
        self.then(if container == Container::Object { Expect::FirstKey } else { Expect::FirstValue })
    }

    fn close(&mut self, container: Container) -> Scanned {
        if self.containers.pop() != Some(container) {
            return Scanned::Invalid;
        }
        if self.containers.is_empty() {
            self.expect = Expect::Nothing;
            return Scanned::Closed;
        }
        self.then(Expect::Comma)
    }

    fn structure(&mut self, character: char) -> Scanned {
        match (self.expect, character) {
            (Expect::FirstKey | Expect::Key, '"') => self.then(Expect::Text { key: true }),
            (Expect::FirstKey | Expect::Comma, '}') => self.close(Container::Object),
            (Expect::FirstValue | Expect::Comma, ']') => self.close(Container::Array),
            (Expect::Colon, ':') => self.then(Expect::Value),
            (Expect::Comma, ',') => match self.containers.last() {
                Some(Container::Object) => self.then(Expect::Key),
                _ => self.then(Expect::Value),
            },
            (Expect::Value | Expect::FirstValue, _) => self.value(character),
            _ => Scanned::Invalid,
        }
    }

    fn value(&mut self, character: char) -> Scanned {
        match character {
            '{' => self.open(Container::Object),
            '[' => self.open(Container::Array),
            '"' => self.then(Expect::Text { key: false }),
            't' => self.then(Expect::Literal("rue")),
            'f' => self.then(Expect::Literal("alse")),
            'n' => self.then(Expect::Literal("ull")),
            '-' => self.then(Expect::Number(Number::Minus)),
            '0' => self.then(Expect::Number(Number::Zero)),
            '1'..='9' => self.then(Expect::Number(Number::Whole)),
            _ => Scanned::Invalid,
        }
    }

    fn text(&mut self, character: char, key: bool) -> Scanned {
        match character {
            '"' => self.then(if key { Expect::Colon } else { Expect::Comma }),
            '\\' => self.then(Expect::Escape { key }),
            '\0'..='\x1f' => Scanned::Unescaped,
            _ => Scanned::Taken,
        }
    }

    fn escape(&mut self, character: char, key: bool) -> Scanned {
        match character {
            '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't' => self.then(Expect::Text { key }),
            'u' => self.then(Expect::Hex { key, left: 4 }),
            _ => Scanned::Invalid,
        }
    }

    fn number(&mut self, character: char, part: Number) -> Scanned {
        use Number::*;
        let next = match (part, character) {
            (Minus, '0') => Zero,
            (Minus, '1'..='9') | (Whole, '0'..='9') => Whole,
            (Zero | Whole, '.') => Point,
            (Point | Fraction, '0'..='9') => Fraction,
            (Zero | Whole | Fraction, 'e' | 'E') => Exponent,
            (Exponent, '+' | '-') => ExponentSign,
            (Exponent | ExponentSign | ExponentDigits, '0'..='9') => ExponentDigits,
            // A number has no end of its own: the character after it must fit what follows a value.
            (Zero | Whole | Fraction | ExponentDigits, _) => {
                self.expect = Expect::Comma;
                return self.push(character);
            }
            _ => return Scanned::Invalid,
        };
        self.then(Expect::Number(next))
    }
}

/// Appends a character as it must stand inside a JSON string.
pub(super) fn push_escaped(out: &mut String, character: char) {
    match character {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        '\0'..='\x1f' => out.push_str(&format!("\\u{:04x}", u32::from(character))),
        _ => out.push(character),
    }
}

/// A text as a JSON string.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    text.chars().for_each(|character| push_escaped(&mut out, character));
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::{ObjectScanner, Scanned};

    /// Bytes up to the end of the object, if the text begins with one.
    fn object_length(text: &str) -> Option<usize> {
        let mut scanner = ObjectScanner::new();
        for (at, character) in text.char_indices() {
            match scanner.push(character) {
                Scanned::Taken => {}
                Scanned::Closed => return Some(at + 1),
                Scanned::Unescaped | Scanned::Invalid => return None,
            }
        }
        None
    }

    #[test]
    fn the_object_ends_at_its_own_brace() {
        assert_eq!(object_length("{} x"), Some(2));
        assert_eq!(object_length(r#"{"a": "}", "b": [1, {"c": -0.5e+3}, null]}}"#), Some(42));
        assert_eq!(object_length(r#"{"a": "\"}"}"#), Some(12));
    }

    #[test]
    fn a_line_break_in_a_string_is_named() {
        let mut scanner = ObjectScanner::new();
        for character in "{\"a\": \"x".chars() {
            assert_eq!(scanner.push(character), Scanned::Taken);
        }
        assert_eq!(scanner.push('\n'), Scanned::Unescaped);
    }

    /// serde_json is the reference, for every object that is one character away from a valid one. Lone surrogates
    /// and numbers beyond f64 are JSON by the grammar and errors there; none of these texts has them.
    #[test]
    fn the_scanner_agrees_with_serde_json() {
        let valid = r#"{"a": [1, -0.5e+3, {}, [], 20], "b\"\u00e9ü": {"c": true, "d": null}, "": false}"#;
        let alphabet = "{}[]\":,0 1-.eE+\\utrx";
        let agrees = |text: String| {
            let reference = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(&text).is_ok();
            let whole = object_length(&text).is_some_and(|length| text[length..].trim().is_empty());
            assert_eq!(whole, reference, "{text}");
        };
        for (at, character) in valid.char_indices().skip(1) {
            let (before, after) = (&valid[..at], &valid[at + character.len_utf8()..]);
            agrees(format!("{before}{after}"));
            for other in alphabet.chars() {
                agrees(format!("{before}{other}{after}"));
                agrees(format!("{before}{other}{character}{after}"));
            }
        }
    }
}
