//! Routers as data: from the logits of a token to its experts and their weights. What is computed from them is in `route.rs`.

use super::{MatrixHandle, TableHandle, VectorHandle};

/// What the router's logits become before experts are chosen by them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RouterScores {
    /// Softmax over all experts.
    Softmax,
    /// The logits themselves; the weights are the softmax of those that were chosen.
    SoftmaxOfChosen,
    /// Sigmoid of each.
    Sigmoid,
    /// Square root of the softplus `ln(1 + exp(x))` of each.
    SqrtSoftplus,
    /// The logits themselves; the weights are the sigmoids of those that were chosen.
    SigmoidOfChosen,
    /// The sparse mixer of Phi-3.5-MoE (Liu et al., arXiv 2409.12136) without its noise: expert after expert, each
    /// weighted by the softmax of the logits that lie near the largest one left.
    SparseMixer {
        /// Half the relative distance that is still near.
        jitter: f32,
    },
}

/// What the weights of the chosen experts are divided by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Renormalize {
    /// Nothing.
    No,
    /// Their sum, or this where the sum is smaller.
    SumAtLeast(f32),
    /// Their sum and this.
    SumPlus(f32),
}

/// What stands for a group of experts when groups are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupScore {
    /// The best score in it.
    Best,
    /// The sum of its two best scores, with the bias for the choice.
    SumOfBestTwo,
}

/// Experts in groups of equal size, of which the best are chosen before any expert is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouterGroups {
    /// Groups, at most 64.
    pub count: usize,
    /// Groups whose experts may be chosen.
    pub kept: usize,
    /// How groups are compared.
    pub score: GroupScore,
}

/// Chooses the `top_k` experts with the best scores and weights them; see `route.rs`.
#[derive(Clone, Copy, Debug)]
pub struct RouterSpec {
    /// One row per expert.
    pub weight: MatrixHandle,
    /// Added to the logits.
    pub bias: Option<VectorHandle>,
    /// Experts that are scored: the routed ones, then the identities.
    pub experts: usize,
    /// How many of them, the last ones, have no weights and give back their input.
    pub identities: usize,
    /// Experts per token, of both kinds.
    pub top_k: usize,
    /// From logits to scores.
    pub scores: RouterScores,
    /// Added to the scores for the choice alone, not in the weights.
    pub choice_bias: Option<VectorHandle>,
    /// Which groups of experts are considered, if not all.
    pub groups: Option<RouterGroups>,
    /// From the scores of the chosen experts to their weights.
    pub renormalize: Renormalize,
    /// Factor on the weights.
    pub scale: f32,
    /// Experts by token id, `[vocabulary, top_k]`, where they do not depend on the hidden state: then the scores weight them only.
    pub table: Option<TableHandle>,
}

impl RouterSpec {
    /// Experts that have weights.
    pub fn stored(&self) -> usize {
        self.experts - self.identities
    }
}
