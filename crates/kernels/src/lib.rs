//! Quantised block formats, packed layouts and SIMD kernels.
//!
//! This crate owns all arithmetic on weights and activations: what a block of bytes means ([`blocks`]), how rows are
//! interleaved for the kernels ([`layout`]), int8 activations ([`activations`]), matrix products ([`mod@matmul`]) and the
//! vector operations of a layer ([`vector`], [`attention`]). Plain Rust code defines every result; each instruction set
//! gives the same bits. It opens no files, reads no environment and keeps no threads: parallel loops run on the
//! [`coldpress_workers::Team`] that the caller passes in. Start with [`Kernels`] and [`matmul::matmul`].
#![deny(unsafe_code)]

mod error;
mod format;
mod isa;
mod prefetch;

pub mod activations;
pub mod attention;
pub mod blocks;
pub mod coding;
pub mod layout;
pub mod matmul;
pub mod probe;
pub mod recurrent;
pub mod vector;

pub use activations::{ActivationBlock, InputRows, blocks_per_row, quantize_rows, rms_norm_and_quantize};
pub use coding::{Coding, Levels, ScaleFormat, ScaleSource};
pub use error::KernelError;
pub use format::WeightFormat;
pub use isa::{Isa, Kernels};
pub use layout::{
    MatrixRef, pack_column, pack_group, pack_rows, packed_bytes, packed_group_bytes, unpack_row,
};
pub use matmul::{Activation, GatedJob, MatmulJob, gated, matmul};
