//! Requests of the Anthropic protocol, as chat templates expect them.
//!
//! Blocks become messages: thinking, text and calls of a turn are one message of the assistant; results of calls come
//! before the user's words; a last message of the assistant is continued. Thinking is off unless it is asked for, as that protocol has it.

use serde_json::{Map, Value, json};

use crate::backend::{Backend, ToolDefinition};
use crate::errors::ApiError;
use crate::fields::{Fields, shown};
use crate::format::read_format;
use crate::prepare::{ChatRequest, Common};
use crate::tools::{ToolChoice, add_tool};

/// A line that one client puts before its instructions: it differs with every request and would make each prefix new.
const BILLING_LINE: &str = "x-anthropic-billing-header:";

/// Reads all but `max_tokens`, `stream` and our own field.
///
/// # Errors
/// If a field is malformed or not supported.
pub fn read_chat(fields: &mut Fields, backend: &dyn Backend) -> Result<ChatRequest, ApiError> {
    crate::openai::chat::read_model(fields, backend)?;
    let mut messages = Vec::new();
    if let Some(system) = read_system(fields)? {
        messages.push(json!({ "role": "system", "content": system }));
    }
    let turns = fields.list("messages")?.ok_or_else(|| fields.error("messages", "is missing"))?;
    for (number, turn) in turns.into_iter().enumerate() {
        read_turn(turn, &format!("messages[{number}]"), &mut messages, &mut fields.ignored)?;
    }
    let continue_last = messages.last().is_some_and(|message| message["role"] == "assistant");
    let mut chat = ChatRequest::new(messages, read_common(fields)?);
    chat.continue_last = continue_last;
    chat.tools = read_tools(fields)?;
    read_choice(fields, &mut chat)?;
    chat.thinking = Some(read_thinking(fields)?);
    if let Some(mut output) = fields.object("output_config")? {
        if let Some(format) = output.object("format")? {
            chat.format = read_format(format)?.map(|format| ("output_config.format", format));
        }
        output.ignore(&["effort"]);
        fields.ignored.extend(output.finish()?);
    }
    if let Some(format) = fields.object("output_format")? {
        chat.format = read_format(format)?.map(|format| ("output_format", format));
    }
    fields.refuse("mcp_servers", "is not supported: this server calls no other servers")?;
    fields.ignore(&["metadata", "service_tier", "container", "context_management", "cache_control"]);
    fields.ignore(&["inference_geo", "speed", "betas", "diagnostics"]);
    Ok(chat)
}

/// Our own field.
///
/// # Errors
/// If it is malformed.
pub fn read_progress(fields: &mut Fields) -> Result<bool, ApiError> {
    let Some(mut extension) = fields.object("coldpress")? else { return Ok(false) };
    let progress = extension.flag("progress")?.unwrap_or(false);
    extension.finish()?;
    Ok(progress)
}

fn read_common(fields: &mut Fields) -> Result<Common, ApiError> {
    let mut common = Common::new(1.0, 0, 1.0);
    if let Some(value) = fields.number("temperature", 0.0, 2.0)? {
        common.sampling.temperature = value;
    }
    if let Some(value) = fields.number("top_p", 0.0, 1.0)? {
        common.sampling.top_p = value.max(f32::MIN_POSITIVE);
    }
    if let Some(value) = fields.integer("top_k", 0, i64::from(u32::MAX))? {
        common.sampling.top_k = usize::try_from(value).unwrap_or(0);
    }
    let stop = fields.strings("stop_sequences")?;
    common.set_stop("stop_sequences", stop)?;
    Ok(common)
}

fn read_system(fields: &mut Fields) -> Result<Option<String>, ApiError> {
    let blocks = match fields.take("system") {
        None => return Ok(None),
        Some(Value::String(text)) => return Ok(Some(text)),
        Some(Value::Array(blocks)) => blocks,
        Some(_) => return Err(fields.error("system", "must be a string or a list of text blocks")),
    };
    let mut texts = Vec::with_capacity(blocks.len());
    for (number, block) in blocks.into_iter().enumerate() {
        let place = format!("system[{number}]");
        let text = read_text(Fields::new(block, &place)?)?;
        if text.starts_with(BILLING_LINE) {
            fields.ignored.push(place);
        } else {
            texts.push(text);
        }
    }
    Ok(Some(texts.join("\n\n")).filter(|text| !text.is_empty()))
}

fn read_text(mut block: Fields) -> Result<String, ApiError> {
    let kind = block.required_string("type")?;
    if kind != "text" {
        let sentence = format!("is {}: this model reads text only", shown(&kind.into()));
        return Err(block.error("type", &sentence));
    }
    block.required_string("text")
}

/// What the blocks of a turn come to.
#[derive(Default)]
struct Turn {
    texts: Vec<String>,
    reasoning: Vec<String>,
    calls: Vec<Value>,
    results: Vec<Value>,
}

fn read_turn(
    turn: Value,
    place: &str,
    messages: &mut Vec<Value>,
    ignored: &mut Vec<String>,
) -> Result<(), ApiError> {
    let mut fields = Fields::new(turn, place)?;
    let role = fields.word("role", &["user", "assistant", "system"])?;
    let role = role.ok_or_else(|| fields.error("role", "is missing"))?;
    let mut read = Turn::default();
    match fields.take("content") {
        Some(Value::String(text)) => read.texts.push(text),
        Some(Value::Array(blocks)) => {
            for (number, block) in blocks.into_iter().enumerate() {
                read_block(Fields::new(block, &format!("{place}.content[{number}]"))?, &mut read)?;
            }
        }
        _ => return Err(fields.error("content", "must be a string or a list of blocks")),
    }
    ignored.extend(fields.finish_leniently());
    let text = read.texts.join("\n");
    if role != "assistant" {
        let only_results = text.is_empty() && !read.results.is_empty();
        messages.append(&mut read.results);
        if !only_results {
            messages.push(json!({ "role": role, "content": text }));
        }
        return Ok(());
    }
    let mut message = Map::new();
    message.insert("role".to_owned(), role.into());
    message.insert("content".to_owned(), text.into());
    if !read.reasoning.is_empty() {
        message.insert("reasoning_content".to_owned(), read.reasoning.join("\n").into());
    }
    if !read.calls.is_empty() {
        message.insert("tool_calls".to_owned(), read.calls.into());
    }
    messages.push(message.into());
    Ok(())
}

fn read_block(mut block: Fields, turn: &mut Turn) -> Result<(), ApiError> {
    let kind = block.required_string("type")?;
    match kind.as_str() {
        "text" => turn.texts.push(block.required_string("text")?),
        "thinking" => turn.reasoning.push(block.required_string("thinking")?),
        // Only its author can read it.
        "redacted_thinking" => {}
        "tool_use" => {
            let id = block.required_string("id")?;
            let name = block.required_string("name")?;
            let input = block.take("input").unwrap_or_else(|| json!({}));
            turn.calls.push(crate::openai::template_call(Some(id), &name, input));
        }
        "tool_result" => {
            let id = block.required_string("tool_use_id")?;
            let failed = block.flag("is_error")?.unwrap_or(false);
            let place = block.full_name("content");
            let mut text = crate::openai::text_content(block.take("content"), &place)?.unwrap_or_default();
            if failed && text.is_empty() {
                text = "error".to_owned();
            }
            turn.results.push(json!({ "role": "tool", "tool_call_id": id, "content": text }));
        }
        other => {
            let sentence = format!("is {}: this model reads text only", shown(&other.into()));
            return Err(block.error("type", &sentence));
        }
    }
    Ok(())
}

fn read_tools(fields: &mut Fields) -> Result<Vec<ToolDefinition>, ApiError> {
    let mut tools = Vec::new();
    for (number, tool) in fields.list("tools")?.unwrap_or_default().into_iter().enumerate() {
        let place = format!("tools[{number}]");
        let mut tool = Fields::new(tool, &place)?;
        let kind = tool.string("type")?.unwrap_or_else(|| "custom".to_owned());
        if kind != "custom" {
            // These run at Anthropic, and clients offer them unasked.
            fields.ignored.push(format!("{place} ({})", shown(&kind.into())));
            continue;
        }
        let name = tool.required_string("name")?;
        let description = tool.string("description")?;
        let schema = tool.take("input_schema");
        for name in ["cache_control", "strict", "input_examples", "defer_loading", "allowed_callers"] {
            drop(tool.take(name));
        }
        tool.ignore(&["eager_input_streaming"]);
        fields.ignored.extend(tool.finish()?);
        add_tool(&mut tools, &place, name, description, schema)?;
    }
    Ok(tools)
}

fn read_choice(fields: &mut Fields, chat: &mut ChatRequest) -> Result<(), ApiError> {
    let Some(mut choice) = fields.object("tool_choice")? else { return Ok(()) };
    let kind = choice.word("type", &["auto", "any", "tool", "none"])?;
    chat.choice = match kind.ok_or_else(|| choice.error("type", "is missing"))? {
        "any" => ToolChoice::Required,
        "tool" => ToolChoice::Named(choice.required_string("name")?),
        "none" => ToolChoice::None,
        _ => ToolChoice::Auto,
    };
    chat.parallel_calls = !choice.flag("disable_parallel_tool_use")?.unwrap_or(false);
    choice.finish()?;
    Ok(())
}

fn read_thinking(fields: &mut Fields) -> Result<bool, ApiError> {
    let Some(mut thinking) = fields.object("thinking")? else { return Ok(false) };
    let kind = thinking.word("type", &["enabled", "disabled", "adaptive"])?;
    let kind = kind.ok_or_else(|| thinking.error("type", "is missing"))?;
    // There is no way to bound the reasoning apart from the answer; max_tokens bounds both.
    if thinking.integer("budget_tokens", 1, i64::from(u32::MAX))?.is_some() {
        fields.ignored.push("thinking.budget_tokens".to_owned());
    }
    thinking.ignore(&["display"]);
    fields.ignored.extend(thinking.finish()?);
    Ok(kind != "disabled")
}
