//! Hunyuan-MoE (`hunyuan-moe`): GQA with per-head q/k RMSNorm after the rotation, softmax router with renormalised top-k, a
//! shared expert without gate. Checkpoints stretch the base of the rotary embedding by a constant; GGUF files state the
//! stretched base.
//!
//! Reference: `modeling_hunyuan_v1_moe.py` of transformers.

use super::blocks::{self, Norms, Recipe, SharedOptions};
use super::{Family, Outline, rope};
use crate::builder::SpecBuilder;
use crate::error::ModelError;
use crate::names::{Accepted, HuggingFace};
use crate::spec::{FrequencyDivisors, RopePairing, RopeSpec};

pub(super) const FAMILY: Family = Family {
    gguf: "hunyuan-moe",
    hugging_face: &[HuggingFace {
        keys: KEYS,
        tensors: TENSORS,
        accepted: ACCEPTED,
        ..HuggingFace::usual("hunyuan_v1_moe")
    }],
    describe,
};

const KEYS: &[(&str, &str)] = &[
    ("expert_used_count", "moe_topk"),
    ("expert_feed_forward_length", "moe_intermediate_size"),
    ("attention.key_length", "head_dim"),
    ("attention.key_length", "attention_head_dim"),
    ("rope.alpha", "rope_scaling.alpha"),
    ("rope.alpha", "rope_parameters.alpha"),
];

const TENSORS: &[(&str, &str)] = &[
    ("blk.attn_q_norm", "self_attn.query_layernorm"),
    ("blk.attn_k_norm", "self_attn.key_layernorm"),
    ("blk.ffn_gate_inp", "mlp.gate.wg"),
    ("blk.ffn_gate_shexp", "mlp.shared_mlp.gate_proj"),
    ("blk.ffn_up_shexp", "mlp.shared_mlp.up_proj"),
    ("blk.ffn_down_shexp", "mlp.shared_mlp.down_proj"),
];

/// The factor of a scaling that alpha replaces; switches whose computed position is the one named here.
const ACCEPTED: &[(&str, Accepted)] = &[
    ("cla_share_factor", Accepted::Anything),
    ("num_shared_expert", Accepted::Integer(1)),
    ("rope_scaling.factor", Accepted::Integer(1)),
    ("rope_scaling.beta_fast", Accepted::Anything),
    ("rope_scaling.beta_slow", Accepted::Anything),
    ("rope_scaling.mscale", Accepted::Anything),
    ("rope_scaling.mscale_all_dim", Accepted::Anything),
    ("rope_parameters.factor", Accepted::Integer(1)),
    ("use_mixed_mlp_moe", Accepted::Anything),
    ("use_qk_norm", Accepted::Flag(true)),
];

fn describe(builder: &mut SpecBuilder<'_>) -> Result<Outline, ModelError> {
    let frame = blocks::frame(builder)?;
    let hidden = frame.hidden;
    let shape = blocks::head_shape(builder, hidden)?;
    let dense_width = builder.dimension("feed_forward_length")?;
    let width = builder.optional_dimension("expert_feed_forward_length")?.unwrap_or(dense_width);
    let shared_width =
        builder.optional_dimension("expert_shared_feed_forward_length")?.unwrap_or(dense_width);
    let options = blocks::MoeOptions {
        shared: Some(SharedOptions { width: shared_width, gated: false }),
        ..blocks::moe_options(builder, width, Recipe::softmax(true))?
    };
    let rope = stretched_rope(builder, shape.head_dim)?;
    let norms = Norms::PerHeadAfterRotation;
    let layers = blocks::layers(builder, &frame, shape, norms, |builder, layer| {
        blocks::moe(builder, layer, hidden, options)
    })?;
    Ok(Outline { frame, ropes: vec![rope], layers })
}

fn stretched_rope(builder: &mut SpecBuilder<'_>, head_dim: usize) -> Result<RopeSpec, ModelError> {
    let pairing = RopePairing::HalfSplit;
    let alpha = builder.optional_float("rope.alpha")?;
    let kind = builder.text("rope.scaling.type")?;
    let Some(alpha) = alpha.filter(|_| kind == Some("dynamic")) else {
        return rope::rope(builder, pairing, head_dim);
    };
    let dimensions = rope::dimensions(builder, head_dim)?;
    if alpha <= 0.0 || dimensions <= 2 {
        return Err(builder.bad(format!("a rotary embedding of {dimensions} elements with alpha {alpha}")));
    }
    let exponent = dimensions as f64 / (dimensions - 2) as f64;
    let base = (f64::from(rope::base(builder)?) * f64::from(alpha).powf(exponent)) as f32;
    let divisors = FrequencyDivisors::None;
    Ok(RopeSpec { pairing, dimensions, base, linear_factor: 1.0, divisors, magnitude: 1.0 })
}
