//! The queue above every reader: short reads, transient errors, counting.
//!
//! One place decides what is worth another try, so that all readers behave alike. A request comes back exactly once,
//! with its memory, whatever happens.

use std::io;
use std::time::Instant;

use super::{Completion, ExpertReader, ReadRequest};
use crate::error::ExpertError;

/// Tries of one request beyond the first, as long as the file system only says "again" or delivers a part.
const RETRIES_MAX: u8 = 16;

/// What moved so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadStatistics {
    /// Reads handed to the reader, further tries included.
    pub reads: u64,
    /// Bytes asked of the device, alignment and further tries included.
    pub device_bytes: u64,
    /// Further tries after short reads and transient errors.
    pub retries: u64,
    /// Time in which the caller could do nothing but wait for the device, in microseconds.
    pub wait_us: u64,
}

/// A request that has come to its end.
#[derive(Debug)]
pub struct Finished {
    /// The request with its memory. After success at least `needed` bytes of it are valid.
    pub request: ReadRequest,
    /// Whether they are.
    pub result: Result<(), ExpertError>,
}

/// See the module header.
pub struct ReadQueue {
    reader: Box<dyn ExpertReader>,
    /// Filled by `push`, emptied by `submit`.
    outgoing: Vec<ReadRequest>,
    completions: Vec<Completion>,
    /// Further tries already spent, by `ticket % retries.len()`.
    retries: Vec<u8>,
    statistics: ReadStatistics,
}

impl ReadQueue {
    /// A queue over `reader`. Tickets must be below `capacity`, each in flight once at a time.
    pub fn new(reader: Box<dyn ExpertReader>, capacity: usize) -> Self {
        Self {
            outgoing: Vec::with_capacity(capacity),
            completions: Vec::with_capacity(capacity),
            retries: vec![0; capacity],
            statistics: ReadStatistics::default(),
            reader,
        }
    }

    /// Name of the reader below.
    pub fn reader_name(&self) -> &'static str {
        self.reader.name()
    }

    /// How many more requests may be pushed now.
    pub fn room(&self) -> usize {
        let capacity = self.reader.capacity().min(self.retries.len());
        capacity.saturating_sub(self.reader.in_flight() + self.outgoing.len())
    }

    /// Requests that have not come back.
    pub fn in_flight(&self) -> usize {
        self.reader.in_flight() + self.outgoing.len()
    }

    /// What moved so far.
    pub fn statistics(&self) -> ReadStatistics {
        self.statistics
    }

    /// Adds a request; it starts with the next [`ReadQueue::submit`] or [`ReadQueue::reap`].
    ///
    /// # Panics
    /// When there is no room, or the request reaches past its memory.
    pub fn push(&mut self, request: ReadRequest) {
        assert!(self.room() > 0, "more requests than the reader takes");
        let ReadRequest { filled, needed, length, memory, .. } = &request;
        assert!(
            filled <= needed && needed <= length && *length <= memory.len(),
            "the read does not fit its memory"
        );
        self.retries[request.ticket as usize] = 0;
        self.outgoing.push(request);
    }

    /// Starts what was pushed.
    ///
    /// # Errors
    /// When the reader as a whole is broken.
    pub fn submit(&mut self) -> Result<(), ExpertError> {
        if self.outgoing.is_empty() {
            return Ok(());
        }
        self.statistics.reads += self.outgoing.len() as u64;
        let bytes: usize = self.outgoing.iter().map(|request| request.length - request.filled).sum();
        self.statistics.device_bytes += bytes as u64;
        let submitted = self.reader.submit(&mut self.outgoing);
        submitted.map_err(|source| ExpertError::Reader { reader: self.reader.name(), source })
    }

    /// Appends requests that have come to their end. With `wait` and something in flight at least one.
    ///
    /// # Errors
    /// When the reader as a whole is broken. The error of a single read is in its [`Finished`].
    pub fn reap(&mut self, wait: bool, finished: &mut Vec<Finished>) -> Result<(), ExpertError> {
        let before = finished.len();
        loop {
            self.submit()?;
            let wait = wait && finished.len() == before && self.reader.in_flight() > 0;
            let started = wait.then(Instant::now);
            let reaped = self.reader.reap(wait, &mut self.completions);
            if let Some(started) = started {
                self.statistics.wait_us += started.elapsed().as_micros() as u64;
            }
            reaped.map_err(|source| ExpertError::Reader { reader: self.reader.name(), source })?;
            for index in (0..self.completions.len()).rev() {
                let completion = self.completions.swap_remove(index);
                self.judge(completion, finished);
            }
            // What was put back into `outgoing` is started before anyone waits for it.
            if self.outgoing.is_empty() && (!wait || finished.len() > before) {
                return Ok(());
            }
        }
    }

    fn judge(&mut self, completion: Completion, finished: &mut Vec<Finished>) {
        let Completion { mut request, result } = completion;
        let verdict = match result {
            Ok(bytes) if request.filled + bytes >= request.needed => {
                request.filled += bytes;
                Ok(())
            }
            Ok(bytes) => {
                let arrived = request.filled + bytes;
                let resume = request.file.resume_at(arrived);
                if resume > request.filled {
                    request.filled = resume;
                    return self.again(request, io::ErrorKind::UnexpectedEof.into(), finished);
                }
                Err(truncated(&request, arrived))
            }
            Err(error) if is_transient(&error) => return self.again(request, error, finished),
            Err(source) => Err(read_failed(&request, source)),
        };
        request.file.drop_pages(request.offset..request.offset + request.length as u64);
        finished.push(Finished { request, result: verdict });
    }

    fn again(&mut self, request: ReadRequest, cause: io::Error, finished: &mut Vec<Finished>) {
        let retries = &mut self.retries[request.ticket as usize];
        if *retries == RETRIES_MAX {
            let result = Err(read_failed(&request, cause));
            finished.push(Finished { request, result });
            return;
        }
        *retries += 1;
        self.statistics.retries += 1;
        self.outgoing.push(request);
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
}

fn read_failed(request: &ReadRequest, source: io::Error) -> ExpertError {
    ExpertError::Io {
        action: "read",
        path: request.file.path().to_owned(),
        offset: request.offset + request.filled as u64,
        source,
    }
}

/// Not even one more block arrived: the file ends after `arrived` bytes of the request.
fn truncated(request: &ReadRequest, arrived: usize) -> ExpertError {
    ExpertError::Truncated {
        path: request.file.path().to_owned(),
        offset: request.offset,
        end: request.offset + request.needed as u64,
        length: request.offset + arrived as u64,
    }
}
