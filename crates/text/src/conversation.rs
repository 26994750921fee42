//! What a template is given: the messages of a request, normalised as transformers normalises them, and its variables.
//!
//! Owns the rules between an OpenAI request and a template: fields that are null are left away, a message's reasoning is
//! there under every name that templates read, `tools` and `documents` exist even if there are none
//! (source: transformers 5, `apply_chat_template` and `render_jinja_template`), and the arguments of tool calls have the
//! form that the template can write. Copies only what it changes. The values are made in `render_input.rs`.

use std::borrow::Cow;

use serde_json::{Map, Value as Json};

use crate::TextError;
use crate::message::Message;
use crate::python_json::json_text;
use crate::template::RenderOptions;

/// How a template wants the arguments of a tool call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArgumentsForm {
    /// As an object, which it writes with `tojson` or field by field. Most templates.
    Object,
    /// As the text of an object, which it writes as it is (DeepSeek V3 and R1).
    Text,
}

/// What a template needs of a message that calls tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallForm {
    pub(crate) arguments: ArgumentsForm,
    /// An answer without content gets an empty one: some templates fail without (Qwen3), others tell the two apart.
    pub(crate) fills_content: bool,
}

impl CallForm {
    pub(crate) const DEFAULT: CallForm = CallForm { arguments: ArgumentsForm::Object, fills_content: false };
}

/// Names under which requests carry a message's reasoning, the one that templates read first.
const REASONING_FIELDS: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// A field of a message or a template variable.
pub(crate) type Field<'a> = (&'a str, Cow<'a, Json>);

/// The input of one render.
pub(crate) struct Conversation<'a> {
    pub(crate) messages: Vec<Vec<Field<'a>>>,
    /// Without `messages`; no name is there twice.
    pub(crate) variables: Vec<Field<'a>>,
}

impl<'a> Conversation<'a> {
    /// # Errors
    /// If a message has no usable role.
    pub(crate) fn new(
        messages: &'a [Message],
        options: &'a RenderOptions,
        form: CallForm,
    ) -> Result<Conversation<'a>, TextError> {
        let mut list = Vec::with_capacity(messages.len());
        for (index, message) in messages.iter().enumerate() {
            message.check_role(index)?;
            list.push(message_fields(message.fields(), form));
        }
        let lists = [("tools", &options.tools), ("documents", &options.documents)];
        let mut variables: Vec<Field<'a>> = Vec::with_capacity(options.extra.len() + lists.len());
        let replaced = |name: &str| lists.iter().any(|(list, value)| *list == name && value.is_some());
        let kept = options.extra.iter().filter(|(name, _)| *name != "messages" && !replaced(name));
        variables.extend(kept.map(|(name, value)| (name.as_str(), Cow::Borrowed(value))));
        for (name, value) in lists {
            match value {
                Some(items) => variables.push((name, Cow::Owned(Json::Array(items.clone())))),
                None if options.extra.contains_key(name) => {}
                None => variables.push((name, Cow::Owned(Json::Null))),
            }
        }
        Ok(Conversation { messages: list, variables })
    }
}

/// Whether a message is one whose form matters: it calls tools, or is an answer without content.
pub(crate) fn has_form(message: &Message) -> bool {
    let present = |name: &str| message.fields().get(name).is_some_and(|value| !value.is_null());
    present("tool_calls") || !present("content")
}

fn message_fields(message: &Map<String, Json>, form: CallForm) -> Vec<Field<'_>> {
    let present = |name: &str| message.get(name).filter(|value| !value.is_null());
    let reasoning = REASONING_FIELDS.iter().find_map(|name| present(name));
    let mut fields: Vec<Field<'_>> = Vec::with_capacity(message.len() + 2);
    if let Some(reasoning) = reasoning {
        fields.push(("thinking", Cow::Borrowed(present("thinking").unwrap_or(reasoning))));
    }
    for (name, value) in message.iter().filter(|(_, value)| !value.is_null()) {
        match (name.as_str(), reasoning) {
            ("thinking", _) => {}
            ("reasoning_content", Some(reasoning)) => fields.push((name, Cow::Borrowed(reasoning))),
            ("tool_calls", _) => fields.push((name, tool_calls(value, form.arguments))),
            _ => fields.push((name, Cow::Borrowed(value))),
        }
    }
    if let Some(reasoning) = reasoning.filter(|_| present("reasoning_content").is_none()) {
        fields.push(("reasoning_content", Cow::Borrowed(reasoning)));
    }
    let answers = message.get("role").is_some_and(|role| role == "assistant");
    if form.fills_content && answers && present("content").is_none() {
        fields.push(("content", Cow::Owned(Json::from(""))));
    }
    fields
}

/// The calls with their arguments in `form`. Arguments are found in `function`, as OpenAI writes calls, or in the call itself.
fn tool_calls(calls: &Json, form: ArgumentsForm) -> Cow<'_, Json> {
    let Json::Array(items) = calls else { return Cow::Borrowed(calls) };
    if !items.iter().any(|call| converted_arguments(call, form).is_some()) {
        return Cow::Borrowed(calls);
    }
    let mut items = items.clone();
    for call in &mut items {
        if let Some(arguments) = converted_arguments(call, form)
            && let Some(place) = arguments_place(call)
        {
            *place = arguments;
        }
    }
    Cow::Owned(Json::Array(items))
}

/// The arguments in the other form, if they need it and can be converted.
fn converted_arguments(call: &Json, form: ArgumentsForm) -> Option<Json> {
    let arguments = call.get("function").unwrap_or(call).get("arguments")?;
    match (form, arguments) {
        // Clients write no arguments as nothing at all.
        (ArgumentsForm::Object, Json::String(text)) if text.trim().is_empty() => {
            Some(Json::Object(Map::new()))
        }
        (ArgumentsForm::Object, Json::String(text)) => {
            serde_json::from_str(text).ok().filter(Json::is_object)
        }
        (ArgumentsForm::Text, Json::Object(_)) => json_text(arguments).map(Json::String),
        _ => None,
    }
}

fn arguments_place(call: &mut Json) -> Option<&mut Json> {
    let holder = if call.get("function").is_some() { call.get_mut("function")? } else { call };
    holder.get_mut("arguments")
}

/// Name and value of the argument in [`probe`].
pub(crate) const PROBE_NAME: &str = "probed_name";
pub(crate) const PROBE_VALUE: &str = "probed value";

/// A short conversation with one tool call, to see how a template writes it, and the options to render it with.
pub(crate) fn probe(content: Option<&str>) -> (Vec<Message>, RenderOptions) {
    let object = |value: Json| Message::from_json(value).expect("an object");
    let arguments: Map<String, Json> =
        [(PROBE_NAME.to_owned(), Json::from(PROBE_VALUE))].into_iter().collect();
    let messages = vec![
        Message::new("user", "question"),
        object(serde_json::json!({"role": "assistant", "content": content, "tool_calls": [
            {"id": "call00000", "type": "function", "function": {"name": "probe", "arguments": arguments}}]})),
        object(
            serde_json::json!({"role": "tool", "tool_call_id": "call00000", "name": "probe", "content": "result"}),
        ),
    ];
    let tool = serde_json::json!({"type": "function", "function": {"name": "probe", "description": "",
        "parameters": {"type": "object", "properties": {}, "required": []}}});
    let options = RenderOptions {
        date: Some(crate::DateTime::from_unix_seconds(0)),
        tools: Some(vec![tool]),
        ..RenderOptions::default()
    };
    (messages, options)
}
