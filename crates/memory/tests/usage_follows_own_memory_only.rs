//! A guard that counts the page cache as its own shrinks to nothing, and one that misses anonymous memory never
//! acts. The figures must follow memory this process takes and gives back, and must not follow a file it only reads.

use std::fs;

use coldpress_memory::{Buffer, Bytes, Ledger, MemoryWatch, Purpose};

const SIZE: Bytes = Bytes::from_mib(64);
/// Other tests of this process, counters that the kernel batches per thread.
const SLACK: Bytes = Bytes::from_mib(8);

#[test]
fn anonymous_memory_counts_and_file_reads_do_not() {
    let watch = MemoryWatch::new();
    let anon = || watch.read().expect("figures").process.anon;
    let ledger = Ledger::unlimited();
    let before = anon();

    let mut buffer = Buffer::new(&ledger, Purpose::ExpertSlots, SIZE).expect("memory");
    assert!(anon() < before.saturating_add(SLACK), "untouched memory takes nothing");
    buffer.as_bytes_mut().fill(1);
    let filled = anon();
    assert!(filled.saturating_add(SLACK) > before.saturating_add(SIZE), "{before} to {filled}");
    assert!(watch.read().expect("figures").process.peak_rss >= SIZE);

    buffer.discard(0..buffer.len()).expect("own pages");
    assert!(anon() < before.saturating_add(SLACK), "discarded memory is given back at once");
    buffer.as_bytes_mut().fill(1);
    drop(buffer);
    assert!(anon() < before.saturating_add(SLACK), "dropped memory is given back at once");

    let folder = tempfile::tempdir().expect("temporary folder");
    let path = folder.path().join("data");
    fs::write(&path, vec![1; SIZE.0 as usize]).expect("file");
    std::io::copy(&mut fs::File::open(&path).expect("file"), &mut std::io::sink()).expect("read");
    assert!(anon() < before.saturating_add(SLACK), "reading a file takes nothing");
}
