//! Streams: headers at once, a sign of life by the wall clock, progress of the prompt, whole text at the end.
//!
//! What went wrong elsewhere: signs of life that were tied to progress, so that a long stall or a withheld call looked
//! like a dead server. The interval is a setting; here it is short.

mod common;

use std::time::{Duration, Instant};

use coldpress_server::ServerSettings;
use coldpress_server::backend::{BackendError, Event, FinishReason};
use common::scripted::say;
use common::{Running, Scripted, Step, hello, settings};
use serde_json::{Value, json};

const INTERVAL: Duration = Duration::from_millis(250);

fn silent_then(step: Step) -> Vec<Step> {
    let end = Step::Finish(FinishReason::Stop);
    vec![step, Step::Wait(INTERVAL * 7), Step::Say("a"), end]
}

fn server(script: Vec<Step>) -> Running {
    Running::with(ServerSettings { keep_alive: INTERVAL, ..settings() }, Scripted::new(vec![script]))
}

fn requests() -> [(&'static str, Value); 4] {
    [
        ("/v1/chat/completions", json!({ "messages": hello(), "stream": true })),
        ("/v1/completions", json!({ "prompt": "a", "stream": true })),
        ("/v1/responses", json!({ "input": "a", "stream": true })),
        ("/v1/messages", json!({ "messages": hello(), "max_tokens": 9, "stream": true })),
    ]
}

#[test]
fn the_interval_is_below_the_five_seconds_that_clients_count_on() {
    assert!(ServerSettings::default().keep_alive < Duration::from_secs(5));
}

#[test]
fn headers_come_at_once_and_comments_by_the_wall_clock() {
    for step in [Step::Tell(Event::Queued { ahead: 2 }), Step::Tell(Event::Prefill { done: 1, total: 100 })] {
        let server = server(silent_then(step));
        for (path, body) in requests() {
            let start = Instant::now();
            let mut events = server.stream(path, &body);
            assert_eq!(events.head.header("content-type"), Some("text/event-stream"));
            assert!(events.head_after < INTERVAL, "{path}: headers after {:?}", events.head_after);
            let (mut signs, mut last) = (0, start);
            while let Some(block) = events.block() {
                // Twice the interval leaves room for a busy machine, not for a sign that failed to come.
                assert!(last.elapsed() < INTERVAL * 2, "{path}: silent for {:?}", last.elapsed());
                last = Instant::now();
                signs += usize::from(block == ": keep-alive");
            }
            assert!((4..=7).contains(&signs), "{path}: {signs} signs of life");
        }
    }
}

#[test]
fn what_is_withheld_is_no_reason_for_silence() {
    // The name of a call is held back until its arguments begin.
    let script = silent_then(Step::Say("<call f>"));
    let server = server(script);
    let tools = json!([{ "type": "function", "function": { "name": "f" } }]);
    let body = json!({ "messages": hello(), "stream": true, "tools": tools });
    let blocks = server.stream("/v1/chat/completions", &body).blocks();
    assert!(blocks.iter().filter(|block| *block == ": keep-alive").count() >= 4, "{blocks:?}");
}

#[test]
fn lines_of_ollama_show_life_by_empty_pieces() {
    let server = server(silent_then(Step::Tell(Event::Queued { ahead: 2 })));
    let lines = server.stream("/api/chat", &json!({ "model": "script", "messages": hello() })).lines();
    let empty = lines.iter().filter(|line| line["message"]["content"] == "" && line["done"] == false).count();
    assert!((4..=7).contains(&empty), "{lines:?}");
}

#[test]
fn progress_of_the_prompt_is_a_comment_or_an_object_when_asked() {
    let script = vec![
        Step::Tell(Event::Queued { ahead: 2 }),
        Step::Tell(Event::Started { cached_tokens: 64 }),
        Step::Tell(Event::Prefill { done: 512, total: 4096 }),
        Step::Tell(Event::Prefill { done: 4096, total: 4096 }),
        Step::Say("a"),
        Step::Finish(FinishReason::Stop),
    ];
    let server = server(script);
    for (path, body) in requests() {
        let blocks = server.stream(path, &body).blocks();
        for wanted in [
            ": queued behind 2",
            ": started, 64 prompt tokens cached",
            ": prefill 512/4096",
            ": prefill 4096/4096",
        ] {
            assert!(blocks.iter().any(|block| block == wanted), "{path}: no {wanted} in {blocks:?}");
        }
        let mut body = body;
        body["coldpress"] = json!({ "progress": true });
        let blocks = server.stream(path, &body).blocks();
        let told =
            blocks.iter().any(|block| block.contains(r#""coldpress":{"prefill":{"done":512,"total":4096}}"#));
        assert!(told, "{path}: {blocks:?}");
    }
}

#[test]
fn parts_joined_are_the_whole_text() {
    let server = Running::with(
        settings(),
        Scripted::new(vec![say(&["日", "本", "", "🦀", " ", "é"], FinishReason::Stop)]),
    );
    let chunks = server.stream("/v1/completions", &json!({ "prompt": "a", "stream": true })).data();
    let text: String = chunks.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str()).collect();
    assert_eq!(text, "日本🦀 é");
    let whole = server.post("/v1/completions", &json!({ "prompt": "a" })).expect(200);
    assert_eq!(whole["choices"][0]["text"], text);
}

#[test]
fn a_failure_after_the_headers_is_an_event_in_the_apis_shape() {
    let failure = BackendError::Internal("reading /home/somebody/x.gguf failed".to_owned());
    let server = server(vec![Step::Say("a"), Step::Tell(Event::Failed(failure))]);
    let error = |blocks: Vec<String>| {
        let line = blocks
            .iter()
            .rev()
            .find_map(|block| block.split("data: ").nth(1).filter(|data| data.contains("failed")));
        serde_json::from_str::<Value>(line.expect("an error")).expect("JSON")
    };
    let wanted = "reading …/x.gguf failed";
    for (number, (path, body)) in requests().into_iter().enumerate() {
        let error = error(server.stream(path, &body).blocks());
        let message =
            if number == 2 { &error["response"]["error"]["message"] } else { &error["error"]["message"] };
        assert_eq!(message, wanted, "{path}");
    }
    let lines = server.stream("/api/chat", &json!({ "model": "script", "messages": hello() })).lines();
    assert_eq!(lines.last(), Some(&json!({ "error": wanted })));
}
