//! Qwen3-MoE (`qwen3moe`): GQA with per-head q/k RMSNorm, softmax router, no shared expert. The published models, and so all
//! GGUF files, divide the weights of the chosen experts by their sum.
//!
//! Reference: `modeling_qwen3_moe.py` of transformers.

use super::blocks::{self, Norms, Recipe};
use super::{Family, Outline};
use crate::builder::SpecBuilder;
use crate::error::ModelError;
use crate::names::{Accepted, HuggingFace};
use crate::spec::RopePairing;

pub(super) const FAMILY: Family = Family {
    gguf: "qwen3moe",
    hugging_face: &[HuggingFace { accepted: ACCEPTED, ..HuggingFace::usual("qwen3_moe") }],
    describe,
};

/// The width of dense layers, of which there are none; a window that is switched off.
const ACCEPTED: &[(&str, Accepted)] = &[
    ("intermediate_size", Accepted::Anything),
    ("decoder_sparse_step", Accepted::Integer(1)),
    ("sliding_window", Accepted::Anything),
];

fn describe(builder: &mut SpecBuilder<'_>) -> Result<Outline, ModelError> {
    let width = builder.dimension("expert_feed_forward_length")?;
    let renormalize = builder.flag("expert_weights_norm")?.unwrap_or(builder.by_source(true, false));
    let options = blocks::moe_options(builder, width, Recipe::softmax(renormalize))?;
    blocks::decoder(builder, RopePairing::HalfSplit, Norms::PerHead, |builder, layer, hidden| {
        blocks::moe(builder, layer, hidden, options)
    })
}
