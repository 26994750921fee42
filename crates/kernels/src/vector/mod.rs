//! Vector operations of a layer: activations, norms, softmax, rotary embeddings, rotation of heads, f16 rows.
//!
//! Owns the arithmetic between the matrix products: f32 in, f32 out, row-major. Every operation is written
//! once over sixteen lanes (`simd.rs`) and compiled per instruction set (`dispatch.rs`); all give the same
//! bits. Lengths are asserted at the boundary; nothing allocates except [`rope_inverse_frequencies`].
//! Functions that take a `Team` cut their rows over it when there is enough work and run inline otherwise.

pub(crate) mod dispatch;
mod elementwise;
pub(crate) mod exponential;
mod hadamard;
mod half_rows;
mod reduce;
mod rope;
pub(crate) mod simd;
#[cfg(target_arch = "aarch64")]
pub(crate) mod simd_neon;
#[cfg(target_arch = "x86_64")]
pub(crate) mod simd_x86;
pub(crate) mod spans;

pub(crate) use elementwise::add_on_this_thread;
pub use elementwise::{
    add_assign, clamped_swiglu_in_place, exp, geglu_in_place, scale_add, sigmoid, silu, softplus,
    swiglu_in_place,
};
pub use hadamard::{Blocks, Rotation, rotate_heads, rotate_heads_back, rotation_block};
pub use half_rows::convert_to_f16;
pub(crate) use reduce::rms_norm_rows;
pub use reduce::{dot, max, rms_norm, rms_norm_in_place, softmax};
pub use rope::{RopeRows, rope_half_split, rope_interleaved, rope_inverse_frequencies, rope_table};
