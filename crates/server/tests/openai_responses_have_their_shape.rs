//! The Responses API: numbered events in their order, items, and the response they come to.

use crate::common::scripted::say;
use crate::common::{Running, Scripted, settings};
use coldpress_server::backend::FinishReason;
use serde_json::{Value, json};

const PATH: &str = "/v1/responses";
const WORDS: [&str; 8] = ["<think>", "hm", "</think>", "he", "llo", "<call f>", "{\"x\":1}", "</call>"];

fn body(stream: bool) -> Value {
    json!({
        "model": "script", "input": "hello", "instructions": "be brief", "stream": stream,
        "reasoning": { "effort": "low" },
        "tools": [{ "type": "function", "name": "f", "parameters": { "type": "object" }, "strict": true }]
    })
}

/// What differs between two answers to the same request.
fn without_identifiers(mut response: Value) -> Value {
    for name in ["id", "created_at"] {
        response[name] = Value::Null;
    }
    for item in response["output"].as_array_mut().into_iter().flatten() {
        item["id"] = Value::Null;
    }
    response
}

#[test]
fn events_are_numbered_and_come_in_their_order() {
    let server = Running::saying(&WORDS);
    let events = server.stream(PATH, &body(true)).named();
    let names: Vec<&str> =
        events.iter().map(|(name, _)| name.strip_prefix("response.").unwrap_or(name)).collect();
    let wanted = [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ];
    assert_eq!(names, wanted);
    for (number, (name, value)) in events.iter().enumerate() {
        assert_eq!(
            (value["type"].as_str(), value["sequence_number"].as_u64()),
            (Some(&**name), Some(number as u64))
        );
    }
    let item = |value: &Value| value.get("item_id").cloned().unwrap_or_else(|| value["item"]["id"].clone());
    for group in [2..8, 8..15, 15..19] {
        let first = item(&events[group.start].1);
        assert!(events[group].iter().all(|(_, value)| item(value) == first));
    }
}

#[test]
fn the_last_event_holds_the_whole_response() {
    let server = Running::saying(&WORDS);
    let events = server.stream(PATH, &body(true)).named();
    let streamed = without_identifiers(events.last().expect("an event").1["response"].clone());
    let whole = without_identifiers(server.post(PATH, &body(false)).expect(200));
    assert_eq!(streamed, whole);
    assert_eq!(whole["status"], "completed");
    let kinds: Vec<_> =
        whole["output"].as_array().expect("items").iter().map(|item| item["type"].clone()).collect();
    assert_eq!(kinds, ["reasoning", "message", "function_call"]);
    assert_eq!(whole["output"][1]["content"][0]["text"], "hello");
    assert_eq!(whole["output"][2]["arguments"], "{\"x\":1}");
    assert_eq!(whole["usage"]["input_tokens_details"]["cached_tokens"], 2);
    assert_eq!(whole["usage"]["output_tokens_details"]["reasoning_tokens"], 2);
    let rendered = server.model.rendered.lock().unwrap()[0].clone();
    assert_eq!(rendered[0], json!({ "role": "system", "content": "be brief" }));
}

#[test]
fn an_answer_that_was_cut_is_incomplete() {
    let server = Running::with(settings(), Scripted::new(vec![say(&["a"], FinishReason::Length)]));
    let response = server.post(PATH, &json!({ "input": "a", "max_output_tokens": 1 })).expect(200);
    assert_eq!(response["status"], "incomplete");
    assert_eq!(response["incomplete_details"], json!({ "reason": "max_output_tokens" }));
    let events = server.stream(PATH, &json!({ "input": "a", "stream": true })).named();
    assert_eq!(events.last().expect("an event").0, "response.incomplete");
}

#[test]
fn items_of_a_turn_become_one_message() {
    let server = Running::saying(&["a"]);
    let input = json!([
        { "role": "developer", "content": "be brief" },
        { "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "go" }] },
        { "type": "reasoning", "id": "rs_1", "summary": [], "content": [{ "type": "reasoning_text", "text": "hm" }] },
        { "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": "calling" }] },
        { "type": "function_call", "call_id": "c1", "name": "f", "arguments": "{\"x\":1}" },
        { "type": "function_call", "call_id": "c2", "name": "f", "arguments": "{}" },
        { "type": "function_call_output", "call_id": "c1", "output": "3" },
        { "type": "function_call_output", "call_id": "c2", "output": [{ "type": "input_text", "text": "4" }] }
    ]);
    server.post(PATH, &json!({ "input": input })).expect(200);
    let rendered = server.model.rendered.lock().unwrap()[0].clone();
    let roles: Vec<_> = rendered.iter().map(|message| message["role"].clone()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "tool", "tool"]);
    assert_eq!(
        (&rendered[2]["content"], &rendered[2]["reasoning_content"]),
        (&json!("calling"), &json!("hm"))
    );
    assert_eq!(rendered[2]["tool_calls"].as_array().map(Vec::len), Some(2));
    assert_eq!((&rendered[4]["content"], &rendered[4]["tool_call_id"]), (&json!("4"), &json!("c2")));
}
