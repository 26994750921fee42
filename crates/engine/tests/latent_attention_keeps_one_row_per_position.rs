//! The cache of latent attention: one row per position for all heads, as planned, from files of either form.

use coldpress::{KvType, LoadConfiguration};

use crate::checkpoint::{Reference, shared};
use crate::common::load;
use crate::families::{bits, exact, latent, logits_of};

#[test]
fn latent_attention_keeps_one_row_per_position_in_the_cache() {
    for (name, reference) in latent() {
        let folder = reference.linked("config.json");
        for (kv_type, element) in [(KvType::F16, 2), (KvType::F32, 4)] {
            for threads in [1, 2] {
                let configuration =
                    LoadConfiguration::default().kv_type(kv_type).context(512).threads(threads);
                let plan = coldpress::plan(folder.path(), &configuration).expect("fits").plan;
                // Two layers, a latent of 32 elements and 16 rotated ones, and 64 of the key of an indexer.
                let indexers = match name {
                    "deepseek_v32" => 2,
                    "glm_moe_dsa" => 1,
                    _ => 0,
                };
                assert_eq!(plan.kv.0, 512 * (2 * 48 + indexers * 64) * element, "{name}");
                let mut runtime = load(folder.path(), &configuration);
                let _session = runtime.session().expect("the cache was planned");
                let used = runtime.status().ledger.used_for;
                let taken =
                    |purpose: &str| used.iter().find(|(of, _)| of.name() == purpose).expect("a purpose").1;
                let (kv, scratch) = (taken("KV cache"), taken("scratch"));
                assert_eq!(plan.kv, kv, "{name}");
                assert!(
                    plan.scratch >= scratch && plan.scratch.0 as f64 <= scratch.0 as f64 * 1.05,
                    "{name}: scratch planned {}, taken {scratch}",
                    plan.scratch
                );
            }
        }
    }
}

/// Files from before the cache was compressed hold the matrices of keys and values in one tensor, keys the other way round.
#[test]
fn older_files_with_latent_attention_give_the_same_bits() {
    let Some(path) = shared("oracle/gguf/deepseek2.gguf") else { return };
    let Some(reference) = Reference::open("deepseek_v3") else { return };
    let (heads, key, value, rank) = (4, 24, 16, 32);
    let file = coldpress_formats::ModelFile::open(&path).expect("a good file");
    let bytes = std::fs::read(&path).expect("a file");
    let mut writer = coldpress_formats::GgufWriter::new();
    for (name, stated) in file.metadata().iter() {
        match name {
            "deepseek2.attention.key_length" | "deepseek2.attention.value_length" => {}
            _ => {
                writer.metadata(name.strip_suffix("_mla").unwrap_or(name), stated.clone());
            }
        }
    }
    let mut contents: Vec<(String, Vec<u8>)> = Vec::new();
    let data = |name: &str| {
        let info = file.require(name).expect("a tensor");
        &bytes[info.offset as usize..(info.offset + info.byte_len) as usize]
    };
    for info in file.tensors() {
        if info.name.ends_with("attn_v_b.weight") {
            continue;
        }
        let Some(stem) = info.name.strip_suffix("k_b.weight") else {
            writer.tensor(&info.name, info.tensor_type, &info.shape);
            contents.push((info.name.clone(), data(&info.name).to_vec()));
            continue;
        };
        let (keys, values) = (data(&info.name), data(&format!("{stem}v_b.weight")));
        let mut both = Vec::new();
        for head in 0..heads {
            let keys = &keys[head * rank * key * 2..];
            let turned = (0..key).flat_map(|column| (0..rank).map(move |row| (row * key + column) * 2));
            both.extend(turned.flat_map(|at| [keys[at], keys[at + 1]]));
            both.extend(&values[head * value * rank * 2..][..value * rank * 2]);
        }
        let name = format!("{stem}kv_b.weight");
        writer.tensor(&name, info.tensor_type, &[rank as u64, (heads * (key + value)) as u64]);
        contents.push((name, both));
    }
    let folder = tempfile::tempdir().expect("a folder");
    let older = folder.path().join("older.gguf");
    let content = |name: &str| &contents.iter().find(|(of, _)| of == name).expect("a planned tensor").1;
    writer.write(&older, |info, out| out.write_all(content(&info.name))).expect("written");
    assert!(
        bits(&logits_of(&older, &exact(), &reference.ids))
            == bits(&logits_of(&path, &exact(), &reference.ids))
    );
}
