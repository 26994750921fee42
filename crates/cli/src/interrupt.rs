//! Ctrl-C and termination signals: the first one asks the work to stop, the second one, or one that comes while the program
//! waits for input, ends the process at once.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};

static ASKED_TO_STOP: AtomicBool = AtomicBool::new(false);
/// Set while the program can do nothing but wait for input.
static WAITING: AtomicBool = AtomicBool::new(false);

/// Starts listening; called once, before any work.
///
/// # Errors
/// The system refuses a signal handler.
pub fn watch() -> Result<()> {
    let handler = || {
        if ASKED_TO_STOP.swap(true, Ordering::Relaxed) || WAITING.load(Ordering::Relaxed) {
            std::process::exit(i32::from(crate::exit::INTERRUPTED));
        }
    };
    ctrlc::set_handler(handler).context("cannot listen for Ctrl-C")
}

/// Runs `read`, which waits for input; a stop during that time ends the process at once.
pub fn waiting<T>(read: impl FnOnce() -> T) -> T {
    WAITING.store(true, Ordering::Relaxed);
    let result = read();
    WAITING.store(false, Ordering::Relaxed);
    result
}

/// Whether the user asked to stop.
pub fn asked() -> bool {
    ASKED_TO_STOP.load(Ordering::Relaxed)
}

/// Forgets a stop that has been obeyed, so that a conversation can go on.
pub fn clear() {
    ASKED_TO_STOP.store(false, Ordering::Relaxed);
}
