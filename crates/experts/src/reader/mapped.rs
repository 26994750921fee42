//! A file used in place: the mapping together with the file that must stay as it is.
#![allow(unsafe_code)]

use std::io;
use std::ops::Range;
use std::sync::Arc;

use coldpress_memory::sys::{FileMapping, ReleaseMode};

use crate::source::ReadFile;

/// A whole file, mapped for reading.
pub(crate) struct MappedFile {
    file: Arc<ReadFile>,
    mapping: FileMapping,
}

impl MappedFile {
    /// Maps `file` as long as it was when it was opened.
    ///
    /// # Errors
    /// It has become shorter, is larger than the address space, or the system refuses.
    pub(crate) fn open(file: &Arc<ReadFile>) -> io::Result<Self> {
        let len = usize::try_from(file.length()).map_err(|_| io::ErrorKind::OutOfMemory)?;
        // SAFETY: only finished packs are mapped. A finished pack is never written again: a packer works on another file and
        // renames it, and this one, held open, keeps its bytes. Who overwrites it in place all the same changes bytes under
        // the kernels' eyes (wrong numbers; no address and no length is taken from a record) or gets `SIGBUS` by cutting it.
        let mapping = unsafe { FileMapping::new(file.file(), len)? };
        Ok(Self { file: Arc::clone(file), mapping })
    }

    /// See [`FileMapping::bytes`].
    pub(crate) fn bytes(&self, range: Range<usize>) -> &[u8] {
        self.mapping.bytes(range)
    }

    /// See [`FileMapping::will_need`].
    pub(crate) fn will_need(&self, range: Range<usize>) {
        self.mapping.will_need(range);
    }

    /// See [`FileMapping::populate`].
    pub(crate) fn populate(&self, range: Range<usize>) -> io::Result<()> {
        self.mapping.populate(range)
    }

    /// See [`FileMapping::resident_bytes`].
    pub(crate) fn resident_bytes(&self, range: Range<usize>) -> io::Result<usize> {
        self.mapping.resident_bytes(range)
    }

    /// See [`FileMapping::release`]. A refusal changes no result; the memory then stays until the system wants it.
    pub(crate) fn release(&self, range: Range<usize>, mode: ReleaseMode) {
        let _ = self.mapping.release(self.file.file(), range, mode);
    }
}
