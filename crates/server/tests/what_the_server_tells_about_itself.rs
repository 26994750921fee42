//! Status, metrics, tokens, the page and the description.

use crate::common::{Running, Scripted, hello, settings};
use serde_json::json;

#[test]
fn metrics_are_well_formed_and_count() {
    let server = Running::saying(&["a", "b"]);
    server.post("/v1/chat/completions", &json!({ "messages": hello() })).expect(200);
    server.post("/v1/chat/completions", &json!({})).expect(400);
    let reply = server.get("/metrics");
    assert_eq!(reply.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let text = reply.text();
    let mut named = "";
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            named = rest.split(' ').next().expect("a name");
        } else if !line.starts_with('#') {
            let (name, value) = line.rsplit_once(' ').expect("a value");
            assert_eq!(name.split('{').next(), Some(named), "{line}");
            assert!(value.parse::<f64>().is_ok(), "{line}");
        }
    }
    for wanted in [
        "coldpress_http_responses_total{route=\"/v1/chat/completions\",status=\"200\"} 1",
        "coldpress_http_responses_total{route=\"/v1/chat/completions\",status=\"400\"} 1",
        "coldpress_completion_tokens_total 2",
        "coldpress_cached_tokens_total 2",
        "coldpress_ready 1",
        "coldpress_memory_bytes{purpose=\"slots\"} 7",
    ] {
        assert!(text.lines().any(|line| line == wanted), "no {wanted} in\n{text}");
    }
}

#[test]
fn tokens_go_both_ways() {
    let server = Running::saying(&["a"]);
    let tokens = server.post("/tokenize", &json!({ "content": "hé" })).expect(200);
    assert_eq!((&tokens["tokens"], &tokens["count"]), (&json!([104, 195, 169]), &json!(3)));
    let pieces = server.post("/tokenize", &json!({ "content": "hé", "with_pieces": true })).expect(200);
    assert_eq!(pieces["tokens"][1], json!({ "id": 195, "piece": [195] }));
    let text = server.post("/detokenize", &json!({ "tokens": [104, 195, 169] })).expect(200);
    assert_eq!(text["content"], "hé");
}

#[test]
fn the_page_loads_nothing_from_elsewhere() {
    let server = Running::saying(&["a"]);
    let reply = server.get("/");
    assert_eq!(reply.header("content-type"), Some("text/html; charset=utf-8"));
    assert!(
        reply.header("content-security-policy").is_some_and(|policy| policy.contains("default-src 'none'"))
    );
    // The name of the SVG namespace is an address that nobody loads.
    let page = reply.text().replace("http://www.w3.org/2000/svg", "");
    for outside in ["http://", "https://", "src=\"//", "href=\"//", "@import"] {
        assert!(!page.contains(outside), "{outside}");
    }
}

#[test]
fn the_description_is_sent() {
    let server = Running::saying(&["a"]);
    let description = server.get("/openapi.json").expect(200);
    assert_eq!(description["openapi"], "3.1.0");
    assert!(description["paths"]["/v1/chat/completions"]["post"]["requestBody"].is_object());
}

/// Every protocol says in an answer, whole or as it comes, what makes it differ from that of exact settings; an exact answer says nothing.
#[test]
fn answers_say_what_is_lossy() {
    let lossy = ["kv q4", "4 of 8 experts per token"];
    let server = Running::with(settings(), Scripted::saying(&["a"]).lossy(&lossy));
    let exact = Running::with(settings(), Scripted::saying(&["a"]));
    let messages = hello();
    for (path, body, place) in [
        ("/v1/chat/completions", json!({ "messages": messages }), "/usage/coldpress/lossy"),
        ("/v1/completions", json!({ "prompt": "a" }), "/usage/coldpress/lossy"),
        ("/v1/responses", json!({ "input": "a" }), "/usage/coldpress/lossy"),
        (
            "/v1/messages",
            json!({ "model": "m", "max_tokens": 4, "messages": messages }),
            "/usage/coldpress/lossy",
        ),
        (
            "/api/chat",
            json!({ "model": "script", "messages": messages, "stream": false }),
            "/coldpress/lossy",
        ),
        ("/api/generate", json!({ "model": "script", "prompt": "a", "stream": false }), "/coldpress/lossy"),
    ] {
        let reply = server.post(path, &body);
        assert_eq!(reply.header("x-coldpress-lossy"), Some("kv q4, 4 of 8 experts per token"), "{path}");
        assert_eq!(reply.json().pointer(place), Some(&json!(lossy)), "{path}: {}", reply.text());
        let reply = exact.post(path, &body);
        assert_eq!((reply.status, reply.header("x-coldpress-lossy")), (200, None), "{path}");
        assert!(!reply.text().contains("lossy"), "{path}: {}", reply.text());
    }
    let body = json!({ "messages": messages, "stream": true }).to_string();
    let mut socket = server.connect();
    socket.send("POST", "/v1/chat/completions", &[("content-type", "application/json")], body.as_bytes());
    assert_eq!(socket.head().header("x-coldpress-lossy"), Some("kv q4, 4 of 8 experts per token"));
}
