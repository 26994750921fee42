//! The writer makes the same bytes as the PyPI package gguf from the same content, and leaves no half-written
//! file.
//!
//! What could go wrong: a file that only our own reader accepts, wrong padding, a target that is lost when
//! the data source fails, a tensor with too few bytes that shifts all that follow.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::support::variant_name;
use coldpress_formats::{Array, FormatError, GgufWriter, ModelFile, TensorType, Value};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// A writer with everything that a model has, and a source of its tensor data.
fn copy_of(model: &ModelFile) -> (GgufWriter, Vec<u8>) {
    let mut writer = GgufWriter::new();
    for (key, value) in model.metadata().iter() {
        writer.metadata(key, value.clone());
    }
    for tensor in model.tensors() {
        writer.tensor(&tensor.name, tensor.tensor_type, &tensor.shape);
    }
    (writer, fs::read(&model.files()[0].path).expect("the file"))
}

#[test]
fn a_copy_is_byte_equal() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for name in ["little_endian.gguf", "alignment_64.gguf"] {
        let source = ModelFile::open(fixture(name)).expect("a fixture");
        let (writer, bytes) = copy_of(&source);
        let target = folder.path().join(name);
        let mut seen = Vec::new();
        writer
            .write(&target, |tensor, out| {
                seen.push(tensor.name.clone());
                let original = source.tensor(&tensor.name).expect("the same tensor");
                // In pieces, as a streaming source would.
                let data = &bytes[original.offset as usize..][..original.byte_len as usize];
                data.chunks(7).try_for_each(|piece| out.write_all(piece))
            })
            .expect("a written file");
        assert!(fs::read(&target).expect("the copy") == bytes, "{name} differs");
        assert!(seen.iter().eq(source.tensors().map(|tensor| &tensor.name)));
    }
    assert_eq!(fs::read_dir(folder.path()).expect("the folder").count(), 2, "no temporary file is left");
}

#[test]
fn nested_and_empty_arrays_come_back() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let target = folder.path().join("arrays.gguf");
    let nested = Value::Array(Array::Array(vec![
        Array::Uint8(vec![1, 2]),
        Array::Array(vec![]),
        Array::Bool(vec![true]),
    ]));
    let empty = Value::Array(Array::String([].into_iter().collect()));
    GgufWriter::new()
        .metadata("nested", nested.clone())
        .metadata("empty", empty.clone())
        .write(&target, |_, _| Ok(()))
        .expect("a file without tensors");
    let model = ModelFile::open(&target).expect("a valid file");
    assert_eq!(model.metadata().get("nested"), Some(&nested));
    assert_eq!(model.metadata().get("empty"), Some(&empty));
    assert_eq!(model.tensors().len(), 0);
}

fn one_tensor() -> GgufWriter {
    let mut writer = GgufWriter::new();
    writer.tensor("t", TensorType::F32, &[16]);
    writer
}

/// Writes over an older file and checks that the failure leaves it as it was.
fn refused(
    writer: &GgufWriter,
    data: impl FnMut(&coldpress_formats::TensorInfo, &mut dyn Write) -> io::Result<()>,
    variant: &str,
    message: &str,
) -> FormatError {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let target = folder.path().join("model.gguf");
    fs::write(&target, b"older").expect("a written file");
    let error = writer.write(&target, data).expect_err(message);
    assert_eq!(variant_name(&error), variant, "{error}");
    assert!(error.to_string().contains(message), "{message:?} is not in {error}");
    assert_eq!(fs::read(&target).expect("the target"), b"older");
    assert_eq!(fs::read_dir(folder.path()).expect("the folder").count(), 1, "no temporary file is left");
    error
}

#[test]
fn a_failing_or_wrong_source_leaves_nothing() {
    let writer = one_tensor();
    refused(&writer, |_, _| Err(io::Error::other("source is gone")), "Io", "source is gone");
    refused(
        &writer,
        |_, out| out.write_all(&[0; 63]),
        "CannotWrite",
        "got 63 bytes, its type and shape need 64",
    );
    refused(&writer, |_, out| out.write_all(&[0; 65]), "Io", "more bytes than its type and shape need");
}

#[test]
fn what_the_reader_refuses_is_not_written() {
    let no_data = |_: &coldpress_formats::TensorInfo, _: &mut dyn Write| -> io::Result<()> {
        panic!("the header must be refused before any data is asked for")
    };
    let with_tensor = |tensor_type, shape: &[u64]| {
        let mut writer = GgufWriter::new();
        writer.tensor("t", tensor_type, shape);
        writer
    };
    refused(&with_tensor(TensorType::Q4K, &[896]), no_data, "RowNotWholeBlocks", "rows of 896 elements");
    refused(&with_tensor(TensorType::F32, &[]), no_data, "BadShape", "has 0 dimensions");
    refused(&with_tensor(TensorType::F32, &[u64::MAX, 2]), no_data, "BadShape", "too large to address");
    let mut writer = one_tensor();
    writer.tensor("t", TensorType::F32, &[16]);
    refused(&writer, no_data, "DuplicateTensor", "tensor \"t\" appears twice");
    let mut writer = one_tensor();
    writer.metadata("a", 1_u32).metadata("a", 2_u32);
    refused(&writer, no_data, "DuplicateKey", "\"a\" appears twice");
    let mut writer = one_tensor();
    writer.metadata("general.alignment", 12_u32);
    refused(&writer, no_data, "BadAlignment", "general.alignment is uint32 12");
}

#[test]
fn the_header_reader_gives_the_header_and_no_more() {
    let model = ModelFile::open(fixture("little_endian.gguf")).expect("a fixture");
    let mut header = Vec::new();
    io::Read::read_to_end(&mut model.header_bytes(0).expect("a reader"), &mut header).expect("the header");
    let bytes = fs::read(fixture("little_endian.gguf")).expect("the file");
    assert_eq!(header.len() as u64, model.files()[0].header_len);
    assert_eq!(header, bytes[..header.len()]);
    // The directory ends with the type and the offset of the last tensor.
    assert_eq!(header[header.len() - 12..header.len() - 8], TensorType::Mxfp4.id().to_le_bytes());
    assert_eq!(header[header.len() - 8..], 640_u64.to_le_bytes());
    assert_eq!(model.files()[0].len, bytes.len() as u64);
    assert!(model.files()[0].modified.is_some());
}
