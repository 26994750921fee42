//! What the machine says about memory right now, cheap enough to ask a hundred times a second.
//!
//! Owns: [`PressureSource`], which finds the files once, keeps them open and reads them into one buffer, and
//! [`PressureReading`]. It asks for the memory of this process; the room below every limit of its control groups (version
//! 1: the hard and the soft limit; version 2: `memory.max` and `memory.high`; parents too); what the machine has left; how long
//! somebody waited for memory (PSI: that of the own group where there is one, else that of the machine); and what macOS thinks of it.
//!
//! Refuses: judging, which `controller.rs` does, and failing: what is missing or unreadable limits nothing.
//!
//! A limit that is lowered below what is in use is worth a word: with `memory.max` the kernel kills before anybody can
//! react, with `memory.high` and the soft limit it waits. Who wants a running process to give memory back lowers those.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::Bytes;
use crate::cgroup::{Cgroups, Version, is_limit};
use crate::facts::{cpus_in, meminfo_field};
use crate::sys::ProcessMemory;

/// Longer than any of the files: the longest, `memory.stat`, has about 3 KB.
const BUFFER_BYTES: usize = 16 << 10;
/// A group that uses so much more than at the last look is worth another one at once.
const RISE: Bytes = Bytes::from_mib(6);

/// Whose waiting the stall figure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StallScope {
    /// Of the control group of this process and those below it.
    Own,
    /// Of everybody on this machine.
    Machine,
}

/// What the operating system itself calls the state of memory. Linux has no such word and is always normal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PressureLevel {
    /// Nothing to do.
    Normal,
    /// Programs are asked to give back what they can.
    Warning,
    /// The next step of the system is to end programs.
    Critical,
}

/// What the machine says about memory at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PressureReading {
    /// This process. `anon` is zero where the system does not tell.
    pub own: ProcessMemory,
    /// The smallest room below a limit of the control groups, cached file pages counted as free; `None` without a limit.
    pub cgroup_room: Option<Bytes>,
    /// Bytes in use above a limit; not zero only when `cgroup_room` is zero.
    pub cgroup_excess: Bytes,
    /// The smallest limit of the control groups.
    pub cgroup_limit: Option<Bytes>,
    /// What the machine could give without swapping; [`Bytes::MAX`] where it does not tell.
    pub machine_available: Bytes,
    /// Memory of the machine; [`Bytes::MAX`] where it does not tell.
    pub machine_total: Bytes,
    /// Microseconds, since some start, in which at least one thread waited for memory; it only grows.
    pub stalled_us: Option<u64>,
    /// Who waited.
    pub stalled_scope: StallScope,
    /// What the system calls it.
    pub level: PressureLevel,
}

/// A reading that limits nothing.
impl Default for PressureReading {
    fn default() -> Self {
        Self {
            own: ProcessMemory::default(),
            cgroup_room: None,
            cgroup_excess: Bytes::ZERO,
            cgroup_limit: None,
            machine_available: Bytes::MAX,
            machine_total: Bytes::MAX,
            stalled_us: None,
            stalled_scope: StallScope::Machine,
            level: PressureLevel::Normal,
        }
    }
}

/// The open files of one control group folder.
#[derive(Debug)]
struct Group {
    version: Version,
    usage: File,
    /// What it used at the last look; `None` while it has no limit.
    usage_seen: Option<Bytes>,
    limits: Vec<File>,
    stat: Option<File>,
    /// Whether this is the group of the process itself, which also tells the limits of parents that are not visible.
    is_own: bool,
}

/// Reads what the machine says about memory.
#[derive(Debug)]
pub struct PressureSource {
    root: PathBuf,
    membership: Option<File>,
    membership_text: String,
    groups: Vec<Group>,
    stall: Option<(File, StallScope)>,
    status: Option<File>,
    meminfo: Option<File>,
    buffer: Vec<u8>,
    counter_error: Bytes,
    #[cfg(target_os = "macos")]
    is_folder: bool,
}

impl PressureSource {
    /// Finds what this machine has.
    pub fn new() -> Self {
        let source = Self::from_root(Path::new("/"));
        #[cfg(target_os = "macos")]
        let source = Self { is_folder: false, counter_error: Bytes::ZERO, ..source };
        source
    }

    /// Finds what a Linux machine has whose `/proc` and `/sys` lie below `root`.
    pub fn from_root(root: &Path) -> Self {
        let open = |path: &str| File::open(root.join(path)).ok();
        let mut source = Self {
            root: root.to_owned(),
            membership: open("proc/self/cgroup"),
            membership_text: String::new(),
            groups: Vec::new(),
            stall: None,
            status: open("proc/self/status"),
            meminfo: open("proc/meminfo"),
            buffer: vec![0; BUFFER_BYTES],
            counter_error: counter_error(root),
            #[cfg(target_os = "macos")]
            is_folder: true,
        };
        source.find_groups();
        source
    }

    /// How far the system's count of the memory of this process may be off: each processor (each thread, before Linux 6.2)
    /// keeps some pages to itself before it tells (`percpu_counter_batch`). For [`Controller::new`](crate::Controller::new).
    pub fn counter_error(&self) -> Bytes {
        self.counter_error
    }

    /// The figures now.
    pub fn read(&mut self) -> PressureReading {
        #[cfg(target_os = "macos")]
        if !self.is_folder {
            return system_reading();
        }
        if self.has_moved() {
            self.find_groups();
        }
        let mut reading = PressureReading::default();
        // Usage of the group and of the process directly one after the other: what we take in between looks like somebody else's.
        self.read_groups(&mut reading);
        let Self { buffer, status, meminfo, stall, .. } = self;
        if let Some(file) = status {
            reading.own = ProcessMemory::from_status(text_of(file, buffer));
        }
        if let Some(file) = meminfo {
            let meminfo = text_of(file, buffer);
            let available =
                meminfo_field(meminfo, "MemAvailable").or_else(|| meminfo_field(meminfo, "MemFree"));
            if let (Some(total), Some(available)) = (meminfo_field(meminfo, "MemTotal"), available) {
                (reading.machine_total, reading.machine_available) = (total, available);
            }
        }
        if let Some((file, scope)) = stall {
            reading.stalled_us = stalled_total(text_of(file, buffer));
            reading.stalled_scope = *scope;
        }
        reading
    }

    /// Whether a control group with a limit uses clearly more than at the last [`PressureSource::read`]: then it is time to read again.
    /// It costs a small part of a whole look, so it can be asked in between.
    pub fn has_risen(&mut self) -> bool {
        let Self { groups, buffer, .. } = self;
        groups.iter().any(|group| {
            group.usage_seen.is_some_and(|seen| {
                number_of(&group.usage, buffer).is_some_and(|usage| usage.saturating_sub(seen) >= RISE)
            })
        })
    }

    /// Whether somebody put this process into another control group since the last look.
    fn has_moved(&mut self) -> bool {
        let Some(file) = &self.membership else { return false };
        let text = text_of(file, &mut self.buffer);
        // A look that failed says nothing.
        !text.is_empty() && text != self.membership_text
    }

    fn find_groups(&mut self) {
        if let Some(file) = &self.membership {
            self.membership_text = text_of(file, &mut self.buffer).to_owned();
        }
        let cgroups = Cgroups::find(&self.root);
        let mut seen = Vec::new();
        self.groups.clear();
        for (version, folder) in cgroups.memory_folders() {
            let is_own = !seen.contains(&version);
            seen.push(version);
            self.groups.extend(Group::open(version, folder, is_own));
        }
        // A group may have its pressure figures switched off: then the file is there and cannot be read.
        let mut readable = |path: PathBuf| {
            let file = File::open(path).ok()?;
            stalled_total(text_of(&file, &mut self.buffer)).map(|_| file)
        };
        // The topmost group of a machine has no type; its figures are those of the machine.
        let own = cgroups.unified_folder().filter(|folder| folder.join("cgroup.type").exists());
        let own = own.and_then(|folder| readable(folder.join("memory.pressure")));
        self.stall = match own {
            Some(file) => Some((file, StallScope::Own)),
            None => readable(self.root.join("proc/pressure/memory")).map(|file| (file, StallScope::Machine)),
        };
    }

    fn read_groups(&mut self, reading: &mut PressureReading) {
        let mut smallest_room: Option<i128> = None;
        for group in &mut self.groups {
            let Some((limit, room)) = group.room(&mut self.buffer) else { continue };
            reading.cgroup_limit = Some(reading.cgroup_limit.map_or(limit, |smallest| smallest.min(limit)));
            smallest_room = Some(smallest_room.map_or(room, |smallest| smallest.min(room)));
        }
        let magnitude = |room: i128| Bytes(u64::try_from(room).unwrap_or(0));
        reading.cgroup_room = smallest_room.map(magnitude);
        reading.cgroup_excess = smallest_room.map_or(Bytes::ZERO, |room| magnitude(-room));
    }
}

impl Default for PressureSource {
    fn default() -> Self {
        Self::new()
    }
}

impl Group {
    /// `None` for a group that does not count memory: the topmost one of version 2, and any without the controller.
    fn open(version: Version, folder: &Path, is_own: bool) -> Option<Self> {
        let open = |name: &str| File::open(folder.join(name)).ok();
        let soft = match version {
            Version::One => Some("memory.soft_limit_in_bytes"),
            Version::Two => None,
        };
        let limits = version.limit_files().iter().copied().chain(soft);
        Some(Self {
            version,
            usage: open(version.usage_file())?,
            usage_seen: None,
            limits: limits.filter_map(open).collect(),
            stat: open("memory.stat"),
            is_own,
        })
    }

    /// The smallest limit and the room below it, negative when more is in use.
    fn room(&mut self, buffer: &mut [u8]) -> Option<(Bytes, i128)> {
        self.usage_seen = None;
        let mut number = |file: &File| number_of(file, buffer);
        let limits = self.limits.iter().filter_map(&mut number).filter(|limit| is_limit(*limit));
        let limit = limits.min();
        if limit.is_none() && !(self.is_own && self.version == Version::One) {
            return None;
        }
        let usage = number(&self.usage)?;
        let stat = self.stat.as_ref().map_or("", |file| text_of(file, buffer));
        // Of a hidden parent only this group's part of what it uses is known.
        let limit = [limit, self.version.hidden_limit(stat)].into_iter().flatten().min()?;
        self.usage_seen = Some(usage);
        let used = usage.saturating_sub(self.version.cached(stat));
        Some((limit, i128::from(limit.0) - i128::from(used.0)))
    }
}

/// Of all processors, not only those that this process may use: it has not always run on these.
fn counter_error(root: &Path) -> Bytes {
    let online = std::fs::read_to_string(root.join("sys/devices/system/cpu/online")).ok();
    let cpus = online.and_then(|list| cpus_in(list.trim())).unwrap_or(1) as u64;
    let pages = cpus.saturating_mul(2).max(64).saturating_mul(cpus);
    Bytes(pages.saturating_mul(crate::sys::page_size() as u64))
}

/// The text of an open file from its start: the kernel writes it anew for each such read. Empty when it cannot be read.
fn text_of<'a>(file: &File, buffer: &'a mut [u8]) -> &'a str {
    let len = file.read_at(buffer, 0).unwrap_or(0);
    std::str::from_utf8(&buffer[..len]).unwrap_or_default()
}

fn number_of(file: &File, buffer: &mut [u8]) -> Option<Bytes> {
    text_of(file, buffer).trim().parse().ok().map(Bytes)
}

/// The total in `some avg10=0.12 avg60=0.05 avg300=0.01 total=12345`, in microseconds.
fn stalled_total(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
    line.split(' ').find_map(|field| field.strip_prefix("total="))?.parse().ok()
}

/// This machine has no files for it: the footprint of the process (compressed memory included), what the system would give
/// before it is short (in steps of one percent), and its own word for the state of memory.
#[cfg(target_os = "macos")]
fn system_reading() -> PressureReading {
    let (machine_total, machine_available) = crate::sys::host_memory().unwrap_or((Bytes::MAX, Bytes::MAX));
    let level = match crate::sys::memory_pressure_level() {
        Ok(2) => PressureLevel::Warning,
        Ok(4) => PressureLevel::Critical,
        _ => PressureLevel::Normal,
    };
    PressureReading {
        own: crate::sys::process_memory().unwrap_or_default(),
        machine_available,
        machine_total,
        level,
        ..PressureReading::default()
    }
}
