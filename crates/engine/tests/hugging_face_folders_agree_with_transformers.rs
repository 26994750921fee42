//! Folders of Hugging Face, each family against logits of another program: transformers for the mixtures, mlx-lm for the dense
//! families, both in float32 (`fixtures/make_dense.py`, and the README of the shared oracle folder).
//!
//! What could go wrong: a norm, bias, gate, factor or window that is forgotten, a rotation with the wrong pairs, an expert from
//! another place of a fused tensor or from another shard, a key of the configuration that is read as something else. Every
//! constant of the references is perturbed so that leaving one out shows (`every_constant_of_a_family_counts.rs`).

use coldpress::{GenerateOptions, PackUse, Residency, Silent};

use crate::checkpoint::{Checkpoint, Reference, Tensor, shared};
use crate::common::{load, logits, npy_f32};
use crate::families::{
    BOUND, BOUND_OF_EIGHT_BITS, CODES, DENSE, MIXTURES, all, bits, bound, distance, exact, logits_of,
    round_as_converters,
};

#[test]
fn logits_and_continuation_are_those_of_the_reference() {
    for (name, reference) in all() {
        for config in ["config.json", "config.published.json"] {
            if !reference.folder.join(config).exists() {
                continue;
            }
            let folder = reference.linked(config);
            let mut runtime = load(folder.path(), &exact());
            let worst = distance(&logits(&mut runtime, &reference.ids), &reference.logits);
            println!("{name} with {config}: largest difference {worst:e}");
            assert!(worst < bound(name), "{name} with {config}: logits differ by {worst}");
            if name == CODES {
                continue;
            }
            let mut session = runtime.session().expect("the budget has room");
            let max_tokens = reference.continuation.len();
            let options = GenerateOptions { max_tokens, ignore_eos: true, ..GenerateOptions::default() };
            let answer =
                runtime.generate(&mut session, &reference.ids, &options, &mut Silent).expect("generates");
            assert_eq!(answer.tokens, reference.continuation, "{name}: greedy continuation");
        }
    }
}

#[test]
fn chunks_residency_and_packs_change_no_bit() {
    for (name, reference) in all() {
        let folder = reference.linked("config.json");
        let packs = tempfile::tempdir().expect("a folder");
        let expected =
            bits(&logits_of(folder.path(), &exact().residency(Residency::Resident), &reference.ids));
        for chunk in [1, 7, 31, 32, 33, 64] {
            let streamed = exact().chunk_tokens(chunk).residency(Residency::Streamed).slots(4);
            let got = bits(&logits_of(folder.path(), &streamed, &reference.ids));
            assert!(got == expected, "{name}: other bits in chunks of {chunk}, streamed");
        }
        if !DENSE.contains(&name) {
            for start in ["written", "read"] {
                let packed = exact().pack(PackUse::BuildIfAbsent(packs.path().to_owned()));
                let got = bits(&logits_of(folder.path(), &packed, &reference.ids));
                assert!(got == expected, "{name}: other bits with a pack that was {start}");
            }
        }
    }
}

#[test]
fn the_file_with_the_same_weights_gives_the_same_logits() {
    for (name, gguf) in MIXTURES {
        let Some(gguf) = gguf else { continue };
        let (Some(reference), Some(file)) =
            (Reference::open(name), shared(&format!("oracle/gguf/{gguf}.gguf")))
        else {
            continue;
        };
        let expected = npy_f32(&file.with_extension("logits.npy"));
        let got = logits_of(&file, &exact(), &reference.ids);
        let worst = distance(&got, &expected);
        println!("{gguf}: largest difference from transformers {worst:e}");
        assert!(worst < bound(name), "{gguf}: logits differ by {worst}");
        // All matrices of the file were rounded; routers are stored as F32 nevertheless.
        let mut rounded = Checkpoint::read(&reference.folder);
        rounded.change_config(&file.with_extension("json"));
        round_as_converters(&mut rounded);
        let worst = distance(&logits_of(rounded.write().path(), &exact(), &reference.ids), &got);
        println!("{name}: largest difference between folder and file {worst:e}");
        assert!(worst < BOUND, "{name}: the folder differs from {gguf}.gguf by {worst}");
    }
}

/// Codes and exponents of a folder are read from four places and put in another order, those of a GGUF file are blocks already:
/// the same records, so the same bits.
#[test]
fn codes_of_a_folder_and_blocks_of_a_file_give_the_same_bits() {
    let (Some(reference), Some(file)) = (Reference::open(CODES), shared("oracle/gguf/gpt-oss-mxfp4.gguf"))
    else {
        return;
    };
    let expected = npy_f32(&file.with_extension("logits.npy"));
    let got = logits_of(&file, &exact(), &reference.ids);
    let worst = distance(&got, &expected);
    println!("gpt-oss-mxfp4: largest difference from transformers {worst:e}");
    assert!(worst < BOUND_OF_EIGHT_BITS, "gpt-oss-mxfp4: logits differ by {worst}");
    let mut rounded = Checkpoint::read(&reference.folder);
    rounded.change_config(&file.with_extension("json"));
    round_as_converters(&mut rounded);
    let folder = rounded.write_shards(3);
    assert!(bits(&logits_of(folder.path(), &exact(), &reference.ids)) == bits(&got), "other bits");

    // With the experts as floats nothing is rounded.
    let checkpoint = Checkpoint::read(&reference.folder).with_codes_as_floats();
    let worst = distance(&logits_of(checkpoint.write().path(), &exact(), &reference.ids), &reference.logits);
    println!("{CODES} as floats: largest difference {worst:e}");
    assert!(worst < BOUND, "{CODES} as floats: logits differ by {worst}");
}

#[test]
fn shards_and_types_change_nothing_but_rounding() {
    for name in ["qwen3_moe", "granitemoe", "gemma3", "gpt_oss"] {
        let Some(reference) = Reference::open(name) else { continue };
        let checkpoint = Checkpoint::read(&reference.folder);
        let whole = bits(&logits_of(checkpoint.write().path(), &exact(), &reference.ids));
        // Neighbours lie in different files, so the experts of a layer do, and the matrices of an expert.
        let folder = checkpoint.write_shards(3);
        let sharded = bits(&logits_of(folder.path(), &exact().slots(4), &reference.ids));
        assert!(sharded == whole, "{name}: other bits from three files");
        for dtype in ["F16", "BF16"] {
            let change = |convert: &dyn Fn(&Tensor) -> Tensor| Checkpoint {
                side_files: Default::default(),
                config: checkpoint.config.clone(),
                tensors: checkpoint.tensors.iter().map(convert).collect(),
            };
            let stored = change(&|tensor| tensor.rounded(dtype)).write_shards(2);
            let widened = change(&|tensor| tensor.widened(dtype)).write();
            let stored = bits(&logits_of(stored.path(), &exact(), &reference.ids));
            assert!(
                stored == bits(&logits_of(widened.path(), &exact(), &reference.ids)),
                "{name} in {dtype}"
            );
        }
    }
}

/// A window of `w` positions is the same as none for texts of `w`, and is not for one more.
#[test]
fn a_window_begins_where_it_says() {
    for name in ["gemma3", "gpt_oss", "mimo_v2_flash"] {
        let Some(reference) = Reference::open(name) else { continue };
        let mut checkpoint = Checkpoint::read(&reference.folder);
        let window = 16;
        let mut with_window = |window: u64, count: usize| {
            checkpoint.config["sliding_window"] = window.into();
            bits(&logits_of(checkpoint.write().path(), &exact(), &reference.ids[..count]))
        };
        for (count, same) in [(window - 1, true), (window, true), (window + 1, false)] {
            let narrow = with_window(window as u64, count);
            let what = format!("{name}: {count} tokens with a window of {window}");
            assert_eq!(narrow == with_window(200, count), same, "{what}");
        }
    }
}
