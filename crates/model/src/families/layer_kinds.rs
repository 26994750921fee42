//! What differs from layer to layer, as configurations list it: texts per layer, layers with a window, dense layers among routed
//! ones.
//!
//! Refuses lists of another length.

use coldpress_formats::Value;

use super::Outline;
use crate::builder::SpecBuilder;
use crate::error::ModelError;
use crate::names::Accepted;
use crate::spec::AttentionKind;

/// Per layer, whether the list of texts behind `name` says `wanted`; `None` where the file has no such list.
pub(super) fn texts(
    builder: &SpecBuilder<'_>,
    name: &str,
    wanted: &str,
    layers: usize,
) -> Result<Option<Vec<bool>>, ModelError> {
    let key = builder.key(name)?;
    let Some(list) = builder.metadata().opt_string_array(&key)? else { return Ok(None) };
    if !builder.is_per_layer(list.len(), layers) {
        return Err(builder.bad(format!("{key} has {} entries for {layers} layers", list.len())));
    }
    Ok(Some(list.iter().take(layers).map(|text| text == wanted).collect()))
}

/// Which layers have a dense network instead of experts: those that a list calls so, or the first ones, or, in GGUF files,
/// those without a router.
pub(super) fn dense(builder: &SpecBuilder<'_>, layers: usize) -> Result<Vec<bool>, ModelError> {
    if builder.by_source(true, false) {
        let is_dense = |layer| !builder.has(&format!("blk.{layer}.ffn_gate_inp.weight"));
        return Ok((0..layers).map(is_dense).collect());
    }
    if let Some(listed) = texts(builder, "feed_forward.layer_kinds", "dense", layers)? {
        return Ok(listed);
    }
    let first = builder.integer("leading_dense_block_count")?.unwrap_or(0);
    Ok((0..layers as u64).map(|layer| layer < first).collect())
}

/// Which layers of Qwen's mixtures have a dense network: those of a list, and those whose number, from 1, is no multiple of a
/// step. GGUF files have none.
pub(super) fn dense_between(builder: &SpecBuilder<'_>, layers: usize) -> Result<Vec<bool>, ModelError> {
    let step = builder.integer("sparse_step")?.unwrap_or(1).max(1);
    let key = builder.key("dense_layers")?;
    let listed = match builder.metadata().get(&key) {
        // JSON does not say what an empty list would be of.
        Some(Value::Array(list)) if list.is_empty() => None,
        _ => builder.metadata().opt_u32_array(&key)?,
    };
    let listed = listed.unwrap_or_default();
    if let Some(beyond) = listed.iter().find(|&&layer| layer as usize >= layers) {
        return Err(builder.bad(format!("{key} has layer {beyond}, there are {layers}")));
    }
    Ok((0..layers as u32)
        .map(|layer| listed.contains(&layer) || !(u64::from(layer) + 1).is_multiple_of(step))
        .collect())
}

/// Keys of [`dense_between`] and [`with_windows`].
pub(super) const QWEN_KEYS: &[(&str, &str)] = &[
    ("attention.layer_kinds", "layer_types"),
    ("attention.window_in_use", "use_sliding_window"),
    ("attention.window_bound", "max_window_layers"),
    ("sparse_step", "decoder_sparse_step"),
    ("dense_layers", "mlp_only_layers"),
];

/// What configurations may say about windows. That of a layer that is switched off has no effect.
pub(super) const QWEN_WINDOWS: &[(&str, Accepted)] = &[
    ("layer_types", Accepted::Text(&["sliding_attention", "full_attention"])),
    ("sliding_window", Accepted::Anything),
];

/// Which layers have a window where no list says it.
#[derive(Clone, Copy)]
pub(super) enum Windows {
    /// Those from a stated layer on (Qwen2, Qwen3).
    FromLayer,
    /// Every second one before a stated layer, from the first on (Qwen2-MoE).
    EverySecondBefore,
    /// All (Qwen3-MoE).
    All,
}

/// Layers before or from which there is a window, where a file does not say.
const LAYERS: u64 = 28;

/// The model with the windows that its layers have.
pub(super) fn with_windows(
    builder: &SpecBuilder<'_>,
    mut outline: Outline,
    which: Windows,
) -> Result<Outline, ModelError> {
    let windows = windows(builder, outline.layers.len(), which)?;
    for (layer, window) in outline.layers.iter_mut().zip(windows) {
        if let AttentionKind::Grouped(attention) = &mut layer.attention {
            attention.window = window;
        }
    }
    Ok(outline)
}

/// The window of each layer of a Qwen model, where it has one. It has to be switched on.
fn windows(
    builder: &SpecBuilder<'_>,
    layers: usize,
    which: Windows,
) -> Result<Vec<Option<usize>>, ModelError> {
    let stated = builder.optional_dimension("attention.sliding_window");
    if builder.flag("attention.window_in_use")? != Some(true) {
        return Ok(vec![None; layers]);
    }
    let Some(window) = stated? else { return Ok(vec![None; layers]) };
    let bound = builder.integer("attention.window_bound")?.unwrap_or(LAYERS);
    let kinds = texts(builder, "attention.layer_kinds", "sliding_attention", layers)?;
    let has_window = |layer: usize| match (&kinds, which) {
        (_, Windows::All) => true,
        (Some(kinds), _) => kinds[layer],
        (None, Windows::FromLayer) => layer as u64 >= bound,
        (None, Windows::EverySecondBefore) => layer.is_multiple_of(2) && (layer as u64) < bound,
    };
    Ok((0..layers).map(|layer| has_window(layer).then_some(window)).collect())
}
