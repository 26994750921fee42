//! OLMoE (`olmoe`): attention with an RMSNorm over the whole row of queries and of keys, softmax router, no shared expert. GGUF
//! files leave the weights of the chosen experts as they are.
//!
//! Reference: `modeling_olmoe.py` of transformers.

use super::blocks::{self, Norms, Recipe};
use super::{Family, Outline};
use crate::builder::SpecBuilder;
use crate::error::ModelError;
use crate::names::HuggingFace;
use crate::spec::RopePairing;

pub(super) const FAMILY: Family =
    Family { gguf: "olmoe", hugging_face: &[HuggingFace::usual("olmoe")], describe };

fn describe(builder: &mut SpecBuilder<'_>) -> Result<Outline, ModelError> {
    let width = builder.dimension("feed_forward_length")?;
    let renormalize = builder.flag("expert_weights_norm")?.unwrap_or(false);
    let options = blocks::moe_options(builder, width, Recipe::softmax(renormalize))?;
    blocks::decoder(builder, RopePairing::HalfSplit, Norms::PerRow, |builder, layer, hidden| {
        blocks::moe(builder, layer, hidden, options)
    })
}
