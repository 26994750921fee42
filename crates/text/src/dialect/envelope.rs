//! Calls written as one JSON object, `{"name": .., "arguments": {..}}`: Hermes, Mistral's list, Llama 3.
//!
//! Keys may come in any order. Arguments that come after the name are streamed; those that come before it are held.
//! Once the arguments are whole the call is whole: models forget the outer brace, and nothing after it matters.

use super::call::{Call, Progress, is_space, is_tool_name};
use super::object::{ObjectScanner, Scanned, push_escaped};
use super::parameters::ToolSignatures;

/// What one dialect demands of the object.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct EnvelopeRules {
    /// An object without arguments is no call, and neither is one that names none of the known tools (if any are
    /// known): for objects without a marker before them, which may be an answer in JSON.
    pub strict: bool,
}

#[derive(Debug)]
enum State {
    /// Before the opening brace; a list's bracket may come first.
    Open { bracket: bool },
    /// Before a key: the closing brace may come instead, if `first`.
    Key { first: bool },
    /// Inside a string that is a key or a value.
    Text { escaped: bool },
    /// Between a key and its value.
    Colon,
    /// Before a value.
    Value,
    /// After a value.
    Comma,
    /// Inside the arguments.
    Arguments(ObjectScanner),
    /// Inside `null`, given instead of arguments; what is missing of it.
    Null(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    Name,
    Arguments,
    Id,
    Type,
}

/// See the module.
#[derive(Debug)]
pub(super) struct EnvelopeReader {
    rules: &'static EnvelopeRules,
    signatures: ToolSignatures,
    state: State,
    /// The key whose value is read; none while the key itself is read.
    key: Option<Key>,
    /// The string being read, quotes included.
    text: String,
    name: Option<String>,
    id: Option<String>,
    /// Arguments that came before the name.
    arguments: Option<String>,
}

impl EnvelopeReader {
    /// A reader for text from before the opening brace, or, if `opened`, from after it.
    pub fn new(rules: &'static EnvelopeRules, opened: bool, signatures: ToolSignatures) -> EnvelopeReader {
        let state = if opened { State::Key { first: true } } else { State::Open { bracket: false } };
        EnvelopeReader {
            rules,
            signatures,
            state,
            key: None,
            text: String::new(),
            name: None,
            id: None,
            arguments: None,
        }
    }

    pub fn push(&mut self, character: char, call: &mut Call) -> Progress {
        let progress = self.read(character, call);
        // After the arguments anything may follow; it is not part of the call.
        if progress == Progress::Broken && self.is_complete(call) {
            call.end();
        }
        progress
    }

    /// The text has ended.
    pub fn finish(&mut self, call: &mut Call) {
        if self.is_complete(call) {
            call.end();
        }
    }

    fn is_complete(&self, call: &Call) -> bool {
        call.state.begun && !matches!(self.state, State::Arguments(_))
    }

    fn read(&mut self, character: char, call: &mut Call) -> Progress {
        match &mut self.state {
            State::Text { escaped } => {
                let closes = character == '"' && !*escaped;
                *escaped = character == '\\' && !*escaped;
                if character < ' ' {
                    push_escaped(&mut self.text, character);
                } else {
                    self.text.push(character);
                }
                if closes { self.take_text(call) } else { Progress::More }
            }
            State::Arguments(_) => self.read_arguments(character, call),
            State::Null(rest) => match rest.strip_prefix(character) {
                Some("") => {
                    self.state = State::Comma;
                    self.take_arguments("{}".to_owned(), call)
                }
                Some(left) => {
                    *rest = left;
                    Progress::More
                }
                None => Progress::Broken,
            },
            _ if is_space(character) => Progress::More,
            _ => self.read_structure(character, call),
        }
    }

    fn read_structure(&mut self, character: char, call: &mut Call) -> Progress {
        self.state = match (&self.state, character) {
            (State::Open { bracket: false }, '[') => State::Open { bracket: true },
            (State::Open { .. }, '{') => State::Key { first: true },
            (State::Key { first: true } | State::Comma, '}') => return self.close(call),
            (State::Key { .. } | State::Value, '"') => {
                self.text.clear();
                self.text.push('"');
                State::Text { escaped: false }
            }
            (State::Colon, ':') => State::Value,
            (State::Comma, ',') => State::Key { first: false },
            (State::Value, '{') if self.key == Some(Key::Arguments) => {
                self.state = State::Arguments(ObjectScanner::new());
                if let Some(name) = &self.name {
                    call.begin(self.id.take(), name);
                } else {
                    self.arguments = Some(String::new());
                }
                return self.read_arguments(character, call);
            }
            (State::Value, 'n') if self.key == Some(Key::Arguments) => State::Null("ull"),
            _ => return Progress::Broken,
        };
        Progress::More
    }

    fn read_arguments(&mut self, character: char, call: &mut Call) -> Progress {
        let State::Arguments(scanner) = &mut self.state else { return Progress::Broken };
        let scanned = scanner.push(character);
        if scanned == Scanned::Invalid {
            return Progress::Broken;
        }
        let mut piece = String::new();
        match scanned {
            Scanned::Unescaped => push_escaped(&mut piece, character),
            _ => piece.push(character),
        }
        match &mut self.arguments {
            Some(held) => held.push_str(&piece),
            None => call.arguments(&piece),
        }
        if scanned == Scanned::Closed {
            self.state = State::Comma;
            self.key = None;
        }
        Progress::More
    }

    /// A string is whole: a key, or the value of `self.key`.
    fn take_text(&mut self, call: &mut Call) -> Progress {
        let Ok(text) = serde_json::from_str::<String>(&self.text) else { return Progress::Broken };
        let Some(key) = self.key.take() else {
            let arguments_known = call.state.begun || self.arguments.is_some();
            self.key = Some(match text.as_str() {
                "name" if self.name.is_none() => Key::Name,
                "arguments" | "parameters" if !arguments_known => Key::Arguments,
                "id" => Key::Id,
                "type" => Key::Type,
                _ => return Progress::Broken,
            });
            self.state = State::Colon;
            return Progress::More;
        };
        self.state = State::Comma;
        match key {
            Key::Name => {
                let known = !self.rules.strict || self.signatures.knows(&text);
                if !is_tool_name(&text) || !known {
                    return Progress::Broken;
                }
                self.name = Some(text);
                match self.arguments.take() {
                    Some(arguments) => self.take_arguments(arguments, call),
                    None => Progress::More,
                }
            }
            // Some models write the arguments as a string that holds the JSON object.
            Key::Arguments => match serde_json::from_str::<serde_json::Value>(&text) {
                Ok(value) if value.is_object() => self.take_arguments(text.trim().to_owned(), call),
                _ => Progress::Broken,
            },
            Key::Id => {
                self.id = Some(text);
                Progress::More
            }
            Key::Type if text == "function" => Progress::More,
            Key::Type => Progress::Broken,
        }
    }

    /// The arguments are whole, and not streamed.
    fn take_arguments(&mut self, arguments: String, call: &mut Call) -> Progress {
        match &self.name {
            Some(name) => {
                call.begin(self.id.take(), name);
                call.arguments(&arguments);
            }
            None => self.arguments = Some(arguments),
        }
        self.key = None;
        Progress::More
    }

    fn close(&mut self, call: &mut Call) -> Progress {
        if call.state.begun {
            call.end();
            return Progress::Done;
        }
        match &self.name {
            Some(name) if !self.rules.strict => {
                call.empty(self.id.take(), name);
                Progress::Done
            }
            _ => Progress::Broken,
        }
    }
}
