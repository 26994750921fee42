//! The machine of all dialects that mark parts of plain text: everything but Harmony.
//!
//! Text passes through as reasoning or content until a marker of `table.rs` comes. A character that no marker can
//! begin with is reported at once. What a reader could not use is given back to be read again as content.

use super::call::{
    AnswerEvent, Call, CallState, HELD_BYTES_MAX, Progress, is_space, push_content, push_reasoning,
};
use super::envelope::EnvelopeReader;
use super::matching::{self, Match};
use super::named::NamedReader;
use super::parameters::ToolSignatures;
use super::table::{Place, ReasoningMarkers, Role, Syntax};
use super::tagged::TaggedReader;

/// Most bytes of white space held back before what may be a marker; more of it is text.
const SPACE_BYTES_MAX: usize = 256;

/// See the module.
#[derive(Debug)]
pub(super) struct MarkedParser {
    syntax: &'static Syntax,
    reasoning: Option<ReasoningMarkers>,
    tools: bool,
    signatures: ToolSignatures,
    state: State,
    /// The start of what may become a marker.
    pending: String,
    /// White space that is dropped if a marker follows.
    space: String,
    call: CallState,
}

#[derive(Debug)]
enum State {
    Reasoning { leading: bool },
    Content(Since),
    Call { opener: &'static str, reader: Reader },
}

/// What the white space before the next word follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Since {
    Start,
    Reasoning,
    Call,
    Text,
}

#[derive(Debug)]
enum Reader {
    Undecided,
    Envelope(EnvelopeReader),
    Named(NamedReader),
    Tagged(TaggedReader),
}

#[derive(Clone, Copy)]
enum Action {
    OpenReasoning,
    CloseReasoning,
    Marker(Role),
}

impl MarkedParser {
    pub fn new(
        syntax: &'static Syntax,
        reasoning: Option<ReasoningMarkers>,
        starts_in_reasoning: bool,
        tools: bool,
        signatures: ToolSignatures,
    ) -> MarkedParser {
        let state = match starts_in_reasoning && reasoning.is_some() {
            true => State::Reasoning { leading: true },
            false => State::Content(Since::Start),
        };
        MarkedParser {
            syntax,
            reasoning,
            tools,
            signatures,
            state,
            pending: String::new(),
            space: String::new(),
            call: CallState::default(),
        }
    }

    /// Takes one character. Gives back text that must be taken again, before any other.
    pub fn push(&mut self, character: char, events: &mut Vec<AnswerEvent>) -> String {
        if let State::Call { .. } = self.state {
            return self.push_to_call(character, events);
        }
        self.pending.push(character);
        self.settle(false, events)
    }

    /// The text has ended. Gives back text that must be taken again; then the text has ended again.
    pub fn finish(&mut self, events: &mut Vec<AnswerEvent>) -> String {
        if let State::Call { reader, .. } = &mut self.state {
            let mut call = Call { state: &mut self.call, events };
            match reader {
                Reader::Undecided => {}
                Reader::Envelope(reader) => reader.finish(&mut call),
                Reader::Named(_) => {}
                Reader::Tagged(reader) => reader.finish(&mut call),
            }
            return self.leave_call(events);
        }
        let again = self.settle(true, events);
        if again.is_empty() {
            self.flush_space(events);
        }
        again
    }

    /// Reports what of `pending` can be no marker, and acts on a marker. At the end of the text none can come.
    fn settle(&mut self, last: bool, events: &mut Vec<AnswerEvent>) -> String {
        while !self.pending.is_empty() {
            match self.find() {
                Match::Whole((text, action)) => {
                    let again = self.pending.split_off(text.len());
                    self.pending.clear();
                    self.act(text, action);
                    return again;
                }
                Match::Prefix if !last => break,
                _ => {
                    let character = matching::take_first(&mut self.pending);
                    self.plain(character, events);
                }
            }
        }
        String::new()
    }

    /// Relates `pending` to the markers that count here.
    fn find(&self) -> Match<(&'static str, Action)> {
        let (inside, leading, since) = match self.state {
            State::Reasoning { leading } => (true, leading, Since::Text),
            State::Content(since) => (false, since != Since::Text, since),
            State::Call { .. } => return Match::None,
        };
        let reasoning = self.reasoning.into_iter().flat_map(|markers| {
            // The prompt may have opened reasoning that the model opens again, or closed what it closes again.
            let opens = (leading || (markers.anywhere && !inside))
                .then_some((markers.open, (markers.open, Action::OpenReasoning)));
            let closes =
                (inside || leading).then_some((markers.close, (markers.close, Action::CloseReasoning)));
            opens.into_iter().chain(closes)
        });
        let markers = self.syntax.markers.iter().filter(|_| self.tools && !inside);
        let markers = markers
            .filter(|marker| match marker.place {
                Place::Anywhere => true,
                Place::Leading => leading,
                Place::AfterCall => since == Since::Call,
            })
            .map(|marker| (marker.text, (marker.text, Action::Marker(marker.role))));
        matching::find(&self.pending, reasoning.chain(markers))
    }

    fn act(&mut self, text: &'static str, action: Action) {
        let signatures = || self.signatures.clone();
        let reader = match action {
            Action::OpenReasoning => {
                self.space.clear();
                self.state = State::Reasoning { leading: true };
                return;
            }
            Action::CloseReasoning => {
                self.space.clear();
                self.state = State::Content(Since::Reasoning);
                return;
            }
            Action::Marker(Role::Skip) => {
                self.space.clear();
                self.state = State::Content(Since::Call);
                return;
            }
            Action::Marker(Role::Envelope(rules)) => {
                Reader::Envelope(EnvelopeReader::new(rules, false, signatures()))
            }
            Action::Marker(Role::EnvelopeBrace(rules)) => {
                Reader::Envelope(EnvelopeReader::new(rules, true, signatures()))
            }
            Action::Marker(Role::EnvelopeOrNamed(..)) => Reader::Undecided,
            Action::Marker(Role::Named(syntax)) => Reader::Named(NamedReader::new(syntax)),
            Action::Marker(Role::TaggedBlock(syntax)) => {
                Reader::Tagged(TaggedReader::new(syntax, false, signatures()))
            }
            Action::Marker(Role::TaggedCall(syntax)) => {
                Reader::Tagged(TaggedReader::new(syntax, true, signatures()))
            }
        };
        self.call.reset();
        self.state = State::Call { opener: text, reader };
    }

    fn push_to_call(&mut self, character: char, events: &mut Vec<AnswerEvent>) -> String {
        let State::Call { opener, reader } = &mut self.state else { return character.to_string() };
        self.call.held.push(character);
        if let Reader::Undecided = reader {
            if is_space(character) && self.call.held.len() <= HELD_BYTES_MAX {
                return String::new();
            }
            *reader = decide(self.syntax, opener, character, self.signatures.clone());
        }
        let mut call = Call { state: &mut self.call, events };
        let progress = match reader {
            Reader::Undecided => Progress::Broken,
            Reader::Envelope(reader) => reader.push(character, &mut call),
            Reader::Named(reader) => reader.push(character, &mut call),
            Reader::Tagged(reader) => reader.push(character, &mut call),
        };
        match progress {
            Progress::More if self.call.held.len() <= HELD_BYTES_MAX => String::new(),
            Progress::Done => {
                self.call.held.clear();
                self.leave_call(events)
            }
            Progress::More | Progress::Broken => self.leave_call(events),
        }
    }

    /// Goes back to content. What the call held is not part of it and is given back.
    fn leave_call(&mut self, events: &mut Vec<AnswerEvent>) -> String {
        let State::Call { opener, .. } = self.state else { return String::new() };
        let held = std::mem::take(&mut self.call.held);
        if self.call.begun {
            self.space.clear();
            self.state = State::Content(if self.call.ended { Since::Call } else { Since::Text });
        } else {
            self.flush_space(events);
            push_content(events, opener);
            self.state = State::Content(Since::Text);
        }
        held
    }

    /// Reports a character that belongs to no marker.
    fn plain(&mut self, character: char, events: &mut Vec<AnswerEvent>) {
        let held = match &mut self.state {
            State::Reasoning { leading: true } if character == '\n' => return,
            State::Reasoning { leading } => {
                *leading = *leading && is_space(character);
                character == '\n'
            }
            State::Content(Since::Call) if is_space(character) => return,
            State::Content(Since::Reasoning) if matches!(character, '\n' | '\r') && self.space.is_empty() => {
                return;
            }
            State::Content(Since::Text) => character == '\n',
            _ => is_space(character),
        };
        if held {
            self.space.push(character);
            if self.space.len() > SPACE_BYTES_MAX {
                self.flush_space(events);
            }
            return;
        }
        self.flush_space(events);
        let mut piece = [0; 4];
        let piece = character.encode_utf8(&mut piece);
        match &mut self.state {
            State::Reasoning { .. } => push_reasoning(events, piece),
            State::Content(since) => {
                *since = Since::Text;
                push_content(events, piece);
            }
            State::Call { .. } => {}
        }
    }

    fn flush_space(&mut self, events: &mut Vec<AnswerEvent>) {
        match self.state {
            State::Reasoning { .. } => push_reasoning(events, &self.space),
            _ => push_content(events, &self.space),
        }
        self.space.clear();
    }
}

/// The reader for what follows a marker that may stand before a list or before a name.
fn decide(syntax: &Syntax, opener: &str, first: char, signatures: ToolSignatures) -> Reader {
    let role = syntax.markers.iter().find(|marker| marker.text == opener).map(|marker| marker.role);
    match role {
        Some(Role::EnvelopeOrNamed(rules, _)) if matches!(first, '[' | '{') => {
            Reader::Envelope(EnvelopeReader::new(rules, false, signatures))
        }
        Some(Role::EnvelopeOrNamed(_, syntax)) => Reader::Named(NamedReader::new(syntax)),
        _ => Reader::Undecided,
    }
}
