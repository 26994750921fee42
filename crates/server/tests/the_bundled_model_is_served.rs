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
            .serving(Serving { parallel: 2, ..Serving::default() });
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
