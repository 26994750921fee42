//! All paths, in one table.
//!
//! Owns [`ROUTES`]; the router is made from it and the published description is compared with it. Read next: the handlers.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodFilter, on};

use crate::errors::{ApiError, ErrorKind, Shape};
use crate::guard::guard;
use crate::state::ServerState;
use crate::{anthropic, info, ollama, openai, openapi, reply};

/// What a handler comes to.
pub type Handled = Pin<Box<dyn Future<Output = Result<Response<Body>, ApiError>> + Send>>;
/// A handler; its errors are written in the shape of its path.
pub type Handler = fn(Arc<ServerState>, Request<Body>) -> Handled;

/// One path and what answers there.
#[derive(Clone, Copy)]
pub struct Route {
    /// `GET` or `POST`.
    pub method: &'static str,
    /// The path, with `{name}` for a part that varies.
    pub path: &'static str,
    handler: Handler,
}

/// A handler as a plain function pointer.
macro_rules! route {
    ($method:literal, $path:literal, $handler:path) => {
        Route { method: $method, path: $path, handler: |state, request| Box::pin($handler(state, request)) }
    };
}

/// All paths.
pub const ROUTES: &[Route] = &[
    route!("POST", "/v1/chat/completions", openai::chat::handle),
    route!("POST", "/v1/completions", openai::completions::handle),
    route!("POST", "/v1/responses", openai::responses::handle),
    route!("POST", "/v1/embeddings", openai::models::embeddings),
    route!("GET", "/v1/models", openai::models::list),
    route!("GET", "/v1/models/{id}", openai::models::one),
    route!("POST", "/v1/messages", anthropic::handle),
    route!("POST", "/v1/messages/count_tokens", anthropic::count_tokens),
    route!("POST", "/api/chat", ollama::chat),
    route!("POST", "/api/generate", ollama::generate),
    route!("POST", "/api/show", ollama::info::show),
    route!("GET", "/api/tags", ollama::info::tags),
    route!("GET", "/api/ps", ollama::info::running),
    route!("GET", "/api/version", ollama::info::version),
    route!("POST", "/api/embed", ollama::info::embed),
    route!("GET", "/health", info::health),
    route!("GET", "/metrics", info::metrics),
    route!("GET", "/v1/status", info::status),
    route!("POST", "/tokenize", info::tokenize),
    route!("POST", "/detokenize", info::detokenize),
    route!("GET", "/openapi.json", openapi::handle),
    route!("GET", "/", info::dashboard),
];

/// The router of a server.
pub fn router(state: Arc<ServerState>) -> Router {
    let mut router = Router::new();
    for route in ROUTES {
        let filter = if route.method == "GET" { MethodFilter::GET } else { MethodFilter::POST };
        let handler = route.handler;
        let answer = move |State(state): State<Arc<ServerState>>, request: Request<Body>| async move {
            let shape = Shape::of_path(request.uri().path());
            handler(state, request).await.unwrap_or_else(|error| error.response(shape))
        };
        router = router.route(route.path, on(filter, answer));
    }
    router
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(state.clone(), guard))
        .with_state(state)
}

async fn unknown_path(request: Request<Body>) -> Response<Body> {
    let path = request.uri().path();
    let message = format!("there is nothing at {path}; GET /openapi.json lists all paths");
    ApiError::new(ErrorKind::NotFound, message).response(Shape::of_path(path))
}

async fn wrong_method(request: Request<Body>) -> Response<Body> {
    let path = request.uri().path();
    let known: Vec<&str> =
        ROUTES.iter().filter(|route| matches(route.path, path)).map(|route| route.method).collect();
    let message = format!("{path} does not know {}; it knows {}", request.method(), known.join(", "));
    let mut response = ApiError::new(ErrorKind::MethodNotAllowed, message).response(Shape::of_path(path));
    if let Ok(value) = known.join(", ").parse() {
        response.headers_mut().insert(axum::http::header::ALLOW, value);
    }
    response
}

fn matches(pattern: &str, path: &str) -> bool {
    match pattern.split_once('{') {
        Some((fixed, _)) => {
            path.strip_prefix(fixed).is_some_and(|rest| !rest.is_empty() && !rest.contains('/'))
        }
        None => pattern == path,
    }
}

/// A response that names the fields without effect.
pub fn noting(mut response: Response<Body>, ignored: &[String]) -> Response<Body> {
    reply::note_ignored(&mut response, ignored);
    response
}
