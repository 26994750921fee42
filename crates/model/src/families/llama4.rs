//! Llama 4, text (`llama4`): GQA in chunks of positions with interleaved rotary pairs and heads of unit size; every fourth layer sees
//! everything, has no positions, and scales its queries up with the position. Routed layers alternate with dense ones in
//! the larger model; the sigmoid of the chosen logit multiplies what goes into the expert, and a shared expert is added.
//!
//! Reference: `modeling_llama4.py` of transformers.

use super::blocks::{self, Norms, Recipe, SharedOptions};
use super::{Family, Outline, rope::rope};
use crate::builder::SpecBuilder;
use crate::error::ModelError;
use crate::names::{Accepted, HuggingFace};
use crate::spec::{AttentionKind, LayerSpec, Renormalize, RopePairing, RouterScores, Temperature};

pub(super) const FAMILY: Family = Family {
    gguf: "llama4",
    hugging_face: &[HuggingFace {
        keys: KEYS,
        tensors: TENSORS,
        mlx_tensors: MLX_TENSORS,
        accepted: ACCEPTED,
        ..HuggingFace::usual("llama4_text")
    }],
    describe,
};

const KEYS: &[(&str, &str)] = &[
    ("attention.chunk_size", "attention_chunk_size"),
    ("attention.layer_kinds", "layer_types"),
    ("attention.temperature_length", "floor_scale"),
    ("attention.temperature_scale", "attn_scale"),
    ("attention.temperature_tuning", "attn_temperature_tuning"),
    ("attention.unit_heads", "use_qk_norm"),
    ("expert_feed_forward_length", "intermediate_size"),
    ("feed_forward_length", "intermediate_size_mlp"),
    ("interleave_moe_layer_step", "interleave_moe_layer_step"),
    ("moe_layers", "moe_layers"),
    ("rope.layers", "no_rope_layers"),
    ("rope.layer_interval", "no_rope_layer_interval"),
];

const TENSORS: &[(&str, &str)] = &[
    ("blk.ffn_gate", "feed_forward.gate_proj"),
    ("blk.ffn_up", "feed_forward.up_proj"),
    ("blk.ffn_down", "feed_forward.down_proj"),
    ("blk.ffn_gate_inp", "feed_forward.router"),
    ("blk.ffn_gate_up_exps.weight", "feed_forward.experts.gate_up_proj"),
    ("blk.ffn_down_exps.weight", "feed_forward.experts.down_proj"),
    ("blk.ffn_gate_shexp", "feed_forward.shared_expert.gate_proj"),
    ("blk.ffn_up_shexp", "feed_forward.shared_expert.up_proj"),
    ("blk.ffn_down_shexp", "feed_forward.shared_expert.down_proj"),
];

/// Names of MLX where they are others.
const MLX_TENSORS: &[(&str, &str)] = &[
    ("blk.ffn_gate_exps", "feed_forward.experts.gate_proj"),
    ("blk.ffn_up_exps", "feed_forward.experts.up_proj"),
    ("blk.ffn_down_exps", "feed_forward.experts.down_proj"),
];

/// There may be no dense layers.
const ACCEPTED: &[(&str, Accepted)] = &[
    ("layer_types", Accepted::Text(&["chunked_attention", "full_attention"])),
    ("intermediate_size_mlp", Accepted::Anything),
];

/// What the published models have, where a file does not say.
const CHUNK: usize = 8192;
const FLOOR: usize = 8192;
const GROWTH: f32 = 0.1;
const INTERVAL: u64 = 4;
/// Experts of the one published model whose heads keep their size; GGUF does not state it.
const EXPERTS_OF_MAVERICK: usize = 128;

fn describe(builder: &mut SpecBuilder<'_>) -> Result<Outline, ModelError> {
    let frame = blocks::frame(builder)?;
    let hidden = frame.hidden;
    let shape = blocks::head_shape(builder, hidden)?;
    let width = builder.dimension("expert_feed_forward_length")?;
    let recipe =
        Recipe { scores: RouterScores::SigmoidOfChosen, renormalize: Renormalize::No, choice_bias: false };
    let options = blocks::MoeOptions {
        weigh_input: true,
        shared: Some(SharedOptions { width, gated: false }),
        ..blocks::moe_options(builder, width, recipe)?
    };
    let unit_heads = match builder.flag("attention.unit_heads")? {
        Some(stated) => stated,
        None => builder.by_source(options.experts != EXPERTS_OF_MAVERICK, true),
    };
    let chunk = builder.optional_dimension("attention.chunk_size")?.unwrap_or(CHUNK);
    let temperature = temperature(builder)?;
    let routed = routed_layers(builder, frame.layer_count)?;
    let rotated = rotated_layers(builder, frame.layer_count)?;
    let chunked = chunked_layers(builder, &rotated)?;
    let rope = rope(builder, RopePairing::Interleaved, shape.head_dim)?;
    let mut layers = Vec::new();
    for layer in 0..frame.layer_count {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let mut attention = blocks::attention(builder, layer, hidden, shape, Norms::None)?;
        attention.chunk = chunked[layer].then_some(chunk);
        attention.unit_heads = unit_heads && rotated[layer];
        if !rotated[layer] {
            attention.rope = None;
            attention.temperature = temperature;
        }
        layers.push(LayerSpec {
            attention_norm: builder.norm(&name("attn_norm"), hidden)?,
            attention: AttentionKind::Grouped(attention),
            attention_result_norm: None,
            feed_forward_norm: builder.norm(&name("ffn_norm"), hidden)?,
            feed_forward: match routed[layer] {
                true => blocks::moe(builder, layer, hidden, options)?,
                false => blocks::dense(builder, layer, hidden)?,
            },
            feed_forward_result_norm: None,
        });
    }
    Ok(Outline { frame, ropes: vec![rope], layers })
}

fn temperature(builder: &SpecBuilder<'_>) -> Result<Option<Temperature>, ModelError> {
    let temperature = Temperature {
        floor: builder.optional_dimension("attention.temperature_length")?.unwrap_or(FLOOR) as f32,
        scale: builder.float_or("attention.temperature_scale", GROWTH)?,
    };
    let tuned = builder.flag("attention.temperature_tuning")?.unwrap_or(true);
    Ok(tuned.then_some(temperature))
}

/// Whether each layer has routed experts: by a list of layers, else every so many.
fn routed_layers(builder: &SpecBuilder<'_>, layers: usize) -> Result<Vec<bool>, ModelError> {
    let step = builder.integer("interleave_moe_layer_step")?.unwrap_or(1).max(1);
    let listed = builder.metadata().opt_u32_array(&builder.key("moe_layers")?)?;
    Ok((0..layers as u32)
        .map(|layer| match &listed {
            Some(listed) => listed.contains(&layer),
            None => (u64::from(layer) + 1).is_multiple_of(step),
        })
        .collect())
}

/// Whether each layer rotates its heads: by a list of switches, else all but every so many.
fn rotated_layers(builder: &SpecBuilder<'_>, layers: usize) -> Result<Vec<bool>, ModelError> {
    let interval = builder.integer("rope.layer_interval")?.unwrap_or(INTERVAL).max(1);
    Ok(match builder.per_layer("rope.layers", layers)? {
        Some(listed) => listed.into_iter().map(|switch| switch != 0).collect(),
        None => (1..=layers as u64).map(|layer| !layer.is_multiple_of(interval)).collect(),
    })
}

/// Whether each layer attends in chunks: by a list of kinds, else those that rotate.
fn chunked_layers(builder: &SpecBuilder<'_>, rotated: &[bool]) -> Result<Vec<bool>, ModelError> {
    let key = builder.key("attention.layer_kinds")?;
    match builder.metadata().opt_string_array(&key)? {
        Some(kinds) if kinds.len() != rotated.len() => {
            Err(builder.bad(format!("{key} has {} entries for {} layers", kinds.len(), rotated.len())))
        }
        Some(kinds) => Ok(kinds.iter().map(|kind| kind == "chunked_attention").collect()),
        None => Ok(rotated.to_vec()),
    }
}
