//! Kimi Linear (`kimi-linear`): Kimi Delta Attention in most layers, in the others latent attention without positions. Dense networks
//! first, then a sigmoid router with a bias for the choice alone and a shared expert.
//!
//! Reference: `modeling_kimi_linear.py` of transformers.

use coldpress_kernels::recurrent::DecayRule;

use super::delta_rule::{self, KimiDelta};
use super::latent::{self, Dimensions};
use super::{Family, Outline, blocks, deepseek2};
use crate::builder::SpecBuilder;
use crate::error::ModelError;
use crate::latent::LatentSpec;
use crate::names::{Accepted, HuggingFace, joined};

pub(super) const FAMILY: Family = Family {
    gguf: "kimi-linear",
    hugging_face: &[HuggingFace {
        keys: KEYS,
        tensors: TENSORS,
        mlx_tensors: MLX_TENSORS,
        accepted: ACCEPTED,
        ..HuggingFace::usual("kimi_linear")
    }],
    describe,
};

const KEYS: &[(&str, &str)] = &joined::<_, 25>(
    latent::KEYS,
    &[
        ("context_length", "model_max_length"),
        ("attention.layer_kinds", "layer_types"),
        ("expert_used_count", "num_experts_per_token"),
        ("expert_shared_count", "num_shared_experts"),
        ("expert_group_count", "num_expert_group"),
        ("expert_group_used_count", "topk_group"),
        ("expert_weights_norm", "moe_renormalize"),
        ("expert_weights_scale", "routed_scaling_factor"),
        ("leading_dense_block_count", "first_k_dense_replace"),
        ("feed_forward_kinds", "mlp_layer_types"),
        ("nextn_predict_layers", "num_nextn_predict_layers"),
        ("kda.head_dim", "linear_head_dim"),
        ("kda.head_dim", "linear_attn_config.head_dim"),
        ("kda.head_count", "linear_num_heads"),
        ("kda.head_count", "linear_attn_config.num_heads"),
        ("kda.recurrent_layers", "linear_attn_config.kda_layers"),
        ("kda.attention_layers", "linear_attn_config.full_attn_layers"),
        ("ssm.conv_kernel", "linear_conv_kernel_dim"),
        ("ssm.conv_kernel", "linear_attn_config.short_conv_kernel_size"),
    ],
);

const TENSORS: &[(&str, &str)] = &joined::<_, 25>(
    latent::TENSORS,
    &[
        ("blk.ssm_conv1d_q", "self_attn.q_conv1d"),
        ("blk.ssm_conv1d_k", "self_attn.k_conv1d"),
        ("blk.ssm_conv1d_v", "self_attn.v_conv1d"),
        ("blk.ssm_a_log", "self_attn.A_log"),
        ("blk.ssm_dt.bias", "self_attn.dt_bias"),
        ("blk.ssm_beta", "self_attn.b_proj"),
        ("blk.ssm_f_a", "self_attn.f_a_proj"),
        ("blk.ssm_f_b", "self_attn.f_b_proj"),
        ("blk.ssm_g_a", "self_attn.g_a_proj"),
        ("blk.ssm_g_b", "self_attn.g_b_proj"),
        ("blk.ssm_norm", "self_attn.o_norm"),
        ("blk.ffn_gate_inp", "block_sparse_moe.gate"),
        ("blk.exp_probs_b.bias", "block_sparse_moe.gate.e_score_correction_bias"),
        ("blk.ffn_gate.{e}", "block_sparse_moe.experts.{e}.w1"),
        ("blk.ffn_up.{e}", "block_sparse_moe.experts.{e}.w3"),
        ("blk.ffn_down.{e}", "block_sparse_moe.experts.{e}.w2"),
        ("blk.ffn_gate_shexp", "block_sparse_moe.shared_experts.gate_proj"),
        ("blk.ffn_up_shexp", "block_sparse_moe.shared_experts.up_proj"),
        ("blk.ffn_down_shexp", "block_sparse_moe.shared_experts.down_proj"),
    ],
);

/// Names of MLX where they are others.
const MLX_TENSORS: &[(&str, &str)] = &[
    ("blk.ssm_conv1d_q", "self_attn.q_conv.conv"),
    ("blk.ssm_conv1d_k", "self_attn.k_conv.conv"),
    ("blk.ssm_conv1d_v", "self_attn.v_conv.conv"),
    ("blk.ffn_gate_inp", "mlp.gate"),
    ("blk.exp_probs_b.bias", "mlp.e_score_correction_bias"),
    ("blk.ffn_gate_exps", "mlp.switch_mlp.gate_proj"),
    ("blk.ffn_up_exps", "mlp.switch_mlp.up_proj"),
    ("blk.ffn_down_exps", "mlp.switch_mlp.down_proj"),
    ("blk.ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
    ("blk.ffn_up_shexp", "mlp.shared_experts.up_proj"),
    ("blk.ffn_down_shexp", "mlp.shared_experts.down_proj"),
];

const ACCEPTED: &[(&str, Accepted)] = &[
    ("layer_types", Accepted::Text(&["linear_attention", "full_attention"])),
    ("moe_layer_freq", Accepted::Integer(1)),
    ("moe_router_activation_func", Accepted::Text(&["sigmoid"])),
    ("use_grouped_topk", Accepted::Flag(true)),
    // Nothing is rotated.
    ("mla_use_nope", Accepted::Flag(true)),
    ("rope_theta", Accepted::Anything),
    ("rope_parameters.rope_theta", Accepted::Anything),
    ("rope_parameters.rope_type", Accepted::Text(&["default"])),
    // Latent attention has sizes of its own, and all heads have keys.
    ("head_dim", Accepted::Anything),
    ("num_key_value_heads", Accepted::Anything),
];

fn describe(builder: &mut SpecBuilder<'_>) -> Result<Outline, ModelError> {
    let frame = blocks::frame(builder)?;
    let hidden = frame.hidden;
    let router = deepseek2::renormalizing_router(builder)?;
    let dimensions = Dimensions::read(builder)?;
    let sizes = KimiDelta {
        heads: delta_rule::kimi_heads(builder)?,
        head_dim: builder.dimension("kda.head_dim")?,
        taps: builder.dimension("ssm.conv_kernel")?,
        decay: DecayRule::Softplus,
    };
    delta_rule::check_heads(builder, sizes.heads, sizes.heads, sizes.head_dim)?;
    let recurrent = recurrent_layers(builder, frame.layer_count)?;
    let layers = delta_rule::kimi_layers(builder, hidden, recurrent, sizes, &router, |builder, layer| {
        let attention = latent::attention(builder, layer, hidden, &dimensions, dimensions.usual_scale())?;
        Ok(LatentSpec { rope: None, ..attention })
    })?;
    Ok(Outline { frame, ropes: Vec::new(), layers })
}

/// Per layer, whether it has a state. Published configurations list the layers of each kind, counted from 1.
fn recurrent_layers(builder: &SpecBuilder<'_>, layers: usize) -> Result<Vec<bool>, ModelError> {
    let listed = |name| Ok::<_, ModelError>(builder.by_source(None, builder.floats(name)?));
    let (recurrent, attending) = (listed("kda.recurrent_layers")?, listed("kda.attention_layers")?);
    if let (Some(recurrent), Some(attending)) = (recurrent, attending) {
        let has = |list: &[f32], layer: usize| list.contains(&((layer + 1) as f32));
        if let Some(layer) = (0..layers).find(|&layer| has(&recurrent, layer) == has(&attending, layer)) {
            let key = builder.key("kda.recurrent_layers")?;
            return Err(builder.bad(format!("layer {} is in one of {key} and full_attn_layers", layer + 1)));
        }
        return Ok((0..layers).map(|layer| has(&recurrent, layer)).collect());
    }
    delta_rule::stated_recurrent_layers(builder, layers)
}
