//! What this process holds at the moment, as the system counts it: the figure that stands beside the budget at the end of a run.
//!
//! Owns: [`MemoryWatch`], which finds the control group once and then reads a few small files per look. Refuses:
//! mixing up kinds: reclaimable file pages are never added to memory that the process owns.

use std::io;
use std::path::Path;

use serde::Serialize;

use crate::Bytes;
use crate::cgroup::Cgroups;
use crate::sys::{ProcessMemory, process_memory};

/// The memory of this process and of its control group at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemoryUsage {
    /// This process.
    pub process: ProcessMemory,
    /// All of the control group, page cache included.
    pub cgroup_current: Option<Bytes>,
    /// The most that the control group ever used, page cache included.
    pub cgroup_peak: Option<Bytes>,
}

/// Reads the memory figures of this process.
#[derive(Clone, Debug)]
pub struct MemoryWatch {
    cgroups: Cgroups,
}

impl MemoryWatch {
    /// Finds the control group of this process.
    pub fn new() -> Self {
        Self { cgroups: Cgroups::find(Path::new("/")) }
    }

    /// The figures now.
    pub fn read(&self) -> io::Result<MemoryUsage> {
        Ok(MemoryUsage {
            process: process_memory()?,
            cgroup_current: self.cgroups.memory_current(),
            cgroup_peak: self.cgroups.memory_peak(),
        })
    }
}

impl Default for MemoryWatch {
    fn default() -> Self {
        Self::new()
    }
}
