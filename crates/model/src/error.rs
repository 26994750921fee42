//! What can go wrong between a model file and its logits.

use std::fmt;

use coldpress_experts::ExpertError;
use coldpress_formats::FormatError;
use coldpress_memory::MemoryError;

/// What the KV cache is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolPart {
    /// Pages of keys and values.
    Pages,
    /// Slots for recurrent states.
    States,
}

impl fmt::Display for PoolPart {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Pages => "pages of 64 positions",
            Self::States => "slots for recurrent states",
        })
    }
}

/// Too little of the KV cache is free; no sequence has changed what it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the KV cache has {free} free {part} and {needed} are needed: end other conversations or load with more positions"
)]
pub struct PoolFull {
    /// What is short.
    pub part: PoolPart,
    /// How many are needed.
    pub needed: usize,
    /// How many are free.
    pub free: usize,
}

/// Errors of this crate, by what the caller can do about them.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The architecture is not one that coldpress computes.
    #[error("{file}: architecture '{found}' is not supported; {near}supported are: {supported}")]
    UnknownArchitecture {
        /// The model file.
        file: String,
        /// `general.architecture` of the file.
        found: String,
        /// Names like it, with the words around them; empty where there are none.
        near: String,
        /// Names of the registered families.
        supported: String,
    },
    /// The file's metadata or tensors contradict each other or the architecture.
    #[error("{file}: {detail}")]
    BadModel {
        /// The model file.
        file: String,
        /// What is wrong, with names and numbers.
        detail: String,
    },
    /// The file uses a feature of its architecture that coldpress does not compute.
    #[error("{file}: {detail}")]
    Unsupported {
        /// The model file.
        file: String,
        /// The feature and the value found.
        detail: String,
    },
    /// Reading metadata failed.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// An expert could not be read.
    #[error(transparent)]
    Expert(#[from] ExpertError),
    /// The ledger or the system refused memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// More tokens than the KV cache holds.
    #[error("{asked} tokens do not fit the context of {context}: shorten the prompt or raise --ctx")]
    ContextFull {
        /// Tokens that would have to be in the cache.
        asked: usize,
        /// Positions the cache has.
        context: usize,
    },
    /// The pool of the KV cache has too few free pages.
    #[error(transparent)]
    PoolFull(#[from] PoolFull),
    /// The KV cache cannot or may not be stored as asked.
    #[error("the KV cache cannot be {kv_type}: {reason}; allowed: {allowed}")]
    KvType {
        /// The type that was asked for.
        kv_type: &'static str,
        /// Why not.
        reason: String,
        /// Types that can be used.
        allowed: String,
    },
    /// A token id outside the vocabulary.
    #[error("token id {id} is outside the vocabulary of {vocabulary} entries")]
    UnknownToken {
        /// The id.
        id: u32,
        /// Rows of the embedding.
        vocabulary: usize,
    },
    /// The caller asked to stop; the KV cache is as it was before the call.
    #[error("stopped on request")]
    Cancelled,
    /// A layer produced a value that is not finite.
    #[error(
        "layer {layer}: {stage} produced a value that is not finite; the weights are damaged or overflow f32"
    )]
    NotFinite {
        /// Index of the layer, or the layer count for the output head.
        layer: usize,
        /// The operation.
        stage: &'static str,
    },
}
