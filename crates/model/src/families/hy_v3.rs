//! Hunyuan 3 (`hy_v3`): GQA with a norm per head of q and k; dense layers first, then a sigmoid router with a bias for the choice
//! alone, renormalised weights times a factor, and a shared expert. Blocks for several tokens at once, which follow the
//! layers, are passed over.
//!
//! Reference: `modeling_hy_v3.py` of transformers.

use super::blocks::{self, Norms, SharedOptions};
use super::layer_kinds;
use super::sigmoid_router::sigmoid_router;
use super::{Family, Outline, rope::rope};
use crate::builder::SpecBuilder;
use crate::error::ModelError;
use crate::names::{Accepted, HuggingFace};
use crate::spec::RopePairing;

pub(super) const FAMILY: Family = Family {
    gguf: "hy_v3",
    hugging_face: &[HuggingFace {
        keys: KEYS,
        tensors: TENSORS,
        accepted: ACCEPTED,
        ..HuggingFace::usual("hy_v3")
    }],
    describe,
};

const KEYS: &[(&str, &str)] = &[
    ("expert_shared_count", "num_shared_experts"),
    ("expert_weights_scale", "router_scaling_factor"),
    ("feed_forward.layer_kinds", "mlp_layer_types"),
    ("leading_dense_block_count", "first_k_dense_replace"),
    ("nextn_predict_layers", "num_nextn_predict_layers"),
];

const TENSORS: &[(&str, &str)] = &[
    ("blk.exp_probs_b.bias", "mlp.expert_bias"),
    ("blk.ffn_gate_inp", "mlp.router.gate"),
    ("blk.ffn_gate_shexp", "mlp.shared_mlp.gate_proj"),
    ("blk.ffn_up_shexp", "mlp.shared_mlp.up_proj"),
    ("blk.ffn_down_shexp", "mlp.shared_mlp.down_proj"),
];

/// Sums are in f32 here, whatever the switch says.
const ACCEPTED: &[(&str, Accepted)] = &[
    ("enable_moe_fp32_combine", Accepted::Anything),
    ("mlp_layer_types", Accepted::Text(&["dense", "sparse"])),
];

fn describe(builder: &mut SpecBuilder<'_>) -> Result<Outline, ModelError> {
    let frame = blocks::frame(builder)?;
    let hidden = frame.hidden;
    let shape = blocks::head_shape(builder, hidden)?;
    let width = builder.dimension("expert_feed_forward_length")?;
    let router = sigmoid_router(builder)?;
    let shared_width = match builder.integer("expert_shared_count")? {
        Some(count) => count.min(1 << 16) as usize * width,
        None => builder.optional_dimension("expert_shared_feed_forward_length")?.unwrap_or(0),
    };
    let shared = SharedOptions { width: shared_width, gated: false };
    let options = blocks::MoeOptions {
        shared: (shared_width > 0).then_some(shared),
        ..router.options(builder, width)?
    };
    let dense = layer_kinds::dense(builder, frame.layer_count)?;
    let rope = rope(builder, RopePairing::HalfSplit, shape.head_dim)?;
    let layers =
        blocks::layers(builder, &frame, shape, Norms::PerHead, |builder, layer| match dense[layer] {
            true => blocks::dense(builder, layer, hidden),
            false => blocks::moe(builder, layer, hidden, options),
        })?;
    Ok(Outline { frame, ropes: vec![rope], layers })
}
