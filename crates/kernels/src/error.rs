//! What can be wrong with bytes and shapes handed to this crate.

use crate::WeightFormat;

/// Refusals of this crate. Wrong lengths between arguments of one call are bugs of the caller and panic instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// The row length is not a whole number of blocks.
    #[error("{format} rows hold whole blocks of {} elements, but the row has {columns} columns", format.block_elements())]
    PartialBlock {
        /// Format of the weights.
        format: WeightFormat,
        /// Columns asked for.
        columns: usize,
    },
    /// Packed bytes do not have the length of their shape.
    #[error(
        "a packed {format} matrix of {rows} rows and {columns} columns takes {expected} bytes, but {found} were given"
    )]
    WrongLength {
        /// Format of the weights.
        format: WeightFormat,
        /// Rows of the matrix.
        rows: usize,
        /// Columns of the matrix.
        columns: usize,
        /// Bytes that the shape takes.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// There is no quantiser for the format.
    #[error("there is no quantiser for {format}; use F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1 or MXFP4")]
    CannotQuantize {
        /// Format asked for.
        format: WeightFormat,
    },
}
