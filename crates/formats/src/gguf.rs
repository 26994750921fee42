//! The header of one GGUF file: version, byte order, metadata, tensor directory.
//!
//! Follows the GGUF document of the ggml project (`docs/gguf.md`), versions 2 and 3. The byte order is read
//! off the version field, because a big-endian file carries the same magic. Decisions where readers differ:
//!
//! - `general.alignment` may have any unsigned integer type and any positive multiple of 8; absent means 32.
//! - Tensors may come in any order and with gaps, but never share bytes. So the sum of all tensor sizes is at
//!   most the length of the file, and planning memory from a header cannot be inflated.
//! - Keys and tensor names are UTF-8 and not empty; string values may hold any bytes.
//!
//! Split sets are in `split.rs`.

use std::io::Read;
use std::path::{Path, PathBuf};

use crate::cursor::{ByteOrder, Cursor, Number};
use crate::error::FormatError;
use crate::limits;
use crate::metadata::Metadata;
use crate::tensor::{self, TensorInfo};
use crate::tensor_type::{self, TensorType};
use crate::value::{Array, ByteString, StringArray, Value, ValueType};

/// The first four bytes of every file, in either byte order.
pub(crate) const MAGIC: [u8; 4] = *b"GGUF";
/// Alignment of tensor data where the file states none.
pub(crate) const DEFAULT_ALIGNMENT: u64 = 32;
/// The key that states another alignment.
pub(crate) const ALIGNMENT_KEY: &str = "general.alignment";

/// Fewest bytes of a metadata entry: key length, one key byte, value type, a one-byte value.
const LEAST_ENTRY_BYTES: u64 = 8 + 1 + 4 + 1;
/// Fewest bytes of a tensor entry: name length, one name byte, dimension count, one dimension, type, offset.
const LEAST_TENSOR_BYTES: u64 = 8 + 1 + 4 + 8 + 4 + 8;

/// Everything before the tensor data of one file.
#[derive(Debug, Clone)]
pub struct GgufHeader {
    /// 2 or 3.
    pub version: u32,
    /// Byte order of the header and of the tensor data.
    pub byte_order: ByteOrder,
    /// Alignment of tensor data in bytes.
    pub alignment: u64,
    /// Whether the file states its alignment itself.
    pub alignment_is_stated: bool,
    /// Metadata in file order.
    pub metadata: Metadata,
    /// Tensors in file order, with offsets counted from the start of the file and `file` 0.
    pub tensors: Vec<TensorInfo>,
    /// Bytes from the start of the file to the end of the tensor directory.
    pub header_len: u64,
    /// Offset of the tensor data: `header_len` rounded up to the alignment.
    pub data_start: u64,
    /// Where the last tensor ends: the length that the file has at least when it is whole.
    pub data_end: u64,
}

impl GgufHeader {
    /// Reads a header from the start of a file of `file_len` bytes. `path` is only used in errors. At most
    /// [`limits::MAX_HEADER_BYTES`] are read, plus one buffer.
    pub fn read(reader: impl Read, file_len: u64, path: &Path) -> Result<GgufHeader, FormatError> {
        GgufHeader::read_within(reader, file_len, file_len, path)
    }

    /// As [`GgufHeader::read`], but tensors may lie behind the end of the file: it may be a download that has only begun.
    /// Tensor sizes are then no longer bounded by the length of the file, so nothing may be allocated by them.
    pub fn read_incomplete(reader: impl Read, file_len: u64, path: &Path) -> Result<GgufHeader, FormatError> {
        GgufHeader::read_within(reader, file_len, file_len.max(limits::MAX_FILE_BYTES), path)
    }

    /// `data_limit` is where the last tensor has to end.
    fn read_within(
        reader: impl Read,
        file_len: u64,
        data_limit: u64,
        path: &Path,
    ) -> Result<GgufHeader, FormatError> {
        let mut cursor = Cursor::new(reader, file_len, path);
        read_magic(&mut cursor)?;
        let version = read_version(&mut cursor)?;
        let tensor_count = read_count(&mut cursor, limits::MAX_TENSORS, "the number of tensors")?;
        let key_count = read_count(&mut cursor, limits::MAX_KEYS, "the number of metadata entries")?;
        cursor.require(
            key_count * LEAST_ENTRY_BYTES + tensor_count * LEAST_TENSOR_BYTES,
            "the list of metadata entries and tensors",
        )?;

        let metadata = read_metadata(&mut cursor, key_count)?;
        let stated = metadata.get(ALIGNMENT_KEY);
        let alignment = alignment_of(path, stated)?;
        let mut tensors =
            (0..tensor_count).map(|_| read_tensor(&mut cursor, alignment)).collect::<Result<Vec<_>, _>>()?;
        let header_len = cursor.offset();
        let (data_start, data_end) =
            place(path, &mut tensors, header_len, alignment, (file_len, data_limit))?;
        refuse_duplicates(path, &tensors)?;
        refuse_overlap(path, &tensors)?;
        Ok(GgufHeader {
            version,
            byte_order: cursor.byte_order,
            alignment,
            alignment_is_stated: stated.is_some(),
            metadata,
            tensors,
            header_len,
            data_start,
            data_end,
        })
    }
}

fn read_magic(cursor: &mut Cursor<'_, impl Read>) -> Result<(), FormatError> {
    let mut found = vec![0; MAGIC.len().min(usize::try_from(cursor.left()).unwrap_or(usize::MAX))];
    cursor.fill(&mut found, "the magic")?;
    if found == MAGIC {
        return Ok(());
    }
    let hint = match found.as_slice() {
        b"" => " (the file is empty)",
        b"FUGG" => {
            " (the magic is byte-swapped; a big-endian file keeps it as it is, so convert the model again)"
        }
        b"lmgg" | b"fmgg" | b"tjgg" => " (a format from before GGUF; convert the model again)",
        b"vers" => " (a Git LFS pointer, not the model; fetch the file with git lfs pull)",
        _ => "",
    };
    Err(FormatError::NotGguf { path: cursor.path().to_owned(), found, hint })
}

fn read_version(cursor: &mut Cursor<'_, impl Read>) -> Result<u32, FormatError> {
    let little = cursor.u32("the version")?;
    // Versions are small, so the low half of one read in the wrong order is 0.
    let (version, order) = if little & 0xffff == 0 {
        (little.swap_bytes(), ByteOrder::Big)
    } else {
        (little, ByteOrder::Little)
    };
    cursor.byte_order = order;
    let way_out = match version {
        2 | 3 => return Ok(version),
        1 => "Version 1 was in use for some weeks of 2023; convert the model again",
        0 => "The file is damaged",
        _ => "The file is damaged, or made for a newer program",
    };
    Err(FormatError::UnsupportedVersion { path: cursor.path().to_owned(), version, way_out })
}

fn read_count(
    cursor: &mut Cursor<'_, impl Read>,
    limit: u64,
    what: &'static str,
) -> Result<u64, FormatError> {
    let count = cursor.u64(what)?;
    cursor.within(count, limit, what)?;
    Ok(count)
}

/// A key or tensor name: not empty, UTF-8.
fn read_name(
    cursor: &mut Cursor<'_, impl Read>,
    limit: u64,
    what: &'static str,
) -> Result<String, FormatError> {
    let offset = cursor.offset();
    let bytes = cursor.string(limit, what)?;
    let bad = |problem| FormatError::BadName { path: cursor.path().to_owned(), what, offset, problem };
    if bytes.is_empty() {
        return Err(bad("is empty"));
    }
    String::from_utf8(bytes).map_err(|_| bad("is not UTF-8 text"))
}

fn read_metadata(cursor: &mut Cursor<'_, impl Read>, count: u64) -> Result<Metadata, FormatError> {
    let mut entries = Vec::with_capacity(count as usize);
    let mut values = ValueReader { cursor, key: String::new(), strings: 0, inner_arrays: 0 };
    for _ in 0..count {
        values.key = read_name(values.cursor, limits::MAX_KEY_BYTES, "a metadata key")?;
        let value_type = values.value_type()?;
        let value = values.value(value_type)?;
        entries.push((std::mem::take(&mut values.key), value));
    }
    Metadata::new(values.cursor.path(), entries)
}

/// Reads values; knows the key for errors, and how many strings in arrays and inner arrays the file has had
/// so far.
struct ValueReader<'cursor, 'path, R> {
    cursor: &'cursor mut Cursor<'path, R>,
    key: String,
    strings: u64,
    inner_arrays: u64,
}

const VALUE: &str = "a metadata value";
const ARRAY: &str = "a metadata array";

impl<R: Read> ValueReader<'_, '_, R> {
    fn path(&self) -> PathBuf {
        self.cursor.path().to_owned()
    }

    fn value_type(&mut self) -> Result<ValueType, FormatError> {
        let offset = self.cursor.offset();
        let found = self.cursor.u32("a metadata value type")?;
        ValueType::from_id(found).ok_or_else(|| FormatError::UnknownValueType {
            path: self.path(),
            key: self.key.clone(),
            offset,
            found,
        })
    }

    fn value(&mut self, value_type: ValueType) -> Result<Value, FormatError> {
        Ok(match value_type {
            ValueType::Uint8 => Value::Uint8(self.cursor.number(VALUE)?),
            ValueType::Int8 => Value::Int8(self.cursor.number(VALUE)?),
            ValueType::Uint16 => Value::Uint16(self.cursor.number(VALUE)?),
            ValueType::Int16 => Value::Int16(self.cursor.number(VALUE)?),
            ValueType::Uint32 => Value::Uint32(self.cursor.number(VALUE)?),
            ValueType::Int32 => Value::Int32(self.cursor.number(VALUE)?),
            ValueType::Float32 => Value::Float32(self.cursor.number(VALUE)?),
            ValueType::Uint64 => Value::Uint64(self.cursor.number(VALUE)?),
            ValueType::Int64 => Value::Int64(self.cursor.number(VALUE)?),
            ValueType::Float64 => Value::Float64(self.cursor.number(VALUE)?),
            ValueType::Bool => Value::Bool(self.bools(1)?[0]),
            ValueType::String => {
                Value::String(ByteString(self.cursor.string(limits::MAX_STRING_BYTES, VALUE)?))
            }
            ValueType::Array => Value::Array(self.array(1)?),
        })
    }

    fn array(&mut self, depth: u32) -> Result<Array, FormatError> {
        if depth > limits::MAX_ARRAY_DEPTH {
            let (path, key, offset) = (self.path(), self.key.clone(), self.cursor.offset());
            return Err(FormatError::NestedTooDeep { path, key, offset, limit: limits::MAX_ARRAY_DEPTH });
        }
        let element_type = self.value_type()?;
        let count = self.cursor.u64("the length of a metadata array")?;
        self.cursor.require(count.saturating_mul(element_type.least_bytes()), ARRAY)?;
        self.cursor.within(count, limits::MAX_ARRAY_ELEMENTS, "the length of a metadata array")?;
        Ok(match element_type {
            ValueType::Uint8 => Array::Uint8(self.numbers(count)?),
            ValueType::Int8 => Array::Int8(self.numbers(count)?),
            ValueType::Uint16 => Array::Uint16(self.numbers(count)?),
            ValueType::Int16 => Array::Int16(self.numbers(count)?),
            ValueType::Uint32 => Array::Uint32(self.numbers(count)?),
            ValueType::Int32 => Array::Int32(self.numbers(count)?),
            ValueType::Float32 => Array::Float32(self.numbers(count)?),
            ValueType::Uint64 => Array::Uint64(self.numbers(count)?),
            ValueType::Int64 => Array::Int64(self.numbers(count)?),
            ValueType::Float64 => Array::Float64(self.numbers(count)?),
            ValueType::Bool => Array::Bool(self.bools(count)?),
            ValueType::String => Array::String(self.strings(count)?),
            ValueType::Array => {
                self.inner_arrays += count;
                self.cursor.within(
                    self.inner_arrays,
                    limits::MAX_INNER_ARRAYS,
                    "the number of arrays in arrays",
                )?;
                Array::Array((0..count).map(|_| self.array(depth + 1)).collect::<Result<_, _>>()?)
            }
        })
    }

    fn numbers<T: Number<N>, const N: usize>(&mut self, count: u64) -> Result<Vec<T>, FormatError> {
        self.cursor.numbers(count, ARRAY)
    }

    fn bools(&mut self, count: u64) -> Result<Vec<bool>, FormatError> {
        let start = self.cursor.offset();
        let bytes: Vec<u8> = self.cursor.numbers(count, VALUE)?;
        if let Some(position) = bytes.iter().position(|&byte| byte > 1) {
            let (path, key, offset) = (self.path(), self.key.clone(), start + position as u64);
            return Err(FormatError::BadBool { path, key, offset, found: bytes[position] });
        }
        Ok(bytes.into_iter().map(|byte| byte == 1).collect())
    }

    fn strings(&mut self, count: u64) -> Result<StringArray, FormatError> {
        self.strings += count;
        self.cursor.within(self.strings, limits::MAX_ARRAY_STRINGS, "the number of strings in arrays")?;
        let mut strings = StringArray::with_capacity(count as usize);
        for _ in 0..count {
            let length =
                self.cursor.string_length(limits::MAX_STRING_BYTES, "a string in a metadata array")?;
            let place = strings.push_zeroed(length);
            if length > 0 {
                self.cursor.fill(place, "a string in a metadata array")?;
            }
        }
        Ok(strings)
    }
}

fn alignment_of(path: &Path, stated: Option<&Value>) -> Result<u64, FormatError> {
    let Some(value) = stated else { return Ok(DEFAULT_ALIGNMENT) };
    let alignment = match *value {
        Value::Uint8(alignment) => alignment.into(),
        Value::Uint16(alignment) => alignment.into(),
        Value::Uint32(alignment) => alignment.into(),
        Value::Uint64(alignment) => alignment,
        _ => 0,
    };
    if alignment == 0 || alignment % 8 != 0 {
        return Err(FormatError::BadAlignment { path: path.to_owned(), found: value.describe() });
    }
    Ok(alignment)
}

/// One line of the tensor directory; `offset` still counts from the start of the data.
fn read_tensor(cursor: &mut Cursor<'_, impl Read>, alignment: u64) -> Result<TensorInfo, FormatError> {
    let path = cursor.path();
    let name = read_name(cursor, limits::MAX_TENSOR_NAME_BYTES, "a tensor name")?;
    let dimensions = cursor.u32("the number of dimensions of a tensor")?;
    if dimensions == 0 || dimensions > limits::MAX_DIMENSIONS {
        let problem = tensor::too_many_dimensions(dimensions.into());
        return Err(FormatError::BadShape { path: path.to_owned(), tensor: name, problem });
    }
    let shape: Vec<u64> = cursor.numbers(dimensions.into(), "the shape of a tensor")?;
    let type_id = cursor.u32("the type of a tensor")?;
    let offset = cursor.u64("the offset of a tensor")?;
    let Some(tensor_type) = TensorType::from_id(type_id) else {
        let explanation = tensor_type::explain_unknown(type_id);
        return Err(FormatError::UnknownTensorType {
            path: path.to_owned(),
            tensor: name,
            found: type_id,
            explanation,
        });
    };
    let byte_len = tensor::byte_len(path, &name, tensor_type, &shape)?;
    if offset % alignment != 0 {
        return Err(FormatError::MisalignedTensor { path: path.to_owned(), tensor: name, offset, alignment });
    }
    Ok(TensorInfo { name, tensor_type, shape, file: 0, offset, byte_len })
}

/// Makes offsets absolute and checks that every tensor ends at `data_limit` at the latest. Returns the start of the data and
/// the end of the last tensor.
fn place(
    path: &Path,
    tensors: &mut [TensorInfo],
    header_len: u64,
    alignment: u64,
    (file_len, data_limit): (u64, u64),
) -> Result<(u64, u64), FormatError> {
    let data_start = round_up(header_len, alignment);
    let mut data_end = header_len;
    for tensor in tensors {
        let start = data_start.checked_add(tensor.offset);
        match start.and_then(|start| start.checked_add(tensor.byte_len)) {
            Some(end) if end <= data_limit => {
                tensor.offset += data_start;
                data_end = data_end.max(end);
            }
            _ => {
                return Err(FormatError::TensorPastEnd {
                    path: path.to_owned(),
                    tensor: tensor.name.clone(),
                    offset: tensor.offset,
                    byte_len: tensor.byte_len,
                    data_start,
                    file_len,
                });
            }
        }
    }
    Ok((data_start, data_end))
}

/// Rounds up; an alignment so large that the sum wraps gives the largest number, which no file reaches.
pub(crate) fn round_up(length: u64, alignment: u64) -> u64 {
    length.checked_next_multiple_of(alignment).unwrap_or(u64::MAX)
}

fn refuse_duplicates(path: &Path, tensors: &[TensorInfo]) -> Result<(), FormatError> {
    let mut names: Vec<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        None => Ok(()),
        Some(pair) => Err(FormatError::DuplicateTensor {
            path: path.to_owned(),
            tensor: pair[0].to_owned(),
            detail: String::new(),
        }),
    }
}

fn refuse_overlap(path: &Path, tensors: &[TensorInfo]) -> Result<(), FormatError> {
    let mut by_offset: Vec<&TensorInfo> = tensors.iter().collect();
    by_offset.sort_by_key(|tensor| tensor.offset);
    match by_offset.windows(2).find(|pair| pair[0].offset + pair[0].byte_len > pair[1].offset) {
        None => Ok(()),
        Some(pair) => Err(FormatError::TensorsOverlap {
            path: path.to_owned(),
            first: pair[0].name.clone(),
            second: pair[1].name.clone(),
            offset: pair[1].offset,
        }),
    }
}
