//! Several pulls of one model into one cache at the same time.

use std::fs;
use std::time::{Duration, Instant};

use coldpress_hub::HubError;

use crate::common::mock_hub::{Fault, MockHub, REPO, hash};
use crate::common::{User, Watch, bytes};

#[test]
fn the_second_pull_waits_and_fetches_nothing() {
    let content = bytes(2_000_000, 1);
    let hub = MockHub::new(&[("m.gguf", &content)]);
    hub.faults("m.gguf", [Fault::Slow(100_000, Duration::from_millis(30))]);
    let user = User::of(&hub);
    let name: coldpress_hub::ModelName = REPO.parse().expect("a name");
    let watches: Vec<Watch> = std::thread::scope(|scope| {
        let pull = || {
            let mut watch = Watch::default();
            let report = coldpress_hub::pull(&name, "main", &user.settings, &mut watch).expect("a model");
            assert!(fs::read(report.path).expect("the model") == content);
            watch
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(pull)).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    assert_eq!(hub.seen_files().len(), 1, "{:?}", hub.seen_files());
    let waited = watches
        .iter()
        .filter(|watch| watch.notes.iter().any(|note| note.contains("another program downloads m.gguf")));
    assert!(waited.count() >= 1);
}

#[test]
fn a_lock_that_others_hold_can_be_left_by_stopping() {
    let content = bytes(1000, 1);
    let hub = MockHub::new(&[("m.gguf", &content)]);
    let mut user = User::of(&hub);
    let lock = user
        .settings
        .cache
        .join(".locks/models--org--model")
        .join(format!("{}.lock", hash("m.gguf", &content)));
    fs::create_dir_all(lock.parent().expect("a folder")).expect("made");
    let held = fs::File::create(&lock).expect("a file");
    held.lock().expect("locked");
    struct Impatient(Watch, Instant);
    impl coldpress_hub::Observer for Impatient {
        fn progress(&mut self, done: u64, total: u64) {
            self.0.progress(done, total);
        }
        fn note(&mut self, text: &str) {
            self.0.note(text);
        }
        fn should_stop(&mut self) -> bool {
            self.1.elapsed() > Duration::from_millis(500)
        }
    }
    let mut watch = Impatient(Watch::default(), Instant::now());
    let name: coldpress_hub::ModelName = REPO.parse().expect("a name");
    let stopped = coldpress_hub::pull(&name, "main", &user.settings, &mut watch);
    assert!(matches!(stopped, Err(HubError::Stopped)));
    assert_eq!(watch.0.notes, ["another program downloads m.gguf; waiting for it"]);
    drop(held);
    user.pull(None).expect("the lock is free");
}
