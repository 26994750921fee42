//! Blocks that predict later tokens (MTP, "nextn") are in the file and nowhere else: same logits, same memory.

use std::path::Path;

use coldpress_formats::Value;
use serde_json::json;

use crate::checkpoint::{Checkpoint, Reference, Tensor, as_gguf, shared};
use crate::families::{bits, exact, logits_of, refusal};

/// The blocks that predict later tokens are in the file and nowhere else: same logits, same memory.
#[test]
fn blocks_for_later_tokens_cost_nothing() {
    let (Some(reference), Some(file)) = (Reference::open("glm4_moe"), shared("oracle/gguf/glm4moe.gguf"))
    else {
        return;
    };
    let run = |path: &Path| {
        let plan = coldpress::plan(path, &exact()).expect("a plan").plan;
        let memory = (plan.dense, plan.kv, plan.scratch, plan.records_total);
        (bits(&logits_of(path, &exact(), &reference.ids)), memory)
    };
    let plain = Checkpoint::read(&reference.folder);
    let layer = |number: usize| format!("model.layers.{number}.");
    let mut longer = plain.clone();
    longer.config["num_nextn_predict_layers"] = 1.into();
    let block = plain.tensors.iter().filter_map(|tensor| {
        let name = tensor.name.strip_prefix(&layer(1))?;
        Some(Tensor { name: layer(2) + name, ..tensor.clone() })
    });
    longer.tensors.extend(block);
    let mut further = plain.tensors[0].clone();
    further.name = layer(2) + "shared_head.head.weight";
    longer.tensors.push(further);
    assert!(
        run(plain.write().path()) == run(longer.write().path()),
        "a folder with a block after its layers"
    );
    longer.config["num_nextn_predict_layers"] = 0.into();
    assert!(refusal(&longer).contains("model.layers.2."), "{}", refusal(&longer));

    // Files count these blocks among the layers.
    let folder = tempfile::tempdir().expect("a folder");
    let longer = folder.path().join("model.gguf");
    let keys =
        [("glm4moe.block_count", Value::Uint32(3)), ("glm4moe.nextn_predict_layers", Value::Uint32(1))];
    as_gguf::rewrite(&file, &longer, &keys, |name| match name {
        "output.weight" => Some("blk.2.nextn.shared_head_head.weight".to_owned()),
        name => name.strip_prefix("blk.1.").map(|rest| format!("blk.2.{rest}")),
    });
    assert!(run(&file) == run(&longer), "a file with a block after its layers");
}

/// Layers that predict further tokens lie behind the last one; Kimi K2 is DeepSeek-V3 by another name.
#[test]
fn predicting_layers_cost_nothing_and_change_nothing() {
    let Some(reference) = Reference::open("deepseek_v3") else { return };
    let checkpoint = Checkpoint::read(&reference.folder);
    let expected = bits(&logits_of(checkpoint.write().path(), &exact(), &reference.ids));
    let mut kimi = checkpoint.clone();
    kimi.config["model_type"] = json!("kimi_k2");
    assert!(bits(&logits_of(kimi.write().path(), &exact(), &reference.ids)) == expected);

    let mut longer = checkpoint.clone();
    for tensor in checkpoint.tensors.iter().filter(|tensor| tensor.name.starts_with("model.layers.1.")) {
        let name = tensor.name.replace("layers.1.", "layers.2.");
        longer.tensors.push(Tensor { name, ..tensor.clone() });
    }
    assert!(refusal(&longer).contains("model.layers.2."), "{}", refusal(&longer));
    longer.config["num_nextn_predict_layers"] = json!(1);
    let plan = |checkpoint: &Checkpoint| {
        let plan = coldpress::plan(checkpoint.write().path(), &exact()).expect("fits").plan;
        (plan.dense, plan.kv, plan.scratch, plan.slots)
    };
    assert_eq!(plan(&longer), plan(&checkpoint));
    assert!(bits(&logits_of(longer.write().path(), &exact(), &reference.ids)) == expected);
}
