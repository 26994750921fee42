//! Qwen3-MoE (`qwen3moe`): GQA with per-head q/k RMSNorm, softmax router with renormalised top-k, no shared expert.
//!
//! Reference: `modeling_qwen3_moe.py` of transformers.

use super::{Outline, blocks, rope};
use crate::builder::SpecBuilder;
use crate::error::ModelError;
use crate::spec::{LayerSpec, RopePairing};

pub(super) fn describe(builder: &mut SpecBuilder<'_>) -> Result<Outline, ModelError> {
    let frame = blocks::frame(builder)?;
    let hidden = frame.hidden;
    let shape = blocks::head_shape(builder, hidden)?;
    let width = builder.dimension("expert_feed_forward_length")?;
    let options = blocks::moe_options(builder, width, true)?;
    let rope = rope(builder, RopePairing::HalfSplit, shape.head_dim)?;
    let mut layers = Vec::with_capacity(frame.layer_count.min(1024));
    for layer in 0..frame.layer_count {
        layers.push(LayerSpec {
            attention_norm: builder.vector(&format!("blk.{layer}.attn_norm.weight"), hidden)?,
            attention: blocks::attention(builder, layer, hidden, shape, true)?,
            feed_forward_norm: builder.vector(&format!("blk.{layer}.ffn_norm.weight"), hidden)?,
            feed_forward: blocks::moe(builder, layer, hidden, options)?,
        });
    }
    Ok(Outline { frame, rope, layers })
}
