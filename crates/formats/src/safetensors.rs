//! One safetensors file: the length of its directory (8 bytes, little-endian), the directory as a JSON object, the tensors.
//!
//! The format allows no bytes that belong to no tensor, and none that belong to two; both are refused. The directory is
//! parsed piece by piece, so a header of any content costs a small multiple of its length. Shapes are turned round to the
//! order of GGUF: `shape[0]` is the length of a row. Reference: the README of huggingface/safetensors.

use std::fmt;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::error::FormatError;
use crate::json::malformed;
use crate::limits;
use crate::tensor::{self, TensorInfo};
use crate::tensor_type::TensorType;

/// Bytes of the length in front of the directory.
const LENGTH_BYTES: u64 = 8;
const METADATA_KEY: &str = "__metadata__";

/// Element types with the ggml type of the same meaning;
/// bytes without a sign are codes, whose meaning another tensor gives: no kernel computes with either kind of bytes.
const ELEMENT_TYPES: [(&str, TensorType); 13] = [
    ("F32", TensorType::F32),
    ("F16", TensorType::F16),
    ("BF16", TensorType::Bf16),
    ("F64", TensorType::F64),
    ("I64", TensorType::I64),
    ("I32", TensorType::I32),
    ("I16", TensorType::I16),
    ("I8", TensorType::I8),
    ("U8", TensorType::I8),
    ("U32", TensorType::U32),
    ("F8_E4M3", TensorType::F8E4m3),
    ("F8_E5M2", TensorType::F8E5m2),
    ("F8_E8M0", TensorType::F8E8m0),
];

/// The directory of one file.
#[derive(Debug, Clone)]
pub struct SafetensorsHeader {
    /// The tensors in the order of their bytes; [`TensorInfo::file`] is 0.
    pub tensors: Vec<TensorInfo>,
    /// Bytes from the start of the file to the first tensor.
    pub header_len: u64,
    /// Where the last tensor ends; `header_len` if there is none.
    pub data_end: u64,
}

impl SafetensorsHeader {
    /// Reads the directory of a file of `file_len` bytes; `path` is for errors.
    ///
    /// # Errors
    /// The file is not what the format says.
    pub fn read(reader: impl Read, file_len: u64, path: &Path) -> Result<SafetensorsHeader, FormatError> {
        let header = Self::read_incomplete(reader, file_len, path)?;
        if header.data_end > file_len {
            let last = header.tensors.last().expect("data that ends behind the header belongs to a tensor");
            return Err(FormatError::TensorPastEnd {
                path: path.to_owned(),
                tensor: last.name.clone(),
                offset: last.offset - header.header_len,
                byte_len: last.byte_len,
                data_start: header.header_len,
                file_len,
            });
        }
        Ok(header)
    }

    /// As [`SafetensorsHeader::read`] for a file whose end may be missing.
    ///
    /// # Errors
    /// The part that is there is not what the format says.
    pub fn read_incomplete(
        mut reader: impl Read,
        file_len: u64,
        path: &Path,
    ) -> Result<SafetensorsHeader, FormatError> {
        let json = read_directory(&mut reader, file_len, path)?;
        let mut parser = serde_json::Deserializer::from_slice(&json);
        let entries = parser.deserialize_map(Directory).and_then(|entries| parser.end().map(|()| entries));
        let mut entries = entries.map_err(|error| {
            let mut error = malformed(path, "the tensor directory", &json, &error);
            if let FormatError::BadJson { offset, .. } = &mut error {
                *offset += LENGTH_BYTES;
            }
            error
        })?;
        let header_len = LENGTH_BYTES + json.len() as u64;
        drop(json);
        entries.sort_by_key(|entry| entry.entry.data_offsets);
        let mut data_end = header_len;
        let mut tensors: Vec<TensorInfo> = Vec::with_capacity(entries.len());
        for named in entries {
            let tensor = tensor_of(path, named, header_len, file_len)?;
            refuse_gap_or_overlap(path, tensors.last(), &tensor, data_end)?;
            data_end = tensor.offset + tensor.byte_len;
            tensors.push(tensor);
        }
        if data_end < file_len {
            let (offset, count, next) = (data_end, file_len - data_end, "the end of the file".to_owned());
            return Err(FormatError::TensorGap { path: path.to_owned(), offset, count, next });
        }
        Ok(SafetensorsHeader { tensors, header_len, data_end })
    }
}

fn read_directory(reader: &mut impl Read, file_len: u64, path: &Path) -> Result<Vec<u8>, FormatError> {
    let truncated = |what, offset, needed| FormatError::Truncated {
        path: path.to_owned(),
        what,
        offset,
        needed,
        left: file_len.saturating_sub(offset),
    };
    if file_len < LENGTH_BYTES {
        return Err(truncated("the length of the tensor directory", 0, LENGTH_BYTES));
    }
    let mut length = [0; LENGTH_BYTES as usize];
    let failed = |source| FormatError::Io { path: path.to_owned(), action: "read", source };
    reader.read_exact(&mut length).map_err(failed)?;
    if &length == b"version " {
        let problem = "it is a Git LFS pointer, not the weights; fetch the file with git lfs pull".to_owned();
        return Err(FormatError::NotSafetensors { path: path.to_owned(), problem });
    }
    let length = u64::from_le_bytes(length);
    if length > limits::MAX_HEADER_BYTES {
        return Err(FormatError::OverLimit {
            path: path.to_owned(),
            what: "the length of the tensor directory",
            offset: 0,
            value: length,
            limit: limits::MAX_HEADER_BYTES,
        });
    }
    if length > file_len - LENGTH_BYTES {
        return Err(truncated("the tensor directory", LENGTH_BYTES, length));
    }
    let mut json = Vec::new();
    reader.take(length).read_to_end(&mut json).map_err(failed)?;
    if (json.len() as u64) < length {
        return Err(truncated("the tensor directory", LENGTH_BYTES, length));
    }
    if json.first() != Some(&b'{') {
        let found = String::from_utf8_lossy(&json[..json.len().min(8)]).into_owned();
        let problem = format!("its directory begins with {found:?}, expected \"{{\"");
        return Err(FormatError::NotSafetensors { path: path.to_owned(), problem });
    }
    Ok(json)
}

/// One entry of the directory as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    #[serde(deserialize_with = "short_text")]
    dtype: String,
    shape: Shape,
    data_offsets: [u64; 2],
}

struct NamedEntry {
    name: String,
    entry: Entry,
}

/// Outermost dimension first.
struct Shape(Vec<u64>);

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Dimensions;
        impl<'de> Visitor<'de> for Dimensions {
            type Value = Shape;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a list of dimensions")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Shape, A::Error> {
                let mut shape = Vec::new();
                while let Some(dimension) = list.next_element()? {
                    if shape.len() >= limits::MAX_DIMENSIONS as usize {
                        let problem =
                            format_args!("a tensor with more than {} dimensions", limits::MAX_DIMENSIONS);
                        return Err(serde::de::Error::custom(problem));
                    }
                    shape.push(dimension);
                }
                Ok(Shape(shape))
            }
        }
        deserializer.deserialize_seq(Dimensions)
    }
}

/// Names of element types are short; a long text is not kept for a message.
fn short_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.len() > 32 { Err(serde::de::Error::custom("a dtype of more than 32 bytes")) } else { Ok(text) }
}

/// Reads the whole directory.
struct Directory;

impl<'de> Visitor<'de> for Directory {
    type Value = Vec<NamedEntry>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(name) = object.next_key::<String>()? {
            if name == METADATA_KEY {
                object.next_value::<IgnoredAny>()?;
                continue;
            }
            if name.is_empty() || name.len() as u64 > limits::MAX_TENSOR_NAME_BYTES {
                let (length, limit) = (name.len(), limits::MAX_TENSOR_NAME_BYTES);
                let problem = format_args!("a tensor name of {length} bytes; names have 1 to {limit}");
                return Err(serde::de::Error::custom(problem));
            }
            if entries.len() as u64 >= limits::MAX_TENSORS {
                return Err(serde::de::Error::custom(format_args!(
                    "more than {} tensors",
                    limits::MAX_TENSORS
                )));
            }
            entries.push(NamedEntry { name, entry: object.next_value()? });
        }
        Ok(entries)
    }
}

fn tensor_of(
    path: &Path,
    NamedEntry { name, entry }: NamedEntry,
    header_len: u64,
    file_len: u64,
) -> Result<TensorInfo, FormatError> {
    let Entry { dtype, shape: Shape(mut shape), data_offsets: [start, end] } = entry;
    let Some(&(_, tensor_type)) = ELEMENT_TYPES.iter().find(|&&(name, _)| name == dtype) else {
        let known = ELEMENT_TYPES.map(|(name, _)| name).join(", ");
        return Err(FormatError::UnknownElementType {
            path: path.to_owned(),
            tensor: name,
            found: dtype,
            known,
        });
    };
    // A scalar is a row of one element.
    if shape.is_empty() {
        shape.push(1);
    }
    shape.reverse();
    let byte_len = tensor::byte_len(path, &name, tensor_type, &shape)?;
    if end.checked_sub(start) != Some(byte_len) {
        shape.reverse();
        let problem = format!("has the offsets {start} to {end}; {dtype} {shape:?} takes {byte_len} bytes");
        return Err(FormatError::BadShape { path: path.to_owned(), tensor: name, problem });
    }
    let offset = header_len.checked_add(start);
    let bounded =
        offset.and_then(|offset| offset.checked_add(byte_len)).filter(|&end| end <= limits::MAX_FILE_BYTES);
    match (offset, bounded) {
        (Some(offset), Some(_)) => Ok(TensorInfo { name, tensor_type, shape, file: 0, offset, byte_len }),
        _ => Err(FormatError::TensorPastEnd {
            path: path.to_owned(),
            tensor: name,
            offset: start,
            byte_len,
            data_start: header_len,
            file_len,
        }),
    }
}

fn refuse_gap_or_overlap(
    path: &Path,
    before: Option<&TensorInfo>,
    tensor: &TensorInfo,
    expected: u64,
) -> Result<(), FormatError> {
    if tensor.offset > expected {
        let next = format!("tensor {:?}", tensor.name);
        let (offset, count) = (expected, tensor.offset - expected);
        return Err(FormatError::TensorGap { path: path.to_owned(), offset, count, next });
    }
    match before {
        Some(before) if tensor.offset < expected => Err(FormatError::TensorsOverlap {
            path: path.to_owned(),
            first: before.name.clone(),
            second: tensor.name.clone(),
            offset: tensor.offset,
        }),
        _ => Ok(()),
    }
}
