//! Who gets the token, which redirects are followed, and what a refusal says.

use crate::common::mock_hub::{Fault, MockHub, REPO};
use crate::common::{User, bytes};

const TOKEN: &str = "hf_secret";

fn user(hub: &MockHub) -> User {
    let mut user = User::of(hub);
    user.settings.token = Some(TOKEN.to_owned());
    user
}

#[test]
fn every_request_to_the_hub_has_the_token_and_no_request_to_another_host() {
    let content = bytes(50_000, 1);
    let (hub, cdn) = (MockHub::new(&[("m.gguf", &content)]), MockHub::new(&[("m.gguf", &content)]));
    hub.redirect_files_to(&cdn.url());
    cdn.faults("m.gguf", [Fault::Cut(20_000)]);
    let mut user = user(&hub);
    let path = user.pull(None).expect("a model").path;
    assert!(std::fs::read(path).expect("the model") == content);
    assert!(hub.seen().len() >= 4, "{:?}", hub.seen());
    for seen in hub.seen() {
        assert_eq!(seen.token.as_deref(), Some("Bearer hf_secret"), "{seen:?}");
    }
    // The same name with another port is another host.
    let at_cdn = cdn.seen();
    assert_eq!(at_cdn.len(), 2);
    assert!(at_cdn.iter().all(|seen| seen.token.is_none()), "{at_cdn:?}");
    assert_eq!(at_cdn[1].range.as_deref(), Some("bytes=20000-49999"));
}

#[test]
fn a_redirect_within_the_hub_keeps_the_token() {
    let hub = MockHub::new(&[("m.gguf", b"model")]);
    hub.faults(
        "m.gguf",
        [Fault::Redirect(format!("/{REPO}/resolve/0123456789abcdef0123456789abcdef01234567/m.gguf?again"))],
    );
    user(&hub).pull(None).expect("a model");
    assert!(hub.seen_files().iter().all(|seen| seen.token.is_some()), "{:?}", hub.seen_files());
}

#[test]
fn without_a_token_none_is_sent() {
    let hub = MockHub::new(&[("m.gguf", b"model")]);
    User::of(&hub).pull(None).expect("a model");
    assert!(hub.seen().iter().all(|seen| seen.token.is_none()));
}

#[test]
fn a_token_that_is_none_is_refused_and_not_shown() {
    let hub = MockHub::new(&[("m.gguf", b"model")]);
    let mut user = User::of(&hub);
    user.settings.token = Some("hf_a\r\nX-Evil: 1".to_owned());
    let refusal = user.refusal();
    assert!(refusal.contains("HF_TOKEN") && !refusal.contains("Evil"), "{refusal}");
    assert_eq!(hub.seen().len(), 0);
}

#[test]
fn redirects_that_lead_in_a_circle_end() {
    let hub = MockHub::new(&[("m.gguf", b"model")]);
    let here = format!("{}/{REPO}/resolve/0123456789abcdef0123456789abcdef01234567/m.gguf", hub.url());
    hub.faults("m.gguf", vec![Fault::Redirect(here); 100]);
    let refusal = User::of(&hub).refusal();
    assert!(refusal.contains("more redirects than any hub needs"), "{refusal}");
    assert!(hub.seen_files().len() <= 10, "{}", hub.seen_files().len());
}

#[test]
fn redirects_to_what_is_no_web_address_are_refused() {
    for target in [
        "file:///etc/passwd",
        "ftp://127.0.0.1/m.gguf",
        "http://",
        "",
        &format!("http://x/{}", "y".repeat(20_000)),
    ] {
        let hub = MockHub::new(&[("m.gguf", b"model")]);
        hub.faults("m.gguf", vec![Fault::Redirect(target.to_owned()); 20]);
        let refusal = User::of(&hub).refusal();
        assert!(refusal.contains("redirect") && refusal.len() < 1000, "{refusal}");
    }
}

#[test]
fn the_signature_of_a_download_is_not_shown() {
    let hub = MockHub::new(&[("m.gguf", b"model")]);
    let cdn = MockHub::new(&[]);
    hub.redirect_files_to(&cdn.url());
    let refusal = User::of(&hub).refusal();
    assert!(!refusal.contains("secret"), "{refusal}");
}

/// The message when the hub refuses `what` with a status and a code.
fn refused(what: &str, status: u16, code: &str, token: bool) -> String {
    let hub = MockHub::new(&[("m.gguf", b"model")]);
    hub.faults(what, [Fault::Status(status, vec![("X-Error-Code", code.to_owned())])]);
    let mut user = if token { user(&hub) } else { User::of(&hub) };
    let message = user.refusal();
    assert_eq!(
        hub.seen()
            .iter()
            .filter(|seen| seen.path.contains(if what == "info" { "revision" } else { "resolve" }))
            .count(),
        1
    );
    message
}

#[test]
fn a_refusal_says_the_way_out() {
    for (what, status, code, token, way_out) in [
        ("m.gguf", 403, "GatedRepo", true, "accept its terms at http://127.0.0.1:"),
        ("m.gguf", 401, "GatedRepo", false, "then set HF_TOKEN to a token of your account"),
        ("m.gguf", 403, "", true, "your token does not allow this"),
        ("m.gguf", 403, "", false, "then set HF_TOKEN"),
        ("m.gguf", 404, "EntryNotFound", false, "the repository has changed"),
        ("info", 401, "RepoNotFound", false, "there is no such repository, or it is private"),
        ("info", 401, "", true, "renew HF_TOKEN"),
        ("info", 401, "", false, "set HF_TOKEN"),
        ("info", 404, "RevisionNotFound", false, "it has no revision \"main\""),
        ("info", 404, "RepoNotFound", true, "check the name"),
        ("info", 410, "", false, "check HF_ENDPOINT"),
    ] {
        let message = refused(what, status, code, token);
        assert!(
            message.contains(way_out) && message.contains(&status.to_string()),
            "{status} {code}: {message}"
        );
    }
}
