//! Anonymous memory straight from the system.
//!
//! Obligations kept here: a mapping is owned by exactly one [`Mapping`], is readable and writable for `len` bytes from
//! `start` until it is dropped, and is never moved.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;

#[cfg(target_os = "linux")]
use rustix::mm::{Advice, madvise};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::page_size;
use crate::Bytes;

/// Alignment of large mappings: one huge page of x86-64, and of aarch64 with 4 KiB pages.
const HUGE_PAGE: usize = 2 << 20;
/// Mappings from this length on are aligned to [`HUGE_PAGE`] and ask for huge pages.
const HUGE_FROM: usize = 2 * HUGE_PAGE;
/// Alignment of a mapping without bytes.
const EMPTY_ALIGNMENT: usize = 4096;

/// Zeroed private memory of whole pages.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory belongs to this value alone, like that of a `Box<[u8]>`; shared references only read.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes, a multiple of the page size. They take memory when touched first.
    pub(crate) fn anonymous(len: usize) -> io::Result<Self> {
        assert!(len.is_multiple_of(page_size()), "{len} is not a whole number of pages");
        if len == 0 {
            let start = NonNull::new(std::ptr::without_provenance_mut(EMPTY_ALIGNMENT)).expect("not zero");
            return Ok(Self { start, len });
        }
        if len < HUGE_FROM {
            return Ok(Self { start: map(len)?, len });
        }
        let mapping = Self::aligned(len)?;
        mapping.ask_for_huge_pages();
        Ok(mapping)
    }

    #[cfg(target_os = "linux")]
    fn ask_for_huge_pages(&self) {
        // SAFETY: the advice covers exactly this mapping and changes no contents. It fails where the kernel has no huge
        // pages; then small ones serve.
        let _ = unsafe { madvise(self.start.as_ptr().cast(), self.len, Advice::LinuxHugepage) };
    }

    #[cfg(not(target_os = "linux"))]
    fn ask_for_huge_pages(&self) {}

    /// Maps more than needed and gives back what lies outside the aligned part.
    fn aligned(len: usize) -> io::Result<Self> {
        let slack = HUGE_PAGE - page_size();
        let wide = len.checked_add(slack).ok_or(io::ErrorKind::OutOfMemory)?;
        let first = map(wide)?;
        let head = first.as_ptr().align_offset(HUGE_PAGE);
        let tail = slack - head;
        // SAFETY: `head <= slack`, so `start` and `len` bytes from it lie inside the mapping of `wide` bytes.
        let start = unsafe { first.add(head) };
        if head > 0 {
            // SAFETY: these bytes were mapped above and nobody else knows them; page-aligned as `first` and `start` are.
            unsafe { munmap(first.as_ptr().cast(), head)? };
        }
        if tail > 0 {
            // SAFETY: the bytes behind `start + len` up to the end of the mapping, unknown to anybody else.
            unsafe { munmap(start.as_ptr().add(len).cast(), tail)? };
        }
        Ok(Self { start, len })
    }

    /// Makes the system find memory for whole pages of `range` now, not at their first touch. Changes no contents.
    #[cfg(target_os = "linux")]
    pub(crate) fn populate(&self, range: Range<usize>) -> io::Result<()> {
        let page = page_size();
        let (start, end) =
            (range.start / page * page, range.end.min(self.len).next_multiple_of(page).min(self.len));
        if start >= end {
            return Ok(());
        }
        // SAFETY: inside the mapping. The advice (Linux 5.14) keeps the bytes of pages that exist and gives zeroes to others, as
        // a first touch would, so it may run beside any use of the memory.
        unsafe { madvise(self.start.as_ptr().add(start).cast(), end - start, Advice::LinuxPopulateWrite)? };
        Ok(())
    }

    /// There is no such call here; pages come with their first touch.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn populate(&self, _range: Range<usize>) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: mapped readable for `len` bytes while `self` lives; zero-filled, so initialised.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Gives the whole pages inside `range` back; they read as zero afterwards.
    pub(crate) fn discard(&mut self, range: Range<usize>) -> io::Result<()> {
        let end = range.end.min(self.len);
        discard_pages(&mut self.as_mut_slice()[range.start.min(end)..end])
    }

    /// The same for a part that somebody owns alone.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] for bytes that are not of this mapping.
    pub(crate) fn discard_part(&self, part: &mut [u8]) -> io::Result<()> {
        let own = self.start.addr().get()..=self.start.addr().get() + self.len;
        if !own.contains(&part.as_ptr().addr()) || !own.contains(&(part.as_ptr().addr() + part.len())) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        discard_pages(part)
    }
}

/// Gives the whole pages inside `part` back, which is part of a [`Mapping`].
fn discard_pages(part: &mut [u8]) -> io::Result<()> {
    let page = page_size();
    let first = part.as_ptr().addr().next_multiple_of(page) - part.as_ptr().addr();
    let Some(len) = part.len().checked_sub(first).map(|len| len / page * page).filter(|len| *len > 0) else {
        return Ok(());
    };
    let pages = &mut part[first..first + len];
    #[cfg(target_os = "linux")]
    {
        // SAFETY: the pages lie inside a private anonymous mapping, `&mut` says nobody looks at them, and they read as zero
        // after this advice, so they stay initialised.
        unsafe { madvise(pages.as_mut_ptr().cast(), pages.len(), Advice::LinuxDontNeed)? };
    }
    #[cfg(not(target_os = "linux"))]
    {
        // Elsewhere the advice does not promise zeroes: new pages take the place of the old.
        // SAFETY: a fixed mapping over pages that lie inside a mapping of ours and that nobody looks at.
        unsafe {
            mmap_anonymous(
                pages.as_mut_ptr().cast(),
                pages.len(),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::FIXED,
            )?
        };
    }
    Ok(())
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: this value owns the mapping and no reference to it outlives it. Unmapping whole own pages
            // cannot fail in a way that could be handled here.
            let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        }
    }
}

fn map(len: usize) -> io::Result<NonNull<u8>> {
    // SAFETY: a new private mapping at an address the kernel chooses touches no existing memory.
    let start = unsafe {
        mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)?
    };
    NonNull::new(start.cast::<u8>()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

/// See [`super::page_cache_bytes`].
pub(super) fn page_cache_bytes(file: &File, range: Range<u64>) -> io::Result<Bytes> {
    /// Mapped at a time, so that a file of any size takes little address space.
    const WINDOW: u64 = 1 << 30;
    let page = page_size() as u64;
    let end = range.end.min(file.metadata()?.len());
    let mut cached_pages = 0;
    let mut offset = range.start;
    while offset < end {
        let window = WINDOW.min(end - offset);
        cached_pages += cached_pages_of(file, offset, window as usize, page as usize)?;
        offset += window;
    }
    Ok(Bytes(cached_pages * page))
}

fn cached_pages_of(file: &File, offset: u64, len: usize, page: usize) -> io::Result<u64> {
    let mut states = vec![0_u8; len.div_ceil(page)];
    // SAFETY: a new mapping at an address the kernel chooses; it is never read or written through.
    let start: *mut c_void = unsafe {
        rustix::mm::mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, file, offset)?
    };
    // SAFETY: `start` is the mapping of `len` bytes just made, and `states` has one byte for each of its pages.
    let answer = unsafe { libc::mincore(start.cast(), len, states.as_mut_ptr().cast()) };
    let error = io::Error::last_os_error();
    // SAFETY: the mapping made above; nothing points into it.
    unsafe { munmap(start, len)? };
    if answer != 0 {
        return Err(error);
    }
    Ok(states.iter().filter(|state| *state & 1 != 0).count() as u64)
}
