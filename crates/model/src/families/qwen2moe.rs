//! Qwen2-MoE (`qwen2moe`): GQA with biases on q, k and v, softmax router, a shared expert behind a sigmoid gate. The published
//! models, and so all GGUF files, leave the weights of the chosen experts as they are.
//!
//! Reference: `modeling_qwen2_moe.py` of transformers.

use super::blocks::{self, Norms, Recipe, SharedOptions};
use super::layer_kinds::{self, Windows};
use super::{Family, Outline, rope::rope};
use crate::builder::SpecBuilder;
use crate::error::ModelError;
use crate::names::HuggingFace;
use crate::spec::RopePairing;

pub(super) const FAMILY: Family = Family {
    gguf: "qwen2moe",
    hugging_face: &[HuggingFace {
        keys: KEYS,
        accepted: layer_kinds::QWEN_WINDOWS,
        ..HuggingFace::usual("qwen2_moe")
    }],
    describe,
};

const KEYS: &[(&str, &str)] = &[
    ("attention.has_bias", "qkv_bias"),
    ("attention.layer_kinds", "layer_types"),
    ("attention.window_in_use", "use_sliding_window"),
    ("attention.window_bound", "max_window_layers"),
    ("sparse_step", "decoder_sparse_step"),
    ("dense_layers", "mlp_only_layers"),
];

fn describe(builder: &mut SpecBuilder<'_>) -> Result<Outline, ModelError> {
    let frame = blocks::frame(builder)?;
    let hidden = frame.hidden;
    let shape = blocks::head_shape(builder, hidden)?;
    let dense_width = builder.optional_dimension("feed_forward_length")?;
    let top_k = builder.dimension("expert_used_count")?;
    // Files from before these keys existed give both widths through feed_forward_length.
    let expert_width = match builder.optional_dimension("expert_feed_forward_length")? {
        Some(width) => width,
        None => dense_width.map(|width| width / top_k).ok_or_else(|| {
            builder.bad("neither expert_feed_forward_length nor feed_forward_length is present")
        })?,
    };
    let shared_width = match builder.optional_dimension("expert_shared_feed_forward_length")? {
        Some(width) => width,
        None => dense_width.ok_or_else(|| {
            builder.bad("neither expert_shared_feed_forward_length nor feed_forward_length is present")
        })?,
    };
    let renormalize = builder.flag("expert_weights_norm")?.unwrap_or(false);
    let options = blocks::MoeOptions {
        shared: Some(SharedOptions { width: shared_width, gated: true }),
        ..blocks::moe_options(builder, expert_width, Recipe::softmax(renormalize))?
    };
    let rope = rope(builder, RopePairing::HalfSplit, shape.head_dim)?;
    let dense = layer_kinds::dense_between(builder, frame.layer_count)?;
    let layers = blocks::layers(builder, &frame, shape, Norms::None, |builder, layer| match dense[layer] {
        true => blocks::dense(builder, layer, hidden),
        false => blocks::moe(builder, layer, hidden, options),
    })?;
    layer_kinds::with_windows(
        builder,
        Outline { frame, ropes: vec![rope], layers },
        Windows::EverySecondBefore,
    )
}
