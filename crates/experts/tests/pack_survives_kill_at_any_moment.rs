//! Packing is killed at random moments, many times, and continued: what is whole is kept, what is torn is written again, and
//! the result equals an uninterrupted pack byte for byte. A half-written pack is never visible under its final name.
//!
//! On a machine with other work a writer at full speed is often done before the kill comes, so every second round has one that
//! rests after each record, and rounds are repeated until enough kills came in the middle of writing.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use coldpress_experts::pack::{PackReport, partial_path, write_pack};
use coldpress_experts::{ExpertError, Fingerprint, PackFault, PackFile};
use coldpress_memory::Ledger;
use coldpress_testkit::{ExpertSource, Random, SourceShape};
use coldpress_workers::Workers;

const CHILD_FOLDER: &str = "COLDPRESS_TEST_PACK_FOLDER";
/// Microseconds that the child rests after each record.
const CHILD_REST: &str = "COLDPRESS_TEST_PACK_REST_US";
/// Kills at least.
const KILLS: usize = 25;
/// Rounds, at least, in which a kill left a part of the pack and the next writer wrote the rest.
const CONTINUED: usize = 4;
/// A machine that is too busy for this fails the test.
const TIME_MAX: Duration = Duration::from_secs(240);

fn shape() -> SourceShape {
    SourceShape::with_record_bytes(3, 32, 120_000)
}

fn pack(
    folder: &Path,
    cancel: &AtomicBool,
    progress: impl FnMut(u64, u64),
) -> Result<PackReport, ExpertError> {
    let source = ExpertSource::create(folder, &shape());
    let destination = folder.join("pack.cpack");
    let ledger = Ledger::unlimited();
    Workers::new(1)
        .enter(|team| write_pack(source.pack_config(&destination, &ledger), team, cancel, progress))
}

/// Not a test by itself: the process that the tests start and kill.
#[test]
#[ignore = "started by the other tests"]
fn child_that_packs() {
    let folder = std::env::var_os(CHILD_FOLDER).expect("the parent names the folder");
    let rest = std::env::var(CHILD_REST).ok().and_then(|us| us.parse().ok()).unwrap_or(0);
    let rest = |_, _| std::thread::sleep(Duration::from_micros(rest));
    pack(Path::new(&folder), &AtomicBool::new(false), rest).expect("packing succeeds unless killed");
}

fn start_child(folder: &Path, rest_us: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_packs", "--ignored"])
        .env(CHILD_FOLDER, folder)
        .env(CHILD_REST, rest_us.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn killed_twenty_five_times_and_still_the_same() {
    let whole = tempfile::tempdir().unwrap();
    let report = pack(whole.path(), &AtomicBool::new(false), |_, _| {}).unwrap();
    assert_eq!((report.records_written, report.records_kept), (96, 0));
    let wanted = std::fs::read(whole.path().join("pack.cpack")).unwrap();

    let mut random = Random::new(u64::from(std::process::id()));
    let (mut kills, mut continued, mut rounds) = (0, 0, 0_u64);
    let began = Instant::now();
    while (kills < KILLS || continued < CONTINUED) && began.elapsed() < TIME_MAX {
        rounds += 1;
        let folder = tempfile::tempdir().unwrap();
        let destination = folder.path().join("pack.cpack");
        ExpertSource::create(folder.path(), &shape());
        for _ in 0..1 + random.below(3) {
            let mut child = start_child(folder.path(), rounds % 2 * 2000);
            wait_for_length(&mut child, &destination, random.below(wanted.len() * 5 / 4));
            if !destination.exists() {
                std::thread::sleep(Duration::from_micros(random.below(2000) as u64));
            }
            child.kill().unwrap();
            child.wait().unwrap();
            kills += 1;
            if destination.exists() {
                assert!(std::fs::read(&destination).unwrap() == wanted, "visible means complete");
                break;
            }
        }
        let report = pack(folder.path(), &AtomicBool::new(false), |_, _| {}).unwrap();
        continued += usize::from(report.records_kept > 0 && report.records_written > 0);
        assert!(std::fs::read(&destination).unwrap() == wanted, "the same bytes as without a kill");
        assert!(!partial_path(&destination).exists());
    }
    assert!(
        kills >= KILLS && continued >= CONTINUED,
        "{kills} kills in {rounds} rounds, {continued} of them in the middle of writing"
    );
}

/// Returns when `length` bytes are written, the pack has its name, or the child has ended.
fn wait_for_length(child: &mut Child, destination: &Path, length: usize) {
    let partial = partial_path(destination);
    while child.try_wait().unwrap().is_none() && !destination.exists() {
        if std::fs::metadata(&partial).is_ok_and(|found| found.len() >= length as u64) {
            return;
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// What a power cut may leave: a file that is too short, pages that were never written, records written in part.
#[test]
fn lost_and_torn_writes_are_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let destination = folder.path().join("pack.cpack");
    pack(folder.path(), &AtomicBool::new(false), |_, _| {}).unwrap();
    let wanted = std::fs::read(&destination).unwrap();
    let mut random = Random::new(12);
    for _ in 0..12 {
        let mut left = wanted.clone();
        for _ in 0..1 + random.below(4) {
            let start = random.below(left.len());
            let end = left.len().min(start + 1 + random.below(300_000));
            left[start..end].fill([0, 0, 0x5a][random.below(3)]);
        }
        left.truncate(left.len() - random.below(2) * random.below(left.len()));
        std::fs::remove_file(&destination).unwrap();
        std::fs::write(partial_path(&destination), left).unwrap();
        let report = pack(folder.path(), &AtomicBool::new(false), |_, _| {}).unwrap();
        assert!(report.records_written > 0);
        assert!(std::fs::read(&destination).unwrap() == wanted);
    }
}

#[test]
fn cancelled_packs_continue_and_finished_ones_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let destination = folder.path().join("pack.cpack");
    let cancel = AtomicBool::new(false);
    let stop_at_half = |done: u64, total: u64| cancel.store(done * 2 > total, Ordering::Relaxed);
    let stopped = pack(folder.path(), &cancel, stop_at_half).expect_err("cancelled");
    assert!(matches!(stopped, ExpertError::Cancelled), "{stopped}");
    assert!(!destination.exists());
    let mut last = (0, 1);
    let report = pack(folder.path(), &AtomicBool::new(false), |done, total| last = (done, total)).unwrap();
    assert!(report.records_kept > 40 && report.records_written > 40, "{report:?}");
    assert_eq!(last.0, last.1, "progress ends at the total");
    let again = pack(folder.path(), &AtomicBool::new(false), |_, _| {}).unwrap();
    assert_eq!((again.records_written, again.records_kept), (0, 96));
    assert_eq!(std::fs::metadata(&destination).unwrap().len(), report.file_bytes);
}

#[test]
fn a_second_writer_is_turned_away() {
    let folder = tempfile::tempdir().unwrap();
    let source = ExpertSource::create(folder.path(), &shape());
    let mut second = None;
    let first = pack(folder.path(), &AtomicBool::new(false), |_, _| {
        // The second one shares no memory with the first, so it needs a team and a thread of its own.
        second.get_or_insert_with(|| {
            let folder = folder.path().to_owned();
            std::thread::spawn(move || pack(&folder, &AtomicBool::new(false), |_, _| {})).join().unwrap()
        });
    });
    first.expect("the first writer is not disturbed");
    let refused = second.unwrap().expect_err("the second is refused");
    assert!(matches!(&refused, ExpertError::Pack { fault: PackFault::Busy, .. }), "{refused}");
    assert!(refused.to_string().contains("pack.cpack.partial"), "{refused}");
    let fingerprint = Fingerprint::of(&source.files, &source.layers).unwrap();
    PackFile::open(&folder.path().join("pack.cpack"), &source.geometry(), &fingerprint).expect("a good pack");
}

#[test]
fn many_writers_at_once_leave_one_good_pack() {
    for _ in 0..4 {
        let folder = tempfile::tempdir().unwrap();
        let source = ExpertSource::create(folder.path(), &shape());
        let mut children: Vec<_> = (0..4).map(|_| start_child(folder.path(), 0)).collect();
        let succeeded = children
            .iter_mut()
            .filter_map(|child| child.wait().ok())
            .filter(|status| status.success())
            .count();
        assert!(succeeded >= 1);
        let fingerprint = Fingerprint::of(&source.files, &source.layers).unwrap();
        let path = folder.path().join("pack.cpack");
        PackFile::open(&path, &source.geometry(), &fingerprint).expect("a good pack");
        assert!(!partial_path(&path).exists());
    }
}
