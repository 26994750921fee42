//! What `inspect` says of a model: every byte has a role, layers that differ are told apart, and what stands in the way is named.
//!
//! What could go wrong: a tensor counted twice or not at all, layers folded that are not alike, a model that cannot be run shown as one
//! without parts.

use std::fs;
use std::path::Path;

use coldpress::{Inspection, inspect};
use serde_json::json;

use crate::checkpoint::{Checkpoint, Reference, Tensor};
use crate::families::MIXTURES;

fn inspected(path: &Path) -> Inspection {
    let inspection = inspect(path, false).expect("it can be read");
    let sum: u64 = inspection.roles.iter().map(|share| share.bytes.0).sum();
    assert_eq!(sum, inspection.tensor_bytes.0, "{}", path.display());
    let tensors: usize = inspection.roles.iter().map(|share| share.tensors).sum();
    assert_eq!(tensors, inspection.tensors.len(), "{}", path.display());
    inspection
}

#[test]
fn every_family_is_whole() {
    for (name, _) in MIXTURES {
        let Some(reference) = Reference::open(name) else { continue };
        let folder = reference.linked("config.json");
        let inspection = inspected(folder.path());
        assert_eq!(inspection.problems, [""; 0], "{name}");
        assert!(inspection.roles.iter().all(|share| share.role != "unknown"), "{name}");
        let experts = inspection.experts.expect("a mixture");
        assert!(experts.layers > 0 && experts.per_token > 0 && experts.bytes[0].0 > 0, "{name}");
    }
}

#[test]
fn layers_that_differ_are_told_apart() {
    let Some(reference) = Reference::open("deepseek_v3") else { return };
    let inspection = inspected(reference.linked("config.json").path());
    let groups: Vec<_> = inspection.layers.iter().map(|group| (group.first, group.last)).collect();
    assert_eq!(groups, [(0, 0), (1, 1)], "a dense layer before one with experts");
    let Some(reference) = Reference::open("qwen3_moe") else { return };
    let inspection = inspected(reference.linked("config.json").path());
    let groups: Vec<_> = inspection.layers.iter().map(|group| (group.first, group.last)).collect();
    assert_eq!(groups, [(0, 1)]);
}

#[test]
fn what_stands_in_the_way_is_named() {
    let Some(reference) = Reference::open("qwen3_moe") else { return };
    let checkpoint = Checkpoint::read(&reference.folder);
    let problems = |path: &Path| inspected(path).problems.join("; ");

    let folder = checkpoint.write();
    assert_eq!(problems(folder.path()), "");
    fs::remove_file(folder.path().join("tokenizer.json")).expect("it was there");
    assert!(problems(folder.path()).contains("no tokenizer"));
    fs::remove_file(folder.path().join("tokenizer_config.json")).expect("it was there");
    for config in [None, Some(r#"{"tokenizer_class": "X"}"#)] {
        if let Some(config) = config {
            fs::write(folder.path().join("tokenizer_config.json"), config).expect("written");
        }
        assert!(problems(folder.path()).contains("no chat template"), "{config:?}");
    }
    fs::write(folder.path().join("chat_template.jinja"), "{{ messages }}").expect("written");
    assert!(!problems(folder.path()).contains("no chat template"));

    let mut further = checkpoint.clone();
    let norm = further.tensor("model.norm.weight").clone();
    further.tensors.push(Tensor { name: "model.layers.1.self_attn.gain".to_owned(), ..norm });
    let found = inspected(further.write().path());
    assert_eq!(found.without_place, ["model.layers.1.self_attn.gain"]);
    assert!(found.not_runnable.is_some() && found.problems.join("; ").contains("self_attn.gain"));

    let mut unknown = checkpoint.clone();
    unknown.config["model_type"] = json!("qwen9_moe");
    let found = inspected(unknown.write().path());
    assert!(found.problems.join("; ").contains("qwen9_moe") && found.experts.is_none());
    assert!(found.roles.iter().any(|share| share.role == "experts, gate"), "a guess by names");

    let mut missing = checkpoint.clone();
    missing.tensors.retain(|tensor| tensor.name != "model.layers.1.self_attn.k_norm.weight");
    assert!(problems(missing.write().path()).contains("k_norm"));
}

#[test]
fn the_fingerprint_is_worked_out_where_it_is_asked_for() {
    let demo = crate::common::demo();
    let with = |wanted| inspect(&demo, wanted).expect("a model").fingerprint;
    assert_eq!(with(false), None);
    assert_eq!(with(true).map(|text| text.len()), Some(32));
}
