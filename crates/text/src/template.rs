//! Chat templates: messages to a prompt, as transformers renders them.
//!
//! Templates are untrusted programs. They run in minijinja without access to the host, with limits on steps,
//! memory, recursion and output; a template that fails is an error with its line, never another prompt.
//! Settings follow transformers (`utils/chat_template_utils.py`): trim_blocks, lstrip_blocks, loop controls, its
//! `tojson`, `raise_exception` and `strftime_now`. How user text is kept apart from control tokens: `guard.rs`.

use std::io;
use std::sync::OnceLock;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior};
use serde_json::{Map, Value as Json};

use crate::TextError;
use crate::conversation::{self, ArgumentsForm, CallForm, Conversation};
use crate::date::DateTime;
use crate::guard::ControlLookAlikes;
use crate::message::Message;
use crate::render_input::{Marking, RenderInput};
use crate::{python_json, python_methods, python_text, template_source};

/// Steps every render may take, and bytes / 64 it may build; real templates need a few hundred per message.
const BASE_FUEL: u64 = 500_000;

/// Further fuel per byte of input: lets a template copy its input dozens of times.
const FUEL_PER_INPUT_BYTE: u64 = 4;

/// Most fuel of any render; bounds how deep a template can nest values.
const FUEL_LIMIT: u64 = 4_000_000;

/// Stack of the thread that renders. A loop can put a list into a list for every 8 of its steps, and dropping such a value
/// takes up to 400 bytes of stack per level. Address space only: pages are used when touched.
const STACK_BYTES: usize = 256 << 20;

/// Output every render may write, and further output per byte of input.
const BASE_OUTPUT_BYTES: usize = 4 << 20;
const OUTPUT_PER_INPUT_BYTE: usize = 8;

const RECURSION_LIMIT: usize = 200;

const TEMPLATE_NAME: &str = "chat";

/// Context variable that tells filters the mark of user text. No template can name it.
pub(crate) const MARK_VARIABLE: &str = "mark of user text";

/// What a render needs beside the messages.
#[derive(Clone, Debug, Default)]
pub struct RenderOptions {
    /// End the prompt where the assistant's answer begins.
    pub add_generation_prompt: bool,
    /// End the prompt in the last message, right after its content, which the model goes on with (`continue_final_message`
    /// of transformers). Only for [`crate::Tokenizer::encode_chat`].
    pub continue_last: bool,
    /// The date that `strftime_now` gives; without one, a template that asks for the date fails.
    pub date: Option<DateTime>,
    /// The functions the model may call, each an object in OpenAI's form (`{"type": "function", "function": {…}}`).
    pub tools: Option<Vec<Json>>,
    /// Texts to answer from, for templates with retrieval: objects with `title` and `text`.
    pub documents: Option<Vec<Json>>,
    /// Further template variables (`enable_thinking`, `reasoning_effort`). Strings in them count as user text, as
    /// those of `tools` and `documents` do.
    pub extra: Map<String, Json>,
}

/// A chat template, compiled once and rendered many times.
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    bos_token: String,
    eos_token: String,
    call_form: OnceLock<CallForm>,
    /// Takes the place of this one when tools are given.
    tool_use: Option<Box<ChatTemplate>>,
}

impl ChatTemplate {
    /// Compiles the source of `tokenizer.chat_template`; `bos_token` and `eos_token` are the texts the template may
    /// write for them (empty if the model has none).
    ///
    /// # Errors
    /// If the source is too large or does not parse.
    pub fn new(source: &str, bos_token: &str, eos_token: &str) -> Result<ChatTemplate, TextError> {
        let prepared = template_source::prepare(source)?;
        let mut environment = environment();
        environment.add_template_owned(TEMPLATE_NAME, prepared).map_err(|error| {
            TextError::TemplateSyntax { line: error.line().unwrap_or(0), message: describe(&error) }
        })?;
        Ok(ChatTemplate {
            environment,
            source: source.to_owned(),
            bos_token: bos_token.to_owned(),
            eos_token: eos_token.to_owned(),
            call_form: OnceLock::new(),
            tool_use: None,
        })
    }

    /// The source it was made of.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Adds the template that some models bring for requests with tools (`tool_use`).
    ///
    /// # Errors
    /// Those of [`ChatTemplate::new`].
    pub fn with_tool_use(mut self, source: &str) -> Result<ChatTemplate, TextError> {
        let template = ChatTemplate::new(source, &self.bos_token, &self.eos_token)?;
        self.tool_use = Some(Box::new(template));
        Ok(self)
    }

    /// The prompt as text, for inspection. To get ids use [`crate::Tokenizer::encode_chat`]: a prompt that passed through
    /// text can no longer tell the template's control tokens from a user's.
    ///
    /// # Errors
    /// If a message is malformed, the template fails or refuses, or a limit is hit.
    pub fn render(&self, messages: &[Message], options: &RenderOptions) -> Result<String, TextError> {
        let template = self.for_options(options);
        let conversation = Conversation::new(messages, options, template.form_for(messages))?;
        template.render_input(RenderInput::new(&conversation, Marking::None)?, options)
    }

    /// Renders with look-alikes of control tokens in user text broken up; also gives the mark to drop.
    pub(crate) fn render_marked(
        &self,
        messages: &[Message],
        options: &RenderOptions,
        look_alikes: &ControlLookAlikes,
    ) -> Result<(String, char), TextError> {
        let template = self.for_options(options);
        let compiled = template.environment.get_template(TEMPLATE_NAME).expect("added in new()");
        let trusted = [compiled.source(), &template.bos_token, &template.eos_token];
        let conversation = Conversation::new(messages, options, template.form_for(messages))?;
        let mark = crate::render_input::free_mark(&conversation, &trusted)?;
        let input = RenderInput::new(&conversation, Marking::Break { look_alikes, mark })?;
        Ok((template.render_input(input, options)?, mark))
    }

    fn for_options(&self, options: &RenderOptions) -> &ChatTemplate {
        match &self.tool_use {
            Some(template) if options.tools.is_some() || options.extra.contains_key("tools") => template,
            _ => self,
        }
    }

    /// What this template needs of tool calls, found by trying once.
    fn form_for(&self, messages: &[Message]) -> CallForm {
        if !messages.iter().any(conversation::has_form) {
            return CallForm::DEFAULT;
        }
        *self.call_form.get_or_init(|| self.probed_form())
    }

    fn probed_form(&self) -> CallForm {
        // A template that expects text prints an object as Python prints a dictionary, or fails.
        let printed = format!("{{'{}'", conversation::PROBE_NAME);
        let written = |content: Option<&str>, form: CallForm| {
            let (messages, options) = conversation::probe(content);
            let rendered = Conversation::new(&messages, &options, form)
                .and_then(|conversation| RenderInput::new(&conversation, Marking::None))
                .and_then(|input| self.render_input(input, &options));
            rendered.is_ok_and(|text| text.contains(conversation::PROBE_VALUE) && !text.contains(&printed))
        };
        let mut form = CallForm::DEFAULT;
        let text = CallForm { arguments: ArgumentsForm::Text, ..form };
        if !written(Some(""), form) && written(Some(""), text) {
            form = text;
        }
        let filled = CallForm { fills_content: true, ..form };
        if !written(None, form) && written(None, filled) { filled } else { form }
    }

    fn render_input(&self, input: RenderInput, options: &RenderOptions) -> Result<String, TextError> {
        // Values live and die on this thread, so that none can exhaust the stack of the caller's.
        let failed = |reason: String| TextError::TemplateRender { line: 0, message: reason };
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("chat template".to_owned()).stack_size(STACK_BYTES);
            let render = thread.spawn_scoped(scope, || self.render_here(input, options));
            let render = render.map_err(|error| failed(format!("no thread to render it on: {error}")))?;
            render.join().unwrap_or_else(|_| Err(failed("the template engine panicked".to_owned())))
        })
    }

    fn render_here(&self, input: RenderInput, options: &RenderOptions) -> Result<String, TextError> {
        let bytes = input.bytes;
        let mut environment = self.environment.clone();
        let fuel = BASE_FUEL.saturating_add(FUEL_PER_INPUT_BYTE.saturating_mul(bytes as u64));
        environment.set_fuel(Some(fuel.min(FUEL_LIMIT)));
        let date = options.date;
        environment.add_function("strftime_now", move |format: String| strftime(date, &format));
        let template = environment.get_template(TEMPLATE_NAME).expect("added in new()");
        let context = input.into_context([
            ("bos_token", Value::from(self.bos_token.as_str())),
            ("eos_token", Value::from(self.eos_token.as_str())),
            ("add_generation_prompt", Value::from(options.add_generation_prompt)),
        ]);
        let mut out = LimitedOutput {
            bytes: Vec::new(),
            limit: BASE_OUTPUT_BYTES.saturating_add(OUTPUT_PER_INPUT_BYTE.saturating_mul(bytes)),
            exceeded: false,
        };
        let result = template.render_captured_to(context, &mut out).map(drop);
        match result {
            Ok(()) => Ok(String::from_utf8(out.bytes).expect("minijinja writes whole strings")),
            Err(error) => Err(render_error(&error, out.exceeded.then_some(out.limit))),
        }
    }
}

/// An environment set up as transformers sets up Jinja2.
fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.expect("the default delimiters are valid"));
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_recursion_limit(RECURSION_LIMIT);
    environment.set_unknown_method_callback(python_methods::call);
    environment.add_filter("tojson", python_json::tojson);
    environment.add_filter("from_json", python_json::from_json);
    environment.add_filter("indent", python_text::indent);
    environment.add_filter("string", python_text::string);
    environment.add_filter("trim", python_methods::trim);
    environment.set_formatter(python_text::write_value);
    environment.add_test("sequence", is_sequence);
    environment.add_test("iterable", is_iterable);
    environment.add_function("raise_exception", raise_exception);
    environment
}

/// Collects output and refuses more than `limit` bytes.
struct LimitedOutput {
    bytes: Vec<u8>,
    limit: usize,
    exceeded: bool,
}

impl io::Write for LimitedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.limit {
            self.exceeded = true;
            return Err(io::Error::other("output limit"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The `raise_exception` of a template, told apart from failures by its type.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refusal(String);

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Refusal(message)))
}

fn strftime(date: Option<DateTime>, format: &str) -> Result<String, Error> {
    let failed = |message: String| Error::new(ErrorKind::InvalidOperation, message);
    let date =
        date.ok_or_else(|| failed("strftime_now: the template asks for the date and none was given".into()))?;
    date.format(format)
        .map_err(|directive| failed(format!("strftime_now: the directive {directive} is not known")))
}

/// Jinja2 asks for a length and indexing, so that strings and mappings count as well.
fn is_sequence(value: &Value) -> bool {
    let indexed = matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map);
    indexed || value.is_undefined()
}

/// Unlike in minijinja, `none` cannot be iterated.
fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

fn describe(error: &Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

fn render_error(error: &Error, output_limit: Option<usize>) -> TextError {
    let mut line = error.line().unwrap_or(0);
    let mut kind = error.kind();
    let mut message = describe(error);
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if let Some(refusal) = cause.downcast_ref::<Refusal>() {
            return TextError::TemplateRefused { line, message: refusal.0.clone() };
        }
        if let Some(inner) = cause.downcast_ref::<Error>() {
            line = inner.line().unwrap_or(line);
            kind = inner.kind();
            message = format!("{message}: {}", describe(inner));
        }
        source = cause.source();
    }
    if let Some(limit) = output_limit {
        let message = format!("more than {limit} bytes of output for this input");
        return TextError::TemplateTooExpensive { line, message };
    }
    match kind {
        ErrorKind::OutOfFuel => TextError::TemplateTooExpensive { line, message },
        _ => TextError::TemplateRender { line, message },
    }
}
