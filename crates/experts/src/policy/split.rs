//! How layers share the slots: each has a quota, or all draw from one pool.
//!
//! A forward pass visits the layers in a cycle. With one pool, an order by time of use fails as soon as one token touches
//! more records than there are slots: each is evicted just before its layer comes round again. With a quota each layer keeps
//! its own warmest records: a layer that has its quota makes room among its own, a layer below it takes from whichever layer
//! is most over it. The slots beyond `quota * layers` belong to nobody and move to where reads are in flight.
//!
//! Under either split the records of the running visit give way last: they were just asked for, and so the choice does
//! not depend on which of them have been handed out already.

use super::EvictionPolicy;
use super::kind::PolicyShape;
use crate::geometry::ExpertKey;

/// Keeps the records of each pool in the order in which they give way.
pub(super) trait PoolOrder: Send {
    /// A visit begins.
    fn begin_visit(&mut self);
    /// `slot` of `pool` holds record number `record`.
    fn insert(&mut self, pool: usize, slot: usize, record: usize, stamp: u64);
    /// What [`EvictionPolicy::seeded`] says.
    fn seed(&mut self, slot: usize, uses: u32);
    /// The record in `slot` is used.
    fn touch(&mut self, slot: usize, stamp: u64);
    /// `slot` is free.
    fn remove(&mut self, slot: usize);
    /// Records in `pool`.
    fn len(&self, pool: usize) -> usize;
    /// The candidate of `pool` that gives way first. It will be evicted.
    fn coldest(&mut self, pool: usize, is_candidate: &dyn Fn(usize) -> bool) -> Option<usize>;
}

/// An order within a split.
pub(super) struct SplitPolicy<O> {
    name: &'static str,
    order: O,
    /// Slots that each layer may call its own; `None` for one pool.
    quota: Option<usize>,
    layers: usize,
    /// Number of the first record of each layer.
    first_record: Vec<usize>,
    /// Per slot: its latest use.
    stamps: Vec<u64>,
    /// First stamp of the running visit.
    visit_stamp: u64,
}

impl<O: PoolOrder> SplitPolicy<O> {
    /// `order` must have one pool per layer of `shape` where there is a quota, else one pool.
    pub fn new(name: &'static str, order: O, quota: Option<usize>, shape: &PolicyShape<'_>) -> Self {
        Self {
            name,
            order,
            quota,
            layers: shape.expert_counts.len(),
            first_record: shape.first_records(),
            stamps: vec![0; shape.slots],
            visit_stamp: 0,
        }
    }
}

/// The coldest candidate of the pool that has to give: the layer's own when it has its quota, else that of the fullest layer.
fn choose<O: PoolOrder>(
    order: &mut O,
    quota: Option<usize>,
    layers: usize,
    layer: usize,
    is_candidate: &dyn Fn(usize) -> bool,
) -> Option<usize> {
    let Some(quota) = quota else { return order.coldest(0, is_candidate) };
    if order.len(layer) >= quota
        && let Some(slot) = order.coldest(layer, is_candidate)
    {
        return Some(slot);
    }
    // Layers from the fullest down, until one has a candidate. Mostly the first one does.
    let mut fuller_than = usize::MAX;
    loop {
        let surplus =
            (0..layers).map(|layer| order.len(layer)).filter(|len| (quota + 1..fuller_than).contains(len));
        let fullest = surplus.max()?;
        for other in 0..layers {
            if order.len(other) == fullest
                && let Some(slot) = order.coldest(other, is_candidate)
            {
                return Some(slot);
            }
        }
        fuller_than = fullest;
    }
}

impl<O: PoolOrder> EvictionPolicy for SplitPolicy<O> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn begin_visit(&mut self, _layer: u32, stamp: u64) {
        self.visit_stamp = stamp;
        self.order.begin_visit();
    }

    fn inserted(&mut self, slot: usize, key: ExpertKey, stamp: u64) {
        self.stamps[slot] = stamp;
        let layer = key.layer as usize;
        let pool = if self.quota.is_some() { layer } else { 0 };
        self.order.insert(pool, slot, self.first_record[layer] + key.expert as usize, stamp);
    }

    fn seeded(&mut self, slot: usize, uses: u32) {
        self.order.seed(slot, uses);
    }

    fn used(&mut self, slot: usize, stamp: u64) {
        self.stamps[slot] = stamp;
        self.order.touch(slot, stamp);
    }

    fn removed(&mut self, slot: usize) {
        self.order.remove(slot);
    }

    fn victim(&mut self, layer: u32, is_evictable: &dyn Fn(usize) -> bool) -> Option<usize> {
        let layer = layer as usize;
        let Self { order, quota, layers, stamps, visit_stamp, .. } = self;
        let earlier = |slot: usize| stamps[slot] < *visit_stamp && is_evictable(slot);
        let slot = choose(order, *quota, *layers, layer, &earlier);
        slot.or_else(|| choose(order, *quota, *layers, layer, is_evictable))
    }
}
