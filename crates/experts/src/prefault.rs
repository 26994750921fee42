//! Finds memory for slots a little before reads need it.
//!
//! Fresh pages cost the system time: each is cleared before anyone sees it, two megabytes at a time with huge pages. Without
//! help that time is spent where records land, by the thread that computes. A thread of its own stays ahead of the slots in
//! use, while they wait for the disk, and sleeps otherwise. It goes no further than a fixed way ahead, so that a short prompt
//! does not make the system find all the memory of a large budget. Memory that is given back meanwhile is passed over.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use coldpress_memory::Buffer;
use coldpress_workers::start_thread;

/// Bytes that the thread stays ahead.
const AHEAD: usize = 64 << 20;
/// Bytes found between two looks at what is wanted.
const STEP: usize = 2 << 20;
/// The thread needs next to no stack.
const STACK_BYTES: usize = 64 << 10;

struct Shared {
    wanted: AtomicUsize,
    stop: AtomicBool,
}

/// See the module header.
pub(crate) struct Prefault {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    bytes: usize,
}

impl Prefault {
    /// Starts with the beginning of the first of `buffers`, which are filled in this order. Where the system gives no thread
    /// or has no such call, memory comes with its first touch.
    pub(crate) fn start(buffers: Vec<Weak<Buffer>>) -> Self {
        let length = |buffer: &Weak<Buffer>| buffer.upgrade().map_or(0, |buffer| buffer.len());
        let bytes = buffers.iter().map(length).sum();
        let shared = Arc::new(Shared { wanted: AtomicUsize::new(AHEAD), stop: AtomicBool::new(false) });
        let theirs = Arc::clone(&shared);
        let work = move || {
            let (mut done, mut buffers) = (0, buffers.into_iter());
            let mut current = buffers.next();
            let mut within = 0;
            while !theirs.stop.load(Ordering::Relaxed) {
                let Some(buffer) = &current else { return };
                if done >= theirs.wanted.load(Ordering::Acquire) {
                    std::thread::park();
                    continue;
                }
                let left = buffer.upgrade().map_or(0, |buffer| populate(&buffer, within));
                (done, within) = (done + left, within + left);
                if left == 0 {
                    (current, within) = (buffers.next(), 0);
                }
            }
        };
        let builder = std::thread::Builder::new().name("coldpress-memory".to_owned()).stack_size(STACK_BYTES);
        Self { shared, thread: start_thread(builder, work).ok(), bytes }
    }

    /// Slot `slot` of `count` is being filled: what follows will be needed soon.
    pub(crate) fn reached(&self, slot: usize, count: usize) {
        let Some(thread) = &self.thread else { return };
        let reached = (self.bytes / count.max(1)).saturating_mul(slot + 1);
        let wanted = reached.saturating_add(AHEAD);
        if self.shared.wanted.fetch_max(wanted, Ordering::AcqRel) < wanted {
            thread.thread().unpark();
        }
    }
}

/// Finds memory for the next step of `buffer` from `from` on. Returns how far it went: 0 at the end, or when the system does
/// not want to.
fn populate(buffer: &Buffer, from: usize) -> usize {
    let end = (from + STEP).min(buffer.len());
    if from < end && buffer.populate(from..end).is_ok() { end - from } else { 0 }
}

impl Drop for Prefault {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It has nothing that could panic.
            let _ = thread.join();
        }
    }
}
