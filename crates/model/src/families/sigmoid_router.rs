//! The router of DeepSeek-V3's kind, as GLM, MiniMax and MiMo use it: the sigmoid of each logit, a bias that counts for the
//! choice alone, weights that sum to one, times a factor.
//!
//! Refuses groups of experts and other gating functions, by key and value.

use super::blocks::Recipe;
use crate::builder::SpecBuilder;
use crate::error::ModelError;
use crate::spec::{Renormalize, RouterScores};

/// The sigmoid among the gating functions of GGUF.
const SIGMOID: u64 = 2;
/// Added to the sum of weights (`modeling_deepseek_v3.py` of transformers).
const EPSILON: f32 = 1e-20;

/// Keys of the router in checkpoints.
pub(super) const EXPERT_COUNT: (&str, &str) = ("expert_count", "n_routed_experts");
pub(super) const GROUP_COUNT: (&str, &str) = ("expert_group_count", "n_group");
pub(super) const GROUPS_USED: (&str, &str) = ("expert_group_used_count", "topk_group");
pub(super) const SCALE: (&str, &str) = ("expert_weights_scale", "routed_scaling_factor");

/// Its recipe and the factor on the weights.
pub(super) fn sigmoid_router(builder: &SpecBuilder<'_>) -> Result<(Recipe, f32), ModelError> {
    if let Some(gating) = builder.by_source(builder.integer("expert_gating_func")?, None)
        && gating != SIGMOID
    {
        let key = builder.key("expert_gating_func")?;
        return Err(
            builder.unsupported(format!("{key} is {gating}; this family routes with the sigmoid, {SIGMOID}"))
        );
    }
    let groups = builder.integer("expert_group_count")?.unwrap_or(1);
    let used = builder.integer("expert_group_used_count")?.unwrap_or(groups);
    if groups > 1 && used != groups {
        let key = builder.key("expert_group_count")?;
        return Err(builder.unsupported(format!(
            "{key} is {groups}, of which {used} are used; groups of experts are not computed in this family"
        )));
    }
    let renormalize = match builder.flag("expert_weights_norm")?.unwrap_or(true) {
        true => Renormalize::SumPlus(EPSILON),
        false => Renormalize::No,
    };
    let scale = builder.positive_or("expert_weights_scale", 1.0)?;
    Ok((Recipe { scores: RouterScores::Sigmoid, renormalize, choice_bias: true }, scale))
}
