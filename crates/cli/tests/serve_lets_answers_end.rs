//! A server that is told to end lets answers end that are being written.
//!
//! What went wrong: they were cut at once with an error, whatever the documentation promised.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{coldpress, demo};

#[test]
fn when_it_is_told_to_end() {
    let model = demo();
    let arguments = [
        "serve",
        model.to_str().expect("a UTF-8 path"),
        "--port",
        "0",
        "--cold-fraction",
        "0.75",
        "--ctx",
        "1024",
    ];
    let mut server = coldpress(&arguments).stderr(Stdio::piped()).spawn().expect("the program starts");
    let mut notes = BufReader::new(server.stderr.take().expect("piped")).lines();
    let mut note = |wanted: &str| loop {
        let line = notes.next().expect("a further line").expect("UTF-8");
        if line.contains(wanted) {
            return line;
        }
    };
    let address = note("listening at http://")
        .split("http://")
        .nth(1)
        .expect("an address")
        .split(',')
        .next()
        .expect("an address")
        .to_owned();
    note("ready: ");
    let mut socket = TcpStream::connect(&address).expect("it listens");
    socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    // Tokens 0 to 2 are the model's control tokens: without them the answer ends by its limit.
    let body = r#"{"prompt": "Once", "max_tokens": 120, "stream": true, "logit_bias": {"0": -100, "1": -100, "2": -100}}"#;
    let head =
        format!("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", body.len());
    socket.write_all(format!("{head}{body}").as_bytes()).expect("taken");
    let mut answer = String::new();
    let mut piece = [0; 4096];
    let mut told = false;
    loop {
        let count = socket.read(&mut piece).expect("a further piece");
        if count == 0 {
            break;
        }
        answer.push_str(&String::from_utf8_lossy(&piece[..count]));
        if !told && answer.contains("data: {") {
            told = Command::new("kill")
                .args(["-TERM", &server.id().to_string()])
                .status()
                .expect("kill")
                .success();
        }
    }
    assert!(answer.contains("\"finish_reason\":\"length\"") && answer.contains("data: [DONE]"), "{answer}");
    assert!(TcpStream::connect(&address).is_err(), "nobody new is taken");
    assert!(server.wait().expect("an end").code().is_some());
}
