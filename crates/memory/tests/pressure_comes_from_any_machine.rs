//! Limits change while a model runs, are set by parents, by the soft kind, and for groups that the process is moved to later. Machines
//! are described as folders with `/proc` and `/sys` inside and change between two looks.

use crate::machine::{Machine, V1_NO_LIMIT, V2_MOUNT};
use coldpress_memory::{Bytes, PressureLevel, PressureReading, PressureSource, StallScope};

const V1_MOUNT: &str = "35 31 0:32 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n";
const GIB: u64 = 1 << 30;

impl Machine {
    /// 16 GiB, 12 of them available.
    fn with_a_process(cgroup: &str, mountinfo: &str) -> Self {
        Self::with_memory(
            cgroup,
            mountinfo,
            "Name:\tx\nVmRSS:\t 2048 kB\nRssAnon:\t 1024 kB\nVmSwap:\t 8 kB\n",
        )
    }

    fn group(&self, path: &str, max: impl ToString, high: impl ToString, current: u64, cached: u64) -> &Self {
        self.file(&format!("{path}/memory.max"), max)
            .file(&format!("{path}/memory.high"), high)
            .file(&format!("{path}/memory.current"), current)
            .file(&format!("{path}/memory.stat"), format!("anon 1\ninactive_file {cached}\nactive_file 0\n"))
    }

    fn source(&self) -> PressureSource {
        PressureSource::from_root(self.root())
    }
}

fn room(reading: &PressureReading) -> (Option<u64>, u64, Option<u64>) {
    let plain = |bytes: Option<Bytes>| bytes.map(Bytes::get);
    (plain(reading.cgroup_room), reading.cgroup_excess.0, plain(reading.cgroup_limit))
}

#[test]
fn a_bare_machine_limits_by_what_is_available() {
    let reading = Machine::with_a_process("", "").source().read();
    assert_eq!(reading.machine_total, Bytes::from_gib(16));
    assert_eq!(reading.machine_available, Bytes::from_gib(12));
    assert_eq!(room(&reading), (None, 0, None));
    assert_eq!((reading.stalled_us, reading.level), (None, PressureLevel::Normal));
    assert_eq!((reading.own.anon, reading.own.swapped), (Bytes::from_kib(1024), Bytes::from_kib(8)));
}

#[test]
fn a_folder_without_anything_limits_nothing() {
    let folder = tempfile::tempdir().expect("temporary folder");
    assert_eq!(PressureSource::from_root(folder.path()).read(), PressureReading::default());
    let machine = Machine::with_a_process("nonsense\n0:\n", "x - y\n");
    machine.file("proc/meminfo", "nothing").file("proc/self/status", [0xff_u8; 3].map(char::from)[0]);
    assert_eq!(machine.source().read(), PressureReading::default());
}

#[test]
fn the_smallest_room_of_version_2_counts_and_follows_every_change() {
    let machine = Machine::with_a_process("0::/user.slice/app.scope\n", V2_MOUNT);
    let (own, parent) = ("sys/fs/cgroup/user.slice/app.scope", "sys/fs/cgroup/user.slice");
    machine.group(own, "max\n", 8 * GIB, 2 * GIB, GIB).group(parent, 10 * GIB, "max\n", 6 * GIB, 0);
    let mut source = machine.source();
    assert_eq!(room(&source.read()), (Some(4 * GIB), 0, Some(8 * GIB)), "the parent has the smaller room");
    machine.file(&format!("{parent}/memory.current"), GIB);
    assert_eq!(room(&source.read()), (Some(7 * GIB), 0, Some(8 * GIB)), "the cache of the own group is free");
    machine.file(&format!("{own}/memory.high"), GIB / 2);
    assert_eq!(room(&source.read()), (Some(0), GIB / 2, Some(GIB / 2)), "more is in use");
    machine.file(&format!("{own}/memory.high"), "max\n").file(&format!("{own}/memory.max"), 3 * GIB);
    assert_eq!(room(&source.read()), (Some(2 * GIB), 0, Some(3 * GIB)));
    machine.file("proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 1048576 kB\n");
    assert_eq!(source.read().machine_available, Bytes::from_gib(1));
}

#[test]
fn version_1_has_a_hard_and_a_soft_limit_and_parents_that_are_not_visible() {
    let machine = Machine::with_a_process("4:memory:/job\n", V1_MOUNT);
    let job = "sys/fs/cgroup/memory/job";
    let stat = |hidden: &str| {
        let cache = "total_active_file 1048576\ntotal_inactive_file 0\n";
        format!("cache 5\nhierarchical_memory_limit {hidden}\n{cache}")
    };
    machine
        .file("sys/fs/cgroup/memory/memory.limit_in_bytes", V1_NO_LIMIT)
        .file("sys/fs/cgroup/memory/memory.usage_in_bytes", 5 * GIB)
        .file(&format!("{job}/memory.limit_in_bytes"), V1_NO_LIMIT)
        .file(&format!("{job}/memory.soft_limit_in_bytes"), V1_NO_LIMIT)
        .file(&format!("{job}/memory.usage_in_bytes"), GIB + (1 << 20))
        .file(&format!("{job}/memory.stat"), stat(V1_NO_LIMIT.trim()));
    let mut source = machine.source();
    assert_eq!(room(&source.read()), (None, 0, None));
    machine.file(&format!("{job}/memory.stat"), stat("6442450944"));
    assert_eq!(room(&source.read()), (Some(5 * GIB), 0, Some(6 * GIB)), "the hidden limit");
    machine.file(&format!("{job}/memory.limit_in_bytes"), 4 * GIB);
    assert_eq!(room(&source.read()), (Some(3 * GIB), 0, Some(4 * GIB)), "the hard limit");
    machine.file(&format!("{job}/memory.soft_limit_in_bytes"), GIB / 2);
    assert_eq!(room(&source.read()), (Some(0), GIB / 2, Some(GIB / 2)), "the soft limit");
}

#[test]
fn a_group_that_fills_is_seen_between_two_looks() {
    let machine = Machine::with_a_process("0::/user.slice/app.scope\n", V2_MOUNT);
    let (own, parent) = ("sys/fs/cgroup/user.slice/app.scope", "sys/fs/cgroup/user.slice");
    machine.group(own, "max\n", "max\n", GIB, 0).group(parent, 10 * GIB, "max\n", 2 * GIB, 0);
    let mut source = machine.source();
    assert!(!source.has_risen(), "nothing was seen yet");
    source.read();
    machine.file(&format!("{own}/memory.current"), 4 * GIB);
    assert!(!source.has_risen(), "a group without a limit may use what it likes");
    machine.file(&format!("{parent}/memory.current"), 2 * GIB + (5 << 20));
    assert!(!source.has_risen(), "a little");
    machine.file(&format!("{parent}/memory.current"), 2 * GIB + (6 << 20));
    assert!(source.has_risen() && source.has_risen(), "until the next look");
    source.read();
    assert!(!source.has_risen());
    machine.file(&format!("{parent}/memory.current"), GIB);
    assert!(!source.has_risen(), "less");
}

#[test]
fn waiting_is_that_of_the_own_group_where_it_is_told() {
    let machine = Machine::with_a_process("0::/app\n", V2_MOUNT);
    let some = |total: u64| {
        format!("some avg10=0.00 avg60=0.00 avg300=0.00 total={total}\nfull avg10=0.00 total=7\n")
    };
    let stalled = |reading: PressureReading| (reading.stalled_us, reading.stalled_scope);
    machine.file("proc/pressure/memory", some(100)).file("sys/fs/cgroup/app/memory.pressure", some(5));
    assert_eq!(stalled(machine.source().read()), (Some(100), StallScope::Machine), "the topmost group");
    machine.file("sys/fs/cgroup/app/cgroup.type", "domain\n");
    let mut source = machine.source();
    assert_eq!(stalled(source.read()), (Some(5), StallScope::Own));
    machine.file("sys/fs/cgroup/app/memory.pressure", some(6));
    assert_eq!(stalled(source.read()), (Some(6), StallScope::Own));
    machine.file("sys/fs/cgroup/app/memory.pressure", "");
    assert_eq!(stalled(machine.source().read()), (Some(100), StallScope::Machine), "switched off");
}

#[test]
fn a_process_that_is_moved_finds_its_new_group() {
    let machine = Machine::with_a_process("0::/one\n", V2_MOUNT);
    machine.group("sys/fs/cgroup/one", 4 * GIB, "max\n", GIB, 0);
    machine.group("sys/fs/cgroup/two", 2 * GIB, "max\n", GIB, 0);
    let mut source = machine.source();
    assert_eq!(room(&source.read()), (Some(3 * GIB), 0, Some(4 * GIB)));
    machine.file("proc/self/cgroup", "0::/two\n");
    assert_eq!(room(&source.read()), (Some(GIB), 0, Some(2 * GIB)));
}

#[test]
fn the_counters_of_many_processors_are_less_exact() {
    let machine = Machine::with_a_process("", "");
    let page = coldpress_memory::sys::page_size() as u64;
    for (online, pages) in [("0-1\n", 2 * 64), ("0-63\n", 64 * 128), ("", 64)] {
        machine.file("sys/devices/system/cpu/online", online);
        assert_eq!(machine.source().counter_error(), Bytes(pages * page), "{online:?}");
    }
}

#[test]
fn this_machine_answers_quickly_and_sees_memory_that_is_taken() {
    let mut source = PressureSource::new();
    let before = source.read();
    assert!(before.machine_total > Bytes::from_mib(64) && before.machine_available <= before.machine_total);
    assert!(before.own.anon > Bytes::ZERO);
    let taken = std::hint::black_box(vec![1_u8; 64 << 20]);
    let after = source.read();
    assert!(after.own.anon >= before.own.anon.saturating_add(Bytes::from_mib(60)), "{} bytes", taken.len());
    let start = std::time::Instant::now();
    for _ in 0..50 {
        source.read();
    }
    // A second has fifty looks; a hundredth of it is meant, ten times that is allowed to a busy machine.
    let elapsed = start.elapsed();
    println!("{:.0} microseconds per look", elapsed.as_micros() as f64 / 50.0);
    assert!(elapsed.as_millis() < 100, "{elapsed:?} for fifty looks");
}
