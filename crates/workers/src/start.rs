//! Starting a thread that is there when the call returns.
//!
//! Owns: [`start_thread`]. Refuses: what the thread does, and ending it. For threads that live beside a computation: what the
//! runtime library takes from the heap when a thread begins is taken now, and not while tokens are made on a crowded machine.

use std::io;
use std::sync::{Arc, Barrier};
use std::thread::{Builder, JoinHandle};

/// Starts a thread that runs `work`, and returns once it is about to.
///
/// # Errors
/// When the system gives no thread.
pub fn start_thread(builder: Builder, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let begun = Arc::new(Barrier::new(2));
    let theirs = Arc::clone(&begun);
    let thread = builder.spawn(move || {
        theirs.wait();
        // The memory of the barrier is given back before anything else happens.
        drop(theirs);
        work();
    })?;
    begun.wait();
    Ok(thread)
}
