//! Model architectures as data, the layers they are made of, the KV cache and the forward pass.
//!
//! [`describe`] turns a model file's metadata into a [`ModelSpec`]; [`DenseWeights`] holds everything outside the routed
//! experts; [`Model::forward`] computes. Experts come from `coldpress-experts`, arithmetic from `coldpress-kernels`.
//! This crate opens no files, owns no threads and prints nothing.
//!
//! To add a family read `families/mod.rs`; to follow a token read `forward.rs`.
#![forbid(unsafe_code)]

mod attend;
mod attention_gate;
mod block_sparse;
mod builder;
mod compressed;
mod containers;
mod error;
mod families;
mod feed_forward;
mod forward;
mod indexer;
mod kv;
mod latent;
mod lossy_routing;
mod low_rank_mixer;
mod names;
mod nested;
mod ngram;
mod ple;
mod query_key;
mod recurrent;
mod roles;
mod rotation;
mod route;
mod scaled;
mod scratch;
mod segments;
mod sinkhorn;
mod spec;
mod states;
mod streams;
mod times;
mod value_heads;
mod weights;

pub use block_sparse::BlockIndexSpec;
pub use coldpress_kernels::attention::PAGE_POSITIONS;
pub use compressed::{CompressedSpec, CompressionSpec, CompressorSpec, GroupIndexerSpec};
pub use error::{ModelError, PoolFull, PoolPart};
pub use families::{
    allowed_kv_types, check_kv_type, describe, describe_with_roles, family_names, hugging_face_model_types,
};
pub use forward::{ForwardEngine, ForwardObserver, LogitsWanted, Model, Segment};
pub use indexer::{IndexerSpec, Selection};
pub use kv::{KvPool, KvType, Sequence, kv_bytes_per_token};
pub use latent::{HeadMatrices, LatentQuery, LatentSpec};
pub use low_rank_mixer::LowRankMixer;
pub use ngram::{NGRAM_MAX, NgramShape, NgramSpec};
pub use ple::{PleNorms, PleSpec};
pub use recurrent::{
    ConvolutionSpec, ConvolutionTaps, DecayRate, DeltaRuleSpec, GateProjection, GatedDeltaSpec,
    KimiDeltaSpec, LightningSpec, Mamba2Spec, Projections, RecurrentSpec, ShortConvolutionSpec,
};
pub use roles::{Role, TensorRole};
pub use scratch::{BLOCK_ROWS, Scratch, ScratchCost, ScratchShape, scratch_cost};
pub use sinkhorn::{SigmoidMixer, SinkhornMixer};
pub use spec::*;
pub use states::{KEPT_STATES_MAX, KeptState, state_bytes};
pub use streams::{STREAMS_MAX, StreamMixer, StreamsSpec};
pub use times::{Phase, PhaseClock, PhaseRecord, PhaseStretch, PhaseTimes};
pub use weights::{DenseWeights, TensorReader, largest_piece};
