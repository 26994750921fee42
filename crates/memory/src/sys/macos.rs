//! macOS: `F_NOCACHE`, `F_FULLFSYNC`, `proc_pid_rusage` and `sysctl`.
//!
//! Obligations of the `unsafe` calls that fill a buffer: the buffer handed over has the size and type that the call fills, and is
//! read only after the call said that it did.

use std::ffi::{CStr, c_void};
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::path::Path;

use super::direct::Support;
use super::{ProcessMemory, ReleaseMode, page_size};
use crate::Bytes;

pub(super) fn open_for_direct(path: &Path) -> io::Result<(File, Support)> {
    without_cache(File::open(path)?)
}

pub(super) fn open_for_direct_writes(path: &Path) -> io::Result<(File, Support)> {
    without_cache(File::options().write(true).open(path)?)
}

fn without_cache(file: File) -> io::Result<(File, Support)> {
    let support = match rustix::fs::fcntl_nocache(&file, true) {
        Ok(()) => Support::Certain(page_size() as u32),
        Err(error) => Support::No(format!("F_NOCACHE was refused: {error}")),
    };
    Ok((file, support))
}

/// `F_NOCACHE` takes any alignment; whole pages spare the kernel a copy.
pub(super) fn direct_io_alignment(_file: &File) -> io::Result<Option<u32>> {
    Ok(Some(page_size() as u32))
}

/// There is no such advice here, and files opened with `F_NOCACHE` do not need it.
pub(super) fn drop_page_cache(_file: &File, _range: Range<u64>) -> io::Result<()> {
    Ok(())
}

/// Reads of whole records are answered as asked; there is no such advice for a file here.
pub(super) fn expect_random_reads(_file: &File) -> io::Result<()> {
    Ok(())
}

/// The allocator of the system sets nothing aside for threads.
pub(super) fn share_one_heap() {}

pub(super) fn file_system(path: &Path) -> io::Result<u64> {
    Ok(u64::from(rustix::fs::statfs(path)?.f_type))
}

/// Memory disks of macOS are devices with an ordinary file system; they cannot be told from others here.
pub(super) fn is_memory_file_system(_file_system: u64) -> bool {
    false
}

/// There is no such call here: the caller touches each page.
///
/// # Safety
/// None beyond that of the Linux function of this name; nothing is touched.
pub(super) unsafe fn populate_read(_start: *mut c_void, _len: usize) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Gives pages of a file mapping back: advice for `soft`, invalidation of the cached pages for `force`. The pages are clean, so
/// invalidating loses nothing.
///
/// # Safety
/// Both ranges lie in one shared read-only file mapping of the caller, start at pages, and `around` covers `pages`.
pub(super) unsafe fn release_mapped(
    _file: &File,
    pages: (*mut c_void, usize),
    _file_range: Range<u64>,
    around: (*mut c_void, usize),
    mode: ReleaseMode,
) -> io::Result<()> {
    use rustix::mm::{Advice, MsyncFlags, madvise, msync};
    // SAFETY: as the caller promises; the advice changes no contents of a file mapping.
    unsafe { madvise(around.0, around.1, Advice::DontNeed)? };
    if mode == ReleaseMode::Force && pages.1 > 0 {
        // SAFETY: as above; clean pages of a shared mapping come back from the file.
        unsafe { msync(pages.0, pages.1, MsyncFlags::INVALIDATE)? };
    }
    Ok(())
}

pub(super) fn sync_file(file: &File) -> io::Result<()> {
    // Network and foreign file systems refuse the full flush; the plain one is all they have.
    if rustix::fs::fcntl_fullfsync(file).is_err() {
        rustix::fs::fsync(file)?;
    }
    Ok(())
}

pub(super) fn process_memory() -> io::Result<ProcessMemory> {
    let pid = std::process::id() as libc::c_int;
    let mut figures = MaybeUninit::<libc::rusage_info_v4>::zeroed();
    // SAFETY: flavour V4 fills a `rusage_info_v4`, which is what the pointer points to.
    let answer = unsafe { libc::proc_pid_rusage(pid, libc::RUSAGE_INFO_V4, figures.as_mut_ptr().cast()) };
    if answer != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so the structure is filled; it is plain integers, zeroed before.
    let figures = unsafe { figures.assume_init() };
    let rss = Bytes(figures.ri_resident_size);
    let footprint = Bytes(figures.ri_phys_footprint);
    Ok(ProcessMemory {
        rss,
        anon: footprint,
        file: rss.saturating_sub(footprint),
        shared: Bytes::ZERO,
        swapped: Bytes::ZERO,
        peak_rss: Bytes(figures.ri_lifetime_max_phys_footprint).max(rss),
    })
}

/// Installed memory, and the part of it that the system would give before it is short.
pub(crate) fn host_memory() -> io::Result<(Bytes, Bytes)> {
    let physical = Bytes(sysctl_integer(c"hw.memsize")?);
    // The system's own figure in percent: unlike free plus inactive pages it knows what only compression would free.
    let available = match sysctl_integer(c"kern.memorystatus_level") {
        Ok(percent) => physical.percent(percent as f64),
        Err(_) => physical,
    };
    Ok((physical, available))
}

/// How short of memory the system says it is, as the numbers of `DISPATCH_MEMORYPRESSURE_*`: 1 normal, 2 warning, 4 critical.
pub(crate) fn memory_pressure_level() -> io::Result<u64> {
    sysctl_integer(c"kern.memorystatus_vm_pressure_level")
}

/// The smaller of the limits on address space and on data.
pub(crate) fn address_space_limit() -> Option<Bytes> {
    use rustix::process::{Resource, getrlimit};
    let limits = [getrlimit(Resource::As).current, getrlimit(Resource::Data).current];
    limits.into_iter().flatten().map(Bytes).min()
}

/// Limits on locked memory and on open files; `None` for unlimited.
pub(crate) fn process_limits() -> (Option<Bytes>, Option<u64>) {
    use rustix::process::{Resource, getrlimit};
    (getrlimit(Resource::Memlock).current.map(Bytes), getrlimit(Resource::Nofile).current)
}

/// Swap space: `vm.swapusage` begins with total, available and used bytes, 8 bytes each (`struct xsw_usage`).
pub(crate) fn swap() -> io::Result<crate::Swap> {
    let mut value = [0_u8; 64];
    let len = sysctl(c"vm.swapusage", &mut value)?;
    let word = |index: usize| {
        let bytes = value[..len].get(8 * index..8 * index + 8)?;
        bytes.try_into().ok().map(u64::from_ne_bytes).map(Bytes)
    };
    match (word(0), word(2)) {
        (Some(total), Some(used)) => Ok(crate::Swap { total, used }),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Kind of file system, device, and whether it is this machine's, of what `path` lies on.
pub(crate) fn mounted(path: &Path) -> io::Result<(String, Option<String>, bool)> {
    /// `MNT_LOCAL` of `sys/mount.h`.
    const LOCAL: u32 = 0x1000;
    let facts = rustix::fs::statfs(path)?;
    let text = |chars: &[libc::c_char]| {
        let bytes: Vec<u8> = chars.iter().map(|&char| char as u8).take_while(|&byte| byte != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let device = text(&facts.f_mntfromname);
    let device = device.strip_prefix("/dev/").map(str::to_owned);
    Ok((text(&facts.f_fstypename), device, facts.f_flags & LOCAL != 0))
}

/// Fills `value` from the system's table; returns the length.
fn sysctl(name: &CStr, value: &mut [u8]) -> io::Result<usize> {
    let mut len = value.len();
    // SAFETY: `name` ends in zero; `value` has `len` bytes, and the call writes at most that many and the true length.
    let answer = unsafe {
        libc::sysctlbyname(
            name.as_ptr(),
            value.as_mut_ptr().cast::<c_void>(),
            &mut len,
            std::ptr::null_mut(),
            0,
        )
    };
    if answer != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(len.min(value.len()))
}

/// An integer of 4 or 8 bytes from the system's table.
fn sysctl_integer(name: &CStr) -> io::Result<u64> {
    let mut value = [0_u8; 8];
    let len = sysctl(name, &mut value)?;
    match len {
        4 => Ok(u64::from(u32::from_ne_bytes([value[0], value[1], value[2], value[3]]))),
        8 => Ok(u64::from_ne_bytes(value)),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}
