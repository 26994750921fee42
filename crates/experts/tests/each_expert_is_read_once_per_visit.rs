//! Within a visit each missing expert is read exactly once and none that is in memory, however few the slots; hits come
//! first. Reading an expert again within one prompt chunk is how peers read four times the model.

use coldpress_experts::{ExpertStore, ReaderChoice, StoreConfig};
use coldpress_testkit::{ExpertSource, FaultRates, Random, SimulatedReader, SourceShape};
use coldpress_workers::Workers;

#[test]
fn reads_equal_misses_for_any_number_of_slots() {
    let folder = tempfile::tempdir().unwrap();
    let source = ExpertSource::create(folder.path(), &SourceShape { experts: 16, ..SourceShape::default() });
    Workers::new(1).enter(|team| {
        for slots in [1, 2, 3, 8, 47, 48] {
            let reader = SimulatedReader::new(slots as u64, 30, FaultRates::default());
            let reader = ReaderChoice::Custom(Box::new(reader));
            let mut store = ExpertStore::open(StoreConfig { reader, ..source.store_config(slots) }).unwrap();
            let mut random = Random::new(5);
            for round in 0..60 {
                let experts = random.distinct(1 + random.clone().below(16), 16);
                let before = store.statistics();
                let mut handed_out = vec![0; experts.len()];
                let mut batches = Vec::new();
                let mut visit = store.begin(round % 3, &experts).unwrap();
                while let Some(ready) = visit.next_ready(team).unwrap() {
                    ready.iter().for_each(|(position, _)| handed_out[position] += 1);
                    batches.push(ready.len() as u64);
                }
                drop(visit);
                let after = store.statistics();
                assert_eq!(handed_out, vec![1; experts.len()], "each expert once");
                let misses = after.misses - before.misses;
                assert_eq!(after.reads - before.reads, 3 * misses, "three matrices for each miss");
                let hits = after.hits - before.hits;
                assert_eq!(hits + misses, experts.len() as u64);
                assert!(hits == 0 || batches[0] >= hits, "hits are in the first batch");
            }
            let statistics = store.statistics();
            let total_hits = statistics.hits;
            assert!(
                slots < 48 || statistics.misses == 48,
                "with a slot for each expert nothing is read twice"
            );
            assert!(slots < 47 || total_hits > 0);
        }
    });
}

#[test]
fn a_request_that_makes_no_sense_is_refused_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let source = ExpertSource::create(folder.path(), &SourceShape::default());
    let mut store = ExpertStore::open(source.store_config(4)).unwrap();
    for (layer, experts, wanted) in [
        (0, vec![1, 8], "routed layer 0 expert 8 was requested 1 times"),
        (3, vec![0], "routed layer 3 expert 0"),
        (1, vec![4, 2, 4], "expert 4 was requested 2 times"),
    ] {
        let message = store.begin(layer, &experts).err().expect("refused").to_string();
        assert!(message.contains(wanted), "{message}");
    }
    assert_eq!(store.statistics(), Default::default());
}
