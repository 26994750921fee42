//! Whatever the reader, the number of slots, the read-ahead, the file layout and the byte order: a record has the same bytes,
//! with a pack and without one. A difference here would make logits depend on the budget.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use coldpress_experts::pack::write_pack;
use coldpress_experts::{
    ExpertKey, ExpertStore, Fingerprint, PackFile, ReaderChoice, Residency, StoreConfig,
};
use coldpress_kernels::WeightFormat;
use coldpress_kernels::blocks::has_big_endian_form;
use coldpress_memory::Ledger;
use coldpress_testkit::{ExpertSource, FaultRates, Random, SimulatedReader, SourceShape, visit_records};
use coldpress_workers::{Team, Workers};

fn shapes() -> Vec<SourceShape> {
    let one_layer =
        |formats| SourceShape { formats: vec![formats], experts: 5, files: 1, ..SourceShape::default() };
    let mut shapes = vec![SourceShape::default(), SourceShape { separate: true, ..SourceShape::default() }];
    for format in WeightFormat::ALL.into_iter().take(12) {
        shapes.push(SourceShape { inner: 512, ..one_layer([format; 3]) });
        shapes.push(SourceShape { big_endian: true, ..one_layer([format; 3]) });
    }
    // Another format for each matrix, another record size for each layer.
    let (mixed, _) = WeightFormat::ALL[11..].as_chunks::<3>();
    let swapped = mixed.iter().copied().filter(|three| three.iter().all(|&one| has_big_endian_form(one)));
    for (formats, big_endian) in [(swapped.collect(), true), (mixed.to_vec(), false)] {
        shapes.push(SourceShape { formats, inner: 512, experts: 4, big_endian, ..SourceShape::default() });
    }
    // Rows that do not fill a group of 16, rows shorter than a block of the device.
    shapes.push(SourceShape { hidden: 32, inner: 96, ..one_layer([WeightFormat::Q4_0; 3]) });
    // Matrices that do not fill a cache line, in slots that held a record with other gaps before.
    let formats = vec![[WeightFormat::F32; 3], [WeightFormat::BF16; 3]];
    shapes.push(SourceShape { formats, hidden: 7, inner: 13, experts: 5, ..SourceShape::default() });
    shapes
}

fn readers() -> Vec<ReaderChoice> {
    let rates = FaultRates { short: 0.3, interrupted: 0.1, again: 0.1, ..FaultRates::default() };
    vec![
        ReaderChoice::Auto,
        ReaderChoice::Pread,
        ReaderChoice::Custom(Box::new(SimulatedReader::new(7, 12, FaultRates::default()))),
        ReaderChoice::Custom(Box::new(SimulatedReader::new(8, 5, rates))),
    ]
}

type Records = BTreeMap<ExpertKey, Vec<u8>>;

fn check_all(team: &Team<'_>, expected: &Records, config: StoreConfig, what: &str) {
    let counts: Vec<usize> = config.layers.iter().map(|layer| layer.expert_count).collect();
    let mut store = ExpertStore::open(config).unwrap();
    let mut random = Random::new(3);
    for round in 0..3 {
        for (layer, count) in counts.iter().copied().enumerate() {
            let wanted = if round == 0 { count } else { 1 + random.below(count) };
            let experts = random.distinct(wanted, count);
            let records = visit_records(&mut store, team, layer, &experts).unwrap();
            for (expert, record) in records {
                let key = ExpertKey { layer: layer as u32, expert };
                assert!(record == expected[&key], "{key}: {what}");
            }
        }
    }
}

#[test]
fn every_way_gives_the_expected_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let workers = Workers::new(2);
    workers.enter(|team| {
        for (index, shape) in shapes().iter().enumerate() {
            let folder = folder.path().join(index.to_string());
            std::fs::create_dir(&folder).unwrap();
            let source = ExpertSource::create(&folder, shape);
            let expected = source.expected_records();
            let pack_path = folder.join("pack.cpack");
            let ledger = Ledger::unlimited();
            write_pack(source.pack_config(&pack_path, &ledger), team, &AtomicBool::new(false), |_, _| {})
                .unwrap();
            let fingerprint = Fingerprint::of(&source.files, &source.layers).unwrap();
            let pack = PackFile::open(&pack_path, &source.geometry(), &fingerprint).unwrap();
            for slots in [1, 2, 5, 24] {
                for (number, reader) in readers().into_iter().enumerate() {
                    for pack in [None, Some(pack.clone())] {
                        let what =
                            format!("{shape:?}, {slots} slots, reader {number}, pack {}", pack.is_some());
                        let read_ahead = 1 + (slots + number) % 4;
                        let reader = match &reader {
                            ReaderChoice::Custom(_) if pack.is_some() => ReaderChoice::Auto,
                            _ => clone_of(number, &reader),
                        };
                        let config = StoreConfig { pack, reader, read_ahead, ..source.store_config(slots) };
                        check_all(team, &expected, config, &what);
                    }
                }
            }
            let resident = StoreConfig { residency: Residency::Resident, ..source.store_config(0) };
            check_all(team, &expected, resident, "resident");
        }
    });
}

/// Choices with a reader inside cannot be copied; the seed makes an equal one.
fn clone_of(number: usize, choice: &ReaderChoice) -> ReaderChoice {
    match choice {
        ReaderChoice::Auto => ReaderChoice::Auto,
        ReaderChoice::Uring => ReaderChoice::Uring,
        ReaderChoice::Pread => ReaderChoice::Pread,
        ReaderChoice::Custom(_) => readers().swap_remove(number),
    }
}
