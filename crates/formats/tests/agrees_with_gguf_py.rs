//! Files written by the PyPI package gguf 0.19 read back with the values that were put in, and with the
//! tensor places that the package's own reader finds; the table of tensor types is that package's.
//!
//! What could go wrong: a value type with the wrong width or sign, a swapped byte order, a wrong start of the
//! data. The files come from `fixtures/make_fixtures.py`.

use std::path::{Path, PathBuf};

use coldpress_formats::{Array, ModelFile, TensorType, Value, ValueType};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn lines(name: &str) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(fixture(name)).expect("a fixture");
    text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

fn places(model: &ModelFile, file: usize) -> Vec<Vec<String>> {
    let in_file = model.tensors().filter(|tensor| tensor.file == file);
    in_file
        .map(|tensor| {
            let shape: Vec<String> = tensor.shape.iter().map(u64::to_string).collect();
            let type_name = tensor.tensor_type.name().to_owned();
            vec![
                tensor.name.clone(),
                type_name,
                shape.join(","),
                tensor.offset.to_string(),
                tensor.byte_len.to_string(),
            ]
        })
        .collect()
}

#[test]
fn the_table_of_tensor_types_is_complete_and_equal() {
    let ours: Vec<Vec<String>> = TensorType::all()
        .filter(|kind| kind.is_ggml())
        .map(|kind| {
            vec![
                kind.id().to_string(),
                kind.name().to_owned(),
                kind.block_elements().to_string(),
                kind.block_bytes().to_string(),
            ]
        })
        .collect();
    assert_eq!(ours, lines("tensor_types.tsv"));
}

fn check_values(model: &ModelFile) {
    let metadata = model.metadata();
    let value = |key: &str| metadata.get(key).unwrap_or_else(|| panic!("{key} is missing"));
    assert_eq!(value("general.architecture"), &Value::from("test"));
    assert_eq!(value("test.uint8"), &Value::Uint8(200));
    assert_eq!(value("test.int8"), &Value::Int8(-100));
    assert_eq!(value("test.uint16"), &Value::Uint16(60000));
    assert_eq!(value("test.int16"), &Value::Int16(-30000));
    assert_eq!(value("test.uint32"), &Value::Uint32(4_000_000_000));
    assert_eq!(value("test.int32"), &Value::Int32(-2_000_000_000));
    assert_eq!(value("test.float32"), &Value::Float32(0.15625));
    assert_eq!(value("test.bool.true"), &Value::Bool(true));
    assert_eq!(value("test.bool.false"), &Value::Bool(false));
    assert_eq!(value("test.string"), &Value::from("Grüße, 世界"));
    assert_eq!(value("test.uint64"), &Value::Uint64(10_000_000_000_000_000_000));
    assert_eq!(value("test.int64"), &Value::Int64(-9_000_000_000_000_000_000));
    assert_eq!(value("test.float64"), &Value::Float64(0.1));
    let strings = ["", "a", "Grüße", "専門家"].map(str::as_bytes);
    let arrays = [
        ("uint8", Array::Uint8(vec![0, 255])),
        ("int8", Array::Int8(vec![-128, 127])),
        ("uint16", Array::Uint16(vec![0, 65535])),
        ("int16", Array::Int16(vec![-32768, 32767])),
        ("uint32", Array::Uint32(vec![0, u32::MAX])),
        ("int32", Array::Int32(vec![i32::MIN, i32::MAX])),
        ("float32", Array::Float32(vec![0.5, -1.25, 3.0e38])),
        ("bool", Array::Bool(vec![true, false, true])),
        ("string", Array::String(strings.into_iter().collect())),
        ("uint64", Array::Uint64(vec![0, u64::MAX])),
        ("int64", Array::Int64(vec![i64::MIN, i64::MAX])),
        ("float64", Array::Float64(vec![0.1, -1.0e300])),
    ];
    assert_eq!(metadata.len(), 1 + 13 + arrays.len());
    for (name, array) in arrays {
        assert_eq!(value(&format!("test.array.{name}")), &Value::Array(array), "{name}");
    }
    assert_eq!(metadata.iter().next().map(|(key, _)| key), Some("general.architecture"));
}

#[test]
fn little_endian_values_and_places_agree() {
    let model = ModelFile::open(fixture("little_endian.gguf")).expect("a valid file");
    assert!(!model.big_endian());
    check_values(&model);
    assert_eq!(places(&model, 0), lines("little_endian.tsv"));
}

#[test]
fn big_endian_values_and_places_agree() {
    let model = ModelFile::open(fixture("big_endian.gguf")).expect("a valid file");
    assert!(model.big_endian());
    check_values(&model);
    assert_eq!(places(&model, 0), lines("big_endian.tsv"));
}

#[test]
fn another_alignment_moves_the_data() {
    let model = ModelFile::open(fixture("alignment_64.gguf")).expect("a valid file");
    assert_eq!(places(&model, 0), lines("alignment_64.tsv"));
    // The ramp 0, 1, 2 ... as f32 is at the place found.
    let tensor = model.require("token_embd.weight").expect("the embedding");
    let bytes = std::fs::read(&model.files()[0].path).expect("the file");
    let data = &bytes[tensor.offset as usize..][..tensor.byte_len as usize];
    let (elements, _) = data.as_chunks::<4>();
    let ramp: Vec<f32> = elements.iter().map(|&element| f32::from_le_bytes(element)).collect();
    assert_eq!(ramp, (0..64).map(|number| number as f32).collect::<Vec<_>>());
}

#[test]
fn a_set_of_parts_agrees_part_by_part() {
    let model = ModelFile::open(fixture("split_set")).expect("a valid set");
    assert_eq!(model.files().len(), 3);
    for (file, source) in model.files().iter().enumerate() {
        let part = source.path.file_stem().and_then(|stem| stem.to_str()).expect("a name");
        assert_eq!(places(&model, file), lines(&format!("split_set/{part}.tsv")));
    }
    assert_eq!(model.metadata().string("general.architecture").expect("a key"), "test");
    assert_eq!(model.tensors().len(), 5);
}

#[test]
fn a_missing_tensor_is_explained() {
    let model = ModelFile::open(fixture("split_set")).expect("a valid set");
    assert!(model.tensor("blk.1.attn_q.weight").is_none());
    let text = |name: &str| model.require(name).expect_err("a missing tensor").to_string();
    let missing = text("blk.1.attn_q.weight");
    let expected =
        "tiny-00001-of-00003.gguf: tensor \"blk.1.attn_q.weight\" is missing. It exists for layers 0. ";
    assert!(missing.contains(expected), "{missing}");
    let missing = text("token_embed.weight");
    assert!(missing.ends_with("The nearest names are \"token_embd.weight\""), "{missing}");
}

#[test]
fn value_type_numbers_round_trip() {
    for id in 0..13 {
        assert_eq!(ValueType::from_id(id).expect("a type").id(), id);
    }
    assert_eq!(ValueType::from_id(13), None);
    assert_eq!(ValueType::from_id(u32::MAX), None);
}
