//! MiniMax-01 and M1 (`minimax`): lightning attention in most layers, GQA in the others; the residual stream itself is normed, and
//! each half of a layer has a factor on what is kept and one on what is added. Softmax router with renormalised weights. No
//! GGUF file of it is known.
//!
//! Reference: `modeling_minimax.py` of transformers.

use super::blocks::{self, Frame, Norms, Recipe};
use super::{Family, Outline, layer_kinds, rope::rope};
use crate::builder::SpecBuilder;
use crate::error::ModelError;
use crate::names::{Accepted, HuggingFace};
use crate::recurrent::{LightningSpec, RecurrentSpec};
use crate::spec::{AttentionKind, LayerSpec, NormedStream, RopePairing, StreamFactors};

pub(super) const FAMILY: Family = Family {
    gguf: "minimax",
    hugging_face: &[of_type("minimax"), of_type("minimax_text_01"), of_type("minimax_m1")],
    describe,
};

const fn of_type(model_type: &'static str) -> HuggingFace {
    HuggingFace { keys: KEYS, tensors: TENSORS, accepted: ACCEPTED, ..HuggingFace::usual(model_type) }
}

/// In the spelling of transformers, and in that of checkpoints with code of their own.
const KEYS: &[(&str, &str)] = &[
    ("attention.full_layers", "attn_type_list"),
    ("attention.layer_kinds", "layer_types"),
    ("expert_feed_forward_length", "intermediate_size"),
    ("rope.dimension_count", "rotary_dim"),
    ("stream.feed_forward_added", "mlp_beta_factor"),
    ("stream.feed_forward_added", "layernorm_mlp_beta"),
    ("stream.feed_forward_kept", "mlp_alpha_factor"),
    ("stream.feed_forward_kept", "layernorm_mlp_alpha"),
    ("stream.full_added", "full_attn_beta_factor"),
    ("stream.full_added", "layernorm_full_attention_beta"),
    ("stream.full_kept", "full_attn_alpha_factor"),
    ("stream.full_kept", "layernorm_full_attention_alpha"),
    ("stream.linear_added", "linear_attn_beta_factor"),
    ("stream.linear_added", "layernorm_linear_attention_beta"),
    ("stream.linear_kept", "linear_attn_alpha_factor"),
    ("stream.linear_kept", "layernorm_linear_attention_alpha"),
];

const TENSORS: &[(&str, &str)] = &[
    ("blk.attn_gate", "self_attn.output_gate"),
    ("blk.attn_mixed", "self_attn.qkv_proj"),
    ("blk.attn_mixed_norm", "self_attn.norm"),
    ("blk.attn_mixed_output", "self_attn.out_proj"),
    ("blk.ffn_gate_inp", "block_sparse_moe.gate"),
    ("blk.ffn_gate.{e}", "block_sparse_moe.experts.{e}.w1"),
    ("blk.ffn_up.{e}", "block_sparse_moe.experts.{e}.w3"),
    ("blk.ffn_down.{e}", "block_sparse_moe.experts.{e}.w2"),
];

/// Linear attention is computed position by position, so the length of the blocks of the reference has no effect.
const ACCEPTED: &[(&str, Accepted)] = &[
    ("block_size", Accepted::Anything),
    ("layer_types", Accepted::Text(&["linear_attention", "full_attention"])),
    ("postnorm", Accepted::Flag(true)),
    ("shared_moe_mode", Accepted::Anything),
];

/// Buffers of the reference that follow from the configuration.
const DERIVED: &[&str] = &["slope_rate", "query_decay", "key_decay", "diagonal_decay"];
/// Epsilon of the norm after linear attention, whatever the configuration says of the others.
const MIXED_NORM_EPSILON: f32 = 1e-6;

fn describe(builder: &mut SpecBuilder<'_>) -> Result<Outline, ModelError> {
    let mut frame = blocks::frame(builder)?;
    let hidden = frame.hidden;
    let shape = blocks::head_shape(builder, hidden)?;
    let attends = attending(builder, frame.layer_count)?;
    let rope = rope(builder, RopePairing::HalfSplit, shape.head_dim)?;
    let width = builder.dimension("expert_feed_forward_length")?;
    let options = blocks::moe_options(builder, width, Recipe::softmax(true))?;
    if !shape.head_dim.is_multiple_of(16) {
        let what =
            format!("linear attention with heads of {} elements, not a multiple of 16", shape.head_dim);
        return Err(builder.unsupported(what));
    }
    let factors = |kind: &str| {
        let kept = builder.positive_or(&format!("stream.{kind}_kept"), 1.0)?;
        let added = builder.positive_or(&format!("stream.{kind}_added"), 1.0)?;
        Ok::<_, ModelError>(StreamFactors { kept, added })
    };
    let (full, linear) = (factors("full")?, factors("linear")?);
    let attention = attends.iter().map(|attends| if *attends { full } else { linear }).collect();
    frame.normed_stream = Some(NormedStream { attention, feed_forward: factors("feed_forward")? });
    let mut layers = Vec::new();
    for (layer, attends) in attends.into_iter().enumerate() {
        let attention = match attends {
            true => AttentionKind::Grouped(blocks::attention(builder, layer, hidden, shape, Norms::None)?),
            false => {
                let mixer = lightning(builder, layer, &frame, (shape.heads, shape.head_dim))?;
                AttentionKind::Recurrent(RecurrentSpec::Lightning(mixer))
            }
        };
        layers.push(LayerSpec {
            attention_norm: builder.norm(&format!("blk.{layer}.attn_norm"), hidden)?,
            attention,
            attention_result_norm: None,
            feed_forward_norm: builder.norm(&format!("blk.{layer}.ffn_norm"), hidden)?,
            feed_forward: blocks::moe(builder, layer, hidden, options)?,
            feed_forward_result_norm: None,
        });
    }
    Ok(Outline { frame, ropes: vec![rope], layers })
}

/// Per layer, whether it attends to all positions, by a list of texts or one of switches.
fn attending(builder: &SpecBuilder<'_>, layers: usize) -> Result<Vec<bool>, ModelError> {
    let switches = builder.per_layer("attention.full_layers", layers)?;
    let switches = switches.map(|list| list.into_iter().map(|switch| switch != 0).collect());
    let texts = layer_kinds::texts(builder, "attention.layer_kinds", "full_attention", layers)?;
    let (one, other) = (builder.key("attention.layer_kinds")?, builder.key("attention.full_layers")?);
    match (texts, switches) {
        (Some(texts), Some(switches)) if texts != switches => {
            Err(builder.bad(format!("{one} and {other} name different layers")))
        }
        (Some(layers), _) | (None, Some(layers)) => Ok(layers),
        (None, None) => Err(builder.bad(format!("{one} is missing"))),
    }
}

fn lightning(
    builder: &mut SpecBuilder<'_>,
    layer: usize,
    frame: &Frame,
    (heads, head_dim): (usize, usize),
) -> Result<LightningSpec, ModelError> {
    let stem = |part: &str| format!("blk.{layer}.attn_{part}");
    let (hidden, width) = (frame.hidden, heads * head_dim);
    for name in DERIVED {
        builder.pass_over_all(&format!("model.layers.{layer}.self_attn.{name}"));
    }
    Ok(LightningSpec {
        mixed: builder.linear(&stem("mixed"), 3 * width, hidden)?,
        gate: builder.linear(&stem("gate"), width, hidden)?,
        norm: builder.rms_norm(&stem("mixed_norm"), width)?,
        norm_epsilon: MIXED_NORM_EPSILON,
        output: builder.linear(&stem("mixed_output"), hidden, width)?,
        hidden,
        heads,
        head_dim,
        decays: decays(heads, layer, frame.layer_count),
    })
}

/// Heads forget the slower the higher their number, and in later layers more slowly than in earlier ones.
fn decays(heads: usize, layer: usize, layers: usize) -> Vec<f32> {
    let base = 2f64.powf(-8.0 / heads as f64);
    let factor = 1.0 - layer as f64 / (layers as f64 - 1.0 + 1e-5) + 1e-5;
    (1..=heads).map(|head| (-base.powi(head as i32) * factor).exp() as f32).collect()
}
