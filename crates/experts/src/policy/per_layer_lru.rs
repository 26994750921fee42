//! Per-layer LRU with a quota: the default policy.
//!
//! A forward pass visits the layers in a cycle, and one global LRU fails on a cycle longer than itself: each record is
//! evicted just before its layer comes round again. Here each layer keeps its own most recent records: a layer that has
//! its quota makes room among its own, a layer below its quota takes from whichever layer is most over it. The slots
//! beyond `quota * layers` belong to nobody and move to where reads are in flight.

use super::EvictionPolicy;
use crate::geometry::ExpertKey;

/// See the module header. Choosing costs one pass over the slots of one layer.
#[derive(Debug)]
pub struct PerLayerLru {
    quota: usize,
    /// The slots of each layer, in no order.
    members: Vec<Vec<usize>>,
    /// Per slot: the layer it holds a record of, and its latest use.
    slots: Vec<Member>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Member {
    layer: u32,
    stamp: u64,
}

impl PerLayerLru {
    /// A policy for `slot_count` slots of which `floating` are kept out of the quotas as room for reads in flight.
    /// `expert_counts` has one entry per routed layer.
    pub fn new(slot_count: usize, floating: usize, expert_counts: &[usize]) -> Self {
        let members = expert_counts.iter().map(|count| Vec::with_capacity(slot_count.min(*count))).collect();
        Self {
            quota: slot_count.saturating_sub(floating) / expert_counts.len().max(1),
            members,
            slots: vec![Member::default(); slot_count],
        }
    }

    /// Slots that each layer may call its own.
    pub fn quota(&self) -> usize {
        self.quota
    }

    fn oldest(&self, layer: usize, is_evictable: &dyn Fn(usize) -> bool) -> Option<usize> {
        let evictable = self.members[layer].iter().copied().filter(|slot| is_evictable(*slot));
        evictable.min_by_key(|slot| self.slots[*slot].stamp)
    }

    /// The oldest evictable record of the layer that is most over its quota.
    fn oldest_surplus(&self, is_evictable: &dyn Fn(usize) -> bool) -> Option<usize> {
        let mut choice = None;
        let mut most = self.quota;
        for layer in 0..self.members.len() {
            if self.members[layer].len() > most
                && let Some(slot) = self.oldest(layer, is_evictable)
            {
                most = self.members[layer].len();
                choice = Some(slot);
            }
        }
        choice
    }
}

impl EvictionPolicy for PerLayerLru {
    fn name(&self) -> &'static str {
        "per-layer-lru"
    }

    fn inserted(&mut self, slot: usize, key: ExpertKey, stamp: u64) {
        self.slots[slot] = Member { layer: key.layer, stamp };
        self.members[key.layer as usize].push(slot);
    }

    fn used(&mut self, slot: usize, stamp: u64) {
        self.slots[slot].stamp = stamp;
    }

    fn removed(&mut self, slot: usize) {
        let members = &mut self.members[self.slots[slot].layer as usize];
        let at = members.iter().position(|member| *member == slot).expect("a removed slot was inserted");
        members.swap_remove(at);
    }

    fn victim(&self, layer: u32, is_evictable: &dyn Fn(usize) -> bool) -> Option<usize> {
        let layer = layer as usize;
        let own =
            if self.members[layer].len() >= self.quota { self.oldest(layer, is_evictable) } else { None };
        own.or_else(|| self.oldest_surplus(is_evictable))
    }
}
