//! Latent attention as files describe it: sizes, the projections of a layer, and the indexer of sparse attention.
//!
//! Names are those of GGUF's `deepseek2` and, for the indexer, of `deepseek32` and `glm-dsa`; the tables of the families have those of
//! Hugging Face. Next: `deepseek2.rs`, `longcat_flash.rs`.

use std::fmt::Display;

use coldpress_formats::{Array, Value};

use crate::builder::SpecBuilder;
use crate::error::ModelError;
use crate::indexer::{IndexerSpec, Selection};
use crate::latent::{LatentQuery, LatentSpec};

/// Sizes in configurations.
pub(super) const KEYS: &[(&str, &str)] = &[
    ("attention.kv_lora_rank", "kv_lora_rank"),
    ("attention.q_lora_rank", "q_lora_rank"),
    ("attention.query_length", "qk_head_dim"),
    ("attention.key_length", "qk_nope_head_dim"),
    ("attention.value_length", "v_head_dim"),
    ("rope.dimension_count", "qk_rope_head_dim"),
];

/// Projections in checkpoints.
pub(super) const TENSORS: &[(&str, &str)] = &[
    ("blk.attn_q_a", "self_attn.q_a_proj"),
    ("blk.attn_q_a_norm", "self_attn.q_a_layernorm"),
    ("blk.attn_q_b", "self_attn.q_b_proj"),
    ("blk.attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
    ("blk.attn_kv_a_norm", "self_attn.kv_a_layernorm"),
    ("blk.attn_kv_b", "self_attn.kv_b_proj"),
];

/// Epsilon of the norms of latents and of index keys in the reference, whatever the configuration says about the other norms.
const LATENT_EPSILON: f32 = 1e-6;

/// Sizes of latent attention.
pub(super) struct Dimensions {
    pub heads: usize,
    pub key: usize,
    pub rotary: usize,
    pub rank: usize,
    pub value: usize,
    pub query_rank: Option<usize>,
}

impl Dimensions {
    /// Factor on dot products without any scaling of the rotation.
    pub fn usual_scale(&self) -> f32 {
        (1.0 / ((self.key + self.rotary) as f64).sqrt()) as f32
    }

    /// From the usual keys.
    pub fn read(builder: &SpecBuilder<'_>) -> Result<Self, ModelError> {
        let rotary = builder.dimension("rope.dimension_count")?;
        if !rotary.is_multiple_of(2) {
            return Err(builder.bad(format!("{rotary} rotated elements are not pairs")));
        }
        let (key, value) = if builder.by_source(true, false) {
            // Files from before the cache was compressed have only the keys without this ending.
            let either =
                |name: &str| match builder.optional_dimension(&format!("attention.{name}_length_mla"))? {
                    Some(stated) => Ok(stated),
                    None => builder.dimension(&format!("attention.{name}_length")),
                };
            let query = either("key")?;
            let key = query.checked_sub(rotary).filter(|&key| key > 0).ok_or_else(|| {
                builder.bad(format!("heads of {query} elements, of which {rotary} are rotated"))
            })?;
            (key, either("value")?)
        } else {
            (builder.dimension("attention.key_length")?, builder.dimension("attention.value_length")?)
        };
        if let Some(query) = builder.by_source(None, builder.optional_dimension("attention.query_length")?)
            && query != key + rotary
        {
            return Err(builder.bad(format!("heads of {query} elements are not {key} and {rotary}")));
        }
        Ok(Self {
            heads: builder.dimension("attention.head_count")?,
            key,
            rotary,
            rank: builder.dimension("attention.kv_lora_rank")?,
            value,
            query_rank: builder.optional_dimension("attention.q_lora_rank")?,
        })
    }
}

/// Latent attention of layer `layer` to all positions, with the first rotary embedding.
pub(super) fn attention(
    builder: &mut SpecBuilder<'_>,
    layer: impl Display,
    hidden: usize,
    dimensions: &Dimensions,
    scale: f32,
) -> Result<LatentSpec, ModelError> {
    let &Dimensions { heads, key, rotary, rank, value, query_rank } = dimensions;
    let name = |part: &str| format!("blk.{layer}.attn_{part}");
    let query_rows = heads * (key + rotary);
    let query = match query_rank {
        None => LatentQuery::Direct(builder.linear(&name("q"), query_rows, hidden)?),
        Some(rank) => LatentQuery::Compressed {
            down: builder.linear(&name("q_a"), rank, hidden)?,
            norm: builder.rms_norm(&name("q_a_norm"), rank)?,
            rank,
            up: builder.linear(&name("q_b"), query_rows, rank)?,
        },
    };
    let latent = builder.linear(&name("kv_a_mqa"), rank + rotary, hidden)?;
    if builder.flag("attention.has_bias")? == Some(true) && latent.bias.is_none() {
        let key = builder.key("attention.has_bias")?;
        return Err(builder.bad(format!("{key} is true, but layer {layer} has no bias for its latents")));
    }
    let both = name("kv_b.weight");
    let (keys, values) = if builder.has(&name("k_b.weight")) {
        // Files between the two kinds say everything twice.
        builder.pass_over(&both);
        let keys = builder.head_matrices(&name("k_b.weight"), (heads, rank), 0..rank, key, false)?;
        (keys, builder.head_matrices(&name("v_b.weight"), (heads, value), 0..value, rank, false)?)
    } else {
        let each = (heads, key + value);
        let keys = builder.head_matrices(&both, each, 0..key, rank, true)?;
        (keys, builder.head_matrices(&both, each, key..key + value, rank, false)?)
    };
    Ok(LatentSpec {
        heads,
        key_dim: key,
        rotary_dim: rotary,
        rank,
        value_dim: value,
        query,
        latent,
        latent_norm: builder.rms_norm(&name("kv_a_norm"), rank)?,
        keys,
        values,
        output: builder.linear(&name("output"), hidden, heads * value)?,
        rope: Some(0),
        gate: None,
        scale,
        norm_epsilon: LATENT_EPSILON,
        latent_scale: 1.0,
        selection: None,
    })
}

/// What is the same in the indexers of all layers.
pub(super) struct Indexer {
    heads: usize,
    head_dim: usize,
    top_k: usize,
    query_rank: usize,
    rope: usize,
    /// Which layers have an indexer of their own.
    own: Vec<bool>,
}

impl Indexer {
    /// `rope` is the number of its rotary embedding, of `rotary` elements.
    pub fn read(
        builder: &SpecBuilder<'_>,
        layers: usize,
        dimensions: &Dimensions,
        rope: usize,
    ) -> Result<Self, ModelError> {
        let head_dim = builder.dimension("attention.indexer.key_length")?;
        let top_k = builder.dimension("attention.indexer.top_k")?;
        let Some(query_rank) = dimensions.query_rank else {
            return Err(builder.unsupported("an indexer without a latent of the queries"));
        };
        if dimensions.rotary > head_dim {
            let rotary = dimensions.rotary;
            return Err(builder.bad(format!("{rotary} rotated elements in index keys of {head_dim}")));
        }
        let own = match stated_types(builder, layers)? {
            Some(own) => own,
            None => (0..layers).map(|layer| builder.has(&key_name(layer))).collect(),
        };
        if own.first() != Some(&true) {
            return Err(
                builder.bad("the first layer has no indexer, and no layer before it chooses positions")
            );
        }
        let heads = builder.dimension("attention.indexer.head_count")?;
        Ok(Self { heads, head_dim, top_k, query_rank, rope, own })
    }

    /// What layer `layer` sees.
    pub fn selection(
        &self,
        builder: &mut SpecBuilder<'_>,
        layer: usize,
        hidden: usize,
    ) -> Result<Selection, ModelError> {
        let &Self { heads, head_dim, top_k, query_rank, rope, .. } = self;
        if !self.own[layer] {
            return Ok(Selection::Shared { top_k });
        }
        let name = |part: &str| format!("blk.{layer}.indexer.{part}");
        Ok(Selection::Own(IndexerSpec {
            heads,
            head_dim,
            top_k,
            query: builder.matrix(&name("attn_q_b.weight"), heads * head_dim, query_rank)?,
            query_rank,
            key: builder.matrix(&key_name(layer), head_dim, hidden)?,
            key_norm: builder.vector(&name("k_norm.weight"), head_dim)?,
            key_norm_bias: builder.vector(&name("k_norm.bias"), head_dim)?,
            norm_epsilon: LATENT_EPSILON,
            weights: builder.matrix(&name("proj.weight"), heads, hidden)?,
            rope,
        }))
    }
}

fn key_name(layer: usize) -> String {
    format!("blk.{layer}.indexer.attn_k.weight")
}

/// Which layers have an indexer of their own, if the file says so: a list of `full` and `shared`, the letters F and S, switches, or
/// how many layers share one from a certain layer on.
fn stated_types(builder: &SpecBuilder<'_>, layers: usize) -> Result<Option<Vec<bool>>, ModelError> {
    let key = builder.key("attention.indexer.types")?;
    let one = |kind: &str| match kind {
        "full" | "F" => Ok(true),
        "shared" | "S" => Ok(false),
        other => Err(builder.unsupported(format!("{key} has a layer that is '{other}'"))),
    };
    let list = match builder.metadata().get(&key) {
        None => {
            let letters = builder.text("indexer_pattern")?;
            letters.map(|all| all.chars().map(|letter| one(&letter.to_string())).collect::<Result<_, _>>())
        }
        Some(Value::Array(Array::String(_))) => {
            let kinds = builder.metadata().opt_string_array(&key)?.unwrap_or_default();
            Some(kinds.iter().map(|kind| one(kind)).collect::<Result<Vec<bool>, _>>())
        }
        Some(_) => {
            let switches = builder.per_layer("attention.indexer.types", layers)?;
            switches.map(|all| Ok(all.into_iter().map(|on| on != 0).collect()))
        }
    };
    if let Some(list) = list.transpose()? {
        if list.len() != layers {
            return Err(builder.bad(format!("{key} has {} entries for {layers} layers", list.len())));
        }
        return Ok(Some(list));
    }
    let (every, first) = (builder.integer("indexer_every")?, builder.integer("indexer_shared_from")?);
    let (every, first) = (every.unwrap_or(1).max(1), first.unwrap_or(2));
    let own = |layer: u64| (layer + 1).saturating_sub(first).is_multiple_of(every);
    Ok((every > 1).then(|| (0..layers as u64).map(own).collect()))
}
