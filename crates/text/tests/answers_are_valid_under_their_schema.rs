//! Whatever is drawn from the masks of a JSON schema, an independent validator (the jsonschema crate) accepts it.
//!
//! What could go wrong: a keyword that is accepted and has no effect, a number that is rounded, a name that is written
//! with escapes. Answers are drawn uniformly, so they are far from what a model would write.

use crate::grammar_support::{Random, allowed, demo_compiler, demo_tokenizer, draw, draw_with, written};
use coldpress_text::GrammarSource;
use serde_json::{Value, json};

const SEEDS: u64 = 24;
const TOKENS_MAX: usize = 400;

fn schemas() -> Vec<Value> {
    let strings = json!({ "type": "string", "maxLength": 12 });
    vec![
        json!({ "type": "object" }),
        json!({ "type": "object", "properties": { "name": strings, "age": { "type": "integer" } },
            "required": ["name", "age"], "additionalProperties": false }),
        json!({ "type": "object", "properties": { "a": { "type": "integer" }, "b": strings, "c": { "type": "null" } },
            "additionalProperties": false }),
        json!({ "type": "object", "properties": { "a": { "type": "integer" } }, "required": ["b"],
            "additionalProperties": { "type": "boolean" } }),
        json!({ "enum": ["red", "green", "blå", 3, -1.5, null, true, "a\"b\\c\n", ["x", 1], { "k": "v" }] }),
        json!({ "type": "string", "enum": ["one", "two", 3] }),
        json!({ "const": { "kind": "point", "at": [0, -1.25] } }),
        json!({ "type": "array", "items": { "type": "array", "items": { "type": "integer", "minimum": -3, "maximum": 12 } },
            "minItems": 1, "maxItems": 3 }),
        json!({ "type": "array", "prefixItems": [strings, { "type": "boolean" }], "items": { "type": "integer" },
            "minItems": 1, "maxItems": 5 }),
        json!({ "type": "array", "items": [{ "type": "null" }, { "type": "boolean" }], "additionalItems": false,
            "$schema": "http://json-schema.org/draft-07/schema#" }),
        json!({ "type": "integer", "minimum": 17, "maximum": 100_203 }),
        json!({ "type": "integer", "exclusiveMinimum": -12, "maximum": 5 }),
        json!({ "type": "integer", "maximum": -7 }),
        json!({ "type": "number", "minimum": 0.125, "exclusiveMaximum": 3.5 }),
        json!({ "type": "number", "exclusiveMinimum": -2.75, "maximum": 1000 }),
        json!({ "type": "number", "minimum": 10 }),
        json!({ "type": "number", "maximum": -0.5 }),
        json!({ "type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 10_000 }),
        json!({ "type": "number", "multipleOf": 0.25, "minimum": -10, "maximum": 10 }),
        json!({ "allOf": [{ "multipleOf": 4 }, { "multipleOf": 6 }], "type": "integer", "minimum": 1, "maximum": 999 }),
        json!({ "type": "string", "minLength": 2, "maxLength": 5 }),
        json!({ "type": "string", "pattern": "^[A-Z]{2}-\\d{3,5}$" }),
        json!({ "type": "string", "pattern": "a|^b.c$", "maxLength": 8 }),
        json!({ "type": "string", "pattern": "^\\s?[^\\w\\s]+.?$", "maxLength": 6 }),
        json!({ "type": "string", "pattern": "^(ab?|c)+$", "minLength": 3, "maxLength": 9 }),
        json!({ "anyOf": [{ "type": "integer", "minimum": 5 }, { "type": "string", "maxLength": 3 }, { "type": "null" }] }),
        json!({ "type": ["string", "null", "array"], "maxLength": 4, "maxItems": 2, "items": { "type": "boolean" } }),
        json!({ "oneOf": [{ "type": "integer" }, { "type": "boolean" }] }),
        json!({ "oneOf": [
            { "type": "object", "properties": { "t": { "const": "a" }, "x": { "type": "integer" } }, "required": ["t", "x"] },
            { "type": "object", "properties": { "t": { "const": "b" }, "y": { "type": "null" } }, "required": ["t", "y"] }] }),
        json!({ "oneOf": [{ "$ref": "#/$defs/Cat" }, { "$ref": "#/$defs/Dog", "title": "D" }],
            "discriminator": { "propertyName": "kind" },
            "$defs": { "Cat": { "type": "object", "required": ["kind"], "additionalProperties": false,
                "properties": { "kind": { "const": "cat", "type": "string" }, "lives": { "type": "integer", "minimum": 1, "maximum": 9 } } },
            "Dog": { "type": "object", "required": ["kind"], "additionalProperties": false,
                "properties": { "kind": { "const": "dog", "type": "string" }, "good": { "type": "boolean" } } } } }),
        json!({ "type": "object", "properties": { "value": { "type": "integer" }, "next": { "$ref": "#" } },
            "required": ["value"], "additionalProperties": false }),
        json!({ "$ref": "#/$defs/a~1b%20c", "$defs": { "a/b c": { "type": "array", "maxItems": 2,
            "items": { "$ref": "#/$defs/leaf" } }, "leaf": { "enum": [1, 2] }, "unused": { "not": {} } } }),
        json!({ "allOf": [
            { "type": "object", "properties": { "a": { "type": "integer" } }, "required": ["a"] },
            { "properties": { "a": { "minimum": 3 }, "b": { "type": "boolean" } }, "required": ["b"] }] }),
        json!({ "type": "object", "patternProperties": { "^n_": { "type": "integer" }, "^s_": strings },
            "additionalProperties": false, "minProperties": 1, "maxProperties": 3 }),
        json!({ "type": "object", "properties": { "n_x": { "maximum": 9 } }, "patternProperties": { "^n_": { "type": "integer" } },
            "required": ["n_x"] }),
        json!({ "type": "object", "maxProperties": 2, "additionalProperties": { "type": "boolean" } }),
        json!({ "type": "string", "format": "date" }),
        json!({ "type": "string", "format": "time" }),
        json!({ "type": "string", "format": "date-time" }),
        json!({ "type": "string", "format": "uuid" }),
        json!({ "type": "string", "format": "ipv4" }),
        json!({ "type": "string", "format": "ipv6" }),
        json!({ "type": "string", "format": "email", "maxLength": 40 }),
        json!({ "type": "string", "format": "hostname", "maxLength": 40 }),
        json!({ "type": "string", "format": "uri", "maxLength": 60 }),
        json!({ "type": "string", "format": "duration" }),
        json!({ "type": ["string", "integer"], "format": "date", "pattern": "^1" }),
        json!({ "type": "integer", "format": "int32", "minimum": 0, "maximum": 9 }),
        json!(true),
    ]
}

fn validator(schema: &Value) -> jsonschema::Validator {
    jsonschema::options().should_validate_formats(true).build(schema).expect("a schema")
}

/// The value of an answer. Answers are JSON of any size of number; serde_json refuses some of them (1e999), which no
/// schema here asks for: `None`.
fn parsed(text: &[u8]) -> Option<Value> {
    let text = std::str::from_utf8(text).expect("an answer is UTF-8");
    match serde_json::from_str(text) {
        Ok(value) => Some(value),
        Err(error) if error.to_string().contains("number out of range") => None,
        Err(error) => panic!("{error}: {text:?}"),
    }
}

#[test]
fn answers_are_valid_under_their_schema() {
    let tokenizer = demo_tokenizer();
    for schema in schemas() {
        let validator = validator(&schema);
        let source = GrammarSource::JsonSchema(schema.clone());
        let mut complete = 0;
        for seed in 0..SEEDS {
            let constraint =
                demo_compiler().compile(&source).unwrap_or_else(|error| panic!("{error}: {schema}"));
            let Some(ids) = draw(constraint, tokenizer, seed, TOKENS_MAX) else { continue };
            let text = written(tokenizer, &ids);
            let Some(value) = parsed(&text) else { continue };
            complete += 1;
            if let Err(error) = validator.validate(&value) {
                panic!("{error} at {}: {value} under {schema}", error.instance_path());
            }
        }
        assert!(complete >= SEEDS / 2, "only {complete} of {SEEDS} answers came to an end: {schema}");
    }
}

/// The check above must be able to fail: masks of a wider schema give answers that the validator refuses.
#[test]
fn a_broken_mask_is_noticed() {
    let tokenizer = demo_tokenizer();
    let schema = json!({ "type": "array", "items": { "type": "integer", "maximum": 99, "minimum": 10 }, "maxItems": 4 });
    let wider = json!({ "type": "array", "items": { "type": "integer", "maximum": 999, "minimum": 10 }, "maxItems": 5 });
    let validator = validator(&schema);
    let invalid = (0..SEEDS).filter(|&seed| {
        let constraint =
            demo_compiler().compile(&GrammarSource::JsonSchema(wider.clone())).expect("a constraint");
        let Some(ids) = draw(constraint, tokenizer, seed, TOKENS_MAX) else { return false };
        parsed(&written(tokenizer, &ids)).is_some_and(|value| !validator.is_valid(&value))
    });
    assert!(invalid.count() >= 3);
}

/// A name has one spelling. With escapes, `"\u0061"` would be a further property beside `"a"`, of any type.
#[test]
fn a_listed_name_cannot_be_written_with_escapes() {
    let schema = json!({ "type": "object", "properties": { "a": { "type": "integer" } } });
    for (text, possible) in
        [("{\"a\":\"", false), ("{\"\\u0061\":\"", false), ("{\"b\":\"", true), ("{\"a\":1", true)]
    {
        let mut constraint =
            demo_compiler().compile(&GrammarSource::JsonSchema(schema.clone())).expect("a constraint");
        let ids: Vec<u32> = text.bytes().map(byte_token).collect();
        let taken = ids.iter().take_while(|&&id| constraint.accept(id).is_ok()).count();
        assert_eq!(taken == ids.len(), possible, "{text:?}, {taken} bytes taken");
    }
}

fn byte_token(byte: u8) -> u32 {
    let tokenizer = demo_tokenizer();
    let mut ids = 0..tokenizer.vocab_size() as u32;
    ids.find(|&id| tokenizer.token_bytes(id) == [byte]).expect("every byte is a token")
}

/// Greedy choice under a mask: whatever the logits are, the best allowed token is allowed, and it is the same each time.
#[test]
fn the_same_schema_has_the_same_masks_and_the_best_token_is_allowed() {
    let tokenizer = demo_tokenizer();
    let schema = json!({ "type": "object", "properties": { "id": { "type": "integer" }, "tags": { "type": "array",
        "items": { "enum": ["x", "y", "zebra"] }, "maxItems": 3 } }, "required": ["id", "tags"], "additionalProperties": false });
    let source = GrammarSource::JsonSchema(schema);
    let greedy = |seed| {
        let mut random = Random::new(seed);
        let mut constraint = demo_compiler().compile(&source).expect("a constraint");
        let mut masks = Vec::new();
        while !constraint.must_end() && masks.len() < 60 {
            let logits: Vec<f32> =
                (0..tokenizer.vocab_size()).map(|_| random.below(1 << 20) as f32).collect();
            let mut masked = logits.clone();
            constraint.mask(&mut masked).expect("a mask");
            let best =
                (0..masked.len()).max_by(|&a, &b| masked[a].total_cmp(&masked[b])).expect("tokens") as u32;
            assert_eq!(masked[best as usize], logits[best as usize], "a mask changes no allowed logit");
            assert!(allowed(&mut constraint, tokenizer).contains(&best));
            if tokenizer.stop_tokens().contains(&best) {
                break;
            }
            constraint.accept(best).expect("the best token is allowed");
            masks.push((best, masked));
        }
        masks
    };
    for seed in 0..4 {
        assert!(greedy(seed) == greedy(seed), "seed {seed}");
    }
}

/// Control tokens are in no answer, and a stop token is refused where the grammar goes on.
#[test]
fn control_tokens_are_never_allowed_and_stop_tokens_only_at_the_end() {
    let tokenizer = demo_tokenizer();
    let control: Vec<u32> = (0..tokenizer.vocab_size() as u32)
        .filter(|&id| tokenizer.token_type(id) == coldpress_text::TokenType::Control)
        .collect();
    assert!(control.len() >= 3 && !tokenizer.stop_tokens().is_empty());
    let lark = format!("start: /(?s:.)*/ | <[{}]>", control[0]);
    for source in
        [GrammarSource::JsonObject, GrammarSource::Regex("(?s:.){1,9}".to_owned()), GrammarSource::Lark(lark)]
    {
        let constraint = demo_compiler().compile(&source).expect("a constraint");
        let mut random = Random::new(1);
        draw_with(constraint, tokenizer, 40, &mut |choices, _| {
            for id in choices {
                assert!(
                    !control.contains(id) || tokenizer.stop_tokens().contains(id),
                    "control token {id} is allowed"
                );
            }
            choices[random.below(choices.len())]
        });
        let mut constraint = demo_compiler().compile(&GrammarSource::JsonObject).expect("a constraint");
        assert!(!constraint.may_end());
        assert!(constraint.accept(tokenizer.stop_tokens()[0]).is_err());
        assert!(constraint.accept(control[0]).is_err());
        assert!(!allowed(&mut constraint, tokenizer).is_empty(), "a refused token changes nothing");
    }
}
