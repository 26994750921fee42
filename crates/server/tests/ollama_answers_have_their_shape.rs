//! The Ollama protocol: lines, whole answers, options, formats, thinking, what is told about the model.

use crate::common::{Running, hello};
use coldpress_server::backend::GrammarSource;
use serde_json::{Value, json};

const WORDS: [&str; 8] = ["<think>", "hm", "</think>", "he", "llo", "<call f>", "{\"x\":1}", "</call>"];

fn tools() -> Value {
    json!([{ "type": "function", "function": { "name": "f", "parameters": { "type": "object" } } }])
}

#[test]
fn lines_joined_are_the_whole_answer() {
    let server = Running::saying(&WORDS);
    let mut body = json!({ "model": "script", "messages": hello(), "tools": tools(), "think": true });
    let events = server.stream("/api/chat", &body);
    assert_eq!(events.head.header("content-type"), Some("application/x-ndjson"));
    let lines = events.lines();
    body["stream"] = false.into();
    let whole = server.post("/api/chat", &body).expect(200);
    let joined = |name: &str| -> String {
        lines.iter().map(|line| line["message"][name].as_str().unwrap_or_default()).collect()
    };
    assert_eq!((joined("content"), joined("thinking")), ("hello".to_owned(), "hm".to_owned()));
    assert_eq!(
        (&whole["message"]["content"], &whole["message"]["thinking"]),
        (&json!("hello"), &json!("hm"))
    );
    let calls: Vec<Value> = lines
        .iter()
        .flat_map(|line| line["message"]["tool_calls"].as_array().cloned().unwrap_or_default())
        .collect();
    assert_eq!(calls[0]["function"], json!({ "index": 0, "name": "f", "arguments": { "x": 1 } }));
    assert_eq!(whole["message"]["tool_calls"], json!(calls));
    let (last, before) = lines.split_last().expect("lines");
    assert!(before.iter().all(|line| line["done"] == false));
    for end in [last, &whole] {
        assert_eq!(
            (&end["done"], &end["done_reason"], &end["model"]),
            (&json!(true), &json!("stop"), &json!("script"))
        );
        assert_eq!((&end["eval_count"], &end["eval_duration"]), (&json!(8), &json!(3_000_000)));
        assert_eq!(end["prompt_eval_duration"], 2_000_000);
        assert!(end["total_duration"].as_u64().is_some_and(|time| time > 0));
        assert_eq!(end["coldpress"]["cached_tokens"], 2);
    }
    assert_eq!(server.model.options.lock().unwrap()[0].thinking, Some(true));
}

#[test]
fn a_prompt_is_answered_by_the_template_or_raw() {
    let server = Running::saying(&["hi"]);
    let mut body = json!({ "model": "script", "prompt": "go", "system": "be brief", "stream": false });
    assert_eq!(server.post("/api/generate", &body).expect(200)["response"], "hi");
    assert!(server.model.last_seen().prompt.starts_with("\"system\": \"be brief\"\n\"user\": \"go\"\n"));
    body = json!({ "model": "script", "prompt": "go", "raw": true, "stream": false });
    server.post("/api/generate", &body).expect(200);
    assert_eq!(server.model.last_seen().prompt, "go");
    let loaded = server.post("/api/generate", &json!({ "model": "script" })).expect(200);
    assert_eq!((&loaded["done"], &loaded["done_reason"]), (&json!(true), &json!("load")));
}

#[test]
fn options_and_formats_reach_the_engine() {
    let server = Running::saying(&["{}"]);
    let schema = json!({ "type": "object" });
    for (format, wanted) in
        [(json!("json"), GrammarSource::JsonObject), (schema.clone(), GrammarSource::JsonSchema(schema))]
    {
        let body = json!({
            "model": "script", "messages": hello(), "stream": false, "format": format,
            "options": { "num_predict": 9, "stop": ["x"], "seed": 3, "temperature": 0, "top_k": 5 }
        });
        server.post("/api/chat", &body).expect(200);
        let seen = server.model.last_seen();
        assert_eq!((seen.max_tokens, seen.seed, seen.temperature), (9, 3, 0.0));
        assert_eq!(seen.stop, ["x"]);
        assert_eq!(server.model.grammars.lock().unwrap().last().expect("a grammar").0, wanted);
    }
    let body =
        json!({ "model": "script", "messages": hello(), "stream": false, "options": { "num_predict": -1 } });
    server.post("/api/chat", &body).expect(200);
    let seen = server.model.last_seen();
    assert_eq!(seen.max_tokens, 4096 - seen.prompt.len());
}

#[test]
fn the_model_is_described() {
    let server = Running::saying(&["a"]);
    let tags = server.get("/api/tags").expect(200);
    assert_eq!((&tags["models"][0]["name"], &tags["models"][0]["size"]), (&json!("script"), &json!(1234)));
    assert_eq!(tags["models"][0]["modified_at"], "2023-11-14T22:13:20Z");
    let shown = server.post("/api/show", &json!({ "model": "script:latest" })).expect(200);
    assert_eq!(shown["capabilities"], json!(["completion", "tools", "thinking"]));
    assert_eq!(shown["model_info"]["scripted.context_length"], 8192);
    server.post("/api/show", &json!({ "model": "other" })).expect(404);
    assert!(server.get("/api/version").expect(200)["version"].is_string());
    assert_eq!(server.get("/v1/models").expect(200)["data"][0]["id"], "script");
}
