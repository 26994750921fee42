//! Prepares the source of a chat template for minijinja, and refuses sources it could not compile safely.

use std::borrow::Cow;

use regex_automata::meta::Regex;

use crate::TextError;

/// Largest template source. The largest known real ones are around 20 KB.
const SOURCE_LIMIT_BYTES: usize = 1 << 20;

/// Most words and signs inside one tag, and most `elif` in all. The longest in 70 real templates are 58 and 20. The parser and
/// compiler recurse once per operator of a chain (`1+1+1+…`), which their own limit on nesting does not count.
const TAG_ELEMENT_LIMIT: usize = 1_000;
const ELIF_LIMIT: usize = 200;

/// The source to compile: with plain line breaks and without `generation` tags. Line numbers stay.
pub(crate) fn prepare(source: &str) -> Result<String, TextError> {
    if source.len() > SOURCE_LIMIT_BYTES {
        return Err(TextError::TemplateTooLarge { bytes: source.len(), limit: SOURCE_LIMIT_BYTES });
    }
    let source = with_plain_line_breaks(source);
    check_chains(&source)?;
    Ok(without_generation_tags(&source))
}

/// Refuses tags whose operator chains could exhaust the stack. Counts words and signs outside strings and comments.
fn check_chains(source: &str) -> Result<(), TextError> {
    let mut rest = source;
    let mut elifs = 0;
    while let Some(start) = rest.find("{") {
        rest = &rest[start + 1..];
        let inside_tag = match rest.as_bytes().first() {
            Some(b'#') => {
                rest = rest.split_once("#}").map_or("", |(_, after)| after);
                false
            }
            Some(b'{' | b'%') => true,
            _ => false,
        };
        if !inside_tag {
            continue;
        }
        let tag = Tag::read(&rest[1..]);
        elifs += usize::from(tag.is_elif);
        let line = source[..source.len() - rest.len()].matches('\n').count() + 1;
        if tag.elements > TAG_ELEMENT_LIMIT {
            let message = format!("this tag has more than {TAG_ELEMENT_LIMIT} words and signs");
            return Err(TextError::TemplateSyntax { line, message });
        }
        if elifs > ELIF_LIMIT {
            let message = format!("the template has more than {ELIF_LIMIT} elif branches");
            return Err(TextError::TemplateSyntax { line, message });
        }
        rest = &rest[1 + tag.length..];
    }
    Ok(())
}

/// The inside of a `{{ }}` or `{% %}`.
struct Tag {
    length: usize,
    elements: usize,
    is_elif: bool,
}

impl Tag {
    /// Reads up to the end of the tag, or of the text. Strings may hold anything.
    fn read(text: &str) -> Tag {
        let is_elif = text.trim_start_matches(['-', '+']).trim_start().starts_with("elif");
        let mut tag = Tag { length: text.len(), elements: 0, is_elif };
        let mut quote = None;
        let mut escaped = false;
        let mut in_word = false;
        for (at, byte) in text.bytes().enumerate() {
            if let Some(open) = quote {
                quote = if byte == open && !escaped { None } else { Some(open) };
                escaped = byte == b'\\' && !escaped;
                continue;
            }
            if matches!(byte, b'}' | b'%') && text.as_bytes().get(at + 1) == Some(&b'}') {
                tag.length = at;
                break;
            }
            let word = byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80;
            tag.elements += usize::from(!byte.is_ascii_whitespace() && (!word || !in_word));
            in_word = word;
            quote = matches!(byte, b'"' | b'\'').then_some(byte);
        }
        tag
    }
}

/// Jinja2 turns all line breaks of a template into `\n`.
fn with_plain_line_breaks(source: &str) -> Cow<'_, str> {
    if source.contains('\r') {
        Cow::Owned(source.replace("\r\n", "\n").replace('\r', "\n"))
    } else {
        Cow::Borrowed(source)
    }
}

/// `{% generation %}` marks the assistant's text for training and has no meaning here. A block that always runs takes
/// its place, so that white-space control and line numbers stay as they are.
fn without_generation_tags(source: &str) -> String {
    let tags = Regex::new(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}").expect("a constant pattern");
    let mut out = String::with_capacity(source.len());
    let mut start = 0;
    for tag in tags.captures_iter(source) {
        let whole = tag.get_match().expect("an iterator gives matches").range();
        let group = |index: usize| tag.get_group(index).map_or("", |span| &source[span]);
        let statement = if group(2).is_empty() { "if true" } else { "endif" };
        out.push_str(&source[start..whole.start]);
        // Line breaks inside the tag are kept: errors name the line.
        let breaks = "\n".repeat(source[whole.clone()].matches('\n').count());
        out.push_str(&format!("{{%{} {statement} {breaks}{}%}}", group(1), group(3)));
        start = whole.end;
    }
    out.push_str(&source[start..]);
    out
}
