//! Qwen3-MoE (`qwen3moe`): GQA with per-head q/k RMSNorm, softmax router, no shared expert. The published models, and so all
//! GGUF files, divide the weights of the chosen experts by their sum.
//!
//! Reference: `modeling_qwen3_moe.py` of transformers.

use super::blocks::{self, Norms, Recipe};
use super::layer_kinds::{self, Windows};
use super::rope::{SECTIONS, rope};
use super::{Family, Outline};
use crate::builder::SpecBuilder;
use crate::error::ModelError;
use crate::names::{Accepted, HuggingFace, joined};
use crate::spec::RopePairing;

pub(super) const FAMILY: Family = Family {
    gguf: "qwen3moe",
    hugging_face: &[HuggingFace {
        keys: layer_kinds::QWEN_KEYS,
        accepted: ACCEPTED,
        ..HuggingFace::usual("qwen3_moe")
    }],
    describe,
};

/// The text part of Qwen3-VL: the same, with sections of the rotary embedding.
pub(super) const WITH_PICTURES: Family = Family {
    gguf: "qwen3vlmoe",
    hugging_face: &[HuggingFace {
        keys: layer_kinds::QWEN_KEYS,
        accepted: &joined::<_, 6>(ACCEPTED, SECTIONS),
        ..HuggingFace::usual("qwen3_vl_moe_text")
    }],
    describe,
};

/// The width of dense layers, of which there may be none; a window that may be switched off, and else is that of all layers.
const ACCEPTED: &[(&str, Accepted)] =
    &[("intermediate_size", Accepted::Anything), ("sliding_window", Accepted::Anything)];

fn describe(builder: &mut SpecBuilder<'_>) -> Result<Outline, ModelError> {
    let width = builder.dimension("expert_feed_forward_length")?;
    let renormalize = builder.flag("expert_weights_norm")?.unwrap_or(builder.by_source(true, false));
    let options = blocks::moe_options(builder, width, Recipe::softmax(renormalize))?;
    let frame = blocks::frame(builder)?;
    let hidden = frame.hidden;
    let shape = blocks::head_shape(builder, hidden)?;
    let rope = rope(builder, RopePairing::HalfSplit, shape.head_dim)?;
    let dense = layer_kinds::dense_between(builder, frame.layer_count)?;
    let layers =
        blocks::layers(builder, &frame, shape, Norms::PerHead, |builder, layer| match dense[layer] {
            true => blocks::dense(builder, layer, hidden),
            false => blocks::moe(builder, layer, hidden, options),
        })?;
    layer_kinds::with_windows(builder, Outline { frame, ropes: vec![rope], layers }, Windows::All)
}
