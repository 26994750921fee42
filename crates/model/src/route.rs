//! Routing: which experts a token uses, and the regrouping of a batch by expert.
//!
//! A recipe ([`RouterSpec`]) is data: from logits to scores, a bias that counts for the choice alone, from the scores of the
//! chosen experts to weights. Identities, which have no weights, may be chosen like experts; they are in no group and nobody is asked for
//! them. The router's choice is authoritative: nothing here knows what is in the cache. Ties go to the lower expert index.
//! [`Routing`] keeps its vectors between calls, so that a warmed-up decode step does not allocate.

use coldpress_experts::{RoutingTrace, order_by_last_use};
use coldpress_kernels::{Kernels, vector};
use coldpress_workers::Team;

use crate::lossy_routing::CacheBias;
use crate::scratch::rows_per_part;
use crate::spec::{GroupScore, Renormalize, RouterGroups, RouterScores, RouterSpec};

/// In place of the position of a pair that is in no group.
const NO_PLACE: u32 = u32::MAX;

/// An expert that a row uses, and how much its result counts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Choice {
    pub expert: u32,
    pub weight: f32,
}

/// Experts chosen for the rows of one MoE block, and the (row, rank) pairs grouped by expert.
#[derive(Default)]
pub(crate) struct Routing {
    /// Experts per row.
    pub top_k: usize,
    /// Chosen experts with their weights `[rows, top_k]`, best first.
    pub choices: Vec<Choice>,
    /// Position of pair (row, rank) in the grouped order `[rows, top_k]`; [`NO_PLACE`] for identities.
    pub grouped_at: Vec<u32>,
    /// Row of each grouped pair.
    pub row_of: Vec<u32>,
    /// Distinct experts in the order of their last use, so that those of the last rows stay warm longest.
    pub experts: Vec<u32>,
    /// Start of each distinct expert's pairs in the grouped order, one more entry than `experts`.
    pub starts: Vec<u32>,
    /// Where every choice is written down, if anybody asked.
    pub trace: Option<RoutingTrace>,
    /// Starts of the grouped pairs that have been computed.
    pub computed: Vec<u32>,
    /// What a later layer will probably choose for a single row, best first.
    pub guess: Vec<Choice>,
    /// Token ids of the rows of the pass, where a router goes by them.
    pub tokens: Vec<u32>,
    /// What a router that goes by token ids will choose for some of them.
    pub foreseen: Vec<u32>,
    /// Preference for experts in memory; off unless asked for.
    pub cache_bias: CacheBias,
    counts: Vec<u32>,
    last_use: Vec<u32>,
}

impl Routing {
    /// Routes `rows` rows from their router logits `[rows, experts]`, which are overwritten. `bias` holds the values of
    /// [`RouterSpec::choice_bias`].
    pub fn route(
        &mut self,
        team: &Team<'_>,
        kernels: Kernels,
        router: &RouterSpec,
        bias: Option<&[f32]>,
        logits: &mut [f32],
        rows: usize,
    ) {
        let (experts, top_k) = (router.experts, router.top_k);
        self.top_k = top_k;
        let logits = &mut logits[..rows * experts];
        scores_of(team, kernels, router, logits);
        let scores = &*logits;
        self.choices.clear();
        self.choices.resize(rows * top_k, Choice::default());
        let rows_per_part = rows_per_part(team, rows, experts * top_k * size_of::<f32>());
        team.for_each_part_mut(&mut self.choices, rows_per_part * top_k, |part, choices, _worker| {
            let scores = scores[part * rows_per_part * experts..].chunks_exact(experts);
            for (scores, choices) in scores.zip(choices.chunks_exact_mut(top_k)) {
                choose(router, bias, scores, choices);
            }
        });
        self.cache_bias.choose_again(router, bias, scores, &mut self.choices);
        self.group(experts, router.stored());
    }

    /// As [`Routing::route`] for a router whose experts are those of `table` for the tokens of the rows.
    pub fn route_by_table(
        &mut self,
        team: &Team<'_>,
        kernels: Kernels,
        router: &RouterSpec,
        table: &[u32],
        tokens: &[u32],
        logits: &mut [f32],
    ) {
        let (experts, top_k) = (router.experts, router.top_k);
        self.top_k = top_k;
        scores_of(team, kernels, router, logits);
        self.choices.clear();
        for (&token, scores) in tokens.iter().zip(logits.chunks_exact(experts)) {
            let first = self.choices.len();
            let named = &table[token as usize * top_k..][..top_k];
            self.choices
                .extend(named.iter().map(|&expert| Choice { expert, weight: scores[expert as usize] }));
            weigh(router, &mut self.choices[first..]);
        }
        self.group(experts, router.stored());
    }

    /// Fills `foreseen` with the experts that `table` names for `tokens`, each once.
    pub fn foresee(&mut self, table: &[u32], top_k: usize, tokens: &[u32]) {
        self.foreseen.clear();
        for &token in tokens {
            self.foreseen.extend_from_slice(&table[token as usize * top_k..][..top_k]);
        }
        self.foreseen.sort_unstable();
        self.foreseen.dedup();
    }

    /// Fills `guess` from the router logits of one row, which are overwritten.
    pub fn guess(
        &mut self,
        team: &Team<'_>,
        kernels: Kernels,
        router: &RouterSpec,
        bias: Option<&[f32]>,
        logits: &mut [f32],
    ) {
        scores_of(team, kernels, router, logits);
        self.guess.clear();
        self.guess.resize(router.top_k, Choice::default());
        choose(router, bias, logits, &mut self.guess);
        self.cache_bias.choose_again(router, bias, logits, &mut self.guess);
    }

    fn group(&mut self, expert_count: usize, stored: usize) {
        self.counts.clear();
        self.counts.resize(expert_count, 0);
        for choice in &self.choices {
            self.counts[choice.expert as usize] += 1;
        }
        let chosen = self.choices.iter().map(|choice| choice.expert);
        order_by_last_use(chosen, self.top_k, expert_count, &mut self.last_use, &mut self.experts);
        self.experts.retain(|&expert| (expert as usize) < stored);
        self.starts.clear();
        let mut next = 0;
        for expert in &self.experts {
            self.starts.push(next);
            // From here on the counter is the place of the expert's next pair.
            next += std::mem::replace(&mut self.counts[*expert as usize], next);
        }
        self.starts.push(next);
        self.grouped_at.clear();
        self.row_of.clear();
        self.row_of.resize(self.choices.len(), 0);
        for (pair, choice) in self.choices.iter().enumerate() {
            if choice.expert as usize >= stored {
                self.grouped_at.push(NO_PLACE);
                continue;
            }
            let place = &mut self.counts[choice.expert as usize];
            self.grouped_at.push(*place);
            self.row_of[*place as usize] = (pair / self.top_k) as u32;
            *place += 1;
        }
    }

    /// Writes the choices down as those of routed layer `layer`, if anybody asked.
    pub fn record(&mut self, layer: usize) {
        if let Some(trace) = &mut self.trace {
            trace.record(layer, self.choices.iter().map(|choice| choice.expert));
        }
    }

    /// The weight of grouped pair `place`.
    pub fn weight_at(&self, place: usize) -> f32 {
        let first = self.row_of[place] as usize * self.top_k;
        let pairs = first..first + self.top_k;
        let pair = pairs.into_iter().find(|&pair| self.grouped_at[pair] as usize == place);
        self.choices[pair.expect("a grouped pair is one of its row")].weight
    }

    /// The grouped pairs of distinct expert number `index`.
    pub fn pairs(&self, index: usize) -> std::ops::Range<usize> {
        self.starts[index] as usize..self.starts[index + 1] as usize
    }
}

/// Turns the logits of some rows into the scores that experts are chosen by.
fn scores_of(team: &Team<'_>, kernels: Kernels, router: &RouterSpec, logits: &mut [f32]) {
    match router.scores {
        RouterScores::Softmax => vector::softmax(team, kernels, logits, router.experts),
        RouterScores::Sigmoid => vector::sigmoid(kernels, logits),
        RouterScores::SqrtSoftplus => {
            vector::softplus(kernels, logits);
            logits.iter_mut().for_each(|score| *score = score.sqrt());
        }
        RouterScores::SoftmaxOfChosen | RouterScores::SigmoidOfChosen | RouterScores::SparseMixer { .. } => {}
    }
}

/// The best experts of one row, best first, with their weights.
fn choose(router: &RouterSpec, bias: Option<&[f32]>, scores: &[f32], choices: &mut [Choice]) {
    let is_kept = is_kept(router, bias, scores);
    for rank in 0..choices.len() {
        let (taken, free) = choices.split_at_mut(rank);
        let expert = best(bias, scores, taken, &is_kept);
        let weight = match router.scores {
            RouterScores::SparseMixer { jitter } => near_share(scores, taken, expert, jitter),
            _ => scores[expert],
        };
        free[0] = Choice { expert: expert as u32, weight };
    }
    weigh(router, choices);
}

/// From the scores of the chosen experts, which stand where their weights belong, to the weights.
pub(crate) fn weigh(router: &RouterSpec, choices: &mut [Choice]) {
    if router.scores == RouterScores::SoftmaxOfChosen {
        let largest = choices.iter().fold(f32::NEG_INFINITY, |largest, choice| largest.max(choice.weight));
        choices.iter_mut().for_each(|choice| choice.weight = (choice.weight - largest).exp());
        let sum: f32 = choices.iter().fold(0.0, |sum, choice| sum + choice.weight);
        choices.iter_mut().for_each(|choice| choice.weight /= sum);
    }
    if router.scores == RouterScores::SigmoidOfChosen {
        choices.iter_mut().for_each(|choice| choice.weight = 1.0 / (1.0 + (-choice.weight).exp()));
    }
    let sum: f32 = choices.iter().fold(0.0, |sum, choice| sum + choice.weight);
    let factor = match router.renormalize {
        Renormalize::No => router.scale,
        Renormalize::SumAtLeast(least) => router.scale / sum.max(least),
        Renormalize::SumPlus(epsilon) => router.scale / (sum + epsilon),
    };
    choices.iter_mut().for_each(|choice| choice.weight *= factor);
}

/// Whether an expert may be chosen: the groups of some models leave only a part of them.
pub(crate) fn is_kept(router: &RouterSpec, bias: Option<&[f32]>, scores: &[f32]) -> impl Fn(usize) -> bool {
    let mask = router.groups.map(|groups| (kept_groups(groups, bias, scores), scores.len() / groups.count));
    move |expert| mask.is_none_or(|(kept, size)| kept >> (expert / size) & 1 == 1)
}

/// The groups whose experts may be chosen, as bits; ties go to the lower group.
fn kept_groups(groups: RouterGroups, bias: Option<&[f32]>, scores: &[f32]) -> u64 {
    let size = scores.len() / groups.count;
    let score = |group: usize| {
        let (mut first, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
        for expert in group * size..(group + 1) * size {
            let score = scores[expert] + bias.map_or(0.0, |bias| bias[expert]);
            if score > first {
                (first, second) = (score, first);
            } else if score > second {
                second = score;
            }
        }
        match groups.score {
            GroupScore::Best => first,
            GroupScore::SumOfBestTwo => first + second,
        }
    };
    let mut kept = 0u64;
    for _ in 0..groups.kept {
        let mut best: Option<(usize, f32)> = None;
        for group in (0..groups.count).filter(|group| kept >> group & 1 == 0) {
            let score = score(group);
            // The first one also where all are NaN.
            if best.is_none_or(|(_, found)| score > found) {
                best = Some((group, score));
            }
        }
        kept |= best.map_or(0, |(group, _)| 1 << group);
    }
    kept
}

/// The expert with the best score, with the bias where there is one, that is kept and not taken.
fn best(bias: Option<&[f32]>, scores: &[f32], taken: &[Choice], is_kept: impl Fn(usize) -> bool) -> usize {
    let is_free =
        |expert: usize| is_kept(expert) && taken.iter().all(|choice| choice.expert as usize != expert);
    let score = |expert: usize| scores[expert] + bias.map_or(0.0, |bias| bias[expert]);
    let mut best: Option<usize> = None;
    for expert in 0..scores.len() {
        if score(expert) > best.map_or(f32::NEG_INFINITY, score) && is_free(expert) {
            best = Some(expert);
        }
    }
    // A row of NaN has no maximum; any choice serves until the forward pass reports the NaN.
    let expert = best.or_else(|| (0..scores.len()).find(|&expert| is_free(expert)));
    expert.expect("top_k is at most the number of experts")
}

/// The weight of `expert`, the largest logit that is not taken: its share in the softmax of the logits that are near it and not
/// taken. Near means that the distance is at most `2 jitter` times the larger of the logit's size and the largest logit.
fn near_share(logits: &[f32], taken: &[Choice], expert: usize, jitter: f32) -> f32 {
    let largest = logits[expert];
    let is_near = |logit: f32| {
        let distance = (largest - logit) / logit.abs().max(largest);
        // Zero over zero, where the largest logit is zero, is no distance.
        distance.is_nan() || distance <= 2.0 * jitter
    };
    let mut sum = 0.0;
    for (other, &logit) in logits.iter().enumerate() {
        if is_near(logit) && taken.iter().all(|choice| choice.expert as usize != other) {
            sum += (logit - largest).exp();
        }
    }
    1.0 / sum
}

#[cfg(test)]
mod tests {
    use coldpress_kernels::Isa;
    use coldpress_workers::Workers;

    use super::*;
    use crate::spec::MatrixHandle;

    fn routed(renormalize: bool, logits: &[f32], experts: usize) -> Routing {
        let renormalize = if renormalize { Renormalize::SumAtLeast(0.0) } else { Renormalize::No };
        let router = RouterSpec { renormalize, ..recipe(RouterScores::Softmax, experts) };
        route_with(&router, None, logits)
    }

    fn recipe(scores: RouterScores, experts: usize) -> RouterSpec {
        RouterSpec {
            weight: MatrixHandle(0),
            bias: None,
            experts,
            identities: 0,
            top_k: 2,
            scores,
            choice_bias: None,
            groups: None,
            renormalize: Renormalize::No,
            scale: 1.0,
            table: None,
        }
    }

    fn route_with(router: &RouterSpec, bias: Option<&[f32]>, logits: &[f32]) -> Routing {
        let kernels = Kernels::for_isa(Isa::Scalar).expect("scalar kernels exist everywhere");
        let mut routing = Routing::default();
        Workers::new(1).enter(|team| {
            routing.route(team, kernels, router, bias, &mut logits.to_vec(), logits.len() / router.experts);
        });
        routing
    }

    fn chosen(routing: &Routing) -> Vec<u32> {
        routing.choices.iter().map(|choice| choice.expert).collect()
    }

    #[test]
    fn weights_are_the_full_softmax_unless_renormalised() {
        let logits = [0.0f32, 1.0, 2.0, 3.0];
        let sum: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
        let expected = [3.0f64.exp() / sum, 2.0f64.exp() / sum];
        let plain = routed(false, &logits, 4);
        assert_eq!(chosen(&plain), [3, 2]);
        for (got, want) in plain.choices.iter().zip(expected) {
            assert!((f64::from(got.weight) - want).abs() < 1e-6);
        }
        let renormalised = routed(true, &logits, 4);
        assert!((renormalised.choices.iter().map(|choice| choice.weight).sum::<f32>() - 1.0).abs() < 1e-6);
    }

    fn weights(routing: &Routing) -> Vec<f64> {
        routing.choices.iter().map(|choice| f64::from(choice.weight)).collect()
    }

    fn assert_close(got: &[f64], want: &[f64]) {
        assert!(got.iter().zip(want).all(|(got, want)| (got - want).abs() < 1e-6), "{got:?} {want:?}");
    }

    #[test]
    fn a_softmax_of_the_chosen_sums_to_one() {
        let routing = route_with(&recipe(RouterScores::SoftmaxOfChosen, 4), None, &[0.0, 1.0, 2.0, 4.0]);
        assert_eq!(chosen(&routing), [3, 2]);
        let second = 1.0 / (1.0 + 2.0f64.exp());
        assert_close(&weights(&routing), &[1.0 - second, second]);
    }

    #[test]
    fn a_bias_counts_for_the_choice_alone() {
        let router = RouterSpec {
            renormalize: Renormalize::SumPlus(0.5),
            scale: 2.0,
            ..recipe(RouterScores::Sigmoid, 3)
        };
        let routing = route_with(&router, Some(&[1.0, 0.0, 0.0]), &[-1.0, 0.0, 1.0]);
        assert_eq!(chosen(&routing), [0, 2]);
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let sum = sigmoid(-1.0) + sigmoid(1.0) + 0.5;
        assert_close(&weights(&routing), &[2.0 * sigmoid(-1.0) / sum, 2.0 * sigmoid(1.0) / sum]);
    }

    #[test]
    fn roots_of_softplus_are_scores() {
        let router = RouterSpec { scale: 1.5, ..recipe(RouterScores::SqrtSoftplus, 3) };
        let routing = route_with(&router, None, &[-1.0, 2.0, 0.5]);
        assert_eq!(chosen(&routing), [1, 2]);
        let score = |x: f64| x.exp().ln_1p().sqrt();
        assert_close(&weights(&routing), &[1.5 * score(2.0), 1.5 * score(0.5)]);
    }

    #[test]
    fn a_table_names_the_experts_and_scores_weight_them() {
        let router =
            RouterSpec { renormalize: Renormalize::SumPlus(0.0), ..recipe(RouterScores::Sigmoid, 3) };
        let table = [2, 1, 0, 2, 1, 0];
        let kernels = Kernels::for_isa(Isa::Scalar).expect("scalar kernels exist everywhere");
        let mut routing = Routing::default();
        let mut logits = [9.0, 0.0, 0.0, 1.0, 9.0, -1.0];
        Workers::new(1).enter(|team| {
            routing.route_by_table(team, kernels, &router, &table, &[0, 1], &mut logits);
        });
        assert_eq!(chosen(&routing), [2, 1, 0, 2]);
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let sum = sigmoid(1.0) + sigmoid(-1.0);
        assert_close(&weights(&routing), &[0.5, 0.5, sigmoid(1.0) / sum, sigmoid(-1.0) / sum]);
        routing.foresee(&table, 2, &[1, 0, 1]);
        assert_eq!(routing.foreseen, [0, 1, 2]);
    }

    #[test]
    fn groups_are_chosen_before_experts() {
        // By its best expert the group of 3.0 wins, by its best two that of 2.0 and 1.9, with the bias that of -9.0.
        let logits = [3.0, -9.0, 2.0, 1.9, -9.0, -9.0];
        let grouped = |score, bias: Option<&[f32]>| {
            let groups = Some(RouterGroups { count: 3, kept: 1, score });
            chosen(&route_with(&RouterSpec { groups, ..recipe(RouterScores::Sigmoid, 6) }, bias, &logits))
        };
        assert_eq!(grouped(GroupScore::Best, None), [0, 1]);
        assert_eq!(grouped(GroupScore::SumOfBestTwo, None), [2, 3]);
        let bias = [0.0, 0.0, 0.0, 0.0, 1.0, 1.5];
        assert_eq!(grouped(GroupScore::SumOfBestTwo, Some(&bias)), [5, 4]);
    }

    #[test]
    fn sigmoids_of_the_chosen_are_their_weights() {
        let routing = route_with(&recipe(RouterScores::SigmoidOfChosen, 4), None, &[0.0, 40.0, -1.0, 50.0]);
        assert_eq!(chosen(&routing), [3, 1]);
        assert_close(&weights(&routing), &[1.0, 1.0]);
        let routing = route_with(&recipe(RouterScores::SigmoidOfChosen, 2), None, &[0.0, -1.0, 2.0, 3.0]);
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        assert_close(&weights(&routing), &[0.5, sigmoid(-1.0), sigmoid(3.0), sigmoid(2.0)]);
        let grouped: Vec<f64> = (0..4).map(|place| f64::from(routing.weight_at(place))).collect();
        let of = |expert: usize| &grouped[routing.pairs(expert)];
        assert_eq!(routing.experts, [0, 1]);
        assert_close(of(0), &[0.5, sigmoid(2.0)]);
        assert_close(of(1), &[sigmoid(-1.0), sigmoid(3.0)]);
    }

    #[test]
    fn the_sparse_mixer_counts_only_what_is_near() {
        let router = recipe(RouterScores::SparseMixer { jitter: 0.1 }, 4);
        // 1.7 is within 20 % of 2.0 and 1.0 is not; without 2.0, nothing is near 1.7.
        let routing = route_with(&router, None, &[1.0, 2.0, 1.7, -3.0]);
        assert_eq!(chosen(&routing), [1, 2]);
        assert_close(&weights(&routing), &[1.0 / (1.0 + (-0.3f64).exp()), 1.0]);
    }

    #[test]
    fn identities_are_chosen_and_nobody_is_asked_for_them() {
        let router = RouterSpec { identities: 2, ..recipe(RouterScores::Softmax, 4) };
        let routing =
            route_with(&router, None, &[1.0, 0.0, 9.0, 0.0, 0.0, 0.0, 8.0, 9.0, 0.0, 2.0, 0.0, 1.0]);
        assert_eq!(chosen(&routing), [2, 0, 3, 2, 1, 3]);
        assert_eq!(routing.experts, [0, 1]);
        assert_eq!(routing.starts, [0, 1, 2]);
        assert_eq!(routing.row_of[..2], [0, 2]);
        assert_eq!(routing.grouped_at, [NO_PLACE, 0, NO_PLACE, NO_PLACE, 1, NO_PLACE]);
    }

    #[test]
    fn ties_go_to_the_lower_index() {
        assert_eq!(chosen(&routed(true, &[1.0; 8], 8)), [0, 1]);
    }

    #[test]
    fn pairs_are_grouped_by_expert_in_the_order_of_last_use() {
        let routing = routed(true, &[9.0, 0.0, 5.0, 0.0, 9.0, 5.0, 9.0, 5.0, 0.0], 3);
        assert_eq!(chosen(&routing), [0, 2, 1, 2, 0, 1]);
        assert_eq!(routing.experts, [2, 1, 0]);
        assert_eq!(routing.starts, [0, 2, 4, 6]);
        assert_eq!(routing.row_of, [0, 1, 1, 2, 0, 2]);
        assert_eq!(routing.grouped_at, [4, 0, 2, 1, 5, 3]);
    }
}
