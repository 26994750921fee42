//! How layers share the slots: each has a quota, or all draw from one pool.
//!
//! A forward pass visits the layers in a cycle. With one pool, an order by time of use fails as soon as one token touches
//! more records than there are slots: each is evicted just before its layer comes round again. With quotas each layer keeps
//! its own warmest records. Where layers have few slots, some belong to nobody: they move with the pass, because a slot is
//! taken first from whichever other layer is most above its quota, and only then from the layer itself. So the layer that
//! is visited can read without giving up its warm records at once; what it has too many is decided when the pass goes on.
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
    /// Slots have numbers below `numbers`; a pool is to hold about `pool_size` of them.
    fn resize(&mut self, numbers: usize, pool_size: usize);
}

/// An order within a split.
pub(super) struct SplitPolicy<O> {
    name: &'static str,
    order: O,
    /// Slots that each layer may call its own; `None` for one pool.
    quotas: Option<Vec<usize>>,
    /// Number of the first record of each layer.
    first_record: Vec<usize>,
    /// Per slot: its latest use.
    stamps: Vec<u64>,
    /// First stamp of the running visit.
    visit_stamp: u64,
}

impl<O: PoolOrder> SplitPolicy<O> {
    /// `order` must have one pool per layer of `shape` where there is a quota, else one pool.
    pub fn new(name: &'static str, order: O, quotas: Option<Vec<usize>>, shape: &PolicyShape<'_>) -> Self {
        Self {
            name,
            order,
            quotas,
            first_record: shape.first_records(),
            stamps: vec![0; shape.slots],
            visit_stamp: 0,
        }
    }
}

/// The coldest candidate of the pool that has to give: that of the other layer most above its quota, else the layer's own.
fn choose<O: PoolOrder>(
    order: &mut O,
    quotas: Option<&[usize]>,
    layer: usize,
    is_candidate: &dyn Fn(usize) -> bool,
) -> Option<usize> {
    let Some(quotas) = quotas else { return order.coldest(0, is_candidate) };
    // Layers from the fullest down, until one has a candidate. Mostly the first one does.
    let mut less_than = usize::MAX;
    loop {
        let surplus = |order: &O, other: usize| order.len(other).saturating_sub(quotas[other]);
        let others = (0..quotas.len()).filter(|other| *other != layer);
        let most = others.clone().map(|other| surplus(order, other)).filter(|count| *count < less_than).max();
        let Some(most @ 1..) = most else { break };
        for other in others {
            if surplus(order, other) == most
                && let Some(slot) = order.coldest(other, is_candidate)
            {
                return Some(slot);
            }
        }
        less_than = most;
    }
    if order.len(layer) > 0 {
        return order.coldest(layer, is_candidate);
    }
    // Fewer slots than layers: this layer has none, and the others have just their quotas.
    (0..quotas.len()).find_map(|other| order.coldest(other, is_candidate))
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
        let pool = if self.quotas.is_some() { layer } else { 0 };
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
        let Self { order, quotas, stamps, visit_stamp, .. } = self;
        let earlier = |slot: usize| stamps[slot] < *visit_stamp && is_evictable(slot);
        let slot = choose(order, quotas.as_deref(), layer, &earlier);
        slot.or_else(|| choose(order, quotas.as_deref(), layer, is_evictable))
    }

    fn resize(&mut self, numbers: usize, slots: usize) {
        self.stamps.resize(numbers, 0);
        let layers = self.first_record.len();
        match &mut self.quotas {
            Some(quotas) => {
                *quotas = super::quotas(slots, layers);
                self.order.resize(numbers, slots / layers.max(1));
            }
            None => self.order.resize(numbers, slots),
        }
    }
}
