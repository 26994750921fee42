//! A model as data: which tensors exist, how layers combine them, and what that costs in memory.
//!
//! A family (`families/`) turns file metadata into a [`ModelSpec`]; everything behind it (loading, planning, the forward
//! pass) reads the spec and never asks which family it came from. No tensor data is read here.
//! Next: `spec/routing.rs` (routers), `builder.rs` (checked construction), `forward.rs` (what is computed).

mod experts;
mod routing;

use std::ops::Range;
use std::sync::Arc;

use coldpress_experts::{LayerExperts, RowTable};
use coldpress_kernels::attention::AttentionShape;
use coldpress_kernels::layout::CodeOrder;
use coldpress_kernels::{ScaleSource, WeightFormat, packed_bytes};

pub use coldpress_kernels::Activation;
pub use experts::{ExpertBiases, ExpertFactors, ExpertRotations};
pub use routing::{GroupScore, Renormalize, RouterGroups, RouterScores, RouterSpec};

use crate::block_sparse::BlockIndexSpec;
use crate::compressed::CompressedSpec;
use crate::latent::LatentSpec;
use crate::ple::PleSpec;
use crate::recurrent::RecurrentSpec;
use crate::streams::StreamsSpec;

/// A dense matrix of the spec, by position in [`ModelSpec::tensors`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixHandle(pub(crate) usize);

/// A dense f32 vector of the spec, by position in [`ModelSpec::tensors`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VectorHandle(pub(crate) usize);

/// A table of whole numbers, by position in [`ModelSpec::tensors`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableHandle(pub(crate) usize);

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
    /// As [`DenseKind::Matrix`], stored in the file with rows and columns exchanged; quantised values are held as f32, because
    /// their blocks run along the file's rows.
    Transposed {
        /// Output features.
        rows: usize,
        /// Input features.
        columns: usize,
    },
    /// Whole numbers, held as u32: `rows` of `columns` each.
    Table {
        /// Rows.
        rows: usize,
        /// Numbers of a row.
        columns: usize,
        /// Bytes of a number in the file, 4 or 8.
        number_bytes: usize,
        /// What all of them are below.
        below: u32,
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
    /// Where its blocks, floats or codes lie.
    pub bytes: FileBytes,
    /// What belongs to codes.
    pub scaled: Option<Box<ScaledTensor>>,
    /// Added to every value of a vector when it is loaded: 1 for norms that are stored as a difference from 1, else 0.
    pub offset_added: f32,
    /// Which values of the file a vector takes.
    pub picked: Picked,
    /// One value that all of a matrix is multiplied by.
    pub factor: Option<VectorHandle>,
    /// Byte range in the dense weights buffer, 64-byte aligned.
    pub place: Range<usize>,
}

/// A range of bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileBytes {
    /// Index into the model's files.
    pub file: usize,
    /// First byte in that file.
    pub offset: u64,
    /// Length in bytes.
    pub byte_len: u64,
}

/// What belongs to the codes of a dense matrix.
#[derive(Clone, Debug)]
pub struct ScaledTensor {
    /// How the codes of a row follow each other.
    pub order: CodeOrder,
    /// Scales, a row of them for each `rows_per_scale` rows.
    pub scales: FileBytes,
    /// How scales and biases are written.
    pub source: ScaleSource,
    /// Rows that share a row of scales.
    pub rows_per_scale: usize,
    /// Rows that share the first row of scales and come before the first row of the matrix.
    pub rows_before: usize,
    /// Biases, as many as scales.
    pub biases: Option<FileBytes>,
    /// The bits of the f32 values that codes stand for, in codings with a codebook.
    pub codebook: Option<Arc<[u32]>>,
}

/// Every `step`-th value, from value `first` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Picked {
    /// Index of the first value that is taken.
    pub first: usize,
    /// Distance to the next.
    pub step: usize,
}

impl Picked {
    /// All values.
    pub const ALL: Self = Self { first: 0, step: 1 };
}

impl DenseTensor {
    /// All ranges of bytes that belong to it.
    pub fn all_bytes(&self) -> impl Iterator<Item = FileBytes> {
        let scaled = self.scaled.as_ref();
        let scales = scaled.map(|scaled| scaled.scales);
        let biases = scaled.and_then(|scaled| scaled.biases);
        [Some(self.bytes), scales, biases].into_iter().flatten()
    }

    /// Format of the values in memory.
    pub fn held_format(&self) -> WeightFormat {
        match self.kind {
            DenseKind::Transposed { .. } if !self.format.is_float() => WeightFormat::F32,
            _ => self.format,
        }
    }

    /// Bytes the tensor takes in memory.
    pub fn resident_bytes(&self) -> usize {
        match self.kind {
            DenseKind::Matrix { rows, columns } | DenseKind::Transposed { rows, columns } => {
                packed_bytes(self.held_format(), rows, columns)
            }
            DenseKind::Table { rows, columns, .. } => rows * columns * size_of::<u32>(),
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

/// What the frequencies of a rotary embedding are divided by, one value per frequency.
#[derive(Clone, Debug, PartialEq)]
pub enum FrequencyDivisors {
    /// Nothing.
    None,
    /// A tensor of the file (`rope_freqs.weight`).
    Tensor(VectorHandle),
    /// Values that follow from the metadata.
    Values(Vec<f32>),
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
    /// Divisors per frequency, `dimensions / 2` values.
    pub divisors: FrequencyDivisors,
    /// Factor on sines and cosines; 1 for none.
    pub magnitude: f32,
}

/// A norm of the rows of the residual stream, with the model's epsilon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormSpec {
    /// The row as it is.
    None,
    /// RMSNorm (Zhang and Sennrich, arXiv 1910.07467).
    Rms(VectorHandle),
    /// LayerNorm (Ba et al., arXiv 1607.06450) with weight and bias.
    Layer {
        /// Factor per element.
        weight: VectorHandle,
        /// Added per element.
        bias: VectorHandle,
    },
}

/// RMSNorms of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueryKeyNorm {
    /// As long as a head, which is then normed by itself, or as a whole row.
    pub query: VectorHandle,
    /// As `query`, for keys.
    pub key: VectorHandle,
    /// Whether the rotation comes first.
    pub after_rotation: bool,
}

/// How a layer attends: one variant per kind, each computed by a module of its own.
#[derive(Clone, Debug)]
pub enum AttentionKind {
    /// Grouped queries over cached keys and values (`attend.rs`).
    Grouped(AttentionSpec),
    /// One compressed row per position for all heads (`latent.rs`).
    Latent(LatentSpec),
    /// A state of fixed size instead of a row per position (`recurrent/`).
    Recurrent(RecurrentSpec),
    /// A window, and one compressed row for every group of positions before (`compressed.rs`).
    Compressed(CompressedSpec),
}

/// Elements that one position takes in the cache of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheRow {
    /// Elements of the keys.
    pub keys: usize,
    /// Elements of the values; 0 where values are the first elements of the keys.
    pub values: usize,
    /// Elements of the key that positions are chosen by ([`crate::KvPool`] stores it in half precision at least); 0 for none.
    pub index: usize,
}

impl CacheRow {
    /// Keys of which the first elements are the values, too.
    pub const fn shared(elements: usize) -> Self {
        Self { keys: elements, values: 0, index: 0 }
    }

    /// The same with an index key.
    pub const fn with_index(self, elements: usize) -> Self {
        Self { index: elements, ..self }
    }
}

impl From<usize> for CacheRow {
    /// Keys and values of the same number of elements.
    fn from(elements: usize) -> Self {
        Self { keys: elements, values: elements, index: 0 }
    }
}

impl AttentionKind {
    /// Heads that attend to the cache, and their size; `None` for a layer without a cache.
    pub fn shape(&self) -> Option<AttentionShape> {
        match self {
            Self::Grouped(spec) => Some(spec.shape),
            Self::Latent(spec) => Some(spec.shape()),
            Self::Recurrent(_) => None,
            Self::Compressed(spec) => Some(spec.shape()),
        }
    }

    /// What one position takes in the cache.
    pub fn cache_row(&self) -> CacheRow {
        match self {
            Self::Grouped(spec) => {
                let index = spec.sparse.map_or(0, |index| index.head_dim);
                CacheRow::from(spec.shape.kv_row_len()).with_index(index)
            }
            Self::Latent(spec) => {
                let index = spec.selection.map_or(0, |selection| selection.index_len());
                CacheRow::shared(spec.row_len()).with_index(index)
            }
            Self::Compressed(spec) => spec.cache_row(),
            Self::Recurrent(_) => 0.into(),
        }
    }

    /// f32 numbers of state of one sequence; 0 for layers that attend to a cache.
    pub fn state_len(&self) -> usize {
        match self {
            Self::Grouped(_) | Self::Latent(_) | Self::Compressed(_) => 0,
            Self::Recurrent(spec) => spec.state_len(),
        }
    }
}

/// Value heads that are smaller than key heads, or scaled. They are cached as wide as key heads, with zeros behind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ValueHeads {
    /// Elements of a value head, at most those of a key head.
    pub head_dim: usize,
    /// Factor on the values.
    pub scale: f32,
}

/// Queries at position `p` are multiplied by `1 + scale * ln(1 + floor((p + 1) / floor))` (Nakanishi, arXiv 2501.19399).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Temperature {
    /// Positions over which the factor stays the same.
    pub floor: f32,
    /// How fast it grows.
    pub scale: f32,
}

/// Grouped-query attention with a causal mask.
#[derive(Clone, Debug)]
pub struct AttentionSpec {
    /// Heads and their size.
    pub shape: AttentionShape,
    /// Query projection, [`AttentionSpec::projected_len`] rows.
    pub query: LinearSpec,
    /// Key projection, `kv_heads * head_dim` rows.
    pub key: LinearSpec,
    /// Value projection, `kv_heads` times [`AttentionSpec::value_dim`] rows.
    pub value: LinearSpec,
    /// Output projection, hidden size rows.
    pub output: LinearSpec,
    /// Norms of queries and keys, if any.
    pub norms: Option<QueryKeyNorm>,
    /// Index into [`ModelSpec::ropes`]; absent for layers without positions.
    pub rope: Option<usize>,
    /// Positions that a query sees, its own included; absent for all before it.
    pub window: Option<usize>,
    /// Positions are cut into chunks of this many; a query sees those of its own chunk.
    pub chunk: Option<usize>,
    /// Whether heads of queries and keys are divided by their root mean square, after the rotation.
    pub unit_heads: bool,
    /// Factor on queries that grows with the position.
    pub temperature: Option<Temperature>,
    /// One logit per query head that takes part in the softmax without a value.
    pub sinks: Option<VectorHandle>,
    /// Value heads that differ from key heads.
    pub values: Option<ValueHeads>,
    /// Which positions are attended to, if not all (`block_sparse.rs`).
    pub sparse: Option<BlockIndexSpec>,
    /// Whether the query projection brings a gate for each element of the result too, of each head behind its query.
    pub gated: bool,
    /// Factor on the dot products, usually `head_dim^-1/2`.
    pub scale: f32,
}

impl AttentionSpec {
    /// Elements of a value head.
    pub fn value_dim(&self) -> usize {
        self.values.map_or(self.shape.head_dim, |values| values.head_dim)
    }

    /// Elements of a row of the query projection.
    pub fn projected_len(&self) -> usize {
        self.shape.query_row_len() * if self.gated { 2 } else { 1 }
    }
}

/// `down(activation(gate(x)) * up(x))` with its own dense weights.
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
    /// Activation of the gate.
    pub activation: Activation,
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
    /// Activation of the experts' gates.
    pub activation: Activation,
    /// What is added to the products of the experts, if anything.
    pub biases: Option<ExpertBiases>,
    /// What their matrices are multiplied by.
    pub factors: ExpertFactors,
    /// The router.
    pub router: RouterSpec,
    /// Whether the weights multiply what goes into the experts instead of what comes out.
    pub weigh_input: bool,
    /// The shared expert, if any.
    pub shared: Option<SharedExpertSpec>,
    /// What goes into the matrices of the experts, beside this.
    pub rotations: ExpertRotations,
}

/// What follows attention in a layer.
#[derive(Clone, Debug)]
pub enum FeedForwardSpec {
    /// One dense gated network.
    Dense(GatedFeedForwardSpec),
    /// Routed experts.
    Moe(MoeSpec),
    /// Both of the same input; what the experts give is added after the next layer (LongCat-Flash, arXiv 2509.01322).
    Shortcut {
        /// Added here.
        dense: GatedFeedForwardSpec,
        /// Added after the next layer.
        mixture: MoeSpec,
    },
}

impl FeedForwardSpec {
    /// Its routed experts.
    pub fn mixture(&self) -> Option<&MoeSpec> {
        match self {
            Self::Dense(_) => None,
            Self::Moe(moe) | Self::Shortcut { mixture: moe, .. } => Some(moe),
        }
    }

    /// Its dense network; without shared experts.
    pub fn dense(&self) -> Option<&GatedFeedForwardSpec> {
        match self {
            Self::Dense(dense) | Self::Shortcut { dense, .. } => Some(dense),
            Self::Moe(_) => None,
        }
    }
}

/// One decoder layer: `x += a * attention(norm(x)); x += a * feed_forward(norm(x))`, each result normed once more where the
/// layer has a norm for it; `a` is [`ModelSpec::residual_scale`]. With [`ModelSpec::normed_stream`] it is what that says.
#[derive(Clone, Debug)]
pub struct LayerSpec {
    /// Norm before attention.
    pub attention_norm: NormSpec,
    /// Attention.
    pub attention: AttentionKind,
    /// RMSNorm of what attention adds.
    pub attention_result_norm: Option<VectorHandle>,
    /// Norm before the feed-forward block.
    pub feed_forward_norm: NormSpec,
    /// Feed-forward block.
    pub feed_forward: FeedForwardSpec,
    /// RMSNorm of what the feed-forward block adds.
    pub feed_forward_result_norm: Option<VectorHandle>,
}

/// What is left of the residual stream and what is added to it by half a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StreamFactors {
    /// Factor on the stream.
    pub kept: f32,
    /// Factor on what is added.
    pub added: f32,
}

/// A residual stream that is normed itself: `x = norm(x); x = kept * x + added * half(x)`, where other models add to what
/// was not normed.
#[derive(Clone, Debug, PartialEq)]
pub struct NormedStream {
    /// Of attention, per layer.
    pub attention: Vec<StreamFactors>,
    /// Of the feed-forward block.
    pub feed_forward: StreamFactors,
}

impl LayerSpec {
    /// Whether something of this layer is added after the next one.
    pub fn has_shortcut(&self) -> bool {
        matches!(self.feed_forward, FeedForwardSpec::Shortcut { .. })
    }
}

/// A complete model.
#[derive(Clone, Debug)]
pub struct ModelSpec {
    /// Family name, as registered.
    pub family: &'static str,
    /// `general.name` of the file; the name of a Hugging Face folder.
    pub name: Option<String>,
    /// Rows of the embedding and of the output head.
    pub vocabulary: usize,
    /// Size of the residual stream.
    pub hidden: usize,
    /// Longest context the file states.
    pub trained_context: usize,
    /// Positions beyond which the model would have to be computed in another way, if there are any.
    pub context_limit: Option<usize>,
    /// Epsilon of every norm.
    pub norm_epsilon: f32,
    /// Token embedding, one row per token.
    pub embedding: MatrixHandle,
    /// Factor on embeddings.
    pub embedding_scale: f32,
    /// Factor on what each half of a layer adds to the residual stream.
    pub residual_scale: f32,
    /// Whether layers norm the residual stream itself, and what they add.
    pub normed_stream: Option<NormedStream>,
    /// The residual streams and how layers meet them, if there is more than a plain one.
    pub streams: Option<StreamsSpec>,
    /// Embeddings of n-grams before some layers, in order of layers.
    pub ple: Vec<PleSpec>,
    /// Norm before the head.
    pub output_norm: NormSpec,
    /// Output head; the embedding itself where the file ties them.
    pub output: MatrixHandle,
    /// Added to the logits.
    pub output_bias: Option<VectorHandle>,
    /// Factor on the logits.
    pub logit_scale: f32,
    /// The rotary embeddings that layers refer to.
    pub ropes: Vec<RopeSpec>,
    /// The decoder layers.
    pub layers: Vec<LayerSpec>,
    /// Every dense tensor, with its place in the dense buffer.
    pub tensors: Vec<DenseTensor>,
    /// The routed experts of each MoE block, in layer order.
    pub experts: Vec<LayerExperts>,
    /// Tables that stay on disk and whose rows are looked up by number.
    pub row_tables: Vec<RowTable>,
    /// Where the tensors decided against the metadata, in sentences.
    pub notes: Vec<String>,
}

impl ModelSpec {
    /// Bytes of the dense weights in memory.
    pub fn dense_bytes(&self) -> usize {
        self.tensors.last().map_or(0, |tensor| tensor.place.end)
    }

    /// The tensor that a matrix is read from.
    pub fn tensor(&self, handle: MatrixHandle) -> &DenseTensor {
        &self.tensors[handle.0]
    }

    /// f32 numbers of state of one sequence: of each layer, then of each embedding of n-grams.
    pub fn state_lens(&self) -> impl Iterator<Item = usize> {
        let carried = self.hidden * self.streams.as_ref().map_or(1, |streams| streams.count);
        let embeddings = self.ple.iter().map(move |ple| ple.state_len(carried));
        self.layers.iter().map(|layer| layer.attention.state_len()).chain(embeddings)
    }

    /// Largest number of routed experts that one token uses in one layer.
    pub fn experts_per_token(&self) -> usize {
        self.moe_blocks().map(|moe| moe.router.top_k).max().unwrap_or(0)
    }

    /// The MoE blocks in layer order.
    pub fn moe_blocks(&self) -> impl Iterator<Item = &MoeSpec> {
        self.layers.iter().filter_map(|layer| layer.feed_forward.mixture())
    }
}
