//! Reads through io_uring: one system call submits a batch, completions are read from shared memory.
//!
//! While a read is in flight the kernel holds a raw pointer into the memory of its request. The request therefore stays
//! in `requests` until its completion has been taken from the ring, and the reader's drop waits for all of them. Where
//! even waiting fails, the requests are leaked: their memory is then never freed nor used again.
//! The ring is not marked single-issuer: a store may be opened on one thread and used on another.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;

use io_uring::{IoUring, Probe, opcode, types};

use super::{Completion, ExpertReader, ReadRequest};

/// One ring. See the module header.
pub struct UringReader {
    ring: IoUring,
    /// The requests in flight; the index is the user data of the ring entry.
    requests: Vec<Option<ReadRequest>>,
    /// Unused indices.
    free: Vec<usize>,
    /// Entries pushed to the ring that the kernel has not taken yet.
    unsubmitted: usize,
}

impl UringReader {
    /// A ring for up to `capacity` requests in flight.
    ///
    /// # Errors
    /// Where the kernel has no io_uring, lacks its read operation (before Linux 5.6), or a sandbox refuses it.
    pub fn new(capacity: usize) -> io::Result<Self> {
        let capacity = capacity.clamp(1, 1024);
        let ring = IoUring::new(capacity as u32)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if !probe.is_supported(opcode::Read::CODE) {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "this kernel's io_uring has no read operation",
            ));
        }
        let requests = (0..capacity).map(|_| None).collect();
        Ok(Self { ring, requests, free: (0..capacity).rev().collect(), unsubmitted: 0 })
    }

    /// Puts one request into the submission queue.
    fn push(&mut self, request: ReadRequest) {
        let index = self.free.pop().expect("the caller keeps requests within the capacity");
        let request = self.requests[index].insert(request);
        let rest = &mut request.memory[request.filled..request.length];
        let length =
            u32::try_from(rest.len()).expect("a request is smaller than RECORD_BYTES_MAX and its alignment");
        let entry = opcode::Read::new(types::Fd(request.file.file().as_raw_fd()), rest.as_mut_ptr(), length)
            .offset(request.offset + request.filled as u64)
            .build()
            .user_data(index as u64);
        // SAFETY: the entry points into the memory of `requests[index]` and to its open file. Both stay there, untouched,
        // until `take_completions` sees the completion with this index; drop waits for it or leaks them.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("the submission queue has room for every request of the capacity");
        self.unsubmitted += 1;
    }

    /// Hands pushed entries to the kernel and waits for `want` completions.
    fn enter(&mut self, want: usize) -> io::Result<()> {
        loop {
            match self.ring.submit_and_wait(want) {
                Ok(taken) => {
                    self.unsubmitted = self.unsubmitted.saturating_sub(taken);
                    if self.unsubmitted == 0 {
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The kernel is short of memory or of room for completions: give it back some by reaping.
                Err(error) if is_busy(&error) && !self.ring.completion().is_empty() => return Ok(()),
                Err(error) if is_busy(&error) => std::thread::yield_now(),
                Err(error) => return Err(error),
            }
        }
    }

    fn take_completions(&mut self, completions: &mut Vec<Completion>) -> usize {
        let before = completions.len();
        for entry in self.ring.completion() {
            let index = entry.user_data() as usize;
            let request = self.requests[index].take().expect("the kernel completes what was submitted, once");
            self.free.push(index);
            let result = match entry.result() {
                error if error < 0 => Err(io::Error::from_raw_os_error(-error)),
                bytes => Ok(bytes as usize),
            };
            completions.push(Completion { request, result });
        }
        completions.len() - before
    }
}

fn is_busy(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::ResourceBusy | io::ErrorKind::OutOfMemory
    )
}

impl ExpertReader for UringReader {
    fn name(&self) -> &'static str {
        "io_uring"
    }

    fn capacity(&self) -> usize {
        self.requests.len()
    }

    fn in_flight(&self) -> usize {
        self.requests.len() - self.free.len()
    }

    fn submit(&mut self, requests: &mut Vec<ReadRequest>) -> io::Result<()> {
        for request in requests.drain(..) {
            self.push(request);
        }
        self.enter(0)
    }

    fn reap(&mut self, wait: bool, completions: &mut Vec<Completion>) -> io::Result<()> {
        if self.unsubmitted > 0 {
            self.enter(0)?;
        }
        while self.take_completions(completions) == 0 && wait && self.in_flight() > 0 {
            self.enter(1)?;
        }
        Ok(())
    }
}

impl Drop for UringReader {
    fn drop(&mut self) {
        let mut ended = Vec::with_capacity(self.requests.len());
        while self.in_flight() > 0 {
            if self.reap(true, &mut ended).is_err() {
                // The kernel may still write there: keep memory and files for ever.
                std::mem::forget(std::mem::take(&mut self.requests));
                return;
            }
        }
    }
}
