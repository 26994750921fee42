//! Two ways to route that read fewer experts and change answers: fewer experts per token, and a preference for experts in memory.
//!
//! Both are off unless somebody asks. Fewer experts per token is the model with another top-k: weights are computed over the
//! experts that are left, as for a file that says so. The preference ([`CacheBias`]) is the re-ranking of Skliar et al.
//! (arXiv 2412.00099) with the spread of each row instead of a running mean, so that a row depends on nothing but itself
//! and on what is in memory. Refuses: routers whose weights depend on the order of the choice. Next: `route.rs`.

use std::ops::Range;

use crate::forward::{Model, Segment};
use crate::route::{Choice, is_kept, weigh};
use crate::spec::{FeedForwardSpec, LayerSpec, ModelSpec, MoeSpec, RouterScores, RouterSpec};

/// The mixtures of layers, in order.
fn mixtures(layers: &mut [LayerSpec]) -> impl Iterator<Item = &mut MoeSpec> {
    layers.iter_mut().filter_map(|layer| match &mut layer.feed_forward {
        FeedForwardSpec::Moe(moe) | FeedForwardSpec::Shortcut { mixture: moe, .. } => Some(moe),
        FeedForwardSpec::Dense(_) => None,
    })
}

impl ModelSpec {
    /// Lets a token use at most `limit` experts in each layer that chooses them; weights are computed over those. Layers whose experts
    /// go by token id name as many as they name.
    pub fn limit_experts_per_token(&mut self, limit: usize) {
        for moe in mixtures(&mut self.layers).filter(|moe| moe.router.table.is_none()) {
            moe.router.top_k = moe.router.top_k.min(limit);
        }
    }

    /// Whether experts in memory can be preferred.
    ///
    /// # Errors
    /// What of the model stands against it.
    pub fn check_cache_bias(&self) -> Result<(), String> {
        let uses = self.experts_per_token();
        if uses < 2 {
            return Err(format!("a token uses {uses} experts per layer, and its best one is never replaced"));
        }
        let sparse = |router: &RouterSpec| matches!(router.scores, RouterScores::SparseMixer { .. });
        if self.moe_blocks().any(|moe| sparse(&moe.router)) {
            return Err(
                "the router of this model weighs its second expert by what is left after the first one, so \
                        no other can take its place"
                    .to_owned(),
            );
        }
        Ok(())
    }
}

impl Model {
    /// Lets a token use at most `limit` experts in each layer from now on; `None` for as many as the model was made with. The
    /// scratch must have been made for them.
    pub fn limit_experts_per_token(&mut self, limit: Option<usize>) {
        let made = mixtures(&mut self.spec.layers).zip(&self.made_with_top_k);
        for (moe, top_k) in made.filter(|(moe, _)| moe.router.table.is_none()) {
            moe.router.top_k = limit.map_or(*top_k, |limit| limit.min(*top_k));
        }
    }

    /// Largest number of experts that a token uses in a layer of the model as it was made.
    pub fn made_with_experts_per_token(&self) -> usize {
        self.made_with_top_k.iter().copied().max().unwrap_or(0)
    }

    /// Prefers experts in memory from now on, by `share` of the spread of a row's scores, 0 to 1; see `CacheBias`. 0 is exact.
    pub fn set_cache_bias(&mut self, share: f32) {
        self.routing.cache_bias.share = share;
    }
}

/// Preference for experts in memory.
///
/// Scores for the choice of experts that are in memory are raised by `share` times the distance between the best and the worst score
/// of the row: 0 changes nothing, with 1 every expert in memory goes before every other. The row's best expert is always
/// used, groups of experts are kept or not as without it, and weights are those of the exact scores. Scores that are a softmax are
/// compared by their logarithms, which are the router's logits. "In memory" is what earlier requests of the store have brought
/// there when a layer begins, heads that are read ahead not counted.
///
/// Only rows that are a whole segment are concerned, as tokens of answers are: a prompt of many tokens needs nearly all experts anyway.
#[derive(Default)]
pub(crate) struct CacheBias {
    share: f32,
    /// Per row of the pass: whether it is all that its segment has.
    alone: Vec<bool>,
    /// Rows of the pass that are being routed.
    block: Range<usize>,
    /// Experts of the layer.
    in_memory: Vec<bool>,
    raised: Vec<f32>,
}

impl CacheBias {
    /// Notes which rows of a pass are concerned.
    pub fn mark(&mut self, segments: &[Segment<'_>]) {
        self.alone.clear();
        if self.share > 0.0 {
            for segment in segments {
                let count = segment.tokens.len();
                self.alone.extend(std::iter::repeat_n(count == 1, count));
            }
        }
    }

    /// Whether a row of `block` is concerned.
    pub fn concerns(&self, block: &Range<usize>) -> bool {
        self.alone.get(block.clone()).is_some_and(|rows| rows.contains(&true))
    }

    /// Notes which experts of the layer that is routed next are in memory, and which rows it is about.
    pub fn look(&mut self, block: &Range<usize>, in_memory: impl Iterator<Item = bool>) {
        self.block = block.clone();
        self.in_memory.clear();
        self.in_memory.extend(in_memory);
    }

    /// Chooses again for the rows that are concerned: `scores` `[rows, experts]`, `choices` `[rows, top_k]`.
    pub fn choose_again(
        &mut self,
        router: &RouterSpec,
        bias: Option<&[f32]>,
        scores: &[f32],
        choices: &mut [Choice],
    ) {
        if !self.concerns(&self.block) {
            return;
        }
        let rows = scores.chunks_exact(router.experts).zip(choices.chunks_exact_mut(router.top_k));
        let first = self.block.start;
        for (row, (scores, choices)) in rows.enumerate() {
            if self.alone[first + row] {
                self.choose_row(router, bias, scores, choices);
            }
        }
    }

    /// An expert that no record belongs to costs no read.
    fn is_in_memory(&self, expert: usize) -> bool {
        self.in_memory.get(expert).copied().unwrap_or(true)
    }

    fn choose_row(
        &mut self,
        router: &RouterSpec,
        bias: Option<&[f32]>,
        scores: &[f32],
        choices: &mut [Choice],
    ) {
        if choices.iter().all(|choice| self.is_in_memory(choice.expert as usize)) {
            return;
        }
        let exact = |expert: usize| scores[expert] + bias.map_or(0.0, |bias| bias[expert]);
        let logarithm = router.scores == RouterScores::Softmax && bias.is_none();
        self.raised.clear();
        self.raised.extend((0..scores.len()).map(|expert| match logarithm {
            // What has become zero is as far away as can be told.
            true => scores[expert].max(f32::MIN_POSITIVE).ln(),
            false => exact(expert),
        }));
        let least = self.raised.iter().copied().fold(f32::INFINITY, f32::min);
        let most = self.raised.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let raise = self.share * (most - least);
        // A row that is not finite keeps its choice until the forward pass reports it.
        if !raise.is_finite() || scores.iter().any(|score| score.is_nan()) {
            return;
        }
        for expert in 0..self.raised.len() {
            if self.is_in_memory(expert) {
                self.raised[expert] += raise;
            }
        }
        let kept = is_kept(router, bias, scores);
        for rank in 1..choices.len() {
            let (taken, free) = choices.split_at_mut(rank);
            let is_free =
                |expert: usize| kept(expert) && taken.iter().all(|choice| choice.expert as usize != expert);
            let better = |best: usize, expert: usize| {
                if self.raised[expert] > self.raised[best] { expert } else { best }
            };
            let next = (0..scores.len()).filter(|&expert| is_free(expert)).reduce(better);
            free[0].expert = next.expect("as many experts as were chosen before") as u32;
        }
        // In the order of the exact scores: what was not replaced is summed up as without a preference.
        choices.sort_unstable_by(|a, b| {
            let (a, b) = (a.expert as usize, b.expert as usize);
            exact(b).total_cmp(&exact(a)).then(a.cmp(&b))
        });
        for choice in choices.iter_mut() {
            choice.weight = scores[choice.expert as usize];
        }
        weigh(router, choices);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{GroupScore, MatrixHandle, Renormalize, RouterGroups};

    fn router(scores: RouterScores, experts: usize, top_k: usize) -> RouterSpec {
        RouterSpec {
            weight: MatrixHandle(0),
            bias: None,
            experts,
            identities: 0,
            table: None,
            top_k,
            scores,
            choice_bias: None,
            groups: None,
            renormalize: Renormalize::SumAtLeast(0.0),
            scale: 1.0,
        }
    }

    /// Experts and weights after a preference of `share` for the experts `in_memory`.
    fn chosen(
        router: &RouterSpec,
        bias: Option<&[f32]>,
        scores: &[f32],
        exact: &[u32],
        (share, in_memory): (f32, &[u32]),
    ) -> (Vec<u32>, Vec<f32>) {
        let mut cache_bias = CacheBias { share, alone: vec![true], ..CacheBias::default() };
        cache_bias.look(&(0..1), (0..scores.len() as u32).map(|expert| in_memory.contains(&expert)));
        let mut choices: Vec<Choice> =
            exact.iter().map(|&expert| Choice { expert, weight: f32::NAN }).collect();
        cache_bias.choose_again(router, bias, scores, &mut choices);
        choices.iter().map(|choice| (choice.expert, choice.weight)).unzip()
    }

    #[test]
    fn an_expert_in_memory_goes_first_where_the_share_of_the_spread_reaches() {
        // Logits 0, -1, -2, -10: the spread is 10, and expert 2 is 1 behind expert 1.
        let scores = [0.0f32, -1.0, -2.0, -10.0].map(f32::exp);
        let softmax = router(RouterScores::Softmax, 4, 2);
        let with = |share| chosen(&softmax, None, &scores, &[0, 1], (share, &[0, 2]));
        assert_eq!(with(0.09).0, [0, 1]);
        let (experts, weights) = with(0.11);
        assert_eq!(experts, [0, 2]);
        // The weights are those of the exact scores: 1 / (1 + e^-2).
        let first = 1.0 / (1.0 + (-2.0f64).exp());
        assert!((f64::from(weights[0]) - first).abs() < 1e-6, "{weights:?}");
        // The best one stays whatever is in memory, and goes first.
        assert_eq!(chosen(&softmax, None, &scores, &[0, 1], (1.0, &[2, 3])).0, [0, 2]);
    }

    #[test]
    fn nothing_in_memory_or_everything_changes_nothing() {
        let scores = [0.0f32, -1.0, -2.0, -10.0].map(f32::exp);
        let softmax = router(RouterScores::Softmax, 4, 2);
        assert_eq!(chosen(&softmax, None, &scores, &[0, 1], (1.0, &[])).0, [0, 1]);
        let all = chosen(&softmax, None, &scores, &[0, 1], (1.0, &[0, 1, 2, 3]));
        assert!(all.0 == [0, 1] && all.1.iter().all(|weight| weight.is_nan()), "not even looked at: {all:?}");
    }

    #[test]
    fn a_bias_for_the_choice_counts_and_groups_stay_as_they_are() {
        let scores = [0.9, 0.5, 0.4, 0.1];
        let sigmoid = router(RouterScores::Sigmoid, 4, 2);
        // With the bias: 0.9, 0.5, 0.2, 0.7; the spread is 0.7.
        let bias = [0.0, 0.0, -0.2, 0.6];
        let with = |share| chosen(&sigmoid, Some(&bias), &scores, &[0, 3], (share, &[1])).0;
        assert_eq!((with(0.28), with(0.3)), (vec![0, 3], vec![0, 1]));
        let groups = Some(RouterGroups { count: 2, kept: 1, score: GroupScore::Best });
        let grouped = RouterSpec { groups, ..sigmoid };
        assert_eq!(chosen(&grouped, None, &scores, &[0, 1], (1.0, &[2, 3])).0, [0, 1]);
    }

    #[test]
    fn rows_of_longer_segments_are_left_alone() {
        let softmax = router(RouterScores::Softmax, 3, 2);
        let scores = [0.5, 0.3, 0.2].repeat(3);
        let mut cache_bias =
            CacheBias { share: 1.0, alone: vec![false, false, true], ..CacheBias::default() };
        cache_bias.look(&(0..3), [true, false, true].into_iter());
        let mut choices = [0, 1].map(|expert| Choice { expert, weight: 1.0 }).repeat(3);
        cache_bias.choose_again(&softmax, None, &scores, &mut choices);
        let experts: Vec<u32> = choices.iter().map(|choice| choice.expert).collect();
        assert_eq!(experts, [0, 1, 0, 1, 0, 2]);
    }
}
