//! Logits are the same bits whatever the memory and the disk allow.
//!
//! Every pair of settings has its own test, `every_pair_of_settings_gives_the_same_bits`. Here is what pairs do not show: three
//! settings at once (slots x pack x prefill chunk), what a measurement of the disk may have found, the third start of a pack that
//! fills, records that were read ahead and used, prompts of several blocks, and every instruction set on quantised weights.
//! A slot that is refilled while in use, a sum in another order, a kernel that sees its neighbours: each shows here as a
//! changed bit. Slots below one token's experts (1, 2) force a refill within every layer.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::{Reference, demo, load, logits};
use coldpress::{
    Basis, ChoiceOrigin, Isa, LoadConfiguration, PackUse, Prefetch, Residency, Runtime, Silent, pack_model,
};

const ALL_SLOTS: u64 = u64::MAX;

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Slots of the matrix; `None` is `resident`.
const SLOTS: [Option<u64>; 5] = [None, Some(1), Some(2), Some(8), Some(ALL_SLOTS)];

fn configuration(slots: Option<u64>) -> LoadConfiguration {
    match slots {
        None => LoadConfiguration::default().residency(Residency::Resident),
        Some(ALL_SLOTS) => LoadConfiguration::default().residency(Residency::Streamed),
        Some(slots) => LoadConfiguration::default().residency(Residency::Streamed).slots(slots),
    }
}

pub fn check(model: &Path, ids: &[u32], chunks: &[u32]) {
    let folder = tempfile::tempdir().expect("a folder");
    let pack = folder.path().join("model.cpack");
    pack_model(model, &pack, None, &mut Silent).expect("packs");
    let packs = [PackUse::Never, PackUse::File(pack)];
    let expected = bits(&logits(&mut load(model, &LoadConfiguration::default().threads(1)), ids));
    for slots in SLOTS {
        for pack in &packs {
            for &chunk in chunks {
                let configuration = configuration(slots).pack(pack.clone()).chunk_tokens(chunk);
                let got = bits(&logits(&mut load(model, &configuration), ids));
                assert!(got == expected, "{slots:?} slots, {pack:?}, chunk {chunk}");
            }
        }
    }
    check_measured_reading(model, ids, &packs[1], &expected);
    check_prefetch(model, ids, &packs, &expected);
    check_filling(model, ids, chunks, &expected);
}

/// A pack that fills while the model runs: the first start writes it, the next ones read what it has.
fn check_filling(model: &Path, ids: &[u32], chunks: &[u32], expected: &[u32]) {
    for slots in [1, 8] {
        for chunk in [chunks[0], chunks[chunks.len() - 1]] {
            let folder = tempfile::tempdir().expect("a folder");
            let fill = PackUse::Fill(folder.path().to_owned());
            let case = configuration(Some(slots)).chunk_tokens(chunk).pack(fill);
            let mut written = 0;
            for start in 1..=3 {
                let mut runtime = load(model, &case);
                let got = bits(&logits(&mut runtime, ids));
                if start == 1 {
                    wait_for_a_record(&runtime, folder.path());
                }
                let status = runtime.status();
                assert!(got == expected, "{slots} slots, chunk {chunk}, start {start}");
                assert!(status.ledger.peak <= status.plan.plan.budget);
                let counted = status.experts.expect("a store");
                let uses_it = status.plan.pack.is_some() || counted.lazy_reads > 0;
                assert!(written == 0 || uses_it, "{written} records were there: {counted:?}");
                written += counted.lazy_writes;
            }
            assert!(written > 0 || disk_is_nearly_full(folder.path()), "nothing was written");
        }
    }
}

/// The thread that writes records has its turn after everybody else of a busy machine.
fn wait_for_a_record(runtime: &Runtime, folder: &Path) {
    let end = Instant::now() + Duration::from_secs(20);
    let written = || runtime.status().experts.is_some_and(|counted| counted.lazy_writes > 0);
    while Instant::now() < end && !disk_is_nearly_full(folder) && !written() {
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn disk_is_nearly_full(folder: &Path) -> bool {
    let free = coldpress_memory::sys::free_disk_space(folder).expect("a disk");
    free.0 * 9 < coldpress_memory::sys::disk_size(folder).expect("a disk").0
}

/// Records read before the router asked: single tokens, so that there is something to guess.
fn check_prefetch(model: &Path, ids: &[u32], packs: &[PackUse; 2], expected: &[u32]) {
    for slots in [1, 2, 8, 20] {
        for pack in packs {
            for (prefetch, mode) in Prefetch::ALL {
                let case = configuration(Some(slots)).chunk_tokens(1).pack(pack.clone());
                let mut runtime = load(model, &case.prefetch(mode, ChoiceOrigin::Flag));
                let got = bits(&logits(&mut runtime, ids));
                assert!(got == expected, "{slots} slots, {pack:?}, prefetch {prefetch}");
                let counted = runtime.status().experts.expect("a store");
                assert!(counted.prefetch_used <= counted.prefetched, "{counted:?}");
                assert!(mode != Prefetch::Off || counted.prefetched == 0, "{counted:?}");
                assert!(mode != Prefetch::On || slots < 8 || counted.prefetched > 0, "{counted:?}");
            }
        }
    }
}

/// What a measurement of the disk may have found.
fn check_measured_reading(model: &Path, ids: &[u32], pack: &PackUse, expected: &[u32]) {
    let PackUse::File(path) = pack else { panic!("a pack") };
    let device = coldpress_memory::sys::device_facts(path).expect("a device");
    let folder = tempfile::tempdir().expect("a folder");
    for (uring, depth, split, access) in
        [(true, 1, 1, "direct"), (false, 32, 4, "direct"), (true, 8, 2, "dropped")]
    {
        for class in 12..31 {
            let text = format!(
                r#"{{"version":1,"device":{},"file_system":{},"file_system_bytes":{},"size_class":{class},"uring":{uring},"depth":{depth},"split":{split},"access":"{access}","bytes_per_second":1e9}}"#,
                device.device, device.file_system, device.bytes.0
            );
            let name = format!("disk-{:x}-{class}-pack.json", device.device);
            std::fs::write(folder.path().join(name), text).expect("writes");
        }
        let case = configuration(Some(2)).pack(pack.clone()).disk_probe(folder.path().to_owned());
        let mut runtime = load(model, &case);
        let reading = runtime.status().plan.reading;
        if !device.is_memory {
            assert_eq!((reading.basis, reading.depth, reading.split), (Basis::Cached, Some(depth), split));
        }
        assert!(bits(&logits(&mut runtime, ids)) == expected, "{reading:?}");
    }
}

#[test]
fn on_a_tiny_model() {
    let reference = Reference::open("qwen3moe");
    check(&reference.model, &reference.ids, &[1, 7, 31, 32, 33, 48]);
}

#[test]
fn with_a_shared_expert() {
    let reference = Reference::open("qwen2moe");
    check(&reference.model, &reference.ids, &[1, 33, 48]);
}

#[test]
fn with_quantised_weights_on_the_bundled_model() {
    let ids: Vec<u32> = (0..70).map(|i| 300 + i * 97 % 7000).collect();
    check(&demo(), &ids, &[33]);
}

#[test]
fn over_every_instruction_set_of_this_machine() {
    let ids: Vec<u32> = (0..20).map(|i| 300 + i * 97 % 7000).collect();
    let expected = bits(&logits(&mut load(&demo(), &LoadConfiguration::default().isa(Isa::Scalar)), &ids));
    for isa in Isa::ALL {
        let configuration = LoadConfiguration::default().isa(isa);
        if coldpress::plan(&demo(), &configuration).is_err() {
            println!("{} does not run here", isa.name());
            continue;
        }
        let got = bits(&logits(&mut load(&demo(), &configuration), &ids));
        assert!(got == expected, "{}", isa.name());
    }
}

/// More tokens than one block: the blocks of a chunk share the experts of a layer.
#[test]
fn with_a_prompt_of_several_blocks() {
    let ids: Vec<u32> = (0..1100).map(|i| 300 + i * 97 % 7000).collect();
    let base = LoadConfiguration::default().context(1100);
    let expected = bits(&logits(&mut load(&demo(), &base.clone().chunk_tokens(100)), &ids));
    for slots in [1, 8, 40, ALL_SLOTS] {
        for chunk in [513, 1100] {
            let case = configuration(Some(slots)).context(1100).chunk_tokens(chunk);
            assert!(
                bits(&logits(&mut load(&demo(), &case), &ids)) == expected,
                "{slots} slots, chunk {chunk}"
            );
        }
    }
}
