//! A server whose model follows a script: for trying clients, pages and test tools without a model.
//!
//! `cargo run -p coldpress-server --example scripted_server -- 8080`

#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../tests/common/scripted.rs"]
mod scripted;

use std::sync::Arc;
use std::time::Duration;

use coldpress_server::backend::{Event, FinishReason};
use coldpress_server::{Server, ServerSettings};
use scripted::{Scripted, Step};

fn main() -> std::io::Result<()> {
    let port = std::env::args().nth(1).and_then(|port| port.parse().ok()).unwrap_or(8080);
    let words = ["<think>", "Let me ", "see.", "</think>", "An answer ", "from a ", "script."];
    let said = words.iter().flat_map(|word| [Step::Say(word), Step::Wait(Duration::from_millis(2))]);
    let script = [Step::Tell(Event::Started { cached_tokens: 1 })]
        .into_iter()
        .chain(said)
        .chain([Step::Finish(FinishReason::Stop)])
        .collect();
    let server = Server::bind(ServerSettings { port, ..ServerSettings::default() })?;
    println!("http://{}", server.address()?);
    server.state().ready(Arc::new(Scripted::new(vec![script])));
    server.run()
}
