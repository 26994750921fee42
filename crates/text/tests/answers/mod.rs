//! Reading an answer in a test: the events joined, and checked not to depend on cuts.

use coldpress_text::{AnswerEvent, Dialect, ParserOptions, ToolSignature};
use serde_json::json;

/// Two tools: one with parameters of several types, one without any.
pub fn options() -> ParserOptions {
    let tools = [
        json!({"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {
            "city": {"type": "string"}, "days": {"type": "integer"}, "units": {"type": ["string", "null"]},
            "flags": {"type": "array"}, "code": {"type": "string"},
        }}}}),
        json!({"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}),
    ];
    let signatures = tools.iter().map(|tool| ToolSignature::from_json(tool).expect("a name")).collect();
    ParserOptions { tools: true, starts_in_reasoning: false, signatures }
}

/// The events of a text that comes in these pieces.
pub fn events<'a>(
    dialect: Dialect,
    options: &ParserOptions,
    pieces: impl IntoIterator<Item = &'a str>,
) -> Vec<AnswerEvent> {
    let mut parser = dialect.parser(options.clone());
    let mut all = Vec::new();
    for piece in pieces {
        // A list of its own for each piece, as a server has it.
        let mut events = Vec::new();
        parser.push(piece, &mut events);
        all.append(&mut events);
    }
    parser.finish(&mut all);
    all
}

/// The events as lines: `reasoning: ..`, `content: ..`, `call 0 name (id): arguments`, with ` ..` at the end if the
/// call has no end. Neighbouring pieces of text are joined.
pub fn lines(events: &[AnswerEvent]) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut open: Option<usize> = None;
    let mut calls = 0;
    for event in events {
        match event {
            AnswerEvent::Reasoning(text) => join(&mut lines, "reasoning: ", text),
            AnswerEvent::Content(text) => join(&mut lines, "content: ", text),
            AnswerEvent::ToolCallBegin { index, id, name } => {
                assert_eq!(*index, calls, "calls are numbered in order");
                calls += 1;
                let id = id.as_ref().map(|id| format!(" ({id})")).unwrap_or_default();
                lines.push(format!("call {index} {name}{id}: "));
                open = Some(*index);
            }
            AnswerEvent::ToolCallArguments { index, json } => {
                assert_eq!(open, Some(*index), "arguments belong to the open call");
                lines.last_mut().expect("a call").push_str(json);
            }
            AnswerEvent::ToolCallEnd { index } => {
                assert_eq!(open.take(), Some(*index), "the open call ends");
                lines.last_mut().expect("a call").push('\u{1}');
            }
        }
    }
    for line in &mut lines {
        if line.starts_with("call ") && line.pop_if_end().is_none() {
            line.push_str(" ..");
        }
    }
    lines
}

trait PopIfEnd {
    fn pop_if_end(&mut self) -> Option<()>;
}

impl PopIfEnd for String {
    fn pop_if_end(&mut self) -> Option<()> {
        let kept = self.strip_suffix('\u{1}')?.len();
        self.truncate(kept);
        Some(())
    }
}

fn join(lines: &mut Vec<String>, kind: &str, text: &str) {
    match lines.last_mut() {
        Some(line) if line.starts_with(kind) => line.push_str(text),
        _ => lines.push(format!("{kind}{text}")),
    }
}

/// The lines of an answer, after checking that every single cut and cutting into characters give the same.
#[allow(dead_code, reason = "the property tests make their own cuts")]
pub fn read_with(dialect: Dialect, options: &ParserOptions, text: &str) -> Vec<String> {
    let whole = lines(&events(dialect, options, [text]));
    for (cut, _) in text.char_indices() {
        let (before, after) = text.split_at(cut);
        assert_eq!(lines(&events(dialect, options, [before, after])), whole, "cut after {before:?}");
    }
    let characters = text.split_inclusive(|_| true);
    assert_eq!(lines(&events(dialect, options, characters)), whole, "cut into characters");
    whole
}

/// [`read_with`] the tools of [`options`].
#[allow(dead_code, reason = "the property tests make their own cuts")]
pub fn read(dialect: Dialect, text: &str) -> Vec<String> {
    read_with(dialect, &options(), text)
}
