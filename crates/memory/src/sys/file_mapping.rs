//! Files mapped for reading: records used in place, brought in and given back range by range.
//!
//! Obligations kept here: a mapping is owned by exactly one [`FileMapping`] and readable for `len` bytes until it is dropped.
//! Obligation of the caller: nobody changes the mapped bytes of the file. A file that is cut short nevertheless ends the
//! process with `SIGBUS` when its lost pages are touched; [`FileMapping::populate`] reports it as an error where the kernel can.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use super::{page_size, platform};

/// Pages around a touched one that the system may map with it, in bytes to each side (`fault_around_bytes` of Linux).
pub const FAULT_AROUND_BYTES: usize = 64 << 10;

/// How mapped ranges are given back to the system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ReleaseMode {
    /// Marked as cold and taken out of the process; the page cache may keep them until memory is short.
    #[default]
    Soft,
    /// Dropped from the page cache at once.
    Force,
}

/// A file mapped read-only, without read-ahead.
#[derive(Debug)]
pub struct FileMapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the value owns the mapping, and everything that can be done through it only reads memory.
unsafe impl Send for FileMapping {}
// SAFETY: as above.
unsafe impl Sync for FileMapping {}

impl FileMapping {
    /// Maps the first `len` bytes of `file`, at least one.
    ///
    /// # Safety
    /// While the mapping exists nobody changes these bytes of the file; they would change under shared references.
    pub unsafe fn new(file: &File, len: usize) -> io::Result<Self> {
        if len == 0 || file.metadata()?.len() < len as u64 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // SAFETY: a new mapping at an address that the kernel chooses touches no existing memory.
        let start = unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, file, 0)? };
        let start = NonNull::new(start.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let mapping = Self { start, len };
        // SAFETY: the mapping just made; the advice changes no contents. Without it the system reads more than is asked for.
        let _ = unsafe { madvise(mapping.start.as_ptr().cast(), len, Advice::Random) };
        Ok(mapping)
    }

    /// Mapped bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: at least one byte is mapped.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes of `range`. Touching them reads what is not in memory.
    ///
    /// # Panics
    /// When the range reaches past the mapping.
    pub fn bytes(&self, range: Range<usize>) -> &[u8] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {} mapped bytes", self.len);
        // SAFETY: inside the mapping, which is readable while `self` lives; nobody changes the bytes, as `new` demands.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(range.start), range.end - range.start) }
    }

    /// Starts to read the pages of `range` without waiting. Advice: a refusal costs time only.
    pub fn will_need(&self, range: Range<usize>) {
        // One call starts at most as much as the device's read-ahead or largest request allows, and drops the rest.
        const PIECE: usize = 128 << 10;
        let pages = self.outer(range, page_size());
        for start in pages.clone().step_by(PIECE) {
            let len = PIECE.min(pages.end - start);
            // SAFETY: inside the mapping; the advice changes no contents.
            let _ = unsafe { madvise(self.at(start), len, Advice::WillNeed) };
        }
    }

    /// Waits until the pages of `range` are in memory and mapped.
    ///
    /// # Errors
    /// The file no longer has them, or the medium cannot deliver them (both where the system reports it: Linux 5.14).
    pub fn populate(&self, range: Range<usize>) -> io::Result<()> {
        let pages = self.outer(range, page_size());
        // SAFETY: inside the mapping, whose pages the call only reads.
        match unsafe { platform::populate_read(self.at(pages.start), pages.len()) } {
            Err(error)
                if error.kind() == io::ErrorKind::InvalidInput
                    || error.kind() == io::ErrorKind::Unsupported =>
            {
                for at in pages.step_by(page_size()) {
                    // SAFETY: a byte of the mapping; volatile, because only the touch matters.
                    unsafe { self.start.as_ptr().add(at).read_volatile() };
                }
                Ok(())
            }
            result => result,
        }
    }

    /// Bytes of the pages of `range` that the page cache holds.
    ///
    /// # Errors
    /// The system does not tell.
    pub fn resident_bytes(&self, range: Range<usize>) -> io::Result<usize> {
        let pages = self.outer(range, page_size());
        let mut resident = 0;
        let mut states = [0_u8; 1024];
        for start in pages.clone().step_by(states.len() * page_size()) {
            let len = (states.len() * page_size()).min(pages.end - start);
            // SAFETY: inside the mapping, and `states` has a byte for each of the pages.
            if unsafe { libc::mincore(self.at(start), len, states.as_mut_ptr().cast()) } != 0 {
                return Err(io::Error::last_os_error());
            }
            resident += states[..len.div_ceil(page_size())].iter().filter(|state| **state & 1 != 0).count();
        }
        Ok(resident * page_size())
    }

    /// Gives `range` of the mapping of `file` back to the system. Only whole pages inside it leave the page cache; what the
    /// system mapped around it leaves the process too. The bytes can be read again at any time.
    ///
    /// # Errors
    /// The system refuses the advice.
    pub fn release(&self, file: &File, range: Range<usize>, mode: ReleaseMode) -> io::Result<()> {
        let page = page_size();
        let inner = range.start.next_multiple_of(page)..range.end.min(self.len) / page * page;
        let around = self.outer(range, FAULT_AROUND_BYTES.max(page));
        let pages = if inner.start < inner.end { inner } else { around.start..around.start };
        // SAFETY: both ranges lie inside the mapping. Unmapped pages of a shared file mapping come back with the bytes of
        // the file when they are touched, so references to them stay valid.
        unsafe {
            platform::release_mapped(
                file,
                (self.at(pages.start), pages.len()),
                pages.start as u64..pages.end as u64,
                (self.at(around.start), around.len()),
                mode,
            )
        }
    }

    /// The smallest range of whole units of `unit` bytes that covers `range`, cut at the last mapped page.
    fn outer(&self, range: Range<usize>, unit: usize) -> Range<usize> {
        let end = range.end.min(self.len).next_multiple_of(unit).min(self.len.next_multiple_of(page_size()));
        (range.start / unit * unit).min(end)..end
    }

    fn at(&self, offset: usize) -> *mut c_void {
        self.start.as_ptr().wrapping_add(offset).cast()
    }
}

impl Drop for FileMapping {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping and no reference to it outlives it. Unmapping own pages cannot fail.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}
