//! LongCat-Flash (`longcat_flash`): each layer has attention, a dense network, attention and a dense network again; the routed
//! experts read what the first dense network reads, and are added at the end. Some experts have no weights and give back their
//! input, so tokens use different numbers of experts. Latents are scaled by the root of how much narrower they are.
//!
//! A layer of the file is two layers here. There are no GGUF files of this family.
//! Reference: `modeling_longcat_flash.py` of transformers.

use super::blocks::{self, MoeOptions, Recipe};
use super::latent::{self, Dimensions};
use super::{Family, Outline, yarn};
use crate::builder::SpecBuilder;
use crate::error::ModelError;
use crate::names::{Accepted, HuggingFace, joined};
use crate::spec::{
    AttentionKind, FeedForwardSpec, GatedFeedForwardSpec, LayerSpec, Renormalize, RopePairing, RouterScores,
    RouterSpec,
};

pub(super) const FAMILY: Family = Family {
    gguf: "longcat-flash",
    hugging_face: &[HuggingFace {
        keys: KEYS,
        tensors: TENSORS,
        mlx_tensors: MLX_TENSORS,
        accepted: ACCEPTED,
        ..HuggingFace::usual("longcat_flash")
    }],
    describe,
};

const KEYS: &[(&str, &str)] = &joined::<_, 14>(
    latent::KEYS,
    &[
        ("block_count", "num_layers"),
        ("halves", "num_hidden_layers"),
        ("feed_forward_length", "ffn_hidden_size"),
        ("expert_count", "n_routed_experts"),
        ("expert_identity_count", "zero_expert_num"),
        ("expert_used_count", "moe_topk"),
        ("expert_feed_forward_length", "expert_ffn_hidden_size"),
        ("expert_weights_scale", "routed_scaling_factor"),
    ],
);

const TENSORS: &[(&str, &str)] = &[
    ("blk.0.attn_norm", "input_layernorm.0"),
    ("blk.0.attn_q_a", "self_attn.0.q_a_proj"),
    ("blk.0.attn_q_a_norm", "self_attn.0.q_a_layernorm"),
    ("blk.0.attn_q_b", "self_attn.0.q_b_proj"),
    ("blk.0.attn_kv_a_mqa", "self_attn.0.kv_a_proj_with_mqa"),
    ("blk.0.attn_kv_a_norm", "self_attn.0.kv_a_layernorm"),
    ("blk.0.attn_kv_b", "self_attn.0.kv_b_proj"),
    ("blk.0.attn_output", "self_attn.0.o_proj"),
    ("blk.0.ffn_norm", "post_attention_layernorm.0"),
    ("blk.0.ffn_gate", "mlps.0.gate_proj"),
    ("blk.0.ffn_up", "mlps.0.up_proj"),
    ("blk.0.ffn_down", "mlps.0.down_proj"),
    ("blk.1.attn_norm", "input_layernorm.1"),
    ("blk.1.attn_q_a", "self_attn.1.q_a_proj"),
    ("blk.1.attn_q_a_norm", "self_attn.1.q_a_layernorm"),
    ("blk.1.attn_q_b", "self_attn.1.q_b_proj"),
    ("blk.1.attn_kv_a_mqa", "self_attn.1.kv_a_proj_with_mqa"),
    ("blk.1.attn_kv_a_norm", "self_attn.1.kv_a_layernorm"),
    ("blk.1.attn_kv_b", "self_attn.1.kv_b_proj"),
    ("blk.1.attn_output", "self_attn.1.o_proj"),
    ("blk.1.ffn_norm", "post_attention_layernorm.1"),
    ("blk.1.ffn_gate", "mlps.1.gate_proj"),
    ("blk.1.ffn_up", "mlps.1.up_proj"),
    ("blk.1.ffn_down", "mlps.1.down_proj"),
    ("blk.ffn_gate_inp", "mlp.router.classifier"),
    ("blk.exp_probs_b.bias", "mlp.router.e_score_correction_bias"),
];

/// Names of MLX where they are others.
const MLX_TENSORS: &[(&str, &str)] = &[
    ("blk.0.attn_k_b", "self_attn.0.embed_q"),
    ("blk.0.attn_v_b", "self_attn.0.unembed_out"),
    ("blk.1.attn_k_b", "self_attn.1.embed_q"),
    ("blk.1.attn_v_b", "self_attn.1.unembed_out"),
];

/// What published configurations say of themselves; latents are always scaled in the reference.
const ACCEPTED: &[(&str, Accepted)] = &[
    ("zero_expert_type", Accepted::Text(&["identity"])),
    ("attention_method", Accepted::Text(&["MLA"])),
    ("mla_scale_q_lora", Accepted::Flag(true)),
    ("mla_scale_kv_lora", Accepted::Flag(true)),
    ("norm_topk_prob", Accepted::Flag(false)),
    ("head_dim", Accepted::Anything),
    ("num_key_value_heads", Accepted::Anything),
    ("num_nextn_predict_layers", Accepted::Anything),
];

fn describe(builder: &mut SpecBuilder<'_>) -> Result<Outline, ModelError> {
    if builder.by_source(true, false) {
        return Err(builder.unsupported("LongCat-Flash in a GGUF file; give the folder of Hugging Face"));
    }
    let frame = blocks::frame(builder)?;
    let (hidden, count) = (frame.hidden, frame.layer_count);
    if let Some(stated) = builder.integer("halves")?
        && stated != count as u64
        && stated != 2 * count as u64
    {
        return Err(builder.bad(format!("num_hidden_layers is {stated}, with {count} layers of two halves")));
    }
    let dimensions = Dimensions::read(builder)?;
    let Some(query_rank) = dimensions.query_rank else {
        return Err(builder.unsupported("queries without a latent"));
    };
    let (rope, dot_factor) =
        yarn::rope(builder, RopePairing::Interleaved, dimensions.rotary, yarn::Scales::Latent)?;
    if rope.dimensions != dimensions.rotary {
        return Err(builder.unsupported("a rotation of a part of the rotated elements"));
    }
    let narrower = |rank: usize| (hidden as f64 / rank as f64).sqrt();
    // All of a query is scaled by the same factor, and so are its dot products.
    let scale = dot_factor * narrower(query_rank) / ((dimensions.key + dimensions.rotary) as f64).sqrt();
    let options = options(builder)?;
    let mut layers = Vec::new();
    for layer in 0..count {
        for half in 0..2 {
            let place = format!("{layer}.{half}");
            let mut attention = latent::attention(builder, &place, hidden, &dimensions, scale as f32)?;
            attention.latent_scale = narrower(dimensions.rank) as f32;
            let dense = dense(builder, &place, hidden)?;
            layers.push(LayerSpec {
                attention_norm: builder.norm(&format!("blk.{place}.attn_norm"), hidden)?,
                attention: AttentionKind::Latent(attention),
                attention_result_norm: None,
                feed_forward_norm: builder.norm(&format!("blk.{place}.ffn_norm"), hidden)?,
                feed_forward: if half == 0 {
                    let mixture = blocks::moe_block(builder, layer, hidden, options, None)?;
                    pass_over_identities(builder, layer, &mixture.router);
                    FeedForwardSpec::Shortcut { dense, mixture }
                } else {
                    FeedForwardSpec::Dense(dense)
                },
                feed_forward_result_norm: None,
            });
        }
    }
    Ok(Outline { frame, ropes: vec![rope], layers })
}

/// transformers writes gate and up of experts that it does not compute with.
fn pass_over_identities(builder: &mut SpecBuilder<'_>, layer: usize, router: &RouterSpec) {
    for expert in router.stored()..router.experts {
        for part in ["gate", "up"] {
            builder.pass_over(&format!("blk.{layer}.ffn_{part}.{expert}.weight"));
        }
    }
}

fn dense(
    builder: &mut SpecBuilder<'_>,
    place: &str,
    hidden: usize,
) -> Result<GatedFeedForwardSpec, ModelError> {
    let width = builder.dimension("feed_forward_length")?;
    blocks::gated(builder, place, "", hidden, width)
}

fn options(builder: &SpecBuilder<'_>) -> Result<MoeOptions, ModelError> {
    let width = builder.dimension("expert_feed_forward_length")?;
    let recipe = Recipe { scores: RouterScores::Softmax, renormalize: Renormalize::No, choice_bias: true };
    Ok(MoeOptions {
        identities: builder.optional_dimension("expert_identity_count")?.unwrap_or(0),
        scale: builder.positive_or("expert_weights_scale", 1.0)?,
        ..blocks::moe_options(builder, width, recipe)?
    })
}
