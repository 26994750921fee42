//! Model files that are opened without a trace in the page cache; files that are written for others: which ones may be replaced,
//! and small ones that are replaced as a whole.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use coldpress_formats::{FormatError, HeaderWatch, ModelFile};
use coldpress_memory::sys;

/// Gives back the pages of the cache that reading a header took, and lets none be read ahead, which may be megabytes.
struct GiveBack;

impl HeaderWatch for GiveBack {
    fn opened(&self, file: &File) {
        // Advice, here and below: a refusal changes no result.
        let _ = sys::expect_random_reads(file);
    }

    fn read(&self, file: &File, end: u64) {
        let _ = sys::drop_page_cache(file, 0..end.next_multiple_of(sys::page_size() as u64));
    }
}

/// Opens a model whose files are whole.
pub(crate) fn open_model(path: &Path) -> Result<ModelFile, FormatError> {
    ModelFile::open_watched(path, &GiveBack)
}

/// Opens a model of which the headers are there.
pub(crate) fn open_model_headers(path: &Path) -> Result<ModelFile, FormatError> {
    ModelFile::open_headers_watched(path, &GiveBack)
}

/// Gives back the pages of the cache that reading a whole file took.
pub(crate) fn drop_cached(path: &Path) {
    // Advice: what cannot be opened or dropped stays where it is.
    if let Ok(file) = File::open(path) {
        drop_cached_file(&file);
    }
}

/// As [`drop_cached`], for an open file.
pub(crate) fn drop_cached_file(file: &File) {
    if let Ok(facts) = file.metadata() {
        let _ = sys::drop_page_cache(file, 0..facts.len().next_multiple_of(sys::page_size() as u64));
    }
}

/// Whether `path` is a regular file that begins with `opening`: of the kind that a caller writes, so that it may be replaced.
/// Nothing else is opened, because opening a pipe would wait for a writer.
pub fn begins_with(path: &Path, opening: &[u8]) -> bool {
    let mut found = vec![0; opening.len()];
    let read = |file: File| {
        let _ = sys::expect_random_reads(&file);
        let result = (&file).read_exact(&mut found);
        let _ = sys::drop_page_cache(&file, 0..sys::page_size() as u64);
        result
    };
    path.is_file() && File::open(path).and_then(read).is_ok() && found == opening
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
