//! Where direct reads are refused the fallback is decided at open, reported once, and gives the same bytes. A file system in
//! memory (no device below) and a file that cannot be opened for direct reads are tried with every reader.

use std::path::Path;

use coldpress_experts::reader::{Finished, ReadQueue, ReadRequest, open_reader};
use coldpress_experts::slots::SlotMemory;
use coldpress_experts::{ExpertStore, ReadFile, ReaderChoice, StoreConfig};
use coldpress_memory::{Ledger, Purpose};
use coldpress_testkit::{ExpertSource, SourceShape, visit_records};
use coldpress_workers::Workers;

#[test]
fn a_file_system_in_memory_gives_the_same_records() {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else {
        println!("skipped, /dev/shm is not writable");
        return;
    };
    let source = ExpertSource::create(folder.path(), &SourceShape::default());
    let expected = source.expected_records();
    let any_buffered = source.files.iter().any(|file| !ReadFile::open(&file.path).unwrap().io().is_direct());
    Workers::new(2).enter(|team| {
        for reader in [ReaderChoice::Auto, ReaderChoice::Pread] {
            let mut store = ExpertStore::open(StoreConfig { reader, ..source.store_config(4) }).unwrap();
            let notices = store.notices().iter().filter(|notice| notice.contains("no direct reads")).count();
            assert_eq!(notices > 0, any_buffered, "{:?}", store.notices());
            for (key, record) in &expected {
                let records = visit_records(&mut store, team, key.layer as usize, &[key.expert]).unwrap();
                assert!(records[&key.expert] == *record);
            }
        }
    });
}

#[test]
fn a_refusal_is_a_reason_and_not_an_error() {
    // The kernel refuses O_DIRECT for files of procfs.
    let path = Path::new("/proc/cpuinfo");
    let wanted = std::fs::read(path).unwrap()[..64].to_vec();
    let file = ReadFile::open(path).expect("opened all the same");
    assert!(!file.io().is_direct());
    for reader in [ReaderChoice::Auto, ReaderChoice::Pread] {
        let (reader, _) = open_reader(reader, 1).unwrap();
        let mut queue = ReadQueue::new(reader, 1);
        let memory = SlotMemory::carve(&Ledger::unlimited(), Purpose::ReadRing, &[4096]).unwrap().remove(0);
        let request = ReadRequest {
            ticket: 0,
            file: file.clone(),
            offset: 0,
            length: 4096,
            needed: 64,
            filled: 0,
            memory,
        };
        queue.push(request);
        let mut finished = Vec::new();
        queue.reap(true, &mut finished).unwrap();
        let Finished { request, result } = finished.remove(0);
        result.expect("read");
        assert_eq!(request.memory[..64], wanted);
    }
}
