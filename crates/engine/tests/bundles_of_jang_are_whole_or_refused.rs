//! JANGTQ and JANGH: what belongs to their matrices is found, worked out where the bundle leaves it out, and nothing is guessed.
//!
//! What could go wrong: signs or a codebook of another seed or size, a rotation of gate that up does not have, an entry of the
//! configuration for a module that is not there, numbers beside the model that are not in the fingerprint.

use coldpress_kernels::layout::{CodeOrder, levels_of_row};
use coldpress_kernels::{Coding, Levels, ScaleFormat};
use half::f16;
use serde_json::{Value, json};

use crate::checkpoint::{Checkpoint, Reference, Tensor};
use crate::families::{bits, exact, logits_of, refusal};

const RUNTIME: &str = "jangtq_runtime.safetensors";

fn bundle(name: &str) -> Option<(Reference, Checkpoint)> {
    let reference = Reference::open(&format!("jang/{name}"))?;
    let checkpoint = Checkpoint::read(&reference.folder);
    Some((reference, checkpoint))
}

/// The value of the `index`th number of an array of the runtime file, changed.
fn with_number(checkpoint: &Checkpoint, array: &str, index: usize, value: f32) -> Checkpoint {
    let mut changed = checkpoint.clone();
    let bytes = changed.side_files.get_mut(RUNTIME).expect("a runtime file");
    let length = u64::from_le_bytes(*bytes.first_chunk().expect("a length")) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).expect("a header");
    let start = header[array]["data_offsets"][0].as_u64().expect("an array") as usize;
    bytes[8 + length + start + 4 * index..][..4].copy_from_slice(&value.to_le_bytes());
    changed
}

#[test]
fn signs_and_codebooks_are_worked_out_where_they_are_left_out() {
    for name in ["jangtq2", "jangtq4", "jangtq2-minimax"] {
        let Some((reference, checkpoint)) = bundle(name) else { continue };
        let logits =
            |checkpoint: &Checkpoint| bits(&logits_of(checkpoint.write().path(), &exact(), &reference.ids));
        let expected = logits(&checkpoint);
        let mut without = checkpoint.clone();
        without.side_files.remove(RUNTIME);
        assert!(logits(&without) == expected, "{name}: other bits without {RUNTIME}");
    }
}

#[test]
fn numbers_beside_the_model_count() {
    let Some((reference, checkpoint)) = bundle("jangtq2") else { return };
    let run = |checkpoint: &Checkpoint| bits(&logits_of(checkpoint.write().path(), &exact(), &reference.ids));
    let expected = run(&checkpoint);
    for (array, value) in
        [("signs.192.42", 1.0), ("signs.64.42", 1.0), ("codebook.192.2", -0.2), ("codebook.64.2", -0.3)]
    {
        // The first sign of seed 42 is negative.
        assert!(run(&with_number(&checkpoint, array, 0, value)) != expected, "{array} has no effect");
    }
}

/// Rows as they are without a rotation: of an expert, against those of the package that writes bundles.
#[test]
fn values_are_those_of_the_package() {
    for name in ["jangtq2", "jangtq4", "jangtq2-minimax", "jangh"] {
        let Some((reference, checkpoint)) = bundle(name) else { continue };
        let decoded = Checkpoint::read_tensors(&reference.folder.join("decoded.safetensors"));
        assert_eq!(decoded.len(), 3, "{name}");
        for matrix in decoded {
            let found = decode(&checkpoint, &matrix);
            let expected = matrix.values();
            // The reference keeps the levels of JANGH in f64, the package rounds them; sums of a block may then be small differences of
            // rounded values.
            let largest = |block: &[f32]| block.iter().fold(0f32, |largest, value| largest.max(value.abs()));
            for (found, expected) in found.chunks(32).zip(expected.chunks(32)) {
                let unit = largest(expected) * f32::EPSILON;
                for (found, expected) in found.iter().zip(expected) {
                    let is_close = match name {
                        "jangh" => (found - expected).abs() <= unit,
                        _ => found.to_bits().abs_diff(expected.to_bits()) <= 1,
                    };
                    assert!(is_close, "{name}: {} has {found}, not {expected}", matrix.name);
                }
            }
        }
    }
}

/// Expert 1 of the module of `matrix`, worked out from the levels of its codes in f64.
fn decode(checkpoint: &Checkpoint, matrix: &Tensor) -> Vec<f32> {
    let [rows, columns] = [matrix.shape[0] as usize, matrix.shape[1] as usize];
    let module = matrix.name.strip_suffix(".weight").expect("a weight");
    let tensor = |ending: &str| {
        checkpoint.tensors.iter().find(|tensor| tensor.name.ends_with(&format!("{module}{ending}")))
    };
    let (codes, scales, order, bits, codebook, signs) = match (tensor(".tq_packed"), tensor(".tq2_packed")) {
        (Some(codes), _) => {
            let bits = tensor(".tq_bits").expect("a width").bytes[0];
            let runtime = Checkpoint::tensors_of(&checkpoint.side_files[RUNTIME]);
            let array =
                |name: String| runtime.iter().find(|array| array.name == name).expect("an array").values();
            let (codebook, signs) =
                (array(format!("codebook.{columns}.{bits}")), array(format!("signs.{columns}.42")));
            (codes, tensor(".tq_norms"), CodeOrder::Words, bits, codebook, signs)
        }
        (None, codes) => {
            let bits = checkpoint.config["quantization"][module]["bits"].as_u64().expect("a width") as u8;
            let levels = &checkpoint.config["jangtq"]["codebooks"][bits.to_string()]["levels"];
            let levels: Vec<f64> = serde_json::from_value(levels.clone()).expect("levels");
            let levels = levels.into_iter().map(|level| level as f32).collect();
            (codes.expect("codes"), tensor(".tq2_scales"), CodeOrder::Stream, bits, levels, Vec::new())
        }
    };
    let scales = scales.expect("scales").bytes.as_chunks().0;
    let scales: Vec<f16> = scales.iter().map(|bytes| f16::from_le_bytes(*bytes)).collect();
    let coding = Coding::new(bits.into(), Levels::Codebook, None, ScaleFormat::F16, false).expect("a coding");
    let row_bytes = order.row_bytes(bits.into(), columns);
    let mut out = Vec::new();
    for row in 0..rows {
        let mut levels = vec![0.0; columns];
        levels_of_row(
            coding,
            order,
            &codebook,
            &codes.bytes[(rows + row) * row_bytes..][..row_bytes],
            &mut levels,
        );
        let scale = scales[rows + row].to_f64();
        let mut start = 0;
        while start < columns {
            let length = if signs.is_empty() { 32 } else { 1 << (columns - start).ilog2() };
            out.extend((0..length).map(|place: usize| {
                let term = |at: usize| {
                    let flip = if (place & at).count_ones() % 2 == 1 { -1.0 } else { 1.0 };
                    f64::from(levels[start + at]) * scale * flip
                };
                let sign = signs.get(start + place).map_or(1.0, |&sign| f64::from(sign));
                ((0..length).map(term).sum::<f64>() / (length as f64).sqrt() * sign) as f32
            }));
            start += length;
        }
    }
    out
}

#[test]
fn jangtq_that_does_not_add_up_is_refused_by_name() {
    let Some((_, checkpoint)) = bundle("jangtq2-minimax") else { return };
    let module = "model.layers.1.block_sparse_moe.switch_mlp.up_proj";
    let with = |ending: &str, change: &dyn Fn(&mut Tensor)| {
        let mut changed = checkpoint.clone();
        change(changed.tensor(&format!("{module}{ending}")));
        changed
    };
    let without = |ending: &str| {
        let mut changed = checkpoint.clone();
        changed.tensors.retain(|tensor| tensor.name != format!("{module}{ending}"));
        changed
    };
    let mut no_seed = checkpoint.clone();
    no_seed.side_files.remove("jang_config.json");
    let mut two_seeds = checkpoint.clone();
    two_seeds.config["mxtq_seed"] = json!(43);
    let mut other = checkpoint.clone();
    other.config["weight_format"] = json!("mxtq9");
    let mut vector_quantised = checkpoint.clone();
    let side = json!({"mxtq_seed": 42, "quantization": {"codebook_vq": true}});
    vector_quantised.side_files.insert("jang_config.json".to_owned(), side.to_string().into_bytes());
    let mut draft = checkpoint.clone();
    let norm = draft.tensor("model.norm.weight").clone();
    draft.tensors.push(Tensor { name: format!("{module}.bit_map"), ..norm });
    let cases = [
        (without(".tq_norms"), vec![module, "tq_norms"]),
        (without(".tq_bits"), vec![module, "tq_bits"]),
        (with(".tq_norms", &|tensor| tensor.shape = vec![64, 32]), vec![module, "shape"]),
        (with(".tq_packed", &|tensor| tensor.shape = vec![32, 32, 8]), vec![module, "shape"]),
        (with(".tq_packed", &|tensor| tensor.shape = vec![32, 2, 128]), vec![module, "words"]),
        (with(".tq_packed", &|tensor| tensor.dtype = "I32".to_owned()), vec![module, "I32"]),
        (no_seed, vec!["mxtq_seed"]),
        (two_seeds, vec!["mxtq_seed", "42", "43"]),
        (other, vec!["weight_format", "mxtq9"]),
        (vector_quantised, vec!["codebook_vq", "JANG VQ"]),
        (draft, vec!["bit_map", "MXQ"]),
        (with_number(&checkpoint, "signs.64.42", 3, 0.5), vec!["signs.64.42", "1 and -1"]),
        (with_number(&checkpoint, "codebook.64.2", 3, f32::NAN), vec!["codebook.64.2", "finite"]),
    ];
    for (changed, words) in cases {
        let message = refusal(&changed);
        for word in words {
            assert!(message.contains(word), "{word:?} is not in {message:?}");
        }
    }
}

#[test]
fn jangh_that_does_not_add_up_is_refused_by_name() {
    let Some((_, checkpoint)) = bundle("jangh") else { return };
    let module = "model.layers.1.mlp.switch_mlp.up_proj";
    let entry = |change: &dyn Fn(&mut serde_json::Map<String, Value>)| {
        let mut changed = checkpoint.clone();
        for key in ["quantization", "quantization_config"] {
            if let Some(entries) = changed.config.get_mut(key).and_then(Value::as_object_mut) {
                change(entries);
            }
        }
        changed
    };
    let set = |key: &'static str, value: Value| entry(&|entries| entries[module][key] = value.clone());
    let mut version = checkpoint.clone();
    version.config["jangtq"]["version"] = json!(3);
    let mut family = checkpoint.clone();
    family.config["jangtq"]["codebook_family"] = json!("even-quintic");
    let mut levels = checkpoint.clone();
    levels.config["jangtq"]["codebooks"]["3"]["levels"] = json!([0.5, 1.5]);
    let mut otherwise = checkpoint.clone();
    let norm = otherwise.tensor("model.norm.weight").clone();
    otherwise
        .tensors
        .push(Tensor { name: "model.layers.0.mlp.switch_mlp.gate_proj.weight".to_owned(), ..norm });
    let mut no_scales = checkpoint.clone();
    no_scales.tensors.retain(|tensor| tensor.name != format!("{module}.tq2_scales"));
    let cases = [
        (entry(&|entries| drop(entries.remove(module))), vec![module, "entry"]),
        (
            entry(&|entries| {
                let copy = entries[module].clone();
                entries.insert("model.layers.9.mlp.switch_mlp.up_proj".to_owned(), copy);
            }),
            vec!["model.layers.9", "there is no tensor"],
        ),
        (set("rotation", json!("none")), vec!["gate and up", "rotated"]),
        (set("rotation", json!("hadamard64")), vec![module, "hadamard64"]),
        (set("bits", json!(5)), vec![module, "bits"]),
        (set("bits", json!(4)), vec![module, "shape"]),
        (set("mode", json!("affine")), vec![module, "mode"]),
        (version, vec!["jangtq.version"]),
        (family, vec!["codebook_family", "even-quintic"]),
        (levels, vec!["codebooks.3.levels"]),
        (no_scales, vec![module, "tq2_scales"]),
        (otherwise, vec!["model.layers.0.mlp.switch_mlp.gate_proj.weight", "jangtq.version"]),
    ];
    for (changed, words) in cases {
        let message = refusal(&changed);
        for word in words {
            assert!(message.contains(word), "{word:?} is not in {message:?}");
        }
    }
}
