//! Granite-MoE (`granitemoe`): GQA, a softmax over the chosen experts, factors on embeddings, attention, residuals and logits.
//! Checkpoints hold gate and up of all experts in one tensor. GGUF converters permute q and k for interleaved rotary pairs.
//!
//! Reference: `modeling_granitemoe.py` of transformers.

use super::blocks::{self, Norms, Recipe};
use super::{Family, Outline, rope::rope};
use crate::builder::SpecBuilder;
use crate::error::ModelError;
use crate::names::HuggingFace;
use crate::spec::{AttentionKind, Renormalize, RopePairing, RouterScores};

pub(super) const FAMILY: Family = Family {
    gguf: "granitemoe",
    hugging_face: &[HuggingFace {
        keys: KEYS,
        tensors: TENSORS,
        mlx_tensors: MLX_TENSORS,
        ..HuggingFace::usual("granitemoe")
    }],
    describe,
};

const KEYS: &[(&str, &str)] = &[
    ("attention.scale", "attention_multiplier"),
    ("embedding_scale", "embedding_multiplier"),
    ("residual_scale", "residual_multiplier"),
    ("logit_scale", "logits_scaling"),
];

/// Names of MLX where they are others.
pub(super) const MLX_TENSORS: &[(&str, &str)] = &[
    ("blk.ffn_gate_exps", "block_sparse_moe.switch_mlp.gate_proj"),
    ("blk.ffn_up_exps", "block_sparse_moe.switch_mlp.up_proj"),
    ("blk.ffn_down_exps", "block_sparse_moe.switch_mlp.down_proj"),
];

const TENSORS: &[(&str, &str)] = &[
    ("blk.ffn_gate_inp", "block_sparse_moe.router.layer"),
    ("blk.ffn_gate_up_exps", "block_sparse_moe.input_linear"),
    ("blk.ffn_down_exps", "block_sparse_moe.output_linear"),
];

fn describe(builder: &mut SpecBuilder<'_>) -> Result<Outline, ModelError> {
    let mut frame = blocks::frame(builder)?;
    let hidden = frame.hidden;
    let shape = blocks::head_shape(builder, hidden)?;
    frame.embedding_scale = builder.positive_or("embedding_scale", 1.0)?;
    frame.residual_scale = builder.positive_or("residual_scale", 1.0)?;
    // Both kinds of files state what logits are divided by.
    frame.logit_scale = 1.0 / builder.positive_or("logit_scale", 1.0)?;
    let attention_scale = builder.positive("attention.scale")?;
    let width = builder.dimension("feed_forward_length")?;
    let recipe =
        Recipe { scores: RouterScores::SoftmaxOfChosen, renormalize: Renormalize::No, choice_bias: false };
    let options = blocks::moe_options(builder, width, recipe)?;
    let pairing = builder.by_source(RopePairing::Interleaved, RopePairing::HalfSplit);
    let rope = rope(builder, pairing, shape.head_dim)?;
    let mut layers = blocks::layers(builder, &frame, shape, Norms::None, |builder, layer| {
        blocks::moe(builder, layer, hidden, options)
    })?;
    for layer in &mut layers {
        if let AttentionKind::Grouped(attention) = &mut layer.attention {
            attention.scale = attention_scale;
        }
    }
    Ok(Outline { frame, ropes: vec![rope], layers })
}
