//! `convert_to_gguf`: a split set becomes the file that it was cut from, a file without a type asked for keeps every bit, a type
//! that is asked for gives each row the quantiser's blocks, and nothing of the user's or half of a file is left behind.
//!
//! What could go wrong: keys of the parts that stay, tensors that end up under each other's names, a router or a norm that is quantised,
//! pieces of rows put together wrongly, a temporary file that stays after a refusal.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use coldpress::{ConvertTypes, LoadStage, Silent, TensorChoice, convert_to_gguf};
use coldpress_experts::weight_format;
use coldpress_formats::{GgufWriter, ModelFile, TensorInfo, TensorType, Value};
use coldpress_kernels::blocks::{dequantize, quantize_with_search};

use crate::common::fixture;
use crate::families::{bits, exact, logits_of};

const IDS: [u32; 6] = [1, 17, 200, 3, 99, 42];

fn choice(name: &str) -> TensorChoice {
    let found = TensorChoice::ALL.into_iter().find(|(known, _)| *known == name);
    found.expect("a choice").1
}

fn bytes_of(file: &ModelFile, tensor: &TensorInfo) -> Vec<u8> {
    let mut bytes = vec![0; tensor.byte_len as usize];
    let path = &file.files()[tensor.file].path;
    File::open(path).and_then(|file| file.read_exact_at(&mut bytes, tensor.offset)).expect("readable");
    bytes
}

fn opened(path: &Path) -> ModelFile {
    ModelFile::open(path).expect("a file")
}

/// The parts of a set that hold the tensors of `source` by turns.
fn split(source: &ModelFile, folder: &Path, parts: usize) {
    for part in 0..parts {
        let mut writer = GgufWriter::new();
        if part == 0 {
            source.metadata().iter().for_each(|(key, value)| {
                writer.metadata(key, value.clone());
            });
        }
        writer.metadata("split.no", Value::Uint16(part as u16));
        writer.metadata("split.count", Value::Uint16(parts as u16));
        writer.metadata("split.tensors.count", Value::Int32(source.tensors().len() as i32));
        for tensor in source.tensors().skip(part).step_by(parts) {
            writer.tensor(&tensor.name, tensor.tensor_type, &tensor.shape);
        }
        let path = folder.join(format!("model-{:05}-of-{parts:05}.gguf", part + 1));
        writer
            .write(path, |info, out| {
                out.write_all(&bytes_of(source, source.tensor(&info.name).expect("planned")))
            })
            .expect("written");
    }
}

fn assert_same(converted: &ModelFile, source: &ModelFile) {
    let entries = |file: &ModelFile| -> Vec<(String, Value)> {
        file.metadata().iter().map(|(key, value)| (key.to_owned(), value.clone())).collect()
    };
    assert_eq!(entries(converted), entries(source));
    assert_eq!(converted.tensors().len(), source.tensors().len());
    for tensor in source.tensors() {
        let other = converted.tensor(&tensor.name).expect("every tensor");
        assert_eq!((other.tensor_type, &other.shape), (tensor.tensor_type, &tensor.shape), "{}", tensor.name);
        assert!(bytes_of(converted, other) == bytes_of(source, tensor), "{}", tensor.name);
    }
}

#[test]
fn a_file_and_its_parts_become_the_same_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = fixture("qwen3moe.gguf");
    let source = opened(&model);
    let parts = folder.path().join("parts");
    std::fs::create_dir(&parts).expect("a folder");
    split(&source, &parts, 3);
    let expected = bits(&logits_of(&model, &exact(), &IDS));
    for (number, from) in [model.clone(), parts.clone()].iter().enumerate() {
        let out = folder.path().join(format!("{number}.gguf"));
        let report = convert_to_gguf(from, &out, ConvertTypes::default(), &mut Silent).expect("converts");
        assert!(report.lossless && report.converted == 0 && report.exceptions.is_empty(), "{report:?}");
        assert_eq!(report.file_bytes.0, std::fs::metadata(&out).expect("there").len());
        assert_same(&opened(&out), &source);
        assert_eq!(bits(&logits_of(&out, &exact(), &IDS)), expected, "the logits of {}", from.display());
    }
}

/// Each row of a tensor as the quantiser makes it.
fn quantised(file: &ModelFile, tensor: &TensorInfo, target: TensorType) -> Vec<u8> {
    let known = |kind| weight_format(kind).expect("a known type");
    let mut values = vec![0.0; tensor.elements() as usize];
    dequantize(known(tensor.tensor_type), &bytes_of(file, tensor), &mut values);
    let rows = values.chunks(tensor.columns() as usize).flat_map(|row| {
        let mut out = vec![0; known(target).row_bytes(row.len())];
        quantize_with_search(known(target), row, &mut out).expect("it has a quantiser");
        out
    });
    rows.collect()
}

#[test]
fn types_reach_the_matrices_that_they_are_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = fixture("qwen3moe.gguf");
    let source = opened(&model);
    let out = folder.path().join("out.gguf");
    let types = ConvertTypes { matrices: choice("q8_0"), experts: choice("q4_k") };
    let report = convert_to_gguf(&model, &out, types, &mut Silent).expect("converts");
    assert!(!report.lossless && report.converted > 0, "{report:?}");
    // The columns of the tiny model are no multiples of 256.
    assert!(report.exceptions.iter().all(|line| line.contains("become Q5_0")), "{report:?}");
    assert!(!report.exceptions.is_empty());
    let made = opened(&out);
    assert_eq!(made.metadata().get("general.quantization_version"), Some(&Value::Uint32(2)));
    assert_eq!(made.metadata().get("general.file_type"), None, "the types are mixed");
    let mut seen = std::collections::BTreeSet::new();
    for tensor in source.tensors() {
        let wanted = match tensor.name.as_str() {
            name if name.contains("_exps.") => "Q5_0",
            name if tensor.shape.len() == 1 || name.contains("ffn_gate_inp") => tensor.tensor_type.name(),
            _ => "Q8_0",
        };
        let other = made.tensor(&tensor.name).expect("every tensor");
        assert_eq!(other.tensor_type.name(), wanted, "{}", tensor.name);
        seen.insert(wanted);
        let expected = match other.tensor_type == tensor.tensor_type {
            true => bytes_of(&source, tensor),
            false => quantised(&source, tensor, other.tensor_type),
        };
        assert!(bytes_of(&made, other) == expected, "{}", tensor.name);
    }
    assert!(seen.contains("Q5_0") && seen.contains("Q8_0"), "{seen:?}");
    assert!(logits_of(&out, &exact(), &IDS).iter().all(|logit| logit.is_finite()));

    // Wider floats lose nothing; what is small already stays.
    let types = ConvertTypes { matrices: choice("q8_0"), experts: choice("q8_0") };
    let again =
        convert_to_gguf(&out, &folder.path().join("again.gguf"), types, &mut Silent).expect("converts");
    assert!(again.converted == 0 && again.exceptions[0].contains("no smaller"), "{again:?}");
    let types = ConvertTypes { matrices: choice("f32"), experts: choice("f32") };
    let wide =
        convert_to_gguf(&model, &folder.path().join("wide.gguf"), types, &mut Silent).expect("converts");
    let floats = source.tensors().all(|tensor| tensor.tensor_type.block_elements() == 1);
    assert_eq!(wide.lossless, floats);
}

/// Stops at the first sign of progress.
struct Stops;

impl coldpress::LoadObserver for Stops {
    fn progress(&mut self, stage: LoadStage, done: u64, total: u64) {
        assert!(stage == LoadStage::Convert && done <= total);
    }

    fn should_stop(&mut self) -> bool {
        true
    }
}

#[test]
fn what_cannot_be_converted_leaves_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = |name: &str| folder.path().join(name);
    let model = fixture("qwen3moe.gguf");
    let keep = ConvertTypes::default();
    let refused = |model: &Path, out: &PathBuf, types, words: &str| {
        let error = convert_to_gguf(model, out, types, &mut Silent).expect_err(words).to_string();
        assert!(error.contains(words), "{error}");
    };
    std::fs::write(place("mine.gguf"), "mine").expect("writes");
    refused(&model, &place("mine.gguf"), keep, "not overwritten");
    assert_eq!(std::fs::read(place("mine.gguf")).expect("there"), b"mine");
    refused(&model, &place("none/x.gguf"), keep, "make it first");
    let hugging_face =
        std::fs::read_dir(fixture("hugging_face")).expect("fixtures").flatten().map(|entry| entry.path());
    let checkpoint = hugging_face.filter(|path| path.join("config.json").exists()).find(|path| {
        std::fs::read_dir(path)
            .expect("a folder")
            .flatten()
            .any(|entry| entry.path().extension().is_some_and(|end| end == "safetensors"))
    });
    if let Some(checkpoint) = checkpoint {
        refused(&checkpoint, &place("x.gguf"), keep, "folder of Hugging Face");
    }
    // A matrix with a value that is none.
    let source = opened(&model);
    let damaged = place("damaged.gguf");
    let mut writer = GgufWriter::new();
    source.metadata().iter().for_each(|(key, value)| {
        writer.metadata(key, value.clone());
    });
    source.tensors().for_each(|tensor| {
        writer.tensor(&tensor.name, TensorType::F32, &tensor.shape);
    });
    let write = |info: &TensorInfo, out: &mut dyn std::io::Write| {
        let tensor = source.tensor(&info.name).expect("planned");
        let mut values = vec![0.0; tensor.elements() as usize];
        let format = weight_format(tensor.tensor_type).expect("known");
        dequantize(format, &bytes_of(&source, tensor), &mut values);
        if info.name == "blk.1.ffn_down_exps.weight" {
            values[1234] = f32::NAN;
        }
        values.iter().try_for_each(|value| out.write_all(&value.to_le_bytes()))
    };
    writer.write(&damaged, write).expect("written");
    let types = ConvertTypes { experts: choice("q8_0"), ..keep };
    refused(
        &damaged,
        &place("y.gguf"),
        types,
        "\"blk.1.ffn_down_exps.weight\" holds values that Q8_0 cannot",
    );
    let stopped = convert_to_gguf(&model, &place("z.gguf"), keep, &mut Stops).expect_err("stopped");
    assert!(matches!(stopped, coldpress::EngineError::Cancelled), "{stopped}");
    let left: Vec<_> = std::fs::read_dir(folder.path())
        .expect("a folder")
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    assert_eq!(left.len(), 2, "{left:?}");
}
