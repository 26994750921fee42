//! `HF_HUB_OFFLINE`: no request, and the cache as it is.

use std::fs;

use crate::common::User;
use crate::common::mock_hub::{Fault, MockHub};

const INDEX: &str = "model.safetensors.index.json";

#[test]
fn a_pulled_model_is_found_and_no_request_is_made() {
    let json = br#"{"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}"#;
    let hub = MockHub::new(&[
        ("config.json", b"{}"),
        ("m-1.safetensors", b"one"),
        ("m-2.safetensors", b"two"),
        (INDEX, json),
    ]);
    let mut user = User::of(&hub);
    let online = user.pull(None).expect("a model");
    let requests = hub.seen().len();
    user.settings.offline = true;
    let offline = user.pull(None).expect("a model");
    assert_eq!((offline.path, offline.commit, offline.bytes), (online.path, online.commit, online.bytes));
    assert_eq!(hub.seen().len(), requests);
    fs::remove_file(user.linked("m-2.safetensors")).expect("removed");
    let refusal = user.refusal();
    assert!(
        refusal.contains("as a whole: m-2.safetensors is missing") && refusal.contains("HF_HUB_OFFLINE"),
        "{refusal}"
    );
}

#[test]
fn what_is_not_there_is_said() {
    let hub = MockHub::new(&[
        ("m-Q4_0.gguf", b"four"),
        ("m-Q8_0-00001-of-00002.gguf", b"1"),
        ("m-Q8_0-00002-of-00002.gguf", b"2"),
    ]);
    let mut user = User::of(&hub);
    user.settings.offline = true;
    assert!(user.refusal().contains("org/model at main is not in "));
    user.settings.offline = false;
    user.pull(Some("q8_0")).expect("a model");
    user.settings.offline = true;
    // Of the hub's two models one is here, so it needs no name.
    assert!(user.pull(None).expect("a model").path.ends_with("m-Q8_0-00001-of-00002.gguf"));
    let other = user.pull(Some("q4_0")).expect_err("not here").to_string();
    assert!(other.contains("no model called \"q4_0\"; it has\n  Q8_0"), "{other}");
    fs::remove_file(user.linked("m-Q8_0-00002-of-00002.gguf")).expect("removed");
    assert!(user.refusal().contains("part 2 of m-Q8_0-*-of-00002.gguf not there"), "{}", user.refusal());
    let revision = user.pull_at(None, "other").expect_err("not here").to_string();
    assert!(revision.contains("org/model at other is not in"), "{revision}");
}

#[test]
fn a_hub_that_is_gone_is_an_error_that_names_what_the_cache_has() {
    let hub = MockHub::new(&[("m.gguf", b"model")]);
    let mut user = User::of(&hub);
    let path = user.pull(None).expect("a model").path;
    hub.faults("info", vec![Fault::Status(503, vec![]); 4]);
    assert!(user.refusal().contains("the hub answers 503 (not available); tried 4 times"));
    let note = user.watch.notes.last().expect("a note");
    assert!(
        note.contains("HF_HUB_OFFLINE=1 takes ") && note.ends_with(path.to_str().expect("UTF-8")),
        "{note}"
    );
}
