//! Calls written with one tag per parameter: Qwen3-Coder, MiniMax, DeepSeek's DSML, GLM.
//!
//! The arguments become one JSON object, built up as the text comes: strings are streamed, other values are held to
//! their end, because only then is it known whether they are JSON. A JSON object in the place of the parameters is
//! taken as it is.

use super::call::{Call, Progress, is_name_character, is_space, is_tool_name};
use super::matching::{self, Match};
use super::named::push_object;
use super::object::{ObjectScanner, push_escaped, quoted};
use super::parameters::{ToolSignatures, Types};

/// How a dialect writes the tags. Lists hold spellings of one tag.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TaggedSyntax {
    /// The start of a call's tag, up to its name; empty if the name stands bare after the block's tag.
    pub call_open: &'static [&'static str],
    /// The end of a call.
    pub call_close: &'static [&'static str],
    /// The start of a parameter's tag, up to its key.
    pub parameter_open: &'static [&'static str],
    /// The end of that tag.
    pub parameter_header_close: &'static str,
    /// A tag between key and value.
    pub value_open: Option<&'static str>,
    /// The end of a value.
    pub value_close: &'static [&'static str],
    /// A quote ends name and key; `string="true"` or `string="false"` may follow a key.
    pub quoted: bool,
    /// One newline at both ends of a value is layout.
    pub newlines_around_values: bool,
}

/// Most bytes of a name or a key with its attributes.
const HEADER_BYTES_MAX: usize = 1024;
/// Most bytes of a value held to its end; a longer one is a string.
const VALUE_BYTES_MAX: usize = 256 << 10;

#[derive(Debug)]
enum State {
    BeforeCall,
    Name,
    BeforeParameter,
    Key,
    BeforeValue,
    Text { first: bool, newline: bool },
    Value,
    Object(ObjectScanner),
    AfterObject,
}

/// See the module.
#[derive(Debug)]
pub(super) struct TaggedReader {
    syntax: &'static TaggedSyntax,
    signatures: ToolSignatures,
    state: State,
    /// The start of what may become a tag.
    pending: String,
    /// The name, key or value being read.
    text: String,
    name: String,
    key: String,
    types: Types,
}

impl TaggedReader {
    /// A reader for text from after the block's tag, or, if `opened`, from after the start of a call's tag.
    pub fn new(syntax: &'static TaggedSyntax, opened: bool, signatures: ToolSignatures) -> TaggedReader {
        let state = if opened || syntax.call_open.is_empty() { State::Name } else { State::BeforeCall };
        TaggedReader {
            syntax,
            signatures,
            state,
            pending: String::new(),
            text: String::new(),
            name: String::new(),
            key: String::new(),
            types: Types::ANY,
        }
    }

    pub fn push(&mut self, character: char, call: &mut Call) -> Progress {
        match &mut self.state {
            State::Name if self.syntax.call_open.is_empty() => self.bare_name(character, call),
            State::Name => match self.header(character, ">") {
                Header::More => Progress::More,
                Header::Whole(name, None) if is_tool_name(&name) => {
                    self.name = name;
                    self.state = State::BeforeParameter;
                    Progress::More
                }
                _ => Progress::Broken,
            },
            State::Key => match self.header(character, self.syntax.parameter_header_close) {
                Header::More => Progress::More,
                Header::Whole(key, is_string) if !key.is_empty() => self.take_key(key, is_string, call),
                _ => Progress::Broken,
            },
            State::Text { .. } | State::Value => {
                self.value_character(character, call);
                call.state.held.clear();
                Progress::More
            }
            State::Object(scanner) => match push_object(scanner, character, call) {
                Progress::Done => {
                    self.state = State::AfterObject;
                    Progress::More
                }
                other => other,
            },
            _ => self.between(character, call),
        }
    }

    /// The text has ended.
    pub fn finish(&mut self, call: &mut Call) {
        match self.state {
            State::Text { newline, .. } => {
                let rest = if newline { "\n" } else { "" }.to_owned() + &self.pending;
                push_text(&rest, call);
            }
            State::Value => {
                let rest = std::mem::take(&mut self.text) + &self.pending;
                if !rest.is_empty() {
                    call.arguments(&rest);
                }
            }
            // What is held can only be the start of the tag that never came.
            State::BeforeParameter if call.state.begun => {}
            State::AfterObject => call.end(),
            _ => return,
        }
        call.state.held.clear();
    }

    /// Reads the text of a tag up to `close`.
    fn header(&mut self, character: char, close: &str) -> Header {
        self.text.push(character);
        if let Some(header) = self.text.strip_suffix(close) {
            let (name, attributes) = match self.syntax.quoted {
                true => header.split_once('"').unwrap_or(("", "")),
                false => (header.trim().trim_matches('"'), ""),
            };
            let is_string = match attributes.trim() {
                "" => None,
                "string=\"true\"" => Some(true),
                "string=\"false\"" => Some(false),
                _ => return Header::Malformed,
            };
            let header = Header::Whole(name.to_owned(), is_string);
            self.text.clear();
            return header;
        }
        // A tag of one character never spans lines: what does is prose.
        let prose = close == ">" && matches!(character, '<' | '\n');
        if prose || self.text.len() > HEADER_BYTES_MAX { Header::Malformed } else { Header::More }
    }

    /// Reads a name that no tag surrounds.
    fn bare_name(&mut self, character: char, call: &mut Call) -> Progress {
        match character {
            _ if is_space(character) && self.name.is_empty() => Progress::More,
            _ if is_name_character(character) && self.name.len() < HEADER_BYTES_MAX => {
                self.name.push(character);
                Progress::More
            }
            _ if is_tool_name(&self.name) => {
                self.state = State::BeforeParameter;
                self.between(character, call)
            }
            _ => Progress::Broken,
        }
    }

    /// Reads between tags: white space and the next tag.
    fn between(&mut self, character: char, call: &mut Call) -> Progress {
        if self.pending.is_empty() {
            if is_space(character) {
                return Progress::More;
            }
            if character == '{' && matches!(self.state, State::BeforeParameter) && !call.state.begun {
                call.begin(None, &self.name);
                let mut scanner = ObjectScanner::new();
                let progress = push_object(&mut scanner, character, call);
                self.state = State::Object(scanner);
                return progress;
            }
        }
        self.pending.push(character);
        let syntax = self.syntax;
        let tags = |texts: &'static [&'static str], tag: Tag| texts.iter().map(move |text| (*text, tag));
        let found = match self.state {
            State::BeforeCall => matching::find(&self.pending, tags(syntax.call_open, Tag::Call)),
            State::BeforeValue => {
                matching::find(&self.pending, syntax.value_open.map(|text| (text, Tag::Value)))
            }
            State::BeforeParameter => {
                let parameters = tags(syntax.parameter_open, Tag::Parameter);
                matching::find(&self.pending, parameters.chain(tags(syntax.call_close, Tag::CallEnd)))
            }
            _ => matching::find(&self.pending, tags(syntax.call_close, Tag::CallEnd)),
        };
        match found {
            Match::Prefix => Progress::More,
            Match::Whole(tag) => self.take_tag(tag, call),
            Match::None => {
                if matches!(self.state, State::AfterObject) {
                    call.end();
                }
                Progress::Broken
            }
        }
    }

    fn take_tag(&mut self, tag: Tag, call: &mut Call) -> Progress {
        self.pending.clear();
        match tag {
            Tag::Call => self.state = State::Name,
            Tag::Parameter => self.state = State::Key,
            Tag::Value => self.begin_value(call),
            Tag::CallEnd if matches!(self.state, State::AfterObject) => {
                call.end();
                return Progress::Done;
            }
            Tag::CallEnd if call.state.begun => {
                call.arguments("}");
                call.end();
                return Progress::Done;
            }
            Tag::CallEnd => {
                call.empty(None, &self.name);
                return Progress::Done;
            }
        }
        Progress::More
    }

    fn take_key(&mut self, key: String, is_string: Option<bool>, call: &mut Call) -> Progress {
        self.key = key;
        self.types = match is_string {
            Some(true) => Types::STRING,
            Some(false) => Types::NOT_STRING,
            None => self.signatures.types(&self.name, &self.key),
        };
        match self.syntax.value_open {
            Some(_) => self.state = State::BeforeValue,
            None => self.begin_value(call),
        }
        Progress::More
    }

    fn begin_value(&mut self, call: &mut Call) {
        let before = if call.state.begun { ", " } else { "{" };
        if !call.state.begun {
            call.begin(None, &self.name);
        }
        call.arguments(&format!("{before}{}: ", quoted(&self.key)));
        self.text.clear();
        if self.types == Types::STRING {
            self.begin_text(call);
        } else {
            self.state = State::Value;
        }
    }

    fn begin_text(&mut self, call: &mut Call) {
        call.arguments("\"");
        self.state = State::Text { first: true, newline: false };
    }

    fn value_character(&mut self, character: char, call: &mut Call) {
        self.pending.push(character);
        while !self.pending.is_empty() {
            let closes = self.syntax.value_close.iter().map(|text| (*text, ()));
            match matching::find(&self.pending, closes) {
                Match::Prefix => return,
                Match::Whole(()) => return self.end_value(call),
                Match::None => {
                    let first = matching::take_first(&mut self.pending);
                    self.plain_value_character(first, call);
                }
            }
        }
    }

    fn plain_value_character(&mut self, character: char, call: &mut Call) {
        match &mut self.state {
            State::Text { first, newline } => {
                let layout = self.syntax.newlines_around_values && character == '\n';
                let waited = std::mem::replace(newline, layout && !*first);
                *first = false;
                if waited {
                    push_text("\n", call);
                }
                if !layout {
                    push_text(character.encode_utf8(&mut [0; 4]), call);
                }
            }
            _ => {
                self.text.push(character);
                if self.text.len() > VALUE_BYTES_MAX {
                    let text = std::mem::take(&mut self.text);
                    self.begin_text(call);
                    text.chars().for_each(|character| self.plain_value_character(character, call));
                }
            }
        }
    }

    fn end_value(&mut self, call: &mut Call) {
        self.pending.clear();
        if let State::Value = self.state {
            let text = std::mem::take(&mut self.text);
            let mut value = text.as_str();
            if self.syntax.newlines_around_values {
                value = value.strip_prefix('\n').unwrap_or(value);
                value = value.strip_suffix('\n').unwrap_or(value);
            }
            call.arguments(&self.types.json_of(value).unwrap_or_else(|| quoted(value)));
        } else {
            call.arguments("\"");
        }
        self.state = State::BeforeParameter;
    }
}

fn push_text(text: &str, call: &mut Call) {
    if text.is_empty() {
        return;
    }
    let mut piece = String::with_capacity(text.len());
    text.chars().for_each(|character| push_escaped(&mut piece, character));
    call.arguments(&piece);
}

enum Header {
    More,
    Malformed,
    /// Name or key, and whether the tag says that the value is a string; DSML does.
    Whole(String, Option<bool>),
}

#[derive(Clone, Copy)]
enum Tag {
    Call,
    Parameter,
    Value,
    CallEnd,
}
