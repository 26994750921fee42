//! The synchronisation types the pool is written against: `std` in the product, `loom` in the model checker.
//! Only the differences between the two live here.

#[cfg(loom)]
pub(crate) use loom::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread,
};
#[cfg(not(loom))]
pub(crate) use std::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread,
};

#[cfg(loom)]
pub(crate) use loom::cell::UnsafeCell;

/// `std`'s cell behind the closure interface of loom's, so that loom can watch every access.
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    pub(crate) fn with<R>(&self, access: impl FnOnce(*const T) -> R) -> R {
        access(self.0.get())
    }

    pub(crate) fn with_mut<R>(&self, access: impl FnOnce(*mut T) -> R) -> R {
        access(self.0.get())
    }
}

/// Locks, and carries on after a panic elsewhere: no data of this crate is left half changed by one.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Waits on `condvar`, carrying on after a panic elsewhere.
pub(crate) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(guard).unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Keeps what different threads write in different cache lines (two lines, because x86 prefetches pairs).
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct OwnLine<T>(pub(crate) T);

#[cfg(loom)]
loom::thread_local! {
    static IN_TEAM: std::cell::Cell<bool> = std::cell::Cell::new(false);
}
#[cfg(not(loom))]
std::thread_local! {
    static IN_TEAM: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Whether the calling thread is inside a team, as its caller or as a worker.
pub(crate) fn in_team() -> bool {
    IN_TEAM.with(std::cell::Cell::get)
}

pub(crate) fn set_in_team(inside: bool) {
    IN_TEAM.with(|flag| flag.set(inside));
}
