//! Blocks that predict later tokens (MTP, "nextn") are in the file and nowhere else: same logits, same memory.
//!
//! What could go wrong: a family that computes one layer too many, refuses the block's tensors, counts it in a list with one entry per
//! layer, or holds it in memory; and the reverse, further layers of a checkpoint that nobody announced.

use std::path::Path;

use coldpress_formats::{Array, ModelFile, Value};
use serde_json::json;

use crate::checkpoint::{Checkpoint, Reference, Tensor, as_gguf, shared};
use crate::families::{bits, exact, logits_of, refusal};

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

/// Files whose blocks follow the layers and are counted among them: name and architecture.
const FILES: [(&str, &str); 4] =
    [("glm4moe", "glm4moe"), ("deepseek2", "deepseek2"), ("glm4moe-lite", "deepseek2"), ("mimo2", "mimo2")];

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
        if block.starts_with("model.layers.") {
            longer.config["num_nextn_predict_layers"] = 0.into();
            assert!(refusal(&longer).contains("model.layers.2."), "{name}: {}", refusal(&longer));
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
    extend!(Uint32, Int32, Uint64, Int64, Bool);
    Some(value)
}

#[test]
fn files_with_a_block_are_those_without() {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, architecture) in FILES {
        let Some(path) = shared(&format!("oracle/gguf/{name}.gguf")) else { return };
        let file = ModelFile::open(&path).expect("a file");
        let ids: Vec<u32> = (0..40).map(|place| place * 7 % 256).collect();
        let key = |name: &str| format!("{architecture}.{name}");
        let blocks = file.metadata().opt_u64(&key("block_count")).expect("a number").expect("stated");
        let mut keys = vec![
            (key("block_count"), Value::Uint32(blocks as u32 + 1)),
            (key("nextn_predict_layers"), Value::Uint32(1)),
        ];
        for list in ["attention.head_count_kv", "attention.sliding_window_pattern"] {
            let longer = file.metadata().get(&key(list)).and_then(with_another);
            keys.extend(longer.map(|longer| (key(list), longer)));
        }
        let keys: Vec<(&str, Value)> =
            keys.iter().map(|(key, value)| (key.as_str(), value.clone())).collect();
        let longer = folder.path().join(format!("{name}.gguf"));
        let (last, block) = (format!("blk.{}.", blocks - 1), format!("blk.{blocks}."));
        as_gguf::rewrite(&path, &longer, &keys, |tensor| match tensor {
            "output.weight" => Some(format!("{block}nextn.shared_head_head.weight")),
            tensor => tensor.strip_prefix(&last).map(|part| format!("{block}{part}")),
        });
        assert!(run(&path, &ids) == run(&longer, &ids), "{name}: a file with a block after its layers");
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
