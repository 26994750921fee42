//! Least-Stale, after Hoang et al., "SpecMD: A Comprehensive Study On Speculative Expert Prefetching", arXiv 2602.03921.
//!
//! A forward pass visits the layers in a cycle, so after a layer has been left its records are of no use until the next pass:
//! they are stale, and give way first, the one used longest ago before the others. Records of layers that this pass has still
//! to visit give way only when nothing is stale, those of the last layer first. This is our reading of the idea for one
//! cache that all layers share; the paper adds prefetching, which fills that cache ahead of the pass.

use super::EvictionPolicy;
use super::heap::SlotHeaps;
use super::kind::PolicyShape;
use crate::geometry::ExpertKey;

/// See the module header.
pub(super) struct LeastStale {
    name: &'static str,
    /// One pool per layer, ordered by time of use.
    heaps: SlotHeaps,
    /// First stamp of the running visit.
    visit_stamp: u64,
}

impl LeastStale {
    pub fn new(name: &'static str, shape: &PolicyShape<'_>) -> Self {
        Self { name, heaps: SlotHeaps::new(shape.slots, shape.expert_counts), visit_stamp: 0 }
    }

    fn choose(&self, layer: usize, is_candidate: &dyn Fn(usize) -> bool) -> Option<usize> {
        let coldest = |layer| self.heaps.coldest(layer, is_candidate);
        let stale = (0..=layer).filter_map(coldest).min_by_key(|slot| self.heaps.rank(*slot));
        stale.or_else(|| (layer + 1..self.heaps.pools()).rev().find_map(coldest))
    }
}

impl EvictionPolicy for LeastStale {
    fn name(&self) -> &'static str {
        self.name
    }

    fn begin_visit(&mut self, _layer: u32, stamp: u64) {
        self.visit_stamp = stamp;
    }

    fn inserted(&mut self, slot: usize, key: ExpertKey, stamp: u64) {
        self.heaps.insert(key.layer as usize, slot, (0, stamp));
    }

    fn seeded(&mut self, _slot: usize, _uses: u32) {}

    fn used(&mut self, slot: usize, stamp: u64) {
        self.heaps.update(slot, (0, stamp));
    }

    fn removed(&mut self, slot: usize) {
        self.heaps.remove(slot);
    }

    fn victim(&mut self, layer: u32, is_evictable: &dyn Fn(usize) -> bool) -> Option<usize> {
        let layer = layer as usize;
        let earlier = |slot: usize| self.heaps.rank(slot).1 < self.visit_stamp && is_evictable(slot);
        self.choose(layer, &earlier).or_else(|| self.choose(layer, is_evictable))
    }

    fn resize(&mut self, numbers: usize, _slots: usize) {
        self.heaps.resize(numbers);
    }
}
