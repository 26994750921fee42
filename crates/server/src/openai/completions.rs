//! `POST /v1/completions`: a text, or ids, to be continued.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, Response, StatusCode};
use serde_json::{Map, Value, json};

use super::chat::read_model;
use super::sampling::{read_common, read_extension, read_stream};
use super::{logprobs, usage};
use crate::answer::{Answer, Delta, Outcome, Usage};
use crate::backend::{Backend, FinishReason};
use crate::collect::{Collected, LoggedToken, collect_all};
use crate::errors::{ApiError, Shape};
use crate::fields::{Fields, whole};
use crate::format::read_format;
use crate::prepare::{Call, TextRequest};
use crate::reply;
use crate::router::noting;
use crate::sse::{EventBody, StreamWriter, data, progress_comment, progress_value};
use crate::state::ServerState;

/// Most likely tokens of the legacy shape; OpenAI allows five, other servers more.
const LOGPROBS_MAX: i64 = 20;

struct Reply {
    id: String,
    created: u64,
    backend: Arc<dyn Backend>,
    include_usage: bool,
    progress: bool,
    logprobs: bool,
}

struct Started {
    answers: Vec<Answer>,
    stream: bool,
    reply: Reply,
    ignored: Vec<String>,
}

/// Answers a request.
///
/// # Errors
/// If the request is refused, or the answer fails before anything was sent.
pub async fn handle(state: Arc<ServerState>, request: Request<Body>) -> Result<Response<Body>, ApiError> {
    let (call, started) = Call::handle(state, request, start).await?;
    let Started { answers, stream, reply, ignored } = started;
    let response = if stream {
        let writer = TextStream { reply, choices: Vec::new(), usages: Vec::new() };
        EventBody::new(writer, answers, call.state.settings.keep_alive).response("text/event-stream")
    } else {
        let collected = collect_all(answers).await?;
        reply::json(StatusCode::OK, &whole_reply(&reply, &collected))
    };
    Ok(noting(response, &ignored))
}

fn start(call: &Call, body: Value) -> Result<Started, ApiError> {
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
    let reply = Reply {
        id: call.state.identifier("cmpl-"),
        created: crate::state::unix_seconds(),
        backend: call.backend.clone(),
        include_usage,
        progress,
        logprobs: common.logprobs.is_some(),
    };
    let answers = TextRequest { prompt, format, common }.start(call)?;
    Ok(Started { answers, stream, reply, ignored })
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

fn envelope(reply: &Reply) -> Map<String, Value> {
    let Value::Object(envelope) = json!({
        "id": reply.id, "object": "text_completion", "created": reply.created,
        "model": reply.backend.model().name, "system_fingerprint": "coldpress"
    }) else {
        return Map::new();
    };
    envelope
}

fn finish_reason(outcome: &Outcome) -> &'static str {
    if outcome.reason == FinishReason::Length { "length" } else { "stop" }
}

fn whole_reply(reply: &Reply, collected: &[Collected]) -> Value {
    let choice = |(index, one): (usize, &Collected)| {
        let logged = match reply.logprobs {
            true => logprobs::legacy(&*reply.backend, &one.logprobs, &mut 0),
            false => Value::Null,
        };
        json!({
            "index": index, "text": one.content(), "logprobs": logged,
            "finish_reason": finish_reason(&one.outcome)
        })
    };
    let choices: Vec<Value> = collected.iter().enumerate().map(choice).collect();
    let mut value = envelope(reply);
    value.insert("choices".to_owned(), choices.into());
    let total = Usage::joined(collected.iter().map(|one| &one.outcome.usage));
    value.insert("usage".to_owned(), usage(&total));
    value.into()
}

/// What of a choice was not sent yet, and where its text stands.
#[derive(Default)]
struct Choice {
    tokens: Vec<LoggedToken>,
    offset: usize,
}

struct TextStream {
    reply: Reply,
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
        let backend = self.reply.backend.clone();
        let state = self.choice(choice);
        let tokens = std::mem::take(&mut state.tokens);
        let logged = match tokens.is_empty() {
            true => Value::Null,
            false => logprobs::legacy(&*backend, &tokens, &mut state.offset),
        };
        let choices = json!([{ "index": choice, "text": text, "logprobs": logged, "finish_reason": finish }]);
        self.send(choices, None, out);
    }

    fn send(&self, choices: Value, total: Option<Value>, out: &mut String) {
        let mut value = envelope(&self.reply);
        value.insert("choices".to_owned(), choices);
        if self.reply.include_usage {
            value.insert("usage".to_owned(), total.unwrap_or_default());
        }
        data(out, &value.into());
    }
}

impl StreamWriter for TextStream {
    fn begin(&mut self, out: &mut String) {
        out.push_str(": coldpress\n\n");
    }

    fn delta(&mut self, choice: usize, delta: Delta, out: &mut String) {
        match delta {
            Delta::Content(text) => self.chunk(choice, &text, None, out),
            Delta::Token(Some(token), text) => self.choice(choice).tokens.push((token, text)),
            Delta::Finished(outcome) => {
                self.chunk(choice, "", Some(finish_reason(&outcome)), out);
                self.usages.push(outcome.usage);
            }
            other => match progress_value(&other).filter(|_| self.reply.progress) {
                Some(progress) => {
                    let mut value = envelope(&self.reply);
                    value.insert("choices".to_owned(), json!([]));
                    value.insert("coldpress".to_owned(), progress);
                    data(out, &value.into());
                }
                None => progress_comment(out, &other),
            },
        }
    }

    fn end(&mut self, out: &mut String) {
        if self.reply.include_usage {
            let total = usage(&Usage::joined(&self.usages));
            self.send(json!([]), Some(total), out);
        }
        out.push_str("data: [DONE]\n\n");
    }

    fn failed(&mut self, error: &ApiError, out: &mut String) {
        data(out, &error.body(Shape::OpenAi));
        out.push_str("data: [DONE]\n\n");
    }
}
