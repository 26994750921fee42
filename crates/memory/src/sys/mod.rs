//! Every operating system call of coldpress outside the disk readers.
//!
//! Owns: anonymous memory, opening files past the page cache, dropping what reads left there, syncing, and the memory
//! figures of this process. `linux.rs` and `macos.rs` offer the same functions; everything above them is one code.
//!
//! This is the only module of the crate with `unsafe`, and each block states why it holds.
#![allow(unsafe_code)]

mod direct;
mod file_mapping;
mod mapping;

#[cfg(target_os = "linux")]
#[path = "linux.rs"]
mod platform;
#[cfg(target_os = "macos")]
#[path = "macos.rs"]
mod platform;

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
compile_error!("coldpress runs on Linux and macOS: sys/ needs a module for this system");

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;

use serde::Serialize;

use crate::Bytes;

pub use direct::{
    DIRECT_ALIGNMENT_DEFAULT, DirectIo, direct_io_alignment, open_direct, open_direct_for_writing,
};
pub use file_mapping::{FAULT_AROUND_BYTES, FileMapping, ReleaseMode};
pub(crate) use mapping::Mapping;
#[cfg(target_os = "macos")]
pub(crate) use platform::{
    address_space_limit, host_memory, memory_pressure_level, mounted, process_limits, swap,
};

/// Size of a memory page in bytes: 4096 on x86-64, 16384 on Apple machines.
pub fn page_size() -> usize {
    rustix::param::page_size()
}

/// Makes all threads of this process allocate from one heap where there is a limit on its address space (`ulimit -v`). The
/// allocator of glibc sets 64 MiB of address space aside for each thread that allocates, which would be taken from what a plan
/// counts on. To be called before threads are started; other allocators need no such thing.
pub fn share_one_heap_under_a_limit() {
    let limited = rustix::process::getrlimit(rustix::process::Resource::As).current.is_some();
    if limited {
        platform::share_one_heap();
    }
}

/// Memory of this process as the operating system counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ProcessMemory {
    /// Resident bytes of every kind.
    pub rss: Bytes,
    /// Bytes that only this process holds and that no file backs. On macOS the "physical footprint", which also
    /// counts what the system has compressed.
    pub anon: Bytes,
    /// Resident bytes of mapped files: the program and its libraries; reclaimable.
    pub file: Bytes,
    /// Resident shared memory.
    pub shared: Bytes,
    /// Bytes in swap (Linux).
    pub swapped: Bytes,
    /// Largest `rss` so far.
    pub peak_rss: Bytes,
}

impl ProcessMemory {
    /// Reads the `kB` lines of `/proc/<pid>/status`; a line the kernel does not have counts as zero.
    pub(crate) fn from_status(status: &str) -> Self {
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            let kib = line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
            Bytes(kib.unwrap_or(0).saturating_mul(1024))
        };
        Self {
            rss: field("VmRSS"),
            anon: field("RssAnon"),
            file: field("RssFile"),
            shared: field("RssShmem"),
            swapped: field("VmSwap"),
            peak_rss: field("VmHWM"),
        }
    }
}

/// The memory figures of this process now.
pub fn process_memory() -> io::Result<ProcessMemory> {
    platform::process_memory()
}

/// Asks the system to forget the cached pages of `range` (bytes) of `file`, so that reads do not count against the
/// memory of the machine. Pages only partly inside the range and pages not yet written stay. An empty range is nothing.
///
/// On macOS, files from [`open_direct`] never enter the cache, and there is no such call: it does nothing.
pub fn drop_page_cache(file: &File, range: Range<u64>) -> io::Result<()> {
    if range.end <= range.start { Ok(()) } else { platform::drop_page_cache(file, range) }
}

/// Bytes of the first `len` bytes of `file` that the page cache holds, in whole pages. Reads nothing.
pub fn page_cache_bytes(file: &File, len: u64) -> io::Result<Bytes> {
    mapping::page_cache_bytes(file, 0..len)
}

/// Bytes of `range` of `file` that the page cache holds, in whole pages. `range` starts at a page. Reads nothing.
pub fn page_cache_bytes_of(file: &File, range: Range<u64>) -> io::Result<Bytes> {
    mapping::page_cache_bytes(file, range)
}

/// Tells the system that reads of `file` come in no order, so that it reads no more than it is asked for. Does nothing on
/// macOS for reads of whole records.
pub fn expect_random_reads(file: &File) -> io::Result<()> {
    platform::expect_random_reads(file)
}

/// What a file lies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceFacts {
    /// The system's number of the device (`st_dev`).
    pub device: u64,
    /// The system's number of the kind of file system.
    pub file_system: u64,
    /// Size of the file system.
    pub bytes: Bytes,
    /// Whether the file system keeps its files in memory, so that reading them says nothing about a disk.
    pub is_memory: bool,
}

/// What `path` (which must exist) lies on.
pub fn device_facts(path: &Path) -> io::Result<DeviceFacts> {
    use std::os::unix::fs::MetadataExt;
    let file_system = platform::file_system(path)?;
    Ok(DeviceFacts {
        device: std::fs::metadata(path)?.dev(),
        file_system,
        bytes: disk_size(path)?,
        is_memory: platform::is_memory_file_system(file_system),
    })
}

/// Whether a process with this number runs on this machine.
pub fn process_exists(number: u32) -> bool {
    let Some(process) = i32::try_from(number).ok().and_then(rustix::process::Pid::from_raw) else {
        return false;
    };
    // Somebody else's process may not be signalled, but is there.
    !matches!(rustix::process::test_kill_process(process), Err(rustix::io::Errno::SRCH))
}

/// Writes `file` through to the medium (`F_FULLFSYNC` on macOS, where plain `fsync` stops at the drive's cache).
pub fn sync_file(file: &File) -> io::Result<()> {
    platform::sync_file(file)
}

/// Makes the renaming or creation of files in `folder` durable.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    rustix::fs::fsync(File::open(folder)?)?;
    Ok(())
}

/// Bytes that this user may still write on the file system that holds `path` (which must exist).
pub fn free_disk_space(path: &Path) -> io::Result<Bytes> {
    let figures = rustix::fs::statvfs(path)?;
    Ok(Bytes(figures.f_bavail.saturating_mul(figures.f_frsize)))
}

/// Size in bytes of the file system that holds `path` (which must exist).
pub fn disk_size(path: &Path) -> io::Result<Bytes> {
    let figures = rustix::fs::statvfs(path)?;
    Ok(Bytes(figures.f_blocks.saturating_mul(figures.f_frsize)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_lines_become_bytes() {
        let status = "Name:\tcat\nVmHWM:\t    1724 kB\nVmRSS:\t    1700 kB\nRssAnon:\t     112 kB\n\
                      RssFile:\t    1588 kB\nRssShmem:\t       0 kB\nVmSwap:\t       8 kB\n";
        let memory = ProcessMemory::from_status(status);
        assert_eq!(memory.peak_rss, Bytes::from_kib(1724));
        assert_eq!(memory.rss, Bytes::from_kib(1700));
        assert_eq!(memory.anon, Bytes::from_kib(112));
        assert_eq!(memory.file, Bytes::from_kib(1588));
        assert_eq!(memory.swapped, Bytes::from_kib(8));
        assert_eq!(ProcessMemory::from_status(""), ProcessMemory::default());
    }
}
