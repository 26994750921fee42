//! Every policy under random histories: it names only slots that may give way, always names one when all may, keeps the quota
//! of every layer and the records of the running visit. And the default still hits when the routing repeats and the slots do
//! not hold one whole token, where one global LRU never hits.

use coldpress_experts::policy::{Order, Split, quotas};
use coldpress_experts::{EvictionPolicy, ExpertKey, ExpertStore, PolicyKind, StoreConfig};
use coldpress_testkit::{ExpertSource, Random, SourceShape, visit_records};
use coldpress_workers::Workers;
use proptest::prelude::*;

/// A plain model of a store: what is where, and which slots are busy.
struct Model {
    kind: PolicyKind,
    policy: Box<dyn EvictionPolicy>,
    quotas: Vec<usize>,
    records: Vec<Option<ExpertKey>>,
    busy: Vec<bool>,
    stamps: Vec<u64>,
    visit_stamp: u64,
    clock: u64,
}

impl Model {
    fn new(kind: PolicyKind, slots: usize, counts: &[usize]) -> Self {
        Self {
            kind,
            policy: kind.build(slots, counts),
            quotas: quotas(slots, counts.len()),
            records: vec![None; slots],
            busy: vec![false; slots],
            stamps: vec![0; slots],
            visit_stamp: 0,
            clock: 0,
        }
    }

    fn begin_visit(&mut self, layer: u32) {
        self.visit_stamp = self.clock + 1;
        self.policy.begin_visit(layer, self.visit_stamp);
    }

    fn count(&self, layer: u32) -> usize {
        self.records.iter().flatten().filter(|key| key.layer == layer).count()
    }

    fn load(&mut self, key: ExpertKey) -> Result<(), TestCaseError> {
        self.clock += 1;
        if let Some(slot) = self.records.iter().position(|record| *record == Some(key)) {
            self.policy.used(slot, self.clock);
            self.stamps[slot] = self.clock;
            return Ok(());
        }
        let free = self.records.iter().position(Option::is_none);
        let busy = &self.busy;
        let Some(slot) = free.or_else(|| self.policy.victim(key.layer, &|slot| !busy[slot])) else {
            prop_assert!(self.busy.contains(&true), "all slots may give way, but none was named");
            return Ok(());
        };
        if free.is_none() {
            prop_assert!(!self.busy[slot], "slot {slot} is busy");
            self.check_victim(key.layer, slot)?;
            self.policy.removed(slot);
        }
        self.policy.inserted(slot, key, self.clock);
        self.records[slot] = Some(key);
        self.stamps[slot] = self.clock;

        Ok(())
    }

    fn check_victim(&self, layer: u32, slot: usize) -> Result<(), TestCaseError> {
        let evicted = self.records[slot].expect("every slot holds a record");
        let may_go = |other: &usize| !self.busy[*other] && self.stamps[*other] < self.visit_stamp;
        if self.kind.split == Split::PerLayer {
            let surplus = self.count(evicted.layer) > self.quotas[evicted.layer as usize];
            prop_assert!(
                evicted.layer == layer || surplus || self.count(layer) == 0,
                "{evicted} is within the quota of its layer"
            );
            let own_earlier = (0..self.records.len())
                .any(|other| self.records[other].is_some_and(|key| key.layer == layer) && may_go(&other));
            prop_assert!(self.stamps[slot] < self.visit_stamp || !own_earlier);
        } else if self.stamps[slot] >= self.visit_stamp {
            let earlier = (0..self.records.len()).any(|other| may_go(&other));
            prop_assert!(!earlier, "a record of this visit gives way before an earlier one");
        }
        if self.kind.order == Order::Lru {
            for other in 0..self.records.len() {
                let same_pool = self.kind.split == Split::Global
                    || self.records[other].is_some_and(|record| record.layer == evicted.layer);
                let older = same_pool && !self.busy[other] && self.stamps[other] < self.stamps[slot];
                prop_assert!(!older, "slot {other} of the same pool is older");
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn only_free_to_go_and_within_quota(
        which in 0..PolicyKind::ALL.len(), slots in 1_usize..24, layers in 1_u32..5,
        experts in 1_u32..10, seed: u64,
    ) {
        let counts = vec![experts as usize; layers as usize];
        let mut model = Model::new(PolicyKind::ALL[which].1, slots, &counts);
        let mut random = Random::new(seed);
        for _ in 0..200 {
            let share = [0.0, 0.3, 0.9][random.below(3)];
            model.busy.iter_mut().for_each(|busy| *busy = random.chance(share));
            let layer = random.below(layers as usize) as u32;
            model.begin_visit(layer);
            for _ in 0..random.below(4) {
                model.load(ExpertKey { layer, expert: random.below(experts as usize) as u32 })?;
            }
        }
    }
}

#[test]
fn repeated_routing_hits_with_fewer_slots_than_one_token_needs() {
    let folder = tempfile::tempdir().unwrap();
    let shape = SourceShape { experts: 16, ..SourceShape::default() };
    let source = ExpertSource::create(folder.path(), &shape);
    Workers::new(1).enter(|team| {
        // Three layers with top 8 touch 24 records per token.
        for (slots, hits_per_token_wanted) in [(4, 1), (12, 6), (20, 12), (23, 15)] {
            let mut store = ExpertStore::open(source.store_config(slots)).unwrap();
            let chosen =
                [[0, 1, 2, 3, 4, 5, 6, 7], [1, 3, 5, 7, 9, 11, 13, 15], [15, 14, 13, 12, 3, 2, 1, 0]];
            let token = |store: &mut ExpertStore| {
                for (layer, experts) in chosen.iter().enumerate() {
                    visit_records(store, team, layer, experts).unwrap();
                }
            };
            (0..4).for_each(|_| token(&mut store));
            let before = store.statistics().hits;
            (0..10).for_each(|_| token(&mut store));
            let hits_per_token = (store.statistics().hits - before) / 10;
            assert!(
                hits_per_token >= hits_per_token_wanted,
                "{slots} slots: {hits_per_token} hits per token"
            );
        }
    });
}

/// A prefill chunk with more experts than slots leaves those of its last tokens, and other layers keep their quota.
#[test]
fn a_long_prompt_leaves_its_latest_experts_and_other_layers_alone() {
    let folder = tempfile::tempdir().unwrap();
    let source = ExpertSource::create(folder.path(), &SourceShape { experts: 32, ..SourceShape::default() });
    Workers::new(1).enter(|team| {
        let lru = PolicyKind::parse("per-layer-lru").unwrap().build(30, &[32; 3]);
        let mut store =
            ExpertStore::open(StoreConfig { policy: Some(lru), ..source.store_config(30) }).unwrap();
        (0..3).for_each(|layer| drop(visit_records(&mut store, team, layer, &[0, 1, 2, 3, 4, 5]).unwrap()));
        let mut order = Random::new(9).distinct(32, 32);
        visit_records(&mut store, team, 1, &order).unwrap();
        let hits = |store: &mut ExpertStore, layer: usize, experts: &[u32]| {
            let before = store.statistics().hits;
            drop(store.begin(layer, experts).unwrap());
            store.statistics().hits - before
        };
        assert_eq!(hits(&mut store, 0, &[0, 1, 2, 3, 4, 5]), 6, "layer 0 keeps its records");
        let latest = order.split_off(32 - 6);
        assert_eq!(hits(&mut store, 1, &latest), 6, "the latest experts stayed");
    });
}
