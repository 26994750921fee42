//! Logits are the same bits and greedy tokens the same ids under every setting that may change only speed and memory.
//!
//! Settings: residency (with how mapped experts are given back), pack, eviction policy, prefetch, reader, parts of a record,
//! slots, chunk, threads, instruction set, and the type of the KV cache, which is compared with itself: each type has bits of its own. Their product has millions of members; here every pair of values of any two of them
//! occurs at least once (`common/pairs.rs`). The values come from the tables of the library, so a policy, mode or reader
//! that is added there is covered without a change here; a new kind of pack use stops this file from compiling.
//! One tiny model runs every row, the one with a shared expert every fourth, the bundled one with quantised weights every eleventh.
//! What could go wrong: a record in the wrong slot, a slot refilled while in use, a policy that gives up what was just read, a
//! read-ahead that lands in a slot of the running layer, a sum in another order.

use std::path::Path;

use crate::common::pairs::pairs;
use crate::common::{Reference, demo, load, logits};
use coldpress::{
    ChoiceOrigin, ForceMode, GenerateOptions, Isa, KvType, LoadConfiguration, POLICIES, PackUse, Prefetch,
    ReaderKind, Residency, Runtime, Silent, pack_model,
};

const SPLITS: [usize; 4] = [1, 2, 3, 8];
/// Below one token's experts, so that every layer refills; some; as many as the budget holds.
const SLOTS: [Option<u64>; 4] = [Some(1), Some(2), Some(9), None];
const THREADS: [usize; 2] = [1, 2];
/// Decoded tokens: enough for `auto` to begin its trial of reading ahead and to change sides in it.
const TOKENS: usize = 18;

/// Where the experts' bytes come from.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Packed {
    No,
    File,
    Built,
    Filling,
}

const PACKED: [Packed; 4] = [Packed::No, Packed::File, Packed::Built, Packed::Filling];

/// A new way to use packs must be given a place here.
fn is_covered_by(pack: &PackUse) -> Packed {
    match pack {
        PackUse::Never => Packed::No,
        PackUse::File(_) | PackUse::IfPresent(_) => Packed::File,
        PackUse::BuildIfAbsent(_) => Packed::Built,
        PackUse::Fill(_) => Packed::Filling,
    }
}

/// Residency, how mapped experts are given back, and pack, as far as they go together.
type Home = (Residency, ForceMode, Packed);

fn homes() -> Vec<Home> {
    let mut homes = Vec::new();
    for (_, residency) in Residency::ALL {
        for packed in PACKED {
            match (residency, packed) {
                (Residency::Mapped, Packed::No | Packed::Filling) => {}
                (Residency::Mapped, _) => {
                    homes.extend(ForceMode::ALL.map(|(_, mode)| (residency, mode, packed)));
                }
                _ => homes.push((residency, ForceMode::Soft, packed)),
            }
        }
    }
    homes
}

fn kv_types(model: &Path) -> Vec<KvType> {
    let works = |kv_type: &KvType| {
        coldpress::plan(model, &LoadConfiguration::default().context(256).kv_type(*kv_type)).is_ok()
    };
    KvType::ALL.into_iter().map(|(_, kv_type)| kv_type).filter(works).collect()
}

/// The lists that rows choose from.
struct Settings {
    homes: Vec<Home>,
    isas: Vec<Isa>,
    chunks: Vec<u32>,
    /// Those that the model may use.
    kv_types: Vec<KvType>,
}

impl Settings {
    fn of(model: &Path, ids: &[u32]) -> Self {
        let runs = |isa: &Isa| coldpress::plan(model, &LoadConfiguration::default().isa(*isa)).is_ok();
        Self {
            homes: homes(),
            isas: Isa::ALL.into_iter().filter(runs).collect(),
            chunks: vec![1, 7, 31, 32, 33, ids.len() as u32],
            kv_types: kv_types(model),
        }
    }

    fn sizes(&self) -> [usize; 10] {
        [
            self.homes.len(),
            POLICIES.len(),
            self.chunks.len(),
            Prefetch::ALL.len(),
            ReaderKind::ALL.len(),
            SPLITS.len(),
            SLOTS.len(),
            THREADS.len(),
            self.isas.len(),
            self.kv_types.len(),
        ]
    }

    fn configuration(&self, row: &[usize], pack: PackUse) -> LoadConfiguration {
        let (residency, force_mode, packed) = self.homes[row[0]];
        assert_eq!(is_covered_by(&pack), packed);
        let configuration = LoadConfiguration::default()
            .residency(residency)
            .force_mode(force_mode)
            .pack(pack)
            .policy(POLICIES[row[1]], ChoiceOrigin::Flag)
            .chunk_tokens(self.chunks[row[2]])
            .prefetch(Prefetch::ALL[row[3]].1, ChoiceOrigin::Flag)
            .reader(ReaderKind::ALL[row[4]].1)
            .split(SPLITS[row[5]])
            .threads(THREADS[row[7]])
            .isa(self.isas[row[8]])
            .kv_type(self.kv_types[row[9]])
            .context(256);
        match SLOTS[row[6]] {
            Some(slots) if residency != Residency::Resident => configuration.slots(slots),
            _ => configuration,
        }
    }
}

/// Logits of all positions as bits, and the greedy answer after them.
fn answer(runtime: &mut Runtime, ids: &[u32]) -> (Vec<u32>, Vec<u32>) {
    let bits = logits(runtime, ids).iter().map(|value| value.to_bits()).collect();
    let mut session = runtime.session().expect("a session");
    let options = GenerateOptions { max_tokens: TOKENS, ignore_eos: true, ..GenerateOptions::default() };
    let answer = runtime.generate(&mut session, ids, &options, &mut Silent).expect("an answer");
    (bits, answer.tokens)
}

fn check(model: &Path, ids: &[u32], step: usize) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("model.cpack");
    pack_model(model, &file, None, &mut Silent).expect("packs");
    let settings = Settings::of(model, ids);
    let plain = LoadConfiguration::default().threads(1).isa(Isa::Scalar).context(256);
    let expected: Vec<_> = settings
        .kv_types
        .iter()
        .map(|&kv_type| answer(&mut load(model, &plain.clone().kv_type(kv_type)), ids))
        .collect();
    assert!(expected.iter().all(|(_, tokens)| tokens.len() == TOKENS));
    for (index, (bits, _)) in expected.iter().enumerate() {
        assert!(expected[..index].iter().all(|(other, _)| other != bits), "a type changed nothing");
    }
    let sizes = settings.sizes();
    let rows: Vec<Vec<usize>> = pairs(&sizes).into_iter().step_by(step).collect();
    for (dimension, size) in sizes.into_iter().enumerate() {
        let occurs = |value: usize| rows.iter().any(|row| row[dimension] == value);
        // There are more homes than a part of the rows; of everything else each value must be among them.
        let all = (0..size).all(occurs);
        assert!(all || step > 1 && dimension == 0, "a value of dimension {dimension} never occurs");
    }
    for row in &rows {
        let own = tempfile::tempdir().expect("a folder");
        let (pack, starts) = match settings.homes[row[0]].2 {
            Packed::No => (PackUse::Never, 1),
            Packed::File => (PackUse::File(file.clone()), 1),
            Packed::Built => (PackUse::BuildIfAbsent(own.path().to_owned()), 1),
            // The second start reads what the first one wrote.
            Packed::Filling => (PackUse::Fill(own.path().to_owned()), 2),
        };
        let configuration = settings.configuration(row, pack);
        for start in 1..=starts {
            let mut runtime = load(model, &configuration);
            let (bits, tokens) = answer(&mut runtime, ids);
            let expected = &expected[row[9]];
            assert!(bits == expected.0, "other logits at start {start}: {configuration:?}");
            assert_eq!(tokens, expected.1, "start {start}: {configuration:?}");
            let status = runtime.status();
            assert!(status.ledger.peak <= status.plan.plan.budget, "{configuration:?}");
            // Checksums heal a record that was put together wrongly by reading it twice; the answer would be right.
            let read_again = status.experts.map_or(0, |counted| counted.records_read_again);
            assert_eq!(read_again, 0, "the disk damages nothing: {configuration:?}");
            assert_eq!(status.policy, POLICIES[row[1]]);
            assert_eq!(status.plan.policy.prefetch.setting, Prefetch::ALL[row[3]].1);
        }
    }
    println!("{} rows of {} settings on {}", rows.len(), sizes.len(), model.display());
}

#[test]
fn rows_have_every_pair() {
    let sizes = [5, 3, 4, 2, 1];
    let rows = pairs(&sizes);
    assert!(rows.len() < 40, "{} rows", rows.len());
    for first in 0..sizes.len() {
        for second in first + 1..sizes.len() {
            for (a, b) in (0..sizes[first]).flat_map(|a| (0..sizes[second]).map(move |b| (a, b))) {
                assert!(rows.iter().any(|row| row[first] == a && row[second] == b));
            }
        }
    }
}

#[test]
fn on_a_tiny_model() {
    let reference = Reference::open("qwen3moe");
    check(&reference.model, &reference.ids, 1);
}

#[test]
fn with_a_shared_expert() {
    let reference = Reference::open("qwen2moe");
    check(&reference.model, &reference.ids, 4);
}

#[test]
fn with_quantised_weights() {
    let ids: Vec<u32> = (0..40).map(|i| 300 + i * 97 % 7000).collect();
    check(&demo(), &ids, 11);
}
