//! Many large bodies at once: what is held of them is bounded. Alone in its file, because it looks at the memory of the process.

mod common;

use std::sync::atomic::Ordering;
use std::time::Duration;

use coldpress_server::ServerSettings;
use common::{Running, Scripted, Socket, eventually, hello, settings};
use serde_json::json;

fn resident_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a line");
    line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number")
}

#[test]
fn large_bodies_at_once_stay_within_their_bound() {
    let settings = ServerSettings { bodies_bytes_max: 8 << 20, ..settings() };
    let server = Running::with(settings, Scripted::saying(&["a"]));
    let before = resident_kib();
    let half = vec![b' '; 3 << 20];
    let mut senders: Vec<Socket> = (0..12).map(|_| server.connect()).collect();
    for socket in &mut senders {
        socket.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 60000000\r\n\r\n",
        );
        // Whoever is refused closes while we write.
        let _ = socket.try_write(&half);
    }
    std::thread::sleep(Duration::from_millis(200));
    assert!(server.state.body_bytes.load(Ordering::Relaxed) <= 8 << 20);
    // The bound, doubled by the growth of buffers, and what twelve connections hold.
    assert!(resident_kib() < before + (32 << 10), "{} KiB, then {} KiB", before, resident_kib());
    drop(senders);
    eventually("their end", || server.state.body_bytes.load(Ordering::Relaxed) == 0);
    server.post("/v1/chat/completions", &json!({ "messages": hello() })).expect(200);
}
