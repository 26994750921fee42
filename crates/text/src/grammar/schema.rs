//! Which JSON Schemas are enforced, and in which words the compiler gets them.
//!
//! Owns the table of keywords. A keyword of any draft that llguidance does not enforce is refused with its path; a value of the wrong
//! type is, too; words that no draft defines are annotations and ignored, as the specification says. What the compiler would read in
//! another sense is rewritten: references (it knows no escapes in pointers), patterns (`pattern.rs`), formats (`format.rs`).
//! Strings are written with the short escapes of JSON alone, so that a name has one spelling: otherwise `"\u0061"` would
//! be a further property beside `"a"`. Space between two tokens of JSON is at most [`SPACE_MAX`] bytes long: models that
//! are lost write it for ever.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};

use super::format::{self, Format};
use super::limits::{SCHEMA_DEPTH_MAX, SCHEMA_PROPERTIES_MAX, SCHEMA_TEXT_BYTES_MAX, SCHEMA_VALUES_MAX};
use super::locate::join;
use super::pattern::rust_pattern;
use super::values::{Factors, bound, count, refuse_constant, shown};

/// Longest run of space between two tokens of JSON, in bytes.
const SPACE_MAX: usize = 20;

const TYPES: [&str; 7] = ["null", "boolean", "number", "integer", "string", "array", "object"];

/// Keywords that cannot be enforced.
const REFUSED: [&str; 19] = [
    "$dynamicRef",
    "$recursiveRef",
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "disallow",
    "divisibleBy",
    "else",
    "extends",
    "if",
    "maxContains",
    "minContains",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
    "x-guidance",
];

/// Why and where a schema is refused.
#[derive(Debug)]
pub(super) struct Refusal {
    /// A JSON pointer as a fragment, `#/properties/a/pattern`.
    pub(super) path: String,
    /// One sentence.
    pub(super) reason: String,
}

/// The schema as the compiler gets it.
pub(super) fn enforceable(schema: &Value) -> Result<Value, Refusal> {
    enforceable_part(schema, schema, "#")
}

/// A part of a schema as a document of its own; its references lead into `root`.
pub(super) fn enforceable_part(root: &Value, part: &Value, path: &str) -> Result<Value, Refusal> {
    let mut walk = Walk {
        root,
        definitions: Vec::new(),
        known: HashMap::new(),
        replacing: Vec::new(),
        values: 0,
        text_bytes: 0,
        properties: 0,
        factors: Factors::default(),
    };
    let mut document = match walk.schema(part, path, 0)? {
        Value::Object(keywords) => keywords,
        Value::Bool(true) => Map::new(),
        _ => return Err(refusal(path, "nothing satisfies the schema false")),
    };
    let definitions: Map<String, Value> =
        walk.definitions.into_iter().enumerate().map(|(index, schema)| (index.to_string(), schema)).collect();
    document.insert("$defs".to_owned(), Value::Object(definitions));
    let space = format!("[\\x20\\x0A\\x0D\\x09]{{1,{SPACE_MAX}}}");
    let options = json!({ "json_allowed_escapes": "nrbtf\\\"", "whitespace_pattern": space });
    document.insert("x-guidance".to_owned(), options);
    Ok(Value::Object(document))
}

/// The schema that a reference names, and its path.
///
/// # Errors
/// Why it names none.
pub(super) fn target<'s>(root: &'s Value, reference: &str) -> Result<(String, &'s Value), String> {
    let Some(pointer) = reference.strip_prefix('#') else {
        return Err(format!(
            "{reference:?} lies outside of the schema; only references to \"#/...\" are followed"
        ));
    };
    let mut path = "#".to_owned();
    let mut place = root;
    let mut steps = pointer.split('/');
    if steps.next() != Some("") {
        return Err(format!("{reference:?} is an anchor; only references to \"#/...\" are followed"));
    }
    for step in steps {
        let name = percent_decoded(step).replace("~1", "/").replace("~0", "~");
        let next = match place {
            Value::Object(members) => members.get(&name),
            Value::Array(members) => name.parse().ok().and_then(|index: usize| members.get(index)),
            _ => None,
        };
        place = next.ok_or_else(|| format!("{reference:?} leads nowhere: {} has no {name:?}", path))?;
        path = join(&path, &name);
    }
    Ok((path, place))
}

fn percent_decoded(step: &str) -> String {
    let mut bytes = Vec::with_capacity(step.len());
    let mut rest = step.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(decoded) if byte == b'%' => {
                bytes.push(decoded);
                rest = &after[2..];
            }
            _ => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn refusal(path: &str, reason: impl Into<String>) -> Refusal {
    Refusal { path: path.to_owned(), reason: reason.into() }
}

struct Walk<'s> {
    root: &'s Value,
    /// Targets of references, in the order in which they were met.
    definitions: Vec<Value>,
    /// Their indices by path.
    known: HashMap<String, usize>,
    /// Paths of references of `oneOf` that are being replaced.
    replacing: Vec<String>,
    values: usize,
    text_bytes: usize,
    properties: usize,
    factors: Factors,
}

impl Walk<'_> {
    fn charge(&mut self, path: &str, values: usize, text_bytes: usize) -> Result<(), Refusal> {
        self.values += values;
        self.text_bytes += text_bytes;
        if self.values > SCHEMA_VALUES_MAX {
            return Err(refusal(path, format!("the schema has more than {SCHEMA_VALUES_MAX} values")));
        }
        if self.text_bytes > SCHEMA_TEXT_BYTES_MAX {
            return Err(refusal(
                path,
                format!("the schema has more than {SCHEMA_TEXT_BYTES_MAX} bytes of text"),
            ));
        }
        Ok(())
    }

    fn schema(&mut self, schema: &Value, path: &str, depth: usize) -> Result<Value, Refusal> {
        self.charge(path, 1, 0)?;
        if depth > SCHEMA_DEPTH_MAX {
            return Err(refusal(path, format!("schemas nest deeper than {SCHEMA_DEPTH_MAX}")));
        }
        let keywords = match schema {
            Value::Bool(_) => return Ok(schema.clone()),
            Value::Object(keywords) => keywords,
            other => {
                return Err(refusal(
                    path,
                    format!("a schema is an object, true or false, not {}", shown(other)),
                ));
            }
        };
        let mut out = Map::new();
        for (keyword, value) in keywords {
            let here = join(path, keyword);
            self.charge(&here, 1, keyword.len())?;
            if keyword == "format" && !may_be_string(keywords) {
                // Formats of numbers (`int32`) say nothing about strings.
                continue;
            }
            self.keyword(keyword, value, &here, depth, &mut out)?;
        }
        check_together(keywords, path)?;
        Ok(Value::Object(out))
    }

    fn keyword(
        &mut self,
        keyword: &str,
        value: &Value,
        path: &str,
        depth: usize,
        out: &mut Map<String, Value>,
    ) -> Result<(), Refusal> {
        let wrong = |reason: String| refusal(path, reason);
        let kept = match keyword {
            "$ref" => json!(format!("#/$defs/{}", self.reference(value, path, depth)?)),
            "type" => types(value).map_err(wrong)?,
            "const" => self.constant(value, path)?,
            "enum" => self.constants(value, path)?,
            "oneOf" => Value::Array(self.alternatives(value, path, depth)?),
            "allOf" | "anyOf" | "prefixItems" => {
                // Formats may have put conditions there.
                let mut schemas = self.list(value, path, depth)?;
                if let Some(Value::Array(before)) = out.shift_remove(keyword) {
                    schemas.extend(before);
                }
                Value::Array(schemas)
            }
            "items" if value.is_array() => Value::Array(self.list(value, path, depth)?),
            "items" | "additionalItems" | "additionalProperties" => self.schema(value, path, depth + 1)?,
            "properties" => self.mapping(value, path, depth, false)?,
            "patternProperties" => self.mapping(value, path, depth, true)?,
            "required" => self.names(value, path)?,
            "minItems" | "maxItems" | "minLength" | "maxLength" | "minProperties" | "maxProperties" => {
                count(value).map_err(wrong)?;
                value.clone()
            }
            "minimum" | "maximum" => {
                bound(value).map_err(wrong)?;
                value.clone()
            }
            "exclusiveMinimum" | "exclusiveMaximum" => {
                if !value.is_boolean() {
                    bound(value).map_err(wrong)?;
                }
                value.clone()
            }
            "multipleOf" => {
                self.factors.add(value).map_err(wrong)?;
                value.clone()
            }
            "pattern" => {
                let pattern = value.as_str().ok_or_else(|| wrong(expected("a string", value)))?;
                self.charge(path, 0, pattern.len())?;
                Value::String(rust_pattern(pattern).map_err(wrong)?)
            }
            "format" => return format_keyword(value, path, out),
            "uniqueItems" if value == &Value::Bool(false) => return Ok(()),
            "uniqueItems" => return Err(wrong("items that must differ cannot be enforced".to_owned())),
            _ if REFUSED.contains(&keyword) => return Err(wrong(format!("{keyword:?} cannot be enforced"))),
            _ => return Ok(()),
        };
        out.insert(keyword.to_owned(), kept);
        Ok(())
    }

    /// The index of the definition that a reference leads to.
    fn reference(&mut self, value: &Value, path: &str, depth: usize) -> Result<usize, Refusal> {
        let reference = value.as_str().ok_or_else(|| refusal(path, expected("a string", value)))?;
        let (target_path, schema) = target(self.root, reference).map_err(|reason| refusal(path, reason))?;
        if let Some(&index) = self.known.get(&target_path) {
            return Ok(index);
        }
        let index = self.definitions.len();
        self.known.insert(target_path.clone(), index);
        self.definitions.push(Value::Bool(true));
        self.definitions[index] = self.schema(schema, &target_path, depth + 1)?;
        Ok(index)
    }

    fn list(&mut self, value: &Value, path: &str, depth: usize) -> Result<Vec<Value>, Refusal> {
        let Some(schemas) = value.as_array().filter(|schemas| !schemas.is_empty()) else {
            return Err(refusal(path, expected("a list of schemas that is not empty", value)));
        };
        let members = schemas.iter().enumerate();
        members
            .map(|(index, schema)| self.schema(schema, &join(path, &index.to_string()), depth + 1))
            .collect()
    }

    /// The schemas of a `oneOf`. Whether they exclude each other is seen only if they stand there: a reference is
    /// replaced by what it names, unless that is being replaced just now.
    fn alternatives(&mut self, value: &Value, path: &str, depth: usize) -> Result<Vec<Value>, Refusal> {
        let mut alternatives = self.list(value, path, depth)?;
        let named =
            |schema: &Value| schema.as_object().filter(|keywords| keywords.len() == 1)?.get("$ref").cloned();
        for (alternative, schema) in alternatives.iter_mut().zip(value.as_array().into_iter().flatten()) {
            let Some(reference) = named(alternative).and(schema.get("$ref")).and_then(Value::as_str) else {
                continue;
            };
            let Ok((target_path, schema)) = target(self.root, reference) else { continue };
            if !self.replacing.contains(&target_path) {
                self.replacing.push(target_path.clone());
                *alternative = self.schema(schema, &target_path, depth + 1)?;
                self.replacing.pop();
            }
        }
        Ok(alternatives)
    }

    fn mapping(&mut self, value: &Value, path: &str, depth: usize, patterns: bool) -> Result<Value, Refusal> {
        let members = value.as_object().ok_or_else(|| refusal(path, expected("an object", value)))?;
        self.properties += members.len();
        if self.properties > SCHEMA_PROPERTIES_MAX {
            return Err(refusal(
                path,
                format!("the schema has more than {SCHEMA_PROPERTIES_MAX} properties"),
            ));
        }
        let mut out = Map::new();
        for (name, schema) in members {
            let here = join(path, name);
            self.charge(&here, 0, name.len())?;
            let schema = self.schema(schema, &here, depth + 1)?;
            let name = if patterns {
                rust_pattern(name).map_err(|reason| refusal(&here, reason))?
            } else {
                name.clone()
            };
            if out.insert(name, schema).is_some() {
                return Err(refusal(&here, "the same pattern stands here twice"));
            }
        }
        Ok(Value::Object(out))
    }

    fn names(&mut self, value: &Value, path: &str) -> Result<Value, Refusal> {
        let names = value.as_array().ok_or_else(|| refusal(path, expected("a list of names", value)))?;
        for name in names {
            let name = name.as_str().ok_or_else(|| refusal(path, expected("a name", name)))?;
            self.charge(path, 1, name.len())?;
        }
        self.properties += names.len();
        if self.properties > 2 * SCHEMA_PROPERTIES_MAX {
            return Err(refusal(path, "the schema requires too many properties"));
        }
        Ok(value.clone())
    }

    fn constants(&mut self, value: &Value, path: &str) -> Result<Value, Refusal> {
        let Some(values) = value.as_array().filter(|values| !values.is_empty()) else {
            return Err(refusal(path, expected("a list of values that is not empty", value)));
        };
        for (index, value) in values.iter().enumerate() {
            self.constant(value, &join(path, &index.to_string()))?;
        }
        Ok(value.clone())
    }

    fn constant(&mut self, value: &Value, path: &str) -> Result<Value, Refusal> {
        self.charge_constant(value, path, 0)?;
        match refuse_constant(value) {
            Some(reason) => Err(refusal(path, reason)),
            None => Ok(value.clone()),
        }
    }

    fn charge_constant(&mut self, value: &Value, path: &str, depth: usize) -> Result<(), Refusal> {
        if depth > SCHEMA_DEPTH_MAX {
            return Err(refusal(path, format!("the constant nests deeper than {SCHEMA_DEPTH_MAX}")));
        }
        match value {
            Value::String(text) => self.charge(path, 1, text.len()),
            Value::Array(members) => {
                self.charge(path, 1, 0)?;
                members.iter().try_for_each(|member| self.charge_constant(member, path, depth + 1))
            }
            Value::Object(members) => {
                self.properties += members.len();
                if self.properties > SCHEMA_PROPERTIES_MAX {
                    return Err(refusal(path, format!("more than {SCHEMA_PROPERTIES_MAX} properties")));
                }
                for (name, member) in members {
                    self.charge(path, 1, name.len())?;
                    self.charge_constant(member, path, depth + 1)?;
                }
                Ok(())
            }
            _ => self.charge(path, 1, 0),
        }
    }
}

fn expected(what: &str, found: &Value) -> String {
    format!("expected {what}, found {}", shown(found))
}

fn types(value: &Value) -> Result<Value, String> {
    let known = |name: &Value| name.as_str().is_some_and(|name| TYPES.contains(&name));
    match value {
        Value::Array(names) if !names.is_empty() && names.iter().all(known) => Ok(value.clone()),
        name if known(name) => Ok(value.clone()),
        other => Err(expected("a type or a list of types of JSON", other)),
    }
}

fn may_be_string(keywords: &Map<String, Value>) -> bool {
    match keywords.get("type") {
        None => true,
        Some(Value::Array(names)) => names.iter().any(|name| name == "string"),
        Some(name) => name == "string",
    }
}

/// Formats become patterns beside the schema's own.
fn format_keyword(value: &Value, path: &str, out: &mut Map<String, Value>) -> Result<(), Refusal> {
    let name = value.as_str().ok_or_else(|| refusal(path, expected("a name", value)))?;
    match format::find(name) {
        Some(Format::Compiler) => {
            out.insert("format".to_owned(), value.clone());
        }
        Some(Format::Pattern(pattern)) => {
            let condition = json!({ "pattern": pattern });
            match out.entry("allOf").or_insert_with(|| json!([])) {
                Value::Array(conditions) => conditions.push(condition),
                _ => unreachable!("allOf is always a list here"),
            }
        }
        None => {
            let reason = format!("the format {name:?} cannot be enforced; known are {}", format::NAMES);
            return Err(refusal(path, reason));
        }
    }
    Ok(())
}

/// What is wrong with keywords side by side.
fn check_together(keywords: &Map<String, Value>, path: &str) -> Result<(), Refusal> {
    let tuple =
        keywords.get("items").is_some_and(Value::is_array) || keywords.contains_key("additionalItems");
    if tuple && keywords.contains_key("prefixItems") {
        let reason = "prefixItems and lists of items belong to different drafts; use one of them";
        return Err(refusal(&join(path, "prefixItems"), reason));
    }
    // Names that are not listed may come twice, and the value that is parsed then has fewer members than were written.
    let required: HashSet<&str> = keywords
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let least = keywords.get("minProperties").and_then(Value::as_u64).unwrap_or(0);
    if least > required.len().max(1) as u64 {
        let reason = "more properties than are required by name cannot be enforced: a name could come twice";
        return Err(refusal(&join(path, "minProperties"), reason));
    }
    Ok(())
}
