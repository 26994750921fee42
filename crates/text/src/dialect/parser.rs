//! The parser of one answer: options, and the loop that feeds characters to a machine.

use std::collections::VecDeque;

use super::call::AnswerEvent;
use super::harmony::HarmonyParser;
use super::marked::MarkedParser;
use super::parameters::{ToolSignature, ToolSignatures};
use super::{Dialect, table};

/// What is known about an answer before it begins.
#[derive(Clone, Debug, Default)]
pub struct ParserOptions {
    /// Look for tool calls. Otherwise their markers are ordinary text.
    pub tools: bool,
    /// The prompt ended inside reasoning, see [`Dialect::prompt_opens_reasoning`].
    pub starts_in_reasoning: bool,
    /// The tools of the request. They say which tagged parameters are strings, and which bare JSON is a call.
    pub signatures: Vec<ToolSignature>,
}

/// Splits the text of one answer into events; see the module `dialect`.
#[derive(Debug)]
pub struct AnswerParser {
    machine: Machine,
}

#[derive(Debug)]
enum Machine {
    Marked(Box<MarkedParser>),
    Harmony(HarmonyParser),
}

impl AnswerParser {
    pub(super) fn new(dialect: Dialect, options: ParserOptions) -> AnswerParser {
        let machine = if dialect == Dialect::Harmony {
            Machine::Harmony(HarmonyParser::new(options.starts_in_reasoning, options.tools))
        } else {
            let syntax = table::syntax(dialect);
            let reasoning = match options.starts_in_reasoning {
                true => Some(table::reasoning_or_default(syntax)),
                false => syntax.reasoning,
            };
            let signatures = ToolSignatures(options.signatures.into());
            Machine::Marked(Box::new(MarkedParser::new(
                syntax,
                reasoning,
                options.starts_in_reasoning,
                options.tools,
                signatures,
            )))
        };
        AnswerParser { machine }
    }

    /// Takes the next piece of text, decoded with control tokens written out and without the token that ends the
    /// answer. Appends what is certain to `events`; a piece may extend the last event of the list.
    pub fn push(&mut self, text: &str, events: &mut Vec<AnswerEvent>) {
        text.chars().for_each(|character| self.take(character, events));
    }

    /// The answer has ended: appends what was held back. Afterwards nothing may be pushed.
    pub fn finish(&mut self, events: &mut Vec<AnswerEvent>) {
        // Each round gives back less than was held, because the marker before it was reported.
        loop {
            let again = match &mut self.machine {
                Machine::Marked(parser) => parser.finish(events),
                Machine::Harmony(parser) => parser.finish(events),
            };
            if again.is_empty() {
                return;
            }
            self.push(&again, events);
        }
    }

    fn take(&mut self, character: char, events: &mut Vec<AnswerEvent>) {
        let again = self.step(character, events);
        if again.is_empty() {
            return;
        }
        let mut waiting: VecDeque<char> = again.chars().collect();
        while let Some(character) = waiting.pop_front() {
            let again = self.step(character, events);
            again.chars().rev().for_each(|character| waiting.push_front(character));
        }
    }

    fn step(&mut self, character: char, events: &mut Vec<AnswerEvent>) -> String {
        match &mut self.machine {
            Machine::Marked(parser) => parser.push(character, events),
            Machine::Harmony(parser) => parser.push(character, events),
        }
    }
}
