//! What can go wrong in this crate, named by what the caller can do about it.

use std::path::PathBuf;

use crate::{BudgetInUse, Bytes, OverBudget};

/// An error of the memory crate. A plan that does not fit has its own type, [`crate::DoesNotFit`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// A size figure is not understood.
    #[error(
        "size {text:?}: {reason}; write for example 6GiB, 800MiB, 3GB, 25%, unlimited, or 50%model for a budget"
    )]
    BadSize {
        /// What was given, shortened.
        text: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The budget has no room; ask for less or give a larger budget.
    #[error(transparent)]
    OverBudget(#[from] OverBudget),
    /// The budget cannot be lowered that far; give memory back first.
    #[error(transparent)]
    BudgetInUse(#[from] BudgetInUse),
    /// The operating system refused memory although the budget had room.
    #[error(
        "the operating system refused {bytes} of memory for {purpose}: {source}; lower the budget or free memory"
    )]
    Refused {
        /// What it was for.
        purpose: &'static str,
        /// The size asked for.
        bytes: Bytes,
        /// The error of the system.
        source: std::io::Error,
    },
    /// A file operation failed.
    #[error("{action} {path}: {source}", path = path.display())]
    File {
        /// What was attempted, as a verb: "open", "sync".
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The operating system does not tell what the machine has.
    #[error(
        "the operating system does not tell the memory of this machine: {source}; name a budget in bytes"
    )]
    Facts {
        /// The error of the system.
        source: std::io::Error,
    },
}
