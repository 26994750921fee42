//! MiniMax-M2 (`minimax-m2`): GQA with an RMSNorm over all heads of q and over all of k, half of each head rotated, and in every layer
//! a sigmoid router with a bias for the choice alone and renormalised weights, without shared expert.
//!
//! Reference: `modeling_minimax_m2.py` of transformers.

use super::blocks::{self, Norms};
use super::sigmoid_router::sigmoid_router;
use super::{Family, Outline, rope::rope};
use crate::builder::SpecBuilder;
use crate::error::ModelError;
use crate::names::{Accepted, HuggingFace};
use crate::spec::{Renormalize, RopePairing};

pub(super) const FAMILY: Family = Family {
    gguf: "minimax-m2",
    hugging_face: &[HuggingFace {
        keys: KEYS,
        tensors: TENSORS,
        accepted: ACCEPTED,
        ..HuggingFace::usual("minimax_m2")
    }],
    describe,
};

const KEYS: &[(&str, &str)] =
    &[("expert_feed_forward_length", "intermediate_size"), ("rope.dimension_count", "rotary_dim")];

const TENSORS: &[(&str, &str)] = &[
    ("blk.ffn_gate_inp", "block_sparse_moe.gate"),
    ("blk.exp_probs_b.bias", "block_sparse_moe.e_score_correction_bias"),
    ("blk.ffn_gate.{e}", "block_sparse_moe.experts.{e}.w1"),
    ("blk.ffn_up.{e}", "block_sparse_moe.experts.{e}.w3"),
    ("blk.ffn_down.{e}", "block_sparse_moe.experts.{e}.w2"),
];

/// What the published configuration has beyond transformers' one: switches of MiniMax-Text-01 in the position of this model, and
/// the number of blocks for several tokens at once, which the checkpoint does not hold.
const ACCEPTED: &[(&str, Accepted)] = &[
    ("attn_type_list", Accepted::Integer(1)),
    ("layernorm_full_attention_beta", Accepted::Integer(1)),
    ("layernorm_linear_attention_beta", Accepted::Integer(1)),
    ("layernorm_mlp_beta", Accepted::Integer(1)),
    ("mlp_intermediate_size", Accepted::Anything),
    ("mtp_transformer_layers", Accepted::Anything),
    ("num_mtp_modules", Accepted::Anything),
    ("qk_norm_type", Accepted::Text(&["per_layer"])),
    ("scoring_func", Accepted::Text(&["sigmoid"])),
    ("shared_moe_mode", Accepted::Anything),
    ("use_mtp", Accepted::Anything),
    ("use_qk_norm", Accepted::Flag(true)),
    ("use_routing_bias", Accepted::Flag(true)),
];

fn describe(builder: &mut SpecBuilder<'_>) -> Result<Outline, ModelError> {
    let frame = blocks::frame(builder)?;
    let hidden = frame.hidden;
    let shape = blocks::head_shape(builder, hidden)?;
    let width = builder.dimension("expert_feed_forward_length")?;
    let mut router = sigmoid_router(builder)?;
    router.recipe.renormalize = Renormalize::SumAtLeast(0.0);
    let options = router.options(builder, width)?;
    let rope = rope(builder, RopePairing::HalfSplit, shape.head_dim)?;
    // Checkpoints may say it as a number and as a part of a head.
    if let Some(stated) = builder.optional_dimension("rope.dimension_count")?
        && stated != rope.dimensions
    {
        let key = builder.key("rope.dimension_count")?;
        return Err(
            builder.bad(format!("{key} is {stated}, but {} elements are to be rotated", rope.dimensions))
        );
    }
    let layers = blocks::layers(builder, &frame, shape, Norms::PerRow, |builder, layer| {
        blocks::moe(builder, layer, hidden, options)
    })?;
    Ok(Outline { frame, ropes: vec![rope], layers })
}
