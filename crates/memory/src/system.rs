//! What else of the system decides how a run goes: swap, limits of the process, and what a file lies on.
//!
//! Owns [`SystemFacts`] and [`StorageFacts`]; judges nothing. On Linux everything comes from files (`/proc`, `/sys`), so a
//! test can describe any machine as a folder. Memory itself is in `facts.rs`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::Bytes;
use crate::facts::{limit_field, meminfo_field};

/// Swap space of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Swap {
    /// Size; on macOS what the system has set up so far.
    pub total: Bytes,
    /// Of it in use.
    pub used: Bytes,
}

/// Facts of the system beside its memory; what it does not tell is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct SystemFacts {
    /// Swap space.
    pub swap: Option<Swap>,
    /// Whether the kernel refuses memory beyond what it could back at once (`vm.overcommit_memory` = 2).
    pub overcommit_refused: bool,
    /// Memory nodes of the processor sockets, at least 1.
    pub memory_nodes: usize,
    /// Limit on locked memory (`ulimit -l`); `None` for unlimited.
    pub locked_memory_limit: Option<Bytes>,
    /// Limit on open files (`ulimit -n`); `None` for unlimited.
    pub open_files_limit: Option<u64>,
    /// `kernel.io_uring_disabled`: 0 allowed, 1 for privileged processes, 2 refused.
    pub io_uring_disabled: Option<u64>,
    /// Share of the last ten seconds in which some process waited for memory, in per cent (PSI).
    pub memory_pressure_percent: Option<f64>,
}

impl SystemFacts {
    /// The facts of this machine now.
    #[cfg(target_os = "linux")]
    pub fn detect() -> Self {
        Self::from_root(Path::new("/"))
    }

    /// The facts of this machine now.
    #[cfg(target_os = "macos")]
    pub fn detect() -> Self {
        let (locked_memory_limit, open_files_limit) = crate::sys::process_limits();
        Self {
            swap: crate::sys::swap().ok(),
            memory_nodes: 1,
            locked_memory_limit,
            open_files_limit,
            ..Self::default()
        }
    }

    /// The facts of a Linux machine whose `/proc` and `/sys` lie below `root`.
    pub fn from_root(root: &Path) -> Self {
        let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        let number = |path: &str| read(path).trim().parse::<u64>().ok();
        let (meminfo, limits) = (read("proc/meminfo"), read("proc/self/limits"));
        let swap_total = meminfo_field(&meminfo, "SwapTotal");
        let swap_free = meminfo_field(&meminfo, "SwapFree").unwrap_or(Bytes::ZERO);
        let nodes = fs::read_dir(root.join("sys/devices/system/node")).map(|entries| {
            let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
            names.filter(|name| is_numbered(name, "node")).count()
        });
        Self {
            swap: swap_total.map(|total| Swap { total, used: total.saturating_sub(swap_free) }),
            overcommit_refused: number("proc/sys/vm/overcommit_memory") == Some(2),
            memory_nodes: nodes.unwrap_or(1).max(1),
            locked_memory_limit: limit_field(&limits, "Max locked memory"),
            open_files_limit: limit_field(&limits, "Max open files").map(|limit| limit.0),
            io_uring_disabled: number("proc/sys/kernel/io_uring_disabled"),
            memory_pressure_percent: pressure(&read("proc/pressure/memory")),
        }
    }
}

/// `node0`, but not `node` or `nodes`.
fn is_numbered(name: &str, word: &str) -> bool {
    let number = name.strip_prefix(word).unwrap_or_default();
    !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
}

/// The figure in `some avg10=0.12 avg60=...`.
fn pressure(text: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
    line.split(' ').find_map(|field| field.strip_prefix("avg10="))?.parse().ok()
}

/// Kinds of storage that differ in how experts come from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StorageKind {
    /// Flash on a bus of its own, or what calls itself not rotating.
    SolidState,
    /// A disk with heads.
    Rotating,
    /// A disk that a host machine provides; what is behind it is not told.
    Virtual,
    /// Another machine's disk.
    Network,
    /// The file system keeps its files in memory.
    Memory,
    /// The system does not tell.
    Unknown,
}

/// What a file or folder lies on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StorageFacts {
    /// Name of the kind of file system: `ext4`, `apfs`.
    pub file_system: String,
    /// Name of the device: `nvme0n1`; absent where a file system has none.
    pub device: Option<String>,
    /// Kind of storage.
    pub kind: StorageKind,
    /// What the system reads ahead of a sequential reader through the page cache.
    pub read_ahead: Option<Bytes>,
}

/// What `path` (which must exist) lies on.
///
/// # Errors
/// `path` does not exist.
#[cfg(target_os = "linux")]
pub fn storage_facts(path: &Path) -> io::Result<StorageFacts> {
    Ok(storage_below(Path::new("/"), &fs::canonicalize(path)?))
}

/// What `path` (which must exist) lies on.
///
/// # Errors
/// `path` does not exist.
#[cfg(target_os = "macos")]
pub fn storage_facts(path: &Path) -> io::Result<StorageFacts> {
    let (file_system, device, is_local) = crate::sys::mounted(path)?;
    let kind = if is_local { StorageKind::Unknown } else { StorageKind::Network };
    Ok(StorageFacts { file_system, device, kind, read_ahead: None })
}

const NETWORK: [&str; 10] =
    ["nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "ceph", "lustre", "fuse.glusterfs"];
const IN_MEMORY: [&str; 3] = ["tmpfs", "ramfs", "hugetlbfs"];
/// Beginnings of the names of disks that a host provides.
const VIRTUAL: [&str; 3] = ["vd", "xvd", "nbd"];

/// What the absolute `path` lies on, by the `/proc` and `/sys` below `root`.
pub fn storage_below(root: &Path, path: &Path) -> StorageFacts {
    let mounts = fs::read_to_string(root.join("proc/self/mountinfo")).unwrap_or_default();
    let unknown = StorageFacts {
        file_system: "unknown".to_owned(),
        device: None,
        kind: StorageKind::Unknown,
        read_ahead: None,
    };
    // The later of two mounts at the same place hides the earlier one.
    let candidates = mounts.lines().filter_map(Mounted::parse).filter(|mount| path.starts_with(&mount.point));
    let Some(mount) = candidates.max_by_key(|mount| mount.point.components().count()) else { return unknown };
    let file_system = mount.file_system.clone();
    let fixed = |kind| StorageFacts { file_system: file_system.clone(), kind, ..unknown.clone() };
    if IN_MEMORY.contains(&mount.file_system.as_str()) {
        return fixed(StorageKind::Memory);
    }
    if NETWORK.contains(&mount.file_system.as_str()) {
        return fixed(StorageKind::Network);
    }
    let Some(folder) = mount.block_device(root) else { return fixed(StorageKind::Unknown) };
    let name = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let queue = |field: &str| {
        let text = fs::read_to_string(folder.join("queue").join(field)).ok()?;
        text.trim().parse::<u64>().ok()
    };
    let kind = match queue("rotational") {
        _ if VIRTUAL.iter().any(|beginning| name.starts_with(beginning)) => StorageKind::Virtual,
        Some(0) => StorageKind::SolidState,
        Some(_) => StorageKind::Rotating,
        None => StorageKind::Unknown,
    };
    let read_ahead = queue("read_ahead_kb").and_then(|kib| Bytes(kib).checked_mul(1024));
    StorageFacts { file_system, device: Some(name), kind, read_ahead }
}

struct Mounted {
    number: String,
    point: PathBuf,
    file_system: String,
    source: String,
}

impl Mounted {
    /// Reads a line of `mountinfo`: `id parent device root point options [tags] - type source options`.
    fn parse(line: &str) -> Option<Self> {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(2);
        let (number, point) = (left.next()?, left.nth(1)?);
        let mut right = right.split(' ');
        let (file_system, source) = (right.next()?, right.next()?);
        let point = PathBuf::from(crate::cgroup::unescape(point));
        Some(Self {
            number: number.to_owned(),
            point,
            file_system: file_system.to_owned(),
            source: source.to_owned(),
        })
    }

    /// The folder of the whole disk in `/sys`: of the device number, or (file systems over several devices) of the source.
    fn block_device(&self, root: &Path) -> Option<PathBuf> {
        let by_number = root.join("sys/dev/block").join(&self.number);
        let by_name = self.source.strip_prefix("/dev/").map(|name| root.join("sys/class/block").join(name));
        let found =
            [Some(by_number), by_name].into_iter().flatten().find_map(|path| fs::canonicalize(path).ok())?;
        if found.join("queue").is_dir() {
            return Some(found);
        }
        // A partition lies in the folder of its disk.
        found.parent().filter(|parent| parent.join("queue").is_dir()).map(Path::to_owned)
    }
}
