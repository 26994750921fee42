//! Clients send answers back without their reasoning; the prompt must be what it was, or everything after it is computed anew.

use crate::common::scripted::say;
use crate::common::{Running, Scripted, hello, settings};
use coldpress_server::backend::FinishReason;
use serde_json::{Value, json};

fn server() -> Running {
    let words = ["<think>", "hm", "</think>", "calling", "<call f>", "{\"x\": ", "1}", "</call>"];
    Running::with(settings(), Scripted::new(vec![say(&words, FinishReason::Stop)]))
}

fn last_rendered(server: &Running) -> Vec<Value> {
    server.model.rendered.lock().unwrap().last().cloned().expect("a conversation")
}

#[test]
fn in_every_protocol() {
    let server = server();
    let schema = json!({ "type": "object" });
    let tools = json!([{ "type": "function", "function": { "name": "f", "parameters": schema } }]);
    let body = json!({ "messages": hello(), "tools": tools });
    let answer = server.post("/v1/chat/completions", &body).expect(200);
    let mut message = answer["choices"][0]["message"].clone();
    message.as_object_mut().expect("an object").remove("reasoning_content");
    let id = message["tool_calls"][0]["id"].clone();
    let turn = json!([hello()[0], message, { "role": "tool", "tool_call_id": id, "content": "2" }]);
    server.post("/v1/chat/completions", &json!({ "messages": turn, "tools": tools })).expect(200);
    assert_eq!(last_rendered(&server)[1]["reasoning_content"], "hm");

    let turn = json!([hello()[0], { "role": "assistant", "content": [
        { "type": "text", "text": "calling" }, { "type": "tool_use", "id": "t", "name": "f", "input": { "x": 1 } }
    ] }, { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "t", "content": "2" }] }]);
    let tools = json!([{ "name": "f", "input_schema": schema }]);
    server.post("/v1/messages", &json!({ "max_tokens": 5, "messages": turn, "tools": tools })).expect(200);
    assert_eq!(last_rendered(&server)[1]["reasoning_content"], "hm");

    let turn = json!([
        { "role": "user", "content": "hello" }, { "role": "assistant", "content": "calling" },
        { "type": "function_call", "call_id": "t", "name": "f", "arguments": "{\"x\":1}" },
        { "type": "function_call_output", "call_id": "t", "output": "2" }
    ]);
    server.post("/v1/responses", &json!({ "input": turn })).expect(200);
    assert_eq!(last_rendered(&server)[1]["reasoning_content"], "hm");
}

#[test]
fn another_answer_gets_no_reasoning_of_others() {
    let server = server();
    let tools = json!([{ "type": "function", "function": { "name": "f" } }]);
    server.post("/v1/chat/completions", &json!({ "messages": hello(), "tools": tools })).expect(200);
    let call =
        json!({ "id": "c", "type": "function", "function": { "name": "f", "arguments": "{\"x\": 2}" } });
    let turn =
        json!([hello()[0], { "role": "assistant", "content": "calling", "tool_calls": [call] }, hello()[0]]);
    server.post("/v1/chat/completions", &json!({ "messages": turn })).expect(200);
    assert_eq!(last_rendered(&server)[1].get("reasoning_content"), None);
}
