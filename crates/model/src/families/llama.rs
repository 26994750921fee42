//! Llama (`llama`): GQA with interleaved rotary pairs and a dense gated network, or, where the file states an expert
//! count, Mixtral's softmax router with renormalised top-k. GGUF converters permute q and k of these models for the
//! interleaved pairing.
//!
//! Reference: `modeling_llama.py` and `modeling_mixtral.py` of transformers.

use super::{Outline, blocks, rope};
use crate::builder::SpecBuilder;
use crate::error::ModelError;
use crate::spec::{FeedForwardSpec, RopePairing};

pub(super) fn describe(builder: &mut SpecBuilder<'_>) -> Result<Outline, ModelError> {
    let frame = blocks::frame(builder)?;
    let hidden = frame.hidden;
    let shape = blocks::head_shape(builder, hidden)?;
    let width = builder.dimension("feed_forward_length")?;
    let experts_key = builder.key("expert_count");
    let routed = builder.metadata().opt_u64(&experts_key)?.unwrap_or(0) > 0;
    let options = if routed {
        let width = builder.optional_dimension("expert_feed_forward_length")?.unwrap_or(width);
        Some(blocks::moe_options(builder, width, true)?)
    } else {
        None
    };
    let rope = rope(builder, RopePairing::Interleaved, shape.head_dim)?;
    let layers = blocks::layers(builder, &frame, shape, false, |builder, layer| match options {
        Some(options) => blocks::moe(builder, layer, hidden, options),
        None => Ok(FeedForwardSpec::Dense(blocks::gated(builder, layer, "", hidden, width)?)),
    })?;
    Ok(Outline { frame, rope, layers })
}
