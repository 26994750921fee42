//! Linux: `O_DIRECT`, `statx`, `posix_fadvise`, `madvise` and `/proc`.

use std::ffi::c_void;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{Advice, AtFlags, OFlags, StatxFlags};

use super::direct::{DIRECT_ALIGNMENT_DEFAULT, Support};
use super::{ProcessMemory, ReleaseMode};

pub(super) fn open_for_direct(path: &Path) -> io::Result<(File, Support)> {
    open_as(OpenOptions::new().read(true), path)
}

pub(super) fn open_for_direct_writes(path: &Path) -> io::Result<(File, Support)> {
    open_as(OpenOptions::new().write(true), path)
}

fn open_as(options: &mut OpenOptions, path: &Path) -> io::Result<(File, Support)> {
    let flags = OFlags::DIRECT.bits() as i32;
    let refusal = match options.custom_flags(flags).open(path) {
        Ok(file) => match direct_io_alignment(&file)? {
            Some(align) => return Ok((file, Support::Likely(align))),
            None => "the file system names no alignment for direct reads".to_owned(),
        },
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            "the file system refuses O_DIRECT".to_owned()
        }
        Err(error) => return Err(error),
    };
    Ok((options.custom_flags(0).open(path)?, Support::No(refusal)))
}

pub(super) fn direct_io_alignment(file: &File) -> io::Result<Option<u32>> {
    let Ok(facts) = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) else {
        return Ok(Some(DIRECT_ALIGNMENT_DEFAULT));
    };
    if facts.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
        return Ok(Some(DIRECT_ALIGNMENT_DEFAULT));
    }
    let align = facts.stx_dio_mem_align.max(facts.stx_dio_offset_align);
    Ok((align > 0).then(|| align.max(512).next_power_of_two()))
}

pub(super) fn drop_page_cache(file: &File, range: Range<u64>) -> io::Result<()> {
    let len = std::num::NonZeroU64::new(range.end - range.start);
    rustix::fs::fadvise(file, range.start, len, Advice::DontNeed)?;
    Ok(())
}

pub(super) fn expect_random_reads(file: &File) -> io::Result<()> {
    Ok(rustix::fs::fadvise(file, 0, None, Advice::Random)?)
}

pub(super) fn share_one_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: changes a number of the allocator under its own lock. A refusal costs address space only.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

pub(super) fn file_system(path: &Path) -> io::Result<u64> {
    Ok(rustix::fs::statfs(path)?.f_type as u64)
}

/// tmpfs, ramfs and hugetlbfs, by the numbers of `linux/magic.h`.
pub(super) fn is_memory_file_system(file_system: u64) -> bool {
    [0x0102_1994, 0x8584_58f6, 0x9584_58f6].contains(&(file_system & 0xffff_ffff))
}

/// Brings in pages of a file mapping (Linux 5.14). `EFAULT` where touching them would end in `SIGBUS`.
///
/// # Safety
/// The range lies in a readable mapping of the caller.
pub(super) unsafe fn populate_read(start: *mut c_void, len: usize) -> io::Result<()> {
    loop {
        // SAFETY: what the caller promises; the call changes no contents.
        match unsafe { rustix::mm::madvise(start, len, rustix::mm::Advice::LinuxPopulateRead) } {
            Err(error) if error == rustix::io::Errno::INTR => {}
            result => return Ok(result?),
        }
    }
}

/// Gives pages of a file mapping back. `MADV_DONTNEED` alone only unmaps them; the page cache forgets them when it is asked
/// for the range of the file, and only pages that nobody maps.
///
/// # Safety
/// Both ranges lie in one shared read-only file mapping of the caller, start at pages, and `around` covers `pages`.
pub(super) unsafe fn release_mapped(
    file: &File,
    pages: (*mut c_void, usize),
    file_range: Range<u64>,
    around: (*mut c_void, usize),
    mode: ReleaseMode,
) -> io::Result<()> {
    use rustix::mm::{Advice, madvise};
    if mode == ReleaseMode::Soft && pages.1 > 0 {
        // SAFETY: as the caller promises. Old kernels (before 5.4) do not know the advice, which changes no contents.
        let _ = unsafe { madvise(pages.0, pages.1, Advice::LinuxCold) };
    }
    // SAFETY: as the caller promises; the pages of a shared file mapping come back with the same bytes.
    unsafe { madvise(around.0, around.1, Advice::LinuxDontNeed)? };
    match mode {
        ReleaseMode::Soft => Ok(()),
        ReleaseMode::Force => super::drop_page_cache(file, file_range),
    }
}

pub(super) fn sync_file(file: &File) -> io::Result<()> {
    file.sync_all()
}

pub(super) fn process_memory() -> io::Result<ProcessMemory> {
    Ok(ProcessMemory::from_status(&std::fs::read_to_string("/proc/self/status")?))
}
