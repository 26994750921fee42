//! Each thing that hinders a run is found by the check made for it, with a fix, and nothing else is.
//!
//! What could go wrong: a check that never fires, one that fires on a sound machine, a finding without a way out, a machine
//! that cannot run anything and is called ready.

use coldpress::{
    Bytes, Check, CheckInput, DirectIo, MachineFacts, ModelCheck, Place, Platform, ReaderReport,
    StorageFacts, StorageKind, Swap, SystemFacts, Verdict, judge,
};

const GIB: u64 = 1 << 30;

/// A laptop with nothing wrong.
fn sound() -> CheckInput {
    CheckInput {
        platform: Platform::Linux,
        memory: MachineFacts {
            physical: Bytes(16 * GIB),
            available: Bytes(12 * GIB),
            cgroup_limit: None,
            cgroup_current: None,
            address_space_limit: None,
            address_space_left: None,
            data_left: None,
            usable: Bytes(16 * GIB),
            cpu_count: 8,
            page_size: 4096,
        },
        system: SystemFacts {
            swap: Some(Swap { total: Bytes(4 * GIB), used: Bytes(0) }),
            memory_nodes: 1,
            locked_memory_limit: Some(Bytes(64 << 10)),
            open_files_limit: Some(1024),
            memory_pressure_percent: Some(0.0),
            ..SystemFacts::default()
        },
        isa: "avx2",
        isa_forced: false,
        reader: ReaderReport { chosen: "io_uring", io_uring: true, notice: None },
        place: Place {
            folder: "/home/x/.cache/coldpress".into(),
            storage: StorageFacts {
                file_system: "ext4".to_owned(),
                device: Some("nvme0n1".to_owned()),
                kind: StorageKind::SolidState,
                read_ahead: Some(Bytes(128 << 10)),
            },
            free: Some(Bytes(500 * GIB)),
            size: Some(Bytes(1000 * GIB)),
            direct: Some(DirectIo::Direct { align: 512 }),
        },
        model: Some(ModelCheck::Runs("streamed within 8 GiB".to_owned())),
    }
}

/// The findings that are not `Ok`.
fn findings(input: &CheckInput) -> Vec<Check> {
    judge(input).into_iter().filter(|check| check.verdict != Verdict::Ok).collect()
}

#[test]
fn a_sound_machine_has_no_findings() {
    assert_eq!(findings(&sound()), []);
    let no_model = CheckInput { model: None, ..sound() };
    assert_eq!(judge(&no_model).len() + 1, judge(&sound()).len());
}

type Change = fn(&mut CheckInput);

#[test]
fn each_fault_is_found_by_its_own_check() {
    let faults: [(&str, Verdict, &str, Change); 23] = [
        ("memory", Verdict::Block, "64.0 MiB", |m| m.memory.usable = Bytes(32 << 20)),
        ("memory", Verdict::Warn, "--budget", |m| m.memory.available = Bytes(GIB)),
        ("control group", Verdict::Hint, "MemoryMax", |m| m.memory.cgroup_limit = Some(Bytes(2 * GIB))),
        ("address space", Verdict::Warn, "ulimit -v", |m| {
            m.memory.address_space_limit = Some(Bytes(2 * GIB))
        }),
        ("swap", Verdict::Warn, "--budget", |m| {
            m.system.swap = Some(Swap { total: Bytes(4 * GIB), used: Bytes(3 * GIB) });
        }),
        ("locked memory", Verdict::Hint, "ulimit -l", |m| m.system.locked_memory_limit = Some(Bytes(4096))),
        ("open files", Verdict::Block, "ulimit -n", |m| m.system.open_files_limit = Some(16)),
        ("open files", Verdict::Hint, "ulimit -n", |m| m.system.open_files_limit = Some(100)),
        ("disk", Verdict::Warn, "solid-state", |m| m.place.storage.kind = StorageKind::Rotating),
        ("disk", Verdict::Warn, "solid-state", |m| m.place.storage.kind = StorageKind::Network),
        ("disk", Verdict::Warn, "twice", |m| m.place.storage.kind = StorageKind::Memory),
        ("space", Verdict::Warn, "COLDPRESS_PRESTACK_CACHE_DIR", |m| m.place.free = Some(Bytes(GIB))),
        ("direct reads", Verdict::Warn, "page cache", |m| {
            m.place.direct = Some(DirectIo::Buffered { reason: "refused".to_owned() });
        }),
        ("direct reads", Verdict::Hint, "folder", |m| m.place.direct = None),
        ("reader", Verdict::Hint, "seccomp", |m| {
            m.reader = ReaderReport { chosen: "pread", io_uring: false, notice: Some("refused".to_owned()) };
        }),
        ("reader", Verdict::Hint, "sysctl -w kernel.io_uring_disabled=0", |m| {
            m.reader = ReaderReport { chosen: "pread", io_uring: false, notice: None };
            m.system.io_uring_disabled = Some(2);
        }),
        ("instruction set", Verdict::Warn, "AVX2", |m| m.isa = "scalar"),
        ("instruction set", Verdict::Hint, "COLDPRESS_ISA", |m| (m.isa, m.isa_forced) = ("scalar", true)),
        ("memory pressure", Verdict::Warn, "--budget", |m| m.system.memory_pressure_percent = Some(40.0)),
        ("overcommit", Verdict::Warn, "overcommit_memory=0", |m| m.system.overcommit_refused = true),
        ("memory nodes", Verdict::Hint, "numactl", |m| m.system.memory_nodes = 2),
        ("read-ahead", Verdict::Hint, "blockdev --setra", |m| {
            m.place.storage.read_ahead = Some(Bytes(8 << 20))
        }),
        ("model", Verdict::Block, "plan", |m| m.model = Some(ModelCheck::Refused("too large".to_owned()))),
    ];
    for (name, verdict, fix, change) in faults {
        let mut machine = sound();
        change(&mut machine);
        let found = findings(&machine);
        assert_eq!(found.len(), 1, "{name}: {found:?}");
        assert_eq!((found[0].name, found[0].verdict), (name, verdict), "{found:?}");
        assert!(found[0].fix.as_deref().is_some_and(|text| text.contains(fix)), "{found:?}");
        assert!(!found[0].found.contains('\n'), "one line per check: {found:?}");
    }
}

#[test]
fn a_half_downloaded_model_blocks_and_a_mac_is_asked_about_its_indexers() {
    let mut machine = sound();
    machine.model = Some(ModelCheck::Incomplete("2 GiB of it are not there yet".to_owned()));
    assert_eq!(findings(&machine)[0].verdict, Verdict::Block);
    let mut mac = CheckInput { platform: Platform::MacOs, ..sound() };
    mac.reader = ReaderReport { chosen: "pread", io_uring: false, notice: None };
    let found = findings(&mac);
    assert_eq!((found.len(), found[0].name), (1, "backup, index"));
    assert!(found[0].fix.as_deref().is_some_and(|fix| fix.contains("tmutil addexclusion")), "{found:?}");
    mac.place.folder = "/Users/x/Library/Caches/coldpress".into();
    assert_eq!(findings(&mac), []);
}
