//! What the tests of this crate share.
#![allow(dead_code, reason = "each test uses a part")]

pub mod mock_hub;

use std::path::{Path, PathBuf};
use std::time::Duration;

use coldpress_hub::{HubError, ModelName, Observer, PullReport, Settings};
use tempfile::TempDir;

use mock_hub::{COMMIT, MockHub, REPO, hash};

/// Bytes that differ everywhere.
pub fn bytes(count: usize, seed: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..count).map(|_| next()).collect()
}

/// A user with a cache.
pub struct User {
    folder: TempDir,
    pub settings: Settings,
    pub watch: Watch,
}

/// What a pull says.
#[derive(Default)]
pub struct Watch {
    pub notes: Vec<String>,
    pub progress: Vec<(u64, u64)>,
    /// Stops when this many bytes are done.
    pub stop_at: Option<u64>,
}

impl Observer for Watch {
    fn progress(&mut self, done: u64, total: u64) {
        self.progress.push((done, total));
    }

    fn note(&mut self, text: &str) {
        self.notes.push(text.to_owned());
    }

    fn should_stop(&mut self) -> bool {
        let done = self.progress.last().map_or(0, |&(done, _)| done);
        self.stop_at.is_some_and(|stop| done >= stop)
    }
}

impl User {
    /// A user of this hub, who is never patient.
    pub fn of(hub: &MockHub) -> Self {
        let folder = TempDir::new().expect("a folder");
        let mut settings = Settings::new(folder.path().join("hub"));
        settings.endpoint = hub.url();
        settings.retries = 3;
        settings.backoff = Duration::from_millis(1);
        settings.silence = Duration::from_secs(5);
        Self { folder, settings, watch: Watch::default() }
    }

    pub fn pull(&mut self, quant: Option<&str>) -> Result<PullReport, HubError> {
        self.pull_at(quant, "main")
    }

    pub fn pull_at(&mut self, quant: Option<&str>, revision: &str) -> Result<PullReport, HubError> {
        coldpress_hub::pull(&model(quant), revision, &self.settings, &mut self.watch)
    }

    pub fn plan(&mut self, quant: Option<&str>) -> Result<PullReport, HubError> {
        coldpress_hub::plan(&model(quant), "main", &self.settings, &mut self.watch)
    }

    /// The message of a pull that must fail.
    pub fn refusal(&mut self) -> String {
        self.pull(None).expect_err("refused").to_string()
    }

    pub fn repo(&self) -> PathBuf {
        self.settings.cache.join("models--org--model")
    }

    pub fn blob(&self, path: &str, bytes: &[u8]) -> PathBuf {
        self.repo().join("blobs").join(hash(path, bytes))
    }

    pub fn part(&self, path: &str, bytes: &[u8]) -> PathBuf {
        self.repo().join("blobs").join(format!("{}.incomplete", hash(path, bytes)))
    }

    pub fn linked(&self, path: &str) -> PathBuf {
        self.repo().join("snapshots").join(COMMIT).join(path)
    }

    /// Everything below the cache, as paths.
    pub fn everything(&self) -> Vec<String> {
        let mut found = Vec::new();
        collect(self.folder.path(), self.folder.path(), &mut found);
        found.sort();
        found
    }
}

fn collect(root: &Path, folder: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() && !path.is_symlink() {
            collect(root, &path, found);
        } else {
            found.push(path.strip_prefix(root).expect("below").display().to_string());
        }
    }
}

fn model(quant: Option<&str>) -> ModelName {
    ModelName { repo: REPO.to_owned(), quant: quant.map(str::to_owned) }
}

/// The ranges that were asked of a file.
pub fn ranges(hub: &MockHub) -> Vec<Option<String>> {
    hub.seen_files().into_iter().map(|seen| seen.range).collect()
}
