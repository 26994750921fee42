//! Reads that fill the page cache push out what the budget promised to leave alone. Direct reads must leave the cache
//! as it is, dropping must empty it, and a file system that refuses direct reads must lead to buffered ones with a reason.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use coldpress_memory::{Buffer, Bytes, Ledger, Purpose, sys};

const LEN: u64 = (4 << 20) + 100;

/// A file of known bytes, on the medium and out of the cache.
fn cold_file(path: &Path) -> File {
    let bytes: Vec<u8> = (0..LEN).map(|index| ((index * 31) >> 5) as u8).collect();
    fs::write(path, bytes).expect("write");
    let file = File::open(path).expect("open");
    sys::sync_file(&file).expect("sync");
    sys::sync_folder(path.parent().expect("in a folder")).expect("sync folder");
    sys::drop_page_cache(&file, 0..LEN).expect("drop");
    file
}

fn cached(file: &File) -> Bytes {
    sys::page_cache_bytes(file, u64::MAX).expect("cache figures")
}

#[test]
fn direct_reads_bring_the_right_bytes_and_leave_no_trace() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("temporary folder");
    let path = folder.path().join("data");
    let plain = cold_file(&path);
    let (direct, how) = sys::open_direct(&path).expect("open");
    if !how.is_direct() {
        println!("skipped, the file system of the target folder has no direct reads: {how:?}");
        return;
    }
    assert_eq!(cached(&plain), Bytes::ZERO, "the file could not be dropped from the cache");
    let align = u64::from(how.alignment());
    assert!(align.is_power_of_two() && (512..=65536).contains(&align), "{how:?}");
    let mut memory = Buffer::new(&Ledger::unlimited(), Purpose::ReadRing, Bytes(LEN.next_multiple_of(align)))
        .expect("memory");
    let read = direct.read_at(memory.as_bytes_mut(), 0).expect("direct read");
    assert_eq!(read as u64, LEN);
    assert_eq!(cached(&plain), Bytes::ZERO);

    let mut buffered = vec![0; LEN as usize];
    plain.read_exact_at(&mut buffered, 0).expect("buffered read");
    assert!(buffered == memory.as_bytes()[..LEN as usize]);
    assert!(cached(&plain).0 >= LEN);
    sys::drop_page_cache(&plain, 0..1 << 20).expect("drop a part");
    let rest = cached(&plain).0;
    assert!(rest >= LEN - (1 << 20) && rest <= LEN.next_multiple_of(4096) - (1 << 20), "{rest} left");
    sys::drop_page_cache(&plain, 0..LEN).expect("drop all");
    assert_eq!(cached(&plain), Bytes::ZERO);
}

#[test]
fn partly_covered_pages_stay() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("temporary folder");
    let path = folder.path().join("data");
    let plain = cold_file(&path);
    if !sys::open_direct(&path).expect("open").1.is_direct() {
        println!("skipped, the target folder is in memory");
        return;
    }
    let page = sys::page_size() as u64;
    let mut buffered = vec![0; LEN as usize];
    plain.read_exact_at(&mut buffered, 0).expect("buffered read");
    let full = cached(&plain).0;
    for range in [10 * page + 1..11 * page, 10 * page..11 * page - 1, 7..7] {
        sys::drop_page_cache(&plain, range.clone()).expect("advice");
        assert_eq!(cached(&plain).0, full, "{range:?} covers no whole page");
    }
    // The kernel may keep several pages as one, so the exact number that goes is its own choice.
    sys::drop_page_cache(&plain, (1 << 20) - 1..(3 << 20) + 1).expect("advice");
    assert!(cached(&plain).0 <= full - (1 << 20));
}

#[test]
fn a_refusing_file_system_is_read_buffered_with_a_reason() {
    // `/proc` files cannot be opened with O_DIRECT on any kernel.
    let (file, how) = sys::open_direct(Path::new("/proc/self/status")).expect("open");
    let sys::DirectIo::Buffered { reason } = &how else { panic!("{how:?}") };
    assert!(!reason.is_empty() && how.alignment() == 1);
    let mut start = [0; 4];
    file.read_exact_at(&mut start, 0).expect("buffered read");
    assert_eq!(&start, b"Name");
}

#[test]
fn small_empty_and_missing_files() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("temporary folder");
    for len in [0, 1, 4095, 4096] {
        let path = folder.path().join(len.to_string());
        fs::write(&path, vec![9; len]).expect("write");
        sys::open_direct(&path).expect("a short file is no error");
    }
    let error = sys::open_direct(&folder.path().join("missing")).expect_err("no such file").to_string();
    assert!(error.contains("missing") && error.starts_with("open"), "{error}");
    let free = sys::free_disk_space(folder.path()).expect("figures");
    assert!(free > Bytes::ZERO && free <= sys::disk_size(folder.path()).expect("figures"));
}
