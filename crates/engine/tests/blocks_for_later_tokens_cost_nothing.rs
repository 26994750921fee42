//! Blocks that predict later tokens (MTP, "nextn") are in the file and nowhere else: same logits, same memory.
//!
//! What could go wrong: a family that computes one layer too many, refuses the block's tensors, counts it in a list with one entry per
//! layer, or holds it in memory; and the reverse, further layers of a checkpoint that nobody announced.

use std::path::Path;

use coldpress_formats::{Array, ModelFile, Value};
use serde_json::json;

use crate::checkpoint::{Checkpoint, Reference, Tensor, as_gguf, shared};
use crate::families::{MIXTURES, all, bits, exact, logits_of, refusal};

/// How the published checkpoints of a family name a block: the key that states it, its tensors, and one that no layer has.
struct Folder {
    name: &'static str,
    states: bool,
    block: &'static str,
    further: &'static str,
}

const FOLDERS: [Folder; 5] = [
    Folder {
        name: "glm4_moe",
        states: true,
        block: "model.layers.2.",
        further: "model.layers.2.shared_head.head.weight",
    },
    Folder {
        name: "glm4_moe_lite",
        states: true,
        block: "model.layers.2.",
        further: "model.layers.2.eh_proj.weight",
    },
    Folder {
        name: "deepseek_v3",
        states: true,
        block: "model.layers.2.",
        further: "model.layers.2.embed_tokens.weight",
    },
    Folder {
        name: "ernie4_5_moe",
        states: true,
        block: "model.mtp_block.0.",
        further: "model.mtp_linear_proj.0.weight",
    },
    Folder {
        name: "mimo_v2_flash",
        states: false,
        block: "model.mtp.layers.0.",
        further: "model.mtp.layers.0.eh_proj.weight",
    },
];

/// Logits, and every share of the plan that a block could be part of.
fn run(path: &Path, ids: &[u32]) -> impl PartialEq + use<> {
    let plan = coldpress::plan(path, &exact()).expect("a plan").plan;
    let memory = (plan.dense, plan.kv, plan.scratch, plan.slots, plan.read_ring, plan.records_total);
    (bits(&logits_of(path, &exact(), ids)), memory)
}

#[test]
fn folders_with_a_block_are_those_without() {
    for Folder { name, states, block, further } in FOLDERS {
        let Some(reference) = Reference::open(name) else { return };
        let plain = Checkpoint::read(&reference.folder);
        let mut longer = plain.clone();
        let copies = plain.tensors.iter().filter_map(|tensor| {
            let part = tensor.name.strip_prefix("model.layers.1.")?;
            Some(Tensor { name: format!("{block}{part}"), ..tensor.clone() })
        });
        longer.tensors.extend(copies);
        longer.tensors.push(Tensor { name: further.to_owned(), ..plain.tensors[0].clone() });
        if states {
            longer.config["num_nextn_predict_layers"] = 1.into();
        }
        assert!(
            run(plain.write().path(), &reference.ids) == run(longer.write().path(), &reference.ids),
            "{name}: a folder with a block after its layers"
        );
        if block.starts_with("model.layers.") && !further.contains("eh_proj") {
            longer.config["num_nextn_predict_layers"] = 0.into();
            assert!(refusal(&longer).contains("model.layers.2."), "{name}: {}", refusal(&longer));
        }
    }
}

/// The checkpoint with its last layer once more behind it, and what joins an embedding with a hidden state.
fn with_further_layer(plain: &Checkpoint) -> Checkpoint {
    let number = |name: &str| {
        let (before, rest) = name.split_once("layers.")?;
        let (number, part) = rest.split_once('.')?;
        Some((before.to_owned(), number.parse::<usize>().ok()?, part.to_owned()))
    };
    let numbers = plain.tensors.iter().filter_map(|tensor| number(&tensor.name));
    let (before, last, _) = numbers.max_by_key(|(_, layer, _)| *layer).expect("a layer");
    let further = |part: &str| format!("{before}layers.{}.{part}", last + 1);
    let mut longer = plain.clone();
    for tensor in &plain.tensors {
        if let Some((_, _, part)) = number(&tensor.name).filter(|(_, layer, _)| *layer == last) {
            longer.tensors.push(Tensor { name: further(&part), ..tensor.clone() });
        }
    }
    longer.tensors.push(Tensor { name: further("eh_proj.weight"), ..plain.tensors[0].clone() });
    longer
}

/// Whatever the family: stated, or not stated and recognised; behind the layers, or under a name of its own.
#[test]
fn folders_of_every_family_are_those_without() {
    for (name, reference) in all() {
        let plain = Checkpoint::read(&reference.folder);
        let expected = run(plain.write().path(), &reference.ids);
        let further = with_further_layer(&plain);
        let mut stated = further.clone();
        stated.config["num_nextn_predict_layers"] = 1.into();
        let mut apart = plain.clone();
        for beginning in ["mtp.", "model.mtp.layers.0.", "model.mtp_block.0."] {
            let name = format!("{beginning}eh_proj.weight");
            apart.tensors.push(Tensor { name, ..plain.tensors[0].clone() });
        }
        for (case, checkpoint) in [("behind", further), ("stated", stated), ("apart", apart)] {
            let folder = checkpoint.write();
            assert!(run(folder.path(), &reference.ids) == expected, "{name}: a block {case}");
        }
    }
}

/// A list with one entry per block, the last one twice.
fn with_another(value: &Value) -> Option<Value> {
    let mut value = value.clone();
    macro_rules! extend {
        ($($variant:ident),*) => {
            match &mut value {
                $(Value::Array(Array::$variant(list)) => list.extend(list.last().copied()),)*
                _ => return None,
            }
        };
    }
    extend!(Uint32, Int32, Uint64, Int64, Float32, Bool);
    Some(value)
}

/// Whether the key states it or not: then what joins an embedding with a hidden state says it.
#[test]
fn files_with_a_block_are_those_without() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in MIXTURES.iter().filter_map(|(_, file)| *file) {
        let Some(path) = shared(&format!("oracle/gguf/{name}.gguf")) else { return };
        let file = ModelFile::open(&path).expect("a file");
        let ids: Vec<u32> = (0..40).map(|place| place * 7 % 256).collect();
        let architecture = file.metadata().string("general.architecture").expect("stated");
        let key = |name: &str| format!("{architecture}.{name}");
        let blocks = file.metadata().opt_u64(&key("block_count")).expect("a number").expect("stated");
        let mut keys = vec![(key("block_count"), Value::Uint32(blocks as u32 + 1))];
        for (list, value) in file.metadata().iter() {
            let has_entry_per_block = matches!(value, Value::Array(array) if array.len() as u64 == blocks);
            if has_entry_per_block && list.starts_with(architecture) {
                keys.extend(with_another(value).map(|longer| (list.to_owned(), longer)));
            }
        }
        let (last, block) = (format!("blk.{}.", blocks - 1), format!("blk.{blocks}."));
        for stated in [true, false] {
            let mut keys = keys.clone();
            if stated {
                keys.push((key("nextn_predict_layers"), Value::Uint32(1)));
            }
            let keys: Vec<(&str, Value)> =
                keys.iter().map(|(key, value)| (key.as_str(), value.clone())).collect();
            let longer = folder.path().join(format!("{name}-{stated}.gguf"));
            as_gguf::rewrite(&path, &longer, &keys, |tensor| match tensor {
                "token_embd.weight" => Some(format!("{block}nextn.eh_proj.weight")),
                tensor => tensor.strip_prefix(&last).map(|part| format!("{block}{part}")),
            });
            assert!(run(&path, &ids) == run(&longer, &ids), "{name}: a block, stated {stated}");
        }
    }
}

/// Kimi K2 is DeepSeek-V3 by another name.
#[test]
fn kimi_k2_is_deepseek_v3() {
    let Some(reference) = Reference::open("deepseek_v3") else { return };
    let checkpoint = Checkpoint::read(&reference.folder);
    let expected = bits(&logits_of(checkpoint.write().path(), &exact(), &reference.ids));
    let mut kimi = checkpoint.clone();
    kimi.config["model_type"] = json!("kimi_k2");
    assert!(bits(&logits_of(kimi.write().path(), &exact(), &reference.ids)) == expected);
}

#[test]
fn a_checkpoint_may_announce_more_of_them_than_it_has_layers() {
    let Some(reference) = Reference::open("deepseek_v3") else { return };
    let mut checkpoint = Checkpoint::read(&reference.folder);
    let expected = bits(&logits_of(checkpoint.write().path(), &exact(), &reference.ids));
    checkpoint.config["num_nextn_predict_layers"] = json!(5);
    assert!(bits(&logits_of(checkpoint.write().path(), &exact(), &reference.ids)) == expected);
}
