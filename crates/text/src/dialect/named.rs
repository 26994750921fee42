//! Calls written as a name, a separator and a JSON object: DeepSeek R1 to V3.1, Kimi K2, Mistral since 2025.
//!
//! The call is over with the object; what closes it is a marker that `marked.rs` skips.

use super::call::{Call, Progress, is_tool_name};
use super::object::{ObjectScanner, Scanned, push_escaped};

/// How a dialect writes the parts.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NamedSyntax {
    /// Text between name and arguments.
    pub separator: &'static str,
    /// Text that closes the call.
    pub close: Option<&'static str>,
    /// What the header is.
    pub header: Header,
}

/// What stands before the separator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Header {
    /// Mistral: the name, or name, `[CALL_ID]` and id. The separator may be missing.
    Mistral,
    /// DeepSeek: the name (V3.1), or the word `function`, and then name and a Markdown fence follow (R1, V3).
    DeepSeek,
    /// Kimi: `functions.name:0`, which is the id too.
    Kimi,
}

/// Mistral's marker between name and id.
const CALL_ID: &str = "[CALL_ID]";
/// Most bytes between the start of a call and its object: two names and markers.
const HEADER_BYTES_MAX: usize = 1024;

#[derive(Debug)]
enum State {
    Header,
    BeforeObject,
    Object(ObjectScanner),
}

/// See the module.
#[derive(Debug)]
pub(super) struct NamedReader {
    syntax: &'static NamedSyntax,
    state: State,
    /// Before the separator, without it.
    header: String,
    /// Between the separator and the object.
    after: String,
}

impl NamedReader {
    pub fn new(syntax: &'static NamedSyntax) -> NamedReader {
        NamedReader { syntax, state: State::Header, header: String::new(), after: String::new() }
    }

    pub fn push(&mut self, character: char, call: &mut Call) -> Progress {
        if self.header.len() + self.after.len() > HEADER_BYTES_MAX {
            return Progress::Broken;
        }
        match &mut self.state {
            State::Header if character == '{' && self.syntax.header == Header::Mistral => {
                self.begin(character, call)
            }
            State::Header => {
                self.header.push(character);
                if self.header.ends_with(self.syntax.separator) {
                    self.header.truncate(self.header.len() - self.syntax.separator.len());
                    self.state = State::BeforeObject;
                }
                Progress::More
            }
            State::BeforeObject if character == '{' => self.begin(character, call),
            State::BeforeObject => {
                self.after.push(character);
                match self.syntax.close {
                    Some(close) if self.after.ends_with(close) => {
                        self.after.truncate(self.after.len() - close.len());
                        let Some((name, id)) = self.name_and_id() else { return Progress::Broken };
                        call.empty(id, &name);
                        Progress::Done
                    }
                    _ => Progress::More,
                }
            }
            State::Object(scanner) => {
                let progress = push_object(scanner, character, call);
                if progress == Progress::Done {
                    call.end();
                }
                progress
            }
        }
    }

    fn begin(&mut self, brace: char, call: &mut Call) -> Progress {
        let Some((name, id)) = self.name_and_id() else { return Progress::Broken };
        call.begin(id, &name);
        let mut scanner = ObjectScanner::new();
        let progress = push_object(&mut scanner, brace, call);
        self.state = State::Object(scanner);
        progress
    }

    /// The name and the id, if the text before the object is well-formed.
    fn name_and_id(&self) -> Option<(String, Option<String>)> {
        let header = self.header.trim();
        let mut after = self.after.trim();
        let (mut name, mut id) = (header, None);
        match self.syntax.header {
            Header::Mistral => {
                if let Some((before, behind)) = header.split_once(CALL_ID) {
                    name = before.trim_end();
                    id = Some(behind.trim()).filter(|id| !id.is_empty());
                }
            }
            Header::Kimi => {
                name = header.strip_prefix("functions.").unwrap_or(header);
                if let Some((before, number)) = name.rsplit_once(':')
                    && !number.is_empty()
                    && number.bytes().all(|byte| byte.is_ascii_digit())
                {
                    name = before;
                    id = Some(header);
                }
            }
            Header::DeepSeek => {
                if header == "function" && !after.is_empty() && !after.starts_with('`') {
                    (name, after) = after.split_once('\n').unwrap_or((after, ""));
                    (name, after) = (name.trim(), after.trim());
                }
                after = after
                    .strip_prefix("```")
                    .map_or(after, |fence| fence.strip_prefix("json").unwrap_or(fence));
            }
        }
        (is_tool_name(name) && after.trim().is_empty()).then(|| (name.to_owned(), id.map(str::to_owned)))
    }
}

/// Streams one character of the arguments. Done with the object's end, which does not report the end of the call.
pub(super) fn push_object(scanner: &mut ObjectScanner, character: char, call: &mut Call) -> Progress {
    let mut piece = [0; 4];
    match scanner.push(character) {
        Scanned::Taken => call.arguments(character.encode_utf8(&mut piece)),
        Scanned::Unescaped => {
            let mut escape = String::new();
            push_escaped(&mut escape, character);
            call.arguments(&escape);
        }
        Scanned::Closed => {
            call.arguments(character.encode_utf8(&mut piece));
            return Progress::Done;
        }
        Scanned::Invalid => return Progress::Broken,
    }
    Progress::More
}
