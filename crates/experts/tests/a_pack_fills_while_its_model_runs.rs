//! A pack that fills while its model runs gives the right records and nothing else: after kills at random moments, on a full
//! disk, with flipped bytes, foreign or hostile files, beside a second process. What it cannot give comes from the model
//! files, and a finished one equals the pack that `coldpress pack` writes, byte for byte.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use coldpress_experts::pack::{PackLayout, partial_path, write_pack};
use coldpress_experts::{ExpertKey, ExpertStatistics, ExpertStore, Fingerprint, LazyConfig};
use coldpress_memory::{Ledger, sys};
use coldpress_testkit::{ExpertSource, Random, SourceShape, visit_records};
use coldpress_workers::Workers;

const CHILD_FOLDER: &str = "COLDPRESS_TEST_PACK_FOLDER";
const PATIENCE: Duration = Duration::from_secs(30);

/// A model, the records it must give and the pack it must become.
struct Case {
    source: ExpertSource,
    records: BTreeMap<ExpertKey, Vec<u8>>,
    destination: PathBuf,
    wanted: Vec<u8>,
    _folder: tempfile::TempDir,
}

fn shape() -> SourceShape {
    SourceShape { experts: 16, ..SourceShape::default() }
}

impl Case {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let source = ExpertSource::create(folder.path(), &shape());
        let whole = folder.path().join("whole.cpack");
        let ledger = Ledger::unlimited();
        let packed = Workers::new(1).enter(|team| {
            write_pack(source.pack_config(&whole, &ledger), team, &AtomicBool::new(false), |_, _| {})
        });
        packed.expect("packs");
        let wanted = std::fs::read(&whole).unwrap();
        let records = source.expected_records();
        Self { records, destination: destination(folder.path()), wanted, source, _folder: folder }
    }

    fn layout(&self) -> PackLayout {
        PackLayout::new(&self.source.geometry())
    }

    fn open(&self) -> ExpertStore {
        open(&self.source, config(&self.source, &self.destination))
    }

    /// Opens a store, visits every expert and drops the store.
    fn run(&self) -> ExpertStatistics {
        let mut store = self.open();
        self.visit_all(&mut store);
        store.statistics()
    }

    fn visit_all(&self, store: &mut ExpertStore) {
        visit_all(&self.source, store, |key, record| {
            assert!(record == self.records[&key], "the record of {key} is another one");
        });
    }

    /// Visits everything again and again until the pack has its name.
    fn fill(&self) -> ExpertStatistics {
        let mut store = self.open();
        let started = Instant::now();
        while !self.destination.exists() {
            self.visit_all(&mut store);
            assert!(started.elapsed() < PATIENCE, "never finished: {:?}", store.statistics());
        }
        let statistics = store.statistics();
        drop(store);
        assert!(std::fs::read(&self.destination).unwrap() == self.wanted, "a finished pack is the pack");
        assert!(!partial_path(&self.destination).exists());
        statistics
    }

    /// Some records written, not all.
    fn fill_in_part(&self) -> u64 {
        let mut store = self.open();
        let started = Instant::now();
        while store.statistics().lazy_writes < 12 {
            let experts: Vec<u32> = (0..8).collect();
            Workers::new(1).enter(|team| visit_records(&mut store, team, 0, &experts)).unwrap();
            Workers::new(1).enter(|team| visit_records(&mut store, team, 2, &experts)).unwrap();
            assert!(started.elapsed() < PATIENCE, "nothing is written: {:?}", store.statistics());
        }
        store.statistics().lazy_writes
    }
}

fn destination(folder: &Path) -> PathBuf {
    folder.join("pack.cpack")
}

/// As fast as it goes, whatever the disk has free: tests must not depend on the machine.
fn config(source: &ExpertSource, destination: &Path) -> LazyConfig {
    let fingerprint = Fingerprint::of(&source.files, &source.layers).unwrap();
    let config = LazyConfig::new(destination.to_owned(), fingerprint);
    LazyConfig { bytes_per_second: 10 << 30, free_disk_share: 0.0, ..config }
}

fn open(source: &ExpertSource, lazy: LazyConfig) -> ExpertStore {
    let mut config = source.store_config(3);
    config.lazy = Some(lazy);
    ExpertStore::open(config).expect("opens whatever the pack is")
}

fn visit_all(source: &ExpertSource, store: &mut ExpertStore, mut check: impl FnMut(ExpertKey, &[u8])) {
    for layer in 0..source.layers.len() {
        let experts: Vec<u32> = (0..source.layers[layer].expert_count as u32).collect();
        let found = Workers::new(1).enter(|team| visit_records(store, team, layer, &experts)).expect("reads");
        found.iter().for_each(|(expert, record)| {
            check(ExpertKey { layer: layer as u32, expert: *expert }, record);
        });
    }
}

#[test]
fn it_becomes_the_pack() {
    let case = Case::new();
    let statistics = case.fill();
    assert_eq!(statistics.lazy_writes, 48, "each record is written once");
    assert_eq!(statistics.records_read_again, 0);
}

#[test]
fn the_next_start_reads_what_is_there_and_goes_on() {
    let case = Case::new();
    let written = case.fill_in_part();
    assert!(!case.destination.exists());
    let second = case.run();
    assert!(second.lazy_reads >= written, "{written} records were there: {second:?}");
    assert_eq!(second.records_read_again, 0);
    let third = case.fill();
    assert!(third.lazy_writes < 48, "{third:?}");
}

#[test]
fn packing_goes_on_from_what_is_there() {
    let case = Case::new();
    let written = case.fill_in_part() as usize;
    let ledger = Ledger::unlimited();
    let config = case.source.pack_config(&case.destination, &ledger);
    let report =
        Workers::new(1).enter(|team| write_pack(config, team, &AtomicBool::new(false), |_, _| {})).unwrap();
    assert!(report.records_kept >= written && report.records_written > 0, "{report:?}");
    assert!(std::fs::read(&case.destination).unwrap() == case.wanted);
}

#[test]
fn a_flipped_byte_is_read_from_the_model_and_written_again() {
    let case = Case::new();
    case.fill_in_part();
    let partial =
        std::fs::File::options().read(true).write(true).open(partial_path(&case.destination)).unwrap();
    let mut random = Random::new(5);
    let mut flipped = 0;
    for (key, record) in case.records.iter().filter(|(key, _)| key.layer != 1 && key.expert < 8) {
        let at = case.layout().offset(*key) + random.below(record.len()) as u64;
        let mut byte = [0];
        partial.read_exact_at(&mut byte, at).unwrap();
        partial.write_all_at(&[byte[0] ^ (1 << random.below(8))], at).unwrap();
        flipped += 1;
    }
    partial.sync_all().unwrap();
    drop(partial);
    let mut store = case.open();
    case.visit_all(&mut store);
    let statistics = store.statistics();
    assert!(statistics.records_read_again >= 12, "{flipped} flipped: {statistics:?}");
    drop(store);
    case.fill();
}

/// Every byte says "written", nothing is; a header of another model; garbage; a finished header over holes; cut short.
#[test]
fn hostile_and_stale_files_give_nothing() {
    let case = Case::new();
    let file_bytes = case.layout().file_bytes() as usize;
    let header = case.layout().header_bytes();
    let mut random = Random::new(6);
    for kind in 0..6 {
        case.fill_in_part();
        let path = partial_path(&case.destination);
        let mut bytes = std::fs::read(&path).unwrap();
        match kind {
            0 => {
                bytes[header..file_bytes].fill(0);
                bytes[file_bytes..].fill(1);
            }
            1 => bytes[60] ^= 1,
            2 => bytes.iter_mut().for_each(|byte| *byte = random.below(256) as u8),
            3 => {
                bytes[..header].copy_from_slice(&case.wanted[..header]);
                bytes.truncate(file_bytes);
            }
            4 => bytes.truncate(header + random.below(file_bytes - header)),
            _ => {
                // Records of other experts, each whole.
                let length = case.records.values().next().unwrap().len();
                bytes.copy_within(header..header + length, header + length);
                bytes[file_bytes..].fill(1);
            }
        }
        std::fs::write(&path, bytes).unwrap();
        case.run();
        case.fill();
        std::fs::remove_file(&case.destination).unwrap();
    }
}

#[test]
fn writing_leaves_no_page_cache() {
    let case = Case::new();
    if sys::device_facts(case.destination.parent().unwrap()).unwrap().is_memory {
        println!("SKIPPED: files of this folder live in memory");
        return;
    }
    let written = case.fill_in_part();
    let partial = std::fs::File::open(partial_path(&case.destination)).unwrap();
    let records = case.layout().header_bytes() as u64..case.layout().file_bytes();
    let cached = sys::page_cache_bytes_of(&partial, records).unwrap();
    assert!(cached.0 < 64 << 10, "{written} records were written, {cached} of them stayed in the page cache");
}

#[test]
fn a_second_process_reads_and_does_not_write() {
    let case = Case::new();
    case.fill_in_part();
    let mut first = case.open();
    let mut second = case.open();
    case.visit_all(&mut second);
    assert!(second.statistics().lazy_reads > 0);
    assert_eq!(second.statistics().lazy_writes, 0);
    assert!(
        second.notices().iter().any(|notice| notice.contains("not added to it")),
        "{:?}",
        second.notices()
    );
    let started = Instant::now();
    while !case.destination.exists() {
        case.visit_all(&mut first);
        case.visit_all(&mut second);
        assert!(started.elapsed() < PATIENCE);
    }
    assert!(std::fs::read(&case.destination).unwrap() == case.wanted);
}

#[test]
fn a_model_that_changes_is_not_packed() {
    let case = Case::new();
    let mut store = case.open();
    let file = &case.source.files[0].path;
    std::fs::File::options().append(true).open(file).unwrap().set_len(case.source.files[0].len + 1).unwrap();
    for _ in 0..3 {
        case.visit_all(&mut store);
    }
    assert_eq!(store.statistics().lazy_writes, 0);
}

#[test]
fn a_disk_that_is_too_full_is_left_alone() {
    let case = Case::new();
    let written = case.fill_in_part();
    let config = LazyConfig { free_disk_share: 1.0, ..config(&case.source, &case.destination) };
    let mut store = open(&case.source, config);
    case.visit_all(&mut store);
    assert_eq!(store.statistics().lazy_writes, 0);
    assert!(store.statistics().lazy_reads >= written, "what is there is used");
}

/// Not a test by itself: the process that the tests start and kill. Visits everything until the pack is finished.
#[test]
#[ignore = "started by the other tests"]
fn child_that_fills() {
    let folder = PathBuf::from(std::env::var_os(CHILD_FOLDER).expect("the parent names the folder"));
    let source = ExpertSource::create(&folder, &shape());
    // About a tenth of a second from start to end, so that kills come in between.
    let config = LazyConfig { bytes_per_second: 40 << 20, ..config(&source, &destination(&folder)) };
    let mut store = open(&source, config);
    let started = Instant::now();
    while !destination(&folder).exists() && started.elapsed() < PATIENCE {
        visit_all(&source, &mut store, |_, _| {});
    }
}

#[test]
fn killed_twenty_times_and_never_wrong() {
    let case = Case::new();
    let mut random = Random::new(u64::from(std::process::id()));
    let (mut kills, mut used) = (0, 0);
    while kills < 20 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_that_fills", "--ignored"])
            .env(CHILD_FOLDER, case.destination.parent().unwrap())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let started = Instant::now();
        while !partial_path(&case.destination).exists()
            && !case.destination.exists()
            && started.elapsed() < PATIENCE
        {
            std::thread::sleep(Duration::from_micros(50));
        }
        std::thread::sleep(Duration::from_micros(random.below(120_000) as u64));
        child.kill().unwrap();
        child.wait().unwrap();
        kills += 1;
        if case.destination.exists() {
            assert!(std::fs::read(&case.destination).unwrap() == case.wanted, "visible means complete");
            std::fs::remove_file(&case.destination).unwrap();
            continue;
        }
        if random.below(2) == 0 {
            continue;
        }
        // Only reads, so that the next child goes on with what this one left.
        let config = LazyConfig { staged_records: 0, ..config(&case.source, &case.destination) };
        let mut store = open(&case.source, config);
        case.visit_all(&mut store);
        used += usize::from(store.statistics().lazy_reads > 0);
    }
    assert!(used > 2, "no kill left anything to use");
    if !case.destination.exists() {
        case.fill();
    }
}

/// A file system of a megabyte in a name space of its own, where the system allows such a thing.
#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_ends_the_writing_and_nothing_else() {
    let mount = tempfile::tempdir().unwrap();
    let script = "mount -t tmpfs -o size=1m none \"$1\" && COLDPRESS_TEST_FULL_DISK=\"$1\" \"$2\" --exact --ignored child_on_a_small_disk";
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"])
        .arg(mount.path())
        .arg(std::env::current_exe().unwrap())
        .output();
    match output {
        Ok(output) if output.status.success() => {
            assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "the child ran");
        }
        Ok(output) if String::from_utf8_lossy(&output.stdout).contains("running 1 test") => {
            panic!("{}", String::from_utf8_lossy(&output.stdout));
        }
        _ => println!("SKIPPED: no file system can be mounted here"),
    }
}

#[test]
#[ignore = "started by another test"]
fn child_on_a_small_disk() {
    let mount =
        PathBuf::from(std::env::var_os("COLDPRESS_TEST_FULL_DISK").expect("the parent names the folder"));
    let mut case = Case::new();
    assert!(case.wanted.len() > 2 << 20, "the pack does not fit");
    case.destination = destination(&mount);
    for start in 0..3 {
        let mut store = case.open();
        for _ in 0..4 {
            case.visit_all(&mut store);
        }
        let statistics = store.statistics();
        assert!(start > 0 || statistics.lazy_writes > 0, "{statistics:?}");
        assert!(start == 0 || statistics.lazy_reads > 0, "{statistics:?}");
        assert!(!case.destination.exists(), "not finished");
    }
}
