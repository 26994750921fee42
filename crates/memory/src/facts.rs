//! What the machine and its limits give this process: memory, address space, processors.
//!
//! Owns: [`MachineFacts`] and the default budget. On Linux everything comes from files (`/proc`, control groups), so a test
//! can describe any machine as a folder.

use std::fs;
use std::path::Path;

use serde::Serialize;

use crate::cgroup::Cgroups;
use crate::{Bytes, MemoryError, SizeSpec};

/// Share of the usable memory that is the budget when the user names none, in percent.
pub const DEFAULT_BUDGET_PERCENT: f64 = 70.0;

/// Memory and processors that this process can count on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MachineFacts {
    /// Installed memory.
    pub physical: Bytes,
    /// What could be taken now without swapping: free memory and caches, of the machine and within the limits of the
    /// control groups.
    pub available: Bytes,
    /// The smallest memory limit of the control groups of this process, parents included.
    pub cgroup_limit: Option<Bytes>,
    /// What the group with that limit uses now, page cache included.
    pub cgroup_current: Option<Bytes>,
    /// The smaller of the limits on address space and on data (`ulimit -v`, `ulimit -d`).
    pub address_space_limit: Option<Bytes>,
    /// What is left of the limit on address space (`ulimit -v`), which mapped files count against too.
    pub address_space_left: Option<Bytes>,
    /// What is left of the limit on data (`ulimit -d`), which mapped files do not count against.
    pub data_left: Option<Bytes>,
    /// The smallest of `physical`, `cgroup_limit` and `address_space_limit`; what percentages refer to.
    pub usable: Bytes,
    /// Processors this process may use at once: affinity and quota, at least one.
    pub cpu_count: usize,
    /// Size of a memory page in bytes.
    pub page_size: usize,
}

impl MachineFacts {
    /// The facts of this machine now.
    #[cfg(target_os = "linux")]
    pub fn detect() -> Result<Self, MemoryError> {
        Self::from_root(Path::new("/"))
    }

    /// The facts of this machine now.
    #[cfg(target_os = "macos")]
    pub fn detect() -> Result<Self, MemoryError> {
        let (physical, available) =
            crate::sys::host_memory().map_err(|source| MemoryError::Facts { source })?;
        let cpu_count = std::thread::available_parallelism().map_or(1, |count| count.get());
        let limits = crate::sys::address_space_limit();
        Ok(Self::assemble(physical, available, Cgroups::default(), limits, cpu_count))
    }

    /// The facts of a Linux machine whose `/proc` and `/sys` lie below `root`.
    pub fn from_root(root: &Path) -> Result<Self, MemoryError> {
        let path = root.join("proc/meminfo");
        let read = |path: &Path| {
            fs::read_to_string(path).map_err(|source| MemoryError::File {
                action: "read",
                path: path.to_owned(),
                source,
            })
        };
        let meminfo = read(&path)?;
        let physical = meminfo_field(&meminfo, "MemTotal").ok_or_else(|| MemoryError::File {
            action: "find MemTotal in",
            path: path.clone(),
            source: std::io::ErrorKind::InvalidData.into(),
        })?;
        // Kernels before 3.14 do not tell; what is free is the careful answer.
        let available = meminfo_field(&meminfo, "MemAvailable")
            .or_else(|| meminfo_field(&meminfo, "MemFree"))
            .unwrap_or(physical);
        let process = root.join("proc/self");
        let limits = read(&process.join("limits")).unwrap_or_default();
        let status = read(&process.join("status")).unwrap_or_default();
        let address_space = ["Max address space", "Max data size"].into_iter();
        let address_space_limit = address_space.filter_map(|name| limit_field(&limits, name)).min();
        let cgroups = Cgroups::find(root);
        let left = |limit: &str, taken: &str| {
            let taken = meminfo_field(&status, taken).unwrap_or(Bytes::ZERO);
            limit_field(&limits, limit).map(|limit| limit.saturating_sub(taken))
        };
        let address_space_left = left("Max address space", "VmSize");
        let data_left = left("Max data size", "VmData");
        let affinity = allowed_cpus(&status)
            .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |count| count.get()));
        let facts = Self::assemble(physical, available, cgroups, address_space_limit, affinity);
        let available =
            [address_space_left, data_left].into_iter().flatten().fold(facts.available, Bytes::min);
        Ok(Self { available, address_space_left, data_left, ..facts })
    }

    fn assemble(
        physical: Bytes,
        available: Bytes,
        cgroups: Cgroups,
        address_space_limit: Option<Bytes>,
        affinity: usize,
    ) -> Self {
        let (cgroup_limit, cgroup_current) = cgroups.memory_limit().unzip();
        let smallest =
            |first: Bytes, others: &[Option<Bytes>]| others.iter().flatten().fold(first, |a, b| a.min(*b));
        let usable = smallest(physical, &[cgroup_limit, address_space_limit]);
        Self {
            physical,
            available: smallest(available, &[cgroups.memory_available(), Some(usable)]),
            cgroup_limit,
            cgroup_current: cgroup_current.flatten(),
            address_space_limit,
            address_space_left: None,
            data_left: None,
            usable,
            cpu_count: cgroups.cpu_quota().unwrap_or(affinity).min(affinity).max(1),
            page_size: crate::sys::page_size(),
        }
    }

    /// The facts of a machine with `memory` installed, nothing of it taken and no limit below it; the rest as here.
    #[must_use]
    pub fn with_memory(self, memory: Bytes) -> Self {
        Self {
            physical: memory,
            available: memory,
            cgroup_limit: None,
            cgroup_current: None,
            address_space_limit: None,
            address_space_left: None,
            data_left: None,
            usable: memory,
            ..self
        }
    }

    /// Whether what can be had ends at a limit on address space or data: beyond it the system refuses an allocation, and
    /// neither swaps nor kills.
    pub fn ends_at_limit(&self) -> bool {
        let left = [self.address_space_left, self.data_left].into_iter().flatten().min();
        left.is_some_and(|left| left <= self.available)
    }

    /// The budget when the user names none: [`DEFAULT_BUDGET_PERCENT`] of the usable memory, but not more than is
    /// available now, because nobody asked for swapping.
    pub fn default_budget(&self) -> Bytes {
        self.usable.percent(DEFAULT_BUDGET_PERCENT).min(self.available)
    }

    /// The budget for what the user said, if anything. [`Bytes::MAX`] for `unlimited`.
    pub fn budget(&self, asked: Option<SizeSpec>) -> Bytes {
        asked.map_or_else(|| self.default_budget(), |size| size.resolve(self.usable))
    }
}

pub(crate) fn meminfo_field(meminfo: &str, name: &str) -> Option<Bytes> {
    let value = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Bytes(kib).checked_mul(1024)
}

/// The soft limit in a line of `/proc/self/limits`; `None` for `unlimited`.
pub(crate) fn limit_field(limits: &str, name: &str) -> Option<Bytes> {
    let values = limits.lines().find_map(|line| line.strip_prefix(name))?;
    values.split_whitespace().next()?.parse().ok().map(Bytes)
}

/// The number of processors in `Cpus_allowed_list: 0-3,8`.
fn allowed_cpus(status: &str) -> Option<usize> {
    cpus_in(status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?)
}

/// The number of processors in `0-3,8`.
pub(crate) fn cpus_in(list: &str) -> Option<usize> {
    let mut count = 0_usize;
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        count = count.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_lists_are_counted() {
        let count = |list: &str| allowed_cpus(&format!("Cpus_allowed_list:\t{list}\n"));
        assert_eq!(count("0-1"), Some(2));
        assert_eq!(count("0,2-5,64"), Some(6));
        for nonsense in ["", "3-1", "a", "0-18446744073709551615", "1-"] {
            assert_eq!(count(nonsense), None, "{nonsense:?}");
        }
    }
}
