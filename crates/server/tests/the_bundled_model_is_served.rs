//! The engine itself behind HTTP: the bundled model answers, streams, keeps to a grammar, and stops for a client that leaves.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::client::Socket;
use crate::common::{eventually, settings};
use coldpress::service::{Service, Serving};
use coldpress::{LoadConfiguration, Runtime, Silent};
use coldpress_server::{Server, ServerState, ServiceBackend, StopHandle};
use serde_json::{Value, json};

struct Served {
    address: std::net::SocketAddr,
    stop: StopHandle,
    state: Arc<ServerState>,
    service: Option<Service>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Served {
    fn new() -> Self {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo.gguf");
        let configuration = LoadConfiguration::default()
            .budget("256MiB".parse().expect("a size"))
            .serving(Serving { parallel: 2, ..Serving::default() })
            .route_telemetry(true);
        let runtime = Runtime::load(&model, &configuration, &mut Silent).expect("the bundled model loads");
        let service = Service::start(runtime).expect("a service");
        let server = Server::bind(settings()).expect("a port");
        let (address, state, stop) =
            (server.address().expect("an address"), server.state(), server.stop_handle());
        state.ready(Arc::new(ServiceBackend::new(service.client(), "demo")));
        let thread = std::thread::spawn(move || server.run().expect("a server"));
        Self { address, stop, state, service: Some(service), thread: Some(thread) }
    }

    fn post(&self, path: &str, body: &Value) -> crate::common::Reply {
        Socket::connect(self.address).request("POST", path, &[], body.to_string().as_bytes())
    }

    fn running(&self) -> usize {
        self.service.as_ref().expect("a service").client().status().running.len()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if let Some(service) = self.service.take() {
            service.stop();
        }
    }
}

#[test]
fn a_text_is_continued_whole_and_in_chunks_alike() {
    let served = Served::new();
    let mut body =
        json!({ "prompt": "The old house stood at", "max_tokens": 12, "temperature": 0, "logprobs": 1 });
    let whole = served.post("/v1/completions", &body).expect(200);
    let text = whole["choices"][0]["text"].as_str().expect("a text").to_owned();
    assert!(!text.is_empty());
    assert_eq!(whole["usage"]["completion_tokens"], 12);
    assert_eq!(whole["choices"][0]["logprobs"]["tokens"].as_array().map(Vec::len), Some(12));
    body["stream"] = true.into();
    let mut socket = Socket::connect(served.address);
    socket.send("POST", "/v1/completions", &[], body.to_string().as_bytes());
    let chunks = socket.events().data();
    let streamed: String = chunks.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str()).collect();
    assert_eq!(streamed, text);
    let again =
        served.post("/v1/completions", &json!({ "prompt": "The old house stood at", "max_tokens": 1 }));
    assert!(again.expect(200)["usage"]["prompt_tokens_details"]["cached_tokens"].is_u64());
    assert_eq!(served.state.health().name(), "ready");
}

#[test]
fn an_answer_keeps_to_a_regular_expression() {
    let served = Served::new();
    let format = json!({ "type": "regex", "pattern": "(yes|no), [0-9]{3}" });
    let body = json!({ "prompt": "Answer:", "max_tokens": 40, "temperature": 1, "response_format": format });
    let text = served.post("/v1/completions", &body).expect(200)["choices"][0]["text"].clone();
    let text = text.as_str().expect("a text");
    let (word, number) = text.split_once(", ").expect("two parts");
    assert!(["yes", "no"].contains(&word) && number.len() == 3 && number.parse::<u32>().is_ok(), "{text}");
}

#[test]
fn a_client_that_leaves_stops_the_engine() {
    let served = Served::new();
    let body = json!({ "prompt": "Once upon a time", "max_tokens": 4000, "temperature": 0, "stream": true });
    for _ in 0..3 {
        let mut socket = Socket::connect(served.address);
        socket.send("POST", "/v1/completions", &[], body.to_string().as_bytes());
        eventually("the start", || served.running() == 1);
        let left = Instant::now();
        drop(socket);
        eventually("the end", || served.running() == 0);
        // A layer of this model takes a millisecond; the rest is for a busy machine.
        assert!(left.elapsed() < Duration::from_secs(1), "{:?}", left.elapsed());
    }
}

#[test]
fn tokens_and_the_context_are_told() {
    let served = Served::new();
    let tokens =
        served.post("/tokenize", &json!({ "content": "The old house" })).expect(200)["tokens"].clone();
    let text = served.post("/detokenize", &json!({ "tokens": tokens })).expect(200)["content"].clone();
    assert!(text.as_str().expect("a text").ends_with("The old house"), "{text}");
    let refusal = served.post("/v1/completions", &json!({ "prompt": "word ".repeat(100_000) })).expect(400);
    assert_eq!(refusal["error"]["code"], "context_length_exceeded", "{refusal}");
}

/// A defect that ends the engine's thread: what went wrong is that `/health` stayed ready and requests waited for ever.
#[test]
fn an_engine_that_failed_is_told_by_health_and_by_every_request() {
    let server = Served::new();
    let client = server.service.as_ref().expect("a service").client();
    let health = || Socket::connect(server.address).request("GET", "/health", &[], b"");
    assert_eq!(health().status, 200);
    let sink = Box::new(|event| {
        if matches!(event, coldpress::service::Event::Started { .. }) {
            panic!("a defect in /srv/secret/place");
        }
    });
    let _ticket = client.submit(coldpress::service::Request::new(vec![5, 6, 7], 5), sink).expect("is taken");
    eventually("the failure", || client.failure().is_some());
    let told = health();
    assert_eq!((told.status, &told.json()["status"]), (503, &json!("failed")));
    let reason = told.json()["reason"].as_str().expect("a reason").to_owned();
    assert!(reason.contains("a defect") && !reason.contains("secret/"), "{reason}");
    for (path, body) in [
        (
            "/v1/chat/completions",
            json!({ "messages": [{ "role": "user", "content": "Hi" }], "stream": true }),
        ),
        ("/v1/completions", json!({ "prompt": "Hi" })),
    ] {
        let refused = server.post(path, &body);
        assert_eq!(
            (refused.status, &refused.json()["error"]["type"]),
            (500, &json!("engine_failed")),
            "{path}"
        );
        assert!(refused.text().contains("restart"), "{}", refused.text());
    }
}

/// What went wrong: a bias for a token that the model does not have, and ids without a text, were taken and forgotten.
#[test]
fn tokens_that_the_model_does_not_have_are_refused() {
    let server = Served::new();
    let hello = json!([{ "role": "user", "content": "Hi" }]);
    let bias = json!({ "messages": hello, "max_tokens": 1, "logit_bias": { "99999999": 1 } });
    let refused = server.post("/v1/chat/completions", &bias);
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("logit_bias names token 99999999"), "{}", refused.text());
    let refused = server.post("/detokenize", &json!({ "tokens": [5, 99_999_999] }));
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("99999999, outside the vocabulary of 8192"), "{}", refused.text());
}

/// What went wrong: the counts of all experts were in every status, half a megabyte for a model of 60 layers with 512 experts.
#[test]
fn counts_of_experts_come_on_request_only() {
    let server = Served::new();
    server.post("/v1/completions", &json!({ "prompt": "Hi", "max_tokens": 3 })).expect(200);
    let status = |query: &str| {
        let path = format!("/v1/status{query}");
        let told = Socket::connect(server.address).request("GET", &path, &[], b"").expect(200);
        told["engine"]["detail"]["telemetry"].clone()
    };
    let counted = || status("?experts=1")["layers"].as_array().map(Vec::len);
    eventually("counts", || counted().is_some_and(|layers| layers > 0));
    for query in ["", "?experts=0", "?other=1"] {
        assert_eq!(status(query).get("layers"), None, "{query}");
        assert!(status(query)["bytes"].as_u64() > Some(0), "{query}");
    }
    let layers = status("?experts=1")["layers"].clone();
    assert!(
        layers
            .as_array()
            .expect("layers")
            .iter()
            .all(|layer| layer.as_str().is_some_and(|text| text.len() > 40))
    );
}
