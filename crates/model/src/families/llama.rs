//! Llama (`llama`): GQA and a dense gated network, or, where the file states an expert count, Mixtral's softmax router with
//! renormalised top-k. GGUF converters permute q and k of these models for interleaved rotary pairs; checkpoints pair the
//! halves of a head.
//!
//! Reference: `modeling_llama.py` and `modeling_mixtral.py` of transformers.

use super::blocks::{self, Norms, Recipe};
use super::{Family, Outline};
use crate::builder::SpecBuilder;
use crate::error::ModelError;
use crate::names::HuggingFace;
use crate::spec::RopePairing;

pub(super) const FAMILY: Family = Family {
    gguf: "llama",
    hugging_face: &[
        HuggingFace::usual("llama"),
        HuggingFace::usual("mistral"),
        HuggingFace { tensors: BLOCK_SPARSE, ..HuggingFace::usual("mixtral") },
    ],
    describe,
};

/// Names of experts in the first mixtures of checkpoints.
pub(super) const BLOCK_SPARSE: &[(&str, &str)] = &[
    ("blk.ffn_gate_inp", "block_sparse_moe.gate"),
    ("blk.ffn_gate.{e}", "block_sparse_moe.experts.{e}.w1"),
    ("blk.ffn_up.{e}", "block_sparse_moe.experts.{e}.w3"),
    ("blk.ffn_down.{e}", "block_sparse_moe.experts.{e}.w2"),
];

fn describe(builder: &mut SpecBuilder<'_>) -> Result<Outline, ModelError> {
    let pairing = builder.by_source(RopePairing::Interleaved, RopePairing::HalfSplit);
    let routed = builder.integer("expert_count")?.unwrap_or(0) > 0;
    let options = if routed {
        let width = match builder.optional_dimension("expert_feed_forward_length")? {
            Some(width) => width,
            None => builder.dimension("feed_forward_length")?,
        };
        Some(blocks::moe_options(builder, width, Recipe::softmax(true))?)
    } else {
        None
    };
    blocks::decoder(builder, pairing, Norms::None, |builder, layer, hidden| match options {
        Some(options) => blocks::moe(builder, layer, hidden, options),
        None => blocks::dense(builder, layer, hidden),
    })
}
