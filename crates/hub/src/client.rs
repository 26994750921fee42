//! Requests: redirects, the token, and bodies that come in pieces.
//!
//! A thread per request does what blocks; whoever waits for it looks ten times a second whether to stop. So Ctrl-C is heard
//! while a server is silent, and hashing overlaps with the network. At most [`PIECES_AHEAD`] pieces wait in memory.
//! Redirects are followed here and not by the HTTP crate: the token is for the hub alone, and the hub's headers on a redirect say what
//! the file is (`X-Linked-Etag`). Retries are in `retry.rs`.

use std::io::Read;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use ureq::http::{HeaderMap, StatusCode};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body};

use crate::address::{self, Endpoint};
use crate::error::{HubError, printable};
use crate::retry::Failure;
use crate::{Observer, Settings};

/// Bytes that are handed on at once.
const PIECE_BYTES: usize = 512 << 10;
/// Fewer are handed on when they took this long.
const PIECE_TIME: Duration = Duration::from_secs(1);
/// Pieces that wait in memory.
const PIECES_AHEAD: usize = 4;
/// Redirects of one request.
const REDIRECTS_MAX: usize = 8;
/// How often somebody who waits looks whether to stop.
const LOOK: Duration = Duration::from_millis(100);
/// A server that delivers less than this in one timeout is as good as silent.
const TRICKLE_BYTES: u64 = 16 << 10;

/// Asks a hub.
#[derive(Clone)]
pub(crate) struct Client {
    agent: Agent,
    pub(crate) endpoint: Endpoint,
    token: Option<String>,
    silence: Duration,
}

/// What the headers of an answer say.
#[derive(Debug, Default)]
pub(crate) struct Head {
    /// 2xx, or what the hub refuses with.
    pub(crate) status: u16,
    /// Where the answer came from, without its query: those of signed downloads are secrets.
    pub(crate) url: String,
    pub(crate) content_length: Option<u64>,
    pub(crate) content_range: Option<String>,
    pub(crate) encoded: bool,
    pub(crate) next_page: Option<String>,
    /// Of the file itself, as the hub says it.
    pub(crate) etag: Option<String>,
    /// Whether that etag was said of the file behind a redirect.
    is_linked: bool,
    pub(crate) linked_size: Option<u64>,
    pub(crate) error_code: String,
    pub(crate) wait: Option<Duration>,
}

/// An answer whose body is still coming.
pub(crate) struct Answer {
    pub(crate) head: Head,
    events: Receiver<Event>,
    silence: Duration,
    window: (Instant, u64),
}

enum Event {
    Head(Head),
    Piece(Vec<u8>),
    End,
    Failed(Failure),
}

impl Client {
    /// # Errors
    /// The endpoint is no address, or the certificates cannot be read.
    pub(crate) fn new(settings: &Settings) -> Result<Self, HubError> {
        let endpoint = Endpoint::parse(&settings.endpoint)?;
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent(concat!("coldpress/", env!("CARGO_PKG_VERSION")))
            .accept_encoding("identity")
            .timeout_resolve(Some(settings.silence))
            .timeout_connect(Some(settings.silence))
            .timeout_recv_response(Some(settings.silence))
            .timeout_per_read(Some(settings.silence))
            .timeout_per_write(Some(settings.silence));
        if endpoint.origin.is_loopback() {
            config = config.proxy(None);
        }
        if let Some(path) = &settings.certificates {
            let roots = RootCerts::new_with_certs(&certificates(path)?);
            config = config.tls_config(TlsConfig::builder().root_certs(roots).build());
        }
        if settings.token.as_ref().is_some_and(|token| !token.bytes().all(|byte| byte.is_ascii_graphic())) {
            let problem = "has letters that no token has".to_owned();
            return Err(HubError::BadName {
                what: "the token of HF_TOKEN",
                given: "(not shown)".to_owned(),
                problem,
            });
        }
        let token = settings.token.clone().filter(|_| settings.sends_token(&endpoint.origin));
        Ok(Self { agent: Agent::new_with_config(config.build()), endpoint, token, silence: settings.silence })
    }

    /// Whether requests carry a token.
    pub(crate) fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Asks for an address, from byte `range.0` up to and without `range.1` where a range is given.
    pub(crate) fn get(
        &self,
        url: &str,
        range: Option<(u64, u64)>,
        observer: &mut dyn Observer,
    ) -> Result<Answer, Failure> {
        let (sender, events) = sync_channel(PIECES_AHEAD);
        let (client, url) = (self.clone(), url.to_owned());
        let work = move || {
            if let Err(failure) = client.deliver(url, range, &sender) {
                let _ = sender.send(Event::Failed(failure));
            }
        };
        let thread = std::thread::Builder::new().name("coldpress-hub".to_owned());
        thread.spawn(work).map_err(|error| Failure::Passing(format!("no thread can be started: {error}")))?;
        let mut answer =
            Answer { head: Head::default(), events, silence: self.silence, window: (Instant::now(), 0) };
        // Each hop of a redirect has its own time, so the thread alone knows when to give up.
        loop {
            match answer.event(observer)? {
                Some(Event::Head(head)) => {
                    answer.head = head;
                    answer.window = (Instant::now(), 0);
                    return Ok(answer);
                }
                Some(Event::Failed(failure)) => return Err(failure),
                Some(Event::Piece(_) | Event::End) => unreachable!("the head comes first"),
                None => {}
            }
        }
    }

    /// Sends what arrives; ends early when nobody listens any more.
    fn deliver(
        &self,
        mut url: String,
        range: Option<(u64, u64)>,
        events: &SyncSender<Event>,
    ) -> Result<(), Failure> {
        let mut linked = Head::default();
        for _ in 0..=REDIRECTS_MAX {
            let ours = address::origin(&url).is_ok_and(|origin| origin == self.endpoint.origin);
            let response = self.call(&url, range, ours)?;
            let headers = response.headers();
            if ours {
                linked.note(headers);
            }
            if !is_redirect(response.status()) {
                linked.read(&response, &url);
                return send_body(linked, response.into_body(), events);
            }
            let location = text(headers, "location").filter(|location| !location.is_empty());
            let location = location.ok_or_else(|| bad_redirect(&url, "nothing", "it says not where to"))?;
            let target = address::resolve(&url, &location);
            self.check_redirect(&url, &target)?;
            url = target;
        }
        Err(bad_redirect(&url, "yet another address", "more redirects than any hub needs").into())
    }

    fn check_redirect(&self, url: &str, target: &str) -> Result<(), HubError> {
        let origin = address::origin(target).map_err(|problem| bad_redirect(url, target, problem))?;
        if !origin.secure && self.endpoint.origin.secure {
            return Err(bad_redirect(
                url,
                target,
                "from HTTPS to HTTP nothing is followed, others could read and change it",
            ));
        }
        Ok(())
    }

    fn call(
        &self,
        url: &str,
        range: Option<(u64, u64)>,
        ours: bool,
    ) -> Result<ureq::http::Response<Body>, Failure> {
        let mut request = self.agent.get(url);
        if let Some((from, to)) = range {
            request = request.header("Range", format!("bytes={from}-{}", to - 1));
        }
        if let Some(token) = self.token.as_ref().filter(|_| ours) {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        request.call().map_err(|error| {
            let problem = describe(&error);
            // The same server has the same certificate the next time.
            if problem.contains("peer certificate") {
                return HubError::Untrusted { url: without_query(url), problem }.into();
            }
            Failure::Passing(problem)
        })
    }
}

impl Answer {
    /// The next bytes of the body; `None` at its end.
    pub(crate) fn piece(&mut self, observer: &mut dyn Observer) -> Result<Option<Vec<u8>>, Failure> {
        loop {
            let event = self.event(observer)?;
            if let Some(Event::Piece(piece)) = &event {
                self.window.1 += piece.len() as u64;
            }
            let (began, bytes) = self.window;
            if began.elapsed() > self.silence + PIECE_TIME {
                if bytes < TRICKLE_BYTES {
                    return Err(Failure::Passing(format!(
                        "only {bytes} bytes in {} s",
                        began.elapsed().as_secs()
                    )));
                }
                self.window = (Instant::now(), 0);
            }
            match event {
                Some(Event::Piece(piece)) => return Ok(Some(piece)),
                Some(Event::End) => return Ok(None),
                Some(Event::Failed(failure)) => return Err(failure),
                Some(Event::Head(_)) => unreachable!("the head comes once"),
                None => {}
            }
        }
    }

    /// The body as a whole, of at most `limit` bytes.
    pub(crate) fn whole(&mut self, limit: u64, observer: &mut dyn Observer) -> Result<Vec<u8>, Failure> {
        let mut body = Vec::new();
        while let Some(piece) = self.piece(observer)? {
            if (body.len() + piece.len()) as u64 > limit {
                let problem = format!("the answer has more than the {limit} bytes that are read of it");
                return Err(HubError::BadAnswer { url: self.head.url.clone(), problem }.into());
            }
            body.extend_from_slice(&piece);
        }
        Ok(body)
    }

    /// What the thread says; `None` when it is silent for a moment.
    fn event(&mut self, observer: &mut dyn Observer) -> Result<Option<Event>, Failure> {
        if observer.should_stop() {
            return Err(HubError::Stopped.into());
        }
        match self.events.recv_timeout(LOOK) {
            Ok(event) => Ok(Some(event)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => {
                Err(Failure::Passing("the request ended without an answer".to_owned()))
            }
        }
    }
}

impl Head {
    /// Remembers what the hub itself says about the file.
    fn note(&mut self, headers: &HeaderMap) {
        let bare = |etag: String| etag.strip_prefix("W/").unwrap_or(&etag).trim_matches('"').to_owned();
        // The hub sends some files on to a place of its own, whose etag need not be that of the file.
        match text(headers, "x-linked-etag") {
            Some(linked) => (self.etag, self.is_linked) = (Some(bare(linked)), true),
            None if self.is_linked => {}
            None => self.etag = text(headers, "etag").map(bare).or(self.etag.take()),
        }
        self.linked_size = number(headers, "x-linked-size").or(self.linked_size);
        self.error_code = text(headers, "x-error-code").unwrap_or_default();
    }

    fn read(&mut self, response: &ureq::http::Response<Body>, url: &str) {
        let headers = response.headers();
        self.status = response.status().as_u16();
        self.url = without_query(url);
        self.content_length = number(headers, "content-length");
        self.content_range = text(headers, "content-range");
        self.encoded = text(headers, "content-encoding").is_some_and(|encoding| encoding != "identity");
        self.next_page =
            text(headers, "link").and_then(|link| next_of(&link)).map(|next| address::resolve(url, &next));
        self.wait = number(headers, "retry-after")
            .or_else(|| text(headers, "ratelimit").and_then(|limit| seconds_of(&limit)))
            .map(Duration::from_secs);
    }
}

fn send_body(head: Head, body: Body, events: &SyncSender<Event>) -> Result<(), Failure> {
    let good = (200..300).contains(&head.status);
    if events.send(Event::Head(head)).is_err() || !good {
        return Ok(());
    }
    let mut reader = body.into_reader();
    loop {
        let mut piece = vec![0; PIECE_BYTES];
        let (mut filled, began) = (0, Instant::now());
        // Small reads are put together: a piece is hashed and written at once.
        let ended = loop {
            match reader.read(&mut piece[filled..]) {
                Ok(0) => break true,
                Ok(count) => filled += count,
                Err(error) => {
                    piece.truncate(filled);
                    let _ = events.send(Event::Piece(piece));
                    return Err(Failure::Passing(format!("the connection broke: {error}")));
                }
            }
            if filled == piece.len() || began.elapsed() > PIECE_TIME {
                break false;
            }
        };
        piece.truncate(filled);
        if (filled > 0 && events.send(Event::Piece(piece)).is_err()) || ended {
            let _ = events.send(Event::End);
            return Ok(());
        }
    }
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

fn bad_redirect(url: &str, target: &str, problem: &'static str) -> HubError {
    HubError::BadRedirect { url: without_query(url), target: printable(&without_query(target)), problem }
}

fn without_query(url: &str) -> String {
    url.split('?').next().unwrap_or_default().to_owned()
}

fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
}

fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    text(headers, name)?.trim().parse().ok()
}

/// The address of `<URL>; rel="next"` in a `Link` header.
fn next_of(link: &str) -> Option<String> {
    let next = |entry: &str| {
        let (address, parameters) = entry.trim().strip_prefix('<')?.split_once('>')?;
        let is_next = parameters.split(';').any(|parameter| {
            let parameter: String = parameter.chars().filter(|letter| !" \"".contains(*letter)).collect();
            parameter.eq_ignore_ascii_case("rel=next")
        });
        is_next.then(|| address.to_owned())
    };
    // A comma inside an address is followed by no `<`.
    link.split(", <")
        .map(|entry| format!("<{}", entry.trim_start_matches('<')))
        .find_map(|entry| next(&entry))
}

/// The seconds until requests are taken again, of `"api";r=0;t=55`.
fn seconds_of(limit: &str) -> Option<u64> {
    limit.split(';').find_map(|part| part.trim().strip_prefix("t=")).and_then(|seconds| seconds.parse().ok())
}

fn describe(error: &ureq::Error) -> String {
    match error {
        ureq::Error::HostNotFound => {
            "the host is not known; is the network there, and HF_ENDPOINT right?".to_owned()
        }
        ureq::Error::Timeout(what) => format!("no answer in time ({what:?})"),
        ureq::Error::Io(error) => printable(&error.to_string()),
        other => printable(&other.to_string()),
    }
}

fn certificates(path: &Path) -> Result<Vec<Certificate<'static>>, HubError> {
    let pem = std::fs::read(path).map_err(|source| HubError::io(path, "read", source))?;
    let found: Vec<_> = parse_pem(&pem)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    if found.is_empty() {
        let given = path.display().to_string();
        return Err(HubError::BadName {
            what: "SSL_CERT_FILE",
            given,
            problem: "holds no certificate".to_owned(),
        });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_page_is_found_among_links() {
        assert_eq!(
            next_of(r#"<https://h/a?x=1,2>; rel="prev", </b?c=<>; rel="next""#),
            Some("/b?c=<".to_owned())
        );
        assert_eq!(next_of("<https://h/a>;rel=next"), Some("https://h/a".to_owned()));
        for none in ["", "<x>", r#"<x>; rel="last""#, "x; rel=next", "<x; rel=next"] {
            assert_eq!(next_of(none), None, "{none}");
        }
    }

    #[test]
    fn the_etag_of_the_file_outlives_those_of_the_places_that_it_comes_from() {
        let headers = |pairs: &[(&'static str, &'static str)]| -> HeaderMap {
            pairs
                .iter()
                .map(|&(name, value)| (name.parse().expect("a name"), value.parse().expect("a value")))
                .collect()
        };
        let mut head = Head::default();
        head.note(&headers(&[("etag", "W/\"a\"")]));
        assert_eq!(head.etag.as_deref(), Some("a"));
        head.note(&headers(&[("x-linked-etag", "\"b\""), ("etag", "\"c\""), ("x-linked-size", "7")]));
        head.note(&headers(&[("etag", "\"d\"")]));
        assert_eq!((head.etag.as_deref(), head.linked_size), (Some("b"), Some(7)));
    }

    #[test]
    fn nothing_is_followed_from_https_to_http() {
        let settings = Settings::new(std::path::PathBuf::from("cache"));
        let client = Client::new(&settings).expect("a client");
        let from = client.endpoint.url(&["a"]);
        let refused =
            client.check_redirect(&from, "http://cdn.example/a?key=1").expect_err("refused").to_string();
        assert!(refused.contains("redirects to http://cdn.example/a: from HTTPS to HTTP"), "{refused}");
        client.check_redirect(&from, "https://cdn.example/a").expect("HTTPS is followed");
    }

    #[test]
    fn a_token_is_not_sent_over_the_open_network_without_https() {
        let has_token = |endpoint: &str| {
            let mut settings = Settings::new(std::path::PathBuf::from("cache"));
            (settings.endpoint, settings.token) = (endpoint.to_owned(), Some("hf_x".to_owned()));
            Client::new(&settings).expect("a client").has_token()
        };
        assert!(has_token("https://hub.example") && has_token("http://127.0.0.1:1"));
        assert!(!has_token("http://hub.example") && !has_token("http://127.0.0.1.example"));
    }

    #[test]
    fn a_rate_limit_says_when_it_ends() {
        assert_eq!(seconds_of(r#""api";r=0;t=55"#), Some(55));
        assert_eq!(seconds_of(r#""api";r=0"#), None);
    }
}
