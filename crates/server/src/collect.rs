//! Whole answers: the deltas of an answer gathered, for clients that do not stream.

use crate::answer::{Answer, Delta, Outcome};
use crate::backend::TokenLogprob;
use crate::errors::{ApiError, ErrorKind};

/// A call of a function.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolCall {
    /// Its name in the conversation.
    pub id: String,
    /// The function.
    pub name: String,
    /// A JSON object.
    pub arguments: String,
}

impl ToolCall {
    /// The arguments, where they are whole; a call that was cut off by the token limit has none that can be used.
    pub fn input(&self) -> Option<serde_json::Value> {
        serde_json::from_str(&self.arguments).ok().filter(serde_json::Value::is_object)
    }

    /// The call as text, for APIs that cannot show half of one.
    pub fn as_text(&self) -> String {
        format!("{}({})", self.name, self.arguments)
    }
}

/// A part of an answer, in the order in which the model wrote it.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// Reasoning.
    Reasoning(String),
    /// Content.
    Content(String),
    /// A call.
    Call(ToolCall),
}

/// A token with its log probability and its whole characters.
pub type LoggedToken = (TokenLogprob, String);

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Collected {
    /// The parts.
    pub parts: Vec<Part>,
    /// Log probabilities of all tokens, if they were asked for.
    pub logprobs: Vec<LoggedToken>,
    /// How it ended.
    pub outcome: Outcome,
}

impl Collected {
    /// All reasoning joined.
    pub fn reasoning(&self) -> String {
        self.parts
            .iter()
            .filter_map(|part| if let Part::Reasoning(text) = part { Some(&**text) } else { None })
            .collect()
    }

    /// All content joined.
    pub fn content(&self) -> String {
        self.parts
            .iter()
            .filter_map(|part| if let Part::Content(text) = part { Some(&**text) } else { None })
            .collect()
    }

    /// All calls.
    pub fn calls(&self) -> Vec<&ToolCall> {
        self.parts
            .iter()
            .filter_map(|part| if let Part::Call(call) = part { Some(call) } else { None })
            .collect()
    }
}

/// Waits for one answer.
///
/// # Errors
/// When it fails.
pub async fn collect(answer: &mut Answer) -> Result<Collected, ApiError> {
    let mut parts: Vec<Part> = Vec::new();
    let mut logprobs = Vec::new();
    while let Some(delta) = answer.next().await {
        match delta {
            Delta::Token(Some(logprob), text) => logprobs.push((logprob, text)),
            Delta::Reasoning(text) => match parts.last_mut() {
                Some(Part::Reasoning(before)) => before.push_str(&text),
                _ => parts.push(Part::Reasoning(text)),
            },
            Delta::Content(text) => match parts.last_mut() {
                Some(Part::Content(before)) => before.push_str(&text),
                _ => parts.push(Part::Content(text)),
            },
            Delta::ToolBegin { id, name, .. } => {
                parts.push(Part::Call(ToolCall { id, name, arguments: String::new() }));
            }
            Delta::ToolArguments { json, .. } => {
                if let Some(Part::Call(call)) = parts.last_mut() {
                    call.arguments.push_str(&json);
                }
            }
            Delta::Finished(outcome) => return Ok(Collected { parts, logprobs, outcome: *outcome }),
            Delta::Failed(error) => return Err(error),
            Delta::Queued(_)
            | Delta::Started(_)
            | Delta::Prefill { .. }
            | Delta::Token(None, _)
            | Delta::ToolEnd { .. } => {}
        }
    }
    Err(ApiError::new(ErrorKind::Internal, "the answer ended without a result"))
}

/// Waits for all answers.
///
/// # Errors
/// When one of them fails; the others end too.
pub async fn collect_all(mut answers: Vec<Answer>) -> Result<Vec<Collected>, ApiError> {
    let mut all = Vec::with_capacity(answers.len());
    for answer in &mut answers {
        all.push(collect(answer).await?);
    }
    Ok(all)
}
