//! Completions: the legacy shape of log probabilities, ids as prompts, the usage chunk.

use crate::common::Running;
use serde_json::{Value, json};

const PATH: &str = "/v1/completions";

#[test]
fn log_probabilities_are_parallel_lists_with_offsets() {
    let server = Running::saying(&["ab", "é", "c"]);
    let mut body = json!({ "prompt": "x", "logprobs": 2 });
    let whole = server.post(PATH, &body).expect(200);
    let choice = &whole["choices"][0];
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!("abéc"), &json!("stop")));
    let logprobs = &choice["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["a", "bytes:\\xc3", "c"]));
    assert_eq!(logprobs["token_logprobs"], json!([-0.5, -0.5, -0.5]));
    // Offsets count characters, as Python does.
    assert_eq!(logprobs["text_offset"], json!([0, 2, 3]));
    assert_eq!(logprobs["top_logprobs"][0], json!({ "a": -0.5, "b": -1.5 }));
    body["stream"] = true.into();
    let chunks = server.stream(PATH, &body).data();
    let joined = |name: &str| -> Vec<Value> {
        chunks
            .iter()
            .flat_map(|chunk| chunk["choices"][0]["logprobs"][name].as_array().cloned().unwrap_or_default())
            .collect()
    };
    for name in ["tokens", "token_logprobs", "text_offset", "top_logprobs"] {
        assert_eq!(json!(joined(name)), logprobs[name], "{name}");
    }
}

#[test]
fn a_prompt_is_a_text_or_ids() {
    let server = Running::saying(&["a"]);
    for prompt in [json!("hi"), json!(["hi"]), json!([104, 105]), json!([[104, 105]])] {
        server.post(PATH, &json!({ "prompt": prompt })).expect(200);
        let seen = server.model.last_seen();
        assert_eq!((&*seen.prompt, seen.max_tokens), ("hi", 16));
    }
    server.post(PATH, &json!({ "prompt": "" })).expect(400);
}

#[test]
fn usage_comes_in_one_last_chunk_when_asked() {
    let server = Running::saying(&["a", "b"]);
    let body = json!({ "prompt": "x", "stream": true, "stream_options": { "include_usage": true } });
    let chunks = server.stream(PATH, &body).data();
    let last = chunks.last().expect("a chunk");
    assert_eq!((&last["choices"], &last["usage"]["completion_tokens"]), (&json!([]), &json!(2)));
    let chunks = server.stream(PATH, &json!({ "prompt": "x", "stream": true })).data();
    assert!(chunks.iter().all(|chunk| chunk.get("usage").is_none()));
}
