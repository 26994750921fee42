//! `GET /openapi.json`: the description of all paths, for people and for tools that test servers.
//!
//! Owns the paths; `openapi/schemas.rs` has the bodies. A test compares the paths with the router's table.

mod schemas;

use std::sync::{Arc, LazyLock};

use axum::body::Body;
use axum::http::{Request, Response, StatusCode};
use serde_json::{Map, Value, json};

use crate::errors::{ApiError, Shape};
use crate::reply;
use crate::state::ServerState;

/// One path: method, path, summary, schema of the body, types of a good answer, schema of its JSON.
type Described =
    (&'static str, &'static str, &'static str, Option<&'static str>, &'static [&'static str], &'static str);

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";
const LINES: &str = "application/x-ndjson";

const PATHS: [Described; 22] = [
    (
        "POST",
        "/v1/chat/completions",
        "Answer a conversation (OpenAI)",
        Some("ChatRequest"),
        &[JSON, EVENTS],
        "ChatCompletion",
    ),
    (
        "POST",
        "/v1/completions",
        "Continue a text (OpenAI)",
        Some("CompletionRequest"),
        &[JSON, EVENTS],
        "Completion",
    ),
    (
        "POST",
        "/v1/responses",
        "Answer a conversation (OpenAI Responses)",
        Some("ResponseRequest"),
        &[JSON, EVENTS],
        "Response",
    ),
    (
        "POST",
        "/v1/embeddings",
        "Refused: the model has no embedding head",
        Some("EmbeddingRequest"),
        &[],
        "Object",
    ),
    ("GET", "/v1/models", "The models: there is one", None, &[JSON], "ModelList"),
    ("GET", "/v1/models/{id}", "One model", None, &[JSON], "Model"),
    (
        "POST",
        "/v1/messages",
        "Answer a conversation (Anthropic)",
        Some("MessageRequest"),
        &[JSON, EVENTS],
        "Message",
    ),
    (
        "POST",
        "/v1/messages/count_tokens",
        "Count the tokens of a conversation (Anthropic)",
        Some("CountRequest"),
        &[JSON],
        "TokenCount",
    ),
    (
        "POST",
        "/api/chat",
        "Answer a conversation (Ollama)",
        Some("OllamaChat"),
        &[LINES, JSON],
        "OllamaAnswer",
    ),
    (
        "POST",
        "/api/generate",
        "Answer a prompt (Ollama)",
        Some("OllamaGenerate"),
        &[LINES, JSON],
        "OllamaAnswer",
    ),
    ("POST", "/api/show", "The model in detail (Ollama)", Some("OllamaShow"), &[JSON], "Object"),
    ("GET", "/api/tags", "The models: there is one (Ollama)", None, &[JSON], "OllamaModels"),
    ("GET", "/api/ps", "The model in memory (Ollama)", None, &[JSON], "OllamaModels"),
    ("GET", "/api/version", "The version (Ollama)", None, &[JSON], "Object"),
    (
        "POST",
        "/api/embed",
        "Refused: the model has no embedding head (Ollama)",
        Some("EmbeddingRequest"),
        &[],
        "Object",
    ),
    ("GET", "/health", "Whether the model answers; 200 only when it does", None, &[JSON], "Health"),
    ("GET", "/metrics", "Counters for Prometheus", None, &["text/plain"], "Text"),
    ("GET", "/v1/status", "State of server and engine", None, &[JSON], "Object"),
    ("POST", "/tokenize", "Ids of a text", Some("TokenizeRequest"), &[JSON], "Tokens"),
    ("POST", "/detokenize", "Text of ids", Some("DetokenizeRequest"), &[JSON], "Object"),
    ("GET", "/openapi.json", "This description", None, &[JSON], "Object"),
    ("GET", "/", "A page that shows the state", None, &["text/html"], "Text"),
];

static DESCRIPTION: LazyLock<Value> = LazyLock::new(describe);

/// Sends the description.
///
/// # Errors
/// None.
pub async fn handle(_state: Arc<ServerState>, _request: Request<Body>) -> Result<Response<Body>, ApiError> {
    Ok(reply::json(StatusCode::OK, &DESCRIPTION))
}

fn reference(schema: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{schema}") })
}

fn describe() -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for described in PATHS {
        let entry = paths.entry(described.1).or_insert_with(|| json!({}));
        entry[described.0.to_ascii_lowercase()] = operation(&described);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "coldpress", "version": env!("CARGO_PKG_VERSION"),
            "description": "Language models larger than memory, under one memory budget. Fields that have no effect \
                are accepted and named in the header x-coldpress-ignored; fields that are not known are refused.",
            "license": { "name": "MIT OR Apache-2.0" }
        },
        "security": [{}, { "bearer": [] }, { "key": [] }],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "bearer": { "type": "http", "scheme": "bearer" },
                "key": { "type": "apiKey", "in": "header", "name": "x-api-key" }
            },
            "schemas": schemas::all()
        }
    })
}

fn operation(&(_, path, summary, body, types, schema): &Described) -> Value {
    let error = match Shape::of_path(path) {
        Shape::OpenAi => "OpenAiError",
        Shape::Anthropic => "AnthropicError",
        Shape::Ollama => "OllamaError",
    };
    let error_body = json!({ JSON: { "schema": reference(error) } });
    let mut responses = Map::new();
    if !types.is_empty() {
        let content: Map<String, Value> = types
            .iter()
            .map(|&name| {
                let schema = match name {
                    JSON => schema,
                    EVENTS | LINES => "Stream",
                    _ => "Text",
                };
                (name.to_owned(), json!({ "schema": reference(schema) }))
            })
            .collect();
        responses.insert("200".to_owned(), json!({ "description": "The answer", "content": content }));
    }
    let mut error_of = |status: &str, description: &str| {
        responses.insert(status.to_owned(), json!({ "description": description, "content": error_body }));
    };
    if body.is_some() {
        error_of("400", "The request is wrong: the field is named");
        error_of("408", "The body came too slowly");
        error_of("413", "The body is too large");
        error_of("429", "Too many requests wait");
    }
    error_of("401", "No key or a wrong one");
    error_of("403", "Wrong host or origin");
    error_of("404", "No such thing");
    error_of("405", "Another method is needed");
    if path == "/health" {
        let content = json!({ JSON: { "schema": reference("Health") } });
        responses
            .insert("503".to_owned(), json!({ "description": "It does not answer yet", "content": content }));
    } else {
        error_of("503", "The model is not ready, or the budget has no room");
    }
    let mut operation = json!({ "summary": summary, "responses": responses });
    if let Some(body) = body {
        operation["requestBody"] =
            json!({ "required": true, "content": { JSON: { "schema": reference(body) } } });
    }
    if path.contains("{id}") {
        operation["parameters"] =
            json!([{ "name": "id", "in": "path", "required": true, "schema": { "type": "string" } }]);
    }
    if path == "/v1/status" {
        let schema = json!({ "type": "string", "enum": ["0", "1"] });
        let about =
            "1: uses and hits of every expert in engine.detail.telemetry, packed as docs/server.md says";
        operation["parameters"] =
            json!([{ "name": "experts", "in": "query", "description": about, "schema": schema }]);
    }
    operation
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_is_described_and_every_description_has_a_path() {
        let mut described: Vec<_> = PATHS.iter().map(|path| (path.0, path.1)).collect();
        let mut routed: Vec<_> = crate::ROUTES.iter().map(|route| (route.method, route.path)).collect();
        described.sort_unstable();
        routed.sort_unstable();
        assert_eq!(described, routed);
    }

    #[test]
    fn every_reference_has_a_target() {
        fn check(value: &Value, whole: &Value) {
            match value {
                Value::Object(fields) => {
                    if let Some(Value::String(target)) = fields.get("$ref") {
                        assert!(whole.pointer(&target[1..]).is_some(), "{target}");
                    }
                    fields.values().for_each(|value| check(value, whole));
                }
                Value::Array(values) => values.iter().for_each(|value| check(value, whole)),
                _ => {}
            }
        }
        check(&DESCRIPTION, &DESCRIPTION);
    }
}
