//! A hub, or somebody in its place, that wants to write elsewhere, to fill memory, or to be asked for ever.

use crate::common::User;
use crate::common::mock_hub::{COMMIT, Fault, MockHub, REPO, git_sha1};

fn entry(path: &str) -> String {
    let path = serde_json::json!(path);
    format!(r#"{{"type": "file", "path": {path}, "size": 5, "oid": "{}"}}"#, git_sha1(b"model"))
}

/// The message when the list of files is this; nothing may have been written.
fn with_tree(body: String) -> String {
    let hub = MockHub::new(&[("m.gguf", b"model")]);
    hub.faults("tree", [Fault::Body(body)]);
    let mut user = User::of(&hub);
    let message = user.refusal();
    assert_eq!(user.everything(), Vec::<String>::new(), "{message}");
    assert!(message.len() < 2000 && !message.contains('\u{1b}'), "{message}");
    message
}

#[test]
fn names_that_are_no_path_inside_a_folder_are_refused() {
    for name in [
        "../m.gguf",
        "a/../../m.gguf",
        "/etc/m.gguf",
        "a\\..\\m.gguf",
        "C:/m.gguf",
        "m\0.gguf",
        "m\u{1b}[2J.gguf",
        "m\n.gguf",
        "m\u{202e}.gguf",
        "./m.gguf",
        "a//m.gguf",
        "",
        &format!("{}.gguf", "m".repeat(300)),
        &format!("{}m.gguf", "a/".repeat(600)),
    ] {
        let message = with_tree(format!("[{}]", entry(name)));
        assert!(
            message.contains("lists a file named") && message.contains("nothing of it is downloaded"),
            "{message}"
        );
    }
}

#[test]
fn a_file_that_is_listed_twice_is_refused() {
    let hub = MockHub::new(&[]);
    hub.faults("tree", [Fault::Body(format!("[{}, {}]", entry("m.gguf"), entry("m.gguf")))]);
    assert!(User::of(&hub).refusal().contains("m.gguf is listed twice"));
}

#[test]
fn a_listing_that_is_none_is_refused() {
    let oid = git_sha1(b"model");
    for body in [
        "not json".to_owned(),
        "{}".to_owned(),
        "[1]".to_owned(),
        r#"[{"type": "file"}]"#.to_owned(),
        r#"[{"type": "file", "path": "m.gguf", "size": 5, "oid": "../../x"}]"#.to_owned(),
        r#"[{"type": "file", "path": "m.gguf", "size": 5}]"#.to_owned(),
        format!(r#"[{{"type": "file", "path": "m.gguf", "size": -5, "oid": "{oid}"}}]"#),
        format!(r#"[{{"type": "file", "path": "m.gguf", "size": 18446744073709551615, "oid": "{oid}"}}]"#),
        "[".repeat(100_000),
    ] {
        assert!(with_tree(body).contains("is HF_ENDPOINT a Hugging Face-compatible hub?"));
    }
}

#[test]
fn an_answer_without_end_is_left() {
    let hub = MockHub::new(&[("m.gguf", b"model")]);
    hub.faults("tree", [Fault::Body(" ".repeat((16 << 20) + 1))]);
    let refusal = User::of(&hub).refusal();
    assert!(refusal.contains("more than the 16777216 bytes that are read of it"), "{refusal}");
}

#[test]
fn a_commit_that_is_none_names_no_folder() {
    for sha in ["\"../../../x\"", "null", "\"main\"", "5", "\"0123456789ABCDEF0123456789ABCDEF01234567\""] {
        let hub = MockHub::new(&[("m.gguf", b"model")]);
        hub.faults("info", [Fault::Body(format!(r#"{{"sha": {sha}}}"#))]);
        let refusal = User::of(&hub).refusal();
        assert!(refusal.contains("HF_ENDPOINT"), "{refusal}");
    }
}

#[test]
fn another_commit_than_the_one_asked_for_is_refused() {
    let hub = MockHub::new(&[("m.gguf", b"model")]);
    let asked = "f".repeat(40);
    let refusal = User::of(&hub).pull_at(None, &asked).expect_err("refused").to_string();
    assert!(refusal.contains(&format!("the answer is about the commit {COMMIT}")), "{refusal}");
}

#[test]
fn an_empty_repository_holds_no_model() {
    let refusal = User::of(&MockHub::new(&[])).refusal();
    assert!(
        refusal.contains("holds no model that can be pulled") && refusal.contains("no files"),
        "{refusal}"
    );
}

#[test]
fn a_list_without_end_is_left() {
    let hub = MockHub::new(&[("m.gguf", b"model")]);
    let next = format!("/api/models/{REPO}/tree/{COMMIT}?again");
    hub.faults("tree", vec![Fault::NextPage(next); 1100]);
    let refusal = User::of(&hub).refusal();
    assert!(refusal.contains("the list of files has more than 1000 pages"), "{refusal}");
}

#[test]
fn the_list_goes_on_at_the_hub_alone() {
    let (hub, other) = (MockHub::new(&[("m.gguf", b"model")]), MockHub::new(&[("m.gguf", b"evil")]));
    hub.faults("tree", [Fault::NextPage(format!("{}/api/models/{REPO}/tree/{COMMIT}", other.url()))]);
    let refusal = User::of(&hub).refusal();
    assert!(refusal.contains("the next page is at another host"), "{refusal}");
    assert_eq!(other.seen().len(), 0);
}
