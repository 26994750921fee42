//! Model files for coldpress: metadata and the tensor directory, never tensor data.
//!
//! [`ModelFile::open`] takes a GGUF file (version 2 or 3, either byte order), any part of a split set, a
//! folder that holds one model, or a folder of Hugging Face (config.json and safetensors files). It returns typed metadata and, for each tensor, the file and byte range that
//! hold it. Files are hostile until shown otherwise: every length is compared with the file and with
//! [`limits`] before memory is taken, arithmetic is checked, and every fault is a named [`FormatError`].
//! [`GgufWriter`] writes files.
//!
//! Read next: `model_file.rs` (the whole), `gguf.rs` and `safetensors.rs` (one file), `split.rs` and `hugging_face.rs`
//! (sets), `limits.rs` (all bounds).

#![forbid(unsafe_code)]

mod cursor;
mod error;
mod gguf;
mod hugging_face;
mod jang;
mod json;
pub mod limits;
mod metadata;
mod model_file;
mod nearest;
mod ranges;
mod safetensors;
mod split;
mod tensor;
mod tensor_type;
mod value;
mod writer;

pub use cursor::ByteOrder;
pub use error::FormatError;
pub use gguf::GgufHeader;
pub use json::config_metadata;
pub use metadata::Metadata;
pub use model_file::{FileFormat, HeaderWatch, ModelFile, SourceFile};
pub use safetensors::SafetensorsHeader;
pub use tensor::TensorInfo;
pub use tensor_type::TensorType;
pub use value::{Array, ByteString, StringArray, Value, ValueType};
pub use writer::GgufWriter;
