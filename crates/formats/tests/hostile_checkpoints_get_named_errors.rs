//! Safetensors files and model folders that are not what they should be: each is refused with an error that names the file and
//! what is wrong with it. The files are the corpus of the fuzz target as well.
//!
//! What could go wrong: a length that is believed before it is compared with the file, a tensor outside its file, two tensors
//! with the same bytes, a name that leaves the folder, a file of an unfinished download that is taken for whole.
//! To write the corpus anew: `COLDPRESS_WRITE_CORPUS=1 cargo test -p coldpress-formats the_corpus`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use coldpress_formats::{FileFormat, FormatError, ModelFile, SafetensorsHeader, TensorType};
use tempfile::TempDir;

/// A file with this directory and this many bytes of data.
fn file(directory: &str, data: usize) -> Vec<u8> {
    let mut bytes = (directory.len() as u64).to_le_bytes().to_vec();
    bytes.extend(directory.as_bytes());
    bytes.resize(bytes.len() + data, 7);
    bytes
}

fn tensor(name: &str, dtype: &str, shape: &str, start: u64, end: u64) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{start},{end}]}}"#)
}

/// Name, bytes, variant of the error and a part of its message; empty for files that are fine.
type Case = (&'static str, Vec<u8>, &'static str, &'static str);

fn cases() -> Vec<Case> {
    let one = |shape: &str, end: u64| format!("{{{}}}", tensor("a", "F32", shape, 0, end));
    let two = |first: (u64, u64), second: (u64, u64)| {
        let (a, b) =
            (tensor("a", "F32", "[2]", first.0, first.1), tensor("b", "F32", "[2]", second.0, second.1));
        format!("{{{a},{b}}}")
    };
    let deep = format!(r#"{{"__metadata__":{}1{}}}"#, "[".repeat(2000), "]".repeat(2000));
    let dtype = |name: &str| format!("{{{}}}", tensor("a", name, "[4]", 0, 16));
    vec![
        ("one", file(&one("[2,2]", 16), 16), "", ""),
        ("two", file(&two((8, 16), (0, 8)), 16), "", ""),
        ("metadata", file(r#"{"__metadata__":{"format":"pt"}}"#, 0), "", ""),
        ("scalar", file(&one("[]", 4), 4), "", ""),
        ("padded", file(&format!("{}   ", one("[2]", 8)), 8), "", ""),
        ("half_and_bytes", file(&format!("{{{}}}", tensor("a", "BF16", "[3]", 0, 6)), 6), "", ""),
        ("empty_file", Vec::new(), "Truncated", "needs 8 bytes and 0 are left"),
        ("no_directory", file("", 0), "NotSafetensors", "begins with"),
        (
            "length_beyond_file",
            4000_u64.to_le_bytes().to_vec(),
            "Truncated",
            "needs 4000 bytes and 0 are left",
        ),
        ("length_beyond_limit", u64::MAX.to_le_bytes().to_vec(), "OverLimit", "18446744073709551615"),
        ("git_lfs", b"version https://git-lfs.github.com/spec/v1".to_vec(), "NotSafetensors", "git lfs pull"),
        ("not_an_object", file("[1]     ", 0), "NotSafetensors", "expected \"{\""),
        ("torn", file(r#"{"a":{"dtype":"F32","#, 0), "BadJson", "offset 27"),
        ("trailing", file("{} x", 0), "BadJson", "trailing"),
        // Passed over without recursion.
        ("deep", file(&deep, 0), "", ""),
        (
            "negative",
            file(r#"{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}"#, 4),
            "BadJson",
            "invalid value",
        ),
        (
            "float_shape",
            file(r#"{"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}}"#, 4),
            "BadJson",
            "floating",
        ),
        ("no_shape", file(r#"{"a":{"dtype":"F32","data_offsets":[0,4]}}"#, 4), "BadJson", "missing field"),
        (
            "unknown_field",
            file(r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}}"#, 4),
            "BadJson",
            "unknown field",
        ),
        (
            "twice_in_entry",
            file(r#"{"a":{"dtype":"F32","dtype":"F16","shape":[1],"data_offsets":[0,4]}}"#, 4),
            "BadJson",
            "duplicate field",
        ),
        ("nameless", file(&format!("{{{}}}", tensor("", "F32", "[1]", 0, 4)), 4), "BadJson", "0 bytes"),
        ("five_dimensions", file(&one("[1,1,1,1,1]", 4), 4), "BadJson", "more than 4 dimensions"),
        ("empty_dimension", file(&one("[0]", 0), 0), "BadShape", "empty dimension"),
        ("overflow", file(&one("[4294967296,4294967296,2]", 16), 16), "BadShape", "too large"),
        ("wrong_bytes", file(&one("[2,2]", 12), 12), "BadShape", "takes 16 bytes"),
        (
            "backwards",
            file(&format!("{{{}}}", tensor("a", "F32", "[1]", 4, 0)), 4),
            "BadShape",
            "offsets 4 to 0",
        ),
        ("fp8", file(&dtype("F8_E4M3FNUZ"), 16), "UnknownElementType", "F8_E4M3FNUZ"),
        ("past_end", file(&one("[4]", 16), 12), "TensorPastEnd", "needs 16 bytes"),
        ("overlap", file(&two((0, 8), (4, 12)), 12), "TensorsOverlap", "\"a\" and \"b\""),
        ("same_bytes", file(&two((0, 8), (0, 8)), 8), "TensorsOverlap", "share bytes"),
        ("gap", file(&two((0, 8), (12, 20)), 20), "TensorGap", "4 bytes"),
        (
            "gap_at_start",
            file(&format!("{{{}}}", tensor("a", "F32", "[1]", 4, 8)), 8),
            "TensorGap",
            "before tensor \"a\"",
        ),
        ("gap_at_end", file(&one("[1]", 4), 8), "TensorGap", "end of the file"),
        (
            "far_away",
            file(&format!("{{{}}}", tensor("a", "F32", "[1]", u64::MAX - 4, u64::MAX)), 8),
            "TensorPastEnd",
            "a",
        ),
    ]
}

fn variant(error: &FormatError) -> String {
    let text = format!("{error:?}");
    text[..text.find([' ', '{', '(']).unwrap_or(text.len())].to_owned()
}

#[test]
fn files_are_read_or_refused_by_name() {
    for (name, bytes, wanted, part) in cases() {
        let path = PathBuf::from(format!("{name}.safetensors"));
        match SafetensorsHeader::read(bytes.as_slice(), bytes.len() as u64, &path) {
            Ok(header) => {
                assert_eq!(wanted, "", "{name} was read");
                assert_eq!(header.data_end, bytes.len() as u64, "{name}");
            }
            Err(error) => {
                assert_eq!(variant(&error), wanted, "{name}: {error}");
                let text = error.to_string();
                assert!(text.contains(part) && text.contains(name), "{name}: {text}");
            }
        }
    }
}

#[test]
fn every_truncation_is_an_error() {
    for (name, bytes, wanted, _) in cases() {
        for length in 0..bytes.len() {
            let read = SafetensorsHeader::read(&bytes[..length], length as u64, Path::new("cut"));
            assert!(read.is_err() || !wanted.is_empty(), "{name} cut to {length} of {} bytes", bytes.len());
        }
    }
}

#[test]
fn a_duplicate_name_is_refused_in_one_file_and_in_two() {
    let twice = format!("{{{},{}}}", tensor("a", "F32", "[1]", 0, 4), tensor("a", "F32", "[1]", 4, 8));
    let folder = folder(&[("model.safetensors", file(&twice, 8))]);
    refused(&folder, "DuplicateTensor", "\"a\" appears twice");
    let one = file(&format!("{{{}}}", tensor("a", "F32", "[1]", 0, 4)), 4);
    let folder = self::folder(&[
        ("model-00001-of-00002.safetensors", one.clone()),
        ("model-00002-of-00002.safetensors", one),
    ]);
    refused(&folder, "DuplicateTensor", "first in");
}

#[test]
fn the_corpus_equals_the_cases() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/safetensors");
    let wanted: BTreeMap<String, Vec<u8>> =
        cases().into_iter().map(|(name, bytes, ..)| (name.to_owned(), bytes)).collect();
    if std::env::var_os("COLDPRESS_WRITE_CORPUS").is_some() {
        fs::remove_dir_all(&corpus).ok();
        fs::create_dir_all(&corpus).expect("a corpus folder");
        wanted.iter().for_each(|(name, bytes)| fs::write(corpus.join(name), bytes).expect("written"));
    }
    let entries = fs::read_dir(&corpus).expect("the corpus folder").map(|entry| entry.expect("an entry"));
    let found: BTreeMap<String, Vec<u8>> = entries
        .map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            (name, fs::read(entry.path()).expect("a corpus file"))
        })
        .collect();
    assert!(found == wanted, "the corpus differs from the cases");
}

/// A folder with a configuration and these files.
fn folder(files: &[(&str, Vec<u8>)]) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("config.json"), r#"{"model_type": "x", "size": 3}"#).expect("written");
    for (name, bytes) in files {
        fs::write(folder.path().join(name), bytes).expect("written");
    }
    folder
}

fn refused(folder: &TempDir, wanted: &str, part: &str) {
    let error = ModelFile::open(folder.path()).expect_err("the folder is refused");
    assert_eq!(variant(&error), wanted, "{error}");
    assert!(error.to_string().contains(part), "{error}");
}

fn shard(name: &str) -> Vec<u8> {
    file(&format!("{{{}}}", tensor(name, "F32", "[2,3]", 0, 24)), 24)
}

const INDEX: &str = "model.safetensors.index.json";

fn index(entries: &[(&str, &str)]) -> Vec<u8> {
    let entries: Vec<String> = entries.iter().map(|(name, file)| format!(r#"{name:?}:{file:?}"#)).collect();
    format!(r#"{{"metadata":{{}},"weight_map":{{{}}}}}"#, entries.join(",")).into_bytes()
}

#[test]
fn a_folder_is_one_model() {
    let names = index(&[("a", "x.safetensors"), ("b", "y.safetensors")]);
    let folder = folder(&[("x.safetensors", shard("a")), ("y.safetensors", shard("b")), (INDEX, names)]);
    let model = ModelFile::open(folder.path()).expect("opens");
    assert_eq!(model.format(), FileFormat::HuggingFace);
    assert_eq!(model.metadata().u64("size").expect("a number"), 3);
    assert_eq!(model.files().len(), 3);
    let tensor = model.tensor("b").expect("the tensor of the second file");
    assert_eq!((tensor.tensor_type, tensor.shape.as_slice(), tensor.file), (TensorType::F32, &[3, 2][..], 2));
    assert_eq!(tensor.offset + tensor.byte_len, model.files()[2].len);
    assert_eq!(model.missing_bytes(), 0);
}

#[test]
fn what_an_index_says_must_be_true() {
    let with = |names: Vec<u8>| folder(&[("x.safetensors", shard("a")), (INDEX, names)]);
    refused(
        &with(index(&[("a", "x.safetensors"), ("b", "y.safetensors")])),
        "MissingShards",
        "1 of them is missing: y.safetensors",
    );
    refused(&with(index(&[("b", "x.safetensors")])), "BadIndex", "does not hold it");
    refused(&with(index(&[("a", "../x.safetensors")])), "BadIndex", "of the folder");
    refused(&with(index(&[("a", "/etc/passwd")])), "BadIndex", "of the folder");
    refused(&with(index(&[])), "BadIndex", "names no tensor");
    refused(&with(b"{\"weight_map\": [1]}".to_vec()), "BadJson", "offset");
    refused(&with(b"{}".to_vec()), "BadJson", "weight_map");
}

#[test]
fn a_download_that_runs_is_planned_from_its_headers() {
    let mut cut = shard("b");
    cut.truncate(cut.len() - 10);
    let names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    let folder = folder(&[(names[0], shard("a")), (names[1], cut)]);
    refused(&folder, "TensorPastEnd", "finish the download");
    let model = ModelFile::open_headers(folder.path()).expect("the headers are whole");
    assert_eq!(model.missing_bytes(), 10);
    fs::remove_file(folder.path().join(names[0])).expect("removed");
    let error = ModelFile::open_headers(folder.path()).expect_err("a file is missing").to_string();
    assert!(error.contains("missing: model-00001-of-00002.safetensors"), "{error}");
}

#[test]
fn a_folder_that_is_no_model_or_two_is_refused() {
    let both = folder(&[("model.safetensors", shard("a")), ("m.gguf", b"GGUF".to_vec())]);
    refused(&both, "SeveralModels", "m.gguf, config.json with");
    let strangers = folder(&[("x.safetensors", shard("a")), ("y.safetensors", shard("b"))]);
    refused(&strangers, "SeveralModels", "x.safetensors, y.safetensors");
    let bare = tempfile::tempdir().expect("a folder");
    fs::write(bare.path().join("model.safetensors"), shard("a")).expect("written");
    refused(&bare, "EmptyFolder", "no config.json");
    let error = ModelFile::open(both.path().join("model.safetensors")).expect_err("a file of a folder");
    assert!(error.to_string().contains("give the folder"), "{error}");
}

#[test]
fn a_configuration_that_is_none_is_refused() {
    let folder = folder(&[("model.safetensors", shard("a"))]);
    let write = |text: &str| fs::write(folder.path().join("config.json"), text).expect("written");
    write("{\"a\": 1, \"a\": 2}");
    refused(&folder, "DuplicateKey", "twice");
    write(&format!("{{\"a\": {}", "[".repeat(100_000)));
    refused(&folder, "BadJson", "recursion limit");
    write(&format!("{{\"a\": \"{}\"}}", "x".repeat(5 << 20)));
    refused(&folder, "OverLimit", "limit is 4194304");
    fs::remove_file(folder.path().join("config.json")).expect("removed");
    fs::create_dir(folder.path().join("config.json")).expect("a folder");
    refused(&folder, "NotAFile", "config.json");
}
