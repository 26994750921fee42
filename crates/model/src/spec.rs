//! A model as data: which tensors exist, how layers combine them, and what that costs in memory.
//!
//! A family (`families/`) turns file metadata into a [`ModelSpec`]; everything behind it (loading, planning, the forward
//! pass) reads the spec and never asks which family it came from. No tensor data is read here.
//! Next: `builder.rs` (checked construction), `forward.rs` (what is computed).

use std::ops::Range;

use coldpress_experts::LayerExperts;
use coldpress_kernels::attention::AttentionShape;
use coldpress_kernels::{WeightFormat, packed_bytes};

/// A dense matrix of the spec, by position in [`ModelSpec::tensors`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixHandle(pub(crate) usize);

/// A dense f32 vector of the spec, by position in [`ModelSpec::tensors`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VectorHandle(pub(crate) usize);

/// How a dense tensor is held in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DenseKind {
    /// Packed rows (see the layout of `coldpress-kernels`), `rows` outputs of `columns` inputs each.
    Matrix {
        /// Output features.
        rows: usize,
        /// Input features.
        columns: usize,
    },
    /// Plain f32 values.
    Vector {
        /// Number of values.
        length: usize,
    },
}

/// One tensor outside the routed experts: where it is on disk and where it will be in memory.
#[derive(Clone, Debug)]
pub struct DenseTensor {
    /// Name in the model file.
    pub name: String,
    /// Format of the values in the file.
    pub format: WeightFormat,
    /// Shape and form in memory.
    pub kind: DenseKind,
    /// Index into the model's files.
    pub file: usize,
    /// First byte in that file.
    pub offset: u64,
    /// Bytes in that file.
    pub byte_len: u64,
    /// Byte range in the dense weights buffer, 64-byte aligned.
    pub place: Range<usize>,
}

impl DenseTensor {
    /// Bytes the tensor takes in memory.
    pub fn resident_bytes(&self) -> usize {
        match self.kind {
            DenseKind::Matrix { rows, columns } => packed_bytes(self.format, rows, columns),
            DenseKind::Vector { length } => length * size_of::<f32>(),
        }
    }
}

/// `y = W x (+ b)`.
#[derive(Clone, Copy, Debug)]
pub struct LinearSpec {
    /// The weights.
    pub weight: MatrixHandle,
    /// Added to the result where the file has one.
    pub bias: Option<VectorHandle>,
}

/// Which elements of a head form a rotated pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopePairing {
    /// Elements `i` and `i + dims / 2` ("neox").
    HalfSplit,
    /// Elements `2i` and `2i + 1` ("normal" in GGUF's `llama`).
    Interleaved,
}

/// Rotary position embedding (Su et al., arXiv 2104.09864).
#[derive(Clone, Debug)]
pub struct RopeSpec {
    /// Pairing of elements.
    pub pairing: RopePairing,
    /// Rotated elements at the start of each head; even, at most the head size.
    pub dimensions: usize,
    /// Base of the frequencies.
    pub base: f32,
    /// Positions are divided by this (linear scaling); 1 for none.
    pub linear_factor: f32,
    /// Divisors per frequency (`rope_freqs.weight`, `dimensions / 2` values).
    pub frequency_divisors: Option<VectorHandle>,
}

/// Grouped-query attention with a causal mask.
#[derive(Clone, Debug)]
pub struct AttentionSpec {
    /// Heads and their size.
    pub shape: AttentionShape,
    /// Query projection, `heads * head_dim` rows.
    pub query: LinearSpec,
    /// Key projection, `kv_heads * head_dim` rows.
    pub key: LinearSpec,
    /// Value projection, `kv_heads * head_dim` rows.
    pub value: LinearSpec,
    /// Output projection, hidden size rows.
    pub output: LinearSpec,
    /// RMSNorm of each query head before the rotation (Qwen3).
    pub query_norm: Option<VectorHandle>,
    /// RMSNorm of each key head before the rotation (Qwen3).
    pub key_norm: Option<VectorHandle>,
    /// Factor on the dot products, usually `head_dim^-1/2`.
    pub scale: f32,
}

/// `down(silu(gate(x)) * up(x))` with its own dense weights.
#[derive(Clone, Copy, Debug)]
pub struct GatedFeedForwardSpec {
    /// Gate projection, `width` rows.
    pub gate: MatrixHandle,
    /// Up projection, `width` rows.
    pub up: MatrixHandle,
    /// Down projection, hidden size rows.
    pub down: MatrixHandle,
    /// Inner size.
    pub width: usize,
}

/// Chooses experts: softmax over all of them, the `top_k` largest, optionally renormalised to sum 1.
#[derive(Clone, Copy, Debug)]
pub struct RouterSpec {
    /// One row per expert.
    pub weight: MatrixHandle,
    /// Routed experts of the layer.
    pub experts: usize,
    /// Experts per token.
    pub top_k: usize,
    /// Divide the chosen weights by their sum.
    pub renormalize: bool,
    /// Factor on the chosen weights.
    pub scale: f32,
}

/// An expert that every token passes, scaled by `sigmoid(gate(x))` where a gate exists.
#[derive(Clone, Copy, Debug)]
pub struct SharedExpertSpec {
    /// Its weights.
    pub feed_forward: GatedFeedForwardSpec,
    /// One row; absent means factor 1.
    pub gate: Option<MatrixHandle>,
}

/// A mixture-of-experts block.
#[derive(Clone, Debug)]
pub struct MoeSpec {
    /// Index of this block among the MoE blocks: the layer number of the expert store.
    pub store_layer: usize,
    /// Inner size of one expert.
    pub width: usize,
    /// The router.
    pub router: RouterSpec,
    /// The shared expert, if any.
    pub shared: Option<SharedExpertSpec>,
}

/// What follows attention in a layer.
#[derive(Clone, Debug)]
pub enum FeedForwardSpec {
    /// One dense gated network.
    Dense(GatedFeedForwardSpec),
    /// Routed experts.
    Moe(MoeSpec),
}

/// One decoder layer, pre-norm: `x += attention(norm(x)); x += feed_forward(norm(x))`.
#[derive(Clone, Debug)]
pub struct LayerSpec {
    /// RMSNorm before attention.
    pub attention_norm: VectorHandle,
    /// Attention.
    pub attention: AttentionSpec,
    /// RMSNorm before the feed-forward block.
    pub feed_forward_norm: VectorHandle,
    /// Feed-forward block.
    pub feed_forward: FeedForwardSpec,
}

/// A complete model.
#[derive(Clone, Debug)]
pub struct ModelSpec {
    /// Family name, as registered.
    pub family: &'static str,
    /// `general.name` of the file.
    pub name: Option<String>,
    /// Rows of the embedding and of the output head.
    pub vocabulary: usize,
    /// Size of the residual stream.
    pub hidden: usize,
    /// Longest context the file states.
    pub trained_context: usize,
    /// Epsilon of every RMSNorm.
    pub norm_epsilon: f32,
    /// Token embedding, one row per token.
    pub embedding: MatrixHandle,
    /// RMSNorm before the head.
    pub output_norm: VectorHandle,
    /// Output head; the embedding itself where the file ties them.
    pub output: MatrixHandle,
    /// Rotary embedding, the same for all layers.
    pub rope: RopeSpec,
    /// The decoder layers.
    pub layers: Vec<LayerSpec>,
    /// Every dense tensor, with its place in the dense buffer.
    pub tensors: Vec<DenseTensor>,
    /// The routed experts of each MoE block, in layer order.
    pub experts: Vec<LayerExperts>,
}

impl ModelSpec {
    /// Bytes of the dense weights in memory.
    pub fn dense_bytes(&self) -> usize {
        self.tensors.last().map_or(0, |tensor| tensor.place.end)
    }

    /// Largest number of routed experts that one token uses in one layer.
    pub fn experts_per_token(&self) -> usize {
        self.moe_blocks().map(|moe| moe.router.top_k).max().unwrap_or(0)
    }

    /// The MoE blocks in layer order.
    pub fn moe_blocks(&self) -> impl Iterator<Item = &MoeSpec> {
        self.layers.iter().filter_map(|layer| match &layer.feed_forward {
            FeedForwardSpec::Moe(moe) => Some(moe),
            FeedForwardSpec::Dense(_) => None,
        })
    }
}
