//! Qwen3 (`qwen3`): GQA with per-head q/k RMSNorm, a dense gated network.
//!
//! Reference: `modeling_qwen3.py` of transformers.

use super::blocks::{self, Norms};
use super::{Family, Outline};
use crate::builder::SpecBuilder;
use crate::error::ModelError;
use crate::names::{HuggingFace, UNUSED_WINDOW};
use crate::spec::RopePairing;

pub(super) const FAMILY: Family = Family {
    gguf: "qwen3",
    hugging_face: &[HuggingFace { accepted: UNUSED_WINDOW, ..HuggingFace::usual("qwen3") }],
    describe,
};

fn describe(builder: &mut SpecBuilder<'_>) -> Result<Outline, ModelError> {
    blocks::decoder(builder, RopePairing::HalfSplit, Norms::PerHead, blocks::dense)
}
