//! Replays recorded routing through the eviction policies, and through Belady's optimum.
//!
//! [`Visits::replay`] drives the very policy objects of the store, in the store's order of calls, so its hits are those of a
//! real run with the same slots, as long as each visit fits the slots that are its layer's to use. In a visit that does not
//! (a long prompt chunk in a small cache), which of its records are left at its end depends on the order in which reads land; the
//! replay takes disk order. [`Visits::belady`] knows the future and is a bound for all.

use std::collections::BinaryHeap;

use crate::geometry::ExpertKey;
use crate::policy::{EvictionPolicy, PolicyKind};
use crate::trace::{RoutingTrace, order_by_last_use};

const NONE: u32 = u32::MAX;

/// Hits and misses of a replay. "Decode" are the passes of a single row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ReplayCounts {
    /// Requested experts that were in memory.
    pub hits: u64,
    /// Requested experts that were not.
    pub misses: u64,
    /// The part of `hits` that belongs to decode.
    pub decode_hits: u64,
    /// The part of `misses` that belongs to decode.
    pub decode_misses: u64,
}

impl ReplayCounts {
    /// Share of requests that hit, 0 to 1; 0 when there was none.
    pub fn hit_rate(&self) -> f64 {
        share(self.hits, self.misses)
    }

    /// Share of the requests of decode that hit, 0 to 1; 0 when there was none.
    pub fn decode_hit_rate(&self) -> f64 {
        share(self.decode_hits, self.decode_misses)
    }

    fn count(&mut self, decode: bool, hit: bool) {
        let [hits, misses] = [u64::from(hit), u64::from(!hit)];
        self.hits += hits;
        self.misses += misses;
        if decode {
            self.decode_hits += hits;
            self.decode_misses += misses;
        }
    }
}

fn share(hits: u64, misses: u64) -> f64 {
    if hits + misses == 0 { 0.0 } else { hits as f64 / (hits + misses) as f64 }
}

#[derive(Clone, Copy, Debug)]
struct Visit {
    layer: u32,
    decode: bool,
    /// Of the experts it names in `experts`.
    start: u32,
    end: u32,
}

/// The visits that a store sees for a trace.
pub struct Visits {
    expert_counts: Vec<usize>,
    first_record: Vec<usize>,
    visits: Vec<Visit>,
    /// Experts of all visits, in the order in which they are named.
    experts: Vec<u32>,
}

impl Visits {
    /// The visits of `trace`: per pass and layer the distinct experts, in the order of their last use.
    pub fn of(trace: &RoutingTrace) -> Self {
        let expert_counts = trace.expert_counts().to_vec();
        let mut next = 0;
        let mut first_record = Vec::with_capacity(expert_counts.len());
        for count in &expert_counts {
            first_record.push(next);
            next += count;
        }
        let visit_count = trace.passes().len() * expert_counts.len();
        let (mut visits, mut experts) =
            (Vec::with_capacity(visit_count), Vec::with_capacity(trace.choice_count()));
        let (mut last_use, mut named) = (Vec::new(), Vec::new());
        for pass in trace.passes() {
            for (layer, count) in expert_counts.iter().enumerate() {
                let choices = pass.layer(layer).iter().map(|choice| u32::from(*choice));
                order_by_last_use(choices, trace.top_k(), *count, &mut last_use, &mut named);
                let start = experts.len() as u32;
                experts.extend_from_slice(&named);
                let end = experts.len() as u32;
                visits.push(Visit { layer: layer as u32, decode: pass.rows == 1, start, end });
            }
        }
        Self { expert_counts, first_record, visits, experts }
    }

    /// Bytes that the visits of `trace` take, those of [`Visits::belady`] included.
    pub fn memory_bytes(trace: &RoutingTrace) -> usize {
        let visits = trace.passes().len() * trace.expert_counts().len();
        visits * size_of::<Visit>() + trace.choice_count() * (2 * size_of::<u32>() + size_of::<(u32, u32)>())
    }

    /// Records of the model.
    pub fn record_count(&self) -> usize {
        self.expert_counts.iter().sum()
    }

    /// Slots that hold `share` (0 to 1) of the records, at least 1.
    pub fn slots_for(&self, share: f64) -> usize {
        ((self.record_count() as f64 * share).round() as usize).max(1)
    }

    fn named(&self, visit: &Visit) -> &[u32] {
        &self.experts[visit.start as usize..visit.end as usize]
    }

    fn record(&self, visit: &Visit, expert: u32) -> usize {
        self.first_record[visit.layer as usize] + expert as usize
    }

    /// Hits and misses of an empty cache of `slots` slots (at least 1) under `kind`.
    pub fn replay(&self, kind: PolicyKind, slots: usize) -> ReplayCounts {
        let slots = slots.max(1);
        let mut cache = Cache {
            policy: kind.build(slots, &self.expert_counts),
            slot_of_record: vec![NONE; self.record_count()],
            record_of_slot: vec![NONE; slots],
            free: (0..slots).rev().collect(),
            pinned: vec![false; slots],
            in_use: Vec::new(),
        };
        let mut counts = ReplayCounts::default();
        let mut missing = Vec::new();
        for visit in &self.visits {
            let stamp = u64::from(visit.start);
            cache.policy.begin_visit(visit.layer, stamp);
            missing.clear();
            for (stamp, expert) in (stamp..).zip(self.named(visit)) {
                let hit = cache.hit(self.record(visit, *expert), stamp);
                counts.count(visit.decode, hit);
                if !hit {
                    missing.push((*expert, stamp));
                }
            }
            missing.sort_unstable();
            for (expert, stamp) in &missing {
                let key = ExpertKey { layer: visit.layer, expert: *expert };
                cache.load(key, self.record(visit, *expert), *stamp);
            }
            cache.release();
        }
        counts
    }

    /// Hits and misses of the best cache of `slots` slots that knows the future: no policy can have more hits. After each
    /// visit it keeps the records whose next visit is nearest (L. A. Belady, "A study of replacement algorithms for a
    /// virtual-storage computer", 1966).
    pub fn belady(&self, slots: usize) -> ReplayCounts {
        let mut next_visit = vec![NONE; self.experts.len()];
        let mut seen = vec![NONE; self.record_count()];
        for (number, visit) in self.visits.iter().enumerate().rev() {
            for at in visit.start..visit.end {
                let record = self.record(visit, self.experts[at as usize]);
                next_visit[at as usize] = std::mem::replace(&mut seen[record], number as u32);
            }
        }
        // Per record: its next visit if it is in memory.
        let mut kept = vec![NONE; self.record_count()];
        let mut count = 0;
        let mut farthest: BinaryHeap<(u32, u32)> = BinaryHeap::with_capacity(self.experts.len());
        let mut counts = ReplayCounts::default();
        for visit in &self.visits {
            for at in visit.start..visit.end {
                let record = self.record(visit, self.experts[at as usize]);
                let next = next_visit[at as usize];
                let before = std::mem::replace(&mut kept[record], next);
                counts.count(visit.decode, before != NONE);
                count = count + usize::from(next != NONE) - usize::from(before != NONE);
                if next != NONE {
                    farthest.push((next, record as u32));
                }
            }
            while count > slots {
                let (next, record) = farthest.pop().expect("every kept record is listed");
                if kept[record as usize] == next {
                    kept[record as usize] = NONE;
                    count -= 1;
                }
            }
        }
        counts
    }
}

/// The bookkeeping of a store without its bytes.
struct Cache {
    policy: Box<dyn EvictionPolicy>,
    slot_of_record: Vec<u32>,
    record_of_slot: Vec<u32>,
    free: Vec<usize>,
    pinned: Vec<bool>,
    /// Pinned slots.
    in_use: Vec<usize>,
}

impl Cache {
    fn hit(&mut self, record: usize, stamp: u64) -> bool {
        let slot = self.slot_of_record[record];
        if slot == NONE {
            return false;
        }
        self.pin(slot as usize);
        self.policy.used(slot as usize, stamp);
        true
    }

    fn pin(&mut self, slot: usize) {
        self.pinned[slot] = true;
        self.in_use.push(slot);
    }

    /// Everything was handed out and given back.
    fn release(&mut self) {
        for slot in self.in_use.drain(..) {
            self.pinned[slot] = false;
        }
    }

    fn victim(&mut self, layer: u32) -> Option<usize> {
        let pinned = &self.pinned;
        self.policy.victim(layer, &|slot| !pinned[slot])
    }

    fn load(&mut self, key: ExpertKey, record: usize, stamp: u64) {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                let slot = self.victim(key.layer).or_else(|| {
                    self.release();
                    self.victim(key.layer)
                });
                let slot = slot.expect("with nothing in use, something gives way");
                self.slot_of_record[self.record_of_slot[slot] as usize] = NONE;
                self.policy.removed(slot);
                slot
            }
        };
        self.slot_of_record[record] = slot as u32;
        self.record_of_slot[slot] = record as u32;
        self.policy.inserted(slot, key, stamp);
        self.pin(slot);
    }
}
