//! What families with a delta rule have in common: checks, which layers are recurrent, Kimi Delta Attention.

use coldpress_kernels::recurrent::{DecayRule, DeltaShape, GateActivation, KeyHeads};

use super::blocks;
use super::deepseek2::{self, Router};
use super::layer_kinds::texts;
use crate::builder::SpecBuilder;
use crate::error::ModelError;
use crate::latent::LatentSpec;
use crate::recurrent::{DecayRate, DeltaRuleSpec, GateProjection, KimiDeltaSpec, RecurrentSpec};
use crate::spec::{AttentionKind, LayerSpec, VectorHandle};

/// Columns of a state that are computed side by side.
const VALUE_COLUMNS: usize = 16;

/// Refuses heads that the kernels of the delta rule cannot compute.
pub(super) fn check_heads(
    builder: &SpecBuilder<'_>,
    heads: usize,
    key_heads: usize,
    value_dim: usize,
) -> Result<(), ModelError> {
    if !heads.is_multiple_of(key_heads) {
        return Err(builder.bad(format!(
            "{heads} value heads of linear attention cannot share {key_heads} key heads evenly"
        )));
    }
    if !value_dim.is_multiple_of(VALUE_COLUMNS) {
        return Err(builder.unsupported(format!(
            "value heads of {value_dim} elements in linear attention; multiples of {VALUE_COLUMNS} are computed"
        )));
    }
    Ok(())
}

/// Per layer, whether it has a state instead of a cache. GGUF files tell it by the number of key heads.
pub(super) fn recurrent_layers(
    builder: &SpecBuilder<'_>,
    layers: usize,
) -> Result<Option<Vec<bool>>, ModelError> {
    if builder.by_source(false, true) {
        return texts(builder, "attention.layer_kinds", "linear_attention", layers);
    }
    let heads = builder.per_layer("attention.head_count_kv", layers)?;
    Ok(heads.map(|heads| heads.into_iter().map(|heads| heads == 0).collect()))
}

/// As [`recurrent_layers`] for families that have no other way to tell.
pub(super) fn stated_recurrent_layers(
    builder: &SpecBuilder<'_>,
    layers: usize,
) -> Result<Vec<bool>, ModelError> {
    match recurrent_layers(builder, layers)? {
        Some(recurrent) => Ok(recurrent),
        None => {
            let name = builder.by_source("attention.head_count_kv", "attention.layer_kinds");
            Err(builder.bad(format!("{} is missing: it says which layers attend", builder.key(name)?)))
        }
    }
}

/// Heads of Kimi Delta Attention: those of attention where a file does not say more.
pub(super) fn kimi_heads(builder: &SpecBuilder<'_>) -> Result<usize, ModelError> {
    match builder.optional_dimension("kda.head_count")? {
        Some(heads) => Ok(heads),
        None => builder.dimension("attention.head_count"),
    }
}

/// Layers with Kimi Delta Attention where `recurrent` says so, and elsewhere the latent attention that `attention` reads; then dense
/// networks and mixtures as in DeepSeek-V3.
pub(super) fn kimi_layers(
    builder: &mut SpecBuilder<'_>,
    hidden: usize,
    recurrent: Vec<bool>,
    sizes: KimiDelta,
    router: &Router,
    mut attention: impl FnMut(&mut SpecBuilder<'_>, usize) -> Result<LatentSpec, ModelError>,
) -> Result<Vec<LayerSpec>, ModelError> {
    let routed = deepseek2::routed_layers(builder, recurrent.len())?;
    let layers = recurrent.into_iter().enumerate().map(|(layer, recurrent)| {
        let attention = match recurrent {
            true => {
                let mixer = kimi_delta(builder, layer, hidden, sizes)?;
                AttentionKind::Recurrent(RecurrentSpec::KimiDelta(mixer))
            }
            false => AttentionKind::Latent(attention(builder, layer)?),
        };
        Ok(LayerSpec {
            attention_norm: builder.norm(&format!("blk.{layer}.attn_norm"), hidden)?,
            attention,
            attention_result_norm: None,
            feed_forward_norm: builder.norm(&format!("blk.{layer}.ffn_norm"), hidden)?,
            feed_forward: match routed(layer) {
                true => deepseek2::mixture(builder, layer, hidden, router)?,
                false => blocks::dense(builder, layer, hidden)?,
            },
            feed_forward_result_norm: None,
        })
    });
    layers.collect()
}

/// Sizes of Kimi Delta Attention and its rule for decays.
#[derive(Clone, Copy)]
pub(super) struct KimiDelta {
    pub heads: usize,
    pub head_dim: usize,
    pub taps: usize,
    pub decay: DecayRule,
}

/// The mixer of layer `layer`. Projections to decays and gates have a low rank where there is a second matrix for them.
fn kimi_delta(
    builder: &mut SpecBuilder<'_>,
    layer: usize,
    hidden: usize,
    sizes: KimiDelta,
) -> Result<KimiDeltaSpec, ModelError> {
    let name = |part: &str| format!("blk.{layer}.{part}");
    let KimiDelta { heads, head_dim, taps, decay } = sizes;
    let width = heads * head_dim;
    let filters = [
        builder.convolution_taps(&name("ssm_conv1d_q"), width, taps)?,
        builder.convolution_taps(&name("ssm_conv1d_k"), width, taps)?,
        builder.convolution_taps(&name("ssm_conv1d_v"), width, taps)?,
    ];
    let rate = match builder.by_source(true, false) {
        true => DecayRate::Rates(numbers_of_heads(builder, &name("ssm_a"), heads)?),
        false => DecayRate::Logarithms(numbers_of_heads(builder, &name("ssm_a_log"), heads)?),
    };
    let rule = DeltaRuleSpec {
        shape: DeltaShape {
            heads,
            key_heads: heads,
            key_dim: head_dim,
            value_dim: head_dim,
            key_heads_of: KeyHeads::Grouped,
        },
        per_channel: true,
        decay,
        decay_bias: builder.vector(&name("ssm_dt.bias"), width)?,
        rate,
        norm: builder.vector(&name("ssm_norm.weight"), head_dim)?,
        gate: GateActivation::Sigmoid,
    };
    Ok(KimiDeltaSpec {
        rule,
        query: builder.linear(&name("attn_q"), width, hidden)?,
        key: builder.linear(&name("attn_k"), width, hidden)?,
        value: builder.linear(&name("attn_v"), width, hidden)?,
        filters,
        decay: gate_projection(builder, &name("ssm_f"), hidden, head_dim, width)?,
        gate: gate_projection(builder, &name("ssm_g"), hidden, head_dim, width)?,
        beta: builder.linear(&name("ssm_beta"), heads, hidden)?,
        output: builder.linear(&name("attn_output"), hidden, width)?,
    })
}

/// A vector with a number per head, which some files store with dimensions of 1 around them.
fn numbers_of_heads(
    builder: &mut SpecBuilder<'_>,
    name: &str,
    heads: usize,
) -> Result<VectorHandle, ModelError> {
    let within = matches!(builder.shape(name)?, [1, _, ..]) && heads > 1;
    let shape = [1, heads];
    builder.flat_vector(name, &shape[usize::from(!within)..])
}

fn gate_projection(
    builder: &mut SpecBuilder<'_>,
    stem: &str,
    hidden: usize,
    rank: usize,
    width: usize,
) -> Result<GateProjection, ModelError> {
    if !builder.has(&format!("{stem}_b.weight")) {
        return Ok(GateProjection::Direct(builder.linear(&format!("{stem}_a"), width, hidden)?));
    }
    let down = builder.linear(&format!("{stem}_a"), rank, hidden)?;
    Ok(GateProjection::LowRank { down, rank, up: builder.linear(&format!("{stem}_b"), width, rank)? })
}
