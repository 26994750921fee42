//! Output formats: what `response_format`, `text.format`, `output_config.format` and Ollama's `format` ask for.

use serde_json::Value;

use crate::backend::GrammarSource;
use crate::errors::ApiError;
use crate::fields::Fields;

/// Reads a format object in OpenAI's style: `text`, `json_object`, `json_schema` (nested under that name or beside the
/// type), and ours: `regex` with a `pattern`, `grammar` with a `syntax` (`lark`, `regex`) and a `definition`.
///
/// # Errors
/// If the type is not known or something is missing.
pub fn read_format(mut format: Fields) -> Result<Option<GrammarSource>, ApiError> {
    const TYPES: [&str; 5] = ["text", "json_object", "json_schema", "regex", "grammar"];
    let kind = format.word("type", &TYPES)?.ok_or_else(|| format.error("type", "is missing"))?;
    let source = match kind {
        "json_object" => Some(GrammarSource::JsonObject),
        "json_schema" => {
            let schema = match format.object("json_schema")? {
                Some(mut nested) => {
                    let schema = read_schema(&mut nested)?;
                    nested.finish()?;
                    schema
                }
                None => read_schema(&mut format).map_err(|error| {
                    match error.message.ends_with("schema is missing") {
                        true => format.error("json_schema", "is missing: it holds the name and the schema"),
                        false => error,
                    }
                })?,
            };
            Some(GrammarSource::JsonSchema(schema))
        }
        "regex" => Some(GrammarSource::Regex(format.required_string("pattern")?)),
        "grammar" => {
            let syntax = format.word("syntax", &["lark", "regex"])?;
            let definition = format.required_string("definition")?;
            Some(match syntax {
                Some("regex") => GrammarSource::Regex(definition),
                _ => GrammarSource::Lark(definition),
            })
        }
        _ => None,
    };
    format.finish()?;
    Ok(source)
}

/// The schema of a `json_schema` format. Every schema is enforced, so `strict` changes nothing.
fn read_schema(fields: &mut Fields) -> Result<Value, ApiError> {
    let schema = fields.take("schema").ok_or_else(|| fields.error("schema", "is missing"))?;
    if !schema.is_object() && !schema.is_boolean() {
        return Err(fields.error("schema", "must be a JSON schema, which is an object"));
    }
    for name in ["name", "description", "strict"] {
        drop(fields.take(name));
    }
    Ok(schema)
}
