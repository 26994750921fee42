//! The token limit may cut a call in half. Where an API shows arguments as an object, half of one must not look like a call.

use crate::common::scripted::say;
use crate::common::{Running, Scripted, hello, settings};
use coldpress_server::backend::FinishReason;
use serde_json::{Value, json};

fn server() -> Running {
    Running::with(settings(), Scripted::new(vec![say(&["<call f>", "{\"path\": \"/"], FinishReason::Length)]))
}

#[test]
fn it_is_text_for_anthropic_and_ollama() {
    let server = server();
    let tools = json!([{ "name": "f" }]);
    let body = json!({ "max_tokens": 5, "messages": hello(), "tools": tools });
    let message = server.post("/v1/messages", &body).expect(200);
    assert_eq!(message["stop_reason"], "max_tokens");
    assert_eq!(message["content"], json!([{ "type": "text", "text": "f({\"path\": \"/)" }]));
    let tools = json!([{ "type": "function", "function": { "name": "f" } }]);
    let mut body = json!({ "model": "script", "messages": hello(), "tools": tools, "stream": false });
    let whole = server.post("/api/chat", &body).expect(200);
    assert_eq!(whole["done_reason"], "length");
    assert_eq!(whole["message"], json!({ "role": "assistant", "content": "f({\"path\": \"/)" }));
    body["stream"] = true.into();
    let lines = server.stream("/api/chat", &body).lines();
    assert!(lines.iter().all(|line| line["message"].get("tool_calls").is_none()), "{lines:?}");
    assert!(lines.iter().any(|line| line["message"]["content"] == whole["message"]["content"]), "{lines:?}");
}

#[test]
fn it_ends_with_length_for_openai() {
    let server = server();
    let tools = json!([{ "type": "function", "function": { "name": "f" } }]);
    let mut body = json!({ "messages": hello(), "tools": tools });
    let answer = server.post("/v1/chat/completions", &body).expect(200);
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    body["stream"] = true.into();
    let chunks = server.stream("/v1/chat/completions", &body).data();
    assert_eq!(
        chunks.last().map(|chunk| chunk["choices"][0]["finish_reason"].clone()),
        Some(Value::from("length"))
    );
}
