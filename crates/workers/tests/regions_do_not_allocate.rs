//! An allocation per region is thousands per token, each a lock in the worst case. A counting allocator watches
//! regions, sleeping workers and entering.
#![cfg(not(loom))]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use coldpress_workers::Workers;

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call goes on to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`, and `memory` came from `System`.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn regions_and_enter_allocate_nothing() {
    let workers = Workers::new(3);
    let work = || {
        workers.enter(|team| {
            for gap_us in [0, 0, 0, 300] {
                team.for_each_chunk(9, |_, _| {});
                std::thread::sleep(Duration::from_micros(gap_us));
            }
        });
    };
    // The first rounds start the threads and what the system sets up per lock.
    (0..10).for_each(|_| work());
    std::thread::sleep(Duration::from_millis(50));
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    (0..100).for_each(|_| work());
    assert_eq!(ALLOCATIONS.load(Ordering::Relaxed) - before, 0);
}
