//! The memory budget of coldpress: who may hold how many bytes, and what the machine has.
//!
//! Owns: [`Bytes`] and size figures, the [`Ledger`] that every large allocation is charged to, the [`Buffer`] that holds its
//! own charge, the pure [`plan`](plan::plan) that divides a budget, the [`MachineFacts`] it starts from, what the machine says while
//! the product runs ([`PressureSource`]) and what follows from it ([`Controller`]), and (in [`sys`]) every operating system
//! call of the product outside the disk readers.
//!
//! Refuses: knowing what a model is. Callers bring sums, this crate says whether they fit.
//!
//! Start with `ledger.rs` and `plan.rs`; for what changes while running, `controller.rs`.
#![deny(unsafe_code)]

mod buffer;
mod bytes;
mod cgroup;
mod controller;
mod error;
mod facts;
mod ledger;
mod pressure;
mod pressure_log;
mod refusal;
mod system;
mod trend;
mod usage;

pub mod plan;
pub mod sys;

pub use buffer::Buffer;
pub use bytes::{BudgetSpec, Bytes, SizeSpec, apart};
pub use controller::{Controller, Decision, LedgerState};
pub use error::MemoryError;
pub use facts::{DEFAULT_BUDGET_PERCENT, MachineFacts};
pub use ledger::{BudgetInUse, Ledger, LedgerSnapshot, OverBudget, Purpose, Reservation};
pub use plan::{Plan, PlanInput};
pub use pressure::{PressureLevel, PressureReading, PressureSource, StallScope};
pub use pressure_log::{PressureCause, PressureEvent, PressureLog};
pub use refusal::{DoesNotFit, Suggestion};
pub use system::{StorageFacts, StorageKind, Swap, SystemFacts, storage_below, storage_facts};
pub use usage::{MemoryUsage, MemoryWatch};
