//! Functions that a model may call: reading their definitions, choosing among them, and forcing a call.
//!
//! A forced call (`required`, or one by name) is a grammar: the answer is the JSON of the call and nothing else, after the
//! reasoning if there is some. That holds for every model, whatever its own notation of calls is.

use serde_json::{Map, Value, json};

use crate::backend::{AnswerEvent, AnswerParser, GrammarSource, ToolDefinition};
use crate::errors::ApiError;
use crate::state::random;

/// Most functions of a request.
const TOOLS_MAX: usize = 1024;
const NAME_CHARACTERS_MAX: usize = 128;

/// Which function is to be called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// As the model likes.
    #[default]
    Auto,
    /// None.
    None,
    /// At least one.
    Required,
    /// This one.
    Named(String),
}

/// Checks a definition and adds it; `place` is where it stands.
///
/// # Errors
/// If the name is not a name or is taken, or the parameters are not a schema of an object.
pub fn add_tool(
    tools: &mut Vec<ToolDefinition>,
    place: &str,
    name: String,
    description: Option<String>,
    parameters: Option<Value>,
) -> Result<(), ApiError> {
    let fits = |character: char| character.is_ascii_alphanumeric() || "_-.:/".contains(character);
    if name.is_empty() || name.len() > NAME_CHARACTERS_MAX || !name.chars().all(fits) {
        let wanted = format!("1 to {NAME_CHARACTERS_MAX} letters, digits and _ - . : /");
        return Err(ApiError::field(place, format!("the name of {place} must be {wanted}")));
    }
    if tools.iter().any(|tool| tool.name == name) {
        return Err(ApiError::field(place, format!("{place} has the name of another tool: {name}")));
    }
    if tools.len() >= TOOLS_MAX {
        return Err(ApiError::field("tools", format!("there may be {TOOLS_MAX} tools")));
    }
    let parameters = parameters.unwrap_or_else(|| json!({ "type": "object", "properties": {} }));
    let of_object = parameters.get("type").is_none_or(|kind| kind == "object");
    if !parameters.is_object() || !of_object {
        return Err(ApiError::field(
            place,
            format!("the parameters of {place} must be a schema of an object"),
        ));
    }
    tools.push(ToolDefinition { name, description, parameters });
    Ok(())
}

/// A call that must be made.
#[derive(Clone, Debug, PartialEq)]
pub struct ForcedCall {
    /// The name, where there is one choice only; then the answer is the arguments alone.
    name: Option<String>,
    /// What the answer must match.
    pub grammar: GrammarSource,
}

impl ForcedCall {
    /// The grammar for a choice; `None` where nothing is forced.
    ///
    /// # Errors
    /// If there is no such function.
    pub fn new(choice: &ToolChoice, tools: &[ToolDefinition]) -> Result<Option<Self>, ApiError> {
        let candidates: Vec<&ToolDefinition> = match choice {
            ToolChoice::Auto | ToolChoice::None => return Ok(None),
            ToolChoice::Required => tools.iter().collect(),
            ToolChoice::Named(name) => tools.iter().filter(|tool| tool.name == *name).collect(),
        };
        match candidates.as_slice() {
            [] => Err(ApiError::field("tool_choice", "tool_choice asks for a tool that is not in tools")),
            [tool] => Ok(Some(Self {
                name: Some(tool.name.clone()),
                grammar: GrammarSource::JsonSchema(object_schema(&tool.parameters)),
            })),
            several => {
                let call = |(number, tool): (usize, &&ToolDefinition)| {
                    let mut arguments = object_schema(&tool.parameters);
                    move_references(&mut arguments, &format!("#/anyOf/{number}/properties/arguments"));
                    json!({
                        "type": "object",
                        "properties": { "name": { "const": tool.name }, "arguments": arguments },
                        "required": ["name", "arguments"],
                        "additionalProperties": false
                    })
                };
                let calls: Vec<Value> = several.iter().enumerate().map(call).collect();
                Ok(Some(Self { name: None, grammar: GrammarSource::JsonSchema(json!({ "anyOf": calls })) }))
            }
        }
    }

    /// A parser for the answer; `reasoning` separates the reasoning from the rest.
    pub fn parser(&self, reasoning: Box<dyn AnswerParser>) -> Box<dyn AnswerParser> {
        Box::new(ForcedParser {
            reasoning,
            name: self.name.clone(),
            json: String::new(),
            begun: false,
            parts: Vec::new(),
        })
    }
}

/// The schema, with its type said: arguments are always an object.
fn object_schema(parameters: &Value) -> Value {
    let mut schema = parameters.as_object().cloned().unwrap_or_default();
    schema.entry("type").or_insert_with(|| "object".into());
    Value::Object(schema)
}

/// Lets references within a schema point to its new place.
fn move_references(schema: &mut Value, place: &str) {
    match schema {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(target) if name == "$ref" => {
                        if let Some(within) = target.strip_prefix('#') {
                            *target = format!("{place}{within}");
                        }
                    }
                    other => move_references(other, place),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| move_references(value, place)),
        _ => {}
    }
}

/// A name for a call that no other call has.
pub fn call_identifier() -> String {
    format!("call_{:016x}{:08x}", random(), random() as u32)
}

struct ForcedParser {
    reasoning: Box<dyn AnswerParser>,
    name: Option<String>,
    /// The call so far, where its name is part of it.
    json: String,
    begun: bool,
    parts: Vec<AnswerEvent>,
}

impl ForcedParser {
    fn take(&mut self, events: &mut Vec<AnswerEvent>) {
        let mut parts = std::mem::take(&mut self.parts);
        for part in parts.drain(..) {
            let AnswerEvent::Content(text) = part else {
                events.push(part);
                continue;
            };
            let Some(name) = &self.name else {
                self.json.push_str(&text);
                continue;
            };
            let text = if self.begun { text.as_str() } else { text.trim_start() };
            if text.is_empty() {
                continue;
            }
            if !self.begun {
                self.begun = true;
                let (id, name) = (call_identifier(), name.clone());
                events.push(AnswerEvent::ToolCallBegin { index: 0, id, name });
            }
            events.push(AnswerEvent::ToolCallArguments { index: 0, json: text.to_owned() });
        }
        self.parts = parts;
    }
}

impl AnswerParser for ForcedParser {
    fn push(&mut self, text: &str, events: &mut Vec<AnswerEvent>) {
        self.reasoning.push(text, &mut self.parts);
        self.take(events);
    }

    fn finish(&mut self, events: &mut Vec<AnswerEvent>) {
        self.reasoning.finish(&mut self.parts);
        self.take(events);
        if self.begun {
            events.push(AnswerEvent::ToolCallEnd { index: 0 });
            return;
        }
        let json = std::mem::take(&mut self.json);
        let call: Option<Map<String, Value>> = serde_json::from_str(&json).ok();
        let parts =
            call.as_ref().and_then(|call| Some((call.get("name")?.as_str()?, call.get("arguments")?)));
        match parts {
            Some((name, arguments)) => events.extend([
                AnswerEvent::ToolCallBegin { index: 0, id: call_identifier(), name: name.to_owned() },
                AnswerEvent::ToolCallArguments { index: 0, json: arguments.to_string() },
                AnswerEvent::ToolCallEnd { index: 0 },
            ]),
            // Cut off by the token limit: what there is stays visible.
            None if !json.is_empty() => events.push(AnswerEvent::Content(json)),
            None => {}
        }
    }
}
