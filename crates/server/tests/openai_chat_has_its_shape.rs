//! Chat completions: whole answers and chunks have OpenAI's shape and say the same.

use crate::common::scripted::say;
use crate::common::{Running, Scripted, hello, settings};
use coldpress_server::backend::{FinishReason, GrammarSource};
use serde_json::{Value, json};

const PATH: &str = "/v1/chat/completions";

fn tool(name: &str) -> Value {
    json!({ "type": "function", "function": {
        "name": name, "description": "d",
        "parameters": { "type": "object", "properties": { "x": { "$ref": "#/$defs/n" } }, "$defs": { "n": { "type": "integer" } } }
    } })
}

/// Joins the deltas of a stream into a message, as the official clients do.
fn joined(chunks: &[Value]) -> Value {
    let (mut content, mut reasoning, mut role) = (String::new(), String::new(), Value::Null);
    let mut calls: Vec<(String, String, String)> = Vec::new();
    for chunk in chunks {
        let Some(choice) = chunk["choices"].get(0) else { continue };
        let delta = &choice["delta"];
        content += delta["content"].as_str().unwrap_or_default();
        reasoning += delta["reasoning_content"].as_str().unwrap_or_default();
        if delta["role"].is_string() {
            role = delta["role"].clone();
        }
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().expect("an index") as usize;
            if calls.len() <= index {
                let text = |value: &Value| value.as_str().expect("text").to_owned();
                calls.push((text(&call["id"]), text(&call["function"]["name"]), String::new()));
            }
            calls[index].2 += call["function"]["arguments"].as_str().unwrap_or_default();
        }
    }
    json!({ "role": role, "content": content, "reasoning": reasoning, "calls": calls })
}

#[test]
fn a_whole_answer_has_content_reasoning_and_usage() {
    let server = Running::saying(&["<think>", "hm", "</think>", "he", "llo"]);
    let answer = server.post(PATH, &json!({ "model": "script", "messages": hello() })).expect(200);
    assert_eq!(answer["object"], "chat.completion");
    assert!(answer["id"].as_str().expect("an id").starts_with("chatcmpl-"));
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["role"], "assistant");
    assert_eq!(choice["message"]["content"], "hello");
    assert_eq!(choice["message"]["reasoning_content"], "hm");
    assert_eq!(choice["finish_reason"], "stop");
    assert_eq!(choice["logprobs"], Value::Null);
    let usage = &answer["usage"];
    assert_eq!(usage["completion_tokens"], 5);
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 2);
    // The mark that ends the reasoning is a token of it.
    assert_eq!(usage["completion_tokens_details"]["reasoning_tokens"], 2);
    assert_eq!(usage["coldpress"]["bytes_read"], 4096);
    assert_eq!(usage["coldpress"]["hit_rate"], 0.75);
    assert_eq!(usage["coldpress"]["disk_wait_ms"], 4.0);
    assert_eq!(usage["coldpress"]["peak_memory_bytes"], 1 << 20);
}

#[test]
fn chunks_say_what_the_whole_answer_says() {
    let words =
        ["<think>", "hm", "</think>", "é日", "<call f>", "{\"x\"", ":1}", "</call>", "<call g>", "</call>"];
    let server = Running::saying(&words);
    let mut body = json!({ "messages": hello(), "tools": [tool("f"), tool("g")] });
    let whole = server.post(PATH, &body).expect(200);
    body["stream"] = true.into();
    let chunks = server.stream(PATH, &body).data();
    let message = &whole["choices"][0]["message"];
    let joined = joined(&chunks);
    assert_eq!(joined["role"], "assistant");
    assert_eq!(joined["content"], message["content"]);
    assert_eq!(joined["reasoning"], message["reasoning_content"]);
    let calls: Vec<Value> = message["tool_calls"]
        .as_array()
        .expect("calls")
        .iter()
        .map(|call| json!([call["id"], call["function"]["name"], call["function"]["arguments"]]))
        .collect();
    assert_eq!(joined["calls"], json!(calls));
    // A call without arguments carries an object all the same.
    assert_eq!(calls[1][2], "{}");
    assert_eq!(whole["choices"][0]["finish_reason"], "tool_calls");
    assert_eq!(chunks.last().expect("a chunk")["choices"][0]["finish_reason"], "tool_calls");
    assert!(
        chunks
            .iter()
            .all(|chunk| chunk["object"] == "chat.completion.chunk" && chunk["id"] == chunks[0]["id"])
    );
}

#[test]
fn usage_comes_in_one_last_chunk_when_asked_and_never_otherwise() {
    let server = Running::saying(&["a"]);
    let body = json!({ "messages": hello(), "stream": true, "stream_options": { "include_usage": true } });
    let chunks = server.stream(PATH, &body).data();
    let (last, before) = chunks.split_last().expect("chunks");
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], 1);
    assert!(before.iter().all(|chunk| chunk.get("usage") == Some(&Value::Null)));
    let chunks = server.stream(PATH, &json!({ "messages": hello(), "stream": true })).data();
    assert!(chunks.iter().all(|chunk| chunk.get("usage").is_none()));
}

#[test]
fn log_probabilities_come_with_bytes_whole_and_in_chunks() {
    let server = Running::saying(&["<think>", "é", "</think>", "b", "<call f>", "{}", "</call>"]);
    let mut body = json!({ "messages": hello(), "logprobs": true, "top_logprobs": 2, "tools": [tool("f")] });
    let whole = server.post(PATH, &body).expect(200);
    let tokens = whole["choices"][0]["logprobs"]["content"].as_array().expect("a list").clone();
    assert_eq!(tokens.len(), 7);
    // The first byte of é is no character, and its bytes say what it is.
    assert_eq!(
        tokens[1],
        json!({
            "token": "\u{fffd}", "logprob": -0.5, "bytes": [195], "top_logprobs": [
                { "token": "\u{fffd}", "logprob": -0.5, "bytes": [195] },
                { "token": "\u{fffd}", "logprob": -1.5, "bytes": [196] }
            ]
        })
    );
    body["stream"] = true.into();
    let chunks = server.stream(PATH, &body).data();
    let streamed: Vec<Value> = chunks
        .iter()
        .flat_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array().cloned().unwrap_or_default())
        .collect();
    assert_eq!(streamed, tokens);
}

#[test]
fn several_choices_have_seeds_of_their_own() {
    let server = Running::saying(&["a"]);
    let body = json!({ "messages": hello(), "n": 3, "seed": 40, "temperature": 0.5 });
    let answer = server.post(PATH, &body).expect(200);
    let indices: Vec<_> =
        answer["choices"].as_array().expect("choices").iter().map(|choice| choice["index"].clone()).collect();
    assert_eq!(indices, [0, 1, 2]);
    assert_eq!(answer["usage"]["completion_tokens"], 3);
    let seen = server.model.seen.lock().unwrap();
    assert_eq!(seen.iter().map(|seen| seen.seed).collect::<Vec<_>>(), [40, 41, 42]);
    assert_eq!(seen[0].temperature, 0.5);
}

#[test]
fn every_field_reaches_the_engine() {
    let server = Running::saying(&["a"]);
    let body = json!({
        "messages": hello(), "stop": ["x", "y"], "logit_bias": { "65": -100, "66": 1.5 }, "max_completion_tokens": 7
    });
    server.post(PATH, &body).expect(200);
    let seen = server.model.last_seen();
    assert_eq!((seen.stop, seen.max_tokens), (vec!["x".to_owned(), "y".to_owned()], 7));
    assert_eq!(seen.logit_bias, [(65, -100.0), (66, 1.5)]);
    assert_eq!(seen.client, "127.0.0.1");
}

#[test]
fn a_forced_call_is_enforced_by_a_grammar() {
    let model = Scripted::new(vec![
        say(&["<think>", "hm", "</think>", "{\"x\"", ": 3}"], FinishReason::Stop),
        say(&["{\"name\": \"g\", \"argu", "ments\": {\"x\": 4}}"], FinishReason::Stop),
    ]);
    let server = Running::with(settings(), model);
    let named = json!({ "type": "function", "function": { "name": "f" } });
    let body = json!({ "messages": hello(), "tools": [tool("f"), tool("g")], "tool_choice": named });
    let answer = server.post(PATH, &body).expect(200);
    let message = &answer["choices"][0]["message"];
    assert_eq!(message["tool_calls"][0]["function"], json!({ "name": "f", "arguments": "{\"x\": 3}" }));
    assert_eq!((&message["content"], &message["reasoning_content"]), (&Value::Null, &json!("hm")));
    let body = json!({ "messages": hello(), "tools": [tool("f"), tool("g")], "tool_choice": "required" });
    let answer = server.post(PATH, &body).expect(200);
    let call = &answer["choices"][0]["message"]["tool_calls"][0];
    assert_eq!(call["function"], json!({ "name": "g", "arguments": "{\"x\":4}" }));
    let grammars = server.model.grammars.lock().unwrap();
    let GrammarSource::JsonSchema(schema) = &grammars[1].0 else { panic!("a schema") };
    let moved = &schema["anyOf"][1]["properties"]["arguments"]["properties"]["x"]["$ref"];
    assert_eq!(moved, "#/anyOf/1/properties/arguments/$defs/n");
    assert!(grammars.iter().all(|(_, after_reasoning)| !*after_reasoning));
    drop(grammars);
    let messages = json!([{ "role": "user", "content": "THINK" }]);
    let body = json!({ "messages": messages, "tools": [tool("f")], "tool_choice": "required" });
    server.post(PATH, &body).expect(200);
    assert!(server.model.grammars.lock().unwrap()[2].1, "the grammar begins where the reasoning ends");
}

#[test]
fn arguments_that_are_no_object_never_become_a_call() {
    let server = Running::saying(&["<call f>", "[1, 2]", "</call>", "<call f>", "{\"x\": 1}", "</call>"]);
    let answer = server.post(PATH, &json!({ "messages": hello(), "tools": [tool("f")] })).expect(200);
    let message = &answer["choices"][0]["message"];
    assert_eq!(message["content"], "f([1, 2])");
    let calls = message["tool_calls"].as_array().expect("calls");
    assert_eq!(calls.len(), 1);
    assert_eq!(calls[0]["function"]["arguments"], "{\"x\": 1}");
}

#[test]
fn one_call_at_a_time_ends_the_answer_after_it() {
    let mut script = say(&["<call f>", "{}", "</call>"], FinishReason::Stop);
    script.pop();
    script.push(crate::common::Step::WaitForEnd);
    let server = Running::with(settings(), Scripted::new(vec![script]));
    let body = json!({ "messages": hello(), "tools": [tool("f")], "parallel_tool_calls": false });
    let answer = server.post(PATH, &body).expect(200);
    assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls");
    assert_eq!(answer["choices"][0]["message"]["tool_calls"].as_array().map(Vec::len), Some(1));
}

#[test]
fn history_reaches_the_template_as_objects() {
    let server = Running::saying(&["a"]);
    let messages = json!([
        { "role": "developer", "content": "be brief" },
        { "role": "user", "content": [{ "type": "text", "text": "one" }, { "type": "text", "text": "two" }] },
        { "role": "assistant", "content": null, "refusal": null, "reasoning_content": "hm", "tool_calls": [
            { "id": "c1", "type": "function", "function": { "name": "f", "arguments": "{\"x\": {\"y\": 1}}" } },
            { "id": "c2", "type": "function", "function": { "name": "f", "arguments": "not JSON" } }
        ] },
        { "role": "tool", "tool_call_id": "c1", "content": "3" }
    ]);
    server.post(PATH, &json!({ "messages": messages })).expect(200);
    let rendered = server.model.rendered.lock().unwrap()[0].clone();
    assert_eq!(rendered[0], json!({ "role": "system", "content": "be brief" }));
    assert_eq!(rendered[1]["content"], "one\ntwo");
    assert_eq!(rendered[2]["tool_calls"][0]["function"]["arguments"], json!({ "x": { "y": 1 } }));
    assert_eq!(rendered[2]["tool_calls"][1]["function"]["arguments"], "not JSON");
    assert_eq!(rendered[2]["reasoning_content"], "hm");
    assert_eq!(rendered[3], json!({ "role": "tool", "content": "3", "tool_call_id": "c1" }));
}

#[test]
fn thinking_is_switched_by_the_standard_fields() {
    let server = Running::saying(&["a"]);
    let cases = [
        (json!({}), None),
        (json!({ "reasoning_effort": "none" }), Some(false)),
        (json!({ "reasoning_effort": "low" }), Some(true)),
        (json!({ "chat_template_kwargs": { "enable_thinking": false } }), Some(false)),
    ];
    for (mut body, wanted) in cases {
        body["messages"] = hello();
        server.post(PATH, &body).expect(200);
        let options = server.model.options.lock().unwrap().last().cloned().expect("options");
        assert_eq!(options.thinking, wanted, "{body}");
    }
    let body = json!({ "messages": hello(), "chat_template_kwargs": { "enable_thinkin": false } });
    let reply = server.post(PATH, &body);
    assert_eq!(reply.header("x-coldpress-ignored"), Some("chat_template_kwargs.enable_thinkin"));
}
