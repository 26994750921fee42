//! A global allocator that watches blocks above a size: how large, how much at once, and who asked for them.
//!
//! `watch` runs some work and returns what was seen meanwhile, from all threads. Blocks in memory maps of their own
//! (`coldpress_memory::Buffer`) never come through here: those are charged to the ledger, and everything here is not.
//! The allocator sees all threads, so each test of such a program is `alone` from its first line on.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The allocator of a test program.
pub struct Watching;

#[global_allocator]
static ALLOCATOR: Watching = Watching;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
static ACTIVE: AtomicBool = AtomicBool::new(false);
static THRESHOLD: AtomicUsize = AtomicUsize::new(usize::MAX);
static SEEN: Mutex<Vec<(usize, Backtrace)>> = Mutex::new(Vec::new());
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

thread_local! {
    /// Whether this thread is writing a block down: what it takes and gives back meanwhile is not counted.
    static NOTING: Cell<bool> = const { Cell::new(false) };
}

// SAFETY: every call goes to the system allocator unchanged.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is passed on.
        let pointer = unsafe { System.alloc(layout) };
        taken(layout.size(), 0);
        pointer
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is passed on.
        let pointer = unsafe { System.alloc_zeroed(layout) };
        taken(layout.size(), 0);
        pointer
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise is passed on.
        let pointer = unsafe { System.realloc(pointer, layout, size) };
        taken(size, layout.size());
        pointer
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if !NOTING.get() {
            LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        }
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Counts a block of `size` bytes that takes the place of one of `before` bytes.
fn taken(size: usize, before: usize) {
    if NOTING.get() {
        return;
    }
    let live = LIVE.fetch_add(size, Ordering::Relaxed) + size;
    LIVE.fetch_sub(before, Ordering::Relaxed);
    if !ACTIVE.load(Ordering::Relaxed) {
        return;
    }
    PEAK.fetch_max(live - before, Ordering::Relaxed);
    if size >= THRESHOLD.load(Ordering::Relaxed) {
        uncounted(|| {
            let from = Backtrace::force_capture();
            SEEN.lock().unwrap_or_else(PoisonError::into_inner).push((size, from));
        });
    }
}

/// Runs `work` without counting what this thread takes and gives back. What is taken here is given back here too.
fn uncounted<T>(work: impl FnOnce() -> T) -> T {
    NOTING.set(true);
    let result = work();
    NOTING.set(false);
    result
}

/// The names on the stacks of `seen`. Reading them takes tens of megabytes for the debug information of the program,
/// which stay: it waits until nothing is watched.
fn named(seen: Vec<(usize, Backtrace)>) -> Vec<Block> {
    let names: Vec<String> = uncounted(|| seen.iter().map(|(_, from)| from.to_string()).collect());
    let blocks = seen.iter().zip(&names).map(|((size, _), from)| Block { size: *size, from: from.clone() });
    let blocks = blocks.collect();
    uncounted(|| drop((seen, names)));
    blocks
}

/// A block above the threshold.
#[derive(Clone, Debug)]
pub struct Block {
    /// Bytes asked for.
    pub size: usize,
    /// The stack of the call.
    from: String,
}

impl Block {
    /// Whether `name` is part of the name or of the source file of a function on the stack.
    pub fn is_from(&self, name: &str) -> bool {
        self.from.contains(name)
    }

    /// The functions of this workspace that asked for it, innermost first.
    pub fn callers(&self) -> String {
        let lines: Vec<&str> = self.from.lines().map(str::trim).collect();
        let ours =
            |place: &str| place.contains("/src/") && !place.contains("rustc") && !place.contains(".cargo");
        let callers = lines.windows(2).filter(|pair| pair[1].starts_with("at ") && ours(pair[1])).take(6);
        callers.map(|pair| format!("{} {}", pair[0], pair[1])).collect::<Vec<_>>().join("\n      ")
    }
}

/// What was seen during some work.
pub struct Seen {
    /// Every block above the threshold, in order.
    pub blocks: Vec<Block>,
    /// The most bytes on the heap at once, all sizes, above those at the beginning.
    pub peak_growth: usize,
}

/// Keeps every other test of the program waiting: what they take from the heap would be counted too.
#[must_use = "others go on when it is dropped"]
pub fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `work` and watches blocks of `threshold` bytes and more meanwhile. The caller is [`alone`].
pub fn watch<T>(threshold: usize, work: impl FnOnce() -> T) -> (T, Seen) {
    THRESHOLD.store(threshold, Ordering::Relaxed);
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    ACTIVE.store(true, Ordering::SeqCst);
    let result = work();
    ACTIVE.store(false, Ordering::SeqCst);
    let peak_growth = PEAK.load(Ordering::Relaxed).saturating_sub(before);
    let seen = std::mem::take(&mut *SEEN.lock().unwrap_or_else(PoisonError::into_inner));
    (result, Seen { blocks: named(seen), peak_growth })
}
