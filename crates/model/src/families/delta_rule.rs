//! What families with a delta rule have in common: checks, which layers are recurrent, Kimi Delta Attention.

use coldpress_kernels::recurrent::{DecayRule, DeltaShape, GateActivation, KeyHeads};

use super::layer_kinds::texts;
use crate::builder::SpecBuilder;
use crate::error::ModelError;
use crate::recurrent::{DecayRate, DeltaRuleSpec, GateProjection, KimiDeltaSpec};
use crate::spec::VectorHandle;

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

/// Sizes of Kimi Delta Attention and its rule for decays.
#[derive(Clone, Copy)]
pub(super) struct KimiDelta {
    pub heads: usize,
    pub head_dim: usize,
    pub taps: usize,
    pub decay: DecayRule,
}

/// The mixer of layer `layer`. Projections to decays and gates have a low rank where there is a second matrix for them.
pub(super) fn kimi_delta(
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
