//! The cache of Hugging Face: where things lie, and how they get there.
//!
//! ```text
//! CACHE/models--ORGANISATION--NAME/blobs/HASH                     the bytes of a file, named by the hub's hash
//!                                  blobs/HASH.incomplete          what has arrived of them
//!                                  refs/main                      the commit that a branch or tag was last seen at
//!                                  snapshots/COMMIT/PATH          a link to the blob
//! CACHE/.locks/models--ORGANISATION--NAME/HASH.lock               who downloads it
//! ```
//!
//! This is what `huggingface_hub`, `transformers` and llama.cpp read and write. Everything appears by renaming, so nobody sees half of it.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use coldpress_memory::Bytes;
use coldpress_memory::sys::{free_disk_space, sync_folder};

use crate::HubError;
use crate::digest::Digest;
use crate::listing::RemoteFile;

/// Tells backup programs to pass the cache over (the standard for cache directory tags).
const TAG: &str = "Signature: 8a477f597d28d172789f06886806bc55\n# This folder is a cache of model files; programs fetch them again when they are missing.\n";

/// One repository in the cache.
#[derive(Clone, Debug)]
pub(crate) struct RepoCache {
    pub(crate) cache: PathBuf,
    folder_name: String,
}

impl RepoCache {
    /// `repo` has been checked by [`crate::ModelName`].
    pub(crate) fn new(cache: &Path, repo: &str) -> Self {
        let folder_name = format!("models--{}", repo.replace('/', "--"));
        Self { cache: cache.to_owned(), folder_name }
    }

    fn folder(&self) -> PathBuf {
        self.cache.join(&self.folder_name)
    }

    pub(crate) fn blob(&self, digest: &Digest) -> PathBuf {
        self.folder().join("blobs").join(digest.digits())
    }

    pub(crate) fn part(&self, digest: &Digest) -> PathBuf {
        self.folder().join("blobs").join(format!("{}.incomplete", digest.digits()))
    }

    pub(crate) fn lock(&self, digest: &Digest) -> PathBuf {
        self.cache.join(".locks").join(&self.folder_name).join(format!("{}.lock", digest.digits()))
    }

    /// The folder of a commit.
    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder().join("snapshots").join(commit)
    }

    /// The commit that `revision` was last seen at; none where the file is missing or holds something else.
    pub(crate) fn commit_of(&self, revision: &str) -> Option<String> {
        if crate::names::is_commit(revision) {
            return Some(revision.to_owned());
        }
        let text = fs::read_to_string(self.folder().join("refs").join(revision)).ok()?;
        Some(text.trim().to_owned()).filter(|commit| crate::names::is_commit(commit))
    }

    /// Whether the snapshot has the file, with the right length.
    pub(crate) fn is_linked(&self, commit: &str, file: &RemoteFile) -> bool {
        has_length(&self.snapshot(commit).join(&file.path), file.size)
    }

    /// Whether the blob is there as a whole.
    pub(crate) fn has_blob(&self, file: &RemoteFile) -> bool {
        has_length(&self.blob(&file.digest), file.size)
    }

    /// Bytes of the blob that have arrived.
    pub(crate) fn part_bytes(&self, file: &RemoteFile) -> u64 {
        let bytes = fs::metadata(self.part(&file.digest)).map_or(0, |data| data.len());
        if bytes <= file.size { bytes } else { 0 }
    }

    /// Makes the folders of a download.
    ///
    /// # Errors
    /// The cache cannot be written.
    pub(crate) fn prepare(&self, commit: &str) -> Result<(), HubError> {
        for folder in [self.folder().join("blobs"), self.snapshot(commit)] {
            fs::create_dir_all(&folder).map_err(|source| HubError::io(&folder, "make", source))?;
        }
        let tag = self.cache.join("CACHEDIR.TAG");
        if !tag.exists() {
            // A cache without its tag is as good.
            let _ = fs::write(&tag, TAG);
        }
        Ok(())
    }

    /// Room on the disk of the cache, which need not exist yet.
    pub(crate) fn free(&self) -> Option<Bytes> {
        let there = self.cache.ancestors().find(|path| path.exists()).unwrap_or(Path::new("."));
        free_disk_space(there).ok()
    }

    /// Refuses to begin what the disk cannot hold.
    ///
    /// # Errors
    /// There is less room than `needed`.
    pub(crate) fn check_space(&self, needed: Bytes) -> Result<(), HubError> {
        // A file system that does not tell refuses the write instead.
        let Some(free) = self.free() else { return Ok(()) };
        if needed > free { Err(HubError::NoSpace { path: self.cache.clone(), needed, free }) } else { Ok(()) }
    }

    /// Notes that `revision` is at `commit`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn remember(&self, revision: &str, commit: &str) -> Result<(), HubError> {
        if revision == commit || self.commit_of(revision).as_deref() == Some(commit) {
            return Ok(());
        }
        let path = self.folder().join("refs").join(revision);
        let folder = path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder).map_err(|source| HubError::io(folder, "make", source))?;
        let temporary = temporary(&path);
        let written = fs::write(&temporary, commit).and_then(|()| fs::rename(&temporary, &path));
        written.map_err(|source| HubError::io(&path, "write", source))
    }

    /// Links a blob into a snapshot. Where the file system has no links, the blob moves there, as `huggingface_hub` does it.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub(crate) fn link(&self, commit: &str, file: &RemoteFile) -> Result<(), HubError> {
        if self.is_linked(commit, file) {
            return Ok(());
        }
        let blob = self.blob(&file.digest);
        let path = self.snapshot(commit).join(&file.path);
        let folder = path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder).map_err(|source| HubError::io(folder, "make", source))?;
        // From the snapshot's folder: two up, and one for each folder of the path.
        let ups = "../".repeat(2 + file.path.matches('/').count());
        let target = format!("{ups}blobs/{}", file.digest.digits());
        let temporary = temporary(&path);
        let linked = match symlink(&target, &temporary) {
            Err(error) if error.kind() == ErrorKind::Unsupported || error.raw_os_error() == Some(1) => {
                fs::rename(&blob, &path)
            }
            Err(error) => Err(error),
            Ok(()) => fs::rename(&temporary, &path),
        };
        linked.and_then(|()| sync_folder(folder)).map_err(|source| HubError::io(&path, "link", source))
    }
}

/// A name beside `path` that nobody else uses.
fn temporary(path: &Path) -> PathBuf {
    static COUNT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    path.with_file_name(format!(".coldpress-{}-{count}.tmp", std::process::id()))
}

fn has_length(path: &Path, bytes: u64) -> bool {
    fs::metadata(path).is_ok_and(|data| data.is_file() && data.len() == bytes)
}
