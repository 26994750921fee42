//! LFM2-MoE (`lfm2moe`): gated short convolutions in most layers, GQA with a norm per head of q and k in the others. Dense networks
//! first, then a sigmoid router with a bias for the choice alone, without shared expert.
//!
//! Reference: `modeling_lfm2_moe.py` of transformers.

use coldpress_kernels::attention::AttentionShape;

use super::blocks::{self, Norms};
use super::layer_kinds::{dense, texts};
use super::sigmoid_router::{self, SigmoidRouter, sigmoid_router};
use super::{Family, Outline, rope::rope};
use crate::builder::SpecBuilder;
use crate::error::ModelError;
use crate::names::{Accepted, HuggingFace};
use crate::recurrent::{RecurrentSpec, ShortConvolutionSpec};
use crate::spec::{AttentionKind, LayerSpec, Renormalize, RopePairing};

pub(super) const FAMILY: Family = Family {
    gguf: FAMILY_NAME,
    hugging_face: &[HuggingFace {
        keys: KEYS,
        tensors: TENSORS,
        mlx_tensors: MLX_TENSORS,
        accepted: ACCEPTED,
        ..HuggingFace::usual("lfm2_moe")
    }],
    describe,
};

const KEYS: &[(&str, &str)] = &[
    sigmoid_router::SCALE,
    ("attention.layer_kinds", "layer_types"),
    ("attention.layer_norm_rms_epsilon", "norm_eps"),
    ("expert_bias", "use_expert_bias"),
    ("leading_dense_block_count", "num_dense_layers"),
    ("shortconv.has_bias", "conv_bias"),
    ("shortconv.l_cache", "conv_L_cache"),
    ("tied_output", "tie_word_embeddings"),
    ("tied_output", "tie_embedding"),
];

const TENSORS: &[(&str, &str)] = &[
    ("token_embd_norm", "model.embedding_norm"),
    ("blk.attn_norm", "operator_norm"),
    ("blk.attn_output", "self_attn.out_proj"),
    ("blk.attn_q_norm", "self_attn.q_layernorm"),
    ("blk.attn_k_norm", "self_attn.k_layernorm"),
    ("blk.shortconv.conv", "conv.conv"),
    ("blk.shortconv.in_proj", "conv.in_proj"),
    ("blk.shortconv.out_proj", "conv.out_proj"),
    ("blk.ffn_norm", "ffn_norm"),
    ("blk.ffn_gate", "feed_forward.w1"),
    ("blk.ffn_up", "feed_forward.w3"),
    ("blk.ffn_down", "feed_forward.w2"),
    ("blk.ffn_gate_inp", "feed_forward.gate"),
    ("blk.exp_probs_b.bias", "feed_forward.expert_bias"),
    ("blk.ffn_gate.{e}", "feed_forward.experts.{e}.w1"),
    ("blk.ffn_up.{e}", "feed_forward.experts.{e}.w3"),
    ("blk.ffn_down.{e}", "feed_forward.experts.{e}.w2"),
];

/// Names of MLX where they are others.
const MLX_TENSORS: &[(&str, &str)] = &[
    ("blk.ffn_gate", "feed_forward.gate_proj"),
    ("blk.ffn_up", "feed_forward.up_proj"),
    ("blk.ffn_down", "feed_forward.down_proj"),
];

const ACCEPTED: &[(&str, Accepted)] = &[
    ("layer_types", Accepted::Text(&["conv", "full_attention"])),
    // The model has one epsilon, and it is not this one.
    ("rms_norm_eps", Accepted::Anything),
    ("use_pos_enc", Accepted::Flag(true)),
];

/// As GGUF files call it.
const FAMILY_NAME: &str = "lfm2moe";
/// Added to the sum of weights.
const EPSILON: f32 = 1e-6;
/// Base of the rotary embedding where a file does not state it.
const ROPE_BASE: f32 = 1_000_000.0;
/// Positions that a convolution may reach over; published models have 3.
const TAPS_MAX: usize = 64;

fn describe(builder: &mut SpecBuilder<'_>) -> Result<Outline, ModelError> {
    let norm = if builder.has("output_norm.weight") { "output_norm" } else { "token_embd_norm" };
    let frame = blocks::frame_with_norm(builder, norm)?;
    let (hidden, layer_count) = (frame.hidden, frame.layer_count);
    let attends = attending(builder, layer_count)?;
    let shape = shape(builder, hidden, &attends)?;
    let taps = builder.dimension("shortconv.l_cache")?;
    if taps > TAPS_MAX {
        let key = builder.key("shortconv.l_cache")?;
        return Err(
            builder.unsupported(format!("{key} is {taps}; convolutions of at most {TAPS_MAX} are computed"))
        );
    }
    let has_bias = builder.flag("shortconv.has_bias")?.unwrap_or(false);
    let mut rope = rope(builder, RopePairing::HalfSplit, shape.head_dim)?;
    rope.base = builder.positive_or("rope.freq_base", ROPE_BASE)?;
    let dense = dense(builder, layer_count)?;
    let width = builder.dimension("expert_feed_forward_length")?;
    let options = router(builder)?.options(builder, width)?;
    let mut layers = Vec::new();
    for (layer, (attends, dense)) in attends.into_iter().zip(dense).enumerate() {
        let attention = match attends {
            true => {
                let attention = blocks::attention(builder, layer, hidden, shape, Norms::PerHead)?;
                AttentionKind::Grouped(attention)
            }
            false => {
                let mixer = short_convolution(builder, layer, hidden, taps, has_bias)?;
                AttentionKind::Recurrent(RecurrentSpec::ShortConvolution(mixer))
            }
        };
        layers.push(LayerSpec {
            attention_norm: builder.norm(&format!("blk.{layer}.attn_norm"), hidden)?,
            attention,
            attention_result_norm: None,
            feed_forward_norm: builder.norm(&format!("blk.{layer}.ffn_norm"), hidden)?,
            feed_forward: match dense {
                true => blocks::dense(builder, layer, hidden)?,
                false => blocks::moe(builder, layer, hidden, options)?,
            },
            feed_forward_result_norm: None,
        });
    }
    Ok(Outline { frame, ropes: vec![rope], layers })
}

/// Per layer, whether it attends. GGUF files tell it by the number of key heads.
fn attending(builder: &SpecBuilder<'_>, layers: usize) -> Result<Vec<bool>, ModelError> {
    if builder.by_source(true, false) {
        let name = "attention.head_count_kv";
        let kv_heads = builder.per_layer(name, layers)?;
        let kv_heads = kv_heads.ok_or_else(|| builder.bad(format!("{FAMILY_NAME}.{name} is missing")))?;
        return Ok(kv_heads.into_iter().map(|count| count > 0).collect());
    }
    let name = "attention.layer_kinds";
    let key = builder.key(name)?;
    let attend = texts(builder, name, "full_attention", layers)?;
    let convolve = texts(builder, name, "conv", layers)?;
    let (Some(attend), Some(convolve)) = (attend, convolve) else {
        return Err(builder.bad(format!("{key} is missing")));
    };
    match attend.iter().zip(convolve).position(|(&attends, convolves)| attends == convolves) {
        Some(layer) => {
            Err(builder.unsupported(format!("{key} is neither conv nor full_attention in layer {layer}")))
        }
        None => Ok(attend),
    }
}

/// The heads of layers that attend.
fn shape(builder: &SpecBuilder<'_>, hidden: usize, attends: &[bool]) -> Result<AttentionShape, ModelError> {
    let heads = builder.dimension("attention.head_count")?;
    let all = builder.per_layer("attention.head_count_kv", attends.len())?.unwrap_or_default();
    let mut kv_heads = all.into_iter().zip(attends).filter(|(_, attends)| **attends).map(|(count, _)| count);
    let first = kv_heads.next().unwrap_or(1);
    let key = builder.key("attention.head_count_kv")?;
    if kv_heads.any(|count| count != first) {
        return Err(builder.unsupported(format!("{key} differs between layers that attend")));
    }
    let kv_heads = usize::try_from(first).unwrap_or(0);
    if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
        return Err(builder.bad(format!("{heads} query heads cannot share {kv_heads} key heads evenly")));
    }
    let head_dim = match builder.optional_dimension("attention.key_length")? {
        Some(stated) => stated,
        None if hidden.is_multiple_of(heads) => hidden / heads,
        None => return Err(builder.bad(format!("hidden size {hidden} is not a multiple of {heads} heads"))),
    };
    Ok(AttentionShape { heads, kv_heads, head_dim })
}

fn router(builder: &SpecBuilder<'_>) -> Result<SigmoidRouter, ModelError> {
    let mut router = sigmoid_router(builder)?;
    if let Renormalize::SumPlus(epsilon) = &mut router.recipe.renormalize {
        *epsilon = EPSILON;
    }
    router.recipe.choice_bias = builder.flag("expert_bias")?.unwrap_or(true);
    Ok(router)
}

fn short_convolution(
    builder: &mut SpecBuilder<'_>,
    layer: usize,
    hidden: usize,
    taps: usize,
    has_bias: bool,
) -> Result<ShortConvolutionSpec, ModelError> {
    let stem = |part: &str| format!("blk.{layer}.shortconv.{part}");
    let spec = ShortConvolutionSpec {
        input: builder.linear(&stem("in_proj"), 3 * hidden, hidden)?,
        convolution: builder.convolution(&stem("conv"), hidden, taps)?,
        output: builder.linear(&stem("out_proj"), hidden, hidden)?,
        hidden,
    };
    if has_bias && spec.convolution.bias.is_none() {
        let key = builder.key("shortconv.has_bias")?;
        return Err(builder.bad(format!("{key} is true, but layer {layer} has no bias for its convolution")));
    }
    Ok(spec)
}
