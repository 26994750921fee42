//! A schema that would not be enforced is refused, and the message says where it stands and what it is.

use crate::grammar_support::demo_compiler;
use coldpress_text::{GrammarSource, TextError};
use serde_json::{Value, json};

fn refusal(schema: &Value) -> (String, String) {
    match demo_compiler().compile(&GrammarSource::JsonSchema(schema.clone())) {
        Ok(_) => panic!("accepted: {schema}"),
        Err(TextError::SchemaRefused { path, reason }) => (path, reason),
        Err(other) => panic!("{other}: {schema}"),
    }
}

#[test]
fn refusals_name_the_path() {
    let object = |name: &str, schema: Value| json!({ "type": "object", "properties": { name: schema } });
    for (schema, path, word) in [
        (object("a", json!({ "pattern": "(?=x)" })), "#/properties/a/pattern", "look-ahead"),
        (object("a", json!({ "pattern": "\\bx" })), "#/properties/a/pattern", "word boundaries"),
        (object("a", json!({ "not": {} })), "#/properties/a/not", "not"),
        (object("a/b~c", json!({ "uniqueItems": true })), "#/properties/a~1b~0c/uniqueItems", "differ"),
        (json!({ "items": { "contains": {} } }), "#/items/contains", "contains"),
        (json!({ "if": {}, "then": {} }), "#/if", "if"),
        (json!({ "propertyNames": {} }), "#/propertyNames", "propertyNames"),
        (json!({ "dependentRequired": {} }), "#/dependentRequired", "dependentRequired"),
        (json!({ "unevaluatedProperties": false }), "#/unevaluatedProperties", "unevaluated"),
        (json!({ "anyOf": [{}, { "format": "iri" }] }), "#/anyOf/1/format", "iri"),
        (json!({ "type": "text" }), "#/type", "text"),
        (json!({ "type": "integer", "minimum": "3" }), "#/minimum", "number"),
        (json!({ "type": "integer", "minimum": 1e300 }), "#/minimum", "exact"),
        (json!({ "enum": [1, 9_007_199_254_740_993u64] }), "#/enum/1", "exact"),
        (json!({ "const": "\u{1}" }), "#/const", "U+0001"),
        (json!({ "multipleOf": 0 }), "#/multipleOf", "0"),
        (
            json!({ "allOf": [{ "multipleOf": 60_000 }, { "multipleOf": 59_999 }] }),
            "#/allOf/1/multipleOf",
            "digits",
        ),
        (json!({ "$ref": "#/$defs/none" }), "#/$ref", "leads nowhere"),
        (json!({ "$ref": "https://example.org/schema" }), "#/$ref", "outside"),
        (json!({ "$ref": "#anchor" }), "#/$ref", "anchor"),
        (
            json!({ "$ref": "#/$defs/a", "$defs": { "a": { "items": { "not": {} } } } }),
            "#/$defs/a/items/not",
            "not",
        ),
        (json!({ "minProperties": 2 }), "#/minProperties", "twice"),
        (json!({ "minLength": -1 }), "#/minLength", "whole number"),
        (json!({ "required": "a" }), "#/required", "list"),
        (json!({ "properties": [] }), "#/properties", "object"),
        (json!({ "items": 3 }), "#/items", "3"),
        (json!({ "anyOf": [] }), "#/anyOf", "empty"),
        (json!({ "enum": [] }), "#/enum", "empty"),
        (json!({ "x-guidance": { "lenient": true } }), "#/x-guidance", "x-guidance"),
        (json!(false), "#", "false"),
        (json!(3), "#", "object"),
        // Found by the compiler, located by asking for parts.
        (
            object("a", json!({ "oneOf": [{ "type": "integer" }, { "minimum": 3 }] })),
            "#/properties/a",
            "oneOf",
        ),
        (object("a", json!({ "pattern": "x{2,1}" })), "#/properties/a", "repetition"),
        (
            json!({ "type": "object", "required": ["a"], "properties": { "a": { "type": "integer", "minimum": 3, "maximum": 2 } } }),
            "#/properties/a",
            "minimum",
        ),
        (
            json!({ "items": { "$ref": "#/$defs/d" }, "$defs": { "d": { "minLength": 3, "maxLength": 2, "type": "string" } },
            "minItems": 1, "type": "array" }),
            "#/$defs/d",
            "minLength",
        ),
        (json!({ "type": "string", "pattern": "^a$", "minLength": 4 }), "#", "empty"),
    ] {
        let (found, reason) = refusal(&schema);
        assert_eq!(found, path, "{schema}: {reason}");
        assert!(reason.contains(word), "{schema}: {reason:?} does not hold {word:?}");
        assert!(reason.len() < 400 && !reason.contains("panic"), "{reason}");
    }
}

#[test]
fn annotations_and_words_of_no_draft_are_ignored() {
    for schema in [
        json!({ "title": "T", "description": "d", "default": 3, "examples": [1], "deprecated": true, "type": "integer" }),
        json!({ "$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "https://example.org/x", "type": "null" }),
        json!({ "type": "string", "x-order": 3, "nullable": true }),
        json!({ "type": "array", "uniqueItems": false, "maxItems": 2 }),
        json!({ "type": "object", "$defs": { "unused": { "not": {} } }, "definitions": { "unused": { "format": "iri" } } }),
    ] {
        let compiled = demo_compiler().compile(&GrammarSource::JsonSchema(schema.clone()));
        compiled.unwrap_or_else(|error| panic!("{error}: {schema}"));
    }
}

#[test]
fn expressions_and_grammars_are_refused_with_a_reason() {
    for (source, word) in [
        (GrammarSource::Regex("(a".to_owned()), "unclosed"),
        (GrammarSource::Regex("a\\".to_owned()), "incomplete"),
        (GrammarSource::Regex("(?P<stop>a)".to_owned()), "stop"),
        (GrammarSource::Regex("\\ba".to_owned()), "look"),
        (GrammarSource::Regex("a".repeat(20_000)), "limit"),
        (GrammarSource::Regex("[^\\x00-\\x{10FFFF}]".to_owned()), "nothing satisfies"),
        (GrammarSource::Lark(String::new()), "start"),
        (GrammarSource::Lark("start: other".to_owned()), "other"),
        (GrammarSource::Lark("start: <|no_such_token|>".to_owned()), "token"),
        (GrammarSource::Lark("start: start".to_owned()), "nothing satisfies"),
        (GrammarSource::Lark("start: <[0]>".to_owned()), "nothing satisfies"),
        (GrammarSource::Lark(format!("start: {}", "a ".repeat(20_000))), "limit"),
    ] {
        match demo_compiler().compile(&source) {
            Ok(_) => panic!("accepted: {source:?}"),
            Err(error) => {
                let message = error.to_string();
                assert!(message.contains(word) && !message.contains("panic"), "{source:?}: {message}");
            }
        }
    }
}
