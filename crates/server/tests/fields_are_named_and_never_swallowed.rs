//! Fields: what is not known or not supported is refused by name, what does no harm is named in a header.

use crate::common::{Running, hello};
use serde_json::{Value, json};

/// The message of a refusal in any shape.
fn message(body: &Value) -> String {
    let error = &body["error"];
    error["message"].as_str().or(error.as_str()).unwrap_or_else(|| panic!("{body}")).to_owned()
}

#[test]
fn refusals_name_the_field() {
    let server = Running::saying(&["a"]);
    let image =
        json!([{ "role": "user", "content": [{ "type": "image_url", "image_url": { "url": "data:," } }] }]);
    let chat = |field: &str, value: Value| {
        let mut body = json!({ "model": "script", "messages": hello(), "max_tokens": 5 });
        body[field] = value;
        body
    };
    let cases = [
        (
            "/v1/chat/completions",
            chat("temprature", json!(1)),
            "temprature is not a known field; did you mean temperature?",
        ),
        (
            "/v1/chat/completions",
            chat("temperature", json!("hot")),
            "temperature is \"hot\"; it must be a number from 0 to 100",
        ),
        ("/v1/chat/completions", chat("messages", image), "messages[0].content[0] is of type \"image_url\""),
        ("/v1/chat/completions", chat("top_logprobs", json!(3)), "top_logprobs needs logprobs to be true"),
        ("/v1/chat/completions", chat("functions", json!([{}])), "functions is the form before tools"),
        ("/v1/chat/completions", chat("tool_choice", json!("required")), "tool_choice needs tools"),
        ("/v1/chat/completions", chat("n", json!(99)), "n is 99; it must be a whole number from 1 to 16"),
        ("/v1/chat/completions", chat("stop", json!([""])), "stop holds an empty text"),
        ("/v1/chat/completions", chat("modalities", json!(["audio"])), "modalities may hold text only"),
        (
            "/v1/chat/completions",
            chat("response_format", json!({ "type": "yaml" })),
            "response_format.type is \"yaml\"",
        ),
        ("/v1/completions", json!({ "prompt": "a", "echo": true }), "echo is not supported"),
        ("/v1/completions", json!({ "prompt": "a", "suffix": "b" }), "suffix is not supported"),
        ("/v1/completions", json!({ "prompt": ["a", "b"] }), "prompt holds several prompts"),
        (
            "/v1/responses",
            json!({ "input": "a", "previous_response_id": "resp_1" }),
            "previous_response_id is not supported",
        ),
        (
            "/v1/responses",
            json!({ "input": [{ "type": "input_image" }] }),
            "input[0] is of type \"input_image\"",
        ),
        ("/v1/responses", json!({ "input": "a", "truncation": "auto" }), "truncation may not be auto"),
        ("/v1/messages", json!({ "messages": hello() }), "max_tokens is missing"),
        (
            "/v1/messages",
            chat("stop_sequence", json!("x")),
            "stop_sequence is not a known field; did you mean stop_sequences?",
        ),
        (
            "/v1/messages",
            chat("messages", json!([{ "role": "user", "content": [{ "type": "image" }] }])),
            "messages[0].content[0].type is \"image\"",
        ),
        (
            "/api/chat",
            json!({ "model": "script", "options": { "mirostat": 1 } }),
            "options.mirostat is not supported",
        ),
        ("/api/chat", json!({ "model": "script", "format": "xml" }), "format is \"xml\""),
        (
            "/api/generate",
            json!({ "model": "script", "prompt": "a", "context": [1] }),
            "context is not supported",
        ),
        ("/api/generate", json!({ "prompt": "a" }), "model is missing"),
        ("/v1/embeddings", json!({ "input": "a" }), "this model has no embedding head"),
        ("/api/embed", json!({ "input": "a" }), "this model has no embedding head"),
        ("/tokenize", json!({ "conten": "a" }), "content is missing"),
        ("/detokenize", json!({ "tokens": ["a"] }), "tokens must be a list of token ids"),
    ];
    for (path, body, wanted) in cases {
        let refusal = server.post(path, &body).expect(400);
        let found = message(&refusal);
        assert!(found.starts_with(wanted), "{path}: {found}");
    }
    assert_eq!(server.model.seen.lock().unwrap().len(), 0);
}

#[test]
fn the_parameter_at_fault_is_told_apart_from_the_sentence() {
    let server = Running::saying(&["a"]);
    let body =
        json!({ "messages": hello(), "tools": [{ "type": "function", "function": { "name": "a b" } }] });
    let error = server.post("/v1/chat/completions", &body).expect(400)["error"].clone();
    assert_eq!((&error["param"], &error["type"]), (&json!("tools[0]"), &json!("invalid_request_error")));
}

#[test]
fn what_does_no_harm_is_accepted_and_named_in_a_header() {
    let server = Running::saying(&["a"]);
    let ignored = |path: &str, body: Value| {
        let reply = server.post(path, &body);
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.header("x-coldpress-ignored").map(str::to_owned)
    };
    let body = json!({ "model": "script", "messages": hello(), "user": "u", "store": false, "metadata": {} });
    assert_eq!(ignored("/v1/chat/completions", body).as_deref(), Some("metadata, store, user"));
    let body = json!({ "model": "gpt-x", "messages": hello() });
    assert_eq!(ignored("/v1/chat/completions", body).as_deref(), Some("model"));
    let body = json!({ "model": "script", "messages": [{ "role": "user", "content": "a", "weight": 1 }] });
    assert_eq!(ignored("/v1/chat/completions", body).as_deref(), Some("messages[0].weight"));
    let body = json!({ "input": "a", "tools": [{ "type": "web_search" }], "include": ["reasoning.encrypted_content"] });
    let wanted = "include (reasoning.encrypted_content), tools[0] (web_search)";
    assert_eq!(ignored("/v1/responses", body).as_deref(), Some(wanted));
    let body = json!({
        "max_tokens": 5, "messages": hello(), "metadata": { "user_id": "x" },
        "thinking": { "type": "enabled", "budget_tokens": 1024 }
    });
    assert_eq!(ignored("/v1/messages", body).as_deref(), Some("thinking.budget_tokens, metadata"));
    let body = json!({ "model": "script:latest", "messages": hello(), "options": { "num_ctx": 4096 }, "keep_alive": "5m" });
    assert_eq!(ignored("/api/chat", body).as_deref(), Some("options.num_ctx"));
    let body = json!({ "messages": hello(), "response_format": null, "tools": [], "stream": false });
    assert_eq!(ignored("/v1/chat/completions", body), None);
}

#[test]
fn a_schema_that_cannot_be_enforced_is_refused_with_its_place() {
    let server = Running::saying(&["{}"]);
    let schema = json!({ "type": "object", "properties": { "x": { "if_then": {} } } });
    let cases = [
        (
            "/v1/chat/completions",
            json!({ "messages": hello(), "response_format": {
            "type": "json_schema", "json_schema": { "name": "n", "schema": schema }
        } }),
        ),
        (
            "/v1/responses",
            json!({ "input": "a", "text": { "format": { "type": "json_schema", "name": "n", "schema": schema } } }),
        ),
        (
            "/v1/messages",
            json!({ "max_tokens": 5, "messages": hello(), "output_config": {
            "format": { "type": "json_schema", "schema": schema }
        } }),
        ),
        ("/api/chat", json!({ "model": "script", "messages": hello(), "format": schema })),
    ];
    for (path, body) in cases {
        let refusal = server.post(path, &body).expect(400);
        assert!(
            message(&refusal).starts_with("#/properties/x/if_then is not supported"),
            "{path}: {refusal}"
        );
    }
    let body = json!({ "messages": hello(), "response_format": { "type": "json_object" } });
    server.post("/v1/chat/completions", &body).expect(200);
    assert!(server.model.last_seen().constrained);
}

/// What went wrong elsewhere: a call that must be made has a grammar of its own, so a format beside it was forgotten.
#[test]
fn a_format_beside_tools_is_refused_and_not_forgotten() {
    let server = Running::saying(&["a"]);
    let schema = json!({ "type": "object" });
    let function = json!([{ "type": "function", "function": { "name": "f", "parameters": schema } }]);
    let named = json!({ "type": "function", "function": { "name": "f" } });
    let chat = |choice: &Value| {
        json!({ "messages": hello(), "tools": function, "tool_choice": choice,
                "response_format": { "type": "json_schema", "json_schema": { "name": "r", "schema": schema } } })
    };
    let mut cases: Vec<(&str, Value, &str)> = [json!("required"), named, json!("auto")]
        .iter()
        .map(|choice| ("/v1/chat/completions", chat(choice), "response_format"))
        .collect();
    cases.push((
        "/v1/responses",
        json!({ "input": "a", "tools": [{ "type": "function", "name": "f", "parameters": schema }], "tool_choice": "required",
                "text": { "format": { "type": "json_schema", "name": "r", "schema": schema } } }),
        "text.format",
    ));
    cases.push((
        "/v1/messages",
        json!({ "messages": hello(), "max_tokens": 5, "tools": [{ "name": "f", "input_schema": schema }],
                "tool_choice": { "type": "any" }, "output_config": { "format": { "type": "json_schema", "schema": schema } } }),
        "output_config.format",
    ));
    cases.push((
        "/api/chat",
        json!({ "model": "script", "messages": hello(), "tools": function, "format": "json" }),
        "format",
    ));
    for (path, body, field) in cases {
        let refused = server.post(path, &body);
        assert_eq!(refused.status, 400, "{path} {body}");
        let message = message(&refused.json());
        assert!(
            message.starts_with(&format!("{field} cannot be enforced together with tools")),
            "{path}: {message}"
        );
    }
}
