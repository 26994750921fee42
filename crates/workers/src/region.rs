//! One parallel region: open, claim, leave, wait; and how the threads sleep and wake.
//!
//! A worker may join a region, it need not: the caller runs chunks as well and waits only for workers that did join.
//! So a worker that the scheduler keeps off the CPU delays nobody. See `gate.rs` for the word behind it.
#![allow(unsafe_code)]

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::backoff::SpinLimit;
use crate::gate::Gate;
use crate::job::{Job, JobSlot};
use crate::sync::{AtomicBool, AtomicUsize, Condvar, Mutex, MutexGuard, Ordering, OwnLine, lock, wait};

/// A claim counter beyond every chunk count; claims after it stay far from overflow.
const ABANDONED: usize = usize::MAX / 2;

/// Largest chunk count of one region.
pub(crate) const CHUNKS_MAX: usize = ABANDONED;

/// What the caller and the workers share.
#[derive(Debug)]
pub(crate) struct Shared {
    gate: OwnLine<Gate>,
    /// Next chunk to claim.
    claim: OwnLine<AtomicUsize>,
    job: OwnLine<JobSlot>,
    /// Number of times the sleepers were woken. Workers announce and begin to sleep under this lock.
    wakes: Mutex<u64>,
    wakes_changed: Condvar,
    /// Whether the last worker has left, for a caller that sleeps.
    left: Mutex<bool>,
    left_changed: Condvar,
    /// Held by the one caller that is inside `enter`.
    turn: Mutex<()>,
    panicked: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

impl Shared {
    pub(crate) fn new() -> Self {
        Self {
            gate: OwnLine(Gate::new()),
            claim: OwnLine(AtomicUsize::new(ABANDONED)),
            job: OwnLine(JobSlot::empty()),
            wakes: Mutex::new(0),
            wakes_changed: Condvar::new(),
            left: Mutex::new(false),
            left_changed: Condvar::new(),
            turn: Mutex::new(()),
            panicked: AtomicBool::new(false),
            panic: Mutex::new(None),
        }
    }

    /// Caller: waits for its turn, then lets the workers spin for regions and wakes those that sleep.
    pub(crate) fn enter(&self, crowded: bool) -> Turn<'_> {
        let only_caller = lock(&self.turn);
        if self.gate.0.enter().sleeping() > 0 {
            self.wake_sleepers();
        }
        Turn { shared: self, limit: SpinLimit::new(crowded), _only_caller: only_caller }
    }

    /// Owner: ends every worker loop.
    pub(crate) fn close_pool(&self) {
        if self.gate.0.close_pool().sleeping() > 0 {
            self.wake_sleepers();
        }
    }

    fn wake_sleepers(&self) {
        let mut wakes = lock(&self.wakes);
        *wakes += 1;
        self.gate.0.clear_sleeping();
        drop(wakes);
        self.wakes_changed.notify_all();
    }

    /// Claims and runs chunks until none is left.
    ///
    /// # Safety
    /// As [`Job::run`]: the caller of this is inside the region.
    unsafe fn claim_chunks(&self, job: Job, worker: usize) {
        loop {
            // Relaxed: the counter only has to hand out each number once; the gate orders the data.
            let chunk = self.claim.0.fetch_add(1, Ordering::Relaxed);
            if chunk >= job.chunk_count {
                return;
            }
            // SAFETY: by the contract of this function.
            unsafe { job.run(chunk, worker) };
        }
    }

    /// Runs the claim loop; a panic stops the handing out of chunks and is kept for the caller.
    ///
    /// # Safety
    /// As [`Job::run`]: the caller of this is inside the region.
    unsafe fn take_part(&self, job: Job, worker: usize) {
        // SAFETY: by the contract of this function.
        let run = AssertUnwindSafe(|| unsafe { self.claim_chunks(job, worker) });
        if let Err(panic) = catch_unwind(run) {
            self.claim.0.store(ABANDONED, Ordering::Relaxed);
            let mut first = lock(&self.panic);
            let later = if first.is_none() { first.replace(panic) } else { Some(panic) };
            drop(first);
            // Dropping a payload may itself panic, and here nobody else would catch it.
            if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(later))) {
                std::mem::forget(again);
            }
            self.panicked.store(true, Ordering::Relaxed);
        }
    }

    /// Caller, region closed: returns when nobody is inside.
    fn wait_for_workers(&self, limit: &mut SpinLimit) {
        let mut spin = limit.start();
        loop {
            let seen = self.gate.0.load();
            if seen.inside() == 0 {
                return spin.end();
            }
            if spin.pause() {
                continue;
            }
            let mut left = lock(&self.left);
            *left = false;
            if self.gate.0.try_announce_wait(seen) {
                while !*left {
                    left = wait(&self.left_changed, left);
                }
                self.gate.0.clear_wait();
                return;
            }
        }
    }

    /// The life of a worker thread: returns when the pool closes.
    pub(crate) fn work(&self, worker: usize, limit: &mut SpinLimit) {
        let mut epoch_done = 0;
        while self.join_region(&mut epoch_done, limit) {
            // SAFETY: this worker is inside.
            let job = unsafe { self.job.0.load() };
            // SAFETY: this worker is inside until the next statement, and the caller waits for that.
            unsafe { self.take_part(job, worker) };
            let before = self.gate.0.leave();
            if before.inside() == 1 && before.caller_waits() {
                *lock(&self.left) = true;
                self.left_changed.notify_one();
            }
        }
    }

    /// Worker: waits for a region it has not been in and joins it; `false` when the pool closes.
    fn join_region(&self, epoch_done: &mut u64, limit: &mut SpinLimit) -> bool {
        let mut spin = limit.start();
        let mut epoch_seen = *epoch_done;
        loop {
            let seen = self.gate.0.load();
            if seen.closing() {
                return false;
            }
            if seen.open() && seen.epoch() != *epoch_done {
                if self.gate.0.try_join(seen) {
                    *epoch_done = seen.epoch();
                    spin.end();
                    return true;
                }
                continue;
            }
            if seen.epoch() != epoch_seen {
                // Also a region that was over too soon to join says that the caller is busy: stay awake.
                epoch_seen = seen.epoch();
                spin.restart();
            }
            if seen.entered() && spin.pause() {
                continue;
            }
            let mut wakes = lock(&self.wakes);
            if self.gate.0.try_announce_sleep(seen) {
                let before = *wakes;
                while *wakes == before {
                    wakes = wait(&self.wakes_changed, wakes);
                }
                drop(wakes);
                spin.woke();
            }
        }
    }
}

/// The right to open regions: one exists per pool at a time, and it sends the workers to sleep when dropped.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    shared: &'a Shared,
    limit: SpinLimit,
    _only_caller: MutexGuard<'a, ()>,
}

impl Turn<'_> {
    /// Runs `body` for every chunk below `chunk_count`, with the workers' help.
    pub(crate) fn run_region<F>(&mut self, chunk_count: usize, body: &F)
    where
        F: Fn(usize, usize) + Sync,
    {
        assert!(chunk_count <= CHUNKS_MAX, "a region of {chunk_count} chunks");
        let shared = self.shared;
        let job = Job::new(body, chunk_count);
        shared.claim.0.store(0, Ordering::Relaxed);
        // SAFETY: `&mut self` and the lock inside make this the only caller; the region is closed and nobody is
        // inside, because every earlier call waited for that, also when a body panicked.
        unsafe { shared.job.0.store(job) };
        if shared.gate.0.open_region().sleeping() > 0 {
            shared.wake_sleepers();
        }
        // SAFETY: `body` is borrowed until this function returns.
        unsafe { shared.take_part(job, 0) };
        if shared.gate.0.close_region().inside() > 0 {
            shared.wait_for_workers(&mut self.limit);
        }
        // Nobody is inside and nobody can join: the borrow of `body` may end.
        if shared.panicked.load(Ordering::Relaxed) {
            shared.panicked.store(false, Ordering::Relaxed);
            let panic = lock(&shared.panic).take();
            resume_unwind(panic.expect("the panic is stored before the flag is set"));
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.shared.gate.0.exit();
    }
}
