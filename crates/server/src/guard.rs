//! Who may ask: host and origin of the request, the key, and what browsers are told about it.
//!
//! A web page can send requests to a server on the same machine: by its address, or by a name of its own that it lets
//! point there. The first shows in `Origin`, the second in `Host`. Both are checked where nothing but loopback protects
//! the server; origins always. Every answer passes through here and is counted.

use std::net::IpAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{MatchedPath, State};
use axum::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use axum::middleware::Next;

use crate::errors::{ApiError, ErrorKind, Shape};
use crate::settings::ServerSettings;
use crate::state::ServerState;

/// Paths that need no key: signs of life, the page, and the description.
const OPEN_PATHS: [&str; 3] = ["/health", "/", "/openapi.json"];

/// Headers that web pages may send.
const ALLOWED_HEADERS: &str = "authorization, content-type, x-api-key, anthropic-version, anthropic-beta, \
    anthropic-dangerous-direct-browser-access, openai-organization, openai-project, x-coldpress-client, \
    x-stainless-arch, x-stainless-lang, x-stainless-os, x-stainless-package-version, x-stainless-retry-count, \
    x-stainless-runtime, x-stainless-runtime-version, x-stainless-timeout, x-stainless-helper-method, \
    x-stainless-poll-helper";

/// The middleware.
pub async fn guard(
    State(state): State<Arc<ServerState>>,
    request: Request<Body>,
    next: Next,
) -> Response<Body> {
    let path = request.uri().path();
    let shape = Shape::of_path(path);
    let route = request.extensions().get::<MatchedPath>().map_or("unknown", |path| path.as_str()).to_owned();
    let origin = request.headers().get(header::ORIGIN).cloned();
    let preflight = request.method() == Method::OPTIONS
        && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let mut response = match check(&state.settings, &request) {
        Err(error) => error.response(shape),
        Ok(()) if preflight => allow_preflight(),
        Ok(()) => match check_key(&state.settings, path, request.headers()) {
            Err(error) => error.response(shape),
            Ok(()) => next.run(request).await,
        },
    };
    if let Some(origin) = origin.filter(|_| response.status() != StatusCode::FORBIDDEN) {
        let headers = response.headers_mut();
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(header::VARY, HeaderValue::from_static("Origin"));
        headers.insert(
            header::ACCESS_CONTROL_EXPOSE_HEADERS,
            HeaderValue::from_static("x-coldpress-ignored, x-coldpress-lossy"),
        );
    }
    response.headers_mut().insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    state.counters.answered(&route, response.status().as_u16());
    response
}

fn allow_preflight() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, OPTIONS"));
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static(ALLOWED_HEADERS));
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    response
}

fn check(settings: &ServerSettings, request: &Request<Body>) -> Result<(), ApiError> {
    let text = |name| request.headers().get(name).map(|value| value.to_str().unwrap_or_default());
    let host = text(header::HOST).or(request.uri().authority().map(|authority| authority.as_str()));
    if settings.relies_on_loopback() && !host_allowed(host.unwrap_or_default(), &settings.allowed_hosts) {
        let what =
            if host.is_some() { "the Host header names another machine" } else { "there is no Host header" };
        return Err(ApiError::new(
            ErrorKind::Forbidden,
            format!("{what}: ask by localhost or 127.0.0.1, or let the server allow that name"),
        ));
    }
    match text(header::ORIGIN) {
        Some(origin) if !origin_allowed(origin, host.unwrap_or_default(), &settings.cors_origins) => {
            Err(ApiError::new(
                ErrorKind::Forbidden,
                "web pages of this origin may not ask: add it to the server's list of origins",
            ))
        }
        _ => Ok(()),
    }
}

/// The host without its port.
fn without_port(host: &str) -> &str {
    match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    }
}

fn is_this_machine(host: &str) -> bool {
    let host = without_port(host);
    let name = host.to_ascii_lowercase();
    let is_address = host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    is_address || name == "localhost" || name.ends_with(".localhost")
}

fn host_allowed(host: &str, allowed: &[String]) -> bool {
    is_this_machine(host) || allowed.iter().any(|name| name.eq_ignore_ascii_case(without_port(host)))
}

fn origin_allowed(origin: &str, host: &str, allowed: &[String]) -> bool {
    let Some((scheme, origin_host)) = origin.split_once("://") else {
        return allowed.iter().any(|allowed| allowed == "*" || allowed == origin);
    };
    let web = scheme == "http" || scheme == "https";
    let same = web && origin_host.eq_ignore_ascii_case(host);
    same || (web && is_this_machine(origin_host))
        || allowed.iter().any(|allowed| allowed == "*" || allowed.eq_ignore_ascii_case(origin))
}

fn check_key(settings: &ServerSettings, path: &str, headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(key) = settings.api_key.as_deref().filter(|_| !OPEN_PATHS.contains(&path)) else {
        return Ok(());
    };
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let bearer = text("authorization").and_then(|value| {
        let (scheme, token) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    // Hashes are compared in constant time and tell nothing about the length either.
    let wanted = blake3::hash(key.as_bytes());
    let fits = |sent: Option<&str>| sent.is_some_and(|sent| blake3::hash(sent.as_bytes()) == wanted);
    if fits(bearer) | fits(text("x-api-key")) {
        return Ok(());
    }
    let sent = bearer.is_some() || headers.contains_key("x-api-key");
    let message =
        if sent { "the API key is wrong" } else { "an API key is needed: send Authorization: Bearer KEY" };
    Err(ApiError::new(ErrorKind::Unauthorised, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_may_point_anywhere_are_not_this_machine() {
        for host in ["localhost", "localhost:8080", "127.0.0.1:1", "[::1]:8080", "127.8.8.8", "a.localhost"] {
            assert!(host_allowed(host, &[]), "{host}");
        }
        for host in ["evil.example", "localhost.evil.example", "192.168.0.1", "", "127.0.0.1.evil.example"] {
            assert!(!host_allowed(host, &[]), "{host}");
        }
        assert!(host_allowed("box.lan:8080", &["box.lan".to_owned()]));
    }

    #[test]
    fn pages_of_other_origins_may_not_ask() {
        let listed = ["https://chat.example".to_owned()];
        for origin in ["http://localhost:3000", "http://10.0.0.7:8080", "https://chat.example"] {
            assert!(origin_allowed(origin, "10.0.0.7:8080", &listed), "{origin}");
        }
        for origin in ["https://evil.example", "null", "file://", "ftp://localhost"] {
            assert!(!origin_allowed(origin, "10.0.0.7:8080", &listed), "{origin}");
        }
        assert!(origin_allowed("null", "x", &["*".to_owned()]));
    }
}
