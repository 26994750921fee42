//! A panic that loses a read on its way comes out of the visit; closing the visit does not wait for that read for ever.
//!
//! What could go wrong: the drop of the visit, which waits for every read, runs while the panic unwinds and finds nothing in
//! flight and one record still awaited. The process would then hang instead of saying what is broken.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::time::Duration;

use coldpress_experts::reader::{Completion, PreadPool, ReadRequest};
use coldpress_experts::{ExpertReader, ExpertStore, ReaderChoice, StoreConfig};
use coldpress_memory::Ledger;
use coldpress_testkit::{ExpertSource, SourceShape};
use coldpress_workers::Workers;

/// Panics once, with the first completions in hand.
struct LosesOne {
    reader: PreadPool,
    lost: bool,
}

impl ExpertReader for LosesOne {
    fn name(&self) -> &'static str {
        "loses one"
    }

    fn capacity(&self) -> usize {
        self.reader.capacity()
    }

    fn in_flight(&self) -> usize {
        self.reader.in_flight()
    }

    fn submit(&mut self, requests: &mut Vec<ReadRequest>) -> io::Result<()> {
        self.reader.submit(requests)
    }

    fn reap(&mut self, wait: bool, completions: &mut Vec<Completion>) -> io::Result<()> {
        self.reader.reap(wait, completions)?;
        if !self.lost && !completions.is_empty() {
            self.lost = true;
            completions.clear();
            panic!("a read was lost");
        }
        Ok(())
    }
}

#[test]
fn with_its_message_and_all_memory() {
    let (sender, ended) = mpsc::channel();
    std::thread::spawn(move || {
        let folder = tempfile::tempdir().expect("a folder");
        let source = ExpertSource::create(folder.path(), &SourceShape::default());
        let ledger = Ledger::unlimited();
        let reader = LosesOne { reader: PreadPool::new(2, 12).expect("threads"), lost: false };
        let config = StoreConfig {
            reader: ReaderChoice::Custom(Box::new(reader)),
            ledger: ledger.clone(),
            ..source.store_config(8)
        };
        Workers::new(1).enter(|team| {
            let mut store = ExpertStore::open(config).expect("opens");
            let visited = catch_unwind(AssertUnwindSafe(|| {
                let mut visit = store.begin(0, &[0, 1, 2]).expect("begins");
                while visit.next_ready(team).expect("reads").is_some() {}
            }));
            let panic = visited.expect_err("the reader panics");
            assert_eq!(panic.downcast_ref::<&str>(), Some(&"a read was lost"));
        });
        sender.send(ledger.snapshot().used.0).expect("the test waits");
    });
    let used = ended.recv_timeout(Duration::from_secs(20)).expect("the visit ends");
    assert_eq!(used, 0, "all memory came back");
}
