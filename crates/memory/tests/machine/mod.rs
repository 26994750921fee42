//! A machine described as a folder with `/proc` and `/sys` inside.
#![allow(dead_code, reason = "each test uses a part")]

use std::fs;
use std::path::Path;

use tempfile::TempDir;

pub const V2_MOUNT: &str = "35 24 0:30 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
/// What version 1 writes for "no limit".
pub const V1_NO_LIMIT: &str = "9223372036854771712\n";

pub struct Machine(TempDir);

impl Machine {
    /// A folder with nothing in it.
    pub fn empty() -> Self {
        Self(tempfile::tempdir().expect("temporary folder"))
    }

    /// 16 GiB, 12 of them available, and a process in these control groups.
    pub fn with_memory(cgroup: &str, mountinfo: &str, status: &str) -> Self {
        let machine = Self::empty();
        machine
            .file(
                "proc/meminfo",
                "MemTotal:       16777216 kB\nMemFree: 99 kB\nMemAvailable:   12582912 kB\n",
            )
            .file("proc/self/cgroup", cgroup)
            .file("proc/self/mountinfo", mountinfo)
            .file("proc/self/status", status);
        machine
    }

    pub fn root(&self) -> &Path {
        self.0.path()
    }

    pub fn file(&self, path: &str, text: impl ToString) -> &Self {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().expect("below the root")).expect("folder");
        fs::write(path, text.to_string()).expect("file");
        self
    }
}
