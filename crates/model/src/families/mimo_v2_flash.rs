//! MiMo-V2-Flash (`mimo2`): GQA layers of two kinds, those that see everything and those with a window, which have twice the key
//! heads, a sink per query head and a rotary base of their own. Value heads are smaller than key heads, and values are
//! scaled. A dense network first, then a sigmoid router with a bias for the choice alone, without shared expert.
//!
//! Reference: `modeling_mimo_v2_flash.py` of transformers.

use coldpress_kernels::attention::AttentionShape;

use super::blocks::{self, Norms};
use super::sigmoid_router::{self, sigmoid_router};
use super::{Family, Outline, layer_kinds, rope};
use crate::builder::SpecBuilder;
use crate::error::ModelError;
use crate::names::{Accepted, HuggingFace};
use crate::spec::{AttentionKind, FrequencyDivisors, LayerSpec, RopePairing, RopeSpec, ValueHeads};

pub(super) const FAMILY: Family = Family {
    gguf: "mimo2",
    hugging_face: &[HuggingFace {
        keys: KEYS,
        tensors: TENSORS,
        accepted: ACCEPTED,
        ..HuggingFace::usual("mimo_v2_flash")
    }],
    describe,
};

const KEYS: &[(&str, &str)] = &[
    sigmoid_router::EXPERT_COUNT,
    sigmoid_router::GROUP_COUNT,
    sigmoid_router::GROUPS_USED,
    sigmoid_router::SCALE,
    ("attention.head_count", "num_attention_heads"),
    ("attention.head_count", "swa_num_attention_heads"),
    ("attention.head_count_kv_window", "swa_num_key_value_heads"),
    // One key for both kinds of layers: they must agree.
    ("attention.key_length", "head_dim"),
    ("attention.key_length", "swa_head_dim"),
    ("attention.layer_kinds", "layer_types"),
    ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
    ("attention.layer_norm_rms_epsilon", "layernorm_epsilon"),
    ("attention.positions_before", "sliding_window_size"),
    ("attention.sinks_in_windows", "add_swa_attention_sink_bias"),
    ("attention.sliding_window_pattern", "hybrid_layer_pattern"),
    ("attention.value_length", "v_head_dim"),
    ("attention.value_length", "swa_v_head_dim"),
    ("attention.value_scale", "attention_value_scale"),
    ("feed_forward.layer_kinds", "mlp_layer_types"),
    ("feed_forward.routed_layers", "moe_layer_freq"),
    ("rope.freq_base", "rope_theta"),
    ("rope.freq_base", "rope_parameters.full_attention.rope_theta"),
    ("rope.freq_base_swa", "swa_rope_theta"),
    ("rope.freq_base_swa", "rope_parameters.sliding_attention.rope_theta"),
    ("rope.partial_factor", "partial_rotary_factor"),
    ("rope.partial_factor", "rope_parameters.full_attention.partial_rotary_factor"),
    ("rope.partial_factor", "rope_parameters.sliding_attention.partial_rotary_factor"),
];

const TENSORS: &[(&str, &str)] = &[
    ("blk.attn_sinks.weight", "self_attn.attention_sink_bias"),
    ("blk.exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),
];

const ACCEPTED: &[(&str, Accepted)] = &[
    ("layer_types", Accepted::Text(&["sliding_attention", "full_attention"])),
    ("mlp_layer_types", Accepted::Text(&["dense", "sparse"])),
    ("rope_parameters.full_attention.rope_type", Accepted::Text(&["default"])),
    ("rope_parameters.sliding_attention.rope_type", Accepted::Text(&["default"])),
    // A published configuration states it beside `sliding_window_size`, without effect.
    ("attention_chunk_size", Accepted::Anything),
    ("scoring_func", Accepted::Text(&["sigmoid"])),
    ("sliding_window", Accepted::Anything),
    ("topk_method", Accepted::Text(&["noaux_tc"])),
];

/// Bases of layers that see everything and of the others, where a file does not state them.
const BASES: [f32; 2] = [5_000_000.0, 10_000.0];

fn describe(builder: &mut SpecBuilder<'_>) -> Result<Outline, ModelError> {
    let frame = blocks::frame(builder)?;
    let hidden = frame.hidden;
    let kinds = kinds(builder, frame.layer_count)?;
    let window = window(builder)?;
    let values = ValueHeads {
        head_dim: builder.dimension("attention.value_length")?,
        scale: builder.positive_or("attention.value_scale", 1.0)?,
    };
    let ropes = ropes(builder, kinds.first().map_or(0, |kind| kind.shape.head_dim))?;
    let width = builder.dimension("expert_feed_forward_length")?;
    let options = sigmoid_router(builder)?.options(builder, width)?;
    let mut layers = Vec::new();
    for (layer, kind) in kinds.into_iter().enumerate() {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let shape = kind.shape;
        if values.head_dim > shape.head_dim {
            let (value, key) = (values.head_dim, shape.head_dim);
            return Err(
                builder.unsupported(format!("value heads of {value} with key heads of {key} elements"))
            );
        }
        let mut attention =
            blocks::attention_with_values(builder, layer, hidden, shape, Norms::None, Some(values))?;
        let sinks = name("attn_sinks.weight");
        // GGUF files have them where they are used; checkpoints in all layers with a window.
        let has_sinks = builder.flag("attention.sinks_in_windows")?.unwrap_or(true) && kind.has_window;
        attention.sinks = match builder.by_source(builder.has(&sinks), has_sinks) {
            true => Some(builder.vector(&sinks, shape.heads)?),
            false => None,
        };
        if kind.has_window {
            attention.window = Some(window);
            attention.rope = Some(1);
        }
        layers.push(LayerSpec {
            attention_norm: builder.norm(&name("attn_norm"), hidden)?,
            attention: AttentionKind::Grouped(attention),
            attention_result_norm: None,
            feed_forward_norm: builder.norm(&name("ffn_norm"), hidden)?,
            feed_forward: match kind.is_dense {
                true => blocks::dense(builder, layer, hidden)?,
                false => blocks::moe(builder, layer, hidden, options)?,
            },
            feed_forward_result_norm: None,
        });
    }
    Ok(Outline { frame, ropes, layers })
}

/// What differs from layer to layer.
struct LayerKind {
    shape: AttentionShape,
    has_window: bool,
    is_dense: bool,
}

/// Positions that a query of a layer with a window sees, its own included. Published configurations state those before it.
fn window(builder: &SpecBuilder<'_>) -> Result<usize, ModelError> {
    let stated = builder.optional_dimension("attention.sliding_window");
    match builder.optional_dimension("attention.positions_before")? {
        Some(before) => Ok(before + 1),
        None if stated.as_ref().is_ok_and(Option::is_some) => Ok(stated?.unwrap_or_default()),
        None => builder.dimension("attention.sliding_window"),
    }
}

fn kinds(builder: &SpecBuilder<'_>, layers: usize) -> Result<Vec<LayerKind>, ModelError> {
    let heads = builder.dimension("attention.head_count")?;
    let head_dim = builder.dimension("attention.key_length")?;
    let windows = layers_with_window(builder, layers)?;
    let dense = match builder.per_layer("feed_forward.routed_layers", layers)? {
        Some(routed) => routed.into_iter().map(|routed| routed == 0).collect(),
        None => layer_kinds::dense(builder, layers)?,
    };
    let kv_heads = builder.per_layer("attention.head_count_kv", layers)?;
    let kv_heads = match kv_heads {
        Some(kv_heads) => kv_heads.into_iter(),
        None => return Err(missing(builder, "attention.head_count_kv")?),
    };
    // Checkpoints state those of the layers that see everything, published ones also the others'.
    let window_kv_heads = builder.integer("attention.head_count_kv_window")?;
    let of_window = |kv_heads: u64| match window_kv_heads {
        Some(stated) => stated,
        None => kv_heads.saturating_mul(builder.by_source(1, 2)),
    };
    let kinds = kv_heads.zip(windows).zip(dense).map(|((kv_heads, has_window), is_dense)| {
        let kv_heads = if has_window { of_window(kv_heads) } else { kv_heads };
        match usize::try_from(kv_heads) {
            Ok(kv_heads) if kv_heads > 0 && heads.is_multiple_of(kv_heads) => {
                Ok(LayerKind { shape: AttentionShape { heads, kv_heads, head_dim }, has_window, is_dense })
            }
            _ => Err(builder.bad(format!("{heads} query heads cannot share {kv_heads} key heads evenly"))),
        }
    });
    kinds.collect()
}

/// By a list of texts, or one of switches.
fn layers_with_window(builder: &SpecBuilder<'_>, layers: usize) -> Result<Vec<bool>, ModelError> {
    let switches = builder.per_layer("attention.sliding_window_pattern", layers)?;
    let switches = switches.map(|list| list.into_iter().map(|switch| switch != 0).collect::<Vec<bool>>());
    let texts = match builder.by_source(false, true) {
        true => layer_kinds::texts(builder, "attention.layer_kinds", "sliding_attention", layers)?,
        false => None,
    };
    match (switches, texts) {
        (Some(switches), Some(texts)) if switches != texts => {
            let (one, other) =
                (builder.key("attention.sliding_window_pattern")?, builder.key("attention.layer_kinds")?);
            Err(builder.bad(format!("{one} and {other} name different layers")))
        }
        (Some(layers), _) | (None, Some(layers)) => Ok(layers),
        (None, None) => Err(missing(builder, "attention.sliding_window_pattern")?),
    }
}

/// An error that names a key without which a file cannot be read.
fn missing(builder: &SpecBuilder<'_>, name: &str) -> Result<ModelError, ModelError> {
    Ok(builder.bad(format!("{} is missing", builder.key(name)?)))
}

/// The rotary embedding of layers that see everything, then that of layers with a window.
fn ropes(builder: &mut SpecBuilder<'_>, head_dim: usize) -> Result<Vec<RopeSpec>, ModelError> {
    let mut global = rope::rope(builder, RopePairing::HalfSplit, head_dim)?;
    global.base = builder.positive_or("rope.freq_base", BASES[0])?;
    let base = builder.positive_or("rope.freq_base_swa", BASES[1])?;
    let local = RopeSpec { base, linear_factor: 1.0, divisors: FrequencyDivisors::None, ..global.clone() };
    Ok(vec![global, local])
}
