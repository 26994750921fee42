//! From a protocol's request to answers: encode, compile, submit.
//!
//! Owns [`Call`] (who asks what) and the protocol-neutral requests [`ChatRequest`] and [`TextRequest`]. Everything here may
//! take long for long inputs, so it runs on the blocking threads. Read next: `answer.rs`.

use std::sync::Arc;

use axum::body::Body;
use axum::http::header::CONTENT_ENCODING;
use axum::http::{Request, StatusCode};
use coldpress::{Message, Sampling};
use serde_json::{Map, Value};

use crate::answer::{Answer, Reading};
use crate::backend::{self, Backend, ChatOptions, GrammarSource, ParserOptions, ToolDefinition};
use crate::errors::{ApiError, ErrorKind};
use crate::limits::{BodyBytes, read_body};
use crate::recall::restore_reasoning;
use crate::state::{ServerState, random};
use crate::tools::{ForcedCall, ToolChoice};

/// Header by which several clients behind one address are told apart.
const CLIENT_HEADER: &str = "x-coldpress-client";
const CLIENT_BYTES_MAX: usize = 128;

/// Address of the other side, put into every request by the accept loop.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub std::net::SocketAddr);

/// A request that has arrived: the model that answers it and who asks.
#[derive(Clone)]
pub struct Call {
    /// The server.
    pub state: Arc<ServerState>,
    /// The model.
    pub backend: Arc<dyn Backend>,
    /// Whose turn it is, for the fair queue.
    pub client: String,
}

impl Call {
    /// Receives the body of a request.
    ///
    /// # Errors
    /// If there is no model yet, or the body breaks a limit.
    pub async fn receive(
        state: Arc<ServerState>,
        request: Request<Body>,
    ) -> Result<(Self, BodyBytes), ApiError> {
        let backend = state.backend()?;
        let named = request.headers().get(CLIENT_HEADER).and_then(|value| value.to_str().ok());
        let client = match (named, request.extensions().get::<Peer>()) {
            (Some(name), _) => name.chars().take(CLIENT_BYTES_MAX).collect(),
            (None, Some(peer)) => peer.0.ip().to_string(),
            (None, None) => String::new(),
        };
        let encoding =
            request.headers().get(CONTENT_ENCODING).map(|value| value.to_str().unwrap_or_default());
        if let Some(encoding) = encoding.filter(|encoding| !encoding.eq_ignore_ascii_case("identity")) {
            return Err(ApiError {
                status: Some(StatusCode::UNSUPPORTED_MEDIA_TYPE),
                ..ApiError::new(
                    ErrorKind::Invalid,
                    format!("content-encoding {encoding:?} is not supported: send the body as it is"),
                )
            });
        }
        let body = read_body(request.into_body(), &*backend, &state.body_bytes, &state.settings).await?;
        Ok((Self { state, backend, client }, body))
    }

    /// Receives a body and works on its JSON on a thread that may block.
    ///
    /// # Errors
    /// Those of [`Call::receive`], of parsing, and of `work`.
    pub async fn handle<T: Send + 'static>(
        state: Arc<ServerState>,
        request: Request<Body>,
        work: impl FnOnce(&Call, Value) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<(Self, T), ApiError> {
        let (call, mut body) = Self::receive(state, request).await?;
        let handle = tokio::task::spawn_blocking(move || {
            let value = body.parse()?;
            let result = work(&call, value);
            // Counted until here: what was parsed is as large as the text.
            drop(body);
            result.map(|result| (call, result))
        });
        handle.await.unwrap_or_else(|_| {
            Err(ApiError::new(
                ErrorKind::Internal,
                "handling the request failed; this is a defect of the server",
            ))
        })
    }
}

/// What all answers have in common.
#[derive(Clone, Debug)]
pub struct Common {
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Most tokens; `None` for the rest of the context.
    pub max_tokens: Option<usize>,
    /// Texts that end the answer.
    pub stop: Vec<String>,
    /// Added to logits.
    pub logit_bias: Vec<(u32, f32)>,
    /// Log probabilities of so many likely tokens.
    pub logprobs: Option<usize>,
    /// Number of answers.
    pub choices: usize,
}

impl Common {
    /// With these temperature, top-k and top-p, and a seed that nobody can foresee.
    pub fn new(temperature: f32, top_k: usize, top_p: f32) -> Self {
        let sampling = Sampling { temperature, top_k, top_p, seed: random(), ..Sampling::default() };
        Self {
            sampling,
            max_tokens: None,
            stop: Vec::new(),
            logit_bias: Vec::new(),
            logprobs: None,
            choices: 1,
        }
    }

    /// Stop strings, of which none may be empty.
    ///
    /// # Errors
    /// If one is empty or there are too many.
    pub fn set_stop(&mut self, field: &str, stop: Vec<String>) -> Result<(), ApiError> {
        const STOP_MAX: usize = 64;
        if stop.len() > STOP_MAX {
            return Err(ApiError::field(
                field,
                format!("{field} has {} texts; at most {STOP_MAX}", stop.len()),
            ));
        }
        if stop.iter().any(String::is_empty) {
            return Err(ApiError::field(
                field,
                format!("{field} holds an empty text; it would end every answer"),
            ));
        }
        self.stop = stop;
        Ok(())
    }
}

/// A conversation to be answered.
#[derive(Clone, Debug)]
pub struct ChatRequest {
    /// Messages as templates expect them.
    pub messages: Vec<Value>,
    /// The functions.
    pub tools: Vec<ToolDefinition>,
    /// Which of them.
    pub choice: ToolChoice,
    /// Whether several calls may be made at once.
    pub parallel_calls: bool,
    /// Thinking on or off.
    pub thinking: Option<bool>,
    /// Further variables of the template.
    pub variables: Map<String, Value>,
    /// The last message is the assistant's and is to be continued.
    pub continue_last: bool,
    /// What the answer must match, and the field that says so.
    pub format: Option<(&'static str, GrammarSource)>,
    /// The rest.
    pub common: Common,
}

impl ChatRequest {
    /// A conversation without anything special.
    pub fn new(messages: Vec<Value>, common: Common) -> Self {
        Self {
            messages,
            tools: Vec::new(),
            choice: ToolChoice::Auto,
            parallel_calls: true,
            thinking: None,
            variables: Map::new(),
            continue_last: false,
            format: None,
            common,
        }
    }

    /// Ids of the prompt.
    ///
    /// # Errors
    /// If there is no template, it refuses, or the prompt is too long.
    pub fn encode(&self, backend: &dyn Backend) -> Result<Vec<u32>, ApiError> {
        if !backend.has_chat_template() {
            return Err(ApiError::new(
                ErrorKind::Template,
                "this model has no chat template; use /v1/completions or /api/generate with raw",
            ));
        }
        if self.messages.is_empty() {
            return Err(ApiError::field("messages", "messages is empty; there must be at least one"));
        }
        let mut messages = self.messages.clone();
        restore_reasoning(&mut messages, backend);
        let messages: Result<Vec<Message>, _> = messages.into_iter().map(Message::from_json).collect();
        let messages = messages.map_err(|error| ApiError::field("messages", error.to_string()))?;
        let tools: Vec<Value> = self.offered().iter().map(ToolDefinition::for_template).collect();
        let options = ChatOptions {
            tools: (!tools.is_empty()).then_some(tools),
            thinking: self.thinking,
            variables: self.variables.clone(),
            continue_last: self.continue_last,
        };
        Ok(backend.encode_chat(&messages, &options)?)
    }

    /// The functions that the model is told of.
    fn offered(&self) -> &[ToolDefinition] {
        if self.choice == ToolChoice::None { &[] } else { &self.tools }
    }

    /// Puts the request into the queue, once per choice.
    ///
    /// # Errors
    /// Those of [`ChatRequest::encode`], of grammars, and when the backend does not take it.
    pub fn start(self, call: &Call) -> Result<Vec<Answer>, ApiError> {
        self.start_counted(call).map(|(_, answers)| answers)
    }

    /// The same, with the number of the prompt's tokens.
    ///
    /// # Errors
    /// Those of [`ChatRequest::start`].
    pub fn start_counted(self, call: &Call) -> Result<(usize, Vec<Answer>), ApiError> {
        let backend = &*call.backend;
        let forced = ForcedCall::new(&self.choice, &self.tools)?;
        if let (Some((field, _)), false) = (&self.format, self.offered().is_empty()) {
            let sentence =
                "cannot be enforced together with tools: leave one of them away, or set tool_choice to none";
            return Err(ApiError::field(field, format!("{field} {sentence}")));
        }
        let prompt = self.encode(backend)?;
        let starts_in_reasoning = backend.starts_in_reasoning(&prompt);
        let tools: Arc<[ToolDefinition]> =
            if forced.is_some() { [].into() } else { self.offered().to_vec().into() };
        let grammar = forced.as_ref().map(|forced| &forced.grammar);
        let grammar = grammar.or(self.format.as_ref().map(|(_, grammar)| grammar));
        let reading = || {
            let parser = backend.parser(ParserOptions { tools: tools.clone(), starts_in_reasoning });
            let parser = match &forced {
                Some(forced) => forced.parser(parser),
                None => parser,
            };
            Reading { parser: Some(parser), one_call: !self.parallel_calls }
        };
        let answers = submit(call, &prompt, &self.common, grammar, starts_in_reasoning, true, reading)?;
        Ok((prompt.len(), answers))
    }
}

/// A text to be continued.
#[derive(Clone, Debug)]
pub struct TextRequest {
    /// Ids of the text.
    pub prompt: Vec<u32>,
    /// What the continuation must match.
    pub format: Option<GrammarSource>,
    /// The rest.
    pub common: Common,
}

impl TextRequest {
    /// Puts the request into the queue, once per choice.
    ///
    /// # Errors
    /// Those of grammars, and when the backend does not take it.
    pub fn start(self, call: &Call) -> Result<Vec<Answer>, ApiError> {
        let reading = || Reading { parser: None, one_call: false };
        submit(call, &self.prompt, &self.common, self.format.as_ref(), false, false, reading)
    }
}

fn submit(
    call: &Call,
    prompt: &[u32],
    common: &Common,
    grammar: Option<&GrammarSource>,
    after_reasoning: bool,
    chat: bool,
    mut reading: impl FnMut() -> Reading,
) -> Result<Vec<Answer>, ApiError> {
    let context = call.backend.context();
    if prompt.is_empty() {
        return Err(ApiError::new(ErrorKind::Invalid, "the prompt is empty: there is nothing to continue"));
    }
    if prompt.len() >= context {
        return Err(ApiError::context_length(prompt.len(), context));
    }
    let room = context - prompt.len();
    let mut answers = Vec::with_capacity(common.choices);
    for choice in 0..common.choices as u64 {
        let constraint =
            grammar.map(|grammar| call.backend.compile_grammar(grammar, after_reasoning)).transpose()?;
        let seed = common.sampling.seed.wrapping_add(choice);
        let request = backend::Request {
            prompt: prompt.to_vec(),
            client: call.client.clone(),
            sampling: Sampling { seed, ..common.sampling },
            max_tokens: common.max_tokens.unwrap_or(room).min(room),
            stop: common.stop.clone(),
            logit_bias: common.logit_bias.clone(),
            logprobs: common.logprobs,
            constraint,
            show_control: chat,
            continuation: !chat,
        };
        answers.push(Answer::submit(&call.backend, request, reading(), &call.state.counters)?);
    }
    Ok(answers)
}
