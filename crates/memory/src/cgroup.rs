//! Control groups: where this process stands in them and what they allow.
//!
//! Owns: finding the folder of the process from `/proc/self/cgroup` and `/proc/self/mountinfo` (version 1, version 2, and both
//! side by side), and the limits of that folder and of every folder above it that is visible. The smallest counts:
//! a limit of a parent binds its children.
//!
//! Everything is read below a root folder, so that tests can bring their own machine.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Bytes;

/// Version 1 writes "no limit" as the largest multiple of the page size; no machine has this much.
const NO_LIMIT_FROM: u64 = 1 << 60;
/// Field of `memory.stat` in version 1: the smallest limit on the way up, also of parents that are not visible from here.
const HIDDEN_LIMIT: &str = "hierarchical_memory_limit";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    One,
    Two,
}

impl Version {
    /// Hard limits, and for version 2 the softer `memory.high`: above it the kernel throttles rather than kills, which for us is
    /// no better.
    pub(crate) const fn limit_files(self) -> &'static [&'static str] {
        match self {
            Self::One => &["memory.limit_in_bytes"],
            Self::Two => &["memory.max", "memory.high"],
        }
    }

    /// Bytes in use, page cache included.
    pub(crate) const fn usage_file(self) -> &'static str {
        match self {
            Self::One => "memory.usage_in_bytes",
            Self::Two => "memory.current",
        }
    }

    /// The fields of `memory.stat` that sum up cached file pages, children included.
    const fn cached_fields(self) -> [&'static str; 2] {
        match self {
            Self::One => ["total_active_file", "total_inactive_file"],
            Self::Two => ["active_file", "inactive_file"],
        }
    }

    /// Cached file pages in the text of a `memory.stat`.
    pub(crate) fn cached(self, stat: &str) -> Bytes {
        self.cached_fields().into_iter().filter_map(|name| stat_field(stat, name)).sum()
    }

    /// The limit of parents that are not visible from here, in the text of a `memory.stat`.
    pub(crate) fn hidden_limit(self, stat: &str) -> Option<Bytes> {
        match self {
            Self::One => stat_field(stat, HIDDEN_LIMIT).filter(|limit| is_limit(*limit)),
            Self::Two => None,
        }
    }
}

/// Whether a figure in a limit file is meant as a limit.
pub(crate) fn is_limit(figure: Bytes) -> bool {
    figure.0 < NO_LIMIT_FROM
}

/// The folders of one controller for this process, from its own up to the mount point.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hierarchy {
    version: Version,
    folders: Vec<PathBuf>,
}

/// The control groups of this process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cgroups {
    memory: Vec<Hierarchy>,
    cpu: Vec<Hierarchy>,
}

impl Cgroups {
    /// Finds them below `root` (`/` for this machine). Whatever is missing or unreadable limits nothing.
    pub(crate) fn find(root: &Path) -> Self {
        let read = |name: &str| fs::read_to_string(root.join("proc/self").join(name)).unwrap_or_default();
        let (membership, mounts) = (read("cgroup"), read("mountinfo"));
        let hierarchies = |controller| {
            let found = [
                locate(root, &membership, &mounts, Version::One, controller),
                locate(root, &membership, &mounts, Version::Two, ""),
            ];
            found.into_iter().flatten().collect()
        };
        Self { memory: hierarchies("memory"), cpu: hierarchies("cpu") }
    }

    /// The smallest memory limit, and what the group that sets it uses now.
    pub(crate) fn memory_limit(&self) -> Option<(Bytes, Option<Bytes>)> {
        let limit =
            |(version, folder)| Some((memory_limit_of(version, folder)?, memory_current_of(version, folder)));
        let smallest = levels(&self.memory).filter_map(limit).min_by_key(|(limit, _)| *limit);
        let hidden =
            levels(&self.memory).filter_map(|(version, folder)| version.hidden_limit(&stat_of(folder)));
        match (smallest, hidden.min()) {
            (Some((limit, _)), Some(hidden)) if hidden < limit => Some((hidden, None)),
            (None, Some(hidden)) => Some((hidden, None)),
            (smallest, _) => smallest,
        }
    }

    /// The smallest room left below a limit, counting cached file pages as free: they go first.
    pub(crate) fn memory_available(&self) -> Option<Bytes> {
        let room = |(version, folder): (Version, &Path)| {
            let cached = version.cached(&stat_of(folder));
            let used = memory_current_of(version, folder)?.saturating_sub(cached);
            Some(memory_limit_of(version, folder)?.saturating_sub(used))
        };
        levels(&self.memory).filter_map(room).min()
    }

    /// The folders whose memory limits bind this process, from its own group up, for readers that keep files open.
    pub(crate) fn memory_folders(&self) -> impl Iterator<Item = (Version, &Path)> {
        levels(&self.memory)
    }

    /// The folder of this process in version 2, where pressure figures are; version 1 has none.
    pub(crate) fn unified_folder(&self) -> Option<&Path> {
        own_levels(&self.memory).find(|(version, _)| *version == Version::Two).map(|(_, folder)| folder)
    }

    /// Bytes that the group of this process uses now, page cache included.
    pub(crate) fn memory_current(&self) -> Option<Bytes> {
        own_levels(&self.memory).find_map(|(version, folder)| memory_current_of(version, folder))
    }

    /// The most bytes that the group of this process ever used, page cache included.
    pub(crate) fn memory_peak(&self) -> Option<Bytes> {
        own_levels(&self.memory).find_map(|(version, folder)| match version {
            Version::One => number(folder, "memory.max_usage_in_bytes"),
            Version::Two => number(folder, "memory.peak"),
        })
    }

    /// The smallest processor quota, in whole processors, at least one.
    pub(crate) fn cpu_quota(&self) -> Option<usize> {
        let quota = |(version, folder)| {
            let (quota_us, period_us) = cpu_quota_of(version, folder)?;
            Some((quota_us / period_us).max(1) as usize)
        };
        levels(&self.cpu).filter_map(quota).min()
    }
}

fn levels(hierarchies: &[Hierarchy]) -> impl Iterator<Item = (Version, &Path)> {
    hierarchies
        .iter()
        .flat_map(|hierarchy| hierarchy.folders.iter().map(|folder| (hierarchy.version, folder.as_path())))
}

fn own_levels(hierarchies: &[Hierarchy]) -> impl Iterator<Item = (Version, &Path)> {
    hierarchies.iter().filter_map(|hierarchy| Some((hierarchy.version, hierarchy.folders.first()?.as_path())))
}

fn memory_limit_of(version: Version, folder: &Path) -> Option<Bytes> {
    let limits = version.limit_files().iter().filter_map(|name| number(folder, name));
    limits.filter(|limit| is_limit(*limit)).min()
}

fn memory_current_of(version: Version, folder: &Path) -> Option<Bytes> {
    number(folder, version.usage_file())
}

fn cpu_quota_of(version: Version, folder: &Path) -> Option<(u64, u64)> {
    let (quota_us, period_us) = match version {
        Version::One => (number(folder, "cpu.cfs_quota_us")?.0, number(folder, "cpu.cfs_period_us")?.0),
        Version::Two => {
            let text = fs::read_to_string(folder.join("cpu.max")).ok()?;
            let (quota, period) = text.trim().split_once(' ')?;
            (quota.parse().ok()?, period.parse().ok()?)
        }
    };
    (period_us > 0).then_some((quota_us, period_us))
}

/// The number in a file; `None` for `max`, `-1` and files that are not there.
fn number(folder: &Path, name: &str) -> Option<Bytes> {
    fs::read_to_string(folder.join(name)).ok()?.trim().parse().ok().map(Bytes)
}

/// The text of a folder's `memory.stat`; empty where there is none.
fn stat_of(folder: &Path) -> String {
    fs::read_to_string(folder.join("memory.stat")).unwrap_or_default()
}

fn stat_field(stat: &str, name: &str) -> Option<Bytes> {
    let value = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    value.trim().parse().ok().map(Bytes)
}

/// The folders of a controller (empty name: the unified hierarchy of version 2).
fn locate(
    root: &Path,
    membership: &str,
    mounts: &str,
    version: Version,
    controller: &str,
) -> Option<Hierarchy> {
    let path = membership.lines().find_map(|line| membership_path(line, version, controller))?;
    let candidates = mounts.lines().filter_map(|line| Mount::parse(line, version, controller));
    // A hierarchy may be mounted more than once, in part or in whole: take the mount that reaches the group itself.
    let (mount_point, own) = candidates
        .map(|mount| {
            let mount_point = below(root, &mount.point);
            let inner = Path::new(path).strip_prefix(&mount.root).ok().filter(|inner| plain(inner));
            let own = inner.map(|inner| mount_point.join(inner)).filter(|own| own.is_dir());
            (mount_point, own)
        })
        .max_by_key(|(_, own)| own.is_some())?;
    // Where the group lies outside what is mounted (containers), the mount point is the nearest thing to it.
    let own = own.unwrap_or_else(|| mount_point.clone());
    let folders = own.ancestors().take_while(|folder| folder.starts_with(&mount_point));
    Some(Hierarchy { version, folders: folders.map(Path::to_owned).collect() })
}

/// The path in a line `number:controllers:path` if it is about this controller.
fn membership_path<'a>(line: &'a str, version: Version, controller: &str) -> Option<&'a str> {
    let mut parts = line.splitn(3, ':');
    let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let wanted = match version {
        Version::One => controllers.split(',').any(|name| name == controller),
        Version::Two => number == "0" && controllers.is_empty(),
    };
    wanted.then_some(path)
}

/// A path without `..`: a group outside the visible name space is written as `/../other`.
fn plain(path: &Path) -> bool {
    path.components().all(|part| matches!(part, std::path::Component::Normal(_)))
}

fn below(root: &Path, absolute: &Path) -> PathBuf {
    root.join(absolute.strip_prefix("/").unwrap_or(absolute))
}

struct Mount {
    /// Part of the hierarchy that is mounted.
    root: PathBuf,
    /// Where.
    point: PathBuf,
}

impl Mount {
    /// Reads a line of `mountinfo`: `id parent device root point options [tags] - type source options`.
    fn parse(line: &str, version: Version, controller: &str) -> Option<Self> {
        let (left, right) = line.split_once(" - ")?;
        let mut right = right.split(' ');
        let (kind, options) = (right.next()?, right.nth(1)?);
        let wanted = match version {
            Version::One => kind == "cgroup" && options.split(',').any(|name| name == controller),
            Version::Two => kind == "cgroup2",
        };
        let mut left = left.split(' ').skip(3);
        let (root, point) = (left.next()?, left.next()?);
        wanted.then(|| Self { root: unescape(root).into(), point: unescape(point).into() })
    }
}

/// `mountinfo` writes space, tab, newline and backslash as three octal digits.
pub(crate) fn unescape(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .into_iter()
        .fold(text.to_owned(), |text, (code, character)| text.replace(code, character))
}
