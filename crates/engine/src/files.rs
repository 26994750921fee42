//! Files that are written for others: which ones may be replaced, and small ones that are replaced as a whole.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Whether `path` is a regular file that begins with `opening`: of the kind that a caller writes, so that it may be replaced.
/// Nothing else is opened, because opening a pipe would wait for a writer.
pub fn begins_with(path: &Path, opening: &[u8]) -> bool {
    let mut found = vec![0; opening.len()];
    path.is_file()
        && File::open(path).and_then(|mut file| file.read_exact(&mut found)).is_ok()
        && found == opening
}

/// Writes `path` so that whoever reads it finds the old content or all of the new one, whatever happens meanwhile.
///
/// # Errors
/// What the system says; nothing of the new file is left then.
pub(crate) fn replace(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
    let partial = path.with_file_name(format!(".{name}.{}.partial", std::process::id()));
    let result = File::create(&partial).and_then(|mut file| {
        write(&mut file)?;
        file.sync_all()?;
        std::fs::rename(&partial, path)
    });
    if result.is_err() {
        let _ = std::fs::remove_file(&partial);
    }
    result
}
