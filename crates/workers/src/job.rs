//! The body of the running region, with its lifetime erased.
//!
//! The caller lends a closure that lives on its stack; workers call it through a pointer. That is sound because of
//! two rules that `region.rs` keeps and the loom model checks:
//!
//! 1. the slot is written only while the region is closed and nobody is inside;
//! 2. the slot is read, and the body called, only by a worker that is counted as inside (or by the caller), and the
//!    caller does not return before that count is zero.
#![allow(unsafe_code)]

use crate::sync::UnsafeCell;

/// A borrowed `Fn(chunk, worker) + Sync` and the number of chunks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    body: *const (),
    call: unsafe fn(*const (), usize, usize),
    pub(crate) chunk_count: usize,
}

impl Job {
    /// Erases the type and lifetime of `body`.
    pub(crate) fn new<F: Fn(usize, usize) + Sync>(body: &F, chunk_count: usize) -> Self {
        /// # Safety
        /// `body` points to a live `F`.
        unsafe fn call<F: Fn(usize, usize) + Sync>(body: *const (), chunk: usize, worker: usize) {
            // SAFETY: by the contract of this function `body` came from `&F` and that borrow still holds.
            let body = unsafe { &*body.cast::<F>() };
            body(chunk, worker);
        }
        Self { body: std::ptr::from_ref(body).cast(), call: call::<F>, chunk_count }
    }

    /// Runs one chunk.
    ///
    /// # Safety
    /// The borrow given to [`Job::new`] still holds.
    pub(crate) unsafe fn run(&self, chunk: usize, worker: usize) {
        // SAFETY: `call` was instantiated for the type behind `body`, which is alive by the contract above.
        unsafe { (self.call)(self.body, chunk, worker) }
    }
}

/// Where the caller leaves the job for the workers.
#[derive(Debug)]
pub(crate) struct JobSlot(UnsafeCell<Job>);

// SAFETY: the closure behind the pointer is `Sync` (bound of `Job::new`), so it may be called from any thread; access
// to the slot itself follows rules 1 and 2 of the module header.
unsafe impl Sync for JobSlot {}
// SAFETY: a slot holds no thread-bound data: a pointer and two integers.
unsafe impl Send for JobSlot {}

impl JobSlot {
    pub(crate) fn empty() -> Self {
        Self(UnsafeCell::new(Job::new(&|_, _| {}, 0)))
    }

    /// Stores the job of the next region.
    ///
    /// # Safety
    /// The region is closed and no worker is inside (rule 1).
    pub(crate) unsafe fn store(&self, job: Job) {
        self.0.with_mut(|slot| {
            // SAFETY: by rule 1 nobody else reads or writes the slot now.
            unsafe { *slot = job }
        });
    }

    /// Copies the job of the running region.
    ///
    /// # Safety
    /// The calling worker is inside the region (rule 2).
    pub(crate) unsafe fn load(&self) -> Job {
        self.0.with(|slot| {
            // SAFETY: by rules 1 and 2 nobody writes the slot now.
            unsafe { *slot }
        })
    }
}
