//! `POST /v1/completions`: a text, or ids, to be continued.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, Response};
use serde_json::{Value, json};

use super::chat::read_model;
use super::completion::Completion;
use super::logprobs;
use super::sampling::{read_common, read_extension, read_stream};
use crate::answer::{Delta, Outcome, Usage};
use crate::backend::{Backend, FinishReason};
use crate::collect::{Collected, LoggedToken};
use crate::errors::ApiError;
use crate::fields::{Fields, whole};
use crate::format::read_format;
use crate::prepare::{Call, TextRequest};
use crate::reply::{Form, Started};
use crate::sse::StreamWriter;
use crate::state::ServerState;

/// Most likely tokens of the legacy shape; OpenAI allows five, other servers more.
const LOGPROBS_MAX: i64 = 20;

/// The name of its objects, whole and of a chunk.
const OBJECTS: (&str, &str) = ("text_completion", "text_completion");

/// Answers a request.
///
/// # Errors
/// If the request is refused, or the answer fails before anything was sent.
pub async fn handle(state: Arc<ServerState>, request: Request<Body>) -> Result<Response<Body>, ApiError> {
    let (call, started) = Call::handle(state, request, start).await?;
    started.respond(&call).await
}

fn start(call: &Call, body: Value) -> Result<Started<TextForm>, ApiError> {
    let mut fields = Fields::new(body, "")?;
    read_model(&mut fields, &*call.backend)?;
    let mut common = read_common(&mut fields, &call.state.settings)?;
    // The old protocol counts a missing limit as 16 tokens.
    common.max_tokens = common.max_tokens.or(Some(16));
    let top = fields.integer("logprobs", 0, LOGPROBS_MAX)?;
    common.logprobs = top.and_then(|top| usize::try_from(top).ok());
    let format = match fields.object("response_format")? {
        Some(format) => read_format(format)?,
        None => None,
    };
    let (stream, include_usage) = read_stream(&mut fields)?;
    let progress = read_extension(&mut fields)?;
    fields.refuse("echo", "is not supported: the prompt is not sent back")?;
    fields.refuse("suffix", "is not supported: this model continues text and does not fill gaps")?;
    if fields.integer("best_of", 1, 1)?.is_some() {
        fields.ignored.push("best_of".to_owned());
    }
    let prompt = read_prompt(&mut fields, &*call.backend)?;
    let ignored = fields.finish()?;
    let form = TextForm(Completion {
        include_usage,
        progress,
        logprobs: common.logprobs.is_some(),
        ..Completion::new(call, "cmpl-", OBJECTS)
    });
    let answers = TextRequest { prompt, format, common }.start(call)?;
    Ok(Started { answers, stream, form, ignored })
}

/// A text, a list of ids, or a list with one of them.
fn read_prompt(fields: &mut Fields, backend: &dyn Backend) -> Result<Vec<u32>, ApiError> {
    let wrong = |fields: &Fields| fields.error("prompt", "must be one text or one list of token ids");
    let ids = |values: &[Value]| -> Option<Vec<u32>> {
        values.iter().map(|value| whole(value).and_then(|id| u32::try_from(id).ok())).collect()
    };
    match fields.take("prompt") {
        None => Err(fields.error("prompt", "is missing")),
        Some(Value::String(text)) => Ok(backend.encode(&text, true)?),
        Some(Value::Array(values)) => match values.as_slice() {
            [Value::String(text)] => Ok(backend.encode(text, true)?),
            [Value::Array(inner)] => ids(inner).ok_or_else(|| wrong(fields)),
            [Value::String(_) | Value::Array(_), ..] => {
                Err(fields.error("prompt", "holds several prompts: send one request for each"))
            }
            values => ids(values).ok_or_else(|| wrong(fields)),
        },
        Some(_) => Err(wrong(fields)),
    }
}

fn finish_reason(outcome: &Outcome) -> &'static str {
    if outcome.reason == FinishReason::Length { "length" } else { "stop" }
}

/// How completions are written.
struct TextForm(Completion);

impl Form for TextForm {
    type Stream = TextStream;

    fn stream(self) -> TextStream {
        TextStream { completion: self.0, choices: Vec::new(), usages: Vec::new() }
    }

    fn whole(&self, collected: &[Collected]) -> Value {
        let choice = |(index, one): (usize, &Collected)| {
            let logged = match self.0.logprobs {
                true => logprobs::legacy(&*self.0.backend, &one.logprobs, &mut 0),
                false => Value::Null,
            };
            json!({
                "index": index, "text": one.content(), "logprobs": logged,
                "finish_reason": finish_reason(&one.outcome)
            })
        };
        self.0.whole(collected.iter().enumerate().map(choice).collect(), collected)
    }
}

/// What of a choice was not sent yet, and where its text stands.
#[derive(Default)]
struct Choice {
    tokens: Vec<LoggedToken>,
    offset: usize,
}

struct TextStream {
    completion: Completion,
    choices: Vec<Choice>,
    usages: Vec<Usage>,
}

impl TextStream {
    fn choice(&mut self, choice: usize) -> &mut Choice {
        while self.choices.len() <= choice {
            self.choices.push(Choice::default());
        }
        &mut self.choices[choice]
    }

    fn chunk(&mut self, choice: usize, text: &str, finish: Option<&str>, out: &mut String) {
        let backend = self.completion.backend.clone();
        let state = self.choice(choice);
        let tokens = std::mem::take(&mut state.tokens);
        let logged = match tokens.is_empty() {
            true => Value::Null,
            false => logprobs::legacy(&*backend, &tokens, &mut state.offset),
        };
        let choices = json!([{ "index": choice, "text": text, "logprobs": logged, "finish_reason": finish }]);
        self.completion.chunk(choices, out);
    }
}

impl StreamWriter for TextStream {
    fn begin(&mut self, out: &mut String) {
        Completion::begin(out);
    }

    fn delta(&mut self, choice: usize, delta: Delta, out: &mut String) {
        match delta {
            Delta::Content(text) => self.chunk(choice, &text, None, out),
            Delta::Token(Some(token), text) => self.choice(choice).tokens.push((token, text)),
            Delta::Finished(outcome) => {
                self.chunk(choice, "", Some(finish_reason(&outcome)), out);
                self.usages.push(outcome.usage);
            }
            other => self.completion.progress(&other, out),
        }
    }

    fn end(&mut self, out: &mut String) {
        self.completion.end(&self.usages, out);
    }

    fn failed(&mut self, error: &ApiError, out: &mut String) {
        Completion::failed(error, out);
    }
}
