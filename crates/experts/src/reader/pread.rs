//! A pool of threads, each with one positioned read at a time.
//!
//! Works on every system and through every sandbox. The queue is a mutex and two condition variables: next to a read
//! of a megabyte they cost nothing, and their memory is allocated once. A thread owns the request it works on, so the
//! memory of a running read is out of everyone's reach; dropping the pool waits for running reads and discards the rest.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use coldpress_workers::start_thread;

use super::{Completion, ExpertReader, ReadRequest};

/// Threads that read. See the module header.
pub struct PreadPool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    capacity: usize,
    in_flight: usize,
}

struct Shared {
    queues: Mutex<Queues>,
    request_came: Condvar,
    request_ended: Condvar,
}

struct Queues {
    requests: VecDeque<ReadRequest>,
    completions: Vec<Completion>,
    closed: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queues> {
        // Queues are consistent between any two statements, so a panic elsewhere does not spoil them.
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut queues = self.lock();
        while !queues.closed {
            let Some(mut request) = queues.requests.pop_front() else {
                queues = self.request_came.wait(queues).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(queues);
            let result = request.read_once();
            queues = self.lock();
            queues.completions.push(Completion { request, result });
            self.request_ended.notify_one();
        }
    }
}

impl ReadRequest {
    /// One positioned read on the calling thread: what a reader does for each request.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn read_once(&mut self) -> io::Result<usize> {
        let rest = &mut self.memory[self.filled..self.length];
        std::os::unix::fs::FileExt::read_at(self.file.file(), rest, self.offset + self.filled as u64)
    }
}

impl PreadPool {
    /// `threads` threads (at least one) for up to `capacity` requests.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn new(threads: usize, capacity: usize) -> io::Result<Self> {
        let queues = Queues {
            requests: VecDeque::with_capacity(capacity),
            completions: Vec::with_capacity(capacity),
            closed: false,
        };
        let shared = Arc::new(Shared {
            queues: Mutex::new(queues),
            request_came: Condvar::new(),
            request_ended: Condvar::new(),
        });
        let mut pool = Self { shared, threads: Vec::new(), capacity, in_flight: 0 };
        for index in 0..threads.max(1) {
            let shared = Arc::clone(&pool.shared);
            let builder =
                std::thread::Builder::new().name(format!("coldpress-read-{index}")).stack_size(STACK_BYTES);
            pool.threads.push(start_thread(builder, move || shared.work())?);
        }
        Ok(pool)
    }
}

/// A read needs next to no stack.
const STACK_BYTES: usize = 64 << 10;

impl ExpertReader for PreadPool {
    fn name(&self) -> &'static str {
        "pread"
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn submit(&mut self, requests: &mut Vec<ReadRequest>) -> io::Result<()> {
        self.in_flight += requests.len();
        self.shared.lock().requests.extend(requests.drain(..));
        self.shared.request_came.notify_all();
        Ok(())
    }

    fn reap(&mut self, wait: bool, completions: &mut Vec<Completion>) -> io::Result<()> {
        let mut queues = self.shared.lock();
        while wait && self.in_flight > 0 && queues.completions.is_empty() {
            queues = self.shared.request_ended.wait(queues).unwrap_or_else(PoisonError::into_inner);
        }
        self.in_flight -= queues.completions.len();
        completions.append(&mut queues.completions);
        Ok(())
    }
}

impl Drop for PreadPool {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.request_came.notify_all();
        for thread in self.threads.drain(..) {
            // A reading thread has nothing that could panic, so `join` has nothing to report.
            let _ = thread.join();
        }
    }
}
