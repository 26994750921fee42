//! Writes GGUF version 3, little endian, for the project's own tools.
//!
//! Tensor data comes from a callback, tensor by tensor, and is never held. The file is written under a
//! temporary name (`NAME.partial`), synced and renamed, so a file with the final name is whole. Before the
//! first byte is written the header goes through this crate's reader: what the reader would refuse is not
//! written.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::error::FormatError;
use crate::gguf::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT, GgufHeader, MAGIC, round_up};
use crate::split::io_error;
use crate::tensor::{self, TensorInfo};
use crate::tensor_type::TensorType;
use crate::value::{Array, Value, ValueType};

const VERSION: u32 = 3;
const BUFFER_BYTES: usize = 1 << 20;

struct PlannedTensor {
    name: String,
    tensor_type: TensorType,
    shape: Vec<u64>,
}

/// Collects metadata and the tensor directory, then writes the file in one pass.
#[derive(Default)]
pub struct GgufWriter {
    metadata: Vec<(String, Value)>,
    tensors: Vec<PlannedTensor>,
}

impl GgufWriter {
    /// An empty file.
    pub fn new() -> GgufWriter {
        GgufWriter::default()
    }

    /// Adds a metadata entry. The key `general.alignment` sets the alignment of the file (32 bytes
    /// otherwise).
    pub fn metadata(&mut self, key: impl Into<String>, value: impl Into<Value>) -> &mut GgufWriter {
        self.metadata.push((key.into(), value.into()));
        self
    }

    /// Adds a tensor; `shape[0]` is the row length. Data is written in the order of these calls.
    pub fn tensor(
        &mut self,
        name: impl Into<String>,
        tensor_type: TensorType,
        shape: &[u64],
    ) -> &mut GgufWriter {
        self.tensors.push(PlannedTensor { name: name.into(), tensor_type, shape: shape.to_vec() });
        self
    }

    /// Writes the file. `data` is called once per tensor, in order, and must write exactly `byte_len` bytes;
    /// an error it returns ends the writing and removes the temporary file.
    pub fn write(
        &self,
        path: impl AsRef<Path>,
        mut data: impl FnMut(&TensorInfo, &mut dyn Write) -> io::Result<()>,
    ) -> Result<(), FormatError> {
        let path = path.as_ref();
        let (header, tensors, data_start) = self.plan(path)?;
        let partial = Partial::create(path)?;
        let failed = |source| io_error(&partial.path, "write", source);
        let file = File::create(&partial.path).map_err(failed)?;
        let mut out = BufWriter::with_capacity(BUFFER_BYTES, file);
        out.write_all(&header).map_err(failed)?;
        let mut position = header.len() as u64;
        for tensor in &tensors {
            pad(&mut out, tensor.offset - position).map_err(failed)?;
            let mut counted = Counted { out: &mut out, left: tensor.byte_len };
            data(tensor, &mut counted).map_err(failed)?;
            if counted.left > 0 {
                let problem = format!(
                    "tensor {:?} got {} bytes, its type and shape need {}",
                    tensor.name,
                    tensor.byte_len - counted.left,
                    tensor.byte_len
                );
                return Err(FormatError::CannotWrite { path: path.to_owned(), problem });
            }
            position = tensor.offset + tensor.byte_len;
        }
        // Readers map whole aligned tensors, so the last one is padded too.
        let end = round_up(position, self.alignment()).max(data_start);
        pad(&mut out, end - position).map_err(failed)?;
        let file = out.into_inner().map_err(|error| failed(error.into_error()))?;
        file.sync_all().map_err(failed)?;
        drop(file);
        partial.finish(path)
    }

    /// The alignment that the reader will find; an unusable value is reported by the reader.
    fn alignment(&self) -> u64 {
        let stated = self.metadata.iter().find(|(key, _)| key == ALIGNMENT_KEY);
        let stated =
            stated.and_then(|(_, value)| value.integer()).and_then(|value| u64::try_from(value).ok());
        stated.filter(|&alignment| alignment > 0).unwrap_or(DEFAULT_ALIGNMENT)
    }

    /// Header bytes, the tensors with their places, and the start of the data.
    fn plan(&self, path: &Path) -> Result<(Vec<u8>, Vec<TensorInfo>, u64), FormatError> {
        let alignment = self.alignment();
        let too_large = || FormatError::CannotWrite {
            path: path.to_owned(),
            problem: "the tensors together are too large to address".to_owned(),
        };
        let mut header = Vec::new();
        header.extend(MAGIC);
        header.extend(VERSION.to_le_bytes());
        header.extend((self.tensors.len() as u64).to_le_bytes());
        header.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            put_string(&mut header, key.as_bytes());
            header.extend(value.value_type().id().to_le_bytes());
            put_value(&mut header, value);
        }
        let mut offset = 0_u64;
        for tensor in &self.tensors {
            put_string(&mut header, tensor.name.as_bytes());
            header.extend((tensor.shape.len() as u32).to_le_bytes());
            tensor.shape.iter().for_each(|dimension| header.extend(dimension.to_le_bytes()));
            header.extend(tensor.tensor_type.id().to_le_bytes());
            header.extend(offset.to_le_bytes());
            let byte_len = tensor::byte_len(path, &tensor.name, tensor.tensor_type, &tensor.shape)?;
            let end = offset.checked_add(byte_len).and_then(|end| end.checked_next_multiple_of(alignment));
            offset = end.ok_or_else(too_large)?;
        }
        let file_len = round_up(header.len() as u64, alignment).checked_add(offset).ok_or_else(too_large)?;
        let checked = GgufHeader::read(header.as_slice(), file_len, path)?;
        Ok((header, checked.tensors, checked.data_start))
    }
}

fn put_string(header: &mut Vec<u8>, bytes: &[u8]) {
    header.extend((bytes.len() as u64).to_le_bytes());
    header.extend(bytes);
}

fn put_value(header: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Uint8(value) => header.extend(value.to_le_bytes()),
        Value::Int8(value) => header.extend(value.to_le_bytes()),
        Value::Uint16(value) => header.extend(value.to_le_bytes()),
        Value::Int16(value) => header.extend(value.to_le_bytes()),
        Value::Uint32(value) => header.extend(value.to_le_bytes()),
        Value::Int32(value) => header.extend(value.to_le_bytes()),
        Value::Float32(value) => header.extend(value.to_le_bytes()),
        Value::Uint64(value) => header.extend(value.to_le_bytes()),
        Value::Int64(value) => header.extend(value.to_le_bytes()),
        Value::Float64(value) => header.extend(value.to_le_bytes()),
        Value::Bool(value) => header.push(u8::from(*value)),
        Value::String(value) => put_string(header, value.as_bytes()),
        Value::Array(array) => put_array(header, array),
    }
}

fn put_array(header: &mut Vec<u8>, array: &Array) {
    let element_type: ValueType = array.element_type();
    header.extend(element_type.id().to_le_bytes());
    header.extend((array.len() as u64).to_le_bytes());
    match array {
        Array::Uint8(elements) => header.extend(elements),
        Array::Int8(elements) => elements.iter().for_each(|element| header.extend(element.to_le_bytes())),
        Array::Uint16(elements) => elements.iter().for_each(|element| header.extend(element.to_le_bytes())),
        Array::Int16(elements) => elements.iter().for_each(|element| header.extend(element.to_le_bytes())),
        Array::Uint32(elements) => elements.iter().for_each(|element| header.extend(element.to_le_bytes())),
        Array::Int32(elements) => elements.iter().for_each(|element| header.extend(element.to_le_bytes())),
        Array::Float32(elements) => elements.iter().for_each(|element| header.extend(element.to_le_bytes())),
        Array::Uint64(elements) => elements.iter().for_each(|element| header.extend(element.to_le_bytes())),
        Array::Int64(elements) => elements.iter().for_each(|element| header.extend(element.to_le_bytes())),
        Array::Float64(elements) => elements.iter().for_each(|element| header.extend(element.to_le_bytes())),
        Array::Bool(elements) => header.extend(elements.iter().map(|&element| u8::from(element))),
        Array::String(elements) => elements.iter().for_each(|element| put_string(header, element)),
        Array::Array(elements) => elements.iter().for_each(|element| put_array(header, element)),
    }
}

fn pad(out: &mut impl Write, bytes: u64) -> io::Result<()> {
    io::copy(&mut io::Read::take(io::repeat(0), bytes), out).map(|_| ())
}

/// Lets a callback write its tensor and no more.
struct Counted<'out, W> {
    out: &'out mut W,
    left: u64,
}

impl<W: Write> Write for Counted<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() as u64 > self.left {
            return Err(io::Error::other("a tensor got more bytes than its type and shape need"));
        }
        let written = self.out.write(bytes)?;
        self.left -= written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// The temporary file; removed when dropped before [`Partial::finish`].
struct Partial {
    path: PathBuf,
    finished: bool,
}

impl Partial {
    fn create(target: &Path) -> Result<Partial, FormatError> {
        let Some(name) = target.file_name() else {
            return Err(FormatError::NotAFile { path: target.to_owned() });
        };
        let mut name = name.to_owned();
        name.push(".partial");
        Ok(Partial { path: target.with_file_name(name), finished: false })
    }

    fn finish(mut self, target: &Path) -> Result<(), FormatError> {
        fs::rename(&self.path, target)
            .map_err(|source| io_error(target, "rename the finished file to", source))?;
        self.finished = true;
        sync_folder_of(target)
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.finished {
            // The error that led here matters more than one about the left-over file.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Makes the rename durable. Other systems do not open folders.
#[cfg(unix)]
fn sync_folder_of(target: &Path) -> Result<(), FormatError> {
    let folder = match target.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|source| io_error(folder, "sync the folder", source))
}

#[cfg(not(unix))]
fn sync_folder_of(_target: &Path) -> Result<(), FormatError> {
    Ok(())
}
