//! A pruned checkpoint is the model in which the experts that were taken out are never chosen, bit for bit, whatever its metadata
//! says; where its tensors contradict each other it is refused by name.
//!
//! What could go wrong: a number of experts that is taken from the metadata, or from another layer; rows of the router or of a bias
//! that belong to other experts than they did; records, packs, slots and traces that count experts of one layer by those of
//! another.

use std::path::Path;

use coldpress::{LoadConfiguration, Residency, Runtime, Silent};
use coldpress_formats::{GgufWriter, ModelFile, TensorType};

use crate::checkpoint::pruned::routed_layers;
use crate::checkpoint::{Checkpoint, Reference, shared};
use crate::common::{fixture, load, logits, npy_f32};
use crate::families::{BOUND, bits, bound, distance, exact, logits_of, refusal};
use crate::logits_do_not_depend_on_budget;

/// Families whose routers have a bias for the choice, which can rule experts out without changing any other score. Some have their
/// experts in groups, which are left aside here.
const FAMILIES: [&str; 9] = [
    "glm4_moe",
    "minimax_m2",
    "hy_v3",
    "lfm2_moe",
    "mimo_v2_flash",
    "kimi_linear",
    "deepseek_v3",
    "gpt_oss",
    "gpt_oss_mxfp4",
];

/// What is kept of the first routed layer, the second one, and so on.
const KEPT: [&[usize]; 2] = [&[0, 2, 3, 6, 7], &[1, 2, 4, 5, 6, 7]];

fn without_groups(mut checkpoint: Checkpoint) -> Checkpoint {
    if checkpoint.config.get("n_group").is_some() {
        checkpoint.config["n_group"] = 1.into();
        checkpoint.config["topk_group"] = 1.into();
    }
    checkpoint
}

/// The checkpoint with fewer experts, a number of its own in each layer, and the one that never chooses the others.
fn both(checkpoint: &Checkpoint) -> (Checkpoint, Checkpoint) {
    let (mut pruned, mut silenced) = (checkpoint.clone(), checkpoint.clone());
    for (layer, kept) in routed_layers(checkpoint).into_iter().zip(KEPT.iter().cycle()) {
        pruned = pruned.with_experts(layer, kept);
        silenced = silenced.choosing(layer, |expert| kept.contains(&expert));
    }
    (pruned, silenced)
}

fn notes(path: &Path) -> Vec<String> {
    let inspection = coldpress::inspect(path, false).expect("a model");
    assert_eq!(inspection.not_runnable, None);
    inspection.notes
}

#[test]
fn layers_with_numbers_of_their_own_are_those_that_never_choose_the_others() {
    for name in FAMILIES {
        let Some(reference) = Reference::open(name) else { continue };
        let (pruned, silenced) = both(&without_groups(Checkpoint::read(&reference.folder)));
        let (folder, whole) = (pruned.write(), silenced.write());
        let expected = bits(&logits_of(whole.path(), &exact(), &reference.ids));
        for slots in [None, Some(3)] {
            let configuration = match slots {
                None => exact().residency(Residency::Resident),
                Some(slots) => exact().residency(Residency::Streamed).slots(slots).chunk_tokens(7),
            };
            let got = bits(&logits_of(folder.path(), &configuration, &reference.ids));
            assert!(got == expected, "{name} with {slots:?} slots: other bits");
        }
        let count = |path| coldpress::plan(path, &exact()).expect("fits").plan.records_total;
        let fewer: usize =
            routed_layers(&pruned).iter().zip(KEPT.iter().cycle()).map(|(_, kept)| 8 - kept.len()).sum();
        assert_eq!(count(folder.path()), count(whole.path()) - fewer as u64, "{name}");
        let said = notes(folder.path());
        assert!(said[0].contains("states 8 experts per layer") && said.len() == 1, "{name}: {said:?}");
        assert!(notes(whole.path()).is_empty(), "{name}");
    }
}

/// Softmax over all experts, with and without division by the sum of the chosen: other experts change the weights of those that are
/// chosen, so what transformers computes without them is the reference (`fixtures/make_pruned.py`).
#[test]
fn a_softmax_over_what_is_left() {
    for name in ["qwen3_moe", "olmoe"] {
        let Some(reference) = Reference::open(name) else { return };
        let mut pruned = Checkpoint::read(&reference.folder);
        for (layer, kept) in KEPT.iter().enumerate() {
            pruned = pruned.with_experts(layer, kept);
        }
        let expected = npy_f32(&fixture(&format!("hugging_face/{name}_pruned.npy")));
        let worst = distance(&logits_of(pruned.write().path(), &exact(), &reference.ids), &expected);
        assert!(worst < BOUND, "{name}: logits differ by {worst}");
        assert!(distance(&reference.logits, &expected) > 0.1, "{name}: nothing was taken out");
    }
}

#[test]
fn the_same_bits_over_budgets_packs_and_what_is_read_ahead() {
    for name in ["minimax_m2", "gpt_oss_mxfp4"] {
        let Some(reference) = Reference::open(name) else { return };
        let (pruned, _) = both(&Checkpoint::read(&reference.folder));
        logits_do_not_depend_on_budget::check(pruned.write().path(), &reference.ids, &[1, 33]);
    }
}

#[test]
fn a_trace_of_layers_with_numbers_of_their_own_has_them() {
    let Some(reference) = Reference::open("minimax_m2") else { return };
    let (pruned, _) = both(&Checkpoint::read(&reference.folder));
    let folder = pruned.write();
    let configuration: LoadConfiguration =
        exact().residency(Residency::Streamed).slots(4).recording(Runtime::TRACE_BYTES);
    let mut runtime = load(folder.path(), &configuration);
    runtime.start_trace().expect("there is room");
    logits(&mut runtime, &reference.ids);
    let trace = runtime.finish_trace().expect("recorded");
    assert_eq!(trace.expert_counts(), [5, 6]);
}

/// What the configuration says is not what is computed: the reference has eight experts.
#[test]
fn a_configuration_that_was_not_changed_does_not_count() {
    for (name, key) in [
        ("glm4_moe", "n_routed_experts"),
        ("qwen3_moe", "num_local_experts"),
        ("llama4_text", "num_local_experts"),
    ] {
        let Some(reference) = Reference::open(name) else { continue };
        for stated in [384, 2, 9] {
            let mut checkpoint = Checkpoint::read(&reference.folder);
            assert!(checkpoint.config.get(key).is_some(), "{name}: {}", checkpoint.config);
            checkpoint.config[key] = stated.into();
            let folder = checkpoint.write();
            let worst = distance(&logits_of(folder.path(), &exact(), &reference.ids), &reference.logits);
            assert!(worst < bound(name), "{name} said to have {stated}: logits differ by {worst}");
            let said = notes(folder.path());
            let part = format!("states {stated} experts per layer");
            assert!(said[0].contains(&part) && said[0].contains("have 8:"), "{name}: {said:?}");
        }
    }
}

/// Stacked codes of MLX: experts in another order are the same model, and the stated number does not count.
#[test]
fn stacked_codes_of_mlx_are_counted_and_matched_too() {
    for name in ["affine4-g32", "mxfp4"] {
        let Some(folder) = shared(&format!("oracle/mlx/{name}")) else { return };
        let plain = Checkpoint::read(&folder);
        let ids: Vec<u32> = (0..40).map(|place| place * 7 % 256).collect();
        let run = |checkpoint: &Checkpoint| logits_of(checkpoint.write().path(), &exact(), &ids);
        let expected = run(&plain);
        let mut turned = plain.clone();
        let layers = routed_layers(&plain);
        assert_eq!(layers.len(), 2, "{name}");
        for &layer in &layers {
            turned = turned.with_experts(layer, &[3, 5, 0, 7, 6, 1, 2, 4]);
        }
        turned.config["num_experts"] = 384.into();
        turned.config.as_object_mut().expect("an object").remove("num_local_experts");
        // The router's softmax adds in another order, too.
        let worst = distance(&run(&turned), &expected);
        assert!(worst < BOUND, "{name}: logits in another order differ by {worst}");
        let pruned = turned.with_experts(layers[0], &[0, 1, 2]);
        assert!(distance(&run(&pruned), &expected) > 0.1, "{name}: nothing was taken out");
        assert!(notes(pruned.write().path())[0].contains("have 3 to 8"), "{name}");
    }
}

/// A GGUF file with these experts of each layer, or with all of them and a bias that rules the others out.
fn write_gguf(source: &Path, path: &Path, kept: impl Fn(usize) -> &'static [usize], prune: bool) {
    let file = ModelFile::open(source).expect("a file");
    let data = std::fs::read(source).expect("a file");
    let mut writer = GgufWriter::new();
    for (key, value) in file.metadata().iter() {
        writer.metadata(key, value.clone());
    }
    let mut all = Vec::new();
    for tensor in file.tensors() {
        let mut bytes = data[tensor.offset as usize..][..tensor.byte_len as usize].to_vec();
        let mut shape = tensor.shape.clone();
        let layer = tensor.name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
        let part = layer.map_or("", |(_, part)| part);
        let of_experts = ["ffn_gate_inp.", "exp_probs_b", "_exps."].iter().any(|name| part.contains(name));
        let kept = layer.and_then(|(layer, _)| layer.parse().ok()).map_or(&[][..], &kept);
        if of_experts && prune {
            let piece = bytes.len() / 8;
            bytes = kept.iter().flat_map(|&expert| bytes[expert * piece..][..piece].to_vec()).collect();
            *shape.last_mut().expect("a dimension") = kept.len() as u64;
        } else if part.starts_with("exp_probs_b") {
            assert_eq!(tensor.tensor_type, TensorType::F32);
            let others = (0..8).filter(|expert| !kept.contains(expert));
            others.for_each(|expert| bytes[4 * expert..][..4].copy_from_slice(&(-1e9f32).to_le_bytes()));
        }
        writer.tensor(&tensor.name, tensor.tensor_type, &shape);
        all.push((tensor.name.clone(), bytes));
    }
    let bytes = |name: &str| &all.iter().find(|(own, _)| own == name).expect("a planned tensor").1;
    writer.write(path, |info, out| out.write_all(bytes(&info.name))).expect("written");
}

#[test]
fn gguf_files_with_fewer_experts_than_they_state() {
    let folder = tempfile::tempdir().expect("a folder");
    let ids: Vec<u32> = (0..40).map(|place| place * 7 % 256).collect();
    for name in ["minimax-m2", "glm4moe"] {
        let Some(source) = shared(&format!("oracle/gguf/{name}.gguf")) else { return };
        let (pruned, whole) = (folder.path().join("pruned.gguf"), folder.path().join("whole.gguf"));
        write_gguf(&source, &pruned, |layer| KEPT[layer % 2], true);
        write_gguf(&source, &whole, |layer| KEPT[layer % 2], false);
        let expected = bits(&logits_of(&whole, &exact(), &ids));
        assert!(bits(&logits_of(&pruned, &exact(), &ids)) == expected, "{name}: other bits");
        assert!(notes(&pruned)[0].contains("states 8 experts per layer"), "{name}");
    }
}

/// The experts of the reference among a thousand that are never chosen. Places beyond 255 and 511 show what counts in bytes or bits.
const PLACES: [usize; 8] = [5, 127, 255, 256, 511, 512, 1000, 1023];

#[test]
fn a_thousand_experts() {
    let Some(reference) = Reference::open("minimax_m2") else { return };
    let plain = Checkpoint::read(&reference.folder);
    let expected = bits(&logits_of(plain.write().path(), &exact(), &reference.ids));
    let mut experts = [0; 1024];
    PLACES.iter().enumerate().for_each(|(expert, &place)| experts[place] = expert);
    let mut large = plain.clone();
    for layer in routed_layers(&plain) {
        large = large.with_experts(layer, &experts).choosing(layer, |place| PLACES.contains(&place));
    }
    let folder = large.write();
    let configurations = [
        exact().residency(Residency::Resident),
        exact().residency(Residency::Streamed).slots(5).chunk_tokens(7),
        exact().residency(Residency::Streamed).slots(300).recording(Runtime::TRACE_BYTES),
    ];
    for configuration in configurations {
        let mut runtime = load(folder.path(), &configuration);
        let is_recorded = runtime.start_trace().is_ok();
        let got = bits(&logits(&mut runtime, &reference.ids));
        assert!(got == expected, "{configuration:?}: other bits");
        if let Some(trace) = runtime.finish_trace().filter(|_| is_recorded) {
            assert_eq!(trace.expert_counts(), [1024, 1024]);
        }
    }
}

/// gpt-oss weighs the chosen experts by the softmax of their logits alone, so one that is chosen in spite of a bias of -1e9 adds
/// nothing: a token that is to use three of two experts is one that uses both.
#[test]
fn a_token_uses_all_experts_of_a_layer_that_has_fewer_than_it_asks_for() {
    let Some(reference) = Reference::open("gpt_oss") else { return };
    let mut plain = Checkpoint::read(&reference.folder);
    plain.config["num_experts_per_tok"] = 3.into();
    let short = plain.with_experts(1, &[4, 6]);
    let filled = plain.with_experts(1, &[4, 6, 0]).choosing(1, |place| place < 2);
    let (short, filled) = (short.write(), filled.write());
    let expected = bits(&logits_of(filled.path(), &exact(), &reference.ids));
    for slots in [2, 16] {
        let configuration = exact().residency(Residency::Streamed).slots(slots).chunk_tokens(5);
        assert!(bits(&logits_of(short.path(), &configuration, &reference.ids)) == expected, "{slots} slots");
    }
    let said = notes(short.path());
    let part = "a token uses 3 experts of each layer, and 1 of 2 routed layers (the first is layer 1)";
    assert!(said.len() == 2 && said[1].contains(part), "{said:?}");
    let mut runtime = load(short.path(), &exact().recording(Runtime::TRACE_BYTES));
    let error = runtime.start_trace().expect_err("layers differ").to_string();
    assert!(error.contains("2 and 3 experts per token"), "{error}");
}

#[test]
fn tensors_that_contradict_each_other_are_refused_by_name() {
    let Some(reference) = Reference::open("minimax_m2") else { return };
    let plain = Checkpoint::read(&reference.folder);
    let part = "model.layers.1.block_sparse_moe";
    let without = |name: &str| {
        let mut other = plain.clone();
        other.tensors.retain(|tensor| !tensor.name.contains(name));
        assert!(other.tensors.len() < plain.tensors.len());
        other
    };
    let mut cases: Vec<(Checkpoint, Vec<String>)> = vec![
        (
            without("layers.1.block_sparse_moe.experts.7."),
            vec!["layer 1 has 7 experts".into(), format!("{part}.gate.weight has rows for 8")],
        ),
        (
            without("layers.1.block_sparse_moe.experts.3."),
            vec![format!("an expert 4 ({part}.experts.4.w2.weight)"), "none with the number 3".into()],
        ),
        (without("layers.1.block_sparse_moe.experts.2.w1."), vec![format!("{part}.experts.2.w1.weight")]),
    ];
    for (name, rows) in [("e_score_correction_bias", 7), ("gate.weight", 5)] {
        let mut other = plain.clone();
        let tensor = other.tensor(&format!("{part}.{name}"));
        *tensor = tensor.with_pieces(&(0..rows).collect::<Vec<_>>());
        cases.push((other, vec![format!("{part}.{name}"), "layer 1".into(), "8 experts".into()]));
    }
    for (checkpoint, parts) in cases {
        let error = refusal(&checkpoint);
        assert!(parts.iter().all(|part| error.contains(part.as_str())), "{error} lacks one of {parts:?}");
    }
    let Some(reference) = Reference::open("gpt_oss") else { return };
    let mut packed = Checkpoint::read(&reference.folder);
    let tensor = packed.tensor("model.layers.0.mlp.experts.down_proj");
    *tensor = tensor.with_pieces(&[0, 1, 2, 3, 4]);
    let error = refusal(&packed);
    assert!(
        error.contains("experts.gate_up_proj is for 8 experts, model.layers.0.mlp.experts.down_proj for 5"),
        "{error}"
    );
}

#[test]
fn routers_that_cannot_do_with_what_is_left_are_refused() {
    let Some(reference) = Reference::open("deepseek_v3") else { return };
    let grouped = Checkpoint::read(&reference.folder).with_experts(1, &[0, 1, 2, 3, 4, 5]);
    let error = refusal(&grouped);
    assert!(error.contains("layer 1: 2 of 6 experts cannot be chosen from 2 of 4 groups"), "{error}");
    let Some(reference) = Reference::open("phimoe") else { return };
    let sparse = Checkpoint::read(&reference.folder).with_experts(1, &[3]);
    let error = refusal(&sparse);
    assert!(error.contains("layer 1 has 1 experts for the 2 of each token"), "{error}");
}

/// Routers by token id name experts by numbers that pruning changes.
#[test]
fn tables_that_name_experts_that_are_gone_are_refused() {
    let Some(reference) = Reference::open("deepseek_v4") else { return };
    let mut checkpoint = Checkpoint::read(&reference.folder);
    let mut tensors = Vec::new();
    for mut tensor in std::mem::take(&mut checkpoint.tensors) {
        let rest = tensor.name.strip_prefix("layers.0.ffn.").unwrap_or_default().to_owned();
        if rest.starts_with("gate.weight") {
            tensor = tensor.with_pieces(&[0, 1, 2, 3, 4, 5]);
        }
        if !rest.starts_with("experts.6.") && !rest.starts_with("experts.7.") {
            tensors.push(tensor);
        }
    }
    checkpoint.tensors = tensors;
    let error = match Runtime::load(checkpoint.write().path(), &exact(), &mut Silent) {
        Ok(_) => panic!("it was loaded"),
        Err(error) => error.to_string(),
    };
    assert!(error.contains("tid2eid"), "{error}");
}

/// What is stated is bounded by what there is, also where it is absurd.
#[test]
fn more_experts_per_token_than_any_layer_has() {
    let Some(reference) = Reference::open("qwen3_moe") else { return };
    let mut all = Checkpoint::read(&reference.folder);
    all.config["num_experts_per_tok"] = 8.into();
    let mut more = all.clone();
    more.config["num_experts_per_tok"] = (1 << 24).into();
    let run = |checkpoint: &Checkpoint| bits(&logits_of(checkpoint.write().path(), &exact(), &reference.ids));
    assert!(run(&all) == run(&more));
    assert!(notes(more.write().path())[0].contains("there it uses all of them"));
}
