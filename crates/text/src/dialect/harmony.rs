//! Harmony, the format of gpt-oss: an answer is a list of messages with a header each.
//!
//! `<|start|>assistant<|channel|>commentary to=functions.name <|constrain|>json<|message|>{..}<|call|>`. The prompt
//! ends with `<|start|>assistant`, so an answer begins in a header. Messages of the channel `analysis` are
//! reasoning, messages with a recipient (in either place of the header) are calls, all others are content.
//! Source: the format's guide by OpenAI.

use super::call::{
    AnswerEvent, Call, CallState, HELD_BYTES_MAX, Progress, is_space, is_tool_name, push_content,
    push_reasoning,
};
use super::matching::{self, Match};
use super::named::push_object;
use super::object::ObjectScanner;

/// Most bytes of a header.
const HEADER_BYTES_MAX: usize = 1024;

/// Words a header is made of besides a recipient.
const HEADER_WORDS: &[&str] = &["assistant", "analysis", "commentary", "final", "json", "code"];
/// Recipients that are no tools.
const PEOPLE: &[&str] = &["assistant", "user", "all"];

/// See the module.
#[derive(Debug)]
pub(super) struct HarmonyParser {
    tools: bool,
    state: State,
    /// The start of what may become a marker.
    pending: String,
    call: CallState,
}

#[derive(Debug)]
enum State {
    /// Before a message.
    Between { first: bool },
    /// In a header; the text so far with its markers.
    Header(String),
    /// In a message.
    Body(Channel),
    /// In a message to a tool, before its arguments; `call.held` has the header.
    Recipient { name: String },
    /// In the arguments.
    Arguments(ObjectScanner),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Channel {
    Reasoning,
    Content,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Marker {
    /// `<|start|>`
    Start,
    /// `<|channel|>`
    Channel,
    /// `<|constrain|>`
    Constrain,
    /// `<|message|>`
    Message,
    /// `<|end|>`, `<|call|>`, `<|return|>`
    End,
    /// `to=` at the start of an answer
    Recipient,
}

const MARKERS: &[(&str, Marker)] = &[
    ("<|start|>", Marker::Start),
    ("<|channel|>", Marker::Channel),
    ("<|constrain|>", Marker::Constrain),
    ("<|message|>", Marker::Message),
    ("<|end|>", Marker::End),
    ("<|call|>", Marker::End),
    ("<|return|>", Marker::End),
    ("to=", Marker::Recipient),
];

impl HarmonyParser {
    pub fn new(starts_in_reasoning: bool, tools: bool) -> HarmonyParser {
        let state = match starts_in_reasoning {
            true => State::Body(Channel::Reasoning),
            false => State::Between { first: true },
        };
        HarmonyParser { tools, state, pending: String::new(), call: CallState::default() }
    }

    /// Takes one character. Gives back text that must be taken again, before any other.
    pub fn push(&mut self, character: char, events: &mut Vec<AnswerEvent>) -> String {
        if let State::Arguments(scanner) = &mut self.state {
            self.call.held.push(character);
            let mut call = Call { state: &mut self.call, events };
            match push_object(scanner, character, &mut call) {
                Progress::More => {}
                Progress::Done => {
                    call.end();
                    self.call.held.clear();
                    self.state = State::Between { first: false };
                }
                Progress::Broken => {
                    self.state = State::Body(Channel::Content);
                    return std::mem::take(&mut self.call.held);
                }
            }
            return String::new();
        }
        self.pending.push(character);
        self.settle(false, events)
    }

    /// The text has ended. Gives back text that must be taken again; then the text has ended again.
    pub fn finish(&mut self, events: &mut Vec<AnswerEvent>) -> String {
        let again = self.settle(true, events);
        if !again.is_empty() {
            return again;
        }
        match &mut self.state {
            State::Header(header) => {
                let header = std::mem::take(header);
                self.give_up_header(&header, events);
            }
            // Nothing of the arguments has come: a call that was cut off.
            State::Recipient { name } => {
                let name = std::mem::take(name);
                Call { state: &mut self.call, events }.begin(None, &name);
                self.state = State::Between { first: false };
            }
            _ => {}
        }
        String::new()
    }

    fn settle(&mut self, last: bool, events: &mut Vec<AnswerEvent>) -> String {
        while !self.pending.is_empty() {
            let first = matches!(self.state, State::Between { first: true });
            let markers = MARKERS.iter().filter(|(_, marker)| first || *marker != Marker::Recipient);
            match matching::find(&self.pending, markers.map(|(text, marker)| (*text, (*text, *marker)))) {
                Match::Whole((text, marker)) => {
                    let again = self.pending.split_off(text.len());
                    self.pending.clear();
                    self.act(text, marker, events);
                    return again;
                }
                Match::Prefix if !last => break,
                _ => {
                    let character = matching::take_first(&mut self.pending);
                    if let Some(again) = self.plain(character, events) {
                        return again + &std::mem::take(&mut self.pending);
                    }
                }
            }
        }
        String::new()
    }

    /// Acts on a marker. Nothing of a message is lost, whatever comes in the wrong place.
    fn act(&mut self, text: &'static str, marker: Marker, events: &mut Vec<AnswerEvent>) {
        match (&mut self.state, marker) {
            (State::Header(header), Marker::Message) => {
                let header = std::mem::take(header);
                self.open_message(header, events);
            }
            (State::Header(header), Marker::Constrain) => header.push_str(text),
            (State::Header(header), Marker::Channel) if !header.contains(text) => header.push_str(text),
            (State::Header(header), _) => {
                let header = std::mem::take(header);
                self.give_up_header(&header, events);
                self.act(text, marker, events);
            }
            (State::Recipient { name }, Marker::End) => {
                let name = std::mem::take(name);
                Call { state: &mut self.call, events }.empty(None, &name);
                self.state = State::Between { first: false };
            }
            (State::Recipient { .. }, _) => {
                self.give_up_recipient(events);
                self.act(text, marker, events);
            }
            (_, Marker::Start | Marker::Channel | Marker::Recipient) => {
                self.state = State::Header(text.to_owned());
            }
            (_, Marker::End) => self.state = State::Between { first: false },
            (State::Between { .. }, Marker::Message) => self.state = State::Body(Channel::Content),
            // In a message these are neither text nor structure.
            (_, Marker::Message | Marker::Constrain) => {}
        }
    }

    /// Takes a character that belongs to no marker; gives it back if the state has changed instead.
    fn plain(&mut self, character: char, events: &mut Vec<AnswerEvent>) -> Option<String> {
        let mut piece = [0; 4];
        let piece = character.encode_utf8(&mut piece);
        match &mut self.state {
            State::Between { .. } if is_space(character) => {}
            State::Between { .. } => {
                self.state = State::Body(Channel::Content);
                return Some(piece.to_owned());
            }
            State::Header(header) => {
                header.push(character);
                if header.len() > HEADER_BYTES_MAX {
                    let header = std::mem::take(header);
                    push_content(events, &header);
                    self.state = State::Body(Channel::Content);
                }
            }
            State::Body(Channel::Reasoning) => push_reasoning(events, piece),
            State::Body(Channel::Content) => push_content(events, piece),
            State::Recipient { .. } if is_space(character) && self.call.held.len() < HELD_BYTES_MAX => {
                self.call.held.push(character);
            }
            State::Recipient { name } if character == '{' => {
                Call { state: &mut self.call, events }.begin(None, name);
                self.state = State::Arguments(ObjectScanner::new());
                return Some(piece.to_owned());
            }
            State::Recipient { .. } => {
                self.give_up_recipient(events);
                return Some(piece.to_owned());
            }
            State::Arguments(_) => return Some(piece.to_owned()),
        }
        None
    }

    /// A header is whole.
    fn open_message(&mut self, header: String, events: &mut Vec<AnswerEvent>) {
        let Some(recipient) = recipient(&header) else {
            self.state = State::Body(match is_reasoning(&header) {
                true => Channel::Reasoning,
                false => Channel::Content,
            });
            return;
        };
        let name = recipient.strip_prefix("functions.").unwrap_or(&recipient).to_owned();
        self.call.reset();
        self.call.held = header + "<|message|>";
        if self.tools && is_tool_name(&name) {
            self.state = State::Recipient { name };
        } else {
            self.give_up_recipient(events);
        }
    }

    /// The message to a tool is none: it is content, with its header.
    fn give_up_recipient(&mut self, events: &mut Vec<AnswerEvent>) {
        push_content(events, &std::mem::take(&mut self.call.held));
        self.state = State::Body(Channel::Content);
    }

    /// A header stopped in its middle. One that says nothing is dropped.
    fn give_up_header(&mut self, header: &str, events: &mut Vec<AnswerEvent>) {
        let says_nothing =
            words(header).iter().all(|word| HEADER_WORDS.iter().any(|known| known.starts_with(word)));
        if !says_nothing {
            push_content(events, header);
        }
        self.state = State::Between { first: false };
    }
}

/// The words of a header, without markers.
fn words(header: &str) -> Vec<String> {
    let mut text = header.to_owned();
    for (marker, _) in MARKERS.iter().filter(|(_, marker)| *marker != Marker::Recipient) {
        text = text.replace(marker, " ");
    }
    text.split_whitespace().map(str::to_owned).collect()
}

/// The tool a header names.
fn recipient(header: &str) -> Option<String> {
    let recipient = words(header).into_iter().find_map(|word| word.strip_prefix("to=").map(str::to_owned));
    recipient.filter(|recipient| !PEOPLE.contains(&recipient.as_str()))
}

/// Whether a header is one of reasoning.
fn is_reasoning(header: &str) -> bool {
    let channel = header.split_once("<|channel|>").map(|(_, rest)| words(rest));
    channel.is_some_and(|words| words.first().is_some_and(|word| word == "analysis"))
}
