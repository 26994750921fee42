//! Ling 3 and Ring 3 (`bailingmoe3`): Kimi Delta Attention with bounded decays in most layers, in the others latent attention with a gate
//! per head on the result. Dense networks first, then a sigmoid router over the best groups with a bias for the choice, and a
//! shared expert. Layers behind the last one, which predict further tokens, are passed over.
//!
//! Reference: `modeling_bailing_hybrid.py` of transformers.

use coldpress_kernels::recurrent::DecayRule;

use super::delta_rule::{self, KimiDelta};
use super::latent::{self, Dimensions};
use super::{Family, Outline, blocks, deepseek2, rope::rope};
use crate::builder::SpecBuilder;
use crate::error::ModelError;
use crate::latent::LatentSpec;
use crate::names::{Accepted, HuggingFace, joined};
use crate::spec::RopePairing;

pub(super) const FAMILY: Family = Family {
    gguf: "bailingmoe3",
    hugging_face: &[HuggingFace {
        keys: KEYS,
        tensors: TENSORS,
        mlx_tensors: MLX_TENSORS,
        accepted: ACCEPTED,
        ..HuggingFace::usual("bailing_hybrid")
    }],
    describe,
};

const KEYS: &[(&str, &str)] = &joined::<_, 31>(
    latent::KEYS,
    &[
        ("context_length", "model_max_length"),
        ("context_length", "max_position_embeddings"),
        ("attention.layer_kinds", "layer_types"),
        ("expert_used_count", "num_experts_per_token"),
        ("expert_used_count", "num_experts_per_tok"),
        ("expert_shared_count", "num_shared_experts"),
        ("expert_shared_count", "n_shared_experts"),
        ("expert_group_count", "num_expert_group"),
        ("expert_group_count", "n_group"),
        ("expert_group_used_count", "topk_group"),
        ("expert_weights_norm", "moe_renormalize"),
        ("expert_weights_norm", "norm_topk_prob"),
        ("expert_weights_scale", "routed_scaling_factor"),
        ("leading_dense_block_count", "first_k_dense_replace"),
        ("feed_forward_kinds", "mlp_layer_types"),
        ("nextn_predict_layers", "num_nextn_predict_layers"),
        ("nextn_predict_layers", "num_mtp_layers"),
        ("kda.head_dim", "linear_head_dim"),
        ("kda.head_dim_of_all", "head_dim"),
        ("kda.head_count", "linear_num_heads"),
        ("kda.safe_gate", "kda_safe_gate"),
        ("kda.gate_lower_bound", "kda_lower_bound"),
        ("kda.layer_group_size", "layer_group_size"),
        ("ssm.conv_kernel", "linear_conv_kernel_dim"),
        ("ssm.conv_kernel", "short_conv_kernel_size"),
    ],
);

const TENSORS: &[(&str, &str)] = &[
    ("token_embd", "model.word_embeddings"),
    ("blk.attn_q", "attention.q_proj"),
    ("blk.attn_k", "attention.k_proj"),
    ("blk.attn_v", "attention.v_proj"),
    ("blk.attn_output", "attention.dense"),
    ("blk.attn_gate", "attention.g_proj"),
    ("blk.attn_q_a", "attention.q_a_proj"),
    ("blk.attn_q_a_norm", "attention.q_a_layernorm"),
    ("blk.attn_q_b", "attention.q_b_proj"),
    ("blk.attn_kv_a_mqa", "attention.kv_a_proj_with_mqa"),
    ("blk.attn_kv_a_norm", "attention.kv_a_layernorm"),
    ("blk.attn_kv_b", "attention.kv_b_proj"),
    ("blk.ssm_conv1d_q", "attention.q_conv1d"),
    ("blk.ssm_conv1d_k", "attention.k_conv1d"),
    ("blk.ssm_conv1d_v", "attention.v_conv1d"),
    ("blk.ssm_a_log", "attention.A_log"),
    ("blk.ssm_dt.bias", "attention.dt_bias"),
    ("blk.ssm_beta", "attention.b_proj"),
    ("blk.ssm_f_a", "attention.f_proj"),
    ("blk.ssm_g_a", "attention.g_proj"),
    ("blk.ssm_norm", "attention.o_norm"),
    ("blk.exp_probs_b.bias", "mlp.gate.expert_bias"),
    ("blk.ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
    ("blk.ffn_up_shexp", "mlp.shared_experts.up_proj"),
    ("blk.ffn_down_shexp", "mlp.shared_experts.down_proj"),
];

/// Names of MLX where they are others.
const MLX_TENSORS: &[(&str, &str)] =
    &[("blk.attn_k_b", "attention.embed_q"), ("blk.attn_v_b", "attention.unembed_out")];

const ACCEPTED: &[(&str, Accepted)] = &[
    ("layer_types", Accepted::Text(&["linear_attention", "full_attention"])),
    // All heads have keys, and the rest concerns training.
    ("num_key_value_heads", Accepted::Anything),
    ("mtp_loss_scaling_factor", Accepted::Anything),
];

/// What a decay's exponent comes close to where a file does not say more.
const LOWER_BOUND: f32 = -5.0;

fn describe(builder: &mut SpecBuilder<'_>) -> Result<Outline, ModelError> {
    let frame = blocks::frame(builder)?;
    let hidden = frame.hidden;
    let router = deepseek2::renormalizing_router(builder)?;
    let dimensions = Dimensions::read(builder)?;
    let rope = rope(builder, RopePairing::Interleaved, dimensions.rotary)?;
    let sizes = kimi_delta(builder)?;
    let recurrent = recurrent_layers(builder, frame.layer_count)?;
    let layers = delta_rule::kimi_layers(builder, hidden, recurrent, sizes, &router, |builder, layer| {
        let attention = latent::attention(builder, layer, hidden, &dimensions, dimensions.usual_scale())?;
        let gate = builder.linear(&format!("blk.{layer}.attn_gate"), dimensions.heads, hidden)?;
        Ok(LatentSpec { gate: Some(gate), ..attention })
    })?;
    Ok(Outline { frame, ropes: vec![rope], layers })
}

fn kimi_delta(builder: &SpecBuilder<'_>) -> Result<KimiDelta, ModelError> {
    let heads = delta_rule::kimi_heads(builder)?;
    // Configurations that transformers writes have another number under the second key.
    let of_all = builder.by_source(None, builder.optional_dimension("kda.head_dim_of_all")?);
    let head_dim = match (builder.optional_dimension("kda.head_dim")?, of_all) {
        (Some(head_dim), _) | (None, Some(head_dim)) => head_dim,
        (None, None) => builder.dimension("kda.head_dim")?,
    };
    let lower_bound = builder.float_or("kda.gate_lower_bound", LOWER_BOUND)?;
    let decay = match builder.flag("kda.safe_gate")?.unwrap_or(true) {
        true => DecayRule::Bounded { lower_bound },
        false => DecayRule::Softplus,
    };
    if lower_bound >= 0.0 {
        let key = builder.key("kda.gate_lower_bound")?;
        return Err(builder.bad(format!("{key} is {lower_bound}; states decay with a negative bound")));
    }
    delta_rule::check_heads(builder, heads, heads, head_dim)?;
    Ok(KimiDelta { heads, head_dim, taps: builder.dimension("ssm.conv_kernel")?, decay })
}

/// Per layer, whether it has a state: listed, or all but the last one of each group.
fn recurrent_layers(builder: &SpecBuilder<'_>, layers: usize) -> Result<Vec<bool>, ModelError> {
    let group = builder.optional_dimension("kda.layer_group_size")?;
    match (delta_rule::recurrent_layers(builder, layers)?, group) {
        (None, Some(group)) => Ok((0..layers).map(|layer| (layer + 1) % group != 0).collect()),
        _ => delta_rule::stated_recurrent_layers(builder, layers),
    }
}
