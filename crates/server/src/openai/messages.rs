//! Messages and tools of chat completions, as chat templates expect them.
//!
//! Content parts are joined, arguments of past calls become objects, `developer` becomes `system` where the model knows no
//! developer. Images, audio and files are refused by their place: a model that cannot see must not pretend to.

use serde_json::{Map, Value, json};

use crate::backend::{Backend, ToolDefinition};
use crate::errors::ApiError;
use crate::fields::{Fields, shown};
use crate::tools::{ToolChoice, add_tool};

/// Joins content: a text, or a list of text parts.
///
/// # Errors
/// If a part is not text.
pub fn text_content(content: Option<Value>, place: &str) -> Result<Option<String>, ApiError> {
    match content {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(Value::Array(parts)) => {
            let mut texts = Vec::with_capacity(parts.len());
            for (number, part) in parts.into_iter().enumerate() {
                texts.push(text_part(part, &format!("{place}[{number}]"))?);
            }
            Ok(Some(texts.join("\n")))
        }
        Some(other) => {
            let message = format!("{place} is {}; it must be a string or a list of parts", shown(&other));
            Err(ApiError::field(place, message))
        }
    }
}

fn text_part(part: Value, place: &str) -> Result<String, ApiError> {
    if let Value::String(text) = part {
        return Ok(text);
    }
    let mut fields = Fields::new(part, place)?;
    let kind = fields.required_string("type")?;
    match kind.as_str() {
        "text" | "input_text" | "output_text" => fields.required_string("text"),
        "refusal" => fields.required_string("refusal"),
        other => Err(ApiError::field(
            place,
            format!("{place} is of type {}: this model reads text only", shown(&other.into())),
        )),
    }
}

/// Arguments of a past call. Templates want an object; text that is none is left alone.
pub fn arguments(value: Value) -> Value {
    match value {
        Value::String(text) => match serde_json::from_str::<Map<String, Value>>(&text) {
            Ok(arguments) => Value::Object(arguments),
            Err(_) if text.trim().is_empty() => json!({}),
            Err(_) => Value::String(text),
        },
        other => other,
    }
}

/// A past call, as templates expect it.
pub fn template_call(id: Option<String>, name: &str, input: Value) -> Value {
    let mut call = json!({ "type": "function", "function": { "name": name, "arguments": arguments(input) } });
    if let Some(id) = id {
        call["id"] = id.into();
    }
    call
}

/// The role `developer` as this model knows it.
pub fn role_for(backend: &dyn Backend, role: &str) -> String {
    if role == "developer" && backend.dialect_name() != "harmony" {
        "system".to_owned()
    } else {
        role.to_owned()
    }
}

/// Reads all messages. Fields that no template reads are added to `ignored`.
///
/// # Errors
/// If a message is malformed or holds something other than text.
pub fn read_messages(
    backend: &dyn Backend,
    messages: Vec<Value>,
    ignored: &mut Vec<String>,
) -> Result<Vec<Value>, ApiError> {
    let read = |(number, message)| read_message(backend, message, &format!("messages[{number}]"), ignored);
    messages.into_iter().enumerate().map(read).collect()
}

fn read_message(
    backend: &dyn Backend,
    message: Value,
    place: &str,
    ignored: &mut Vec<String>,
) -> Result<Value, ApiError> {
    const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];
    let mut fields = Fields::new(message, place)?;
    let role = fields.word("role", &ROLES)?.ok_or_else(|| fields.error("role", "is missing"))?;
    let content = text_content(fields.take("content"), &format!("{place}.content"))?;
    let mut out = Map::new();
    out.insert("role".to_owned(), role_for(backend, role).into());
    let calls = fields.list("tool_calls")?.unwrap_or_default();
    match content {
        Some(text) => drop(out.insert("content".to_owned(), text.into())),
        // Templates ask whether there is content; clients leave it away beside calls.
        None if role == "assistant" => drop(out.insert("content".to_owned(), "".into())),
        None => return Err(fields.error("content", "is missing")),
    }
    if role == "assistant" {
        let names = ["reasoning_content", "reasoning"];
        let mut reasoning = None;
        for name in names {
            reasoning = reasoning.or(fields.string(name)?);
        }
        if let Some(reasoning) = reasoning {
            out.insert("reasoning_content".to_owned(), reasoning.into());
        }
        fields.refuse("function_call", "is the form before tools and is not supported: use tool_calls")?;
        fields.ignore(&["refusal", "audio", "annotations"]);
    }
    if !calls.is_empty() {
        if role != "assistant" {
            return Err(fields.error("tool_calls", "belongs to messages of the assistant"));
        }
        let read = |(number, call)| read_call(call, &format!("{place}.tool_calls[{number}]"));
        let calls: Result<Vec<Value>, ApiError> = calls.into_iter().enumerate().map(read).collect();
        out.insert("tool_calls".to_owned(), calls?.into());
    }
    if role == "tool" {
        let id = fields.required_string("tool_call_id")?;
        out.insert("tool_call_id".to_owned(), id.into());
    }
    if let Some(name) = fields.string("name")? {
        out.insert("name".to_owned(), name.into());
    }
    ignored.extend(fields.finish_leniently());
    Ok(Value::Object(out))
}

fn read_call(call: Value, place: &str) -> Result<Value, ApiError> {
    let mut fields = Fields::new(call, place)?;
    fields.word("type", &["function"])?;
    let id = fields.string("id")?;
    let mut function = fields.object("function")?.ok_or_else(|| fields.error("function", "is missing"))?;
    let name = function.required_string("name")?;
    let input = function.take("arguments").unwrap_or_else(|| json!({}));
    Ok(template_call(id, &name, input))
}

/// Reads the definitions of functions.
///
/// # Errors
/// If one is malformed or not a function.
pub fn read_tools(tools: Vec<Value>) -> Result<Vec<ToolDefinition>, ApiError> {
    let mut read = Vec::with_capacity(tools.len());
    for (number, tool) in tools.into_iter().enumerate() {
        let place = format!("tools[{number}]");
        let mut fields = Fields::new(tool, &place)?;
        let kind = fields.required_string("type")?;
        if kind != "function" {
            let sentence = format!("is {}; only functions can be called", shown(&kind.into()));
            return Err(fields.error("type", &sentence));
        }
        let function = fields.object("function")?.ok_or_else(|| fields.error("function", "is missing"))?;
        fields.finish()?;
        read_function(&mut read, function, &place)?;
    }
    Ok(read)
}

/// Reads `name`, `description`, `parameters` of one function.
///
/// # Errors
/// If one is malformed.
pub fn read_function(
    tools: &mut Vec<ToolDefinition>,
    mut function: Fields,
    place: &str,
) -> Result<(), ApiError> {
    let name = function.required_string("name")?;
    let description = function.string("description")?;
    let parameters = function.take("parameters");
    // Arguments of forced calls always match their schema; those of free ones are the model's.
    drop(function.take("strict"));
    function.finish()?;
    add_tool(tools, place, name, description, parameters)
}

/// Reads `tool_choice`: a word, or a function by name in the shape of chat completions or of responses.
///
/// # Errors
/// If it is something else.
pub fn read_choice(fields: &mut Fields, tools: &[ToolDefinition]) -> Result<ToolChoice, ApiError> {
    const WANTED: &str = "must be none, auto, required or a function by name";
    let choice = match fields.take("tool_choice") {
        None => return Ok(ToolChoice::Auto),
        Some(Value::String(word)) => match word.as_str() {
            "auto" => ToolChoice::Auto,
            "none" => ToolChoice::None,
            "required" => ToolChoice::Required,
            _ => return Err(fields.error("tool_choice", WANTED)),
        },
        Some(Value::Object(choice)) => {
            let named =
                choice.get("function").and_then(|function| function.get("name")).or(choice.get("name"));
            match (choice.get("type").and_then(Value::as_str), named.and_then(Value::as_str)) {
                (Some("function"), Some(name)) => ToolChoice::Named(name.to_owned()),
                (Some("allowed_tools"), _) => {
                    let sentence = "of type allowed_tools is not supported: leave the other tools away";
                    return Err(fields.error("tool_choice", sentence));
                }
                _ => return Err(fields.error("tool_choice", WANTED)),
            }
        }
        Some(_) => return Err(fields.error("tool_choice", WANTED)),
    };
    if tools.is_empty() && !matches!(choice, ToolChoice::Auto | ToolChoice::None) {
        return Err(fields.error("tool_choice", "needs tools"));
    }
    Ok(choice)
}
