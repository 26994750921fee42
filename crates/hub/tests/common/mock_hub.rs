//! A hub on the loopback interface that does what it is told, faults included.
//!
//! Speaks what the tests need of the hub's protocol: the commit, the list of files in pages, and files, of which large ones (GGUF, safetensors) have the headers
//! of LFS and may lie on another host. Each request for a file, or for `info` and `tree`, takes the next fault that was set for it.
#![allow(dead_code, reason = "each test uses a part")]

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use sha1::Sha1;
use sha2::{Digest, Sha256};

pub const REPO: &str = "org/model";
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// As good as endless for files of some kilobytes.
const ENDLESS_BYTES: usize = 64 << 20;

/// What a request gets instead of what it asked for.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The connection ends after this many bytes of the body.
    Cut(usize),
    /// The same without saying how many bytes there are to be.
    CutWithoutLength(usize),
    /// A status, with headers.
    Status(u16, Vec<(&'static str, String)>),
    /// The whole file, whatever range was asked for.
    IgnoresRange,
    /// A body that is this much longer or shorter than the file, with the fitting `Content-Length`.
    Longer(i64),
    /// A body without a length that goes on for [`ENDLESS_BYTES`].
    Endless,
    /// One byte is another one.
    Corrupt,
    /// From now on the file is another one.
    Becomes(Vec<u8>),
    /// Another range than the one asked for.
    WrongRange,
    /// `Content-Encoding: gzip`.
    Compressed,
    /// No answer for this long, then the connection ends.
    Silent(Duration),
    /// The body comes this many bytes at a time, with a pause between.
    Slow(usize, Duration),
    /// A redirect to an address, with the headers of the file.
    Redirect(String),
    /// A body of its own.
    Body(String),
    /// An empty page of the listing, with this address of the next one.
    NextPage(String),
}

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Seen {
    pub path: String,
    pub range: Option<String>,
    pub token: Option<String>,
}

#[derive(Default)]
struct State {
    files: BTreeMap<String, Vec<u8>>,
    faults: HashMap<String, VecDeque<Fault>>,
    seen: Vec<Seen>,
    page: usize,
    cdn: Option<String>,
}

pub struct MockHub {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    ends: Arc<AtomicBool>,
}

impl MockHub {
    /// A hub with these files in its one repository.
    pub fn new(files: &[(&str, &[u8])]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let files = files.iter().map(|&(path, bytes)| (path.to_owned(), bytes.to_vec())).collect();
        let state = Arc::new(Mutex::new(State { files, page: 1000, ..State::default() }));
        let ends = Arc::new(AtomicBool::new(false));
        let (shared, stop) = (Arc::clone(&state), Arc::clone(&ends));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let (shared, stop) = (Arc::clone(&shared), Arc::clone(&stop));
                // Whoever hangs up early is a test of its own.
                std::thread::spawn(move || stream.and_then(|stream| answer(stream, &shared, &stop)));
            }
        });
        Self { address, state, ends }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test thread panicked here")
    }

    /// The next requests for `what` meet these faults, one each.
    pub fn faults(&self, what: &str, faults: impl IntoIterator<Item = Fault>) {
        self.state().faults.entry(what.to_owned()).or_default().extend(faults);
    }

    /// Large files are answered with a redirect to this host.
    pub fn redirect_files_to(&self, host: &str) {
        self.state().cdn = Some(host.to_owned());
    }

    /// Files of one page of the listing.
    pub fn page(&self, files: usize) {
        self.state().page = files;
    }

    /// All requests so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.state().seen.clone()
    }

    /// The requests for files.
    pub fn seen_files(&self) -> Vec<Seen> {
        self.seen().into_iter().filter(|seen| seen.path.contains("/resolve/")).collect()
    }
}

impl Drop for MockHub {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
    }
}

pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn git_sha1(bytes: &[u8]) -> String {
    let hash = Sha1::new().chain_update(format!("blob {}\0", bytes.len())).chain_update(bytes).finalize();
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whether the hub keeps a file outside git.
fn is_large(path: &str) -> bool {
    path.ends_with(".gguf") || path.ends_with(".safetensors")
}

/// The hash that names a file's blob.
pub fn hash(path: &str, bytes: &[u8]) -> String {
    if is_large(path) { sha256(bytes) } else { git_sha1(bytes) }
}

fn answer(stream: TcpStream, state: &Mutex<State>, ends: &AtomicBool) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut seen = Seen { path, range: None, token: None };
    loop {
        let mut header = String::new();
        if reader.read_line(&mut header)? == 0 || header.trim().is_empty() {
            break;
        }
        let Some((name, value)) = header.trim().split_once(':') else { continue };
        match name.to_ascii_lowercase().as_str() {
            "range" => seen.range = Some(value.trim().to_owned()),
            "authorization" => seen.token = Some(value.trim().to_owned()),
            _ => {}
        }
    }
    let mut reply = {
        let mut state = state.lock().expect("no test thread panicked here");
        state.seen.push(seen.clone());
        Reply::to(&seen, &mut state)
    };
    reply.send(stream, ends)
}

/// An answer on its way.
struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    /// Of the body that is announced, how much is sent.
    sent: Option<usize>,
    fault: Option<Fault>,
}

impl Reply {
    fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        let body = body.into();
        let length = ("Content-Length".to_owned(), body.len().to_string());
        Self { status, headers: vec![length], body, sent: None, fault: None }
    }

    fn header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.retain(|(known, _)| known != name);
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    fn to(seen: &Seen, state: &mut State) -> Self {
        let (path, query) = seen.path.split_once('?').unwrap_or((&seen.path, ""));
        let resolve = format!("/{REPO}/resolve/{COMMIT}/");
        let what = match path {
            _ if path.starts_with(&format!("/api/models/{REPO}/revision/")) => "info",
            _ if path == format!("/api/models/{REPO}/tree/{COMMIT}") => "tree",
            _ => path.strip_prefix(&resolve).or_else(|| path.strip_prefix("/cdn/")).unwrap_or("nothing"),
        };
        let fault = state.faults.get_mut(what).and_then(VecDeque::pop_front);
        match &fault {
            Some(Fault::Status(status, headers)) => {
                let reply = Self::new(*status, "refused");
                return headers.iter().fold(reply, |reply, (name, value)| reply.header(name, value));
            }
            Some(Fault::NextPage(next)) => {
                return Self::new(200, "[]").header("Link", format!(r#"<{next}>; rel="next""#));
            }
            Some(Fault::Body(body)) => return Self::new(200, body.as_str()),
            Some(Fault::Redirect(target)) if what == "info" || what == "tree" => {
                return Self::new(307, "").header("Location", target.as_str());
            }
            Some(Fault::Becomes(bytes)) => {
                state.files.insert(what.to_owned(), bytes.clone());
            }
            _ => {}
        }
        let mut reply = match what {
            "info" => Self::new(200, format!(r#"{{"id": "{REPO}", "sha": "{COMMIT}", "siblings": []}}"#)),
            "tree" => Self::tree(query, state),
            _ => match state.files.get(what) {
                Some(bytes) => Self::file(what, bytes, seen, fault.as_ref(), state.cdn.as_deref()),
                None => {
                    let code = if what == "nothing" { "RepoNotFound" } else { "EntryNotFound" };
                    Self::new(404, "no").header("X-Error-Code", code)
                }
            },
        };
        reply.fault = fault;
        reply
    }

    fn tree(query: &str, state: &State) -> Self {
        let from: usize = query.split("cursor=").nth(1).and_then(|cursor| cursor.parse().ok()).unwrap_or(0);
        let entry = |(path, bytes): (&String, &Vec<u8>)| {
            let (size, oid, path) = (bytes.len(), git_sha1(bytes), serde_json::json!(path));
            let lfs = if is_large(path.as_str().expect("a string")) {
                format!(r#", "lfs": {{"oid": "{}", "size": {size}, "pointerSize": 134}}"#, sha256(bytes))
            } else {
                String::new()
            };
            format!(r#"{{"type": "file", "path": {path}, "size": {size}, "oid": "{oid}"{lfs}}}"#)
        };
        let entries: Vec<String> = state.files.iter().skip(from).take(state.page).map(entry).collect();
        let folder = r#"{"type": "directory", "path": "folder", "size": 0, "oid": ""}"#;
        let body = format!("[{folder}{}{}]", if entries.is_empty() { "" } else { ", " }, entries.join(", "));
        let reply = Self::new(200, body);
        let next = from + state.page;
        if next >= state.files.len() {
            return reply;
        }
        let address = format!("/api/models/{REPO}/tree/{COMMIT}?recursive=true&cursor={next}");
        reply.header("Link", format!(r#"<{address}>; rel="next""#))
    }

    fn file(path: &str, bytes: &[u8], seen: &Seen, fault: Option<&Fault>, cdn: Option<&str>) -> Self {
        let on_cdn = seen.path.starts_with("/cdn/");
        let redirect = match fault {
            Some(Fault::Redirect(target)) => Some(target.clone()),
            _ if is_large(path) && !on_cdn => cdn.map(|host| format!("{host}/cdn/{path}?signature=secret")),
            _ => None,
        };
        let linked = |reply: Self| {
            if on_cdn {
                return reply.header("ETag", "\"5d41402abc4b2a76b9719d911017c592\"");
            }
            let etag = format!("\"{}\"", hash(path, bytes));
            let reply = reply.header("X-Repo-Commit", COMMIT);
            if is_large(path) {
                reply.header("X-Linked-Etag", etag).header("X-Linked-Size", bytes.len().to_string())
            } else {
                reply.header("ETag", etag)
            }
        };
        if let Some(target) = redirect {
            return linked(Self::new(302, "")).header("Location", target);
        }
        let range = seen.range.as_deref().and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
        let range = range.map(|(from, last)| (from.parse::<usize>(), last.parse::<usize>()));
        let mut reply = match range {
            Some((Ok(from), _)) if from >= bytes.len() => return Self::new(416, ""),
            Some((Ok(from), last)) if !matches!(fault, Some(Fault::IgnoresRange)) => {
                let to = last.map_or(bytes.len(), |last| (last + 1).min(bytes.len()));
                let from = if matches!(fault, Some(Fault::WrongRange)) { from / 2 } else { from };
                let content = format!("bytes {from}-{}/{}", to - 1, bytes.len());
                Self::new(206, &bytes[from..to]).header("Content-Range", content)
            }
            _ => Self::new(200, bytes),
        };
        match fault {
            Some(Fault::Cut(sent)) => reply.sent = Some(*sent),
            Some(Fault::CutWithoutLength(sent)) => {
                reply.sent = Some(*sent);
                reply.headers.retain(|(name, _)| name != "Content-Length");
            }
            Some(Fault::Longer(by)) => {
                let length = usize::try_from(bytes.len() as i64 + by).expect("not below nothing");
                reply.body.resize(length, b'x');
                reply = reply.header("Content-Length", length.to_string());
            }
            Some(Fault::Corrupt) => {
                let middle = reply.body.len() / 2;
                reply.body[middle] ^= 1;
            }
            Some(Fault::Compressed) => reply = reply.header("Content-Encoding", "gzip"),
            Some(Fault::Endless) => reply.headers.retain(|(name, _)| name != "Content-Length"),
            _ => {}
        }
        linked(reply)
    }

    fn send(&mut self, mut stream: TcpStream, ends: &AtomicBool) -> std::io::Result<()> {
        if let Some(Fault::Silent(time)) = self.fault {
            std::thread::sleep(time);
            return Ok(());
        }
        let mut head = format!("HTTP/1.1 {} Status\r\nConnection: close\r\n", self.status);
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        stream.write_all(format!("{head}\r\n").as_bytes())?;
        if let Some(Fault::Slow(bytes, pause)) = self.fault {
            for piece in self.body.chunks(bytes) {
                if ends.load(Ordering::Relaxed) {
                    return Ok(());
                }
                stream.write_all(piece)?;
                std::thread::sleep(pause);
            }
            return Ok(());
        }
        stream.write_all(&self.body[..self.sent.unwrap_or(self.body.len())])?;
        if matches!(self.fault, Some(Fault::Endless)) {
            for _ in 0..ENDLESS_BYTES / 4096 {
                stream.write_all(&[b'x'; 4096])?;
            }
        }
        stream.flush()
    }
}
