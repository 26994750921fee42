//! Downloads that end in the middle, in one pull or over several.

use std::fs;
use std::time::Duration;

use coldpress_hub::{FileState, HubError};

use crate::common::mock_hub::{Fault, MockHub};
use crate::common::{User, bytes, ranges};

const BYTES: usize = 3_000_000;

fn hub() -> (MockHub, Vec<u8>) {
    let content = bytes(BYTES, 7);
    (MockHub::new(&[("m.gguf", &content)]), content)
}

/// Pulls, which must work, and compares every byte.
fn pulls(user: &mut User, content: &[u8]) {
    let report = user.pull(None).expect("a model");
    assert!(fs::read(&report.path).expect("the model") == content, "other bytes than at the hub");
    assert!(!user.part("m.gguf", content).exists());
}

#[test]
fn a_cut_connection_goes_on_from_its_last_byte() {
    let (hub, content) = hub();
    hub.faults("m.gguf", [Fault::Cut(1_234_567), Fault::Cut(0), Fault::Cut(700_000)]);
    let mut user = User::of(&hub);
    pulls(&mut user, &content);
    let range = |from: usize| Some(format!("bytes={from}-{}", BYTES - 1));
    assert_eq!(ranges(&hub), [None, range(1_234_567), range(1_234_567), range(1_934_567)]);
    assert_eq!(user.watch.notes.len(), 3, "{:?}", user.watch.notes);
}

#[test]
fn a_body_without_a_length_that_ends_early_is_cut_too() {
    let (hub, content) = hub();
    hub.faults("m.gguf", [Fault::CutWithoutLength(1_000_000), Fault::CutWithoutLength(0)]);
    let mut user = User::of(&hub);
    pulls(&mut user, &content);
    let notes = &user.watch.notes;
    assert!(
        notes.len() == 2 && notes[0].starts_with("the connection ended at byte 1000000 of 3000000"),
        "{notes:?}"
    );
}

#[test]
fn a_line_that_is_cut_again_and_again_gets_there_as_long_as_bytes_arrive() {
    let content = bytes(12_000_000, 8);
    let hub = MockHub::new(&[("m.gguf", &content)]);
    hub.faults("m.gguf", vec![Fault::Cut(1_100_000); 8]);
    let mut user = User::of(&hub);
    assert!(user.settings.retries < 8);
    pulls(&mut user, &content);
}

#[test]
fn a_line_that_never_delivers_ends_the_pull_and_keeps_the_part() {
    let (hub, content) = hub();
    hub.faults(
        "m.gguf",
        [Fault::Cut(500_000), Fault::Cut(10), Fault::Cut(10), Fault::Cut(10), Fault::Cut(10)],
    );
    let mut user = User::of(&hub);
    let refusal = user.refusal();
    assert!(refusal.contains("tried 4 times; what has arrived is kept"), "{refusal}");
    let part = fs::read(user.part("m.gguf", &content)).expect("the part");
    assert!(part == content[..500_030], "{} bytes", part.len());
    let plan = user.plan(None).expect("a plan");
    assert_eq!((plan.files[0].state, plan.missing_bytes.0), (FileState::Partial, BYTES as u64 - 500_030));
    hub.faults("m.gguf", []);
    pulls(&mut user, &content);
}

#[test]
fn a_pull_that_was_stopped_goes_on_later() {
    let (hub, content) = hub();
    hub.faults("m.gguf", [Fault::Slow(300_000, Duration::from_millis(30))]);
    let mut user = User::of(&hub);
    user.watch.stop_at = Some(600_000);
    assert!(matches!(user.pull(None), Err(HubError::Stopped)));
    let arrived = fs::read(user.part("m.gguf", &content)).expect("the part");
    assert!(arrived.len() >= 600_000 && content.starts_with(&arrived), "{} bytes", arrived.len());
    assert!(!user.repo().join("refs/main").exists(), "the revision is not there yet");
    user.watch.stop_at = None;
    pulls(&mut user, &content);
    assert_eq!(ranges(&hub)[1], Some(format!("bytes={}-{}", arrived.len(), BYTES - 1)));
}

#[test]
fn a_server_that_ignores_the_range_starts_anew() {
    let (hub, content) = hub();
    hub.faults("m.gguf", [Fault::Cut(2_000_000), Fault::IgnoresRange]);
    let mut user = User::of(&hub);
    pulls(&mut user, &content);
    assert_eq!(hub.seen_files().len(), 2);
}

#[test]
fn another_range_than_the_one_asked_for_is_not_taken() {
    let (hub, content) = hub();
    hub.faults("m.gguf", [Fault::Cut(2_000_000), Fault::WrongRange]);
    pulls(&mut User::of(&hub), &content);
    hub.faults("m.gguf", [Fault::Cut(2_000_000), Fault::WrongRange, Fault::WrongRange]);
    let mut user = User::of(&hub);
    let refusal = user.refusal();
    assert!(
        refusal.contains("bytes 2000000 to 3000000 were asked for, bytes 1000000 to 3000000 come"),
        "{refusal}"
    );
}

#[test]
fn a_file_that_changes_between_two_parts_begins_anew_with_the_new_one() {
    let (hub, content) = hub();
    let new = bytes(BYTES + 5, 9);
    hub.faults("m.gguf", [Fault::Cut(2_000_000), Fault::Becomes(new.clone())]);
    let mut user = User::of(&hub);
    let report = user.pull(None).expect("a model");
    assert!(fs::read(&report.path).expect("the model") == new, "the new bytes alone");
    assert!(user.blob("m.gguf", &new).exists() && !user.blob("m.gguf", &content).exists());
    assert!(!user.part("m.gguf", &content).exists());
    assert_eq!(ranges(&hub)[2], None, "the new file is asked for from its beginning");
}

#[test]
fn a_file_that_never_rests_is_given_up() {
    let (hub, _) = hub();
    hub.faults("m.gguf", (0..9).map(|seed| Fault::Becomes(bytes(1000, seed))));
    let refusal = User::of(&hub).refusal();
    assert!(refusal.contains("m.gguf changed 3 times while it was downloaded"), "{refusal}");
}

#[test]
fn a_part_with_other_bytes_is_removed_and_the_file_begins_anew() {
    let (hub, content) = hub();
    let mut user = User::of(&hub);
    let part = user.part("m.gguf", &content);
    fs::create_dir_all(part.parent().expect("a folder")).expect("made");
    fs::write(&part, bytes(1_000_000, 99)).expect("written");
    pulls(&mut user, &content);
    assert!(
        user.watch.notes.iter().any(|note| note.contains("damaged; beginning anew")),
        "{:?}",
        user.watch.notes
    );
    // One that is longer than the file says nothing about it.
    let mut user = User::of(&hub);
    let part = user.part("m.gguf", &content);
    fs::create_dir_all(part.parent().expect("a folder")).expect("made");
    fs::write(&part, bytes(BYTES + 1, 99)).expect("written");
    pulls(&mut user, &content);
}

#[test]
fn a_part_that_is_the_whole_file_needs_no_request() {
    let (hub, content) = hub();
    let mut user = User::of(&hub);
    let part = user.part("m.gguf", &content);
    fs::create_dir_all(part.parent().expect("a folder")).expect("made");
    fs::write(&part, &content).expect("written");
    pulls(&mut user, &content);
    assert_eq!(ranges(&hub), []);
}

#[test]
fn a_large_file_comes_in_several_requests() {
    let (hub, content) = hub();
    let mut user = User::of(&hub);
    user.settings.request_bytes = 1_300_000;
    pulls(&mut user, &content);
    let wanted = ["bytes=0-1299999", "bytes=1300000-2599999", "bytes=2600000-2999999"];
    assert_eq!(ranges(&hub), wanted.map(|range| Some(range.to_owned())));
}
