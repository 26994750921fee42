//! The router of DeepSeek-V3's kind, as GLM, Hunyuan, MiniMax and MiMo use it: the sigmoid of each logit, a bias that counts for
//! the choice alone, where stated the best groups of experts first, weights that sum to one, times a factor.
//!
//! Refuses other gating functions, by key and value.

use super::blocks::{self, MoeOptions, Recipe};
use crate::builder::SpecBuilder;
use crate::error::ModelError;
use crate::spec::{GroupScore, Renormalize, RouterGroups, RouterScores};

/// The sigmoid among the gating functions of GGUF.
const SIGMOID: u64 = 2;
/// Added to the sum of weights (`modeling_deepseek_v3.py` of transformers).
const EPSILON: f32 = 1e-20;

/// Keys of the router in checkpoints.
pub(super) const EXPERT_COUNT: (&str, &str) = ("expert_count", "n_routed_experts");
pub(super) const GROUP_COUNT: (&str, &str) = ("expert_group_count", "n_group");
pub(super) const GROUPS_USED: (&str, &str) = ("expert_group_used_count", "topk_group");
pub(super) const SCALE: (&str, &str) = ("expert_weights_scale", "routed_scaling_factor");

/// The recipe and the factor on the weights.
pub(super) struct SigmoidRouter {
    pub recipe: Recipe,
    scale: f32,
}

/// Reads the router, except its groups.
pub(super) fn sigmoid_router(builder: &SpecBuilder<'_>) -> Result<SigmoidRouter, ModelError> {
    if let Some(gating) = builder.by_source(builder.integer("expert_gating_func")?, None)
        && gating != SIGMOID
    {
        let key = builder.key("expert_gating_func")?;
        return Err(
            builder.unsupported(format!("{key} is {gating}; this family routes with the sigmoid, {SIGMOID}"))
        );
    }
    let renormalize = match builder.flag("expert_weights_norm")?.unwrap_or(true) {
        true => Renormalize::SumPlus(EPSILON),
        false => Renormalize::No,
    };
    let scale = builder.positive_or("expert_weights_scale", 1.0)?;
    let recipe = Recipe { scores: RouterScores::Sigmoid, renormalize, choice_bias: true };
    Ok(SigmoidRouter { recipe, scale })
}

impl SigmoidRouter {
    /// Options of blocks with experts of this width, without shared expert.
    pub fn options(&self, builder: &SpecBuilder<'_>, width: usize) -> Result<MoeOptions, ModelError> {
        let options = blocks::moe_options(builder, width, self.recipe)?;
        let groups = groups(builder, GroupScore::SumOfBestTwo)?;
        Ok(MoeOptions { scale: self.scale, groups, ..options })
    }
}

/// The groups of experts that are chosen first; `None` where there is one, or all are kept. Whether they divide the experts is seen layer
/// by layer.
pub(super) fn groups(
    builder: &SpecBuilder<'_>,
    score: GroupScore,
) -> Result<Option<RouterGroups>, ModelError> {
    let count = builder.optional_dimension("expert_group_count")?.unwrap_or(1);
    let kept = builder.optional_dimension("expert_group_used_count")?.unwrap_or(count);
    Ok((count != 1 && count != kept).then_some(RouterGroups { count, kept, score }))
}
