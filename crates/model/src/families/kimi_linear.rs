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
use crate::names::{Accepted, HuggingFace};
use crate::recurrent::RecurrentSpec;
use crate::spec::{AttentionKind, LayerSpec};

pub(super) const FAMILY: Family = Family {
    gguf: "kimi-linear",
    hugging_face: &[HuggingFace {
        keys: KEYS,
        tensors: TENSORS,
        accepted: ACCEPTED,
        ..HuggingFace::usual("kimi_linear")
    }],
    describe,
};

const KEYS: &[(&str, &str)] = &[
    ("context_length", "model_max_length"),
    ("attention.kv_lora_rank", "kv_lora_rank"),
    ("attention.q_lora_rank", "q_lora_rank"),
    ("attention.query_length", "qk_head_dim"),
    ("attention.key_length", "qk_nope_head_dim"),
    ("attention.value_length", "v_head_dim"),
    ("attention.layer_kinds", "layer_types"),
    ("rope.dimension_count", "qk_rope_head_dim"),
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
];

const TENSORS: &[(&str, &str)] = &[
    ("blk.attn_q_a", "self_attn.q_a_proj"),
    ("blk.attn_q_a_norm", "self_attn.q_a_layernorm"),
    ("blk.attn_q_b", "self_attn.q_b_proj"),
    ("blk.attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
    ("blk.attn_kv_a_norm", "self_attn.kv_a_layernorm"),
    ("blk.attn_kv_b", "self_attn.kv_b_proj"),
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
    let mut frame = blocks::frame(builder)?;
    deepseek2::pass_over_predicting_layers(builder, &mut frame)?;
    let hidden = frame.hidden;
    let router = deepseek2::renormalizing_router(builder)?;
    let dimensions = Dimensions::read(builder)?;
    let sizes = KimiDelta {
        heads: match builder.optional_dimension("kda.head_count")? {
            Some(heads) => heads,
            None => builder.dimension("attention.head_count")?,
        },
        head_dim: builder.dimension("kda.head_dim")?,
        taps: builder.dimension("ssm.conv_kernel")?,
        decay: DecayRule::Softplus,
    };
    delta_rule::check_heads(builder, sizes.heads, sizes.heads, sizes.head_dim)?;
    let recurrent = recurrent_layers(builder, frame.layer_count)?;
    let routed = deepseek2::routed_layers(builder, frame.layer_count)?;
    let mut layers = Vec::new();
    for (layer, recurrent) in recurrent.into_iter().enumerate() {
        let attention = match recurrent {
            true => {
                let mixer = delta_rule::kimi_delta(builder, layer, hidden, sizes)?;
                AttentionKind::Recurrent(RecurrentSpec::KimiDelta(mixer))
            }
            false => {
                let scale = dimensions.usual_scale();
                let mut attention = latent::attention(builder, layer, hidden, &dimensions, scale)?;
                attention.rope = None;
                AttentionKind::Latent(attention)
            }
        };
        layers.push(LayerSpec {
            attention_norm: builder.norm(&format!("blk.{layer}.attn_norm"), hidden)?,
            attention,
            attention_result_norm: None,
            feed_forward_norm: builder.norm(&format!("blk.{layer}.ffn_norm"), hidden)?,
            feed_forward: match routed(layer) {
                true => deepseek2::mixture(builder, layer, hidden, &router)?,
                false => blocks::dense(builder, layer, hidden)?,
            },
            feed_forward_result_norm: None,
        });
    }
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
    match delta_rule::recurrent_layers(builder, layers)? {
        Some(recurrent) => Ok(recurrent),
        None => {
            let name = builder.by_source("attention.head_count_kv", "attention.layer_kinds");
            Err(builder.bad(format!("{} is missing: it says which layers attend", builder.key(name)?)))
        }
    }
}
