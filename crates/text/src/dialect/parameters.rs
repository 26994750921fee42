//! What the tools of a request say about their parameters: which values are strings.
//!
//! Dialects with one tag per parameter write strings and numbers alike, so the JSON schema decides. Owns only that
//! decision; whether values satisfy the schema is the tool's business.

use std::sync::Arc;

use serde_json::Value;

/// A tool of the request: its name and the types of its parameters.
#[derive(Clone, Debug)]
pub struct ToolSignature {
    name: String,
    parameters: Vec<(String, Types)>,
    /// For parameters the schema does not name.
    others: Types,
}

impl ToolSignature {
    /// Reads a tool as requests give it: `{"type": "function", "function": {"name": .., "parameters": schema}}`, or
    /// the inner object alone. `None` if it has no name.
    pub fn from_json(tool: &Value) -> Option<ToolSignature> {
        let function = tool.get("function").filter(|function| function.is_object()).unwrap_or(tool);
        let name = function.get("name")?.as_str()?.to_owned();
        let root =
            function.get("parameters").or_else(|| function.get("input_schema")).unwrap_or(&Value::Null);
        let properties = root.get("properties").and_then(Value::as_object);
        let parameters = properties
            .into_iter()
            .flatten()
            .map(|(key, schema)| (key.clone(), Types::of_schema(schema, root, 0)))
            .collect();
        let others =
            root.get("additionalProperties").map_or(Types::ANY, |schema| Types::of_schema(schema, root, 0));
        Some(ToolSignature { name, parameters, others })
    }
}

/// The tools of a request, shared by the parts of a parser.
#[derive(Clone, Debug)]
pub(super) struct ToolSignatures(pub Arc<[ToolSignature]>);

impl ToolSignatures {
    /// Whether a tool of this name was offered; true if none were named at all.
    pub fn knows(&self, name: &str) -> bool {
        self.0.is_empty() || self.0.iter().any(|tool| tool.name == name)
    }

    /// The types a parameter may have.
    pub fn types(&self, tool: &str, parameter: &str) -> Types {
        let Some(tool) = self.0.iter().find(|known| known.name == tool) else { return Types::ANY };
        let named = tool.parameters.iter().find(|(key, _)| key == parameter);
        named.map_or(tool.others, |(_, types)| *types)
    }
}

/// A set of JSON types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Types(u8);

/// Deepest nesting of references and unions that is followed.
const SCHEMA_DEPTH_MAX: usize = 16;

impl Types {
    pub const STRING: Types = Types(1);
    const NUMBER: Types = Types(2);
    const BOOLEAN: Types = Types(4);
    const NULL: Types = Types(8);
    const OBJECT: Types = Types(16);
    const ARRAY: Types = Types(32);
    /// Nothing is known.
    pub const ANY: Types = Types(63);
    /// Anything but a string.
    pub const NOT_STRING: Types = Types(62);

    fn has(self, other: Types) -> bool {
        self.0 & other.0 != 0
    }

    fn union(sets: impl Iterator<Item = Types>) -> Types {
        Types(sets.fold(0, |all, set| all | set.0))
    }

    fn of_name(name: &str) -> Types {
        match name {
            "string" => Types::STRING,
            "number" | "integer" => Types::NUMBER,
            "boolean" => Types::BOOLEAN,
            "null" => Types::NULL,
            "object" => Types::OBJECT,
            "array" => Types::ARRAY,
            _ => Types::ANY,
        }
    }

    fn of_value(value: &Value) -> Types {
        match value {
            Value::String(_) => Types::STRING,
            Value::Number(_) => Types::NUMBER,
            Value::Bool(_) => Types::BOOLEAN,
            Value::Null => Types::NULL,
            Value::Object(_) => Types::OBJECT,
            Value::Array(_) => Types::ARRAY,
        }
    }

    /// The types a schema allows. `root` resolves references.
    fn of_schema(schema: &Value, root: &Value, depth: usize) -> Types {
        let Some(object) = schema.as_object().filter(|_| depth < SCHEMA_DEPTH_MAX) else { return Types::ANY };
        let list = |key: &str| object.get(key).and_then(Value::as_array).filter(|list| !list.is_empty());
        let inner = |schema: &Value| Types::of_schema(schema, root, depth + 1);
        let mut types = Types::ANY;
        if let Some(path) = object.get("$ref").and_then(Value::as_str).and_then(|path| path.strip_prefix('#'))
        {
            types.0 &= root.pointer(path).map_or(Types::ANY, inner).0;
        }
        match object.get("type") {
            Some(Value::String(name)) => types.0 &= Types::of_name(name).0,
            Some(Value::Array(names)) => {
                types.0 &= Types::union(names.iter().filter_map(Value::as_str).map(Types::of_name)).0;
            }
            _ => {}
        }
        if let Some(values) = list("enum") {
            types.0 &= Types::union(values.iter().map(Types::of_value)).0;
        }
        if let Some(value) = object.get("const") {
            types.0 &= Types::of_value(value).0;
        }
        for key in ["anyOf", "oneOf"] {
            if let Some(schemas) = list(key) {
                types.0 &= Types::union(schemas.iter().map(inner)).0;
            }
        }
        if let Some(schemas) = list("allOf") {
            schemas.iter().for_each(|schema| types.0 &= inner(schema).0);
        }
        // A schema that contradicts itself says nothing.
        if types.0 == 0 { Types::ANY } else { types }
    }

    /// The JSON text a written value stands for, or `None` if it is a string as it stands.
    ///
    /// Where a string is allowed next to other types, JSON of one of those types is taken for it, and everything
    /// else is the string. Where none is allowed, all valid JSON is taken, and Python's spelling of constants.
    pub fn json_of(self, written: &str) -> Option<String> {
        if self == Types::STRING {
            return None;
        }
        let written = written.trim();
        let Ok(value) = serde_json::from_str::<Value>(written) else {
            let constant = match written {
                "True" => "true",
                "False" => "false",
                "None" => "null",
                _ => return None,
            };
            return (!self.has(Types::STRING)).then(|| constant.to_owned());
        };
        let types = Types::of_value(&value);
        let taken =
            !self.has(Types::STRING) || self == Types::ANY || (types != Types::STRING && self.has(types));
        taken.then(|| written.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::{ToolSignature, ToolSignatures, Types};
    use serde_json::json;

    fn tools() -> ToolSignatures {
        let tool = json!({"type": "function", "function": {"name": "f", "parameters": {
            "type": "object",
            "$defs": {"text": {"type": "string"}, "loop": {"$ref": "#/$defs/loop"}},
            "properties": {
                "s": {"type": "string"}, "i": {"type": "integer"}, "optional": {"type": ["string", "null"]},
                "choice": {"enum": ["a", "b"]}, "union": {"anyOf": [{"type": "string"}, {"type": "number"}]},
                "reference": {"$ref": "#/$defs/text"}, "loop": {"$ref": "#/$defs/loop"}, "free": {},
                "flag": {"type": "boolean"}, "contradiction": {"type": "string", "enum": [1]},
            },
        }}});
        ToolSignatures([ToolSignature::from_json(&tool).expect("it has a name")].into())
    }

    #[test]
    fn the_schema_says_which_values_are_strings() {
        let tools = tools();
        let json_of = |key: &str, written: &str| tools.types("f", key).json_of(written);
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(json_of("s", "12"), None);
        assert_eq!(json_of("i", " 12\n"), some("12"));
        assert_eq!(json_of("i", "twelve"), None);
        assert_eq!(json_of("optional", "null"), some("null"));
        assert_eq!(json_of("optional", "12"), None);
        assert_eq!(json_of("optional", "\"a\""), None);
        assert_eq!(json_of("choice", "1"), None);
        assert_eq!(json_of("union", "1.5"), some("1.5"));
        assert_eq!(json_of("union", "true"), None);
        assert_eq!(json_of("reference", "1"), None);
        assert_eq!(json_of("flag", "True"), some("true"));
        assert_eq!(json_of("free", "True"), None);
        assert_eq!(json_of("free", "[1, 2]"), some("[1, 2]"));
        assert_eq!(json_of("unknown", "{\"a\": 1}"), some("{\"a\": 1}"));
    }

    #[test]
    fn schemas_that_say_nothing_allow_everything() {
        assert_eq!(tools().types("f", "loop"), Types::ANY);
        assert_eq!(tools().types("f", "contradiction"), Types::ANY);
        assert_eq!(tools().types("g", "s"), Types::ANY);
    }

    #[test]
    fn a_tool_may_come_without_its_wrapper() {
        assert!(ToolSignature::from_json(&json!({"name": "f"})).is_some());
        assert!(ToolSignature::from_json(&json!({"type": "function"})).is_none());
    }
}
