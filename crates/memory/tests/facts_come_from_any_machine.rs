//! A container that sees the memory of its host plans tens of GiB and is killed. Machines are described as folders
//! with `/proc` and `/sys` inside: control groups of both versions, limits in a parent, hybrid mounts, containers whose
//! own group is not visible, quotas and limits of the shell.

use std::path::Path;

use crate::machine::{Machine, V1_NO_LIMIT, V2_MOUNT};
use coldpress_memory::{Bytes, MachineFacts};

impl Machine {
    /// 16 GiB, 12 of them available, 8 processors.
    fn new(cgroup: &str, mountinfo: &str) -> Self {
        let machine =
            Self::with_memory(cgroup, mountinfo, "Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t0-7\n");
        machine.file("proc/self/limits", limits("unlimited", "unlimited"));
        machine
    }

    fn facts(&self) -> MachineFacts {
        MachineFacts::from_root(self.root()).expect("readable machine")
    }
}

fn limits(address_space: &str, data: &str) -> String {
    format!(
        "Limit                     Soft Limit           Hard Limit           Units     \n\
         Max data size             {data:<20} unlimited            bytes     \n\
         Max address space         {address_space:<20} unlimited            bytes     \n"
    )
}

#[test]
fn bare_machine() {
    let facts = Machine::new("", "").facts();
    assert_eq!(facts.physical, Bytes::from_gib(16));
    assert_eq!(facts.usable, Bytes::from_gib(16));
    assert_eq!(facts.available, Bytes::from_gib(12));
    assert_eq!((facts.cgroup_limit, facts.address_space_limit, facts.cpu_count), (None, None, 8));
    assert_eq!(facts.default_budget(), Bytes::from_gib(16).percent(70.0));
}

#[test]
fn version_2_takes_the_smallest_limit_on_the_way_up() {
    let machine = Machine::new("0::/user.slice/app.scope\n", V2_MOUNT);
    machine
        .file("sys/fs/cgroup/user.slice/app.scope/memory.max", "max\n")
        .file("sys/fs/cgroup/user.slice/app.scope/memory.high", "8589934592\n")
        .file("sys/fs/cgroup/user.slice/memory.max", "4294967296\n")
        .file("sys/fs/cgroup/user.slice/memory.current", "3221225472\n")
        .file("sys/fs/cgroup/user.slice/memory.stat", "anon 1\ninactive_file 1073741824\nactive_file 0\n")
        .file("sys/fs/cgroup/user.slice/app.scope/cpu.max", "350000 100000\n")
        .file("sys/fs/cgroup/user.slice/cpu.max", "max 100000\n");
    let facts = machine.facts();
    assert_eq!(facts.cgroup_limit, Some(Bytes::from_gib(4)));
    assert_eq!(facts.cgroup_current, Some(Bytes::from_gib(3)));
    assert_eq!(facts.usable, Bytes::from_gib(4));
    assert_eq!(facts.available, Bytes::from_gib(2), "3 GiB used, 1 of them cache");
    assert_eq!(facts.default_budget(), Bytes::from_gib(2));
    assert_eq!(facts.cpu_count, 3, "half a processor runs no thread");
}

#[test]
fn the_softer_limit_of_version_2_counts() {
    let machine = Machine::new("0::/a\n", V2_MOUNT);
    machine
        .file("sys/fs/cgroup/a/memory.max", "4294967296")
        .file("sys/fs/cgroup/a/memory.high", "1073741824");
    assert_eq!(machine.facts().cgroup_limit, Some(Bytes::from_gib(1)));
}

#[test]
fn version_1_beside_an_empty_version_2() {
    let membership = "4:memory:/outer/inner\n2:cpu,cpuacct:/outer\n1:name=systemd:/\n0::/\n";
    let mounts = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
                  35 31 0:32 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n\
                  32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
                  41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
    let machine = Machine::new(membership, mounts);
    machine
        .file("sys/fs/cgroup/memory/memory.limit_in_bytes", V1_NO_LIMIT)
        .file("sys/fs/cgroup/memory/outer/memory.limit_in_bytes", "2147483648\n")
        .file("sys/fs/cgroup/memory/outer/memory.usage_in_bytes", "1073741824\n")
        .file("sys/fs/cgroup/memory/outer/inner/memory.limit_in_bytes", V1_NO_LIMIT)
        .file("sys/fs/cgroup/cpu,cpuacct/outer/cpu.cfs_quota_us", "50000\n")
        .file("sys/fs/cgroup/cpu,cpuacct/outer/cpu.cfs_period_us", "100000\n")
        .file("sys/fs/cgroup/unified/cgroup.procs", "");
    let facts = machine.facts();
    assert_eq!(facts.cgroup_limit, Some(Bytes::from_gib(2)));
    assert_eq!(facts.cgroup_current, Some(Bytes::from_gib(1)));
    assert_eq!(facts.cpu_count, 1, "half a processor is still one thread");
}

#[test]
fn version_1_limit_of_a_parent_outside_the_container() {
    let mounts = "35 31 0:32 /docker/c1 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
    let machine = Machine::new("4:memory:/docker/c1\n", mounts);
    machine
        .file("sys/fs/cgroup/memory/memory.limit_in_bytes", "4294967296\n")
        .file("sys/fs/cgroup/memory/memory.stat", "cache 5\nhierarchical_memory_limit 1073741824\n");
    assert_eq!(machine.facts().usable, Bytes::from_gib(1));
}

#[test]
fn container_that_sees_only_its_own_group() {
    for path in ["/", "/../../other", "/system.slice/docker-1.scope"] {
        let machine = Machine::new(&format!("0::{path}\n"), V2_MOUNT);
        machine.file("sys/fs/cgroup/memory.max", "3221225472\n");
        assert_eq!(machine.facts().usable, Bytes::from_gib(3), "{path}");
    }
}

#[test]
fn the_mount_that_reaches_the_group_is_used() {
    let mounts = format!("50 24 0:30 /elsewhere /mnt/part\\040one rw - cgroup2 none rw\n{V2_MOUNT}");
    let machine = Machine::new("0::/job\n", &mounts);
    machine.file("mnt/part one/memory.max", "1048576\n").file("sys/fs/cgroup/job/memory.max", "2147483648\n");
    assert_eq!(machine.facts().usable, Bytes::from_gib(2));
}

#[test]
fn limits_of_the_shell_count() {
    let machine = Machine::new("", "");
    machine.file("proc/self/limits", limits("8589934592", "2147483648"));
    let facts = machine.facts();
    assert_eq!(facts.address_space_limit, Some(Bytes::from_gib(2)));
    assert_eq!(facts.usable, Bytes::from_gib(2));
}

#[test]
fn what_is_left_of_a_limit_is_counted_with_what_it_limits() {
    let status = "Name:\tx\nVmSize:\t 2097152 kB\nVmData:\t 1048576 kB\nCpus_allowed_list:\t0-7\n";
    let machine = Machine::with_memory("", "", status);
    machine.file("proc/self/limits", limits("8589934592", "6442450944"));
    let facts = machine.facts();
    assert_eq!(facts.address_space_left, Some(Bytes::from_gib(6)), "8 GiB, 2 of them mapped");
    assert_eq!(facts.data_left, Some(Bytes::from_gib(5)), "6 GiB, 1 of them data");
    assert_eq!(facts.available, Bytes::from_gib(5));
    assert!(facts.ends_at_limit());
    machine.file("proc/self/limits", limits("unlimited", "17179869184"));
    let facts = machine.facts();
    assert_eq!((facts.address_space_left, facts.data_left), (None, Some(Bytes::from_gib(15))));
    assert!(!facts.ends_at_limit(), "the machine has less than is left of the limit");
}

#[test]
fn unreadable_files_limit_nothing_and_missing_meminfo_is_an_error() {
    let machine = Machine::new("nonsense\n0:\n4:memory\n", "x - y\n - \n1 2 3 - cgroup2\n");
    assert_eq!(machine.facts().usable, Bytes::from_gib(16));
    machine.file("proc/meminfo", "nothing");
    let error = MachineFacts::from_root(machine.root()).expect_err("no memory figure");
    assert!(error.to_string().contains("MemTotal"), "{error}");
    let error = MachineFacts::from_root(Path::new("/nowhere/at/all")).expect_err("no such folder");
    assert!(error.to_string().contains("proc/meminfo"), "{error}");
}

#[test]
fn this_machine_agrees_with_the_standard_library() {
    let facts = MachineFacts::detect().expect("a supported system");
    let cpus = std::thread::available_parallelism().expect("a supported system").get();
    assert_eq!(facts.cpu_count, cpus);
    assert!(facts.usable > Bytes::from_mib(64) && facts.usable <= facts.physical);
    assert!(facts.default_budget() <= facts.available && facts.available <= facts.usable);
}
