//! Swap, limits of the process and what a path lies on, of machines that are described as folders with `/proc` and `/sys`.
//!
//! What could go wrong: a partition whose disk is not found, a container's overlay that is taken for a disk, a mount inside a
//! mount, a limit that is read in the wrong unit.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::machine::Machine;
use coldpress_memory::{Bytes, StorageKind, Swap, SystemFacts, storage_below};

impl Machine {
    /// A disk with one partition, under its numbers and names.
    fn disk(&self, name: &str, number: &str, rotational: u8) -> &Self {
        self.file(&format!("sys/devices/x/{name}/queue/rotational"), format!("{rotational}\n"));
        self.file(&format!("sys/devices/x/{name}/queue/read_ahead_kb"), "128\n");
        self.file(&format!("sys/devices/x/{name}/{name}p1/partition"), "1\n");
        let device = self.root().join(format!("sys/devices/x/{name}/{name}p1"));
        for link in [format!("sys/dev/block/{number}"), format!("sys/class/block/{name}p1")] {
            let link = self.root().join(link);
            fs::create_dir_all(link.parent().expect("below the root")).expect("a folder");
            symlink(&device, link).expect("a link");
        }
        self
    }
}

#[test]
fn storage_is_found_through_partitions_and_mounts_inside_mounts() {
    let machine = Machine::empty();
    machine.disk("nvme0n1", "259:1", 0).disk("sda", "8:1", 1).disk("vda", "254:1", 1).file(
        "proc/self/mountinfo",
        "1 0 259:1 / / rw - ext4 /dev/nvme0n1p1 rw\n\
         2 1 8:1 / /data rw shared:1 - xfs /dev/sdap1 rw\n\
         3 2 0:50 / /data/btr\\040fs rw - btrfs /dev/nvme0n1p1 rw\n\
         4 1 0:60 / /net rw - nfs4 server:/x rw\n\
         5 1 0:61 / /tmp rw - tmpfs tmpfs rw\n\
         6 1 0:62 / /box rw - overlay overlay rw\n\
         7 1 254:1 / /virtual rw - ext4 /dev/vdap1 rw\n",
    );
    let at = |path: &str| storage_below(machine.root(), Path::new(path));
    let root = at("/home/x");
    assert_eq!((root.file_system.as_str(), root.kind), ("ext4", StorageKind::SolidState));
    assert_eq!((root.device.as_deref(), root.read_ahead), (Some("nvme0n1"), Some(Bytes(128 << 10))));
    assert_eq!((at("/data/m").kind, at("/database").kind), (StorageKind::Rotating, StorageKind::SolidState));
    assert_eq!(at("/data/btr fs/m").kind, StorageKind::SolidState);
    assert_eq!(at("/net/m").kind, StorageKind::Network);
    assert_eq!(at("/tmp/m").kind, StorageKind::Memory);
    assert_eq!((at("/box").kind, at("/box").device), (StorageKind::Unknown, None));
    assert_eq!(at("/virtual").kind, StorageKind::Virtual);
    let nothing = Machine::empty();
    assert_eq!(storage_below(nothing.root(), Path::new("/x")).kind, StorageKind::Unknown);
}

#[test]
fn swap_limits_and_nodes_are_read_and_absent_ones_are_no_finding() {
    let machine = Machine::empty();
    machine
        .file("proc/meminfo", "MemTotal: 16 kB\nSwapTotal:  2048 kB\nSwapFree:  1024 kB\n")
        .file(
            "proc/self/limits",
            "Limit  Soft Limit  Hard Limit  Units\nMax locked memory  65536  65536  bytes\nMax open files  1024  4096  files\n",
        )
        .file("proc/sys/vm/overcommit_memory", "2\n")
        .file("proc/sys/kernel/io_uring_disabled", "1\n")
        .file("proc/pressure/memory", "some avg10=3.25 avg60=0.00 total=1\nfull avg10=0.00 total=0\n")
        .file("sys/devices/system/node/node0/x", "")
        .file("sys/devices/system/node/node1/x", "")
        .file("sys/devices/system/node/online", "0-1\n");
    let wanted = SystemFacts {
        swap: Some(Swap { total: Bytes(2 << 20), used: Bytes(1 << 20) }),
        overcommit_refused: true,
        memory_nodes: 2,
        locked_memory_limit: Some(Bytes(64 << 10)),
        open_files_limit: Some(1024),
        io_uring_disabled: Some(1),
        memory_pressure_percent: Some(3.25),
    };
    assert_eq!(SystemFacts::from_root(machine.root()), wanted);
    let nothing = SystemFacts::from_root(Machine::empty().root());
    assert_eq!(nothing, SystemFacts { memory_nodes: 1, ..SystemFacts::default() });
}
