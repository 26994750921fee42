//! What bundles of JANG have in a folder beside config.json and the weights: a configuration of their own, and the numbers that their
//! matrices were rotated and coded with.
//!
//! Both become metadata: the keys of the configuration behind `jang_config.`, whatever the file is called, and each array of
//! `jangtq_runtime.safetensors` behind `jangtq_runtime.`. Refuses: arrays that are no vectors of F32, and large files; these arrays have a
//! number for each input of a matrix at most.

use std::io::Read;
use std::path::Path;

use crate::error::FormatError;
use crate::hugging_face::read_whole;
use crate::json::config_metadata;
use crate::limits;
use crate::metadata::Metadata;
use crate::model_file::HeaderWatch;
use crate::safetensors::SafetensorsHeader;
use crate::tensor_type::TensorType;
use crate::value::{Array, Value};

/// Names of the configuration, the present one first.
const CONFIGURATIONS: [&str; 3] = ["jang_config.json", "jjqf_config.json", "jang_cfg.json"];
/// The numbers that matrices were rotated and coded with.
pub(crate) const RUNTIME: &str = "jangtq_runtime.safetensors";

/// Adds to `metadata` what the folder has of both.
///
/// # Errors
/// One of them cannot be read, or is not what it should be.
pub(crate) fn with_side_files(
    metadata: Metadata,
    folder: &Path,
    watch: &dyn HeaderWatch,
) -> Result<Metadata, FormatError> {
    let metadata = match CONFIGURATIONS.iter().map(|name| folder.join(name)).find(|path| path.exists()) {
        Some(path) => {
            let (_, json) = read_whole(&path, limits::MAX_CONFIG_BYTES, watch)?;
            metadata.with("jang_config.", config_metadata(&path, &json)?)?
        }
        None => metadata,
    };
    let path = folder.join(RUNTIME);
    if !path.exists() {
        return Ok(metadata);
    }
    let (_, bytes) = read_whole(&path, limits::MAX_CONFIG_BYTES, watch)?;
    metadata.with("jangtq_runtime.", Metadata::new(&path, arrays_of(&path, &bytes)?)?)
}

/// The arrays of a safetensors file.
pub(crate) fn arrays_of(path: &Path, bytes: &[u8]) -> Result<Vec<(String, Value)>, FormatError> {
    let header = SafetensorsHeader::read(&mut bytes.take(u64::MAX), bytes.len() as u64, path)?;
    let array = |tensor: crate::TensorInfo| {
        if tensor.tensor_type != TensorType::F32 || tensor.shape.len() != 1 {
            let problem =
                format!("has type {} and shape {:?}, not a vector of F32", tensor.tensor_type, tensor.shape);
            return Err(FormatError::BadShape { path: path.to_owned(), tensor: tensor.name, problem });
        }
        let bytes = &bytes[tensor.offset as usize..][..tensor.byte_len as usize];
        let values = bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        Ok((tensor.name, Value::Array(Array::Float32(values))))
    };
    header.tensors.into_iter().map(array).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(directory: &str, data: &[f32]) -> Vec<u8> {
        let mut bytes = (directory.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(directory.as_bytes());
        bytes.extend(data.iter().flat_map(|value| value.to_le_bytes()));
        bytes
    }

    #[test]
    fn arrays_are_vectors_of_numbers() {
        let path = Path::new("jangtq_runtime.safetensors");
        let one = r#"{"signs.2.42":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
        let arrays = arrays_of(path, &file(one, &[1.0, -1.0])).expect("a file");
        assert_eq!(arrays, [("signs.2.42".to_owned(), Value::Array(Array::Float32(vec![1.0, -1.0])))]);
        for (from, to) in [("F32", "I32"), ("[2]", "[1,2]"), ("[0,8]", "[0,80]")] {
            let error = arrays_of(path, &file(&one.replace(from, to), &[1.0, -1.0])).expect_err(to);
            assert!(error.to_string().contains("signs.2.42"), "{error}");
        }
    }
}
