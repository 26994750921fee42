//! The events of an answer, and the bookkeeping of the call that is being read.
//!
//! Owns the rule that no text is lost: a call keeps what it has read and not yet reported in `held`, and reporting
//! empties it. Next: the readers `envelope.rs`, `named.rs` and `tagged.rs`.

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerEvent {
    /// A piece of the model's reasoning.
    Reasoning(String),
    /// A piece of the answer itself.
    Content(String),
    /// A call whose name is known.
    ToolCallBegin {
        /// Number of the call in this answer, from 0.
        index: usize,
        /// The id the model gave, if it gave one before the arguments. Otherwise the caller makes one.
        id: Option<String>,
        /// Name of the tool, as the model wrote it; it need not be one that was offered.
        name: String,
    },
    /// A piece of the arguments of a call that has begun; the pieces joined are one JSON object if the call ends.
    ToolCallArguments {
        /// Number of the call.
        index: usize,
        /// The piece.
        json: String,
    },
    /// The arguments of the call are whole. Without this event, the call was cut off or its arguments are not JSON.
    ToolCallEnd {
        /// Number of the call.
        index: usize,
    },
}

/// Most bytes of a call that are held back before its name is known.
pub(super) const HELD_BYTES_MAX: usize = 64 << 10;

/// What a reader says after a character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// The call goes on.
    More,
    /// The call is over with this character.
    Done,
    /// The character cannot follow. What is held, the character included, is not part of the call.
    Broken,
}

/// The call being read, or the next one.
#[derive(Debug, Default)]
pub(super) struct CallState {
    /// Number of calls that have begun before this one.
    pub index: usize,
    /// Text read since the last event.
    pub held: String,
    /// A begin event was sent.
    pub begun: bool,
    /// An end event was sent.
    pub ended: bool,
}

impl CallState {
    /// Makes ready for the next call.
    pub fn reset(&mut self) {
        self.index += usize::from(self.begun);
        self.held.clear();
        self.begun = false;
        self.ended = false;
    }
}

/// Where readers report to.
pub(super) struct Call<'a> {
    pub state: &'a mut CallState,
    pub events: &'a mut Vec<AnswerEvent>,
}

impl Call<'_> {
    pub fn begin(&mut self, id: Option<String>, name: &str) {
        self.state.begun = true;
        self.state.held.clear();
        self.events.push(AnswerEvent::ToolCallBegin { index: self.state.index, id, name: name.to_owned() });
    }

    pub fn arguments(&mut self, piece: &str) {
        self.state.held.clear();
        let index = self.state.index;
        match self.events.last_mut() {
            Some(AnswerEvent::ToolCallArguments { index: last, json }) if *last == index => {
                json.push_str(piece)
            }
            _ => self.events.push(AnswerEvent::ToolCallArguments { index, json: piece.to_owned() }),
        }
    }

    pub fn end(&mut self) {
        self.state.ended = true;
        self.events.push(AnswerEvent::ToolCallEnd { index: self.state.index });
    }

    /// A whole call without arguments.
    pub fn empty(&mut self, id: Option<String>, name: &str) {
        self.begin(id, name);
        self.arguments("{}");
        self.end();
    }
}

/// Appends content, to the last event if that is content too.
pub(super) fn push_content(events: &mut Vec<AnswerEvent>, text: &str) {
    match events.last_mut() {
        _ if text.is_empty() => {}
        Some(AnswerEvent::Content(last)) => last.push_str(text),
        _ => events.push(AnswerEvent::Content(text.to_owned())),
    }
}

/// Appends reasoning, to the last event if that is reasoning too.
pub(super) fn push_reasoning(events: &mut Vec<AnswerEvent>, text: &str) {
    match events.last_mut() {
        _ if text.is_empty() => {}
        Some(AnswerEvent::Reasoning(last)) => last.push_str(text),
        _ => events.push(AnswerEvent::Reasoning(text.to_owned())),
    }
}

/// White space that may stand around markers.
pub(super) fn is_space(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\r' | '\n')
}

/// Whether a text can be the name of a tool. Broader than OpenAI's rule (letters, digits, `_`, `-`), because tools of
/// other protocols have dots, colons and slashes in their names.
pub(super) fn is_tool_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= 256 && text.chars().all(is_name_character)
}

/// See [`is_tool_name`].
pub(super) fn is_name_character(character: char) -> bool {
    character.is_alphanumeric() || matches!(character, '_' | '-' | '.' | ':' | '/' | '$' | '@')
}
