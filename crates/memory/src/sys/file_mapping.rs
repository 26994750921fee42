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

#[cfg(test)]
mod tests {
    //! What is given back with force has left the page cache, and what is given back softly has left the process. A mode
    //! that promises to free memory and keeps it in the page cache would be believed until a control group kills the process.

    use std::io::Write;
    use std::path::Path;

    use super::*;

    const BYTES: usize = 64 << 20;
    const RECORD: usize = 4 << 20;

    fn written(folder: &Path) -> File {
        let path = folder.join("records");
        let mut file = File::create(&path).expect("creates");
        let bytes: Vec<u8> = (0..BYTES).map(|at| (at * 31 % 251) as u8).collect();
        file.write_all(&bytes).expect("writes");
        super::super::sync_file(&file).expect("syncs");
        let file = File::open(&path).expect("opens");
        super::super::drop_page_cache(&file, 0..BYTES as u64).expect("drops");
        file
    }

    fn map(file: &File) -> FileMapping {
        // SAFETY: the file lies in a folder of the test, which cuts it at most, and touches nothing that is gone.
        unsafe { FileMapping::new(file, BYTES).expect("maps") }
    }

    fn cached(file: &File, start: usize, end: usize) -> u64 {
        super::super::page_cache_bytes_of(file, start as u64..end as u64).expect("tells").0
    }

    /// Whether the file system of the test has a page cache that can be dropped (tmpfs has not).
    fn droppable(file: &File) -> bool {
        let droppable = cached(file, 0, BYTES) == 0;
        if !droppable {
            println!("SKIPPED: the file system keeps files in memory");
        }
        droppable
    }

    #[test]
    fn force_frees_the_page_cache_and_soft_the_process() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = written(folder.path());
        if !droppable(&file) {
            return;
        }
        let map = map(&file);
        let before = super::super::process_memory().expect("tells").file.0;
        map.will_need(0..BYTES);
        map.populate(0..BYTES).expect("reads");
        assert_eq!(map.resident_bytes(0..BYTES).expect("tells"), BYTES);
        let mapped = super::super::process_memory().expect("tells").file.0 - before;
        assert!(mapped >= BYTES as u64 * 9 / 10, "{mapped} bytes of {BYTES} are mapped");

        map.release(&file, 0..BYTES / 2, ReleaseMode::Soft).expect("releases");
        let mapped = super::super::process_memory().expect("tells").file.0.saturating_sub(before);
        assert!(mapped <= BYTES as u64 * 6 / 10, "{mapped} bytes are mapped after half was given back");
        assert!(cached(&file, 0, BYTES / 2) > BYTES as u64 / 4, "soft release is not to drop the page cache");

        for start in (0..BYTES).step_by(RECORD) {
            map.release(&file, start..start + RECORD, ReleaseMode::Force).expect("releases");
            assert_eq!(cached(&file, start, start + RECORD), 0, "the record at {start} is still cached");
        }
        // What was given back is read again, the same.
        for at in [0, RECORD - 1, BYTES / 2 + 5, BYTES - 1] {
            assert_eq!(map.bytes(at..at + 1)[0], (at * 31 % 251) as u8, "byte {at}");
        }
    }

    #[test]
    fn a_file_that_was_cut_short_is_an_error_before_it_is_touched() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = written(folder.path());
        let map = map(&file);
        File::options()
            .write(true)
            .open(folder.path().join("records"))
            .expect("opens")
            .set_len(1 << 20)
            .expect("cuts");
        map.populate(0..4096).expect("the first page is there");
        if cfg!(target_os = "linux") {
            map.populate(8 << 20..9 << 20).expect_err("these pages are gone");
        }
        // A mapping longer than its file is refused at once.
        // SAFETY: as in `map`; nothing is mapped.
        let refused = unsafe { FileMapping::new(&file, BYTES) };
        assert!(refused.is_err());
    }
}
