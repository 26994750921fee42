//! MiMo-V2-Flash (`mimo2`): GQA layers of two kinds, those that see everything and those with a window, which have twice the key
//! heads, a sink per query head and a rotary base of their own. Value heads are smaller than key heads, and values are
//! scaled. A dense network first, then a sigmoid router with a bias for the choice alone, without shared expert.
//!
//! Reference: `modeling_mimo_v2_flash.py` of transformers.

use coldpress_kernels::attention::AttentionShape;

use super::blocks::{self, Norms};
use super::sigmoid_router::{self, sigmoid_router};
use super::{Family, Outline, rope};
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
    ("attention.layer_kinds", "layer_types"),
    ("attention.value_length", "v_head_dim"),
    ("attention.value_scale", "attention_value_scale"),
    ("feed_forward.layer_kinds", "mlp_layer_types"),
    ("rope.freq_base", "rope_parameters.full_attention.rope_theta"),
    ("rope.freq_base_swa", "rope_parameters.sliding_attention.rope_theta"),
    // One key for both kinds: they must agree.
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
    ("sliding_window", Accepted::Anything),
];

/// Bases of layers that see everything and of the others, where a file does not state them.
const BASES: [f32; 2] = [5_000_000.0, 10_000.0];

fn describe(builder: &mut SpecBuilder<'_>) -> Result<Outline, ModelError> {
    let frame = blocks::frame(builder)?;
    let (hidden, layer_count) = (frame.hidden, frame.layer_count);
    // Blocks for several tokens at once; they change no logit.
    builder.pass_over_all("model.mtp.");
    let kinds = kinds(builder, layer_count)?;
    let window = builder.dimension("attention.sliding_window")?;
    let values = ValueHeads {
        head_dim: builder.dimension("attention.value_length")?,
        scale: builder.positive_or("attention.value_scale", 1.0)?,
    };
    let ropes = ropes(builder, kinds.first().map_or(0, |kind| kind.shape.head_dim))?;
    let width = builder.dimension("expert_feed_forward_length")?;
    let (recipe, scale) = sigmoid_router(builder)?;
    let options = blocks::MoeOptions { scale, ..blocks::moe_options(builder, width, recipe)? };
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
        attention.sinks = match builder.by_source(builder.has(&sinks), kind.has_window) {
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

fn kinds(builder: &SpecBuilder<'_>, layers: usize) -> Result<Vec<LayerKind>, ModelError> {
    let heads = builder.dimension("attention.head_count")?;
    let head_dim = builder.dimension("attention.key_length")?;
    let windows = builder.by_source(
        builder.per_layer("attention.sliding_window_pattern", layers)?,
        texts(builder, "attention.layer_kinds", "sliding_attention", layers)?,
    );
    let windows = required(builder, windows, "attention.sliding_window_pattern", "attention.layer_kinds")?;
    let dense = match builder.by_source(false, true) {
        true => {
            let dense = texts(builder, "feed_forward.layer_kinds", "dense", layers)?;
            required(builder, dense, "feed_forward.layer_kinds", "feed_forward.layer_kinds")?
        }
        false => (0..layers)
            .map(|layer| u64::from(!builder.has(&format!("blk.{layer}.ffn_gate_inp.weight"))))
            .collect(),
    };
    let kv_heads = builder.per_layer("attention.head_count_kv", layers)?;
    let kv_heads =
        required(builder, kv_heads, "attention.head_count_kv", "attention.head_count_kv")?.into_iter();
    // Checkpoints state those of the layers that see everything.
    let factor = builder.by_source(1, 2);
    let kinds = kv_heads.zip(windows).zip(dense).map(|((kv_heads, window), dense)| {
        let kv_heads = if window == 0 { kv_heads } else { kv_heads.saturating_mul(factor) };
        match usize::try_from(kv_heads) {
            Ok(kv_heads) if kv_heads > 0 && heads.is_multiple_of(kv_heads) => Ok(LayerKind {
                shape: AttentionShape { heads, kv_heads, head_dim },
                has_window: window != 0,
                is_dense: dense != 0,
            }),
            _ => Err(builder.bad(format!("{heads} query heads cannot share {kv_heads} key heads evenly"))),
        }
    });
    kinds.collect()
}

/// Per layer, whether a list of texts says `wanted`.
fn texts(
    builder: &SpecBuilder<'_>,
    name: &str,
    wanted: &str,
    layers: usize,
) -> Result<Option<Vec<u64>>, ModelError> {
    let key = builder.key(name)?;
    let Some(list) = builder.metadata().opt_string_array(&key)? else { return Ok(None) };
    if list.len() != layers {
        return Err(builder.bad(format!("{key} has {} entries for {layers} layers", list.len())));
    }
    Ok(Some(list.iter().map(|text| u64::from(text == wanted)).collect()))
}

fn required<T>(
    builder: &SpecBuilder<'_>,
    value: Option<T>,
    for_gguf: &str,
    for_hugging_face: &str,
) -> Result<T, ModelError> {
    match value {
        Some(value) => Ok(value),
        None => {
            let key = builder.key(builder.by_source(for_gguf, for_hugging_face))?;
            Err(builder.bad(format!("{key} is missing")))
        }
    }
}

/// The rotary embedding of layers that see everything, then that of layers with a window.
fn ropes(builder: &mut SpecBuilder<'_>, head_dim: usize) -> Result<Vec<RopeSpec>, ModelError> {
    let mut global = rope::rope(builder, RopePairing::HalfSplit, head_dim)?;
    global.base = builder.positive_or("rope.freq_base", BASES[0])?;
    let base = builder.positive_or("rope.freq_base_swa", BASES[1])?;
    let local = RopeSpec { base, linear_factor: 1.0, divisors: FrequencyDivisors::None, ..global.clone() };
    Ok(vec![global, local])
}
