//! One answer: a request of the backend, and what comes of it as protocol-neutral [`Delta`]s.
//!
//! Owns the only place where events become reasoning, content and calls; every protocol and both ways of delivery
//! (stream, whole) read the same deltas. Dropping an [`Answer`] drops its ticket, which ends the request at once.
//! Read next: `prepare.rs` (how requests are made), `sse.rs` and `collect.rs` (who reads deltas).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use serde_json::Value;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::backend::{
    AnswerEvent, AnswerParser, Backend, Event, FinishReason, Finished, Request, Ticket, TokenLogprob,
};
use crate::errors::{ApiError, ErrorKind};
use crate::recall::Heard;
use crate::state::Counters;

/// What an answer cost.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Leading tokens of the prompt that were not computed again.
    pub cached_tokens: usize,
    /// Tokens of the answer.
    pub completion_tokens: usize,
    /// Those of them that are reasoning, its marks included.
    pub reasoning_tokens: usize,
    /// What makes the answer differ from that of exact settings, in words; the same for all answers of a server.
    pub lossy: Vec<String>,
    /// The engine's figures; of the first choice where there are several.
    pub finished: Option<Finished>,
}

impl Usage {
    /// Joins the answers to one prompt: the prompt counts once.
    pub fn joined<'a>(usages: impl IntoIterator<Item = &'a Usage>) -> Usage {
        let mut usages = usages.into_iter();
        let mut sum = usages.next().cloned().unwrap_or_default();
        for usage in usages {
            sum.completion_tokens += usage.completion_tokens;
            sum.reasoning_tokens += usage.reasoning_tokens;
            if let (Some(sum), Some(finished)) = (&mut sum.finished, &usage.finished) {
                sum.bytes_read += finished.bytes_read;
                sum.disk_wait += finished.disk_wait;
                sum.peak_bytes = sum.peak_bytes.max(finished.peak_bytes);
            }
        }
        sum
    }

    /// The figures that no protocol has a field for.
    pub fn extension(&self) -> Value {
        let Some(finished) = &self.finished else { return Value::Null };
        let mut extension = serde_json::json!({
            "bytes_read": finished.bytes_read,
            "hit_rate": finished.hit_rate,
            "disk_wait_ms": finished.disk_wait.as_secs_f64() * 1e3,
            "peak_memory_bytes": finished.peak_bytes,
            "queue_ms": finished.queue_time.as_secs_f64() * 1e3,
            "prefill_ms": finished.prefill_time.as_secs_f64() * 1e3,
            "decode_ms": finished.decode_time.as_secs_f64() * 1e3,
        });
        if !self.lossy.is_empty() {
            extension["lossy"] = serde_json::json!(self.lossy);
        }
        extension
    }
}

/// How an answer ended, and what it cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Why.
    pub reason: FinishReason,
    /// Whether it holds calls.
    pub tool_calls: bool,
    /// What it cost.
    pub usage: Usage,
}

/// A step of an answer. The last one is `Finished` or `Failed`.
#[derive(Clone, Debug, PartialEq)]
pub enum Delta {
    /// It waits behind others.
    Queued(usize),
    /// Its prompt is being computed, these leading tokens excepted.
    Started(usize),
    /// So much of the prompt is done.
    Prefill {
        /// Tokens done.
        done: usize,
        /// Tokens in all.
        total: usize,
    },
    /// A token was chosen; its text follows, now or later.
    Token(Option<TokenLogprob>, String),
    /// Text of the reasoning, never empty.
    Reasoning(String),
    /// Text of the answer, never empty.
    Content(String),
    /// A call begins.
    ToolBegin {
        /// Its number.
        index: usize,
        /// Its name in the conversation.
        id: String,
        /// The function.
        name: String,
    },
    /// A piece of its arguments, never empty.
    ToolArguments {
        /// Its number.
        index: usize,
        /// Part of a JSON object.
        json: String,
    },
    /// The call is complete.
    ToolEnd {
        /// Its number.
        index: usize,
    },
    /// The answer is complete.
    Finished(Box<Outcome>),
    /// There will be no more of it.
    Failed(ApiError),
}

/// How the text of an answer is taken apart.
pub struct Reading {
    /// The parser; `None` takes all text as content.
    pub parser: Option<Box<dyn AnswerParser>>,
    /// Whether the answer ends after its first call.
    pub one_call: bool,
}

/// A call whose arguments have not begun: it becomes a call only if they are an object.
struct HeldCall {
    index: usize,
    id: String,
    name: String,
    json: String,
}

/// See the module header.
pub struct Answer {
    backend: Arc<dyn Backend>,
    heard: Heard,
    events: UnboundedReceiver<Event>,
    ticket: Box<dyn Ticket>,
    reading: Reading,
    counters: Arc<Counters>,
    deltas: VecDeque<Delta>,
    parsed: Vec<AnswerEvent>,
    held: Option<HeldCall>,
    /// Calls that were begun.
    calls: usize,
    /// Calls whose text was not an object and became content.
    refused_calls: usize,
    in_reasoning: bool,
    reasoning_tokens: usize,
    /// The first call is complete and nothing may follow.
    cut: bool,
    ended: bool,
}

impl Answer {
    /// Puts a request into the backend's queue.
    ///
    /// # Errors
    /// When the backend does not take it.
    pub fn submit(
        backend: &Arc<dyn Backend>,
        request: Request,
        reading: Reading,
        counters: &Arc<Counters>,
    ) -> Result<Self, ApiError> {
        let (sender, events) = unbounded_channel();
        // Unbounded, so that the backend never waits for a client; an answer's length bounds it.
        let sink = Box::new(move |event| {
            // Whoever is gone has dropped the ticket too.
            let _ = sender.send(event);
        });
        let ticket = backend.submit(request, sink)?;
        counters.answers_open.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            backend: backend.clone(),
            heard: Heard::default(),
            events,
            ticket,
            reading,
            counters: counters.clone(),
            deltas: VecDeque::new(),
            parsed: Vec::new(),
            held: None,
            calls: 0,
            refused_calls: 0,
            in_reasoning: false,
            reasoning_tokens: 0,
            cut: false,
            ended: false,
        })
    }

    /// The next delta; `None` after the last.
    pub fn poll_delta(&mut self, context: &mut Context<'_>) -> Poll<Option<Delta>> {
        loop {
            if let Some(delta) = self.deltas.pop_front() {
                return Poll::Ready(Some(delta));
            }
            if self.ended {
                return Poll::Ready(None);
            }
            match self.events.poll_recv(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(event)) => self.take(event),
                Poll::Ready(None) => {
                    self.fail(ApiError::new(ErrorKind::Internal, "the engine ended without an answer"));
                }
            }
        }
    }

    /// The next delta; `None` after the last.
    pub async fn next(&mut self) -> Option<Delta> {
        std::future::poll_fn(|context| self.poll_delta(context)).await
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Queued { ahead } => self.deltas.push_back(Delta::Queued(ahead)),
            Event::Started { cached_tokens } => self.deltas.push_back(Delta::Started(cached_tokens)),
            Event::Prefill { done, total } => self.deltas.push_back(Delta::Prefill { done, total }),
            Event::Token { .. } if self.cut => {}
            Event::Token { text, logprob, .. } => {
                self.deltas.push_back(Delta::Token(logprob, text.clone()));
                self.push_text(&text);
                self.reasoning_tokens += usize::from(self.in_reasoning);
            }
            Event::Finished(finished) => self.finish(finished),
            Event::Failed(error) => self.fail(error.into()),
        }
    }

    fn push_text(&mut self, text: &str) {
        let Some(parser) = &mut self.reading.parser else {
            if !text.is_empty() {
                self.deltas.push_back(Delta::Content(text.to_owned()));
            }
            return;
        };
        let mut parsed = std::mem::take(&mut self.parsed);
        parser.push(text, &mut parsed);
        self.translate(&mut parsed);
        self.parsed = parsed;
    }

    fn translate(&mut self, parsed: &mut Vec<AnswerEvent>) {
        for event in parsed.drain(..) {
            if self.cut {
                continue;
            }
            match event {
                AnswerEvent::Reasoning(text) => {
                    self.in_reasoning = true;
                    if !text.is_empty() {
                        self.heard.reasoning(&text);
                        self.deltas.push_back(Delta::Reasoning(text));
                    }
                }
                AnswerEvent::Content(text) => {
                    self.in_reasoning = false;
                    if !text.is_empty() {
                        self.heard.content(&text);
                        self.deltas.push_back(Delta::Content(text));
                    }
                }
                AnswerEvent::ToolCallBegin { index, id, name } => {
                    self.in_reasoning = false;
                    self.held = Some(HeldCall { index, id, name, json: String::new() });
                }
                AnswerEvent::ToolCallArguments { json, .. } => self.arguments(json),
                AnswerEvent::ToolCallEnd { .. } => self.end_call(),
            }
        }
    }

    fn arguments(&mut self, json: String) {
        if let Some(held) = &mut self.held {
            held.json.push_str(&json);
            if held.json.trim_start().starts_with('{') {
                self.begin_call();
            }
        } else if !json.is_empty() && self.calls > 0 {
            self.heard.arguments(&json);
            self.deltas.push_back(Delta::ToolArguments { index: self.calls - 1, json });
        }
    }

    fn begin_call(&mut self) {
        let Some(held) = self.held.take() else { return };
        let index = held.index.saturating_sub(self.refused_calls);
        self.calls = index + 1;
        self.heard.call(&held.name);
        self.heard.arguments(&held.json);
        self.deltas.push_back(Delta::ToolBegin { index, id: held.id, name: held.name });
        self.deltas.push_back(Delta::ToolArguments { index, json: held.json });
    }

    fn end_call(&mut self) {
        if let Some(held) = &mut self.held {
            if held.json.trim().is_empty() {
                held.json = "{}".to_owned();
                self.begin_call();
            } else {
                // Valid JSON perhaps, but no object: clients expect one, so it stays what the model wrote.
                let text = format!("{}({})", held.name, held.json);
                self.refused_calls += 1;
                self.held = None;
                self.deltas.push_back(Delta::Content(text));
                return;
            }
        }
        if self.calls == 0 {
            return;
        }
        self.deltas.push_back(Delta::ToolEnd { index: self.calls - 1 });
        if self.reading.one_call {
            self.cut = true;
            self.ticket.cancel();
        }
    }

    fn finish(&mut self, mut finished: Finished) {
        if !finished.text.is_empty() && !self.cut {
            self.push_text(&std::mem::take(&mut finished.text));
        }
        if let Some(mut parser) = self.reading.parser.take() {
            let mut parsed = std::mem::take(&mut self.parsed);
            parser.finish(&mut parsed);
            self.translate(&mut parsed);
        }
        if self.held.is_some() {
            self.end_call();
        }
        let reason = match &finished.reason {
            FinishReason::Cancelled if self.cut => FinishReason::Stop,
            FinishReason::Cancelled => {
                let message = "the answer was ended by the server";
                return self.fail(ApiError::new(ErrorKind::Unavailable, message));
            }
            reason => reason.clone(),
        };
        let usage = Usage {
            prompt_tokens: finished.prompt_tokens,
            cached_tokens: finished.cached_tokens,
            completion_tokens: finished.completion_tokens,
            reasoning_tokens: self.reasoning_tokens.min(finished.completion_tokens),
            lossy: self.backend.model().lossy.clone(),
            finished: Some(finished),
        };
        self.counters.finished(&usage);
        self.heard.tell(&*self.backend);
        let outcome = Outcome { reason, tool_calls: self.calls > 0, usage };
        self.deltas.push_back(Delta::Finished(Box::new(outcome)));
        self.ended = true;
    }

    fn fail(&mut self, error: ApiError) {
        self.deltas.push_back(Delta::Failed(error));
        self.ended = true;
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.counters.answers_open.fetch_sub(1, Ordering::Relaxed);
        if !self.ended {
            self.counters.answers_abandoned.fetch_add(1, Ordering::Relaxed);
        }
    }
}
