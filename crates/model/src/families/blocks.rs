//! Pieces that several families share: the frame around the layers, GQA attention, gated networks, MoE blocks.
//!
//! A family file says which pieces it uses and with which options; tensor names are those of GGUF
//! (`gguf/constants.py` of the PyPI package gguf lists them).

use coldpress_kernels::attention::AttentionShape;

use crate::builder::SpecBuilder;
use crate::error::ModelError;
use crate::spec::{
    AttentionSpec, FeedForwardSpec, GatedFeedForwardSpec, LayerSpec, MatrixHandle, MoeSpec, RouterSpec,
    SharedExpertSpec, VectorHandle,
};

/// Everything outside the layers.
pub(crate) struct Frame {
    pub vocabulary: usize,
    pub hidden: usize,
    pub layer_count: usize,
    pub trained_context: usize,
    pub norm_epsilon: f32,
    pub embedding: MatrixHandle,
    pub output_norm: VectorHandle,
    pub output: MatrixHandle,
}

/// Reads the frame; the output head is the embedding where the file has no `output.weight`.
pub(crate) fn frame(builder: &mut SpecBuilder<'_>) -> Result<Frame, ModelError> {
    let hidden = builder.dimension("embedding_length")?;
    let layer_count = builder.dimension("block_count")?;
    let trained_context = builder.dimension("context_length")?;
    let norm_epsilon = builder.float_or("attention.layer_norm_rms_epsilon", 1e-5)?;
    let vocabulary = embedding_rows(builder)?;
    let embedding = builder.matrix("token_embd.weight", vocabulary, hidden)?;
    let output_norm = builder.vector("output_norm.weight", hidden)?;
    let output = if builder.has("output.weight") {
        builder.matrix("output.weight", vocabulary, hidden)?
    } else {
        embedding
    };
    Ok(Frame {
        vocabulary,
        hidden,
        layer_count,
        trained_context,
        norm_epsilon,
        embedding,
        output_norm,
        output,
    })
}

fn embedding_rows(builder: &SpecBuilder<'_>) -> Result<usize, ModelError> {
    let shape = builder.shape("token_embd.weight")?;
    match shape {
        [_, rows] if *rows <= 1 << 24 => Ok(*rows as usize),
        other => Err(builder.bad(format!("token_embd.weight has shape {other:?}, not [hidden, vocabulary]"))),
    }
}

/// Reads head counts; `head_dim` is stated, or hidden size over heads.
pub(crate) fn head_shape(builder: &SpecBuilder<'_>, hidden: usize) -> Result<AttentionShape, ModelError> {
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

/// GQA attention of layer `layer`; `per_head_norm` adds the q/k RMSNorm of Qwen3.
fn attention(
    builder: &mut SpecBuilder<'_>,
    layer: usize,
    hidden: usize,
    shape: AttentionShape,
    per_head_norm: bool,
) -> Result<AttentionSpec, ModelError> {
    let head_dim = shape.head_dim;
    let (query_rows, kv_rows) = (shape.query_row_len(), shape.kv_row_len());
    let stem = |part: &str| format!("blk.{layer}.attn_{part}");
    let query = builder.linear(&stem("q"), query_rows, hidden)?;
    let key = builder.linear(&stem("k"), kv_rows, hidden)?;
    let value = builder.linear(&stem("v"), kv_rows, hidden)?;
    let output = builder.linear(&stem("output"), hidden, query_rows)?;
    let (query_norm, key_norm) = if per_head_norm {
        let query_norm = builder.vector(&format!("{}.weight", stem("q_norm")), head_dim)?;
        (Some(query_norm), Some(builder.vector(&format!("{}.weight", stem("k_norm")), head_dim)?))
    } else {
        (None, None)
    };
    let scale = 1.0 / (head_dim as f32).sqrt();
    Ok(AttentionSpec { shape, query, key, value, output, query_norm, key_norm, scale })
}

/// Pre-norm decoder layers of GQA attention and whatever `feed_forward` reads for each.
pub(crate) fn layers(
    builder: &mut SpecBuilder<'_>,
    frame: &Frame,
    shape: AttentionShape,
    per_head_norm: bool,
    mut feed_forward: impl FnMut(&mut SpecBuilder<'_>, usize) -> Result<FeedForwardSpec, ModelError>,
) -> Result<Vec<LayerSpec>, ModelError> {
    let hidden = frame.hidden;
    // The stated number is bounded by the tensors that exist, not by what fits in memory: grow with what is found.
    let mut layers = Vec::new();
    for layer in 0..frame.layer_count {
        layers.push(LayerSpec {
            attention_norm: builder.vector(&format!("blk.{layer}.attn_norm.weight"), hidden)?,
            attention: attention(builder, layer, hidden, shape, per_head_norm)?,
            feed_forward_norm: builder.vector(&format!("blk.{layer}.ffn_norm.weight"), hidden)?,
            feed_forward: feed_forward(builder, layer)?,
        });
    }
    Ok(layers)
}

/// A dense gated network with tensors `blk.N.ffn_{gate,up,down}{suffix}.weight`.
pub(crate) fn gated(
    builder: &mut SpecBuilder<'_>,
    layer: usize,
    suffix: &str,
    hidden: usize,
    width: usize,
) -> Result<GatedFeedForwardSpec, ModelError> {
    let name = |part: &str| format!("blk.{layer}.ffn_{part}{suffix}.weight");
    Ok(GatedFeedForwardSpec {
        gate: builder.matrix(&name("gate"), width, hidden)?,
        up: builder.matrix(&name("up"), width, hidden)?,
        down: builder.matrix(&name("down"), hidden, width)?,
        width,
    })
}

/// Options of a softmax-routed MoE block.
#[derive(Clone, Copy)]
pub(crate) struct MoeOptions {
    pub experts: usize,
    pub top_k: usize,
    pub width: usize,
    pub renormalize: bool,
    /// Width of the shared expert and whether it has a sigmoid gate.
    pub shared_width: Option<usize>,
}

/// Reads expert counts and widths that are common to the softmax families.
pub(crate) fn moe_options(
    builder: &SpecBuilder<'_>,
    width: usize,
    renormalize: bool,
) -> Result<MoeOptions, ModelError> {
    let experts = builder.dimension("expert_count")?;
    let top_k = builder.dimension("expert_used_count")?;
    if top_k > experts {
        return Err(
            builder.bad(format!("{top_k} experts per token are more than the {experts} experts of a layer"))
        );
    }
    Ok(MoeOptions { experts, top_k, width, renormalize, shared_width: None })
}

/// The MoE block of layer `layer`.
pub(crate) fn moe(
    builder: &mut SpecBuilder<'_>,
    layer: usize,
    hidden: usize,
    options: MoeOptions,
) -> Result<FeedForwardSpec, ModelError> {
    let MoeOptions { experts, top_k, width, renormalize, shared_width } = options;
    let weight = builder.matrix(&format!("blk.{layer}.ffn_gate_inp.weight"), experts, hidden)?;
    let store_layer = builder.experts(layer, experts, hidden, width)?;
    let shared = match shared_width {
        None => None,
        Some(shared_width) => Some(SharedExpertSpec {
            feed_forward: gated(builder, layer, "_shexp", hidden, shared_width)?,
            gate: Some(builder.matrix(&format!("blk.{layer}.ffn_gate_inp_shexp.weight"), 1, hidden)?),
        }),
    };
    let router = RouterSpec { weight, experts, top_k, renormalize, scale: 1.0 };
    Ok(FeedForwardSpec::Moe(MoeSpec { store_layer, width, router, shared }))
}
