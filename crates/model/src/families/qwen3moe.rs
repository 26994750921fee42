//! Qwen3-MoE (`qwen3moe`): GQA with per-head q/k RMSNorm, softmax router with renormalised top-k, no shared expert.
//!
//! Reference: `modeling_qwen3_moe.py` of transformers.

use super::{Outline, blocks, rope};
use crate::builder::SpecBuilder;
use crate::error::ModelError;
use crate::spec::RopePairing;

pub(super) fn describe(builder: &mut SpecBuilder<'_>) -> Result<Outline, ModelError> {
    let frame = blocks::frame(builder)?;
    let hidden = frame.hidden;
    let shape = blocks::head_shape(builder, hidden)?;
    let width = builder.dimension("expert_feed_forward_length")?;
    let options = blocks::moe_options(builder, width, true)?;
    let rope = rope(builder, RopePairing::HalfSplit, shape.head_dim)?;
    let layers = blocks::layers(builder, &frame, shape, true, |builder, layer| {
        blocks::moe(builder, layer, hidden, options)
    })?;
    Ok(Outline { frame, rope, layers })
}
