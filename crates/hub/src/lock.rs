//! One download of a blob at a time, among all programs that use the cache.
//!
//! The files and the system call are those of `huggingface_hub`: `.locks/REPO/BLOB.lock`, locked as a whole (`flock`). Files stay when the lock goes,
//! and where somebody removed one meanwhile, the lock is taken again. Where the file system knows no locks, work goes on without: writes
//! of the same bytes to the same places are harmless (`transfer.rs`).

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use crate::retry::sleep;
use crate::{HubError, Observer};

/// Pause between two looks at a lock that another program holds.
const LOOK: Duration = Duration::from_millis(100);
/// Users that share a cache may wait for each other.
const MODE: u32 = 0o664;

/// A lock, given back on drop.
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Waits for the lock of `path`; says once that it waits, for `what`.
    ///
    /// # Errors
    /// The file cannot be made, or the observer stops.
    pub(crate) fn take(path: &Path, what: &str, observer: &mut dyn Observer) -> Result<Self, HubError> {
        let folder = path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder).map_err(|source| HubError::io(folder, "make", source))?;
        let mut told = false;
        loop {
            let mut options = OpenOptions::new();
            let file = options.read(true).write(true).create(true).truncate(false).mode(MODE).open(path);
            let file = file.map_err(|source| HubError::io(path, "open", source))?;
            match file.try_lock() {
                Ok(()) if is_at(&file, path) => return Ok(Self { _file: file }),
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    if !std::mem::replace(&mut told, true) {
                        observer.note(&format!("another program downloads {what}; waiting for it"));
                    }
                    sleep(LOOK, observer)?;
                }
                Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => {
                    return Ok(Self { _file: file });
                }
                Err(TryLockError::Error(source)) => return Err(HubError::io(path, "lock", source)),
            }
        }
    }
}

/// Whether the file is still the one that others find there.
pub(crate) fn is_at(file: &File, path: &Path) -> bool {
    let same = |a: &fs::Metadata, b: &fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
    matches!((&file.metadata(), &fs::metadata(path)), (Ok(ours), Ok(theirs)) if same(ours, theirs))
}
