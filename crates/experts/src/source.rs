//! Files that are read past the page cache, and where the experts lie in them.
//!
//! [`ReadFile`] opens a file for direct reads. Where the system refuses them that is decided once, at open, and kept as a
//! reason to show; such reads drop the pages they caused, because page cache counts towards the budget. Only
//! [`FileAccess::Cached`], which asks for the page cache, leaves it filled.
//! [`ModelSource`] knows the byte range of every matrix. Neither moves bytes; see `reader`.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use coldpress_formats::SourceFile;
use coldpress_memory::sys::{self, DirectIo};

use crate::error::ExpertError;
use crate::geometry::{ExpertKey, LayerExperts, RECORD_ALIGNMENT};

/// How reads of a file go with the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FileAccess {
    /// Past it; where the system refuses that, as [`FileAccess::Dropped`].
    #[default]
    Direct,
    /// Through it, giving the pages back after each read.
    Dropped,
    /// Through it, leaving the pages to the system.
    Cached,
}

/// Opens `path` for reading. Only what has positions to read at is opened: a pipe would wait for somebody to write to it.
pub(crate) fn open_file(path: &Path) -> io::Result<File> {
    require_positions(path)?;
    File::open(path)
}

fn require_positions(path: &Path) -> io::Result<()> {
    let kind = std::fs::metadata(path)?.file_type();
    if kind.is_file() || kind.is_block_device() {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"))
}

/// A file open for positioned reads.
#[derive(Debug)]
pub struct ReadFile {
    path: PathBuf,
    file: File,
    length: u64,
    io: DirectIo,
    access: FileAccess,
}

impl ReadFile {
    /// Opens `path` for direct reads, or for buffered reads where the system refuses direct ones.
    ///
    /// # Errors
    /// When the file cannot be opened or its medium reports an error.
    pub fn open(path: &Path) -> Result<Arc<Self>, ExpertError> {
        Self::open_with(path, FileAccess::Direct)
    }

    /// Opens `path` for reads with `access`.
    ///
    /// # Errors
    /// When it is not a regular file, cannot be opened, or its medium reports an error.
    pub fn open_with(path: &Path, access: FileAccess) -> Result<Arc<Self>, ExpertError> {
        let failed = |source| ExpertError::Io { action: "open", path: path.to_owned(), offset: 0, source };
        require_positions(path).map_err(failed)?;
        match access {
            FileAccess::Direct => Self::open_direct(path),
            FileAccess::Dropped => Self::open_buffered(path, "reads give their pages back", access),
            FileAccess::Cached => Self::open_buffered(path, "the page cache was asked for", access),
        }
    }

    fn open_buffered(path: &Path, reason: &str, access: FileAccess) -> Result<Arc<Self>, ExpertError> {
        let failed = |source| ExpertError::Io { action: "open", path: path.to_owned(), offset: 0, source };
        let file = File::open(path).map_err(failed)?;
        // Advice: reads are of whole records in no order, so pages beyond them would be read for nothing.
        let _ = sys::expect_random_reads(&file);
        let length = file.metadata().map_err(failed)?.len();
        let io = DirectIo::Buffered { reason: reason.to_owned() };
        Ok(Arc::new(Self { path: path.to_owned(), file, length, io, access }))
    }

    fn open_direct(path: &Path) -> Result<Arc<Self>, ExpertError> {
        let failed = |source| ExpertError::Io { action: "open", path: path.to_owned(), offset: 0, source };
        let (mut file, mut io) = sys::open_direct(path)?;
        if !RECORD_ALIGNMENT.is_multiple_of(io.alignment() as usize) {
            // Records are aligned to 4096; a device with larger blocks would need a copy of every record.
            file = File::open(path).map_err(failed)?;
            io = DirectIo::Buffered {
                reason: format!("the device wants reads aligned to {} bytes", io.alignment()),
            };
        }
        let length = file.metadata().map_err(failed)?.len();
        let access = if io.is_direct() { FileAccess::Direct } else { FileAccess::Dropped };
        Ok(Arc::new(Self { path: path.to_owned(), file, length, io, access }))
    }

    /// The path it was opened with.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Length in bytes when it was opened.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// How reads reach the device.
    pub fn io(&self) -> &DirectIo {
        &self.io
    }

    /// How reads go with the page cache.
    pub fn access(&self) -> FileAccess {
        self.access
    }

    /// A line for logs when reads that should be direct go through the page cache.
    pub(crate) fn notice(&self, asked: FileAccess) -> Option<String> {
        match &self.io {
            DirectIo::Buffered { reason } if asked == FileAccess::Direct => {
                Some(format!("{}: no direct reads, using buffered ones ({reason})", self.path.display()))
            }
            _ => None,
        }
    }

    /// Where a read that stopped after `filled` bytes can go on: direct reads only at block boundaries.
    pub(crate) fn resume_at(&self, filled: usize) -> usize {
        let alignment = self.io.alignment() as usize;
        filled / alignment * alignment
    }

    /// After a read of `range`: where it went through the page cache, gives the pages back to the system.
    pub(crate) fn drop_pages(&self, range: Range<u64>) {
        if self.access == FileAccess::Dropped {
            // Advice: a refusal changes no result.
            let _ = sys::drop_page_cache(&self.file, range);
        }
    }
}

/// The smallest range of whole blocks of [`RECORD_ALIGNMENT`] bytes that covers `range`. It may reach past the end of the
/// file by less than one block; a read of it ends with the file. Buffered reads use it too: only whole pages can be given
/// back to the system.
pub fn aligned(range: Range<u64>) -> Range<u64> {
    let alignment = RECORD_ALIGNMENT as u64;
    range.start / alignment * alignment..range.end.next_multiple_of(alignment)
}

/// The model files, and where each expert's matrices lie in them.
#[derive(Debug)]
pub struct ModelSource {
    files: Vec<Arc<ReadFile>>,
    layers: Vec<LayerExperts>,
}

impl ModelSource {
    /// Opens the model files (in the numbering of [`Projection::file`](crate::Projection)) and checks that every expert
    /// lies within its file. `layers` must have passed [`Geometry::new`](crate::Geometry::new).
    ///
    /// # Errors
    /// When a file cannot be opened, does not exist in the list, or ends before an expert does.
    pub fn open(
        files: &[SourceFile],
        layers: &[LayerExperts],
        access: FileAccess,
    ) -> Result<Self, ExpertError> {
        let files = files.iter().map(|file| ReadFile::open_with(&file.path, access));
        let files = files.collect::<Result<Vec<_>, _>>()?;
        let source = Self { files, layers: layers.to_vec() };
        source.check_ranges()?;
        Ok(source)
    }

    fn check_ranges(&self) -> Result<(), ExpertError> {
        for (layer, experts) in self.layers.iter().enumerate() {
            for part in (0..experts.part_count()).map(|index| experts.part(index)) {
                let name = part.name;
                for expert in 0..experts.expert_count {
                    let bytes = part.bytes as u64;
                    let bad = |detail| ExpertError::Geometry { layer, detail };
                    let place = part.place(expert);
                    let file = place.map_or(part.file, |place| place.file);
                    let range = place.and_then(|place| Some(place.offset..place.offset.checked_add(bytes)?));
                    let range = range
                        .ok_or_else(|| bad(format!("{name} has no valid offset for expert {expert}")))?;
                    let file = self.files.get(file).ok_or_else(|| {
                        bad(format!("{name} lies in file {file}, but there are {}", self.files.len()))
                    })?;
                    if range.end > file.length() {
                        return Err(ExpertError::Truncated {
                            path: file.path().to_owned(),
                            offset: range.start,
                            end: range.end,
                            length: file.length(),
                        });
                    }
                }
            }
        }
        Ok(())
    }

    /// The model files.
    pub fn files(&self) -> &[Arc<ReadFile>] {
        &self.files
    }

    /// The layers as given.
    pub fn layers(&self) -> &[LayerExperts] {
        &self.layers
    }

    /// The bytes of one part of an expert as it is stored (mostly 0 gate, 1 up, 2 down): file and range.
    pub fn range(&self, key: ExpertKey, part: usize) -> (&Arc<ReadFile>, Range<u64>) {
        let part = self.layers[key.layer as usize].part(part);
        let place = part.place(key.expert as usize);
        let place = place.expect("every offset was checked when the source was opened");
        (&self.files[place.file], place.offset..place.offset + part.bytes as u64)
    }
}
