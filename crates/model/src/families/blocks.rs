//! Pieces that several families share: the frame around the layers, GQA attention, gated networks, MoE blocks.
//!
//! A family file says which pieces it uses and with which options; names are those of GGUF
//! (`gguf/constants.py` of the PyPI package gguf lists them).

use std::fmt::Display;

use coldpress_experts::GateUp;
use coldpress_kernels::Activation;
use coldpress_kernels::attention::AttentionShape;

use super::{Outline, rope::rope};
use crate::builder::{LayerCount, SpecBuilder};
use crate::error::ModelError;
use crate::ple::PleSpec;
use crate::spec::{
    AttentionKind, AttentionSpec, FeedForwardSpec, GatedFeedForwardSpec, LayerSpec, MatrixHandle, MoeSpec,
    NormSpec, NormedStream, QueryKeyNorm, Renormalize, RopePairing, RouterGroups, RouterScores, RouterSpec,
    SharedExpertSpec, ValueHeads, VectorHandle,
};
use crate::streams::StreamsSpec;

/// Everything outside the layers.
pub(super) struct Frame {
    pub vocabulary: usize,
    pub hidden: usize,
    pub layer_count: usize,
    pub trained_context: usize,
    pub context_limit: Option<usize>,
    pub norm_epsilon: f32,
    pub embedding: MatrixHandle,
    pub embedding_scale: f32,
    pub residual_scale: f32,
    pub normed_stream: Option<NormedStream>,
    pub streams: Option<StreamsSpec>,
    pub ple: Vec<PleSpec>,
    pub output_norm: NormSpec,
    pub output: MatrixHandle,
    pub output_bias: Option<VectorHandle>,
    pub logit_scale: f32,
}

/// Reads the frame; without factors on embeddings, residuals and logits.
pub(super) fn frame(builder: &mut SpecBuilder<'_>) -> Result<Frame, ModelError> {
    frame_with_norm(builder, "output_norm")
}

/// As [`frame`], for a model without a norm before the head.
pub(super) fn frame_without_norm(builder: &mut SpecBuilder<'_>) -> Result<Frame, ModelError> {
    frame_of(builder, |_, _| Ok(NormSpec::None))
}

/// As [`frame`], with the norm before the head under another name.
pub(super) fn frame_with_norm(builder: &mut SpecBuilder<'_>, output_norm: &str) -> Result<Frame, ModelError> {
    frame_of(builder, |builder, hidden| builder.norm(output_norm, hidden))
}

fn frame_of(
    builder: &mut SpecBuilder<'_>,
    output_norm: impl FnOnce(&mut SpecBuilder<'_>, usize) -> Result<NormSpec, ModelError>,
) -> Result<Frame, ModelError> {
    let hidden = builder.dimension("embedding_length")?;
    let blocks = builder.dimension("block_count")?;
    let layer_count = builder.layers_among(blocks)?;
    let trained_context = builder.dimension("context_length")?;
    let norm_epsilon = if builder.by_source(true, false) {
        builder.float_or("attention.layer_norm_rms_epsilon", 1e-5)?
    } else {
        builder.positive("attention.layer_norm_rms_epsilon")?
    };
    let vocabulary = embedding_rows(builder)?;
    let embedding = builder.matrix("token_embd.weight", vocabulary, hidden)?;
    let output_norm = output_norm(builder, hidden)?;
    let output = output(builder, embedding, vocabulary, hidden)?;
    let output_bias = builder.optional_vector("output.bias", vocabulary)?;
    Ok(Frame {
        vocabulary,
        hidden,
        layer_count,
        trained_context,
        context_limit: None,
        norm_epsilon,
        embedding,
        embedding_scale: 1.0,
        residual_scale: 1.0,
        normed_stream: None,
        streams: None,
        ple: Vec::new(),
        output_norm,
        output,
        output_bias,
        logit_scale: 1.0,
    })
}

fn embedding_rows(builder: &SpecBuilder<'_>) -> Result<usize, ModelError> {
    let shape = builder.shape("token_embd.weight")?;
    let rows = match shape {
        [_, rows] if *rows <= 1 << 24 => *rows,
        other => {
            return Err(
                builder.bad(format!("token_embd.weight has shape {other:?}, not [hidden, vocabulary]"))
            );
        }
    };
    match builder.integer("vocabulary")? {
        Some(stated) if stated != rows => {
            let key = builder.key("vocabulary")?;
            Err(builder.bad(format!("{key} is {stated}, but the embedding has {rows} rows")))
        }
        _ => Ok(rows as usize),
    }
}

/// The output head; the embedding itself where the file ties them, or has no other.
fn output(
    builder: &mut SpecBuilder<'_>,
    embedding: MatrixHandle,
    vocabulary: usize,
    hidden: usize,
) -> Result<MatrixHandle, ModelError> {
    let tied = match builder.flag("tied_output")? {
        Some(tied) if !builder.is_contradicted("tie_word_embeddings") => tied,
        // Which of two statements a program believed when it wrote the file is seen by what it wrote.
        _ => !builder.has("output.weight"),
    };
    if tied {
        builder.pass_over("output.weight");
        return Ok(embedding);
    }
    builder.matrix("output.weight", vocabulary, hidden)
}

/// Reads head counts; `head_dim` is stated, or hidden size over heads.
pub(super) fn head_shape(builder: &SpecBuilder<'_>, hidden: usize) -> Result<AttentionShape, ModelError> {
    let heads = builder.dimension("attention.head_count")?;
    let kv_heads = builder.optional_dimension("attention.head_count_kv")?.unwrap_or(heads);
    if heads % kv_heads != 0 {
        return Err(builder.bad(format!("{heads} query heads cannot share {kv_heads} key heads evenly")));
    }
    let head_dim = match builder.optional_dimension("attention.key_length")? {
        Some(stated) => stated,
        None if hidden.is_multiple_of(heads) => hidden / heads,
        None => return Err(builder.bad(format!("hidden size {hidden} is not a multiple of {heads} heads"))),
    };
    let value_dim = builder.optional_dimension("attention.value_length")?.unwrap_or(head_dim);
    if value_dim != head_dim {
        return Err(
            builder.unsupported(format!("value heads of {value_dim} with key heads of {head_dim} elements"))
        );
    }
    Ok(AttentionShape { heads, kv_heads, head_dim })
}

/// Whether and how queries and keys are normed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Norms {
    /// Not at all.
    None,
    /// Each head by itself, then rotated.
    PerHead,
    /// Each head by itself, after it was rotated.
    PerHeadAfterRotation,
    /// The row of all heads, then rotated.
    PerRow,
}

/// GQA attention of layer `layer` over the whole context, with the first rotary embedding.
pub(super) fn attention(
    builder: &mut SpecBuilder<'_>,
    layer: usize,
    hidden: usize,
    shape: AttentionShape,
    norms: Norms,
) -> Result<AttentionSpec, ModelError> {
    attention_with_values(builder, layer, hidden, shape, norms, None)
}

/// As [`attention`], with a gate on the result.
pub(super) fn gated_attention(
    builder: &mut SpecBuilder<'_>,
    layer: usize,
    hidden: usize,
    shape: AttentionShape,
    norms: Norms,
) -> Result<AttentionSpec, ModelError> {
    attention_of(builder, layer, hidden, shape, norms, None, true)
}

/// As [`attention`], with value heads that may differ from key heads.
pub(super) fn attention_with_values(
    builder: &mut SpecBuilder<'_>,
    layer: usize,
    hidden: usize,
    shape: AttentionShape,
    norms: Norms,
    values: Option<ValueHeads>,
) -> Result<AttentionSpec, ModelError> {
    attention_of(builder, layer, hidden, shape, norms, values, false)
}

fn attention_of(
    builder: &mut SpecBuilder<'_>,
    layer: usize,
    hidden: usize,
    shape: AttentionShape,
    norms: Norms,
    values: Option<ValueHeads>,
    gated: bool,
) -> Result<AttentionSpec, ModelError> {
    let (query_rows, kv_rows) = (shape.query_row_len(), shape.kv_row_len());
    let value_dim = values.map_or(shape.head_dim, |values| values.head_dim);
    let stem = |part: &str| format!("blk.{layer}.attn_{part}");
    let query = builder.linear(&stem("q"), query_rows * if gated { 2 } else { 1 }, hidden)?;
    let key = builder.linear(&stem("k"), kv_rows, hidden)?;
    let value = builder.linear(&stem("v"), shape.kv_heads * value_dim, hidden)?;
    let output = builder.linear(&stem("output"), hidden, shape.heads * value_dim)?;
    if builder.flag("attention.has_bias")? == Some(true) && query.bias.is_none() {
        let key = builder.key("attention.has_bias")?;
        return Err(builder.bad(format!("{key} is true, but layer {layer} has no bias for its queries")));
    }
    let norms = match norms {
        Norms::None => None,
        _ => {
            let per_row = norms == Norms::PerRow;
            let lengths = if per_row { (query_rows, kv_rows) } else { (shape.head_dim, shape.head_dim) };
            Some(QueryKeyNorm {
                query: builder.rms_norm(&stem("q_norm"), lengths.0)?,
                key: builder.rms_norm(&stem("k_norm"), lengths.1)?,
                after_rotation: norms == Norms::PerHeadAfterRotation,
            })
        }
    };
    let scale = 1.0 / (shape.head_dim as f32).sqrt();
    Ok(AttentionSpec {
        shape,
        query,
        key,
        value,
        output,
        norms,
        rope: Some(0),
        window: None,
        chunk: None,
        unit_heads: false,
        temperature: None,
        sinks: None,
        values,
        gated,
        sparse: None,
        scale,
    })
}

/// A decoder whose layers are alike: one rotary embedding from the usual keys, and in each layer GQA attention and whatever
/// `feed_forward` reads for a layer and the hidden size.
pub(super) fn decoder(
    builder: &mut SpecBuilder<'_>,
    pairing: RopePairing,
    norms: Norms,
    mut feed_forward: impl FnMut(&mut SpecBuilder<'_>, usize, usize) -> Result<FeedForwardSpec, ModelError>,
) -> Result<Outline, ModelError> {
    let frame = frame(builder)?;
    let shape = head_shape(builder, frame.hidden)?;
    let rope = rope(builder, pairing, shape.head_dim)?;
    let layers =
        layers(builder, &frame, shape, norms, |builder, layer| feed_forward(builder, layer, frame.hidden))?;
    Ok(Outline { frame, ropes: vec![rope], layers })
}

/// Pre-norm decoder layers of GQA attention and whatever `feed_forward` reads for each.
pub(super) fn layers(
    builder: &mut SpecBuilder<'_>,
    frame: &Frame,
    shape: AttentionShape,
    norms: Norms,
    mut feed_forward: impl FnMut(&mut SpecBuilder<'_>, usize) -> Result<FeedForwardSpec, ModelError>,
) -> Result<Vec<LayerSpec>, ModelError> {
    let hidden = frame.hidden;
    // The stated number is bounded by the tensors that exist, not by what fits in memory: grow with what is found.
    let mut layers = Vec::new();
    for layer in 0..frame.layer_count {
        layers.push(LayerSpec {
            attention_norm: builder.norm(&format!("blk.{layer}.attn_norm"), hidden)?,
            attention: AttentionKind::Grouped(attention(builder, layer, hidden, shape, norms)?),
            attention_result_norm: None,
            feed_forward_norm: builder.norm(&format!("blk.{layer}.ffn_norm"), hidden)?,
            feed_forward: feed_forward(builder, layer)?,
            feed_forward_result_norm: None,
        });
    }
    Ok(layers)
}

/// The dense gated network of layer `layer`, of the width that the file states.
pub(super) fn dense(
    builder: &mut SpecBuilder<'_>,
    layer: usize,
    hidden: usize,
) -> Result<FeedForwardSpec, ModelError> {
    let width = builder.dimension("feed_forward_length")?;
    Ok(FeedForwardSpec::Dense(gated(builder, layer, "", hidden, width)?))
}

/// A gated network with tensors `blk.N.ffn_{gate,up,down}{suffix}.weight`, or gate and up in one, gate first; with SiLU.
pub(super) fn gated(
    builder: &mut SpecBuilder<'_>,
    layer: impl Display,
    suffix: &str,
    hidden: usize,
    width: usize,
) -> Result<GatedFeedForwardSpec, ModelError> {
    let name = |part: &str| format!("blk.{layer}.ffn_{part}{suffix}.weight");
    let together = name("gate_up");
    let (gate, up) = if builder.has(&together) {
        let mut half = |rows| builder.head_matrices(&together, (1, 2 * width), rows, hidden, false);
        (half(0..width)?.of(0), half(width..2 * width)?.of(0))
    } else {
        (builder.matrix(&name("gate"), width, hidden)?, builder.matrix(&name("up"), width, hidden)?)
    };
    Ok(GatedFeedForwardSpec {
        gate,
        up,
        down: builder.matrix(&name("down"), hidden, width)?,
        width,
        activation: Activation::Silu,
    })
}

/// How a router chooses and weights.
#[derive(Clone, Copy)]
pub(super) struct Recipe {
    pub scores: RouterScores,
    pub renormalize: Renormalize,
    /// Whether the layer has a bias that counts for the choice alone (`exp_probs_b`).
    pub choice_bias: bool,
}

impl Recipe {
    /// Softmax over all experts; the weights of the chosen ones are divided by their sum if `renormalize`.
    pub fn softmax(renormalize: bool) -> Recipe {
        let renormalize = if renormalize { Renormalize::SumAtLeast(0.0) } else { Renormalize::No };
        Recipe { scores: RouterScores::Softmax, renormalize, choice_bias: false }
    }
}

/// An expert that every token passes.
#[derive(Clone, Copy)]
pub(super) struct SharedOptions {
    pub width: usize,
    /// Whether its result is scaled by the sigmoid of a gate of its own.
    pub gated: bool,
}

/// Options of a MoE block.
#[derive(Clone, Copy)]
pub(super) struct MoeOptions {
    /// Experts with weights, as stated; what a layer has is seen by its tensors.
    pub experts: usize,
    /// Experts that give back their input, which the router scores behind the others.
    pub identities: usize,
    pub top_k: usize,
    pub width: usize,
    pub recipe: Recipe,
    /// Factor on the weights of the chosen experts.
    pub scale: f32,
    /// Groups of experts that are chosen first.
    pub groups: Option<RouterGroups>,
    /// Whether the weights multiply what goes into the experts.
    pub weigh_input: bool,
    pub shared: Option<SharedOptions>,
}

/// Reads expert counts; a block without shared expert.
pub(super) fn moe_options(
    builder: &SpecBuilder<'_>,
    width: usize,
    recipe: Recipe,
) -> Result<MoeOptions, ModelError> {
    let experts = builder.dimension("expert_count")?;
    let top_k = builder.dimension("expert_used_count")?;
    Ok(MoeOptions {
        experts,
        identities: 0,
        top_k,
        width,
        recipe,
        scale: 1.0,
        groups: None,
        weigh_input: false,
        shared: None,
    })
}

/// The MoE block of layer `layer`.
pub(super) fn moe(
    builder: &mut SpecBuilder<'_>,
    layer: usize,
    hidden: usize,
    options: MoeOptions,
) -> Result<FeedForwardSpec, ModelError> {
    moe_block(builder, layer, hidden, options, None).map(FeedForwardSpec::Moe)
}

/// The same; `fused` says how gate and up of the experts share a tensor whose matrices are transposed, or codes of MXFP4.
pub(super) fn moe_block(
    builder: &mut SpecBuilder<'_>,
    layer: usize,
    hidden: usize,
    options: MoeOptions,
    fused: Option<GateUp>,
) -> Result<MoeSpec, ModelError> {
    let MoeOptions { identities, width, recipe, scale, groups, weigh_input, shared, .. } = options;
    let count = builder.layer_count(layer, options.experts, identities, options.top_k)?;
    builder.check_choice(layer, count, options.top_k, recipe.scores, groups)?;
    let LayerCount { experts, scored, top_k } = count;
    let weight = builder.matrix(&format!("blk.{layer}.ffn_gate_inp.weight"), scored, hidden)?;
    let choice_bias = match recipe.choice_bias {
        true => {
            // Converters of some families leave the ending out.
            let stem = format!("blk.{layer}.exp_probs_b");
            let name = if builder.has(&stem) { stem } else { format!("{stem}.bias") };
            Some(builder.vector_of_router(&name, layer, scored)?)
        }
        false => None,
    };
    // MLX keeps gate and up apart.
    let fused = fused.filter(|_| !builder.has(&format!("blk.{layer}.ffn_gate_exps.weight")));
    let store_layer = match fused {
        Some(gate_up) => builder.fused_experts(layer, experts, hidden, width, gate_up)?,
        None => builder.experts(layer, experts, hidden, width)?,
    };
    let shared = match shared {
        None => None,
        Some(shared) => Some(SharedExpertSpec {
            feed_forward: gated(builder, layer, "_shexp", hidden, shared.width)?,
            gate: match shared.gated {
                true => Some(builder.matrix(&format!("blk.{layer}.ffn_gate_inp_shexp.weight"), 1, hidden)?),
                false => None,
            },
        }),
    };
    let Recipe { scores, renormalize, .. } = recipe;
    let activation = Activation::Silu;
    let router = RouterSpec {
        weight,
        bias: None,
        experts: scored,
        identities,
        top_k,
        scores,
        choice_bias,
        groups,
        renormalize,
        scale,
        table: None,
    };
    let factors = builder.expert_factors(layer, experts)?;
    let rotations = builder.rotations(store_layer);
    Ok(MoeSpec {
        store_layer,
        width,
        activation,
        biases: None,
        factors,
        rotations,
        router,
        weigh_input,
        shared,
    })
}
