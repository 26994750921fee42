//! Matrices as packed integers and as FP8 give, bit for bit, the logits of the same checkpoint with their values as F32.
//!
//! What could go wrong: the offset of packed integers, the order of codes in a word, a scale per row taken for one per matrix, a
//! scale of the wrong expert. The values are worked out here from the formats' definitions.

use half::bf16;
use serde_json::json;

use crate::checkpoint::{Checkpoint, Reference, Tensor};
use crate::families::{bits, exact, logits_of, refusal};

/// A way to hold a matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// `bits`, columns that share a scale (0: the row).
    Packed(usize, usize),
    /// A scale per row, or one in all.
    Float8 { per_row: bool },
}

fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (code >> 3 & 15, f32::from(code & 7));
    let magnitude = match exponent {
        0 => mantissa * 2f32.powi(-9),
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(i32::from(exponent) - 7),
    };
    if code < 128 { magnitude } else { -magnitude }
}

/// The tensors of a matrix in this form, and the matrix with the values that they stand for.
fn encode(kind: Kind, matrix: &Tensor) -> (Vec<Tensor>, Tensor) {
    let [rows, columns] = [matrix.shape[0] as usize, matrix.shape[1] as usize];
    let module = matrix.name.strip_suffix(".weight").expect("a weight");
    let values = matrix.values();
    let group = match kind {
        Kind::Packed(_, group) if group > 0 => group,
        _ => columns,
    };
    let groups = columns / group;
    // Different in every row and group.
    let scale = |row: usize, group: usize| match kind {
        Kind::Float8 { per_row: false } => bf16::from_f32(0.0021),
        _ => bf16::from_f32(0.001 + 0.0001 * ((row * 7 + group * 3) % 41) as f32),
    };
    let mut decoded = matrix.clone();
    let mut codes = Vec::new();
    for row in 0..rows {
        let mut word = 0u32;
        for column in 0..columns {
            let scale = scale(row, column / group).to_f32();
            let wanted = values[row * columns + column] / scale;
            let level = match kind {
                Kind::Packed(bits, _) => {
                    let half = 1i32 << (bits - 1);
                    let number = (wanted.round() as i32).clamp(-half, half - 1);
                    let per_word = 32 / bits;
                    word |= ((number + half) as u32) << (column % per_word * bits);
                    if column % per_word == per_word - 1 || column == columns - 1 {
                        codes.extend(std::mem::take(&mut word).to_le_bytes());
                    }
                    number as f32
                }
                Kind::Float8 { .. } => {
                    let distance = |code: &u8| ((e4m3(*code) - wanted).abs() * 1e6) as u64;
                    let code = (0..=255u8).filter(|code| code & 0x7f != 0x7f).min_by_key(distance);
                    codes.push(code.expect("some code"));
                    e4m3(*codes.last().expect("just pushed"))
                }
            };
            decoded.bytes[(row * columns + column) * 4..][..4]
                .copy_from_slice(&(level * scale).to_le_bytes());
        }
    }
    let tensor = |ending: &str, dtype: &str, shape: &[usize], bytes: Vec<u8>| Tensor {
        name: format!("{module}{ending}"),
        dtype: dtype.to_owned(),
        shape: shape.iter().map(|&dimension| dimension as u64).collect(),
        bytes,
    };
    let scales: Vec<u8> = match kind {
        Kind::Float8 { per_row: false } => scale(0, 0).to_le_bytes().to_vec(),
        _ => (0..rows)
            .flat_map(|row| (0..groups).flat_map(move |group| scale(row, group).to_le_bytes()))
            .collect(),
    };
    let all = match kind {
        Kind::Packed(bits, _) => vec![
            tensor(".weight_packed", "I32", &[rows, columns.div_ceil(32 / bits)], codes),
            tensor(".weight_scale", "BF16", &[rows, groups], scales),
            tensor(
                ".weight_shape",
                "I64",
                &[2],
                [rows, columns].iter().flat_map(|n| n.to_le_bytes()).collect(),
            ),
        ],
        Kind::Float8 { per_row } => vec![
            tensor(".weight", "F8_E4M3", &[rows, columns], codes),
            tensor(".weight_scale", "BF16", &[rows, 1][..if per_row { 2 } else { 0 }], scales),
            tensor(".input_scale", "F32", &[], 0.5f32.to_le_bytes().to_vec()),
        ],
    };
    (all, decoded)
}

/// The projections whose rows are whole groups.
fn is_matrix(tensor: &Tensor) -> bool {
    tensor.shape.len() == 2 && tensor.name.contains("_proj.weight") && tensor.shape[1].is_multiple_of(32)
}

/// The checkpoint with its projections in this form, and with the values of that.
fn both(kind: Kind, reference: &Reference) -> (Checkpoint, Checkpoint) {
    coded(kind, &Checkpoint::read(&reference.folder), is_matrix)
}

/// The checkpoint with these matrices in this form, and with the values of that.
fn coded(
    kind: Kind,
    checkpoint: &Checkpoint,
    is_matrix: impl Fn(&Tensor) -> bool,
) -> (Checkpoint, Checkpoint) {
    let (mut coded, mut decoded) = (checkpoint.clone(), checkpoint.clone());
    let method = if matches!(kind, Kind::Packed(..)) { "compressed-tensors" } else { "fp8" };
    coded.config["quantization_config"] = json!({"quant_method": method});
    let matrices: Vec<Tensor> = coded.tensors.iter().filter(|tensor| is_matrix(tensor)).cloned().collect();
    coded.tensors.retain(|tensor| !is_matrix(tensor));
    for matrix in matrices {
        let (tensors, values) = encode(kind, &matrix);
        coded.tensors.extend(tensors);
        *decoded.tensor(&matrix.name) = values;
    }
    (coded, decoded)
}

#[test]
fn packed_integers_and_fp8() {
    let kinds = [
        Kind::Packed(4, 32),
        Kind::Packed(4, 0),
        Kind::Packed(8, 32),
        Kind::Float8 { per_row: true },
        Kind::Float8 { per_row: false },
    ];
    for name in ["qwen3_moe", "deepseek_v3"] {
        let Some(reference) = Reference::open(name) else { continue };
        for kind in kinds {
            let (coded, decoded) = both(kind, &reference);
            let logits =
                |checkpoint: &Checkpoint| logits_of(checkpoint.write().path(), &exact(), &reference.ids);
            assert!(bits(&logits(&coded)) == bits(&logits(&decoded)), "{name} with {kind:?}: other bits");
        }
    }
}

/// The embedding, whose rows are looked up, and the head, tied to it or not.
#[test]
fn embeddings_and_heads_of_codes_and_of_short_floats() {
    let Some(reference) = Reference::open("qwen3_moe") else { return };
    let run = |checkpoint: &Checkpoint| bits(&logits_of(checkpoint.write().path(), &exact(), &reference.ids));
    let is_end = |tensor: &Tensor| ["model.embed_tokens.weight", "lm_head.weight"].contains(&&*tensor.name);
    for tied in [false, true] {
        let mut plain = Checkpoint::read(&reference.folder);
        plain.config["tie_word_embeddings"] = tied.into();
        plain.tensors.retain(|tensor| !tied || tensor.name != "lm_head.weight");
        let kinds = [
            Kind::Packed(4, 32),
            Kind::Packed(8, 0),
            Kind::Float8 { per_row: true },
            Kind::Float8 { per_row: false },
        ];
        for kind in kinds {
            let (coded, decoded) = coded(kind, &plain, is_end);
            assert!(run(&coded) == run(&decoded), "{kind:?}, tied {tied}: other bits");
        }
        for dtype in ["F16", "BF16"] {
            let with = |change: &dyn Fn(&Tensor) -> Tensor| {
                let mut other = plain.clone();
                other
                    .tensors
                    .iter_mut()
                    .filter(|tensor| is_end(tensor))
                    .for_each(|tensor| *tensor = change(tensor));
                other
            };
            let (short, wide) =
                (with(&|tensor| tensor.rounded(dtype)), with(&|tensor| tensor.widened(dtype)));
            assert!(run(&short) == run(&wide), "{dtype}, tied {tied}: other bits");
        }
    }
}

/// A bundle of JANG says in a file of its own, under one of three names, that its matrices are rotated.
#[test]
fn rotated_matrices_are_refused_by_name() {
    let Some(reference) = Reference::open("qwen3_moe") else { return };
    let (packed, _) = both(Kind::Packed(4, 32), &reference);
    for name in ["jang_config.json", "jjqf_config.json", "jang_cfg.json"] {
        for (rotated, is_read) in [(false, true), (true, false)] {
            let folder = packed.write();
            let side = json!({"format": "jang", "quantization": {"hadamard_rotation": rotated}});
            std::fs::write(folder.path().join(name), side.to_string()).expect("a file");
            let planned = coldpress::plan(folder.path(), &exact());
            assert_eq!(planned.is_ok(), is_read, "{name}, rotated: {rotated}");
            if let Err(error) = planned {
                assert!(error.to_string().contains("hadamard_rotation"), "{error}");
            }
        }
    }
}

#[test]
fn codes_that_do_not_add_up_are_refused_by_name() {
    let Some(reference) = Reference::open("qwen3_moe") else { return };
    let (packed, _) = both(Kind::Packed(4, 32), &reference);
    let (float8, _) = both(Kind::Float8 { per_row: true }, &reference);
    let module = "model.layers.1.mlp.experts.3.up_proj";
    let without = |checkpoint: &Checkpoint, ending: &str| {
        let mut changed = checkpoint.clone();
        changed.tensors.retain(|tensor| tensor.name != format!("{module}{ending}"));
        changed
    };
    let with = |checkpoint: &Checkpoint, ending: &str, change: &dyn Fn(&mut Tensor)| {
        let mut changed = checkpoint.clone();
        change(changed.tensor(&format!("{module}{ending}")));
        changed
    };
    let added = |ending: &str| {
        let mut changed = packed.clone();
        let scale = changed.tensor(&format!("{module}.weight_scale")).clone();
        changed.tensors.push(Tensor { name: format!("{module}{ending}"), ..scale });
        changed
    };
    let mut gptq = packed.clone();
    gptq.config["quantization_config"]["quant_method"] = json!("gptq");
    let cases = [
        (without(&packed, ".weight_scale"), vec![module, "weight_scale"]),
        (without(&float8, ".weight_scale"), vec![module, "without factors"]),
        (added(".weight_zero_point"), vec![module, "zero points"]),
        (added(".weight_g_idx"), vec![module, "reordered"]),
        (with(&packed, ".weight_scale", &|tensor| tensor.dtype = "I16".to_owned()), vec![module, "I16"]),
        (with(&packed, ".weight_packed", &|tensor| tensor.shape.swap(0, 1)), vec![module, "words"]),
        (with(&float8, ".weight", &|tensor| tensor.shape.swap(0, 1)), vec![module, "shape"]),
        (with(&float8, ".weight_scale", &|tensor| tensor.shape = vec![2, 16]), vec![module, "shape"]),
        (gptq, vec!["gptq", "quant_method"]),
    ];
    for (checkpoint, words) in cases {
        let message = refusal(&checkpoint);
        for word in words {
            assert!(message.contains(word), "{word:?} is not in {message:?}");
        }
    }
}
