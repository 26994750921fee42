//! Opening files for reads and writes that leave the page cache alone.
//!
//! Linux has `O_DIRECT`: offset, length and memory must be aligned, and a file system may refuse at open or only at the
//! first read, so one small read is tried. macOS has `F_NOCACHE`, which takes any alignment and is fastest with whole
//! pages. Whatever happened is part of the answer, so that a status can show it.

use std::fs::File;
use std::io;
use std::path::Path;

use serde::Serialize;

use super::{Mapping, platform};
use crate::MemoryError;

/// Alignment used where the system does not name one: no current device needs more for direct reads.
pub const DIRECT_ALIGNMENT_DEFAULT: u32 = 4096;

/// How a file was opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DirectIo {
    /// Reads pass the page cache by. Offset, length and memory address are multiples of `align` bytes.
    Direct {
        /// A power of two, in bytes.
        align: u32,
    },
    /// Reads go through the page cache: direct ones were refused.
    Buffered {
        /// Who refused, and how.
        reason: String,
    },
}

impl DirectIo {
    /// Whether reads pass the page cache by.
    pub fn is_direct(&self) -> bool {
        matches!(self, Self::Direct { .. })
    }

    /// What offsets, lengths and addresses of reads must be multiples of, in bytes; 1 for buffered reads.
    pub fn alignment(&self) -> u32 {
        match self {
            Self::Direct { align } => *align,
            Self::Buffered { .. } => 1,
        }
    }
}

/// What the platform module found out about direct reads of an open file.
pub(super) enum Support {
    /// Reads are direct with this alignment, and need no trial.
    #[cfg_attr(target_os = "linux", allow(dead_code))]
    Certain(u32),
    /// Reads should be direct with this alignment; the first read tells.
    #[cfg_attr(not(target_os = "linux"), allow(dead_code))]
    Likely(u32),
    /// Refused, with the reason.
    No(String),
}

/// Opens `path` for reading, past the page cache where the system and the file system allow it, else buffered.
///
/// Fails only where buffered reading would fail too, or where the medium reports a read error.
pub fn open_direct(path: &Path) -> Result<(File, DirectIo), MemoryError> {
    let file_error = |action| move |source| MemoryError::File { action, path: path.to_owned(), source };
    let reason = match platform::open_for_direct(path).map_err(file_error("open"))? {
        (file, Support::Certain(align)) => return Ok((file, DirectIo::Direct { align })),
        (file, Support::Likely(align)) => match try_read(&file, align) {
            Ok(()) => return Ok((file, DirectIo::Direct { align })),
            Err(error) if is_refusal(&error) => format!("the first direct read was refused: {error}"),
            Err(error) => return Err(file_error("read")(error)),
        },
        (file, Support::No(reason)) => return Ok((file, DirectIo::Buffered { reason })),
    };
    let file = File::open(path).map_err(file_error("open"))?;
    Ok((file, DirectIo::Buffered { reason }))
}

/// Opens the existing file `path` for writing, past the page cache where the system and the file system allow it, else
/// buffered. A file system may still refuse the first write (`InvalidInput`); then the caller writes through the page cache.
pub fn open_direct_for_writing(path: &Path) -> io::Result<(File, DirectIo)> {
    Ok(match platform::open_for_direct_writes(path)? {
        (file, Support::Certain(align) | Support::Likely(align)) => (file, DirectIo::Direct { align }),
        (file, Support::No(reason)) => (file, DirectIo::Buffered { reason }),
    })
}

/// The alignment that direct reads of `file` need, in bytes: what the system names, else
/// [`DIRECT_ALIGNMENT_DEFAULT`]. `None` when the system says that there are no direct reads.
pub fn direct_io_alignment(file: &File) -> io::Result<Option<u32>> {
    platform::direct_io_alignment(file)
}

/// Reads the first `align` bytes, or what the file has of them.
fn try_read(file: &File, align: u32) -> io::Result<()> {
    let len = (align as usize).next_multiple_of(super::page_size());
    let mut memory = Mapping::anonymous(len)?;
    loop {
        match std::os::unix::fs::FileExt::read_at(file, &mut memory.as_mut_slice()[..align as usize], 0) {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Whether an error says "not in this way" rather than "the medium is broken".
fn is_refusal(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported)
}
