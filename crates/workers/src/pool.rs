//! The public face: [`Workers`] owns the threads, [`Team`] is what a caller holds between the start and the end of
//! `enter`. Nesting is refused here.

use std::cell::RefCell;

use crate::backoff::SpinLimit;
use crate::region::{Shared, Turn};
#[cfg(not(loom))]
use crate::start::start_thread as start;
use crate::sync::{Arc, in_team, set_in_team, thread};

/// Most threads of one pool, the caller included.
pub const THREADS_MAX: usize = 512;
const _: () = assert!(THREADS_MAX <= crate::gate::COUNTER_MAX);

/// Stack reserved per worker thread; address space, of which only touched pages count as memory.
pub const WORKER_STACK_BYTES: usize = 2 << 20;

/// A fixed set of threads. They sleep unless a caller is inside [`Workers::enter`]; dropping the pool ends them.
#[derive(Debug)]
pub struct Workers {
    shared: Arc<Shared>,
    handles: Vec<thread::JoinHandle<()>>,
    crowded: bool,
}

impl Workers {
    /// A pool of `threads` threads: the caller of [`Workers::enter`] and `threads - 1` of its own.
    ///
    /// The figure is limited to `1..=THREADS_MAX`, and where the operating system refuses a thread the pool is
    /// smaller; [`Workers::threads`] tells the truth. Results never depend on it.
    pub fn new(threads: usize) -> Self {
        let threads = threads.clamp(1, THREADS_MAX);
        let crowded = threads > cores();
        let shared = Arc::new(Shared::new());
        let mut handles = Vec::with_capacity(threads - 1);
        for worker in 1..threads {
            let shared = Arc::clone(&shared);
            let builder =
                thread::Builder::new().name(format!("coldpress-{worker}")).stack_size(WORKER_STACK_BYTES);
            let work = move || {
                set_in_team(true);
                shared.work(worker, &mut SpinLimit::new(crowded));
            };
            match start(builder, work) {
                Ok(handle) => handles.push(handle),
                Err(_) => break,
            }
        }
        Self { shared, handles, crowded }
    }

    /// Threads that run chunks, the caller included.
    pub fn threads(&self) -> usize {
        self.handles.len() + 1
    }

    /// Wakes the threads, runs `work` on the calling thread with a [`Team`], and lets the threads sleep again.
    ///
    /// Call it once around a forward pass, not around each operation. A second caller waits for its turn.
    ///
    /// # Panics
    ///
    /// When the calling thread is already inside a team (of this or another pool): two pools spinning against each
    /// other on one machine are never what is wanted. A panic of `work` passes through; the pool stays usable.
    pub fn enter<R>(&self, work: impl FnOnce(&Team<'_>) -> R) -> R {
        let _inside = InTeam::begin();
        work(&Team { turn: RefCell::new(self.shared.enter(self.crowded)), threads: self.threads() })
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.shared.close_pool();
        for handle in self.handles.drain(..) {
            // A worker catches every panic of a body, so `join` has nothing to report.
            let _ = handle.join();
        }
    }
}

/// The model checker's threads begin when it wants them to, and may not block outside its sight.
#[cfg(loom)]
fn start(
    builder: thread::Builder,
    work: impl FnOnce() + Send + 'static,
) -> std::io::Result<thread::JoinHandle<()>> {
    builder.spawn(work)
}

#[cfg(not(loom))]
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get())
}

#[cfg(loom)]
fn cores() -> usize {
    1
}

/// Marks the calling thread as inside a team until it is dropped, also by a panic.
struct InTeam;

impl InTeam {
    fn begin() -> Self {
        assert!(!in_team(), "Workers::enter was called from inside a team: regions do not nest");
        set_in_team(true);
        Self
    }
}

impl Drop for InTeam {
    fn drop(&mut self) {
        set_in_team(false);
    }
}

/// The awake threads of a pool, for the length of one [`Workers::enter`].
///
/// A team belongs to the thread that entered: it is not `Sync`, so the body of a region cannot reach it, and a
/// region inside a region does not compile:
///
/// ```compile_fail
/// let workers = coldpress_workers::Workers::new(2);
/// workers.enter(|team| {
///     team.for_each_chunk(4, |_, _| team.for_each_chunk(4, |_, _| {}));
/// });
/// ```
#[derive(Debug)]
pub struct Team<'a> {
    /// The cell is also what makes `Team` not `Sync`.
    turn: RefCell<Turn<'a>>,
    threads: usize,
}

impl Team<'_> {
    /// Threads that run chunks, the caller included; worker indices are below it.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Runs `body(chunk, worker)` once for each `chunk` in `0..chunk_count` and returns when all are done.
    ///
    /// Chunks are claimed one at a time in ascending order by whichever thread is free; `worker` (below
    /// [`Team::threads`], 0 is the caller) is held by one thread at a time, so it may index scratch memory. Which worker
    /// gets which chunk is not determined, so a result must not depend on it. What the bodies write is visible to the
    /// caller afterwards. Nothing is allocated; with one chunk or one thread the body simply runs here.
    ///
    /// # Panics
    ///
    /// When a body panics: no further chunk is handed out, running ones finish, and the first panic continues on the
    /// caller. The pool stays usable.
    pub fn for_each_chunk<F>(&self, chunk_count: usize, body: F)
    where
        F: Fn(usize, usize) + Sync,
    {
        if chunk_count <= 1 || self.threads == 1 {
            (0..chunk_count).for_each(|chunk| body(chunk, 0));
            return;
        }
        self.turn.borrow_mut().run_region(chunk_count, &body);
    }

    /// Cuts `data` into parts of `part_len` elements (the last may be shorter) and runs
    /// `body(part index, part, worker)` once for each, as [`Team::for_each_chunk`] does.
    ///
    /// # Panics
    ///
    /// When `part_len` is 0, and as [`Team::for_each_chunk`].
    pub fn for_each_part_mut<T, F>(&self, data: &mut [T], part_len: usize, body: F)
    where
        T: Send,
        F: Fn(usize, &mut [T], usize) + Sync,
    {
        crate::disjoint::for_each_part_mut(self, data, part_len, body);
    }

    /// Runs `body(chunk, scratch)` once for each chunk, as [`Team::for_each_chunk`] does, with one element of `scratch`
    /// per thread.
    ///
    /// # Panics
    ///
    /// When `scratch` has fewer elements than the team has threads, and as [`Team::for_each_chunk`].
    pub fn for_each_chunk_with<S, F>(&self, scratch: &mut [S], chunk_count: usize, body: F)
    where
        S: Send,
        F: Fn(usize, &mut S) + Sync,
    {
        crate::disjoint::for_each_chunk_with(self, scratch, chunk_count, body);
    }
}
