//! Qwen2 and Qwen2.5 (`qwen2`): GQA with biases on q, k and v, a dense gated network.
//!
//! Reference: `modeling_qwen2.py` of transformers.

use super::blocks::{self, Norms};
use super::{Family, Outline};
use crate::builder::SpecBuilder;
use crate::error::ModelError;
use crate::names::{HuggingFace, UNUSED_WINDOW};
use crate::spec::RopePairing;

pub(super) const FAMILY: Family = Family {
    gguf: "qwen2",
    hugging_face: &[HuggingFace { accepted: UNUSED_WINDOW, ..HuggingFace::usual("qwen2") }],
    describe,
};

fn describe(builder: &mut SpecBuilder<'_>) -> Result<Outline, ModelError> {
    blocks::decoder(builder, RopePairing::HalfSplit, Norms::None, blocks::dense)
}
