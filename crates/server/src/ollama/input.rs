//! Requests of the Ollama protocol.

use serde_json::{Map, Value, json};

use crate::backend::{Backend, GrammarSource};
use crate::errors::ApiError;
use crate::fields::{Fields, shown};
use crate::openai::{role_for, template_call};
use crate::prepare::{ChatRequest, Common, TextRequest};

/// Options that belong to the loading of a model, which has happened.
const LOADING: [&str; 14] = [
    "num_ctx",
    "num_batch",
    "num_gpu",
    "main_gpu",
    "num_thread",
    "use_mmap",
    "use_mlock",
    "numa",
    "low_vram",
    "f16_kv",
    "vocab_only",
    "num_keep",
    "draft_num_predict",
    "repeat_last_n",
];

/// What both kinds of request have in common.
pub struct Head {
    /// How tokens are chosen.
    common: Common,
    /// By lines, which is the default.
    pub stream: bool,
    /// Name that the client used.
    pub model: String,
    format: Option<GrammarSource>,
    /// Thinking, and its effort.
    think: (Option<bool>, Option<String>),
}

impl Head {
    /// A conversation.
    pub fn chat(self, messages: Vec<Value>) -> ChatRequest {
        let mut chat = ChatRequest::new(messages, self.common);
        chat.format = self.format.map(|format| ("format", format));
        chat.thinking = self.think.0;
        if let Some(effort) = self.think.1 {
            chat.variables.insert("reasoning_effort".to_owned(), effort.into());
        }
        chat
    }

    /// A text.
    pub fn text(self, prompt: Vec<u32>) -> TextRequest {
        TextRequest { prompt, format: self.format, common: self.common }
    }

    /// Whether log probabilities were asked for.
    pub fn logprobs(&self) -> bool {
        self.common.logprobs.is_some()
    }
}

/// Reads what both kinds of request have in common.
///
/// # Errors
/// If a field is malformed or out of range.
pub fn read_head(fields: &mut Fields, backend: &dyn Backend) -> Result<Head, ApiError> {
    let model = fields.required_string("model")?;
    let served = &backend.model().name;
    if model.strip_suffix(":latest").unwrap_or(&model) != served.strip_suffix(":latest").unwrap_or(served) {
        fields.ignored.push("model".to_owned());
    }
    let stream = fields.flag("stream")?.unwrap_or(true);
    // The defaults that this protocol documents.
    let mut common = Common::new(0.8, 40, 0.9);
    if let Some(options) = fields.object("options")? {
        fields.ignored.extend(read_options(options, &mut common)?);
    }
    let logprobs = fields.flag("logprobs")?.unwrap_or(false);
    let top = fields.integer("top_logprobs", 0, 20)?.unwrap_or(0);
    common.logprobs = logprobs.then_some(usize::try_from(top).unwrap_or(0));
    let format = read_format(fields)?;
    let think = read_think(fields)?;
    drop(fields.take("keep_alive"));
    fields.ignore(&["truncate", "shift"]);
    Ok(Head { common, stream, model, format, think })
}

fn read_options(mut options: Fields, common: &mut Common) -> Result<Vec<String>, ApiError> {
    let sampling = &mut common.sampling;
    if let Some(value) = options.number("temperature", 0.0, 100.0)? {
        sampling.temperature = value;
    }
    if let Some(value) = options.number("top_p", 0.0, 1.0)? {
        sampling.top_p = value.max(f32::MIN_POSITIVE);
    }
    if let Some(value) = options.integer("top_k", -1, i64::from(u32::MAX))? {
        sampling.top_k = usize::try_from(value).unwrap_or(0);
    }
    if let Some(value) = options.number("min_p", 0.0, 1.0)? {
        sampling.min_p = value;
    }
    if let Some(value) = options.number("repeat_penalty", 0.01, 100.0)? {
        sampling.repetition_penalty = value;
    }
    if let Some(value) = options.integer("seed", i64::MIN, i64::MAX)? {
        sampling.seed = value.cast_unsigned();
    }
    if let Some(value) = options.number("frequency_penalty", -2.0, 2.0)? {
        common.sampling.frequency_penalty = value;
    }
    if let Some(value) = options.number("presence_penalty", -2.0, 2.0)? {
        common.sampling.presence_penalty = value;
    }
    match options.integer("num_predict", -2, i64::from(u32::MAX))? {
        Some(0) => return Err(options.error("num_predict", "is 0; it must be 1 or more, or -1 for no limit")),
        Some(number) => common.max_tokens = usize::try_from(number).ok(),
        None => {}
    }
    let stop = options.strings("stop")?;
    common.set_stop("options.stop", stop)?;
    options.ignore(&LOADING);
    for name in ["typical_p", "tfs_z"] {
        if options.number(name, 0.0, 100.0)?.is_some_and(|value| value != 1.0) {
            return Err(options.error(name, "is not supported; 1 leaves it off"));
        }
    }
    if options.integer("mirostat", 0, 2)?.is_some_and(|value| value != 0) {
        return Err(options.error("mirostat", "is not supported; 0 leaves it off"));
    }
    options.ignore(&["mirostat_tau", "mirostat_eta", "penalize_newline"]);
    options.finish()
}

fn read_format(fields: &mut Fields) -> Result<Option<GrammarSource>, ApiError> {
    match fields.take("format") {
        None => Ok(None),
        Some(Value::String(text)) if text.is_empty() => Ok(None),
        Some(Value::String(text)) if text == "json" => Ok(Some(GrammarSource::JsonObject)),
        Some(schema @ Value::Object(_)) => Ok(Some(GrammarSource::JsonSchema(schema))),
        Some(other) => {
            Err(fields
                .error("format", &format!("is {}; it must be \"json\" or a JSON schema", shown(&other))))
        }
    }
}

fn read_think(fields: &mut Fields) -> Result<(Option<bool>, Option<String>), ApiError> {
    match fields.take("think") {
        None => Ok((None, None)),
        Some(Value::Bool(on)) => Ok((Some(on), None)),
        Some(Value::String(effort)) if ["low", "medium", "high", "max"].contains(&effort.as_str()) => {
            Ok((Some(true), Some(effort)))
        }
        Some(_) => {
            Err(fields.error("think", "must be true, false, \"low\", \"medium\", \"high\" or \"max\""))
        }
    }
}

/// A system text and a prompt as messages.
pub fn prompt_messages(system: Option<String>, prompt: String) -> Vec<Value> {
    let system = system.map(|text| json!({ "role": "system", "content": text }));
    system.into_iter().chain([json!({ "role": "user", "content": prompt })]).collect()
}

/// Reads `messages`.
///
/// # Errors
/// If one is malformed or holds something other than text.
pub fn read_messages(fields: &mut Fields, backend: &dyn Backend) -> Result<Vec<Value>, ApiError> {
    let mut read = Vec::new();
    for (number, message) in fields.list("messages")?.unwrap_or_default().into_iter().enumerate() {
        let message = Fields::new(message, &format!("messages[{number}]"))?;
        let (message, ignored) = read_message(message, backend)?;
        read.push(message);
        fields.ignored.extend(ignored);
    }
    Ok(read)
}

fn read_message(mut fields: Fields, backend: &dyn Backend) -> Result<(Value, Vec<String>), ApiError> {
    const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];
    let role = fields.word("role", &ROLES)?.ok_or_else(|| fields.error("role", "is missing"))?;
    let mut message = Map::new();
    message.insert("role".to_owned(), role_for(backend, role).into());
    message.insert("content".to_owned(), fields.string("content")?.unwrap_or_default().into());
    if let Some(thinking) = fields.string("thinking")? {
        message.insert("reasoning_content".to_owned(), thinking.into());
    }
    fields.refuse("images", "is not supported: this model reads text only")?;
    let mut calls = Vec::new();
    for (number, call) in fields.list("tool_calls")?.unwrap_or_default().into_iter().enumerate() {
        let mut call = Fields::new(call, &format!("{}[{number}]", fields.full_name("tool_calls")))?;
        let id = call.string("id")?;
        let mut function = call.object("function")?.ok_or_else(|| call.error("function", "is missing"))?;
        let name = function.required_string("name")?;
        let input = function.take("arguments").unwrap_or_else(|| json!({}));
        calls.push(template_call(id, &name, input));
    }
    if !calls.is_empty() {
        message.insert("tool_calls".to_owned(), calls.into());
    }
    for (from, to) in [("tool_name", "name"), ("name", "name"), ("tool_call_id", "tool_call_id")] {
        if let Some(name) = fields.string(from)? {
            message.insert(to.to_owned(), name.into());
        }
    }
    Ok((message.into(), fields.finish_leniently()))
}
