//! GLM-4.5, 4.6 and 4.7 (`glm4moe`): GQA with biases on q, k and v, a norm per head of q and k in the larger ones, half of each head
//! rotated; dense layers first, then a sigmoid router with a bias for the choice alone and a shared expert. Blocks for
//! several tokens at once, which follow the layers, are passed over: they change no logit.
//!
//! Reference: `modeling_glm4_moe.py` of transformers.

use super::blocks::{self, Norms, SharedOptions};
use super::rope::{SECTIONS, rope};
use super::sigmoid_router::{self, sigmoid_router};
use super::{Family, Outline};
use crate::builder::SpecBuilder;
use crate::error::ModelError;
use crate::names::HuggingFace;
use crate::spec::{AttentionKind, LayerSpec, RopePairing};

pub(super) const FAMILY: Family = Family {
    gguf: "glm4moe",
    hugging_face: &[
        HuggingFace { keys: KEYS, tensors: TENSORS, ..HuggingFace::usual("glm4_moe") },
        HuggingFace {
            keys: KEYS,
            tensors: TENSORS,
            accepted: SECTIONS,
            ..HuggingFace::usual("glm4v_moe_text")
        },
    ],
    describe,
};

const KEYS: &[(&str, &str)] = &[
    sigmoid_router::EXPERT_COUNT,
    sigmoid_router::GROUP_COUNT,
    sigmoid_router::GROUPS_USED,
    sigmoid_router::SCALE,
    ("attention.head_norms", "use_qk_norm"),
    ("expert_shared_count", "n_shared_experts"),
    ("leading_dense_block_count", "first_k_dense_replace"),
    ("nextn_predict_layers", "num_nextn_predict_layers"),
];

/// GGUF calls the norm before the second half of a layer by the name of checkpoints.
const TENSORS: &[(&str, &str)] = &[
    ("blk.post_attention_norm", "post_attention_layernorm"),
    ("blk.exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),
    ("blk.ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
    ("blk.ffn_up_shexp", "mlp.shared_experts.up_proj"),
    ("blk.ffn_down_shexp", "mlp.shared_experts.down_proj"),
];

/// Rotated part of a head where a configuration does not say.
const ROTATED: f32 = 0.5;

fn describe(builder: &mut SpecBuilder<'_>) -> Result<Outline, ModelError> {
    let frame = blocks::frame(builder)?;
    let hidden = frame.hidden;
    let shape = blocks::head_shape(builder, hidden)?;
    let normed = builder.by_source(
        builder.has("blk.0.attn_q_norm.weight"),
        builder.flag("attention.head_norms")?.unwrap_or(false),
    );
    let norms = if normed { Norms::PerHead } else { Norms::None };
    let width = builder.dimension("expert_feed_forward_length")?;
    let router = sigmoid_router(builder)?;
    let shared_count = builder.integer("expert_shared_count")?.unwrap_or(0).min(1 << 16) as usize;
    let shared = SharedOptions { width: shared_count * width, gated: false };
    let options = blocks::MoeOptions {
        shared: (shared_count > 0).then_some(shared),
        ..router.options(builder, width)?
    };
    let dense_layers = builder.integer("leading_dense_block_count")?.unwrap_or(0);
    let mut rope = rope(builder, RopePairing::HalfSplit, shape.head_dim)?;
    if builder.by_source(false, builder.optional_float("rope.partial_factor")?.is_none()) {
        rope.dimensions = (shape.head_dim as f32 * ROTATED) as usize;
    }
    let mut layers = Vec::new();
    for layer in 0..frame.layer_count {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let attention = blocks::attention(builder, layer, hidden, shape, norms)?;
        layers.push(LayerSpec {
            attention_norm: builder.norm(&name("attn_norm"), hidden)?,
            attention: AttentionKind::Grouped(attention),
            attention_result_norm: None,
            feed_forward_norm: builder.norm(&name("post_attention_norm"), hidden)?,
            feed_forward: match (layer as u64) < dense_layers {
                true => blocks::dense(builder, layer, hidden)?,
                false => blocks::moe(builder, layer, hidden, options)?,
            },
            feed_forward_result_norm: None,
        });
    }
    Ok(Outline { frame, ropes: vec![rope], layers })
}
