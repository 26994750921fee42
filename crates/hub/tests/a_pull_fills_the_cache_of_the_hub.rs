//! Where the files of a model lie after a pull, and that nothing is fetched twice.

use std::fs;

use coldpress_hub::FileState;

use crate::common::mock_hub::{COMMIT, Fault, MockHub, REPO};
use crate::common::{User, bytes, ranges};

const INDEX: &str = "model.safetensors.index.json";
const INDEX_JSON: &[u8] =
    br#"{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}"#;

fn checkpoint() -> MockHub {
    MockHub::new(&[
        ("README.md", b"read me"),
        ("additional_chat_templates/tool.jinja", b"{{ tools }}"),
        ("config.json", b"{}"),
        ("empty.txt", b""),
        ("model-00001-of-00002.safetensors", &bytes(3000, 1)),
        ("model-00002-of-00002.safetensors", &bytes(2000, 2)),
        (INDEX, INDEX_JSON),
        ("pytorch_model.bin", b"the same again"),
        ("tokenizer.json", b"{\"model\": {}}"),
        ("twin.json", b"{}"),
    ])
}

#[test]
fn blobs_are_named_by_their_hashes_and_linked_into_the_snapshot() {
    let hub = checkpoint();
    let mut user = User::of(&hub);
    let report = user.pull(None).expect("a model");
    assert_eq!(report.path, user.repo().join("snapshots").join(COMMIT));
    assert_eq!(fs::read_to_string(user.repo().join("refs/main")).expect("a reference"), COMMIT);
    for (path, content) in [
        ("additional_chat_templates/tool.jinja", b"{{ tools }}".to_vec()),
        ("config.json", b"{}".to_vec()),
        ("empty.txt", Vec::new()),
        ("model-00001-of-00002.safetensors", bytes(3000, 1)),
        ("model-00002-of-00002.safetensors", bytes(2000, 2)),
        (INDEX, INDEX_JSON.to_vec()),
        ("tokenizer.json", b"{\"model\": {}}".to_vec()),
        ("twin.json", b"{}".to_vec()),
    ] {
        let link = user.linked(path);
        assert_eq!(fs::read(&link).expect("a linked file"), content, "{path}");
        let target = fs::read_link(&link).expect("a link");
        assert!(target.starts_with("../..") && target.is_relative(), "{}", target.display());
        assert_eq!(
            fs::canonicalize(&link).expect("a target"),
            user.blob(path, &content).canonicalize().expect("a blob")
        );
    }
    let names = user.everything();
    assert!(names.iter().all(|name| !name.ends_with(".incomplete") && !name.ends_with(".tmp")), "{names:?}");
    assert!(names.iter().all(|name| !name.ends_with(".md") && !name.ends_with(".bin")), "{names:?}");
    assert!(names.iter().any(|name| name == "hub/CACHEDIR.TAG"), "{names:?}");
}

#[test]
fn the_second_pull_fetches_nothing() {
    let hub = checkpoint();
    let mut user = User::of(&hub);
    let first = user.pull(None).expect("a model");
    assert!(first.files.iter().all(|file| file.state == FileState::Absent), "{:?}", first.files);
    let asked = hub.seen_files();
    // Of two files with the same bytes one is fetched, and no file twice.
    let mut paths: Vec<&str> = asked.iter().map(|seen| seen.path.as_str()).collect();
    paths.sort_unstable();
    assert_eq!(paths.len(), 6, "{paths:?}");
    paths.dedup();
    assert_eq!(paths.len(), 6, "{paths:?}");
    let second = user.pull(None).expect("a model");
    assert_eq!(hub.seen_files().len(), asked.len());
    assert_eq!((second.path, second.missing_bytes.0), (first.path, 0));
    assert!(second.files.iter().all(|file| file.state == FileState::Present));
}

#[test]
fn a_blob_that_another_program_fetched_is_only_linked() {
    let content = bytes(5000, 3);
    let hub = MockHub::new(&[("m.gguf", &content)]);
    let mut user = User::of(&hub);
    let blob = user.blob("m.gguf", &content);
    fs::create_dir_all(blob.parent().expect("a folder")).expect("made");
    fs::write(&blob, &content).expect("written");
    let report = user.pull(None).expect("a model");
    assert_eq!(fs::read(report.path).expect("the model"), content);
    assert_eq!(ranges(&hub), []);
}

#[test]
fn a_blob_that_is_too_short_is_fetched_again() {
    let content = bytes(5000, 3);
    let hub = MockHub::new(&[("m.gguf", &content)]);
    let mut user = User::of(&hub);
    let path = user.pull(None).expect("a model").path;
    fs::write(user.blob("m.gguf", &content), &content[..100]).expect("cut");
    assert_eq!(user.plan(None).expect("a plan").missing_bytes.0, 5000);
    user.pull(None).expect("a model");
    assert_eq!(fs::read(path).expect("the model"), content);
}

#[test]
fn a_plan_says_what_a_pull_does_and_writes_nothing() {
    let hub = checkpoint();
    let mut user = User::of(&hub);
    let planned = user.plan(None).expect("a plan");
    assert_eq!(user.everything(), Vec::<String>::new());
    let pulled = user.pull(None).expect("a model");
    assert_eq!(
        serde_json::to_value(&planned.files).expect("JSON"),
        serde_json::to_value(&pulled.files).expect("JSON")
    );
    assert_eq!((planned.missing_bytes, planned.bytes), (pulled.missing_bytes, pulled.bytes));
    // The two files with the same bytes are one blob.
    assert_eq!(planned.missing_bytes.0 + 2, planned.bytes.0);
    assert_eq!(planned.path, pulled.path);
}

#[test]
fn a_split_set_lies_in_one_folder_and_its_first_part_is_the_path() {
    let parts = ["Q4_0/m-00001-of-00003.gguf", "Q4_0/m-00002-of-00003.gguf", "Q4_0/m-00003-of-00003.gguf"];
    let hub = MockHub::new(&[
        (parts[2], b"three"),
        (parts[0], b"one"),
        (parts[1], b"two"),
        ("Q8_0/m.gguf", b"other"),
    ]);
    // The hub lists file by file, and the last page is short.
    hub.page(3);
    let mut user = User::of(&hub);
    let report = user.pull(Some("q4_0")).expect("a model");
    assert_eq!(report.path, user.linked(parts[0]));
    let folder = report.path.parent().expect("a folder");
    let beside: Vec<_> =
        ["m-00001", "m-00002", "m-00003"].map(|part| folder.join(format!("{part}-of-00003.gguf"))).into();
    assert!(beside.iter().all(|part| part.exists()));
    assert!(!user.linked("Q8_0/m.gguf").exists());
    let pages = hub.seen().iter().filter(|seen| seen.path.contains("/tree/")).count();
    assert_eq!(pages, 2);
}

#[test]
fn a_revision_is_remembered_under_its_name() {
    let hub = MockHub::new(&[("m.gguf", b"model")]);
    let mut user = User::of(&hub);
    user.pull_at(None, "refs/pr/1").expect("a model");
    assert_eq!(fs::read_to_string(user.repo().join("refs/refs/pr/1")).expect("a reference"), COMMIT);
    assert!(hub.seen()[0].path.ends_with("/revision/refs%2Fpr%2F1"), "{:?}", hub.seen());
    user.pull_at(None, COMMIT).expect("a model");
    assert!(!user.repo().join("refs").join(COMMIT).exists());
    let wrong = user.pull_at(None, "../../main").expect_err("refused");
    assert!(wrong.is_usage() && wrong.to_string().contains("leaves its folder"), "{wrong}");
}

#[test]
fn progress_counts_every_byte_once_and_ends_at_the_total() {
    let hub = checkpoint();
    let mut user = User::of(&hub);
    let total = user.pull(None).expect("a model").bytes.0;
    let progress = &user.watch.progress;
    assert_eq!(progress.last(), Some(&(total, total)));
    let of_the_whole: Vec<u64> =
        progress.iter().filter(|&&(_, of)| of == total).map(|&(done, _)| done).collect();
    assert!(of_the_whole.is_sorted(), "{of_the_whole:?}");
}

#[test]
fn a_cache_that_cannot_be_written_is_named() {
    let hub = MockHub::new(&[("m.gguf", b"model")]);
    let mut user = User::of(&hub);
    fs::write(&user.settings.cache, "a file").expect("written");
    let refusal = user.refusal();
    let wanted = format!("cannot make {}", user.repo().join("blobs").display());
    assert!(refusal.contains(&wanted), "{refusal}");
}

#[test]
fn what_the_disk_cannot_hold_is_not_begun() {
    let hub = MockHub::new(&[("m.gguf", b"model")]);
    // A thousand parts as large as the hub allows: no disk holds that.
    let (size, oid) = (1_u64 << 44, "0".repeat(40));
    let entry = |part: u32| {
        let path = format!("m-{part:05}-of-01000.gguf");
        format!(
            r#"{{"type": "file", "path": "{path}", "size": {size}, "lfs": {{"oid": "{oid}{part:024}", "size": {size}}}}}"#
        )
    };
    let parts: Vec<String> = (1..=1000).map(entry).collect();
    hub.faults("tree", [Fault::Body(format!("[{}]", parts.join(", ")))]);
    let mut user = User::of(&hub);
    let refusal = user.refusal();
    assert!(
        refusal.contains("15.6 PiB are to be fetched and ") && refusal.contains("--cache-dir"),
        "{refusal}"
    );
    assert_eq!(ranges(&hub), []);
    assert_eq!(user.everything(), Vec::<String>::new());
}

#[test]
fn a_repository_with_a_new_name_is_followed() {
    let hub = MockHub::new(&[("m.gguf", b"model")]);
    let renamed = format!("/api/models/{REPO}/revision/main?renamed");
    hub.faults("info", [Fault::Redirect(renamed)]);
    User::of(&hub).pull(None).expect("a model");
    assert!(hub.seen()[1].path.ends_with("?renamed"), "{:?}", hub.seen());
}

#[test]
fn a_gguf_file_in_the_folder_of_a_checkpoint_is_said() {
    let hub =
        MockHub::new(&[("config.json", b"{}"), ("model.safetensors", b"weights"), ("m-Q4_0.gguf", b"model")]);
    let mut user = User::of(&hub);
    user.pull(Some("safetensors")).expect("a folder");
    assert_eq!(user.watch.notes, Vec::<String>::new());
    user.pull(Some("q4_0")).expect("a file");
    user.pull(Some("safetensors")).expect("a folder");
    let notes = &user.watch.notes;
    assert!(notes.len() == 1 && notes[0].starts_with("m-Q4_0.gguf is linked in "), "{notes:?}");
}

#[test]
fn a_revision_that_cannot_be_written_down_is_a_note() {
    let hub = MockHub::new(&[("m.gguf", b"model")]);
    let mut user = User::of(&hub);
    fs::create_dir_all(user.repo()).expect("made");
    fs::write(user.repo().join("refs"), "a file").expect("written");
    let path = user.pull(None).expect("a model").path;
    assert!(path.exists() && user.watch.notes[0].contains("refs"), "{:?}", user.watch.notes);
}
