//! Qwen3-Next (`qwen3next`) and Qwen3.5-MoE (`qwen35moe`): Gated DeltaNet in most layers, in the others GQA with a norm per head of q and
//! k, a rotation of a part of each head and a gate on the result; softmax router, a shared expert behind a sigmoid gate. Checkpoints
//! store the weights of norms as differences from 1, but for the norm within a DeltaNet.
//!
//! Qwen3-Next joins projections, key head by key head. GGUF files of Qwen3.5 have value heads in another order: those of one key head
//! do not adjoin. Layers that predict further tokens (`mtp`) are passed over.
//! Reference: `modeling_qwen3_next.py` and `modeling_qwen3_5_moe.py` of transformers.

use coldpress_kernels::recurrent::{DecayRule, DeltaShape, GateActivation, KeyHeads};

use super::blocks::{self, MoeOptions, Norms, Recipe, SharedOptions};
use super::layer_kinds::texts;
use super::{Family, Outline, rope::rope};
use crate::builder::SpecBuilder;
use crate::error::ModelError;
use crate::names::{Accepted, HuggingFace, joined};
use crate::recurrent::{DecayRate, DeltaRuleSpec, GatedDeltaSpec, Projections, RecurrentSpec};
use crate::spec::{AttentionKind, LayerSpec, RopePairing};

pub(super) const FAMILY: Family = Family {
    gguf: "qwen3next",
    hugging_face: &[HuggingFace {
        keys: KEYS,
        tensors: TENSORS,
        accepted: ACCEPTED,
        norm_offset: 1.0,
        ..HuggingFace::usual("qwen3_next")
    }],
    describe: |builder| describe(builder, KeyHeads::Grouped),
};

pub(super) const QWEN3_5: Family = Family {
    gguf: "qwen35moe",
    hugging_face: &[HuggingFace {
        keys: KEYS,
        tensors: TENSORS,
        accepted: ACCEPTED,
        norm_offset: 1.0,
        ..HuggingFace::usual("qwen3_5_moe_text")
    }],
    describe: |builder| describe(builder, builder.by_source(KeyHeads::InTurns, KeyHeads::Grouped)),
};

/// Kinds of layers and sizes of a DeltaNet.
pub(super) const DELTA_KEYS: &[(&str, &str)] = &[
    ("attention.layer_kinds", "layer_types"),
    ("ssm.conv_kernel", "linear_conv_kernel_dim"),
    ("ssm.state_size", "linear_key_head_dim"),
    ("ssm.value_size", "linear_value_head_dim"),
    ("ssm.group_count", "linear_num_key_heads"),
    ("ssm.time_step_rank", "linear_num_value_heads"),
];

/// A DeltaNet with its projections apart, and packed experts.
pub(super) const DELTA_TENSORS: &[(&str, &str)] = &[
    ("blk.attn_qkv", "linear_attn.in_proj_qkv"),
    ("blk.attn_gate", "linear_attn.in_proj_z"),
    ("blk.ssm_alpha", "linear_attn.in_proj_a"),
    ("blk.ssm_beta", "linear_attn.in_proj_b"),
    ("blk.ssm_conv1d", "linear_attn.conv1d"),
    ("blk.ssm_dt.bias", "linear_attn.dt_bias"),
    ("blk.ssm_a_log", "linear_attn.A_log"),
    ("blk.ssm_norm", "linear_attn.norm"),
    ("blk.ssm_out", "linear_attn.out_proj"),
    ("blk.ffn_gate_up_exps.weight", "mlp.experts.gate_up_proj"),
    ("blk.ffn_down_exps.weight", "mlp.experts.down_proj"),
];

const KEYS: &[(&str, &str)] =
    &joined::<_, 7>(DELTA_KEYS, &[("full_attention_interval", "full_attention_interval")]);

const TENSORS: &[(&str, &str)] = &joined::<_, 13>(
    DELTA_TENSORS,
    &[("blk.ssm_in", "linear_attn.in_proj_qkvz"), ("blk.ssm_ba", "linear_attn.in_proj_ba")],
);

const ACCEPTED: &[(&str, Accepted)] = &[
    ("layer_types", Accepted::Text(&["linear_attention", "full_attention"])),
    ("decoder_sparse_step", Accepted::Integer(1)),
    ("attn_output_gate", Accepted::Flag(true)),
    ("mamba_ssm_dtype", Accepted::Text(&["float32"])),
    // All positions of a text are the same in each section.
    ("rope_parameters.mrope_section", Accepted::Anything),
    ("rope_parameters.mrope_interleaved", Accepted::Anything),
    ("rope_scaling.mrope_section", Accepted::Anything),
    ("rope_scaling.mrope_interleaved", Accepted::Anything),
    // There are no dense layers, and nothing predicts further tokens here.
    ("intermediate_size", Accepted::Anything),
    ("mtp_num_hidden_layers", Accepted::Anything),
    ("mtp_use_dedicated_embeddings", Accepted::Anything),
];

/// The last of so many layers attends where a file does not say more.
const ATTENTION_INTERVAL: usize = 4;

fn describe(builder: &mut SpecBuilder<'_>, key_heads_of: KeyHeads) -> Result<Outline, ModelError> {
    // MLX adds one to the weights of norms when it turns the convolutions of a checkpoint.
    let layers = builder.dimension("block_count")?;
    if (0..layers).any(|layer| builder.is_convolution_of_mlx(&format!("blk.{layer}.ssm_conv1d"))) {
        builder.norms_are_whole();
    }
    let frame = blocks::frame(builder)?;
    let hidden = frame.hidden;
    let shape = blocks::head_shape(builder, hidden)?;
    let rope = rope(builder, RopePairing::HalfSplit, shape.head_dim)?;
    let recurrent = recurrent_layers(builder, frame.layer_count)?;
    let delta = delta_shape(builder, key_heads_of)?;
    let taps = builder.dimension("ssm.conv_kernel")?;
    let options = moe_options(builder)?;
    let feed_forward_norm = builder.by_source("post_attention_norm", "ffn_norm");
    let mut layers = Vec::new();
    for (layer, recurrent) in recurrent.into_iter().enumerate() {
        let attention = match recurrent {
            true => {
                let mixer = gated_delta(builder, layer, hidden, delta, taps)?;
                AttentionKind::Recurrent(RecurrentSpec::GatedDelta(mixer))
            }
            false => {
                let attention = blocks::gated_attention(builder, layer, hidden, shape, Norms::PerHead)?;
                AttentionKind::Grouped(attention)
            }
        };
        layers.push(LayerSpec {
            attention_norm: builder.norm(&format!("blk.{layer}.attn_norm"), hidden)?,
            attention,
            attention_result_norm: None,
            feed_forward_norm: builder.norm(&format!("blk.{layer}.{feed_forward_norm}"), hidden)?,
            feed_forward: blocks::moe(builder, layer, hidden, options)?,
            feed_forward_result_norm: None,
        });
    }
    Ok(Outline { frame, ropes: vec![rope], layers })
}

/// Softmax over all experts, and a shared one behind a gate.
pub(super) fn moe_options(builder: &SpecBuilder<'_>) -> Result<MoeOptions, ModelError> {
    let width = builder.dimension("expert_feed_forward_length")?;
    let shared = builder.dimension("expert_shared_feed_forward_length")?;
    let renormalize = builder.flag("expert_weights_norm")?.unwrap_or(true);
    Ok(MoeOptions {
        shared: Some(SharedOptions { width: shared, gated: true }),
        ..blocks::moe_options(builder, width, Recipe::softmax(renormalize))?
    })
}

/// Per layer, whether it has a state instead of a cache.
fn recurrent_layers(builder: &SpecBuilder<'_>, layers: usize) -> Result<Vec<bool>, ModelError> {
    let interval = builder.optional_dimension("full_attention_interval")?.unwrap_or(ATTENTION_INTERVAL);
    let listed = match builder.by_source(true, false) {
        true => {
            let listed = builder.per_layer("attention.recurrent_layers", layers)?;
            listed.map(|listed| listed.into_iter().map(|recurrent| recurrent > 0).collect())
        }
        false => texts(builder, "attention.layer_kinds", "linear_attention", layers)?,
    };
    Ok(listed.unwrap_or_else(|| (0..layers).map(|layer| (layer + 1) % interval != 0).collect()))
}

pub(super) fn delta_shape(
    builder: &SpecBuilder<'_>,
    key_heads_of: KeyHeads,
) -> Result<DeltaShape, ModelError> {
    let heads = builder.dimension("ssm.time_step_rank")?;
    let key_heads = builder.dimension("ssm.group_count")?;
    let key_dim = builder.dimension("ssm.state_size")?;
    let value_dim = match builder.by_source(true, false) {
        true => {
            let inner = builder.dimension("ssm.inner_size")?;
            if !inner.is_multiple_of(heads) {
                let key = builder.key("ssm.inner_size")?;
                return Err(builder.bad(format!("{key} is {inner}, which {heads} heads cannot share evenly")));
            }
            inner / heads
        }
        false => builder.dimension("ssm.value_size")?,
    };
    super::delta_rule::check_heads(builder, heads, key_heads, value_dim)?;
    Ok(DeltaShape { heads, key_heads, key_dim, value_dim, key_heads_of })
}

pub(super) fn gated_delta(
    builder: &mut SpecBuilder<'_>,
    layer: usize,
    hidden: usize,
    shape: DeltaShape,
    taps: usize,
) -> Result<GatedDeltaSpec, ModelError> {
    let name = |part: &str| format!("blk.{layer}.{part}");
    let DeltaShape { heads, key_heads, key_dim, value_dim, .. } = shape;
    let values = heads * value_dim;
    let mixed = 2 * key_heads * key_dim + values;
    let mixed_and_gate = match builder.has(&name("ssm_in.weight")) {
        true => Projections::Joined(builder.linear(&name("ssm_in"), mixed + values, hidden)?),
        false => {
            let first = builder.linear(&name("attn_qkv"), mixed, hidden)?;
            Projections::Apart(first, builder.linear(&name("attn_gate"), values, hidden)?)
        }
    };
    let beta_and_decay = match builder.has(&name("ssm_ba.weight")) {
        true => Projections::Joined(builder.linear(&name("ssm_ba"), 2 * heads, hidden)?),
        false => {
            let beta = builder.linear(&name("ssm_beta"), heads, hidden)?;
            Projections::Apart(beta, builder.linear(&name("ssm_alpha"), heads, hidden)?)
        }
    };
    let rate = match builder.by_source(true, false) {
        true => DecayRate::Rates(builder.vector(&name("ssm_a"), heads)?),
        false => DecayRate::Logarithms(builder.vector(&name("ssm_a_log"), heads)?),
    };
    let rule = DeltaRuleSpec {
        shape,
        per_channel: false,
        decay: DecayRule::Softplus,
        decay_bias: builder.vector(&name("ssm_dt.bias"), heads)?,
        rate,
        norm: builder.vector(&name("ssm_norm.weight"), value_dim)?,
        gate: GateActivation::Silu,
    };
    let filter = builder.convolution_taps(&name("ssm_conv1d"), mixed, taps)?;
    let output = builder.linear(&name("ssm_out"), hidden, values)?;
    Ok(GatedDeltaSpec { rule, mixed_and_gate, beta_and_decay, filter, output })
}
