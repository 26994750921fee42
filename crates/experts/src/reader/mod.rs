//! Readers: how bytes move from a file into memory.
//!
//! A reader takes [`ReadRequest`]s, which own the memory they fill, and gives each back exactly once as a
//! [`Completion`]. It does one positioned read per request and judges nothing: short reads, transient errors and counting
//! are the business of the [`ReadQueue`] above it, once for all readers.
//!
//! | reader | where |
//! |---|---|
//! | `UringReader` | Linux with io_uring: one system call submits a batch |
//! | [`PreadPool`] | everywhere: a few threads with one positioned read each |
//!
//! Read next: `queue`, then `uring` (where the kernel holds pointers into our memory).

mod mapped;
mod pread;
pub mod probe;
mod queue;
#[cfg(target_os = "linux")]
mod uring;

use std::io;
use std::sync::Arc;

pub(crate) use mapped::MappedFile;
pub use pread::PreadPool;
pub use queue::{Finished, ReadQueue, ReadStatistics};
#[cfg(target_os = "linux")]
pub use uring::UringReader;

use crate::error::ExpertError;
use crate::slots::SlotMemory;
use crate::source::ReadFile;

/// One read: `memory[filled..length]` from `file` at `offset + filled`.
#[derive(Debug)]
pub struct ReadRequest {
    /// The caller's number for it.
    pub ticket: u64,
    /// The file.
    pub file: Arc<ReadFile>,
    /// Position in the file of the first byte of `memory`.
    pub offset: u64,
    /// Bytes asked for, from the start of `memory`. May reach past the end of the file by less than one block.
    pub length: usize,
    /// Bytes that must arrive, at most `length`.
    pub needed: usize,
    /// Bytes that have arrived.
    pub filled: usize,
    /// The memory to fill. It stays with the request until the read is over.
    pub memory: SlotMemory,
}

/// The end of one read.
#[derive(Debug)]
pub struct Completion {
    /// The request, with its memory. `filled` is as it was submitted.
    pub request: ReadRequest,
    /// Bytes read (0 = end of file), or the error of the operating system.
    pub result: io::Result<usize>,
}

/// A way to read. Requests may end in any order.
pub trait ExpertReader: Send {
    /// The name for status and logs.
    fn name(&self) -> &'static str;

    /// Most requests in flight.
    fn capacity(&self) -> usize;

    /// Requests submitted and not yet reaped.
    fn in_flight(&self) -> usize;

    /// Starts every request, leaving the list empty. The caller keeps `in_flight` within `capacity`.
    ///
    /// # Errors
    /// When the reader as a whole is broken. Requests that it has taken are still its own.
    fn submit(&mut self, requests: &mut Vec<ReadRequest>) -> io::Result<()>;

    /// Appends the requests that have ended. With `wait` and something in flight it blocks until at least one has.
    ///
    /// # Errors
    /// When the reader as a whole is broken.
    fn reap(&mut self, wait: bool, completions: &mut Vec<Completion>) -> io::Result<()>;
}

/// Which reader to use.
pub enum ReaderChoice {
    /// io_uring where the system allows it, else the thread pool.
    Auto,
    /// io_uring or an error.
    Uring,
    /// The thread pool.
    Pread,
    /// One made by the caller.
    Custom(Box<dyn ExpertReader>),
}

/// Threads of a [`PreadPool`] made by [`open_reader`], at most: enough to keep a fast disk busy with large reads.
const PREAD_THREADS_MAX: usize = 8;

/// Makes a reader for up to `capacity` requests in flight, and a notice when `Auto` had to take the second choice.
///
/// # Errors
/// [`ExpertError::Reader`] when the chosen reader cannot be made.
pub fn open_reader(
    choice: ReaderChoice,
    capacity: usize,
) -> Result<(Box<dyn ExpertReader>, Option<String>), ExpertError> {
    let pread = || PreadPool::new(capacity.min(PREAD_THREADS_MAX), capacity);
    let failed = |reader| move |source| ExpertError::Reader { reader, source };
    match choice {
        ReaderChoice::Custom(reader) => Ok((reader, None)),
        ReaderChoice::Pread => Ok((Box::new(pread().map_err(failed("pread"))?), None)),
        ReaderChoice::Uring => Ok((uring(capacity).map_err(failed("io_uring"))?, None)),
        ReaderChoice::Auto => match uring(capacity) {
            Ok(reader) => Ok((reader, None)),
            Err(error) => {
                let notice = uring_refused(&error);
                Ok((Box::new(pread().map_err(failed("pread"))?), notice))
            }
        },
    }
}

#[cfg(target_os = "linux")]
fn uring(capacity: usize) -> io::Result<Box<dyn ExpertReader>> {
    Ok(Box::new(UringReader::new(capacity)?))
}

#[cfg(target_os = "linux")]
fn uring_refused(error: &io::Error) -> Option<String> {
    Some(format!("io_uring is not available ({error}); reading with a pool of threads instead"))
}

#[cfg(not(target_os = "linux"))]
fn uring(_capacity: usize) -> io::Result<Box<dyn ExpertReader>> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Nothing was refused where io_uring does not exist.
#[cfg(not(target_os = "linux"))]
fn uring_refused(_error: &io::Error) -> Option<String> {
    None
}
