//! Qwen3 (`qwen3`): GQA with per-head q/k RMSNorm, a dense gated network.
//!
//! Reference: `modeling_qwen3.py` of transformers.

use super::blocks::{self, Norms};
use super::{Family, Outline, rope::rope};
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
    let frame = blocks::frame(builder)?;
    let hidden = frame.hidden;
    let shape = blocks::head_shape(builder, hidden)?;
    let rope = rope(builder, RopePairing::HalfSplit, shape.head_dim)?;
    let layers = blocks::layers(builder, &frame, shape, Norms::PerHead, |builder, layer| {
        blocks::dense(builder, layer, hidden)
    })?;
    Ok(Outline { frame, ropes: vec![rope], layers })
}
