//! A closed socket ends its request at once: in the queue, in the prompt, in the answer, streaming or not.
//!
//! What went wrong elsewhere: the server noticed a closed socket only at the next write, so a long prompt ran to its end
//! for nobody. The script below never says anything, so no write can tell.

mod common;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use coldpress_server::backend::Event;
use common::{Running, Scripted, Step, eventually, hello, settings};
use serde_json::json;

/// Half a second is far above a poll of the event loop, and far below any timeout or sign of life.
const AT_ONCE: Duration = Duration::from_millis(500);

fn stages() -> [(&'static str, Vec<Step>); 3] {
    [
        ("in the queue", vec![Step::Tell(Event::Queued { ahead: 3 }), Step::WaitForEnd]),
        (
            "in the prompt",
            vec![
                Step::Tell(Event::Started { cached_tokens: 0 }),
                Step::Tell(Event::Prefill { done: 1, total: 9 }),
                Step::WaitForEnd,
            ],
        ),
        ("in the answer", vec![Step::Say("a"), Step::WaitForEnd]),
    ]
}

fn paths() -> [(&'static str, serde_json::Value); 6] {
    [
        ("/v1/chat/completions", json!({ "messages": hello() })),
        ("/v1/completions", json!({ "prompt": "a" })),
        ("/v1/responses", json!({ "input": "a" })),
        ("/v1/messages", json!({ "messages": hello(), "max_tokens": 9 })),
        ("/api/chat", json!({ "model": "script", "messages": hello() })),
        ("/api/generate", json!({ "model": "script", "prompt": "a" })),
    ]
}

fn gone_at_once(server: &Running, what: &str) {
    let left = Instant::now();
    eventually(what, || server.model.active.load(Ordering::SeqCst) == 0);
    assert!(left.elapsed() < AT_ONCE, "{what}: {:?}", left.elapsed());
}

#[test]
fn closing_ends_the_request_whether_it_streams_or_not() {
    for (stage, script) in stages() {
        let server = Running::with(settings(), Scripted::new(vec![script]));
        for (path, body) in paths() {
            for stream in [false, true] {
                let mut body = body.clone();
                body["stream"] = stream.into();
                let mut socket = server.connect();
                socket.send("POST", path, &[], body.to_string().as_bytes());
                eventually("the request's start", || server.model.active.load(Ordering::SeqCst) == 1);
                drop(socket);
                gone_at_once(&server, &format!("{path}, {stage}, stream {stream}"));
            }
        }
        assert_eq!(server.model.cancelled.load(Ordering::SeqCst), 12);
    }
}

#[test]
fn a_client_that_shuts_down_its_sending_half_counts_as_gone() {
    let (_, script) = stages().into_iter().next().expect("a stage");
    let server = Running::with(settings(), Scripted::new(vec![script]));
    let mut socket = server.connect();
    socket.send("POST", "/v1/chat/completions", &[], json!({ "messages": hello() }).to_string().as_bytes());
    eventually("the request's start", || server.model.active.load(Ordering::SeqCst) == 1);
    socket.close_sending();
    gone_at_once(&server, "half closed");
    assert!(socket.closed_within(AT_ONCE));
}

#[test]
fn a_further_request_on_the_connection_does_not_hide_the_leaving() {
    let (_, script) = stages().into_iter().next().expect("a stage");
    let server = Running::with(settings(), Scripted::new(vec![script]));
    let mut socket = server.connect();
    for _ in 0..2 {
        socket.send(
            "POST",
            "/v1/chat/completions",
            &[],
            json!({ "messages": hello() }).to_string().as_bytes(),
        );
    }
    eventually("the first request's start", || server.model.active.load(Ordering::SeqCst) == 1);
    drop(socket);
    gone_at_once(&server, "pipelined");
}

#[test]
fn leaving_ends_all_choices_and_nobody_elses() {
    let (_, script) = stages().into_iter().next().expect("a stage");
    let server = Running::with(settings(), Scripted::new(vec![script]));
    let body = json!({ "messages": hello(), "n": 4, "stream": true });
    let (first, second) =
        (server.stream("/v1/chat/completions", &body), server.stream("/v1/chat/completions", &body));
    eventually("all starts", || server.model.active.load(Ordering::SeqCst) == 8);
    first.leave();
    eventually("the first ones' end", || server.model.active.load(Ordering::SeqCst) == 4);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(server.model.active.load(Ordering::SeqCst), 4);
    second.leave();
    gone_at_once(&server, "the second");
    let counters = server.get("/v1/status").expect(200)["server"].clone();
    assert_eq!((&counters["answers_open"], &counters["answers_abandoned"]), (&json!(0), &json!(8)));
}
