//! Qwen3 (`qwen3`): GQA with per-head q/k RMSNorm, a dense gated network.
//!
//! Reference: `modeling_qwen3.py` of transformers.

use super::blocks::{self, Norms};
use super::layer_kinds::{self, Windows};
use super::{Family, Outline};
use crate::builder::SpecBuilder;
use crate::error::ModelError;
use crate::names::HuggingFace;
use crate::spec::RopePairing;

pub(super) const FAMILY: Family = Family {
    gguf: "qwen3",
    hugging_face: &[HuggingFace {
        keys: layer_kinds::QWEN_KEYS,
        accepted: layer_kinds::QWEN_WINDOWS,
        ..HuggingFace::usual("qwen3")
    }],
    describe,
};

fn describe(builder: &mut SpecBuilder<'_>) -> Result<Outline, ModelError> {
    let outline = blocks::decoder(builder, RopePairing::HalfSplit, Norms::PerHead, blocks::dense)?;
    layer_kinds::with_windows(builder, outline, Windows::FromLayer)
}
