//! DeepSeek-V2, DeepSeek-V3, Kimi K2 and GLM-4.7-Flash (`deepseek2`): latent attention, dense layers first, then many small experts
//! and shared ones. V2 routes by a softmax over the best groups of experts, the others by sigmoids with a bias for the choice, groups
//! by the sum of their two best. Layers behind the last one, which predict further tokens, are passed over.
//!
//! Reference: `modeling_deepseek_v2.py`, `modeling_deepseek_v3.py` and `modeling_glm4_moe_lite.py` of transformers.

use super::blocks::{self, Frame, MoeOptions, Recipe, SharedOptions};
use super::{Family, Outline, sigmoid_router, yarn};
use crate::builder::SpecBuilder;
use crate::error::ModelError;
use crate::latent::{LatentQuery, LatentSpec};
use crate::names::{Accepted, HuggingFace};
use crate::spec::{
    AttentionKind, FeedForwardSpec, GroupScore, LayerSpec, Renormalize, RopePairing, RouterGroups,
    RouterScores,
};

pub(super) const FAMILY: Family = Family {
    gguf: "deepseek2",
    hugging_face: &[
        HuggingFace { keys: KEYS, tensors: TENSORS, accepted: SOFTMAX, ..HuggingFace::usual("deepseek_v2") },
        HuggingFace { keys: KEYS, tensors: TENSORS, accepted: SIGMOID, ..HuggingFace::usual("deepseek_v3") },
        HuggingFace { keys: KEYS, tensors: TENSORS, accepted: SIGMOID, ..HuggingFace::usual("kimi_k2") },
        HuggingFace {
            keys: KEYS,
            tensors: TENSORS,
            accepted: SIGMOID,
            ..HuggingFace::usual("glm4_moe_lite")
        },
    ],
    describe,
};

const KEYS: &[(&str, &str)] = &[
    ("attention.kv_lora_rank", "kv_lora_rank"),
    ("attention.q_lora_rank", "q_lora_rank"),
    ("attention.query_length", "qk_head_dim"),
    ("attention.key_length", "qk_nope_head_dim"),
    ("attention.value_length", "v_head_dim"),
    ("rope.dimension_count", "qk_rope_head_dim"),
    ("rope.interleaved", "rope_interleave"),
    ("expert_count", "n_routed_experts"),
    ("expert_shared_count", "n_shared_experts"),
    ("expert_group_count", "n_group"),
    ("expert_group_used_count", "topk_group"),
    ("expert_group_method", "topk_method"),
    ("expert_weights_scale", "routed_scaling_factor"),
    ("leading_dense_block_count", "first_k_dense_replace"),
    ("feed_forward_kinds", "mlp_layer_types"),
    ("nextn_predict_layers", "num_nextn_predict_layers"),
    ("rope.scaling.yarn_beta_fast", "rope_scaling.beta_fast"),
    ("rope.scaling.yarn_beta_fast", "rope_parameters.beta_fast"),
    ("rope.scaling.yarn_beta_slow", "rope_scaling.beta_slow"),
    ("rope.scaling.yarn_beta_slow", "rope_parameters.beta_slow"),
    ("rope.scaling.mscale", "rope_scaling.mscale"),
    ("rope.scaling.mscale", "rope_parameters.mscale"),
    ("rope.scaling.mscale_all_dim", "rope_scaling.mscale_all_dim"),
    ("rope.scaling.mscale_all_dim", "rope_parameters.mscale_all_dim"),
    ("rope.scaling.attn_factor", "rope_scaling.attention_factor"),
    ("rope.scaling.attn_factor", "rope_parameters.attention_factor"),
    ("rope.scaling.truncate", "rope_scaling.truncate"),
    ("rope.scaling.truncate", "rope_parameters.truncate"),
];

const TENSORS: &[(&str, &str)] = &[
    ("blk.attn_q_a", "self_attn.q_a_proj"),
    ("blk.attn_q_a_norm", "self_attn.q_a_layernorm"),
    ("blk.attn_q_b", "self_attn.q_b_proj"),
    ("blk.attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
    ("blk.attn_kv_a_norm", "self_attn.kv_a_layernorm"),
    ("blk.attn_kv_b", "self_attn.kv_b_proj"),
    ("blk.exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),
    ("blk.ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
    ("blk.ffn_up_shexp", "mlp.shared_experts.up_proj"),
    ("blk.ffn_down_shexp", "mlp.shared_experts.down_proj"),
];

/// V2 does not renormalise. The rest: `head_dim` is that of the rotation, all heads have keys, and what concerns training.
const SOFTMAX: &[(&str, Accepted)] = &[
    ("scoring_func", Accepted::Text(&["softmax"])),
    ("norm_topk_prob", Accepted::Flag(false)),
    ("moe_layer_freq", Accepted::Integer(1)),
    ("head_dim", Accepted::Anything),
    ("num_key_value_heads", Accepted::Anything),
    ("aux_loss_alpha", Accepted::Anything),
    ("ep_size", Accepted::Anything),
    ("seq_aux", Accepted::Anything),
];

/// As [`SOFTMAX`] for the others.
const SIGMOID: &[(&str, Accepted)] = &[
    ("scoring_func", Accepted::Text(&["sigmoid"])),
    ("topk_method", Accepted::Text(&["noaux_tc"])),
    ("moe_layer_freq", Accepted::Integer(1)),
    ("head_dim", Accepted::Anything),
    ("num_key_value_heads", Accepted::Anything),
    ("aux_loss_alpha", Accepted::Anything),
    ("ep_size", Accepted::Anything),
    ("seq_aux", Accepted::Anything),
];

/// Epsilon of the norms of latents in the reference, whatever the configuration says about the other norms.
const LATENT_EPSILON: f32 = 1e-6;
/// Added to the sum that weights are divided by.
const SUM_EPSILON: f32 = 1e-20;
/// More layers that predict further tokens are no model.
const PREDICTING_LAYERS_MAX: u64 = 64;
/// GGUF's number for a router with sigmoids.
const GATING_SIGMOID: u64 = 2;

fn describe(builder: &mut SpecBuilder<'_>) -> Result<Outline, ModelError> {
    let mut frame = blocks::frame(builder)?;
    pass_over_predicting_layers(builder, &mut frame)?;
    let hidden = frame.hidden;
    let router = router(builder)?;
    let dimensions = Dimensions::read(builder)?;
    let interleaved = builder.flag("rope.interleaved")?.unwrap_or(true);
    let pairing = if interleaved { RopePairing::Interleaved } else { RopePairing::HalfSplit };
    let (rope, dot_factor) = yarn::rope(builder, pairing, dimensions.rotary)?;
    if rope.dimensions != dimensions.rotary {
        return Err(builder.unsupported("a rotation of a part of the rotated elements"));
    }
    let query_dim = (dimensions.key + dimensions.rotary) as f64;
    let scale = (dot_factor / query_dim.sqrt()) as f32;
    let routed = routed_layers(builder, frame.layer_count)?;
    let mut layers = Vec::new();
    for layer in 0..frame.layer_count {
        layers.push(LayerSpec {
            attention_norm: builder.norm(&format!("blk.{layer}.attn_norm"), hidden)?,
            attention: AttentionKind::Latent(attention(builder, layer, hidden, &dimensions, scale)?),
            attention_result_norm: None,
            feed_forward_norm: builder.norm(&format!("blk.{layer}.ffn_norm"), hidden)?,
            feed_forward: if routed(layer) {
                mixture(builder, layer, hidden, &router)?
            } else {
                blocks::dense(builder, layer, hidden)?
            },
            feed_forward_result_norm: None,
        });
    }
    Ok(Outline { frame, ropes: vec![rope], layers })
}

/// GGUF counts them among the layers, Hugging Face behind the last one.
fn pass_over_predicting_layers(builder: &mut SpecBuilder<'_>, frame: &mut Frame) -> Result<(), ModelError> {
    let count = builder.integer("nextn_predict_layers")?.unwrap_or(0);
    let counted = builder.by_source(frame.layer_count as u64, u64::MAX);
    if count > PREDICTING_LAYERS_MAX || count >= counted {
        let key = builder.key("nextn_predict_layers")?;
        return Err(builder.bad(format!("{key} is {count} of {} layers", frame.layer_count)));
    }
    frame.layer_count -= builder.by_source(count as usize, 0);
    builder.pass_over_layers(frame.layer_count..frame.layer_count + count as usize);
    Ok(())
}

/// Which layers have routed experts.
fn routed_layers(
    builder: &SpecBuilder<'_>,
    layers: usize,
) -> Result<impl Fn(usize) -> bool + use<>, ModelError> {
    let kinds = builder.metadata().opt_string_array(&builder.key("feed_forward_kinds")?)?;
    let mut routed = Vec::new();
    if let Some(kinds) = &kinds {
        if kinds.len() != layers {
            let count = kinds.len();
            return Err(builder.bad(format!("mlp_layer_types has {count} entries for {layers} layers")));
        }
        for kind in kinds {
            routed.push(match kind.as_str() {
                "sparse" => true,
                "dense" => false,
                other => {
                    return Err(builder.unsupported(format!("mlp_layer_types has a layer that is '{other}'")));
                }
            });
        }
    }
    let first = match builder.integer("leading_dense_block_count")? {
        Some(first) => first,
        None if kinds.is_some() || builder.by_source(true, false) => 0,
        None => return Err(builder.bad("neither first_k_dense_replace nor mlp_layer_types is present")),
    };
    let listed = kinds.is_some();
    Ok(move |layer: usize| if listed { routed[layer] } else { layer as u64 >= first })
}

/// Sizes of latent attention.
struct Dimensions {
    heads: usize,
    key: usize,
    rotary: usize,
    rank: usize,
    value: usize,
    query_rank: Option<usize>,
}

impl Dimensions {
    fn read(builder: &SpecBuilder<'_>) -> Result<Self, ModelError> {
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

fn attention(
    builder: &mut SpecBuilder<'_>,
    layer: usize,
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
        scale,
        norm_epsilon: LATENT_EPSILON,
    })
}

/// What all mixtures of a model have in common.
struct Router {
    options: MoeOptions,
    groups: Option<RouterGroups>,
    scale: f32,
}

fn router(builder: &SpecBuilder<'_>) -> Result<Router, ModelError> {
    let width = builder.dimension("expert_feed_forward_length")?;
    let sigmoid = has_sigmoids(builder)?;
    let renormalize = builder.flag("expert_weights_norm")?.unwrap_or(builder.by_source(false, sigmoid));
    let recipe = Recipe {
        scores: if sigmoid { RouterScores::Sigmoid } else { RouterScores::Softmax },
        renormalize: if renormalize { Renormalize::SumPlus(SUM_EPSILON) } else { Renormalize::No },
        choice_bias: sigmoid,
    };
    let shared_count = builder.integer("expert_shared_count")?.unwrap_or(0).min(1 << 16) as usize;
    let shared = SharedOptions { width: shared_count * width, gated: false };
    let options = MoeOptions {
        shared: (shared_count > 0).then_some(shared),
        ..blocks::moe_options(builder, width, recipe)?
    };
    let groups = groups(builder, &options, sigmoid)?;
    Ok(Router { options, groups, scale: builder.positive_or("expert_weights_scale", 1.0)? })
}

fn has_sigmoids(builder: &SpecBuilder<'_>) -> Result<bool, ModelError> {
    if builder.by_source(false, true) {
        return Ok(builder.metadata().string("model_type")? != "deepseek_v2");
    }
    match builder.integer("expert_gating_func")? {
        // Files of V2 are older than the key.
        None | Some(0 | 1) => Ok(false),
        Some(GATING_SIGMOID) => Ok(true),
        Some(other) => {
            let key = builder.key("expert_gating_func")?;
            Err(builder.unsupported(format!("{key} is {other}; 1 (softmax) and 2 (sigmoid) are supported")))
        }
    }
}

fn groups(
    builder: &SpecBuilder<'_>,
    options: &MoeOptions,
    sigmoid: bool,
) -> Result<Option<RouterGroups>, ModelError> {
    match builder.text("expert_group_method")? {
        // For the others the table of accepted values has it. Groups are stated nevertheless.
        Some("greedy") if !sigmoid => {
            builder.integer("expert_group_count")?;
            builder.integer("expert_group_used_count")?;
            return Ok(None);
        }
        None | Some("group_limited_greedy") => {}
        Some(_) if sigmoid => {}
        Some(other) => {
            let key = builder.key("expert_group_method")?;
            return Err(builder.unsupported(format!("{key} is '{other}'")));
        }
    }
    let score = if sigmoid { GroupScore::SumOfBestTwo } else { GroupScore::Best };
    sigmoid_router::groups(builder, options, score)
}

fn mixture(
    builder: &mut SpecBuilder<'_>,
    layer: usize,
    hidden: usize,
    router: &Router,
) -> Result<FeedForwardSpec, ModelError> {
    let mut feed_forward = blocks::moe(builder, layer, hidden, router.options)?;
    if let FeedForwardSpec::Moe(moe) = &mut feed_forward {
        moe.router.groups = router.groups;
        moe.router.scale = router.scale;
    }
    Ok(feed_forward)
}
