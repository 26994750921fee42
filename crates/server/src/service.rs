//! The engine's service as a [`Backend`].
//!
//! Owns the translation between the engine's types and those of the HTTP layer, and nothing else.

use coldpress::service::{self, ServiceClient};
use coldpress::text::{self, DecodeOptions};
use coldpress::{Bytes, EngineError, Message};
use serde_json::{Value, json};

use crate::backend::{
    AnswerEvent, AnswerParser, Backend, BackendError, BackendStatus, ChatOptions, Constraint, Event,
    Finished, GrammarSource, Held, ModelDescription, ParserOptions, Request, Sink, SubmitError, Ticket,
};
use crate::heat::packed;
use crate::tools::call_identifier;

/// Tokens at the end of a prompt in which a mark of reasoning is looked for; the longest mark known takes eight.
const PROMPT_TAIL_TOKENS: usize = 32;

/// A running service of the engine.
pub struct ServiceBackend {
    client: ServiceClient,
    model: ModelDescription,
}

impl ServiceBackend {
    /// Serves this service's model under `name`; what the plan and the template do not tell stays "unknown".
    pub fn new(client: ServiceClient, name: &str) -> Self {
        let (summary, dialect) = (&client.plan().model, client.dialect());
        let template = client.encoder().template().map(|template| template.source().to_owned());
        let model = ModelDescription {
            name: name.to_owned(),
            family: summary.family.clone(),
            parameter_size: "unknown".to_owned(),
            quantization: "unknown".to_owned(),
            file_bytes: summary.tensor_bytes.0,
            trained_context: summary.trained_context,
            embedding_length: 0,
            tools: dialect.has_tools() && template.is_some(),
            thinking: dialect.reasoning_markers().is_some(),
            lossy: client.plan().lossy.clone(),
            template,
            loaded_at: crate::state::unix_seconds(),
        };
        Self { client, model }
    }

    /// Changes what is told about the model.
    #[must_use]
    pub fn describe(mut self, change: impl FnOnce(&mut ModelDescription)) -> Self {
        change(&mut self.model);
        self
    }

    fn submit_error(&self, error: service::SubmitError) -> SubmitError {
        match error {
            service::SubmitError::QueueFull { waiting, limit } => SubmitError::QueueFull { waiting, limit },
            service::SubmitError::TooLong { prompt, context } => SubmitError::TooLong { prompt, context },
            service::SubmitError::NoRoom { needed, free } => {
                let pool = self.client.status().requests.most;
                if needed > pool {
                    SubmitError::NoRoom { needed: needed.0, pool: pool.0 }
                } else {
                    SubmitError::NoRoomNow { needed: needed.0, free: free.0 }
                }
            }
            service::SubmitError::BadOption(message) => SubmitError::BadOption(message),
            service::SubmitError::Stopped => SubmitError::Stopped,
            error @ service::SubmitError::Failed { .. } => SubmitError::Failed(error.to_string()),
        }
    }
}

struct ServiceTicket(service::Ticket);

impl Ticket for ServiceTicket {
    fn cancel(&self) {
        self.0.cancel();
    }
}

struct ServiceHeld {
    held: service::Held,
    client: ServiceClient,
}

impl Held for ServiceHeld {
    fn grow(&mut self, more: u64) -> Result<(), SubmitError> {
        let pool = self.client.status().requests.most.0;
        self.held.grow(Bytes(more)).map_err(|error| match error {
            service::SubmitError::NoRoom { needed, .. } if self.held.bytes().0 + needed.0 > pool => {
                SubmitError::NoRoom { needed: self.held.bytes().0 + needed.0, pool }
            }
            service::SubmitError::NoRoom { needed, free } => {
                SubmitError::NoRoomNow { needed: needed.0, free: free.0 }
            }
            error => SubmitError::BadOption(error.to_string()),
        })
    }
}

/// What the client can do about an error of the engine.
fn backend_error(error: &EngineError) -> BackendError {
    let message = error.to_string();
    match error {
        EngineError::Template(_) => BackendError::Template(message),
        EngineError::PromptTooLong { prompt, context } => {
            BackendError::TooLong { prompt: *prompt, context: *context }
        }
        EngineError::TextTooLong { .. } => BackendError::TextTooLong(message),
        EngineError::Grammar(_) => BackendError::Grammar(message),
        EngineError::BadOption(_) => BackendError::BadOption(message),
        EngineError::Memory(_) | EngineError::DoesNotFit(_) | EngineError::NotAvailable(_) => {
            BackendError::OutOfBudget(message)
        }
        EngineError::Cancelled => BackendError::Stopped,
        EngineError::Defect { .. } => BackendError::Failed(message),
        _ => BackendError::Internal(message),
    }
}

fn event(event: service::Event) -> Event {
    match event {
        service::Event::Queued { ahead } => Event::Queued { ahead },
        service::Event::Started { cached_tokens } => Event::Started { cached_tokens },
        service::Event::Prefill { done, total } => Event::Prefill { done, total },
        service::Event::Token { id, text, logprob } => Event::Token { id, text, logprob },
        service::Event::Finished(finished) => Event::Finished(end(*finished)),
        service::Event::Failed(error) => Event::Failed(backend_error(&error)),
    }
}

fn end(finished: service::Finished) -> Finished {
    Finished {
        reason: finished.ending,
        text: finished.text,
        prompt_tokens: finished.prompt_tokens,
        cached_tokens: finished.cached_tokens,
        completion_tokens: finished.completion_tokens,
        queue_time: finished.queued,
        prefill_time: finished.prefill,
        decode_time: finished.decode,
        // A share of what a pass read: whole bytes are exact enough.
        bytes_read: finished.share.bytes_read as u64,
        hit_rate: finished.share.hit_rate(),
        disk_wait: finished.share.disk_wait,
        peak_bytes: finished.peak.0,
    }
}

struct DialectParser {
    parser: text::AnswerParser,
    parts: Vec<text::AnswerEvent>,
}

impl DialectParser {
    fn translate(&mut self, events: &mut Vec<AnswerEvent>) {
        events.extend(self.parts.drain(..).map(|part| match part {
            text::AnswerEvent::Reasoning(text) => AnswerEvent::Reasoning(text),
            text::AnswerEvent::Content(text) => AnswerEvent::Content(text),
            text::AnswerEvent::ToolCallBegin { index, id, name } => {
                let id = id.unwrap_or_else(call_identifier);
                AnswerEvent::ToolCallBegin { index, id, name }
            }
            text::AnswerEvent::ToolCallArguments { index, json } => {
                AnswerEvent::ToolCallArguments { index, json }
            }
            text::AnswerEvent::ToolCallEnd { index } => AnswerEvent::ToolCallEnd { index },
        }));
    }
}

impl AnswerParser for DialectParser {
    fn push(&mut self, text: &str, events: &mut Vec<AnswerEvent>) {
        self.parser.push(text, &mut self.parts);
        self.translate(events);
    }

    fn finish(&mut self, events: &mut Vec<AnswerEvent>) {
        self.parser.finish(&mut self.parts);
        self.translate(events);
    }
}

impl Backend for ServiceBackend {
    fn submit(&self, request: Request, mut sink: Sink) -> Result<Box<dyn Ticket>, SubmitError> {
        let constraint = match request.constraint {
            None => None,
            Some(constraint) => match constraint.0.downcast::<service::Constrained>() {
                Ok(constraint) => Some(*constraint),
                Err(_) => {
                    return Err(SubmitError::BadOption("the grammar was made for another model".to_owned()));
                }
            },
        };
        let mut asked = service::Request::new(request.prompt, request.max_tokens);
        asked.client = request.client;
        asked.sampling = request.sampling;
        asked.stop = request.stop;
        asked.logit_bias = request.logit_bias;
        asked.logprobs = request.logprobs;
        asked.constraint = constraint;
        asked.decode =
            DecodeOptions { show_control: request.show_control, continuation: request.continuation };
        let sink = Box::new(move |told| sink(event(told)));
        let ticket = self.client.submit(asked, sink).map_err(|error| self.submit_error(error))?;
        Ok(Box::new(ServiceTicket(ticket)))
    }

    fn encode(&self, text: &str, parse_special: bool) -> Result<Vec<u32>, BackendError> {
        self.client.encoder().encode(text, parse_special).map_err(|error| backend_error(&error))
    }

    fn decode(&self, ids: &[u32]) -> String {
        let tokenizer = self.client.encoder().tokenizer();
        let known: Vec<u32> =
            ids.iter().copied().filter(|&id| (id as usize) < tokenizer.vocab_size()).collect();
        tokenizer.decode_with(&known, DecodeOptions { show_control: true, continuation: true })
    }

    fn token_bytes(&self, id: u32) -> Vec<u8> {
        let tokenizer = self.client.encoder().tokenizer();
        if (id as usize) < tokenizer.vocab_size() { tokenizer.token_bytes(id).to_vec() } else { Vec::new() }
    }

    fn has_chat_template(&self) -> bool {
        self.client.encoder().template().is_some()
    }

    fn encode_chat(&self, messages: &[Message], options: &ChatOptions) -> Result<Vec<u32>, BackendError> {
        self.client.encode_chat(messages, options).map_err(|error| backend_error(&error))
    }

    fn template_reads(&self, variable: &str) -> Option<bool> {
        Some(self.client.encoder().template()?.source().contains(variable))
    }

    fn dialect_name(&self) -> &str {
        self.client.dialect().name()
    }

    fn parser(&self, options: ParserOptions) -> Box<dyn AnswerParser> {
        let signature =
            |tool: &crate::backend::ToolDefinition| text::ToolSignature::from_json(&tool.for_template());
        let parser = self.client.dialect().parser(text::ParserOptions {
            tools: !options.tools.is_empty(),
            starts_in_reasoning: options.starts_in_reasoning,
            signatures: options.tools.iter().filter_map(signature).collect(),
        });
        Box::new(DialectParser { parser, parts: Vec::new() })
    }

    fn starts_in_reasoning(&self, prompt: &[u32]) -> bool {
        let tail = &prompt[prompt.len().saturating_sub(PROMPT_TAIL_TOKENS)..];
        self.client.dialect().prompt_opens_reasoning(&self.decode(tail))
    }

    fn compile_grammar(
        &self,
        source: &GrammarSource,
        after_reasoning: bool,
    ) -> Result<Constraint, BackendError> {
        let mut constraint = self.client.constraint(source).map_err(|error| match error {
            service::ConstraintError::Refused(error) => backend_error(&error),
            service::ConstraintError::NoRoom(error) => BackendError::OutOfBudget(error.to_string()),
        })?;
        if after_reasoning {
            let close = self.client.dialect().reasoning_markers().map(|(_, close)| close);
            constraint = constraint.after_reasoning(close);
        }
        Ok(Constraint(Box::new(constraint)))
    }

    fn context(&self) -> usize {
        self.client.context()
    }

    fn model(&self) -> &ModelDescription {
        &self.model
    }

    fn failure(&self) -> Option<String> {
        self.client.failure().map(str::to_owned)
    }

    fn experts(&self) -> Option<Value> {
        let telemetry = self.client.status().telemetry?;
        let layers = telemetry.layers.iter();
        let layers = layers.map(|layer| layer.iter().map(|expert| (expert.uses, expert.hits)));
        Some(json!({ "layers": packed(layers), "passes": telemetry.passes, "bytes": telemetry.bytes }))
    }

    fn vocabulary(&self) -> Option<usize> {
        Some(self.client.encoder().tokenizer().vocab_size())
    }

    fn status(&self) -> BackendStatus {
        let mut status = self.client.status();
        // What grows with the number of experts is sent on request only.
        let telemetry = status.telemetry.take();
        let (ledger, experts) = (&status.runtime.ledger, status.runtime.experts.as_ref());
        let mut detail = serde_json::to_value(&status).unwrap_or_default();
        if let Some(telemetry) = telemetry {
            detail["telemetry"] = json!({ "bytes": telemetry.bytes });
        }
        BackendStatus {
            running: status.running.len(),
            waiting: status.waiting,
            budget_bytes: ledger.budget.0,
            held_bytes: ledger.used.0,
            peak_bytes: ledger.peak.0,
            memory: ledger
                .used_for
                .iter()
                .map(|(purpose, bytes)| (purpose.name().to_owned(), bytes.0))
                .collect(),
            expert_hits: experts.map_or(0, |experts| experts.hits),
            expert_misses: experts.map_or(0, |experts| experts.misses),
            bytes_read: experts.map_or(0, |experts| experts.bytes_read.0),
            detail,
        }
    }

    fn learn_reasoning(&self, content: &str, calls: &str, reasoning: &str) {
        self.client.learn_reasoning(content, calls, reasoning);
    }

    fn reasoning_of(&self, content: &str, calls: &str) -> Option<String> {
        self.client.reasoning_of(content, calls)
    }

    fn hold(&self, bytes: u64) -> Result<Box<dyn Held>, SubmitError> {
        let held = self.client.hold(Bytes(bytes)).map_err(|error| self.submit_error(error))?;
        Ok(Box::new(ServiceHeld { held, client: self.client.clone() }))
    }
}
