//! GGUF files of NVFP4 have a second scale for each matrix, and one per expert for stacked experts, as tensors `.scale`.
//!
//! What could go wrong: a factor that is ignored, taken for another matrix's or another expert's, applied to one row of a batch alone,
//! or lost on the way through a pack.

use std::path::Path;

use coldpress::{ExpertType, PackUse, Residency, Runtime, Silent};
use coldpress_kernels::WeightFormat;

use crate::every_weight_format_computes_what_its_values_say::{
    EXPERTS, IDS, Tensor, fused, model, spread, widened, written,
};
use crate::families::{BOUND_OF_EIGHT_BITS, bits, distance, exact, logits_of};

/// Whether a tensor is a matrix that may have a factor.
fn is_matrix(tensor: &Tensor) -> bool {
    tensor.shape.len() > 1
}

fn beside(tensor: &Tensor, ending: &str, values: &[f32]) -> Tensor {
    Tensor {
        name: tensor.name.replace("weight", ending),
        format: WeightFormat::F32,
        shape: vec![values.len() as u64],
        bytes: values.iter().flat_map(|value| value.to_le_bytes()).collect(),
    }
}

/// The tensors with a factor for each matrix and expert, and without, their values multiplied by it. Factors are powers of two if
/// `exact`, and all differ.
fn both(tensors: &[Tensor], exact: bool) -> (Vec<Tensor>, Vec<Tensor>) {
    let (mut with, mut without) = (tensors.to_vec(), widened(tensors));
    for (number, tensor) in tensors.iter().enumerate().filter(|(_, tensor)| is_matrix(tensor)) {
        let count = if tensor.shape.len() == 3 { EXPERTS } else { 1 };
        let factor = |expert: usize| match exact {
            true => [0.5, 2.0, 1.0, 4.0, 0.25][(number + 3 * expert) % 5],
            false => 0.6 + 0.07 * ((number * 5 + expert * 3) % 11) as f32,
        };
        let factors: Vec<f32> = (0..count).map(factor).collect();
        with.push(beside(tensor, "scale", &factors));
        with.push(beside(tensor, "input_scale", &vec![77.0; count]));
        let bytes = &mut without[number].bytes;
        let one = bytes.len() / count;
        for (matrix, factor) in bytes.chunks_exact_mut(one).zip(&factors) {
            for value in matrix.as_chunks_mut().0 {
                *value = (f32::from_le_bytes(*value) * factor).to_le_bytes();
            }
        }
    }
    (with, without)
}

#[test]
fn a_factor_on_a_matrix_is_a_factor_on_its_values() {
    let (with, without) = both(&model(|_| WeightFormat::F32), true);
    let expected = bits(&logits_of(&written(&without).1, &exact(), &IDS));
    let (folder, file) = written(&with);
    for chunk in [1, 4, 64] {
        for slots in [1, 8] {
            let streamed = exact().residency(Residency::Streamed).slots(slots).chunk_tokens(chunk);
            assert!(bits(&logits_of(&file, &streamed, &IDS)) == expected, "{slots} slots, chunks of {chunk}");
        }
    }
    let packed = exact().slots(2).pack(PackUse::BuildIfAbsent(folder.path().join("packs")));
    assert!(bits(&logits_of(&file, &packed, &IDS)) == expected, "with a pack");
    // Experts that are quantised on the way to a pack keep their factors, which are no part of it.
    let quantised = |file: &Path, packs: &str| {
        let packs = folder.path().join(packs);
        let configuration = exact().slots(2).experts(ExpertType::Q8_0).pack(PackUse::BuildIfAbsent(packs));
        bits(&logits_of(file, &configuration, &IDS))
    };
    assert!(quantised(&file, "a") == quantised(&written(&without).1, "b"), "with experts of Q8_0");
}

#[test]
fn factors_of_nvfp4_files() {
    let (with, without) = both(&model(|_| WeightFormat::Nvfp4), false);
    let expected = logits_of(&written(&without).1, &exact(), &IDS);
    let (_folder, file) = written(&with);
    let got = logits_of(&file, &exact(), &IDS);
    let (worst, spread) = (distance(&got, &expected), spread(&expected));
    assert!(worst < BOUND_OF_EIGHT_BITS * spread.max(1.0), "logits of {spread} differ by {worst}");
    let plain = logits_of(&written(&model(|_| WeightFormat::Nvfp4)).1, &exact(), &IDS);
    assert!(distance(&plain, &expected) > 4.0 * worst, "the factors count for little");
}

#[test]
fn factors_that_fit_nothing_are_refused_by_name() {
    let plain = model(|_| WeightFormat::Nvfp4);
    let find = |name: &str| plain.iter().find(|tensor| tensor.name == name).expect("a tensor");
    let with = |tensors: &[Tensor], further: Tensor| [tensors, &[further]].concat();
    let experts = find("blk.1.ffn_up_exps.weight");
    let short = beside(experts, "scale", &[1.0; EXPERTS - 1]);
    let query = beside(find("blk.0.attn_q.weight"), "scale", &[1.0, 2.0]);
    let norm = beside(find("blk.0.attn_norm.weight"), "scale", &[1.0]);
    let of_half = beside(experts, "scale", &[1.0; EXPERTS]);
    let cases = [
        (with(&plain, short), "blk.1.ffn_up_exps.scale"),
        (with(&plain, query), "blk.0.attn_q.scale"),
        (with(&plain, norm), "blk.0.attn_norm.scale"),
        (with(&fused(&plain), of_half), "blk.1.ffn_up_exps.scale"),
    ];
    for (tensors, name) in cases {
        match Runtime::load(&written(&tensors).1, &exact(), &mut Silent) {
            Ok(_) => panic!("{name} was accepted"),
            Err(error) => assert!(error.to_string().contains(name), "{name}: {error}"),
        }
    }
}
