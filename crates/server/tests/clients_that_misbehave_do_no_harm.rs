//! Slow clients, large bodies, idle connections by the thousand, clients that do not read: the server stays as it was.

use std::io::Read;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::common::{Running, Scripted, Socket, Step, eventually, hello, settings};
use coldpress_server::ServerSettings;
use coldpress_server::backend::FinishReason;
use serde_json::json;

const CHAT: &str = "/v1/chat/completions";

fn answers(server: &Running) {
    server.post(CHAT, &json!({ "messages": hello() })).expect(200);
}

#[test]
fn a_thousand_idle_connections_do_no_harm() {
    let server = Running::saying(&["a"]);
    let mut idle: Vec<Socket> = (0..1000).map(|_| server.connect()).collect();
    // Half of them have sent a part of a request.
    for socket in idle.iter_mut().step_by(2) {
        socket.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: local");
    }
    eventually("all of them", || server.state.counters.connections.load(Ordering::Relaxed) == 1000);
    let start = Instant::now();
    answers(&server);
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    drop(idle);
    eventually("their end", || server.state.counters.connections.load(Ordering::Relaxed) == 0);
    answers(&server);
}

#[test]
fn connections_beyond_the_limit_are_told_so() {
    let server = Running::with(ServerSettings { connections_max: 4, ..settings() }, Scripted::saying(&["a"]));
    let held: Vec<Socket> = (0..4).map(|_| server.connect()).collect();
    eventually("four connections", || server.state.counters.connections.load(Ordering::Relaxed) == 4);
    let mut fifth = server.connect();
    let reply = fifth.reply();
    assert_eq!(reply.header("retry-after"), Some("1"));
    reply.expect(503);
    drop(held);
    eventually("their end", || server.state.counters.connections.load(Ordering::Relaxed) == 0);
    answers(&server);
}

#[test]
fn slow_headers_and_slow_bodies_end() {
    let short = Duration::from_millis(200);
    let settings = ServerSettings { header_timeout: short, body_idle_timeout: short, ..settings() };
    let server = Running::with(settings, Scripted::saying(&["a"]));
    let mut nothing = server.connect();
    let mut headers = server.connect();
    headers.write(b"GET /health HTTP/1.1\r\nhost: localhost\r\nx-slow: ");
    let mut body = server.connect();
    body.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{\"mess",
    );
    assert!(headers.closed_within(Duration::from_secs(2)));
    assert!(nothing.closed_within(Duration::from_secs(2)));
    let refusal = body.reply().expect(408);
    assert_eq!(refusal["error"]["message"], "the body came too slowly: 6 bytes were received");
    answers(&server);
}

#[test]
fn a_body_that_drips_ends_at_its_limit_of_time() {
    let settings = ServerSettings {
        body_idle_timeout: Duration::from_millis(300),
        body_timeout: Duration::from_millis(600),
        ..settings()
    };
    let server = Running::with(settings, Scripted::saying(&["a"]));
    let mut socket = server.connect();
    socket.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n");
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(3) && socket.try_write(b" ").is_ok() {
        std::thread::sleep(Duration::from_millis(50));
        if start.elapsed() > Duration::from_millis(900) {
            break;
        }
    }
    socket.reply().expect(408);
}

#[test]
fn bodies_of_64_mib_are_read_and_larger_ones_refused() {
    let server = Running::saying(&["a"]);
    let limit = ServerSettings::default().body_bytes_max;
    let padded = |bytes: usize| {
        let mut body = json!({ "messages": hello() }).to_string().into_bytes();
        body.resize(bytes, b' ');
        body
    };
    server.connect().request("POST", CHAT, &[], &padded(limit)).expect(200);
    let reply = server.connect().request("POST", CHAT, &[], &padded(limit + 1));
    assert_eq!(reply.expect(413)["error"]["code"], "request_too_large");
    for (path, shape) in [("/v1/messages", "/error/type"), ("/api/chat", "/error")] {
        let refusal = server.connect().request("POST", path, &[], &padded(limit + 1)).expect(413);
        assert!(refusal.pointer(shape).is_some_and(serde_json::Value::is_string), "{refusal}");
    }
    // Said in advance, it is not sent at all.
    let mut socket = server.connect();
    socket.send("POST", CHAT, &[("expect", "100-continue")], b"");
    socket.reply().expect(400);
    assert_eq!(server.state.body_bytes.load(Ordering::Relaxed), 0);
    answers(&server);
}

#[test]
fn a_body_of_many_small_values_is_refused_before_they_are_made() {
    let server = Running::saying(&["a"]);
    let mut body = b"{\"messages\": [".to_vec();
    body.extend(b"0,".repeat(20 << 20));
    body.extend(b"0]}");
    server.connect().request("POST", CHAT, &[], &body).expect(413);
}

#[test]
fn a_client_that_does_not_read_loses_its_answer() {
    let words: Vec<Step> =
        (0..100_000).map(|_| Step::Say("a word that is long enough to fill a buffer soon ")).collect();
    let script = words.into_iter().chain([Step::Finish(FinishReason::Stop)]).collect();
    let settings = ServerSettings { write_timeout: Duration::from_millis(300), ..settings() };
    let server = Running::with(settings, Scripted::new(vec![script]));
    let mut socket = server.connect();
    socket.send("POST", CHAT, &[], json!({ "messages": hello(), "stream": true }).to_string().as_bytes());
    eventually("the start", || !server.model.seen.lock().unwrap().is_empty());
    let abandoned = &server.state.counters.answers_abandoned;
    eventually("the end", || abandoned.load(Ordering::Relaxed) == 1);
    let mut rest = Vec::new();
    // What was under way arrives, and then nothing.
    let _ = socket.stream().read_to_end(&mut rest);
    assert!(!rest.ends_with(b"[DONE]\n\n\r\n0\r\n\r\n"));
}

#[test]
fn requests_follow_each_other_on_one_connection() {
    let server = Running::saying(&["a"]);
    let mut socket = server.connect();
    for stream in [false, true, false] {
        socket.send(
            "POST",
            CHAT,
            &[],
            json!({ "messages": hello(), "stream": stream }).to_string().as_bytes(),
        );
        assert_eq!(socket.reply().status, 200);
    }
    socket.send("POST", CHAT, &[], b"{");
    socket.reply().expect(400);
    socket.send("GET", "/health", &[], b"");
    socket.reply().expect(200);
}
