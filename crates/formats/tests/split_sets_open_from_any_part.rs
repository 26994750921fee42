//! A split set opens from any of its parts and from its folder, and is refused when a part is missing or
//! disagrees.
//!
//! What could go wrong: only part 1 is read, parts of two downloads are mixed, a missing part shows up as a
//! missing tensor, the second of two models in a folder is picked.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::tensor_type::F32;
use crate::support::value_type::{INT32, UINT16};
use crate::support::{Raw, variant_name};
use coldpress_formats::{FormatError, ModelFile};

/// What one part says about itself and holds.
#[derive(Clone)]
struct Part {
    number: Option<u16>,
    count: Option<u16>,
    tensors_in_set: Option<u32>,
    tensor: String,
    extra: Vec<(&'static str, u32)>,
    big: bool,
    alignment_of_data: usize,
}

fn sound_parts(count: u16) -> Vec<Part> {
    let part = |index: u16| Part {
        number: Some(index),
        count: Some(count),
        tensors_in_set: Some(count.into()),
        tensor: format!("blk.{index}.weight"),
        extra: if index == 0 { vec![("test.block_count", count.into())] } else { vec![] },
        big: false,
        alignment_of_data: 32,
    };
    (0..count).map(part).collect()
}

fn bytes_of(part: &Part) -> Vec<u8> {
    let stated = [part.number.is_some(), part.count.is_some(), part.tensors_in_set.is_some()];
    let keys = stated.iter().filter(|&&stated| stated).count() + part.extra.len();
    let mut raw = Raw::with_version(3, part.big).u64(1).u64(keys as u64);
    let u16_bytes = |value: u16| if part.big { value.to_be_bytes() } else { value.to_le_bytes() };
    if let Some(number) = part.number {
        raw = raw.key("split.no", UINT16).raw(&u16_bytes(number));
    }
    if let Some(count) = part.count {
        raw = raw.key("split.count", UINT16).raw(&u16_bytes(count));
    }
    if let Some(tensors) = part.tensors_in_set {
        raw = raw.key("split.tensors.count", INT32).u32(tensors);
    }
    raw = part.extra.iter().fold(raw, |raw, &(key, value)| raw.key_u32(key, value));
    raw.tensor(&part.tensor, &[16], F32, 0).data(part.alignment_of_data, 64).bytes
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().expect("a temporary folder"))
    }

    fn with(stem: &str, parts: &[Part]) -> Folder {
        let folder = Folder::new();
        folder.add(stem, parts);
        folder
    }

    fn add(&self, stem: &str, parts: &[Part]) {
        for (index, part) in parts.iter().enumerate() {
            self.write(&format!("{stem}-{:05}-of-{:05}.gguf", index + 1, parts.len()), &bytes_of(part));
        }
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        fs::write(self.path(name), bytes).expect("a written file");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn root(&self) -> &Path {
        self.0.path()
    }
}

fn refused(path: &Path, variant: &str, message: &str) -> FormatError {
    let error = ModelFile::open(path).expect_err("a set that must be refused");
    assert_eq!(variant_name(&error), variant, "{error}");
    let text = error.to_string();
    assert!(text.contains(message), "{message:?} is not in {text:?}");
    error
}

#[test]
fn every_part_and_the_folder_give_the_same_model() {
    let folder = Folder::with("tiny", &sound_parts(3));
    let from_folder = ModelFile::open(folder.root()).expect("a set");
    let names: Vec<&str> = from_folder.tensors().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(names, ["blk.0.weight", "blk.1.weight", "blk.2.weight"]);
    assert_eq!(from_folder.metadata().u32("test.block_count").expect("a key of part 1"), 3);
    for number in 1..=3 {
        let path = folder.path(&format!("tiny-{number:05}-of-00003.gguf"));
        let from_part = ModelFile::open(&path).expect("a set");
        assert_eq!(from_part.files(), from_folder.files());
        assert!(from_part.tensors().eq(from_folder.tensors()));
    }
    let second = from_folder.require("blk.1.weight").expect("a tensor of part 2");
    assert_eq!(second.file, 1);
    assert!(from_folder.files()[1].path.ends_with("tiny-00002-of-00003.gguf"));
    assert_eq!(from_folder.tensor_bytes(), 3 * 64);
}

#[test]
fn missing_parts_are_listed_by_number() {
    let folder = Folder::with("big", &sound_parts(6));
    fs::remove_file(folder.path("big-00002-of-00006.gguf")).expect("removed");
    let first = folder.path("big-00001-of-00006.gguf");
    let error = refused(
        &first,
        "MissingParts",
        "part 2 of 6 is missing (big-00002-of-00006.gguf): finish the download of ",
    );
    assert!(error.to_string().ends_with("`coldpress pull` goes on where it stopped"), "{error}");
    fs::remove_file(folder.path("big-00005-of-00006.gguf")).expect("removed");
    let named = "parts 2 and 5 of 6 are missing (big-00002-of-00006.gguf, big-00005-of-00006.gguf): finish";
    refused(&first, "MissingParts", named);
    refused(folder.root(), "MissingParts", "parts 2 and 5 of 6 are missing");
    // Part 1 itself may be the missing one.
    fs::remove_file(&first).expect("removed");
    let error = refused(&folder.path("big-00003-of-00006.gguf"), "MissingParts", "parts 1, 2 and 5 of 6");
    assert!(matches!(error, FormatError::MissingParts { numbers, .. } if numbers == [1, 2, 5]));
    let many = Folder::new();
    many.write("x-00001-of-01000.gguf", &bytes_of(&sound_parts(1)[0]));
    let named = "(x-00002-of-01000.gguf, x-00003-of-01000.gguf, x-00004-of-01000.gguf, x-00005-of-01000.gguf and 995 more)";
    refused(many.root(), "MissingParts", named);
}

/// The set of another quantisation has as many parts: what both hold is there twice, what neither holds is missing in the sum.
#[test]
fn parts_of_two_downloads_are_refused() {
    let mut other = sound_parts(3);
    other[1].tensor = "blk.2.weight".to_owned();
    let folder = Folder::with("mixed", &sound_parts(3));
    folder.write("mixed-00002-of-00003.gguf", &bytes_of(&other[1]));
    refused(folder.root(), "DuplicateTensor", "tensor \"blk.2.weight\" appears twice");
    other[1].tensors_in_set = Some(7);
    folder.write("mixed-00002-of-00003.gguf", &bytes_of(&other[1]));
    refused(folder.root(), "BadPart", "split.tensors.count is 7, but the 3 parts hold 3");
}

#[test]
fn a_name_that_claims_very_many_parts_is_refused() {
    let folder = Folder::new();
    folder.write("x-00001-of-99999.gguf", &bytes_of(&sound_parts(1)[0]));
    refused(folder.root(), "BadPart", "its name states 99999 parts; at most 1024 are read");
}

#[test]
fn an_incomplete_part_is_named() {
    let parts = sound_parts(2);
    let folder = Folder::with("cut", &parts);
    let whole = bytes_of(&parts[1]);
    folder.write("cut-00002-of-00002.gguf", &whole[..whole.len() - 1]);
    refused(
        folder.root(),
        "TensorPastEnd",
        "cut-00002-of-00002.gguf: tensor \"blk.1.weight\" needs 64 bytes",
    );
}

#[test]
fn parts_that_disagree_are_refused() {
    let check = |change: fn(&mut Vec<Part>), variant: &str, message: &str| {
        let mut parts = sound_parts(3);
        change(&mut parts);
        refused(Folder::with("odd", &parts).root(), variant, message);
    };
    check(|parts| parts.swap(0, 1), "BadPart", "split.no is 1, but its name says part 1 of 3");
    check(|parts| parts[2].number = Some(1), "BadPart", "split.no is 1, but its name says part 3 of 3");
    check(|parts| parts[1].number = None, "BadPart", "it has no key split.no, but its name says part 2 of 3");
    check(|parts| parts[1].count = Some(4), "BadPart", "split.count is 4, but its name says part 2 of 3");
    check(|parts| parts[1].count = None, "BadPart", "it has no key split.count");
    check(
        |parts| parts[2].tensors_in_set = Some(4),
        "BadPart",
        "split.tensors.count is 4, but the 3 parts hold 3",
    );
    check(|parts| parts[0].tensors_in_set = None, "BadPart", "it has no key split.tensors.count");
    check(|parts| parts[2].big = true, "BadPart", "its byte order differs");
    check(
        |parts| parts[2].tensor = "blk.0.weight".to_owned(),
        "DuplicateTensor",
        "odd-00003-of-00003.gguf: tensor \"blk.0.weight\" appears twice, first in ",
    );
    check(
        |parts| parts[1].extra.push(("test.block_count", 4)),
        "DuplicateKey",
        "key \"test.block_count\" appears twice, with another value in part 1",
    );
}

#[test]
fn a_key_repeated_with_the_same_value_is_no_contradiction() {
    let mut parts = sound_parts(2);
    parts[1].extra.push(("test.block_count", 2));
    parts[1].extra.push(("test.only_here", 9));
    let model = ModelFile::open(Folder::with("same", &parts).root()).expect("a set");
    assert_eq!(model.metadata().u32("test.block_count").expect("a key"), 2);
    assert!(model.metadata().get("test.only_here").is_none(), "only part 1 describes the model");
}

#[test]
fn an_alignment_that_could_mean_two_places_is_refused() {
    let header_end = |part: &Part| {
        let bytes = bytes_of(part);
        coldpress_formats::GgufHeader::read(bytes.as_slice(), bytes.len() as u64, Path::new("x"))
            .expect("valid")
            .header_len
    };
    // Part 1 states 64; part 2 states nothing and its header ends where 32 and 64 round up to different
    // places, or not.
    let mut parts = sound_parts(2);
    parts[0].extra.push(("general.alignment", 64));
    parts[0].alignment_of_data = 64;
    let mut outcomes = [0, 0];
    for length in 1..=64 {
        parts[1].tensor = "t".repeat(length);
        let end = header_end(&parts[1]);
        let folder = Folder::with("align", &parts);
        if end.next_multiple_of(64) == end.next_multiple_of(32) {
            ModelFile::open(folder.root()).expect("both readings agree");
            outcomes[0] += 1;
        } else {
            refused(folder.root(), "BadPart", "it states no general.alignment, part 1 states 64");
            outcomes[1] += 1;
        }
    }
    assert_eq!(outcomes, [32, 32]);
}

#[test]
fn a_renamed_part_says_how_it_must_be_called() {
    let folder = Folder::new();
    folder.write("model.gguf", &bytes_of(&sound_parts(3)[1]));
    refused(
        folder.root(),
        "PartNotNamed",
        "is part 2 of 3 of a split set, but its name does not end in -00002-of-00003.gguf",
    );
    folder.write("model.gguf", &bytes_of(&Part { number: Some(2), ..sound_parts(1)[0].clone() }));
    refused(folder.root(), "BadPart", "split.no is 2 although the file is the only part");
}

#[test]
fn a_set_of_one_part_is_a_file() {
    let folder = Folder::with("one", &sound_parts(1));
    assert_eq!(ModelFile::open(folder.root()).expect("a file").files().len(), 1);
}

#[test]
fn a_folder_must_hold_one_model() {
    let folder = Folder::new();
    refused(folder.root(), "EmptyFolder", "holds no .gguf file");
    folder.write("notes.txt", b"x");
    folder.write("._model.gguf", b"a file that another system leaves behind");
    refused(folder.root(), "EmptyFolder", "holds no .gguf file");
    folder.add("a", &sound_parts(2));
    assert_eq!(ModelFile::open(folder.root()).expect("the only model").files().len(), 2);
    folder.add("b", &sound_parts(3));
    folder.write("c.gguf", &bytes_of(&sound_parts(1)[0]));
    let message = "holds 3 models; name one of them: a-*-of-00002.gguf, b-*-of-00003.gguf, c.gguf";
    refused(folder.root(), "SeveralModels", message);
    let named = ModelFile::open(folder.path("b-00002-of-00003.gguf")).expect("named");
    assert_eq!(named.files().len(), 3);
}

#[test]
fn a_set_may_not_hold_more_than_one_file_could() {
    // Each part alone is within the limit.
    let count = coldpress_formats::limits::MAX_TENSORS / 2 + 1;
    let folder = Folder::new();
    for part in 1..=2_u64 {
        let start = Raw::new(count, 0);
        let raw = (0..count)
            .fold(start, |raw, index| raw.tensor(&format!("{part}.{index}"), &[8], F32, index * 32));
        let name = format!("many-{part:05}-of-00002.gguf");
        let data_len = raw.bytes.len() as u64 + 64 + count * 32;
        folder.write(&name, &raw.bytes);
        let file = fs::OpenOptions::new().write(true).open(folder.path(&name)).expect("the file");
        file.set_len(data_len).expect("a hole");
    }
    refused(folder.root(), "OverLimit", "the number of tensors in all parts together");
}

#[test]
fn a_set_of_which_only_the_headers_are_there_opens_for_planning() {
    let folder = Folder::with("tiny", &sound_parts(3));
    let whole = ModelFile::open(folder.root()).expect("a set");
    for (index, part) in sound_parts(3).iter().enumerate() {
        let bytes = bytes_of(part);
        // The data of a part are 64 bytes at its end.
        folder.write(&format!("tiny-{:05}-of-00003.gguf", index + 1), &bytes[..bytes.len() - 64]);
    }
    refused(folder.root(), "TensorPastEnd", "finish the download");
    let headers = ModelFile::open_headers(folder.root()).expect("all headers are there");
    assert!(headers.tensors().eq(whole.tensors()));
    assert_eq!((headers.missing_bytes(), whole.missing_bytes()), (3 * 64, 0));
    fs::remove_file(folder.path("tiny-00002-of-00003.gguf")).expect("the part is removed");
    let missing = ModelFile::open_headers(folder.root()).expect_err("a header is missing");
    assert_eq!(variant_name(&missing), "MissingParts");
}
