//! Eviction policies: which resident record gives way when a slot is needed.
//!
//! A policy is bookkeeping and a choice, nothing else: no I/O, no clock, no lock, no randomness, so a recorded trace
//! replays exactly. It never changes a result, only how much is read. One file per policy.

mod per_layer_lru;

pub use per_layer_lru::PerLayerLru;

use crate::geometry::ExpertKey;

/// Chooses victims among the slots of a store.
///
/// The store calls `inserted` when a slot starts to load, `used` when a record is handed out or will be, and `removed`
/// when a slot becomes free. `stamp` grows with every use: a larger stamp is a later use.
pub trait EvictionPolicy: Send {
    /// The name for status and logs.
    fn name(&self) -> &'static str;

    /// `slot` now holds, or will soon hold, the record of `key`.
    fn inserted(&mut self, slot: usize, key: ExpertKey, stamp: u64);

    /// The record in `slot` is used.
    fn used(&mut self, slot: usize, stamp: u64);

    /// `slot` no longer holds a record.
    fn removed(&mut self, slot: usize);

    /// The slot that gives way for a record of `layer`, or `None` when nothing should give way at this moment.
    ///
    /// Returns only slots for which `is_evictable` is true (resident, not pinned). When every slot holds a record and
    /// all are evictable it must return one of them.
    fn victim(&self, layer: u32, is_evictable: &dyn Fn(usize) -> bool) -> Option<usize>;
}
