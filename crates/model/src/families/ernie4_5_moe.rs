//! ERNIE 4.5 MoE (`ernie4_5-moe`): GQA with interleaved rotary pairs, dense layers first, then a softmax router with a bias for
//! the choice alone and renormalised weights, and shared experts as one network.
//!
//! Reference: `modeling_ernie4_5_moe.py` of transformers.

use super::blocks::{self, Norms, Recipe, SharedOptions};
use super::{Family, Outline, rope::rope};
use crate::builder::SpecBuilder;
use crate::error::ModelError;
use crate::names::{Accepted, HuggingFace};
use crate::spec::{Renormalize, RopePairing, RouterScores};

pub(super) const FAMILY: Family = Family {
    gguf: "ernie4_5-moe",
    hugging_face: &[HuggingFace {
        keys: KEYS,
        tensors: TENSORS,
        accepted: ACCEPTED,
        ..HuggingFace::usual("ernie4_5_moe")
    }],
    describe,
};

const KEYS: &[(&str, &str)] = &[
    ("expert_count", "moe_num_experts"),
    ("expert_used_count", "moe_k"),
    ("expert_shared_count", "moe_num_shared_experts"),
    ("expert_weights_norm_min", "moe_norm_min"),
    ("leading_dense_block_count", "moe_layer_start_index"),
    ("interleave_moe_layer_step", "moe_layer_interval"),
    ("last_moe_layer", "moe_layer_end_index"),
];

const TENSORS: &[(&str, &str)] = &[
    ("blk.exp_probs_b.bias", "mlp.moe_statics.e_score_correction_bias"),
    ("blk.ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
    ("blk.ffn_up_shexp", "mlp.shared_experts.up_proj"),
    ("blk.ffn_down_shexp", "mlp.shared_experts.down_proj"),
];

/// About training: capacities, that the bias was learnt, and what predicts later tokens.
const ACCEPTED: &[(&str, Accepted)] = &[
    ("moe_capacity", Accepted::Anything),
    ("moe_gate", Accepted::Text(&["topk"])),
    ("moe_use_aux_free", Accepted::Anything),
    ("num_nextn_predict_layers", Accepted::Anything),
];

/// Lower bound of the sum of weights in the published models, which GGUF files do not state.
const NORM_MIN: f32 = 1e-12;

fn describe(builder: &mut SpecBuilder<'_>) -> Result<Outline, ModelError> {
    let frame = blocks::frame(builder)?;
    let hidden = frame.hidden;
    let shape = blocks::head_shape(builder, hidden)?;
    let width = builder.dimension("expert_feed_forward_length")?;
    let shared_count = builder.integer("expert_shared_count")?.unwrap_or(0).min(1 << 16) as usize;
    let shared_width =
        match builder.by_source(builder.optional_dimension("expert_shared_feed_forward_length")?, None) {
            Some(stated) => stated,
            None => shared_count * width,
        };
    let first = builder.integer("leading_dense_block_count")?.unwrap_or(0);
    // MLX leaves the bias out, and computes without.
    let is_stacked = builder.has(&format!("blk.{first}.ffn_gate_exps.weight"));
    let is_mlx = builder.by_source(false, is_stacked);
    let recipe = Recipe {
        scores: RouterScores::Softmax,
        renormalize: Renormalize::SumAtLeast(builder.float_or("expert_weights_norm_min", NORM_MIN)?),
        choice_bias: !is_mlx || builder.has(&format!("blk.{first}.exp_probs_b.bias")),
    };
    let options = blocks::MoeOptions {
        shared: (shared_count > 0).then_some(SharedOptions { width: shared_width, gated: false }),
        ..blocks::moe_options(builder, width, recipe)?
    };
    let step = builder.integer("interleave_moe_layer_step")?.unwrap_or(1).max(1);
    let last = builder.metadata().opt_i64(&builder.key("last_moe_layer")?)?;
    // Negative: up to the last layer.
    let last = last.and_then(|last| u64::try_from(last).ok()).unwrap_or(u64::MAX);
    let is_routed = |layer: u64| layer >= first && layer <= last && (layer + 1).is_multiple_of(step);
    let rope = rope(builder, RopePairing::Interleaved, shape.head_dim)?;
    let layers = blocks::layers(builder, &frame, shape, Norms::None, |builder, layer| {
        if is_routed(layer as u64) {
            blocks::moe(builder, layer, hidden, options)
        } else {
            blocks::dense(builder, layer, hidden)
        }
    })?;
    Ok(Outline { frame, ropes: vec![rope], layers })
}
