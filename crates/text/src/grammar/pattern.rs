//! Patterns of JSON Schema (regular expressions of ECMA-262) as regular expressions of the Rust syntax.
//!
//! Both agree on most texts and silently differ on some: `.` and line ends, `\d` and `\s`, brackets and `&&` inside a
//! class. This file rewrites those; what has no regular counterpart (look-around, back-references, word boundaries) is refused.
//! The result still has its anchors: an unanchored pattern is searched for.

use std::iter::Peekable;
use std::str::Chars;

const SPACES: &str =
    r"\t\n\x0B\x0C\r\x20\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}\x{FEFF}";
const NO_LINE_END: &str = r"[^\n\r\x{2028}\x{2029}]";

/// Rewrites a pattern.
///
/// # Errors
/// A sentence about the construct that cannot be enforced.
pub(super) fn rust_pattern(pattern: &str) -> Result<String, String> {
    let mut rewriter =
        Rewriter { rest: pattern.chars().peekable(), out: String::with_capacity(2 * pattern.len()) };
    while let Some(character) = rewriter.rest.next() {
        rewriter.outside_class(character)?;
    }
    Ok(rewriter.out)
}

struct Rewriter<'p> {
    rest: Peekable<Chars<'p>>,
    out: String,
}

/// A member of a class.
enum Member {
    Character(char),
    Set(String),
}

impl Rewriter<'_> {
    fn outside_class(&mut self, character: char) -> Result<(), String> {
        match character {
            '\\' => match self.escape(false)? {
                Member::Character(character) => self.literal(character),
                Member::Set(set) => self.out.push_str(&set),
            },
            '.' => self.out.push_str(NO_LINE_END),
            '(' => self.group()?,
            '[' => self.class()?,
            '{' if self.is_counted() => {
                self.out.push('{');
                for character in self.rest.by_ref() {
                    self.out.push(character);
                    if character == '}' {
                        break;
                    }
                }
            }
            '*' | '+' | '?' | '|' | '^' | '$' | ')' => self.out.push(character),
            _ => self.literal(character),
        }
        Ok(())
    }

    fn literal(&mut self, character: char) {
        push_literal(&mut self.out, character);
    }

    /// Whether what follows a brace is `n}`, `n,}` or `n,m}`; anything else is a literal brace.
    fn is_counted(&self) -> bool {
        let mut ahead = self.rest.clone();
        let mut digits = 0;
        while ahead.next_if(char::is_ascii_digit).is_some() {
            digits += 1;
        }
        if ahead.next_if_eq(&',').is_some() {
            while ahead.next_if(char::is_ascii_digit).is_some() {}
        }
        digits > 0 && ahead.next() == Some('}')
    }

    fn group(&mut self) -> Result<(), String> {
        if self.rest.next_if_eq(&'?').is_some() {
            match self.rest.next() {
                Some(':') => {}
                Some('=' | '!') => return Err("look-ahead is not supported in patterns".to_owned()),
                Some('<') if matches!(self.rest.peek(), Some('=' | '!')) => {
                    return Err("look-behind is not supported in patterns".to_owned());
                }
                Some('<') => while !matches!(self.rest.next(), Some('>') | None) {},
                _ => return Err("flags are not supported in patterns".to_owned()),
            }
        }
        self.out.push_str("(?:");
        Ok(())
    }

    fn class(&mut self) -> Result<(), String> {
        let negated = self.rest.next_if_eq(&'^').is_some();
        if self.rest.next_if_eq(&']').is_some() {
            self.out.push_str(if negated { "(?s:.)" } else { "[^\\x00-\\x{10FFFF}]" });
            return Ok(());
        }
        self.out.push_str(if negated { "[^" } else { "[" });
        while let Some(member) = self.member()? {
            let mut ahead = self.rest.clone();
            let range = ahead.next() == Some('-') && ahead.next().is_some_and(|after| after != ']');
            if !range {
                push_member(&mut self.out, &member);
                continue;
            }
            self.rest.next();
            let last = self.member()?.ok_or_else(unclosed)?;
            match (&member, &last) {
                (Member::Character(first), Member::Character(last)) => {
                    push_literal(&mut self.out, *first);
                    self.out.push('-');
                    push_literal(&mut self.out, *last);
                }
                _ => {
                    push_member(&mut self.out, &member);
                    self.out.push_str("\\-");
                    push_member(&mut self.out, &last);
                }
            }
        }
        self.out.push(']');
        Ok(())
    }

    /// The next member of a class; `None` at its end.
    fn member(&mut self) -> Result<Option<Member>, String> {
        Ok(match self.rest.next().ok_or_else(unclosed)? {
            ']' => None,
            '\\' => Some(self.escape(true)?),
            character => Some(Member::Character(character)),
        })
    }

    fn escape(&mut self, in_class: bool) -> Result<Member, String> {
        let character = self.rest.next().ok_or("the pattern ends with a backslash")?;
        let set = |set: &str| Ok(Member::Set(set.to_owned()));
        Ok(Member::Character(match character {
            'd' => return set("[0-9]"),
            'D' => return set("[^0-9]"),
            'w' => return set("[0-9A-Za-z_]"),
            'W' => return set("[^0-9A-Za-z_]"),
            's' => return Ok(Member::Set(format!("[{SPACES}]"))),
            'S' => return Ok(Member::Set(format!("[^{SPACES}]"))),
            'p' | 'P' => return Ok(Member::Set(self.property(character)?)),
            'b' if in_class => '\u{8}',
            'b' | 'B' => return Err("word boundaries are not supported in patterns".to_owned()),
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'v' => '\u{b}',
            'f' => '\u{c}',
            '0' if !self.rest.peek().is_some_and(char::is_ascii_digit) => '\0',
            'x' => self.hexadecimal(2)?,
            'u' if self.rest.next_if_eq(&'{').is_some() => self.braced_hexadecimal()?,
            'u' => self.hexadecimal(4)?,
            'c' => match self.rest.next() {
                Some(letter) if letter.is_ascii_alphabetic() => char::from(letter as u8 % 32),
                _ => return Err("\\c needs a letter".to_owned()),
            },
            'k' | '0'..='9' => return Err("back-references are not supported in patterns".to_owned()),
            letter if letter.is_ascii_alphabetic() => {
                return Err(format!("\\{letter} is not known in patterns"));
            }
            other => other,
        }))
    }

    fn property(&mut self, letter: char) -> Result<String, String> {
        let bad = || format!("\\{letter} needs a property in braces");
        self.rest.next_if_eq(&'{').ok_or_else(bad)?;
        let mut name = String::new();
        loop {
            match self.rest.next() {
                Some('}') => return Ok(format!("\\{letter}{{{name}}}")),
                Some(character) if character.is_ascii_alphanumeric() || "_=".contains(character) => {
                    name.push(character);
                }
                _ => return Err(bad()),
            }
        }
    }

    fn hexadecimal(&mut self, digits: usize) -> Result<char, String> {
        let mut code = 0;
        for _ in 0..digits {
            let digit = self.rest.next().and_then(|digit| digit.to_digit(16));
            code = 16 * code + digit.ok_or("an escape with too few hexadecimal digits")?;
        }
        char::from_u32(code)
            .ok_or_else(|| format!("U+{code:04X} is half of a surrogate pair; write \\u{{...}}"))
    }

    fn braced_hexadecimal(&mut self) -> Result<char, String> {
        let mut code = 0u32;
        loop {
            match self.rest.next() {
                Some('}') => break,
                Some(digit) if digit.is_ascii_hexdigit() && code < 1 << 24 => {
                    code = 16 * code + digit.to_digit(16).unwrap_or(0);
                }
                _ => return Err("\\u{ needs hexadecimal digits and a brace".to_owned()),
            }
        }
        char::from_u32(code).ok_or_else(|| format!("{code:X} is not a character"))
    }
}

fn unclosed() -> String {
    "a class of the pattern is not closed".to_owned()
}

fn push_member(out: &mut String, member: &Member) {
    match member {
        Member::Character(character) => push_literal(out, *character),
        Member::Set(set) => out.push_str(set),
    }
}

/// A character that stands for itself, inside a class and outside.
fn push_literal(out: &mut String, character: char) {
    if character.is_alphanumeric() || character == '_' {
        out.push(character);
    } else {
        out.push_str(&format!("\\x{{{:X}}}", u32::from(character)));
    }
}

#[cfg(test)]
mod tests {
    use super::rust_pattern;
    use regex_automata::meta::Regex;

    fn found(pattern: &str, text: &str) -> bool {
        let rewritten = rust_pattern(pattern).expect(pattern);
        Regex::new(&rewritten).expect(&rewritten).is_match(text)
    }

    #[test]
    fn patterns_mean_what_ecma_262_says() {
        // The right column was evaluated by `RegExp.test` with the flag u where it parses, without otherwise.
        for (pattern, text, expected) in [
            ("^.$", "\r", false),
            ("^.$", "\u{2028}", false),
            ("^.$", "\u{85}", true),
            (r"^\d$", "\u{661}", false),
            (r"^\w$", "é", false),
            (r"^\s$", "\u{feff}", true),
            (r"^\s$", "\u{85}", false),
            (r"^[\s\d]+$", " 1", true),
            (r"^[^\s\d]+$", "a1", false),
            ("^[[a]$", "[", true),
            ("^[a&&b]$", "&", true),
            ("^[a~~b]$", "~", true),
            ("^[+--]$", ",", true),
            ("^[a-]$", "-", true),
            (r"^[\w-.]$", "-", true),
            ("^a{,2}$", "a{,2}", true),
            ("^a{2}$", "aa", true),
            ("^a{2,}$", "aaa", true),
            ("^a{1,2}b}$", "aab}", true),
            ("^x{$", "x{", true),
            (r"^\{1}$", "{1}", true),
            (r"^\{1}$", "{", false),
            ("^[^]$", "\n", true),
            ("^[]$", "a", false),
            (r"^\cJ$", "\n", true),
            (r"^[\b]$", "\u{8}", true),
            (r"^\u0041\x42$", "AB", true),
            (r"^\u{1F600}$", "\u{1F600}", true),
            (r"^\/$", "/", true),
            ("^(?<stop>a)b$", "ab", true),
            ("a|^b$", "xa", true),
            ("a|^b$", "xb", false),
        ] {
            assert_eq!(found(pattern, text), expected, "{pattern:?} on {text:?}");
        }
    }

    #[test]
    fn what_has_no_regular_counterpart_is_refused() {
        for pattern in [
            "(?=a)", "(?!a)", "(?<=a)", "(?<!a)", "(?i)a", r"\bword", r"(a)\1", r"\k<a>", "[a", r"\q", r"a\",
            r"\ud83d",
        ] {
            assert!(rust_pattern(pattern).is_err(), "{pattern:?}");
        }
    }
}
