//! Input items of the Responses API, as chat templates expect messages.
//!
//! Reasoning, text and calls of one turn are separate items there and one message here.

use serde_json::{Map, Value, json};

use super::messages::{read_function, role_for, template_call, text_content};
use crate::backend::{Backend, ToolDefinition};
use crate::errors::ApiError;
use crate::fields::{Fields, shown};

/// Tools that run at OpenAI. Clients offer them unasked, so they are left away by name.
const HOSTED: [&str; 14] = [
    "web_search",
    "web_search_preview",
    "web_search_2025_08_26",
    "file_search",
    "computer",
    "computer_use",
    "computer_use_preview",
    "code_interpreter",
    "image_generation",
    "local_shell",
    "shell",
    "mcp",
    "tool_search",
    "namespace",
];

/// Reads `instructions` and `input` into messages.
///
/// # Errors
/// If an item is malformed or holds something other than text.
pub fn read_input(fields: &mut Fields, backend: &dyn Backend) -> Result<Vec<Value>, ApiError> {
    let mut messages = Vec::new();
    if let Some(instructions) = fields.string("instructions")? {
        messages.push(json!({ "role": "system", "content": instructions }));
    }
    match fields.take("input") {
        None => return Err(fields.error("input", "is missing")),
        Some(Value::String(text)) => messages.push(json!({ "role": "user", "content": text })),
        Some(Value::Array(items)) => {
            let mut turn = Map::new();
            for (number, item) in items.into_iter().enumerate() {
                let place = format!("input[{number}]");
                read_item(item, &place, backend, &mut turn, &mut messages, &mut fields.ignored)?;
            }
            close(&mut turn, &mut messages);
        }
        Some(other) => {
            let sentence = format!("is {}; it must be a string or a list of items", shown(&other));
            return Err(fields.error("input", &sentence));
        }
    }
    Ok(messages)
}

/// Ends the assistant's message that is being put together.
fn close(turn: &mut Map<String, Value>, messages: &mut Vec<Value>) {
    if turn.is_empty() {
        return;
    }
    let mut message = Map::new();
    message.insert("role".to_owned(), "assistant".into());
    message.insert("content".to_owned(), turn.remove("content").unwrap_or_else(|| "".into()));
    message.append(turn);
    messages.push(message.into());
}

/// Adds text to a field of the assistant's message.
fn add_text(turn: &mut Map<String, Value>, name: &str, text: &str) {
    let before = turn.get(name).and_then(Value::as_str).unwrap_or_default();
    let joined = if before.is_empty() { text.to_owned() } else { format!("{before}\n{text}") };
    turn.insert(name.to_owned(), joined.into());
}

fn read_item(
    item: Value,
    place: &str,
    backend: &dyn Backend,
    turn: &mut Map<String, Value>,
    messages: &mut Vec<Value>,
    ignored: &mut Vec<String>,
) -> Result<(), ApiError> {
    let mut fields = Fields::new(item, place)?;
    let kind = fields.string("type")?.unwrap_or_else(|| "message".to_owned());
    for name in ["id", "status", "phase"] {
        drop(fields.take(name));
    }
    match kind.as_str() {
        "message" => {
            const ROLES: [&str; 4] = ["system", "developer", "user", "assistant"];
            let role = fields.word("role", &ROLES)?.ok_or_else(|| fields.error("role", "is missing"))?;
            let text = text_content(fields.take("content"), &format!("{place}.content"))?;
            let text = text.ok_or_else(|| fields.error("content", "is missing"))?;
            if role == "assistant" {
                add_text(turn, "content", &text);
            } else {
                close(turn, messages);
                messages.push(json!({ "role": role_for(backend, role), "content": text }));
            }
        }
        "reasoning" => {
            // A new turn begins with its reasoning.
            if turn.contains_key("content") || turn.contains_key("tool_calls") {
                close(turn, messages);
            }
            for part in fields.list("content")?.unwrap_or_default() {
                if let Some(text) = part.get("text").and_then(Value::as_str) {
                    add_text(turn, "reasoning_content", text);
                }
            }
            drop(fields.take("summary"));
            fields.ignore(&["encrypted_content"]);
        }
        "function_call" => {
            let name = fields.required_string("name")?;
            let id = fields.required_string("call_id")?;
            let input = fields.take("arguments").unwrap_or_else(|| json!({}));
            let calls = turn.entry("tool_calls").or_insert_with(|| json!([]));
            if let Value::Array(calls) = calls {
                calls.push(template_call(Some(id), &name, input));
            }
        }
        "function_call_output" => {
            close(turn, messages);
            let id = fields.required_string("call_id")?;
            let text = text_content(fields.take("output"), &format!("{place}.output"))?;
            let content = text.unwrap_or_default();
            messages.push(json!({ "role": "tool", "tool_call_id": id, "content": content }));
        }
        "item_reference" => {
            let sentence = "refers to an item of an earlier response, and none is kept: send the item itself";
            return Err(ApiError::field(place, format!("{place} {sentence}")));
        }
        other => {
            let sentence = format!("is of type {}, which is not supported", shown(&other.into()));
            return Err(ApiError::field(place, format!("{place} {sentence}")));
        }
    }
    ignored.extend(fields.finish_leniently());
    Ok(())
}

/// Reads tools. Those that run at OpenAI are left away and named.
///
/// # Errors
/// If a function is malformed or a kind of tool is not known.
pub fn read_tools(fields: &mut Fields) -> Result<Vec<ToolDefinition>, ApiError> {
    let mut tools = Vec::new();
    for (number, tool) in fields.list("tools")?.unwrap_or_default().into_iter().enumerate() {
        let place = format!("tools[{number}]");
        let mut tool = Fields::new(tool, &place)?;
        let kind = tool.required_string("type")?;
        match kind.as_str() {
            "function" => {
                tool.ignore(&["defer_loading", "output_schema"]);
                fields.ignored.append(&mut tool.ignored);
                read_function(&mut tools, tool, &place)?;
            }
            hosted if HOSTED.contains(&hosted) => fields.ignored.push(format!("{place} ({hosted})")),
            other => {
                let sentence = format!("is {}; only functions can be called", shown(&other.into()));
                return Err(tool.error("type", &sentence));
            }
        }
    }
    Ok(tools)
}
