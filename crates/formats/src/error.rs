//! The one error type of this crate.
//!
//! Each variant is one thing that a caller or a user can act on. The message says which file, which key or
//! tensor, where in the file, the numbers, and what to do.

use std::io;
use std::path::PathBuf;

/// Why a model file could not be opened, or does not hold what was asked of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "variants are documented, and their fields are the figures of their messages")]
pub enum FormatError {
    /// The operating system refused an operation.
    #[error("cannot {action} {path}: {source}", path = path.display())]
    Io { path: PathBuf, action: &'static str, source: io::Error },

    /// The path is neither a regular file nor a folder.
    #[error(
        "{path} is not a regular file; give a .gguf file or a folder that holds one model",
        path = path.display()
    )]
    NotAFile { path: PathBuf },

    /// The file does not begin with the four letters of the format.
    #[error(
        "{path} is not a GGUF file: it begins with {found:?}, expected {expected:?}{hint}",
        path = path.display(),
        found = String::from_utf8_lossy(found),
        expected = "GGUF"
    )]
    NotGguf { path: PathBuf, found: Vec<u8>, hint: &'static str },

    /// A version of the format that this crate does not read.
    #[error("{path} is GGUF version {version}; versions 2 and 3 are read. {way_out}", path = path.display())]
    UnsupportedVersion { path: PathBuf, version: u32, way_out: &'static str },

    /// The file ends before something that it announces.
    #[error(
        "{path} ends too early: {what} at offset {offset} needs {needed} bytes and {left} are left; \
         the file is damaged or its download is incomplete",
        path = path.display()
    )]
    Truncated { path: PathBuf, what: &'static str, offset: u64, needed: u64, left: u64 },

    /// A count or length is above what this crate reads, see [`crate::limits`].
    #[error(
        "{path}: {what} at offset {offset} is {value}, the limit is {limit}; the file is damaged or \
         hostile",
        path = path.display()
    )]
    OverLimit { path: PathBuf, what: &'static str, offset: u64, value: u64, limit: u64 },

    /// A key or a tensor name is not usable as a name.
    #[error("{path}: {what} at offset {offset} {problem}", path = path.display())]
    BadName { path: PathBuf, what: &'static str, offset: u64, problem: &'static str },

    /// The same key twice, or the same key with another value in another part of a set.
    #[error("{path}: metadata key {key:?} appears twice{detail}", path = path.display())]
    DuplicateKey { path: PathBuf, key: String, detail: &'static str },

    /// A metadata value type that the format does not have.
    #[error(
        "{path}: metadata key {key:?} at offset {offset} has the unknown value type {found}; types are \
         0 to 12",
        path = path.display()
    )]
    UnknownValueType { path: PathBuf, key: String, offset: u64, found: u32 },

    /// A bool that is neither 0 nor 1.
    #[error(
        "{path}: metadata key {key:?} holds the bool {found} at offset {offset}; a bool is 0 or 1",
        path = path.display()
    )]
    BadBool { path: PathBuf, key: String, offset: u64, found: u8 },

    /// Arrays inside arrays beyond [`crate::limits::MAX_ARRAY_DEPTH`].
    #[error(
        "{path}: metadata key {key:?} nests arrays deeper than {limit} at offset {offset}",
        path = path.display()
    )]
    NestedTooDeep { path: PathBuf, key: String, offset: u64, limit: u32 },

    /// `general.alignment` is not a positive multiple of 8 in an unsigned integer type.
    #[error(
        "{path}: general.alignment is {found}; it must be a positive multiple of 8 in an unsigned \
         integer type",
        path = path.display()
    )]
    BadAlignment { path: PathBuf, found: String },

    /// A tensor without dimensions, with too many, with an empty one, or too large to address.
    #[error("{path}: tensor {tensor:?} {problem}", path = path.display())]
    BadShape { path: PathBuf, tensor: String, problem: String },

    /// A tensor type number that is not in the table of [`crate::TensorType`].
    #[error("{path}: tensor {tensor:?} has the unknown type {found}: {explanation}", path = path.display())]
    UnknownTensorType { path: PathBuf, tensor: String, found: u32, explanation: &'static str },

    /// A row does not consist of whole blocks.
    #[error(
        "{path}: tensor {tensor:?} has rows of {columns} elements, but {type_name} stores blocks of \
         {block_elements}; quantise this tensor to a type whose block divides the row",
        path = path.display()
    )]
    RowNotWholeBlocks {
        path: PathBuf,
        tensor: String,
        columns: u64,
        type_name: &'static str,
        block_elements: u64,
    },

    /// The same tensor name twice, in one file or in two parts of a set.
    #[error("{path}: tensor {tensor:?} appears twice{detail}", path = path.display())]
    DuplicateTensor { path: PathBuf, tensor: String, detail: String },

    /// A tensor does not start at a multiple of the alignment.
    #[error(
        "{path}: tensor {tensor:?} starts at data offset {offset}, which is not a multiple of the \
         alignment {alignment}",
        path = path.display()
    )]
    MisalignedTensor { path: PathBuf, tensor: String, offset: u64, alignment: u64 },

    /// The data of a tensor would lie behind the end of the file.
    #[error(
        "{path}: tensor {tensor:?} needs {byte_len} bytes at data offset {offset} (data starts at \
         {data_start}), but the file has {file_len} bytes; finish the download of this file",
        path = path.display()
    )]
    TensorPastEnd {
        path: PathBuf,
        tensor: String,
        offset: u64,
        byte_len: u64,
        data_start: u64,
        file_len: u64,
    },

    /// Two tensors share bytes.
    #[error(
        "{path}: tensors {first:?} and {second:?} share bytes at file offset {offset}",
        path = path.display()
    )]
    TensorsOverlap { path: PathBuf, first: String, second: String, offset: u64 },

    /// A required metadata key is absent.
    #[error(
        "{path}: metadata key {key:?} is missing; the file was made by an old or incomplete conversion",
        path = path.display()
    )]
    MissingKey { path: PathBuf, key: String },

    /// A metadata value has a type that cannot answer the question.
    #[error("{path}: metadata key {key:?} is {found}, expected {wanted}", path = path.display())]
    WrongValueType { path: PathBuf, key: String, found: String, wanted: &'static str },

    /// A metadata number is outside the range of the type that was asked for.
    #[error("{path}: metadata key {key:?} is {found}, which does not fit {wanted}", path = path.display())]
    ValueOutOfRange { path: PathBuf, key: String, found: String, wanted: &'static str },

    /// A string value is not UTF-8 text. Its bytes can still be read.
    #[error(
        "{path}: metadata key {key:?}{element} is not UTF-8 text (first bad byte at {position})",
        path = path.display()
    )]
    NotUtf8 { path: PathBuf, key: String, element: String, position: usize },

    /// A tensor that the model needs is not in the file.
    #[error("{path}: tensor {tensor:?} is missing. {explanation}", path = path.display())]
    MissingTensor { path: PathBuf, tensor: String, explanation: String },

    /// Parts of a split set are not there.
    #[error(
        "{missing} of {count} {verb} missing ({names}): finish the download of {pattern}; the parts that are there \
         can stay, and `coldpress pull` goes on where it stopped",
        pattern = pattern.display(),
        verb = if numbers.len() == 1 { "is" } else { "are" }
    )]
    MissingParts { pattern: PathBuf, missing: String, count: u64, numbers: Vec<u64>, names: String },

    /// A part of a split set contradicts its name or the other parts.
    #[error("{path}: {problem}; download the parts again from one place", path = path.display())]
    BadPart { path: PathBuf, problem: String },

    /// A part of a split set does not carry the name by which the other parts are found.
    #[error(
        "{path} is part {number} of {count} of a split set, but its name does not end in {expected}; \
         rename it so",
        path = path.display()
    )]
    PartNotNamed { path: PathBuf, number: u64, count: u64, expected: String },

    /// A file does not begin as safetensors files do.
    #[error("{path} is not a safetensors file: {problem}", path = path.display())]
    NotSafetensors { path: PathBuf, problem: String },

    /// A text that must be JSON of a certain form is not.
    #[error("{path}: {what} is malformed at offset {offset}: {problem}", path = path.display())]
    BadJson { path: PathBuf, what: &'static str, offset: u64, problem: String },

    /// A tensor has an element type that no kernel reads.
    #[error(
        "{path}: tensor {tensor:?} has the element type {found:?}, which is not read; read are {known}",
        path = path.display()
    )]
    UnknownElementType { path: PathBuf, tensor: String, found: String, known: String },

    /// Bytes between two tensors, or behind the last one, belong to none.
    #[error(
        "{path}: the {count} bytes at file offset {offset}, before {next}, belong to no tensor; the file is damaged",
        path = path.display()
    )]
    TensorGap { path: PathBuf, offset: u64, count: u64, next: String },

    /// Files that an index names are not there.
    #[error(
        "{index} names {count} files and {missing_count} of them {verb} missing: {missing}; finish the download of {folder}",
        index = index.display(),
        folder = folder.display(),
        verb = if *missing_count == 1 { "is" } else { "are" }
    )]
    MissingShards { index: PathBuf, folder: PathBuf, count: usize, missing_count: usize, missing: String },

    /// An index contradicts itself or the files that it names.
    #[error("{path}: {problem}; download the files again from one place", path = path.display())]
    BadIndex { path: PathBuf, problem: String },

    /// A file of a folder was given instead of the folder.
    #[error("{path} is a file of a model folder; give the folder {folder}", path = path.display(), folder = folder.display())]
    FileOfFolder { path: PathBuf, folder: PathBuf },

    /// A folder holds no model file.
    #[error("folder {path} holds no .gguf file and no config.json with .safetensors files", path = path.display())]
    EmptyFolder { path: PathBuf },

    /// A folder holds more than one model.
    #[error(
        "folder {path} holds {count} models; name one of them: {list}",
        path = path.display(),
        count = models.len(),
        list = models.join(", ")
    )]
    SeveralModels { path: PathBuf, models: Vec<String> },

    /// What is to be written is not a valid file.
    #[error("cannot write {path}: {problem}", path = path.display())]
    CannotWrite { path: PathBuf, problem: String },
}
