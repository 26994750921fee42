//! The policies by name: orders times splits.

use super::EvictionPolicy;
use super::decayed_lfu::DecayedLfu;
use super::least_stale::LeastStale;
use super::lfuda::Lfuda;
use super::lru::Lru;
use super::ranked::Ranked;
use super::s3_fifo::S3Fifo;
use super::split::SplitPolicy;

/// Forward passes after which a use counts half in decayed LFU. 16 or 32 change the hit rates of the recorded traces by less
/// than a point; with 256 they fall by about five after a change of topic.
const HALF_LIFE_PASSES: f64 = 24.0;

/// With fewer slots per layer some slots belong to nobody.
const FEW_PER_LAYER: usize = 16;
/// How many. Twice as many cost hits, half as many leave reads without room.
const FLOATING: usize = 4;

/// Which record of a pool gives way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// The one used longest ago.
    Lru,
    /// The one used least, where older uses count less.
    DecayedLfu,
    /// The one used least since it came in, with dynamic ageing.
    Lfuda,
    /// Two queues and a memory of what gave way.
    S3Fifo,
    /// One of a layer that the pass has left.
    LeastStale,
}

/// How layers share the slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Split {
    /// Each layer has a quota.
    PerLayer,
    /// All layers draw from one pool.
    Global,
}

/// What a policy is made for.
#[derive(Clone, Copy, Debug)]
pub(super) struct PolicyShape<'a> {
    pub slots: usize,
    /// Experts of each routed layer.
    pub expert_counts: &'a [usize],
}

impl PolicyShape<'_> {
    /// Number of the first record of each layer.
    pub fn first_records(&self) -> Vec<usize> {
        self.expert_counts
            .iter()
            .scan(0, |next, count| {
                let first = *next;
                *next += count;
                Some(first)
            })
            .collect()
    }
}

/// An eviction policy by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PolicyKind {
    /// Which record of a pool gives way.
    pub order: Order,
    /// What the pools are.
    pub split: Split,
}

const fn kind(order: Order, split: Split) -> PolicyKind {
    PolicyKind { order, split }
}

impl PolicyKind {
    /// All policies with their names on the command line; the first one is the default.
    pub const ALL: [(&'static str, Self); 9] = [
        ("per-layer-lfu", kind(Order::DecayedLfu, Split::PerLayer)),
        ("per-layer-lru", kind(Order::Lru, Split::PerLayer)),
        ("per-layer-lfuda", kind(Order::Lfuda, Split::PerLayer)),
        ("per-layer-s3-fifo", kind(Order::S3Fifo, Split::PerLayer)),
        ("global-lru", kind(Order::Lru, Split::Global)),
        ("global-lfu", kind(Order::DecayedLfu, Split::Global)),
        ("global-lfuda", kind(Order::Lfuda, Split::Global)),
        ("global-s3-fifo", kind(Order::S3Fifo, Split::Global)),
        ("least-stale", kind(Order::LeastStale, Split::Global)),
    ];

    /// The default: what wins on recorded traces, see `docs/streaming.md`.
    pub const DEFAULT: Self = Self::ALL[0].1;

    /// The policy called `name`.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind)
    }

    /// Name on the command line and in reports.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, kind)| *kind == self).map_or("unnamed", |(name, _)| name)
    }

    /// The policy for `slots` slots. `expert_counts` has one entry per routed layer. Allocates everything it will ever need.
    pub fn build(self, slots: usize, expert_counts: &[usize]) -> Box<dyn EvictionPolicy> {
        let name = self.name();
        let shape = PolicyShape { slots, expert_counts };
        if self.order == Order::LeastStale {
            return Box::new(LeastStale::new(name, &shape));
        }
        let records = expert_counts.iter().sum();
        let layers = expert_counts.len();
        let quotas = quotas(slots, layers);
        let one_pool = [records];
        let (quotas, pool_sizes, pool_size) = match self.split {
            Split::PerLayer => (Some(quotas), expert_counts, slots / layers.max(1)),
            Split::Global => (None, one_pool.as_slice(), slots),
        };
        let pools = pool_sizes.len();
        match self.order {
            Order::Lru | Order::LeastStale => {
                let order = Ranked::new(slots, pool_sizes, Lru);
                Box::new(SplitPolicy::new(name, order, quotas, &shape))
            }
            Order::DecayedLfu => {
                let ranking = DecayedLfu::new(records, layers, HALF_LIFE_PASSES);
                Box::new(SplitPolicy::new(name, Ranked::new(slots, pool_sizes, ranking), quotas, &shape))
            }
            Order::Lfuda => {
                let order = Ranked::new(slots, pool_sizes, Lfuda::new(pools, records));
                Box::new(SplitPolicy::new(name, order, quotas, &shape))
            }
            Order::S3Fifo => {
                let order = S3Fifo::new(slots, pools, pool_size, records);
                Box::new(SplitPolicy::new(name, order, quotas, &shape))
            }
        }
    }
}

/// Slots that each layer may call its own, as even as can be. Where layers have few, some slots belong to nobody: they go to
/// the layer that is being visited, so that its reads have room and its new records need not push out its warm ones.
pub fn quotas(slots: usize, layers: usize) -> Vec<usize> {
    let few = slots < FEW_PER_LAYER * layers;
    let floating = if few { FLOATING.min(slots / 4) } else { 0 };
    let owned = slots - floating;
    (0..layers).map(|layer| owned * (layer + 1) / layers - owned * layer / layers).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_kinds_belong_together() {
        for (name, kind) in PolicyKind::ALL {
            assert_eq!(PolicyKind::parse(name), Some(kind));
            assert_eq!(kind.name(), name);
            assert_eq!(kind.build(9, &[4, 4]).name(), name);
        }
        assert_eq!(PolicyKind::parse("lru"), None);
    }
}
