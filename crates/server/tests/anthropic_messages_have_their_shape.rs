//! The Anthropic protocol: order of events, blocks, usage, counting, tool results.

use crate::common::scripted::say;
use crate::common::{Running, Scripted, hello, settings};
use coldpress_server::backend::FinishReason;
use serde_json::{Value, json};

const PATH: &str = "/v1/messages";

fn body(stream: bool) -> Value {
    json!({
        "model": "script", "max_tokens": 100, "messages": hello(), "stream": stream,
        "system": [
            { "type": "text", "text": "x-anthropic-billing-header: cch=1a2b;" },
            { "type": "text", "text": "be brief", "cache_control": { "type": "ephemeral" } }
        ],
        "thinking": { "type": "enabled" },
        "tools": [{ "name": "f", "description": "d", "input_schema": { "type": "object" } }]
    })
}

const WORDS: [&str; 8] = ["<think>", "h", "m", "</think>", "hi", "<call f>", "{\"x\":1}", "</call>"];

#[test]
fn events_come_in_their_order() {
    let server = Running::saying(&WORDS);
    let events = server.stream(PATH, &body(true)).named();
    let names: Vec<String> = events
        .iter()
        .map(|(name, value)| {
            assert_eq!(value["type"], **name);
            let detail = value["delta"]["type"].as_str().or(value["content_block"]["type"].as_str());
            detail.map_or(name.clone(), |detail| format!("{name} {detail}"))
        })
        .collect();
    let wanted = [
        "message_start",
        "ping",
        "content_block_start thinking",
        "content_block_delta thinking_delta",
        "content_block_delta thinking_delta",
        "content_block_delta signature_delta",
        "content_block_stop",
        "content_block_start text",
        "content_block_delta text_delta",
        "content_block_stop",
        "content_block_start tool_use",
        "content_block_delta input_json_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(names, wanted);
    let indices: Vec<_> = events.iter().filter_map(|(_, value)| value["index"].as_u64()).collect();
    assert_eq!(indices, [0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2]);
    assert_eq!(
        events[0].1["message"]["usage"]["input_tokens"].as_u64(),
        Some(server.model.last_seen().prompt.len() as u64)
    );
    let end = &events[13].1;
    assert_eq!(end["delta"], json!({ "stop_reason": "tool_use", "stop_sequence": null }));
    assert_eq!(
        (&end["usage"]["cache_read_input_tokens"], &end["usage"]["output_tokens"]),
        (&json!(2), &json!(8))
    );
}

#[test]
fn the_whole_message_holds_the_same_blocks() {
    let server = Running::saying(&WORDS);
    let reply = server.post(PATH, &body(false));
    assert_eq!(reply.header("x-coldpress-ignored"), Some("system[0]"));
    let message = reply.expect(200);
    assert_eq!(
        (&message["type"], &message["role"], &message["model"]),
        (&json!("message"), &json!("assistant"), &json!("script"))
    );
    let wanted = json!([
        { "type": "thinking", "thinking": "hm", "signature": "" },
        { "type": "text", "text": "hi" },
        { "type": "tool_use", "id": "call_0", "name": "f", "input": { "x": 1 } }
    ]);
    assert_eq!(message["content"], wanted);
    let seen = server.model.last_seen();
    let input = message["usage"]["input_tokens"].as_u64().expect("a count");
    assert_eq!(input + 2, seen.prompt.len() as u64);
    assert_eq!(message["usage"]["coldpress"]["bytes_read"], 4096);
    // The line that differs with every request is not part of the prompt.
    assert!(!seen.prompt.contains("billing") && seen.prompt.contains("be brief"));
}

#[test]
fn results_of_calls_come_before_the_users_words() {
    let server = Running::saying(&["ok"]);
    let messages = json!([
        { "role": "user", "content": "go" },
        { "role": "assistant", "content": [
            { "type": "thinking", "thinking": "hm", "signature": "s" },
            { "type": "text", "text": "calling" },
            { "type": "tool_use", "id": "t1", "name": "f", "input": { "x": 1 } }
        ] },
        { "role": "user", "content": [
            { "type": "tool_result", "tool_use_id": "t1", "content": [{ "type": "text", "text": "3" }] },
            { "type": "text", "text": "and?" }
        ] }
    ]);
    server.post(PATH, &json!({ "max_tokens": 5, "messages": messages })).expect(200);
    let rendered = server.model.rendered.lock().unwrap()[0].clone();
    assert_eq!(
        rendered[1],
        json!({
            "role": "assistant", "content": "calling", "reasoning_content": "hm",
            "tool_calls": [{ "type": "function", "function": { "name": "f", "arguments": { "x": 1 } }, "id": "t1" }]
        })
    );
    assert_eq!(rendered[2], json!({ "role": "tool", "tool_call_id": "t1", "content": "3" }));
    assert_eq!(rendered[3], json!({ "role": "user", "content": "and?" }));
    let options = server.model.options.lock().unwrap();
    assert_eq!(options[0].thinking, Some(false), "thinking is off unless it is asked for");
}

#[test]
fn the_end_is_named_by_its_cause() {
    let cases = [
        (FinishReason::Stop, "end_turn", Value::Null),
        (FinishReason::Length, "max_tokens", Value::Null),
        (FinishReason::StopString("END".to_owned()), "stop_sequence", json!("END")),
    ];
    for (reason, name, sequence) in cases {
        let server = Running::with(settings(), Scripted::new(vec![say(&["a"], reason)]));
        let body = json!({ "max_tokens": 5, "messages": hello(), "stop_sequences": ["END"] });
        let message = server.post(PATH, &body).expect(200);
        assert_eq!((&message["stop_reason"], &message["stop_sequence"]), (&json!(name), &sequence));
        assert_eq!(server.model.last_seen().stop, ["END"]);
    }
}

#[test]
fn tokens_are_counted_as_the_prompt_has_them() {
    let server = Running::saying(&["a"]);
    let mut request = body(false);
    server.post(PATH, &request).expect(200);
    request.as_object_mut().expect("an object").remove("max_tokens");
    let count = server.post("/v1/messages/count_tokens", &request).expect(200);
    assert_eq!(count["input_tokens"].as_u64(), Some(server.model.last_seen().prompt.len() as u64));
}

#[test]
fn a_forced_tool_is_enforced() {
    let server = Running::saying(&["{\"x\": 2}"]);
    let mut request = body(false);
    request["tool_choice"] = json!({ "type": "tool", "name": "f" });
    let message = server.post(PATH, &request).expect(200);
    assert_eq!(message["content"][0]["input"], json!({ "x": 2 }));
    assert_eq!(message["stop_reason"], "tool_use");
    assert!(server.model.last_seen().constrained);
}
