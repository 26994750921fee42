//! Eviction policies: which resident record gives way when a slot is needed.
//!
//! A policy is bookkeeping and a choice, nothing else: no I/O, no clock, no lock, no randomness, so a recorded trace
//! replays exactly. It never changes a result, only how much is read. Most policies are an *order* (which record of a pool
//! is the coldest: one file each) within a *split* (`split`: one pool per layer with a quota, or one pool for all).
//! [`PolicyKind`] names the combinations. Read next: `split`, `heap`, then any order.

mod decayed_lfu;
mod heap;
mod kind;
mod least_stale;
mod lfuda;
mod lru;
mod ranked;
mod s3_fifo;
mod split;

pub use kind::{Order, PolicyKind, Split, quotas};

use crate::geometry::ExpertKey;

/// Chooses victims among the slots of a store.
///
/// The store calls `begin_visit` when a layer asks for experts, `inserted` when a slot starts to load, `used` when a record
/// in memory is asked for, and `removed` when a slot becomes free. `stamp` grows with every use: a larger stamp is a later
/// use. No call but `resize` allocates.
pub trait EvictionPolicy: Send {
    /// The name for status and logs.
    fn name(&self) -> &'static str;

    /// `layer` asks for experts; their stamps start at `stamp`.
    fn begin_visit(&mut self, layer: u32, stamp: u64);

    /// `slot` now holds, or will soon hold, the record of `key`.
    fn inserted(&mut self, slot: usize, key: ExpertKey, stamp: u64);

    /// The record in `slot`, just inserted without being asked for, was used `uses` times in earlier runs. Orders that
    /// know only the time of use ignore it.
    fn seeded(&mut self, slot: usize, uses: u32);

    /// The record in `slot` is used.
    fn used(&mut self, slot: usize, stamp: u64);

    /// `slot` no longer holds a record.
    fn removed(&mut self, slot: usize);

    /// The slot that gives way for a record of `layer`, or `None` when nothing should give way at this moment. The caller
    /// evicts what it gets.
    ///
    /// Returns only slots for which `is_evictable` is true (resident, not pinned). When every slot holds a record and
    /// all are evictable it must return one of them.
    fn victim(&mut self, layer: u32, is_evictable: &dyn Fn(usize) -> bool) -> Option<usize>;

    /// From now on `slots` slots exist, with numbers below `numbers`. Those that do not exist hold no record. The one call
    /// that may allocate.
    fn resize(&mut self, numbers: usize, slots: usize);
}
