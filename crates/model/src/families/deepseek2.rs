//! DeepSeek-V2, DeepSeek-V3, Kimi K2 and GLM-4.7-Flash (`deepseek2`): latent attention, dense layers first, then many small experts
//! and shared ones; with an indexer DeepSeek-V3.2 (`deepseek32`) and GLM-5 (`glm-dsa`), whose layers may take over what a layer before
//! them chose. V2 routes by a softmax over the best groups of experts, the others by sigmoids with a bias for the choice, groups
//! by the sum of their two best. Layers behind the last one, which predict further tokens, are passed over.
//!
//! Reference: `modeling_{deepseek_v2,deepseek_v3,deepseek_v32,glm4_moe_lite,glm_moe_dsa}.py` of transformers.

use super::blocks::{self, MoeOptions, Recipe, SharedOptions};
use super::latent::{self, Dimensions, Indexer};
use super::{Family, Outline, sigmoid_router, yarn};
use crate::builder::SpecBuilder;
use crate::error::ModelError;
use crate::names::{Accepted, HuggingFace, joined};
use crate::spec::{
    AttentionKind, FeedForwardSpec, GroupScore, LayerSpec, Renormalize, RopePairing, RopeSpec, RouterGroups,
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
    describe: |builder| describe(builder, None),
};

/// The pairs of the rotary embedding of its index keys are those of halves.
pub(super) const WITH_INDEXER: Family = Family {
    gguf: "deepseek32",
    hugging_face: &[HuggingFace {
        keys: KEYS,
        tensors: TENSORS,
        accepted: INDEXED,
        ..HuggingFace::usual("deepseek_v32")
    }],
    describe: |builder| describe(builder, Some(RopePairing::HalfSplit)),
};

pub(super) const GLM_WITH_INDEXER: Family = Family {
    gguf: "glm-dsa",
    hugging_face: &[HuggingFace {
        keys: KEYS,
        tensors: TENSORS,
        accepted: INDEXED_GLM,
        ..HuggingFace::usual("glm_moe_dsa")
    }],
    describe: |builder| describe(builder, Some(RopePairing::Interleaved)),
};

const KEYS: &[(&str, &str)] = &joined::<_, 35>(
    latent::KEYS,
    &[
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
        yarn::KEYS[0],
        yarn::KEYS[1],
        yarn::KEYS[2],
        yarn::KEYS[3],
        ("rope.scaling.mscale", "rope_scaling.mscale"),
        ("rope.scaling.mscale", "rope_parameters.mscale"),
        ("rope.scaling.mscale_all_dim", "rope_scaling.mscale_all_dim"),
        ("rope.scaling.mscale_all_dim", "rope_parameters.mscale_all_dim"),
        ("rope.scaling.attn_factor", "rope_scaling.attention_factor"),
        ("rope.scaling.attn_factor", "rope_parameters.attention_factor"),
        yarn::KEYS[4],
        yarn::KEYS[5],
        ("attention.indexer.head_count", "index_n_heads"),
        ("attention.indexer.key_length", "index_head_dim"),
        ("attention.indexer.top_k", "index_topk"),
        ("attention.indexer.types", "indexer_types"),
        ("indexer_pattern", "index_topk_pattern"),
        ("indexer_every", "index_topk_freq"),
        ("indexer_shared_from", "index_skip_topk_offset"),
    ],
);

const TENSORS: &[(&str, &str)] = &joined::<_, 14>(
    latent::TENSORS,
    &[
        ("blk.exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),
        ("blk.ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
        ("blk.ffn_up_shexp", "mlp.shared_experts.up_proj"),
        ("blk.ffn_down_shexp", "mlp.shared_experts.down_proj"),
        ("blk.indexer.attn_q_b", "self_attn.indexer.wq_b"),
        ("blk.indexer.attn_k", "self_attn.indexer.wk"),
        ("blk.indexer.k_norm", "self_attn.indexer.k_norm"),
        ("blk.indexer.proj", "self_attn.indexer.weights_proj"),
    ],
);

/// `head_dim` is that of the rotation, all heads have keys, and what concerns training.
const USUAL: &[(&str, Accepted)] = &[
    ("moe_layer_freq", Accepted::Integer(1)),
    ("head_dim", Accepted::Anything),
    ("num_key_value_heads", Accepted::Anything),
    ("aux_loss_alpha", Accepted::Anything),
    ("ep_size", Accepted::Anything),
    ("seq_aux", Accepted::Anything),
];

/// V2 does not renormalise.
const SOFTMAX: &[(&str, Accepted)] = &joined::<_, 8>(
    USUAL,
    &[("scoring_func", Accepted::Text(&["softmax"])), ("norm_topk_prob", Accepted::Flag(false))],
);

const SIGMOID: &[(&str, Accepted)] = &joined::<_, 8>(
    USUAL,
    &[("scoring_func", Accepted::Text(&["sigmoid"])), ("topk_method", Accepted::Text(&["noaux_tc"]))],
);

/// With an indexer in all layers.
const INDEXED: &[(&str, Accepted)] =
    &joined::<_, 9>(SIGMOID, &[("layer_types", Accepted::Text(&["indexed_attention"]))]);

/// The same for GLM, where the pairs of its rotary embedding are neighbours.
const INDEXED_GLM: &[(&str, Accepted)] =
    &joined::<_, 10>(INDEXED, &[("indexer_rope_interleave", Accepted::Flag(true))]);

/// Added to the sum that weights are divided by.
const SUM_EPSILON: f32 = 1e-20;
/// GGUF's number for a router with sigmoids.
const GATING_SIGMOID: u64 = 2;

/// With an indexer where the pairs of its rotary embedding are given.
fn describe(builder: &mut SpecBuilder<'_>, indexer: Option<RopePairing>) -> Result<Outline, ModelError> {
    let frame = blocks::frame(builder)?;
    let hidden = frame.hidden;
    let router = router(builder)?;
    let dimensions = Dimensions::read(builder)?;
    let interleaved = builder.flag("rope.interleaved")?.unwrap_or(true);
    let pairing = if interleaved { RopePairing::Interleaved } else { RopePairing::HalfSplit };
    let (rope, dot_factor) = yarn::rope(builder, pairing, dimensions.rotary, yarn::Scales::Latent)?;
    if rope.dimensions != dimensions.rotary {
        return Err(builder.unsupported("a rotation of a part of the rotated elements"));
    }
    let query_dim = (dimensions.key + dimensions.rotary) as f64;
    let scale = (dot_factor / query_dim.sqrt()) as f32;
    let routed = routed_layers(builder, frame.layer_count)?;
    let mut ropes = vec![rope];
    let mut sparse = None;
    if let Some(own) = indexer {
        if own != pairing {
            ropes.push(RopeSpec { pairing: own, ..ropes[0].clone() });
        }
        sparse = Some(Indexer::read(builder, frame.layer_count, &dimensions, ropes.len() - 1)?);
    }
    let mut layers = Vec::new();
    for layer in 0..frame.layer_count {
        let mut attention = latent::attention(builder, layer, hidden, &dimensions, scale)?;
        if let Some(indexer) = &sparse {
            attention.selection = Some(indexer.selection(builder, layer, hidden)?);
        }
        layers.push(LayerSpec {
            attention_norm: builder.norm(&format!("blk.{layer}.attn_norm"), hidden)?,
            attention: AttentionKind::Latent(attention),
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
    Ok(Outline { frame, ropes, layers })
}

/// Which layers have routed experts.
pub(super) fn routed_layers(
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

/// What all mixtures of a model have in common.
pub(super) struct Router {
    options: MoeOptions,
}

/// As [`router`], where weights are divided by their sum unless the file says otherwise.
pub(super) fn renormalizing_router(builder: &SpecBuilder<'_>) -> Result<Router, ModelError> {
    let mut router = router(builder)?;
    if builder.flag("expert_weights_norm")?.is_none() {
        router.options.recipe.renormalize = Renormalize::SumPlus(SUM_EPSILON);
    }
    Ok(router)
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
        groups: groups(builder, sigmoid)?,
        scale: builder.positive_or("expert_weights_scale", 1.0)?,
        ..blocks::moe_options(builder, width, recipe)?
    };
    Ok(Router { options })
}

fn has_sigmoids(builder: &SpecBuilder<'_>) -> Result<bool, ModelError> {
    if builder.by_source(false, true) {
        return Ok(builder.model_type() != Some("deepseek_v2"));
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

fn groups(builder: &SpecBuilder<'_>, sigmoid: bool) -> Result<Option<RouterGroups>, ModelError> {
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
    sigmoid_router::groups(builder, score)
}

pub(super) fn mixture(
    builder: &mut SpecBuilder<'_>,
    layer: usize,
    hidden: usize,
    router: &Router,
) -> Result<FeedForwardSpec, ModelError> {
    blocks::moe(builder, layer, hidden, router.options)
}
