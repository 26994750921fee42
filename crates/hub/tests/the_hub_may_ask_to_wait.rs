//! Hubs that are overloaded, silent or gone.

use std::time::{Duration, Instant};

use coldpress_hub::HubError;

use crate::common::User;
use crate::common::mock_hub::{Fault, MockHub};

fn hub() -> MockHub {
    MockHub::new(&[("m.gguf", b"model")])
}

fn busy(status: u16, header: &'static str, value: &str) -> Fault {
    Fault::Status(status, vec![(header, value.to_owned())])
}

#[test]
fn too_many_requests_wait_as_long_as_the_hub_says() {
    for (header, value) in [("Retry-After", "1"), ("RateLimit", r#""api";r=0;t=1"#)] {
        let hub = hub();
        hub.faults("info", [busy(429, header, value)]);
        hub.faults("m.gguf", [busy(429, header, value)]);
        let mut user = User::of(&hub);
        let started = Instant::now();
        user.pull(None).expect("a model");
        assert!(started.elapsed() >= Duration::from_secs(2), "{:?}", started.elapsed());
        assert!(
            user.watch.notes[0].contains("429 (too many requests); next try in 1.0 s (1 of 3)"),
            "{:?}",
            user.watch.notes
        );
    }
}

#[test]
fn a_wait_beyond_all_patience_is_said_and_not_waited() {
    let hub = hub();
    hub.faults("m.gguf", [busy(429, "Retry-After", "3")]);
    let mut user = User::of(&hub);
    user.settings.longest_wait = Duration::from_secs(2);
    let refusal = user.refusal();
    assert!(
        refusal.contains("asks to wait 3 s before the next request, at most 2 s are waited"),
        "{refusal}"
    );
}

#[test]
fn errors_of_the_server_are_tried_again_a_few_times() {
    for status in [500, 502, 503, 504] {
        let hub = hub();
        for what in ["info", "tree", "m.gguf"] {
            hub.faults(what, [Fault::Status(status, vec![]), Fault::Cut(0), Fault::Status(status, vec![])]);
        }
        User::of(&hub).pull(None).expect("a model");
    }
    let hub = hub();
    hub.faults("tree", vec![Fault::Status(500, vec![]); 4]);
    let refusal = User::of(&hub).refusal();
    assert!(refusal.contains("the hub answers 500; tried 4 times") && !refusal.contains("kept"), "{refusal}");
}

#[test]
fn a_silent_server_is_as_good_as_cut() {
    let hub = hub();
    let silent = Fault::Silent(Duration::from_secs(20));
    hub.faults("info", [silent.clone()]);
    hub.faults("m.gguf", [silent, Fault::Cut(2)]);
    let mut user = User::of(&hub);
    user.settings.silence = Duration::from_secs(1);
    let started = Instant::now();
    user.pull(None).expect("a model");
    assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
    assert!(user.watch.notes[0].contains("no answer in time"), "{:?}", user.watch.notes);
}

#[test]
fn a_server_that_trickles_is_as_good_as_silent() {
    let content = crate::common::bytes(4_000, 1);
    let hub = MockHub::new(&[("m.gguf", &content)]);
    hub.faults("m.gguf", [Fault::Slow(10, Duration::from_millis(50))]);
    let mut user = User::of(&hub);
    user.settings.silence = Duration::from_secs(1);
    user.pull(None).expect("a model");
    let note = &user.watch.notes[0];
    assert!(note.starts_with("only ") && note.contains(" bytes in "), "{note}");
    assert_eq!(hub.seen_files().len(), 2);
}

#[test]
fn stopping_is_heard_while_the_hub_is_silent_and_while_waiting() {
    for fault in [Fault::Silent(Duration::from_secs(20)), busy(429, "Retry-After", "30")] {
        let hub = hub();
        hub.faults("info", [fault]);
        let mut user = User::of(&hub);
        user.watch.stop_at = Some(0);
        let started = Instant::now();
        assert!(matches!(user.pull(None), Err(HubError::Stopped)));
        assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    }
}

#[test]
fn a_hub_that_is_not_there_is_named() {
    let gone = {
        let hub = hub();
        hub.url()
    };
    let mut user = User::of(&hub());
    user.settings.endpoint = gone.clone();
    let refusal = user.refusal();
    assert!(refusal.contains(&gone) && refusal.contains("tried 4 times"), "{refusal}");
}
