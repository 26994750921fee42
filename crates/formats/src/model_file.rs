//! A model on disk as one thing: metadata and tensor directory over one file, a split set, or a Hugging Face folder.
//!
//! Only headers are read; tensor data never is. A `ModelFile` holds no open file. What a set must fulfil is
//! in `split.rs` and `hugging_face.rs`, what a file must fulfil in `gguf.rs` and `safetensors.rs`.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::cursor::ByteOrder;
use crate::error::FormatError;
use crate::gguf::GgufHeader;
use crate::hugging_face;
use crate::limits;
use crate::metadata::Metadata;
use crate::nearest;
use crate::split::{self, io_error};
use crate::tensor::TensorInfo;

/// What a model is written in, and so whose names its metadata and tensors carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileFormat {
    /// GGUF: keys and tensors have the names of ggml.
    Gguf,
    /// A folder of Hugging Face: the keys are those of config.json, with a dot between the names of nested objects, and the
    /// tensors have the names of the safetensors files. config.json is the first of the files and holds no tensor.
    HuggingFace,
}

/// One file of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceFile {
    /// Where it was opened.
    pub path: PathBuf,
    /// Its length in bytes.
    pub len: u64,
    /// When it was last changed, where the file system tells.
    pub modified: Option<SystemTime>,
    /// Bytes from the start of the file to the end of the tensor directory, without padding.
    pub header_len: u64,
}

/// An opened model.
#[derive(Debug, Clone)]
pub struct ModelFile {
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    /// Positions in `tensors`, sorted by name.
    by_name: Vec<u32>,
    files: Vec<SourceFile>,
    /// Per file, where its last tensor ends.
    data_ends: Vec<u64>,
    byte_order: ByteOrder,
    format: FileFormat,
}

/// A model taken apart.
pub(crate) struct Parts {
    pub metadata: Metadata,
    pub tensors: Vec<TensorInfo>,
    pub files: Vec<SourceFile>,
    pub data_ends: Vec<u64>,
    pub byte_order: ByteOrder,
    pub format: FileFormat,
}

impl ModelFile {
    /// Opens a `.gguf` file, a split set by any of its parts, a folder that holds exactly one of these, or a folder of
    /// Hugging Face: config.json beside safetensors files.
    pub fn open(path: impl AsRef<Path>) -> Result<ModelFile, FormatError> {
        ModelFile::open_watched(path, &Nobody)
    }

    /// As [`ModelFile::open`], telling `watch` about each file.
    pub fn open_watched(path: impl AsRef<Path>, watch: &dyn HeaderWatch) -> Result<ModelFile, FormatError> {
        ModelFile::open_with(path.as_ref(), Completeness::Whole, watch)
    }

    /// As [`ModelFile::open`], but only the headers have to be there: any file may end early, as a download does that is
    /// still running. [`ModelFile::missing_bytes`] says how much is to come. For planning only: tensors may lie behind the
    /// end of their file, and their sizes are what the header claims.
    pub fn open_headers(path: impl AsRef<Path>) -> Result<ModelFile, FormatError> {
        ModelFile::open_headers_watched(path, &Nobody)
    }

    /// As [`ModelFile::open_headers`], telling `watch` about each file.
    pub fn open_headers_watched(
        path: impl AsRef<Path>,
        watch: &dyn HeaderWatch,
    ) -> Result<ModelFile, FormatError> {
        ModelFile::open_with(path.as_ref(), Completeness::Headers, watch)
    }

    fn open_with(
        path: &Path,
        completeness: Completeness,
        watch: &dyn HeaderWatch,
    ) -> Result<ModelFile, FormatError> {
        if hugging_face::is_checkpoint(path)? {
            return hugging_face::open(path, completeness, watch).and_then(ModelFile::from_parts);
        }
        let read = |file: &mut Counting<'_>, len: u64, path: &Path| match completeness {
            Completeness::Whole => GgufHeader::read(file, len, path),
            Completeness::Headers => GgufHeader::read_incomplete(file, len, path),
        };
        let paths = split::files_of(path)?;
        let mut headers = Vec::new();
        let mut files = Vec::new();
        let (mut header_bytes, mut tensor_count) = (0, 0);
        for path in &paths {
            let (mut file, header) = read_header(path, watch, read)?;
            file.header_len = header.header_len;
            header_bytes += file.header_len;
            tensor_count += header.tensors.len() as u64;
            check_total(path, "the header of all parts together", header_bytes, limits::MAX_HEADER_BYTES)?;
            check_total(
                path,
                "the number of tensors in all parts together",
                tensor_count,
                limits::MAX_TENSORS,
            )?;
            files.push(file);
            headers.push(header);
        }
        split::check_set(&paths, &headers)?;
        ModelFile::assemble(files, headers)
    }

    fn assemble(files: Vec<SourceFile>, headers: Vec<GgufHeader>) -> Result<ModelFile, FormatError> {
        let mut tensors = Vec::new();
        let mut first = None;
        let data_ends = headers.iter().map(|header| header.data_end).collect();
        for (file, header) in headers.into_iter().enumerate() {
            tensors.extend(header.tensors.into_iter().map(|tensor| TensorInfo { file, ..tensor }));
            first.get_or_insert((header.metadata, header.byte_order));
        }
        let (metadata, byte_order) = first.expect("a model has at least one file");
        ModelFile::from_parts(Parts {
            metadata,
            tensors,
            files,
            data_ends,
            byte_order,
            format: FileFormat::Gguf,
        })
    }

    fn from_parts(parts: Parts) -> Result<ModelFile, FormatError> {
        let Parts { metadata, tensors, files, data_ends, byte_order, format } = parts;
        let by_name = index_by_name(&files, &tensors)?;
        Ok(ModelFile { metadata, tensors, by_name, files, data_ends, byte_order, format })
    }

    /// What the model is written in.
    pub fn format(&self) -> FileFormat {
        self.format
    }

    /// Metadata of the model: that of the only file, or of part 1.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// All tensors, in the order of the files and of their directories.
    pub fn tensors(&self) -> std::slice::Iter<'_, TensorInfo> {
        self.tensors.iter()
    }

    /// The tensor with this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        let name_of = |position: u32| self.tensors[position as usize].name.as_str();
        let found = self.by_name.binary_search_by(|&position| name_of(position).cmp(name)).ok()?;
        Some(&self.tensors[self.by_name[found] as usize])
    }

    /// The tensor with this name, or an error that names the layers where it exists or the nearest names.
    pub fn require(&self, name: &str) -> Result<&TensorInfo, FormatError> {
        self.tensor(name).ok_or_else(|| FormatError::MissingTensor {
            path: self.metadata.path().to_owned(),
            tensor: name.to_owned(),
            explanation: nearest::explain_missing(
                name,
                self.tensors.iter().map(|tensor| tensor.name.as_str()),
            ),
        })
    }

    /// The files of the model, part 1 first; config.json before the safetensors files. [`TensorInfo::file`] is an index into this.
    pub fn files(&self) -> &[SourceFile] {
        &self.files
    }

    /// Whether numbers in the tensor data have their most significant byte first.
    pub fn big_endian(&self) -> bool {
        self.byte_order == ByteOrder::Big
    }

    /// Bytes that the files lack: 0 unless the model was opened with [`ModelFile::open_headers`].
    pub fn missing_bytes(&self) -> u64 {
        self.files.iter().zip(&self.data_ends).map(|(file, end)| end.saturating_sub(file.len)).sum()
    }

    /// Sum of the bytes of all tensors; never more than whole files hold, because tensors do not share bytes.
    pub fn tensor_bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.byte_len).sum()
    }

    /// A reader over the header of one file, its first [`SourceFile::header_len`] bytes: what a fingerprint
    /// of the model has to cover besides the tensor data. `file` is an index into [`ModelFile::files`].
    ///
    /// # Panics
    /// If `file` is not below the number of files.
    pub fn header_bytes(&self, file: usize) -> Result<impl Read + use<>, FormatError> {
        let source = &self.files[file];
        let opened = File::open(&source.path).map_err(|error| io_error(&source.path, "open", error))?;
        Ok(opened.take(source.header_len))
    }
}

/// Is told about each file whose header is read. This crate only reads; whoever has to keep the page cache free of what that
/// leaves there does it here.
pub trait HeaderWatch {
    /// `file` was opened and nothing of it was read.
    fn opened(&self, file: &File);

    /// The header of `file` was read, or as much of it as was understood, and nothing from byte `end` on.
    fn read(&self, file: &File, end: u64);
}

struct Nobody;

impl HeaderWatch for Nobody {
    fn opened(&self, _file: &File) {}

    fn read(&self, _file: &File, _end: u64) {}
}

/// Whether the tensor data has to be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Completeness {
    /// Files are as long as their headers say.
    Whole,
    /// Files may end anywhere behind their headers.
    Headers,
}

/// A file that is read from its start, and how far that has come.
pub(crate) struct Counting<'a> {
    file: &'a File,
    bytes: u64,
}

impl Read for Counting<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let read = self.file.read(into)?;
        self.bytes += read as u64;
        Ok(read)
    }
}

/// Opens a file and has its beginning read by `read`, which is given the length of the file. The [`SourceFile`] has no
/// header length yet.
pub(crate) fn read_header<T>(
    path: &Path,
    watch: &dyn HeaderWatch,
    read: impl FnOnce(&mut Counting<'_>, u64, &Path) -> Result<T, FormatError>,
) -> Result<(SourceFile, T), FormatError> {
    // Asked before opening: opening a named pipe would wait for a writer.
    let kind = std::fs::metadata(path).map_err(|source| io_error(path, "open", source))?;
    if !kind.is_file() {
        return Err(FormatError::NotAFile { path: path.to_owned() });
    }
    let file = File::open(path).map_err(|source| io_error(path, "open", source))?;
    let facts = file.metadata().map_err(|source| io_error(path, "read the length of", source))?;
    watch.opened(&file);
    let mut counting = Counting { file: &file, bytes: 0 };
    let header = read(&mut counting, facts.len(), path);
    watch.read(&file, counting.bytes);
    let header = header?;
    let source = SourceFile {
        path: path.to_owned(),
        len: facts.len(),
        modified: facts.modified().ok(),
        header_len: 0,
    };
    Ok((source, header))
}

pub(crate) fn check_total(
    path: &Path,
    what: &'static str,
    value: u64,
    limit: u64,
) -> Result<(), FormatError> {
    if value <= limit {
        return Ok(());
    }
    Err(FormatError::OverLimit { path: path.to_owned(), what, offset: 0, value, limit })
}

fn index_by_name(files: &[SourceFile], tensors: &[TensorInfo]) -> Result<Vec<u32>, FormatError> {
    let mut by_name: Vec<u32> =
        (0..u32::try_from(tensors.len()).expect("fewer tensors than limits::MAX_TENSORS")).collect();
    let tensor = |position: u32| &tensors[position as usize];
    by_name.sort_by(|&left, &right| tensor(left).name.cmp(&tensor(right).name));
    for pair in by_name.windows(2) {
        let (first, second) = (tensor(pair[0]), tensor(pair[1]));
        if first.name == second.name {
            return Err(FormatError::DuplicateTensor {
                path: files[second.file].path.clone(),
                tensor: first.name.clone(),
                detail: format!(", first in {}", files[first.file].path.display()),
            });
        }
    }
    Ok(by_name)
}
