//! Host, origin and key.

use crate::common::{Reply, Running, Scripted, hello, settings};
use coldpress_server::ServerSettings;
use serde_json::json;

fn ask(server: &Running, path: &str, headers: &[(&str, &str)]) -> Reply {
    let mut body = json!({ "messages": hello(), "model": "script", "stream": false });
    if path == "/v1/messages" {
        body["max_tokens"] = 5.into();
    }
    server.connect().request("POST", path, headers, body.to_string().as_bytes())
}

#[test]
fn a_name_that_a_web_page_points_here_is_refused() {
    let server = Running::saying(&["a"]);
    for path in ["/v1/chat/completions", "/v1/messages", "/api/chat"] {
        ask(&server, path, &[("host", "evil.example")]).expect(403);
        ask(&server, path, &[("host", "localhost:1234")]).expect(200);
    }
    assert_eq!(server.connect().request("GET", "/health", &[("host", "evil.example")], b"").status, 403);
    let settings = ServerSettings { allowed_hosts: vec!["box.lan".to_owned()], ..settings() };
    let server = Running::with(settings, Scripted::saying(&["a"]));
    ask(&server, "/v1/chat/completions", &[("host", "box.lan:80")]).expect(200);
}

#[test]
fn pages_of_other_origins_are_refused_and_listed_ones_told() {
    let settings = ServerSettings { cors_origins: vec!["https://chat.example".to_owned()], ..settings() };
    let server = Running::with(settings, Scripted::saying(&["a"]));
    let path = "/v1/chat/completions";
    let refused = ask(&server, path, &[("origin", "https://evil.example")]);
    assert_eq!(refused.header("access-control-allow-origin"), None);
    refused.expect(403);
    assert!(server.model.seen.lock().unwrap().is_empty());
    for origin in ["https://chat.example", "http://localhost:3000"] {
        let reply = ask(&server, path, &[("origin", origin)]);
        assert_eq!(reply.header("access-control-allow-origin"), Some(origin));
        reply.expect(200);
        let headers = [("origin", origin), ("access-control-request-method", "POST")];
        let preflight = server.connect().request("OPTIONS", path, &headers, b"");
        assert_eq!(preflight.status, 204);
        assert!(
            preflight
                .header("access-control-allow-headers")
                .is_some_and(|names| names.contains("authorization"))
        );
    }
}

#[test]
fn the_key_comes_by_either_header() {
    let settings = ServerSettings { api_key: Some("secret".to_owned()), ..settings() };
    let server = Running::with(settings, Scripted::saying(&["a"]));
    for path in ["/v1/chat/completions", "/v1/messages", "/api/chat"] {
        ask(&server, path, &[("authorization", "Bearer secret")]).expect(200);
        ask(&server, path, &[("x-api-key", "secret")]).expect(200);
        for wrong in ["", "secre", "secret1", "Secret"] {
            ask(&server, path, &[("x-api-key", wrong)]).expect(401);
        }
        let reply = ask(&server, path, &[]);
        assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
        reply.expect(401);
    }
    assert_eq!(server.get("/health").status, 200);
    assert_eq!(server.get("/").status, 200);
    for path in ["/metrics", "/v1/status", "/v1/models", "/api/tags"] {
        assert_eq!(server.get(path).status, 401, "{path}");
    }
    // With a key, a name does not matter.
    ask(&server, "/v1/chat/completions", &[("host", "box.lan"), ("x-api-key", "secret")]).expect(200);
}
