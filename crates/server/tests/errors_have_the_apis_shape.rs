//! Errors: status, type and shape per API; both counts of tokens; the template's sentence; no absolute paths.

use crate::common::{Running, Scripted, hello, settings};
use coldpress_server::Health;
use coldpress_server::backend::SubmitError;
use serde_json::{Value, json};

fn requests(text: &str) -> [(&'static str, Value); 6] {
    let messages = json!([{ "role": "user", "content": text }]);
    [
        ("/v1/chat/completions", json!({ "messages": messages })),
        ("/v1/responses", json!({ "input": text })),
        ("/v1/messages", json!({ "messages": messages, "max_tokens": 9 })),
        ("/v1/completions", json!({ "prompt": text })),
        ("/api/chat", json!({ "model": "script", "messages": messages, "stream": false })),
        ("/api/generate", json!({ "model": "script", "prompt": text, "stream": false })),
    ]
}

/// The message, after a look at the shape.
fn message(path: &str, body: &Value) -> String {
    let error = &body["error"];
    if path.starts_with("/api/") {
        return error.as_str().expect("a text").to_owned();
    }
    if path.starts_with("/v1/messages") {
        assert_eq!(body["type"], "error");
        assert!(error["type"].is_string(), "{body}");
    } else {
        let fields = error.as_object().expect("an object");
        assert_eq!(fields.keys().map(|key| &**key).collect::<Vec<_>>(), ["message", "type", "param", "code"]);
    }
    error["message"].as_str().expect("a message").to_owned()
}

#[test]
fn a_prompt_beyond_the_context_is_refused_with_both_counts() {
    let server = Running::saying(&["a"]);
    for (path, body) in requests(&"x".repeat(5000)) {
        for stream in [false, true] {
            let mut body = body.clone();
            body["stream"] = stream.into();
            let refusal = server.post(path, &body).expect(400);
            let text = message(path, &refusal);
            assert!(text.contains("the context holds 4096"), "{path}: {text}");
            assert!(text.contains("the prompt has 50"), "{path}: {text}");
            if !path.starts_with("/api/") && !path.starts_with("/v1/messages") {
                assert_eq!(refusal["error"]["code"], "context_length_exceeded");
            }
        }
    }
}

#[test]
fn the_templates_refusal_is_told_in_its_words() {
    let server = Running::saying(&["a"]);
    for (path, body) in requests("REFUSE").into_iter().filter(|(path, _)| *path != "/v1/completions") {
        let refusal = server.post(path, &body).expect(400);
        assert!(message(path, &refusal).ends_with("Conversation roles must alternate (line 3)"), "{path}");
    }
    assert!(server.model.seen.lock().unwrap().is_empty());
}

#[test]
fn no_absolute_path_leaves_the_server() {
    let server = Running::saying(&["a"]);
    for (path, body) in requests("BREAK").into_iter().filter(|(path, _)| *path != "/v1/completions") {
        let refusal = server.post(path, &body).expect(500);
        assert_eq!(message(path, &refusal), "cannot read …/secret.gguf: gone");
    }
    server.state.set_health(Health::Failed("/srv/models/a.gguf: damaged".to_owned()));
    let health = server.get("/health").expect(503);
    assert_eq!(health, json!({ "status": "failed", "reason": "…/a.gguf: damaged" }));
}

#[test]
fn a_full_queue_asks_to_try_later_and_a_short_budget_does_not() {
    let server = Running::saying(&["a"]);
    *server.model.refusal.lock().unwrap() = Some(SubmitError::QueueFull { waiting: 64, limit: 64 });
    for (path, body) in requests("a") {
        let reply = server.post(path, &body);
        assert_eq!(reply.header("retry-after"), Some("5"), "{path}");
        assert!(message(path, &reply.expect(429)).contains("64"), "{path}");
    }
    *server.model.refusal.lock().unwrap() = Some(SubmitError::NoRoom { needed: 1000, pool: 500 });
    for (path, body) in requests("a") {
        let reply = server.post(path, &body);
        assert_eq!(
            (reply.header("retry-after"), reply.header("x-should-retry")),
            (None, Some("false")),
            "{path}"
        );
        let refusal = reply.expect(400);
        let text = message(path, &refusal);
        assert!(text.contains("1000") && text.contains("500"), "{path}: {text}");
        if !path.starts_with("/api/") {
            assert_eq!(refusal["error"]["type"], "out_of_memory_budget");
        }
    }
}

#[test]
fn malformed_json_is_refused_with_its_place() {
    let server = Running::saying(&["a"]);
    let bodies: [&[u8]; 5] = [b"{\"messages\": [", b"", b"\xff\xfe", b"[]", b"{\"a\":1}}"];
    for (path, _) in requests("a") {
        for body in bodies {
            let reply = server.connect().request("POST", path, &[], body);
            let text = message(path, &reply.expect(400));
            assert!(text.starts_with("the body is "), "{path}: {text}");
        }
        let deep = "[".repeat(100_000);
        server.connect().request("POST", path, &[], deep.as_bytes()).expect(400);
    }
}

#[test]
fn unknown_paths_and_methods_are_answered_in_json() {
    let server = Running::saying(&["a"]);
    for path in ["/v1/nothing", "/v1/messages/nothing", "/api/pull", "/nothing"] {
        let refusal = server.post(path, &json!({})).expect(404);
        assert!(message(path, &refusal).contains(path));
    }
    for (path, _) in requests("a") {
        let reply = server.get(path);
        assert_eq!(reply.header("allow"), Some("POST"), "{path}");
        let refusal = reply.expect(405);
        assert!(message(path, &refusal).ends_with("it knows POST"), "{path}");
    }
    let refusal = server.get("/v1/models/other").expect(404);
    assert!(message("/v1/models", &refusal).contains("\"script\""));
    server.get("/v1/models/scrip%74").expect(200);
}

#[test]
fn until_the_model_is_there_everybody_is_told_how_far_it_is() {
    let server = Running::loading(settings(), Scripted::saying(&["a"]));
    assert_eq!(server.get("/health").expect(503), json!({ "status": "loading" }));
    for (path, body) in requests("a") {
        let reply = server.post(path, &body);
        assert_eq!(reply.header("retry-after"), Some("2"), "{path}");
        assert_eq!(message(path, &reply.expect(503)), "the model is loading");
    }
    server.state.set_health(Health::Probing);
    assert_eq!(server.get("/health").expect(503), json!({ "status": "probing" }));
    server.get("/v1/status").expect(200);
    assert_eq!(server.get("/metrics").status, 200);
    server.state.ready(server.model.clone());
    assert_eq!(server.get("/health").expect(200), json!({ "status": "ready" }));
    server.post("/v1/chat/completions", &json!({ "messages": hello() })).expect(200);
}

/// What went wrong: a packed body was read as if it were text, and its client was told about column 1 of bad JSON.
#[test]
fn a_packed_body_is_refused_by_the_name_of_its_packing() {
    let server = Running::saying(&["a"]);
    for (path, body) in requests("a") {
        let body = body.to_string();
        let packed = |encoding: &str| {
            server.connect().request("POST", path, &[("Content-Encoding", encoding)], body.as_bytes())
        };
        let refused = packed("gzip");
        assert!(message(path, &refused.expect(415)).contains("gzip"), "{path}");
        packed("identity").expect(200);
    }
}
