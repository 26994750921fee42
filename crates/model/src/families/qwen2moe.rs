//! Qwen2-MoE (`qwen2moe`): GQA with biases on q, k and v, softmax router without renormalisation, a shared expert
//! behind a sigmoid gate.
//!
//! Reference: `modeling_qwen2_moe.py` of transformers.

use super::{Outline, blocks, rope};
use crate::builder::SpecBuilder;
use crate::error::ModelError;
use crate::spec::RopePairing;

pub(super) fn describe(builder: &mut SpecBuilder<'_>) -> Result<Outline, ModelError> {
    let frame = blocks::frame(builder)?;
    let hidden = frame.hidden;
    let shape = blocks::head_shape(builder, hidden)?;
    let dense_width = builder.optional_dimension("feed_forward_length")?;
    let top_k = builder.dimension("expert_used_count")?;
    // Files from before these keys existed give both widths through feed_forward_length.
    let expert_width = match builder.optional_dimension("expert_feed_forward_length")? {
        Some(width) => width,
        None => dense_width.map(|width| width / top_k).ok_or_else(|| {
            builder.bad("neither expert_feed_forward_length nor feed_forward_length is present")
        })?,
    };
    let shared_width = match builder.optional_dimension("expert_shared_feed_forward_length")? {
        Some(width) => width,
        None => dense_width.ok_or_else(|| {
            builder.bad("neither expert_shared_feed_forward_length nor feed_forward_length is present")
        })?,
    };
    let options = blocks::MoeOptions {
        shared_width: Some(shared_width),
        ..blocks::moe_options(builder, expert_width, false)?
    };
    let rope = rope(builder, RopePairing::HalfSplit, shape.head_dim)?;
    let layers = blocks::layers(builder, &frame, shape, false, |builder, layer| {
        blocks::moe(builder, layer, hidden, options)
    })?;
    Ok(Outline { frame, rope, layers })
}
