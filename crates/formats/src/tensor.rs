//! Where one tensor lies, and the arithmetic that turns a type and a shape into bytes.
//!
//! All products are checked. The reader and the writer use the same function, so what one refuses the other
//! does not produce.

use std::path::Path;

use crate::error::FormatError;
use crate::limits;
use crate::tensor_type::TensorType;

/// One tensor of a model: its name, its type and shape, and the bytes of a file that hold it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name, unique in the model.
    pub name: String,
    /// How the elements are stored.
    pub tensor_type: TensorType,
    /// 1 to 4 dimensions, none of them 0, in GGUF order: `shape[0]` is the innermost, the length of a row.
    pub shape: Vec<u64>,
    /// Index of the file in [`crate::ModelFile::files`].
    pub file: usize,
    /// First byte, counted from the start of that file.
    pub offset: u64,
    /// Number of bytes; `offset + byte_len` is within the file.
    pub byte_len: u64,
}

impl TensorInfo {
    /// Number of elements of a row, `shape[0]`.
    pub fn columns(&self) -> u64 {
        self.shape[0]
    }

    /// Number of rows: the product of all dimensions but the first.
    pub fn rows(&self) -> u64 {
        // Cannot wrap: the product of all dimensions was checked when the tensor was read.
        self.shape[1..].iter().product()
    }

    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.columns() * self.rows()
    }

    /// Bytes of one row.
    pub fn row_bytes(&self) -> u64 {
        self.byte_len / self.rows()
    }
}

/// Bytes that a tensor of this type and shape takes, or what is wrong with the shape.
pub(crate) fn byte_len(
    path: &Path,
    tensor: &str,
    tensor_type: TensorType,
    shape: &[u64],
) -> Result<u64, FormatError> {
    let bad =
        |problem: String| FormatError::BadShape { path: path.to_owned(), tensor: tensor.to_owned(), problem };
    if shape.is_empty() || shape.len() > limits::MAX_DIMENSIONS as usize {
        return Err(bad(too_many_dimensions(shape.len() as u64)));
    }
    if shape.contains(&0) {
        return Err(bad(format!("has an empty dimension: its shape is {shape:?}")));
    }
    let columns = shape[0];
    if !columns.is_multiple_of(tensor_type.block_elements()) {
        return Err(FormatError::RowNotWholeBlocks {
            path: path.to_owned(),
            tensor: tensor.to_owned(),
            columns,
            type_name: tensor_type.name(),
            block_elements: tensor_type.block_elements(),
        });
    }
    // The element count is held to 63 bits, as in ggml, whatever the block size makes of it in bytes.
    let elements = shape.iter().try_fold(1_u64, |product, &dimension| product.checked_mul(dimension));
    elements
        .filter(|&elements| elements <= i64::MAX as u64)
        .and_then(|elements| (elements / tensor_type.block_elements()).checked_mul(tensor_type.block_bytes()))
        .ok_or_else(|| bad(format!("is too large to address: its shape is {shape:?}")))
}

/// The problem text for a number of dimensions that is 0 or above the limit.
pub(crate) fn too_many_dimensions(found: u64) -> String {
    format!("has {found} dimensions; tensors have 1 to {}", limits::MAX_DIMENSIONS)
}
