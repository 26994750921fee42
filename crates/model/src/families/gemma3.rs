//! Gemma 3 (`gemma3`, text): GQA with per-head q/k RMSNorm, five layers with a window and a rotary embedding of their own before
//! each layer that sees everything, norms before and after each half of a layer, a dense network with GELU, scaled
//! embeddings. Checkpoints store norms as differences from 1; GGUF files store the sums.
//!
//! Reference: `modeling_gemma3.py` of transformers.

use coldpress_kernels::Activation;

use super::blocks::{self, Norms};
use super::{Family, Outline, rope};
use crate::builder::SpecBuilder;
use crate::error::ModelError;
use crate::names::{Accepted, HuggingFace};
use crate::spec::{AttentionKind, FeedForwardSpec, FrequencyDivisors, LayerSpec, RopePairing, RopeSpec};

pub(super) const FAMILY: Family = Family {
    gguf: "gemma3",
    hugging_face: &[HuggingFace {
        keys: KEYS,
        tensors: TENSORS,
        accepted: ACCEPTED,
        norm_offset: 1.0,
        ..HuggingFace::usual("gemma3_text")
    }],
    describe,
};

const KEYS: &[(&str, &str)] = &[
    ("attention.layer_kinds", "layer_types"),
    ("attention.sliding_window_pattern", "sliding_window_pattern"),
    ("attention.sliding_window_pattern", "_sliding_window_pattern"),
    ("attention.scalar", "query_pre_attn_scalar"),
    ("rope.freq_base", "rope_theta"),
    ("rope.freq_base", "rope_parameters.full_attention.rope_theta"),
    ("rope.freq_base_swa", "rope_local_base_freq"),
    ("rope.freq_base_swa", "rope_parameters.sliding_attention.rope_theta"),
    ("rope.scaling.type", "rope_scaling.rope_type"),
    ("rope.scaling.type", "rope_parameters.full_attention.rope_type"),
    ("rope.scaling.factor", "rope_scaling.factor"),
    ("rope.scaling.factor", "rope_parameters.full_attention.factor"),
];

const TENSORS: &[(&str, &str)] = &[
    ("blk.post_attention_norm", "post_attention_layernorm"),
    ("blk.ffn_norm", "pre_feedforward_layernorm"),
    ("blk.post_ffw_norm", "post_feedforward_layernorm"),
];

const ACCEPTED: &[(&str, Accepted)] = &[
    ("hidden_activation", Accepted::Text(&["gelu_pytorch_tanh"])),
    ("hidden_act", Accepted::Text(&["gelu_pytorch_tanh"])),
    ("layer_types", Accepted::Text(&["sliding_attention", "full_attention"])),
    ("rope_parameters.sliding_attention.rope_type", Accepted::Text(&["default"])),
    ("sliding_window", Accepted::Anything),
];

/// The published models: every sixth layer sees everything, the others have this base.
const PATTERN: u64 = 6;
const WINDOW_BASE: f32 = 10_000.0;
const BASE: f32 = 1_000_000.0;
/// Layers of the one published size whose dot products are scaled by hidden size over heads; GGUF does not state it.
const LAYERS_OF_27B: usize = 62;

fn describe(builder: &mut SpecBuilder<'_>) -> Result<Outline, ModelError> {
    let mut frame = blocks::frame(builder)?;
    let hidden = frame.hidden;
    frame.embedding_scale = (hidden as f32).sqrt();
    let shape = blocks::head_shape(builder, hidden)?;
    let window = builder.dimension("attention.sliding_window")?;
    let sees_all = SeesAll::read(builder, frame.layer_count)?;
    let scalar = match builder.optional_float("attention.scalar")? {
        Some(scalar) if scalar > 0.0 => scalar,
        Some(scalar) => return Err(builder.bad(format!("query_pre_attn_scalar is {scalar}"))),
        None if frame.layer_count == LAYERS_OF_27B => (hidden / shape.heads) as f32,
        None => shape.head_dim as f32,
    };
    let ropes = ropes(builder, shape.head_dim)?;
    let width = builder.dimension("feed_forward_length")?;
    let mut layers = Vec::new();
    for layer in 0..frame.layer_count {
        let mut attention = blocks::attention(builder, layer, hidden, shape, Norms::PerHead)?;
        attention.scale = 1.0 / scalar.sqrt();
        if !sees_all.layer(layer) {
            attention.window = Some(window);
            attention.rope = Some(1);
        }
        let mut feed_forward = blocks::gated(builder, layer, "", hidden, width)?;
        feed_forward.activation = Activation::GeluTanh;
        let name = |part: &str| format!("blk.{layer}.{part}");
        layers.push(LayerSpec {
            attention_norm: builder.norm(&name("attn_norm"), hidden)?,
            attention: AttentionKind::Grouped(attention),
            attention_result_norm: Some(builder.rms_norm(&name("post_attention_norm"), hidden)?),
            feed_forward_norm: builder.norm(&name("ffn_norm"), hidden)?,
            feed_forward: FeedForwardSpec::Dense(feed_forward),
            feed_forward_result_norm: Some(builder.rms_norm(&name("post_ffw_norm"), hidden)?),
        });
    }
    Ok(Outline { frame, ropes, layers })
}

/// Which layers see everything.
struct SeesAll {
    /// One entry per layer, where the file lists them.
    listed: Option<Vec<bool>>,
    /// Otherwise every layer whose number, from 1, is a multiple of this.
    pattern: u64,
}

impl SeesAll {
    fn read(builder: &SpecBuilder<'_>, layers: usize) -> Result<SeesAll, ModelError> {
        let kinds = builder.metadata().opt_string_array(&builder.key("attention.layer_kinds")?)?;
        let pattern = builder.integer("attention.sliding_window_pattern")?.unwrap_or(PATTERN).max(1);
        if let Some(kinds) = kinds.as_ref().filter(|kinds| kinds.len() != layers) {
            return Err(builder.bad(format!("layer_types has {} entries for {layers} layers", kinds.len())));
        }
        let listed = kinds.map(|kinds| kinds.iter().map(|kind| kind == "full_attention").collect());
        Ok(SeesAll { listed, pattern })
    }

    fn layer(&self, layer: usize) -> bool {
        match &self.listed {
            Some(listed) => listed[layer],
            None => (layer as u64 + 1).is_multiple_of(self.pattern),
        }
    }
}

/// The rotary embedding of layers that see everything, then that of layers with a window.
fn ropes(builder: &mut SpecBuilder<'_>, head_dim: usize) -> Result<Vec<RopeSpec>, ModelError> {
    let mut global = rope::rope(builder, RopePairing::HalfSplit, head_dim)?;
    global.base = builder.positive_or("rope.freq_base", BASE)?;
    let base = builder.positive_or("rope.freq_base_swa", WINDOW_BASE)?;
    let local = RopeSpec { base, linear_factor: 1.0, divisors: FrequencyDivisors::None, ..global.clone() };
    Ok(vec![global, local])
}
