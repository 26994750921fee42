//! HTTP for coldpress: the OpenAI, Anthropic and Ollama protocols over one engine, with health, metrics and a dashboard.
//!
//! Owns everything that knows HTTP, and the only async runtime of the workspace. Knows the engine through one trait,
//! [`backend::Backend`]. Refuses what it cannot do, by the field's name. Start with [`Server`]; read `router.rs` for the
//! paths, `answer.rs` for how an answer becomes deltas, `sse.rs` for how those reach a client and how its leaving ends them.
#![forbid(unsafe_code)]

mod answer;
mod anthropic;
pub mod backend;
mod collect;
mod errors;
mod fields;
mod format;
mod guard;
mod heat;
mod info;
mod limits;
mod metrics;
mod ollama;
mod openai;
mod openapi;
mod prepare;
mod recall;
mod reply;
mod router;
mod run;
mod service;
mod settings;
mod sse;
mod state;
mod tools;

pub use router::{ROUTES, Route};
pub use run::{Server, StopHandle, serve};
pub use service::ServiceBackend;
pub use settings::ServerSettings;
pub use state::{Health, ServerState};
