//! The thread pool of coldpress: a fixed set of threads that run short parallel regions.
//!
//! Owns: waking the threads once per forward pass ([`Workers::enter`]), handing out the chunks of a region
//! ([`Team::for_each_chunk`]), waiting for the end of it, and putting the threads to sleep when there is nothing to do.
//!
//! Refuses: task graphs, nested regions, work stealing, and any opinion on what a chunk is. A region never
//! allocates, and nothing spins outside `enter`.
//!
//! The protocol is one atomic word (`gate.rs`), driven by `region.rs`; the only lifetime erasure is in `job.rs`.
#![deny(unsafe_code)]

mod backoff;
mod disjoint;
mod gate;
mod job;
mod pool;
mod region;
#[cfg(not(loom))]
mod start;
mod sync;

pub use pool::{THREADS_MAX, Team, WORKER_STACK_BYTES, Workers};
#[cfg(not(loom))]
pub use start::start_thread;
