//! A client of plain sockets.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(20);

/// One connection.
pub struct Socket {
    reader: BufReader<TcpStream>,
    address: SocketAddr,
}

/// An answer.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(header, _)| header.eq_ignore_ascii_case(name)).map(|(_, value)| &**value)
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).expect("text")
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// The JSON of an answer with this status.
    pub fn expect(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text());
        self.json()
    }
}

impl Socket {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
        stream.set_nodelay(true).expect("no delay");
        Self { reader: BufReader::new(stream), address }
    }

    pub fn stream(&self) -> &TcpStream {
        self.reader.get_ref()
    }

    pub fn write(&mut self, bytes: &[u8]) {
        self.reader.get_mut().write_all(bytes).expect("written");
    }

    pub fn try_write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.reader.get_mut().write_all(bytes)
    }

    /// Sends a request.
    pub fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) {
        let mut head = format!("{method} {path} HTTP/1.1\r\n");
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            head += &format!("host: {}\r\n", self.address);
        }
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        if !body.is_empty() || method == "POST" {
            head += &format!("content-length: {}\r\n", body.len());
        }
        self.write(format!("{head}\r\n").as_bytes());
        self.write(body);
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        match self.reader.read_line(&mut line) {
            Ok(0) => None,
            Ok(_) => Some(line.trim_end_matches(['\r', '\n']).to_owned()),
            Err(error) => panic!("{error} after {line:?}"),
        }
    }

    /// Reads status and headers.
    pub fn head(&mut self) -> Reply {
        let status = self.line().expect("a status line");
        let status = status.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        let mut headers = Vec::new();
        while let Some(line) = self.line().filter(|line| !line.is_empty()) {
            let (name, value) = line.split_once(": ").expect("a header");
            headers.push((name.to_owned(), value.to_owned()));
        }
        Reply { status, headers, body: Vec::new() }
    }

    /// Reads a whole answer.
    pub fn reply(&mut self) -> Reply {
        let mut reply = self.head();
        if reply.header("transfer-encoding") == Some("chunked") {
            while let Some(chunk) = self.chunk() {
                reply.body.extend(chunk);
            }
        } else if let Some(length) = reply.header("content-length") {
            let mut body = vec![0; length.parse().expect("a length")];
            self.reader.read_exact(&mut body).expect("a body");
            reply.body = body;
        }
        reply
    }

    fn chunk(&mut self) -> Option<Vec<u8>> {
        let length = usize::from_str_radix(&self.line()?, 16).expect("a length");
        let mut chunk = vec![0; length + 2];
        self.reader.read_exact(&mut chunk).expect("a chunk");
        chunk.truncate(length);
        (length > 0).then_some(chunk)
    }

    pub fn request(mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        self.send(method, path, headers, body);
        self.reply()
    }

    /// Reads an answer as a stream.
    pub fn events(mut self) -> Events {
        let sent = Instant::now();
        let head = self.head();
        Events { head, head_after: sent.elapsed(), socket: self, rest: String::new() }
    }

    /// Whether the other side closed within the time.
    pub fn closed_within(&mut self, time: Duration) -> bool {
        self.stream().set_read_timeout(Some(time)).expect("a timeout");
        let mut rest = Vec::new();
        match self.reader.read_to_end(&mut rest) {
            Ok(_) => true,
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        }
    }

    pub fn close_sending(&self) {
        self.stream().shutdown(Shutdown::Write).expect("shut down");
    }
}

/// A stream.
pub struct Events {
    pub head: Reply,
    pub head_after: Duration,
    socket: Socket,
    rest: String,
}

impl Events {
    /// The next block that ends with an empty line; `None` at the end.
    pub fn block(&mut self) -> Option<String> {
        self.until("\n\n")
    }

    /// The next line; `None` at the end.
    pub fn line(&mut self) -> Option<String> {
        self.until("\n")
    }

    fn until(&mut self, end: &str) -> Option<String> {
        loop {
            if let Some((block, rest)) = self.rest.split_once(end) {
                let block = block.to_owned();
                self.rest = rest.to_owned();
                return Some(block);
            }
            let chunk = self.socket.chunk()?;
            self.rest += &String::from_utf8(chunk).expect("text");
        }
    }

    /// All blocks until the end.
    pub fn blocks(mut self) -> Vec<String> {
        assert_eq!(self.head.status, 200, "{:?}", self.head);
        std::iter::from_fn(|| self.block()).collect()
    }

    /// All events with their names, comments left out.
    pub fn named(self) -> Vec<(String, Value)> {
        let read = |block: String| {
            let (name, data) = block.strip_prefix("event: ")?.split_once("\ndata: ")?;
            Some((name.to_owned(), serde_json::from_str(data).expect("JSON")))
        };
        self.blocks().into_iter().filter_map(read).collect()
    }

    /// All data without a name, comments left out; the last one must be `[DONE]`.
    pub fn data(self) -> Vec<Value> {
        let blocks = self.blocks();
        assert_eq!(blocks.last().map(|block| &**block), Some("data: [DONE]"));
        let data =
            blocks.iter().filter_map(|block| block.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
        data.map(|data| serde_json::from_str(data).expect("JSON")).collect()
    }

    /// All lines of JSON.
    pub fn lines(mut self) -> Vec<Value> {
        assert_eq!(self.head.status, 200, "{:?}", self.head);
        std::iter::from_fn(|| self.line()).map(|line| serde_json::from_str(&line).expect("JSON")).collect()
    }

    /// Leaves without reading on.
    pub fn leave(self) {
        drop(self.socket);
    }
}
