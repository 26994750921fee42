//! Qwen3-Next and Qwen3.5 against float64 (`fixtures/make_float64.py`, numpy alone), which says how far float32 is from the exact logits;
//! and checkpoints that say the same in another way: projections joined key head by key head or apart,
//! experts in one tensor or one by one, layers that predict further tokens.
//!
//! What could go wrong: a state that loses precision from step to step, rows of a key head that go to the wrong place, gate and up exchanged, an expert at the wrong offset.

use crate::checkpoint::{Checkpoint, Reference, Tensor};
use crate::common::{fixture, npy_f32};
use crate::families::{bits, bound, distance, exact, logits_of};

#[test]
fn logits_are_those_of_float64() {
    for name in ["qwen3_next", "qwen3_5_moe_text"] {
        let Some(reference) = Reference::open(name) else { continue };
        let expected = npy_f32(&fixture(&format!("{name}.float64.npy")));
        let got = logits_of(reference.linked("config.json").path(), &exact(), &reference.ids);
        let (ours, theirs) = (distance(&got, &expected), distance(&reference.logits, &expected));
        println!("{name}: {ours:e} from float64, transformers in float32 {theirs:e}");
        assert!(ours < bound(name), "{name}: logits differ from float64 by {ours}");
    }
}

/// The rows of a matrix that are in `ranges`, in this order.
fn rows(tensor: &Tensor, name: String, ranges: impl IntoIterator<Item = std::ops::Range<usize>>) -> Tensor {
    let row_bytes = tensor.bytes.len() / tensor.shape[0] as usize;
    let mut bytes = Vec::new();
    for range in ranges {
        bytes.extend_from_slice(&tensor.bytes[range.start * row_bytes..range.end * row_bytes]);
    }
    let shape = vec![(bytes.len() / row_bytes) as u64, tensor.shape[1]];
    Tensor { name, shape, bytes, ..tensor.clone() }
}

fn same_bits(reference: &Reference, other: &Checkpoint, what: &str) {
    let expected = logits_of(reference.linked("config.json").path(), &exact(), &reference.ids);
    let got = logits_of(other.write().path(), &exact(), &reference.ids);
    assert!(bits(&got) == bits(&expected), "{what}: other bits");
}

#[test]
fn projections_joined_and_apart() {
    let Some(reference) = Reference::open("qwen3_next") else { return };
    let joined = Checkpoint::read(&reference.folder);
    // Two key heads with 16 rows of the query, 16 of the key, and of two value heads 32 of the value and 32 of the gate.
    let (key_heads, key, value) = (2, 16, 32);
    let part = |group: usize, start: usize, count: usize| {
        (0..key_heads).map(move |head| head * group + start..head * group + start + count)
    };
    let mut apart = joined.clone();
    apart.tensors.clear();
    for tensor in &joined.tensors {
        let group = 2 * key + 2 * value;
        if let Some(stem) = tensor.name.strip_suffix("in_proj_qkvz.weight") {
            let mixed = [(0, key), (key, key), (2 * key, value)];
            let mixed = mixed.into_iter().flat_map(|(start, count)| part(group, start, count));
            apart.tensors.push(rows(tensor, format!("{stem}in_proj_qkv.weight"), mixed));
            let gate = part(group, 2 * key + value, value);
            apart.tensors.push(rows(tensor, format!("{stem}in_proj_z.weight"), gate));
        } else if let Some(stem) = tensor.name.strip_suffix("in_proj_ba.weight") {
            apart.tensors.push(rows(tensor, format!("{stem}in_proj_b.weight"), part(4, 0, 2)));
            apart.tensors.push(rows(tensor, format!("{stem}in_proj_a.weight"), part(4, 2, 2)));
        } else {
            apart.tensors.push(tensor.clone());
        }
    }
    assert_eq!(apart.tensors.len(), joined.tensors.len() + 2);
    same_bits(&reference, &apart, "projections apart");
}

#[test]
fn experts_in_one_tensor_and_layers_for_further_tokens() {
    let Some(reference) = Reference::open("qwen3_5_moe_text") else { return };
    let mut packed = Checkpoint::read(&reference.folder);
    for layer in 0..2 {
        let stem = format!("model.layers.{layer}.mlp.experts");
        let expert = |number: usize, part: &str| format!("{stem}.{number}.{part}_proj.weight");
        for (name, parts) in [("gate_up_proj", &["gate", "up"][..]), ("down_proj", &["down"])] {
            let mut all: Option<Tensor> = None;
            for number in 0..8 {
                for part in parts {
                    let one = packed.tensor(&expert(number, part)).clone();
                    match &mut all {
                        Some(all) => all.bytes.extend(one.bytes),
                        None => all = Some(one),
                    }
                }
            }
            let mut all = all.expect("eight experts");
            all.name = format!("{stem}.{name}");
            all.shape = vec![8, all.shape[0] * parts.len() as u64, all.shape[1]];
            packed.tensors.push(all);
        }
        packed.tensors.retain(|tensor| !(tensor.name.starts_with(&stem) && tensor.name.ends_with(".weight")));
    }
    same_bits(&reference, &packed, "experts in one tensor");

    let plan = |checkpoint: &Checkpoint| {
        let plan = coldpress::plan(checkpoint.write().path(), &exact()).expect("fits").plan;
        (plan.dense, plan.kv, plan.scratch, plan.records_total)
    };
    let mut longer = packed.clone();
    let further = |tensor: &Tensor| Tensor { name: tensor.name.replace("model.", "mtp."), ..tensor.clone() };
    longer
        .tensors
        .extend(packed.tensors.iter().map(further).filter(|tensor| tensor.name.starts_with("mtp.")));
    longer.config["mtp_num_hidden_layers"] = 1.into();
    assert_eq!(plan(&longer), plan(&packed));
    same_bits(&reference, &longer, "layers for further tokens");
}
