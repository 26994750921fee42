//! Memory given to a read stays alive and untouched until the read is over: when a visit is dropped, when the caller panics,
//! when the whole store is dropped, and when the reader breaks down and never gives it back.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use coldpress_experts::reader::{Completion, ExpertReader, ReadRequest};
use coldpress_experts::{ExpertKey, ExpertStore, ReaderChoice, StoreConfig};
use coldpress_memory::{Ledger, Purpose};
use coldpress_testkit::{ExpertSource, SourceShape, visit_records};
use coldpress_workers::Workers;

/// Ends reads only when somebody waits. With `broken` set it never does, and its requests lie in `hostages`.
struct Held {
    hostages: Arc<Mutex<Vec<ReadRequest>>>,
    broken: bool,
}

impl ExpertReader for Held {
    fn name(&self) -> &'static str {
        "held"
    }

    fn capacity(&self) -> usize {
        24
    }

    fn in_flight(&self) -> usize {
        self.hostages.lock().unwrap().len()
    }

    fn submit(&mut self, requests: &mut Vec<ReadRequest>) -> io::Result<()> {
        self.hostages.lock().unwrap().append(requests);
        Ok(())
    }

    fn reap(&mut self, wait: bool, completions: &mut Vec<Completion>) -> io::Result<()> {
        if self.broken {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if wait && let Some(mut request) = self.hostages.lock().unwrap().pop() {
            let result = request.read_once();
            completions.push(Completion { request, result });
        }
        Ok(())
    }
}

fn store(
    source: &ExpertSource,
    ledger: &Ledger,
    broken: bool,
) -> (ExpertStore, Arc<Mutex<Vec<ReadRequest>>>) {
    let hostages = Arc::new(Mutex::new(Vec::new()));
    let reader = ReaderChoice::Custom(Box::new(Held { hostages: Arc::clone(&hostages), broken }));
    let config = StoreConfig { reader, ledger: ledger.clone(), ..source.store_config(6) };
    (ExpertStore::open(config).unwrap(), hostages)
}

#[test]
fn dropping_a_visit_waits_for_its_reads() {
    let folder = tempfile::tempdir().unwrap();
    let source = ExpertSource::create(folder.path(), &SourceShape::default());
    let expected = source.expected_records();
    let ledger = Ledger::unlimited();
    let (mut store, hostages) = store(&source, &ledger, false);
    Workers::new(1).enter(|team| {
        for round in 0..10 {
            let visit = store.begin(round % 3, &[0, 1, 2, 3, 4, 5, 6, 7]).unwrap();
            assert!(!hostages.lock().unwrap().is_empty(), "reads are in flight");
            drop(visit);
            assert!(hostages.lock().unwrap().is_empty(), "dropping the visit waited for them");
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                let mut visit = store.begin(round % 3, &[0, 1, 2, 3, 4, 5, 6, 7]).unwrap();
                let ready = visit.next_ready(team).unwrap().unwrap();
                panic!("the caller fails with {} records in hand", ready.len());
            }));
            assert!(panicked.is_err() && hostages.lock().unwrap().is_empty());
            for (expert, record) in visit_records(&mut store, team, round % 3, &[7, 2, 5]).unwrap() {
                assert!(record == expected[&ExpertKey { layer: (round % 3) as u32, expert }]);
            }
        }
    });
    // A visit that is leaked is closed by the next one.
    std::mem::forget(store.begin(0, &[0, 1, 2]).unwrap());
    drop(store.begin(1, &[3]).unwrap());
    assert!(hostages.lock().unwrap().is_empty());
}

#[test]
fn memory_of_a_read_that_never_ends_is_never_freed() {
    let folder = tempfile::tempdir().unwrap();
    let source = ExpertSource::create(folder.path(), &SourceShape::default());
    let ledger = Ledger::unlimited();
    let (mut store, hostages) = store(&source, &ledger, true);
    drop(store.begin(0, &[0, 1, 2]).unwrap());
    let message = store.begin(1, &[4]).err().expect("the reader is broken").to_string();
    assert!(message.contains("held"), "{message}");
    drop(store);
    let ring = ledger.used_for(Purpose::ReadRing);
    assert!(ring.0 > 0, "the ring outlives the store while reads are out");
    // Whoever still writes there writes into live memory.
    hostages.lock().unwrap().iter_mut().for_each(|request| request.memory.fill(0xff));
    hostages.lock().unwrap().clear();
    assert_eq!(ledger.used().0, 0, "and goes with the last read");
}

#[test]
fn real_readers_are_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let source = ExpertSource::create(folder.path(), &SourceShape::with_record_bytes(2, 16, 1 << 20));
    let expected = source.expected_records();
    Workers::new(1).enter(|team| {
        for reader in [ReaderChoice::Auto, ReaderChoice::Pread] {
            let ledger = Ledger::unlimited();
            let config = StoreConfig { reader, ledger: ledger.clone(), ..source.store_config(8) };
            let mut store = ExpertStore::open(config).unwrap();
            for round in 0..20 {
                let experts: Vec<u32> = (round % 8..16).collect();
                drop(store.begin(0, &experts).unwrap());
                for (expert, record) in visit_records(&mut store, team, 1, &[round % 16]).unwrap() {
                    assert!(record == expected[&ExpertKey { layer: 1, expert }]);
                }
            }
            std::mem::forget(store.begin(0, &[9, 10, 11]).unwrap());
            drop(store);
            assert_eq!(ledger.used().0, 0, "all memory came back, so no read was left");
        }
    });
}
