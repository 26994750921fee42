//! Choosing the next token from logits, reproducibly.
//!
//! Order of the steps (that of transformers): bias, penalties, temperature, top-k, top-p, min-p, draw. Temperature 0
//! is greedy: the largest logit after the penalties, ties to the lower id. The draw uses SplitMix64 (Steele, Lea, Flood:
//! Fast Splittable Pseudorandom Number Generators, 2014), so a seed gives the same text on every machine that gives the
//! same logits. A [`Sampler`] is working memory for any number of answers; an [`AnswerSampler`] is what one answer
//! remembers. Both take their memory from the ledger.

use bytemuck::{Pod, Zeroable};
use coldpress_memory::{Buffer, Bytes, Ledger, MemoryError, Purpose, sys};

/// How the next token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Logits are divided by this; 0 means greedy.
    pub temperature: f32,
    /// Keep the `top_k` most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Keep the smallest set of most likely tokens whose probabilities sum to at least this; 1 keeps all.
    pub top_p: f32,
    /// Drop tokens less likely than this fraction of the most likely one; 0 keeps all.
    pub min_p: f32,
    /// Positive logits of tokens that occurred are divided by this, negative ones multiplied; 1 for none
    /// (Keskar et al., arXiv 1909.05858).
    pub repetition_penalty: f32,
    /// Taken from the logit of a token once for every time the answer has it; 0 for none.
    pub frequency_penalty: f32,
    /// Taken from the logit of every token that the answer has; 0 for none.
    pub presence_penalty: f32,
    /// Start of the random sequence.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            seed: 0,
        }
    }
}

impl Sampling {
    /// Checks the ranges of all fields.
    ///
    /// # Errors
    /// A sentence naming the field, the value and the range.
    pub fn validate(&self) -> Result<(), String> {
        let additive = "between -2 and 2";
        let within = |penalty: f32| (-2.0..=2.0).contains(&penalty);
        let checks = [
            ("temperature", self.temperature, self.temperature >= 0.0, "at least 0"),
            ("top-p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "above 0 and at most 1"),
            ("min-p", self.min_p, (0.0..=1.0).contains(&self.min_p), "between 0 and 1"),
            ("repetition penalty", self.repetition_penalty, self.repetition_penalty > 0.0, "above 0"),
            ("frequency penalty", self.frequency_penalty, within(self.frequency_penalty), additive),
            ("presence penalty", self.presence_penalty, within(self.presence_penalty), additive),
        ];
        match checks.into_iter().find(|&(_, value, fine, _)| !fine || !value.is_finite()) {
            Some((name, value, _, range)) => Err(format!("{name} is {value}; it must be {range}")),
            None => Ok(()),
        }
    }
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Candidate {
    id: u32,
    weight: f32,
}

impl Candidate {
    /// Heaviest first, ties by id.
    fn by_weight(a: &Self, b: &Self) -> std::cmp::Ordering {
        b.weight.total_cmp(&a.weight).then(a.id.cmp(&b.id))
    }
}

/// Set in a count where the prompt has the token.
const IN_PROMPT: u16 = 1 << 15;

/// What one answer remembers: its settings, random state, and how often each token occurred.
pub struct AnswerSampler {
    sampling: Sampling,
    random: u64,
    /// Per token: [`IN_PROMPT`], and how often the answer has it, up to the largest number below that.
    occurred: Buffer,
    /// Added to the logits of some tokens.
    bias: Vec<(u32, f32)>,
}

impl AnswerSampler {
    /// Bytes that [`AnswerSampler::new`] takes from the ledger.
    pub fn bytes(vocabulary: usize) -> u64 {
        (vocabulary * size_of::<u16>()).next_multiple_of(sys::page_size()) as u64
    }

    /// For logits of `vocabulary` entries.
    ///
    /// # Errors
    /// The ledger has no room.
    pub fn new(ledger: &Ledger, vocabulary: usize) -> Result<Self, MemoryError> {
        let occurred = Buffer::new(ledger, Purpose::Scratch, Bytes((vocabulary * size_of::<u16>()) as u64))?;
        Ok(Self { sampling: Sampling::default(), random: 0, occurred, bias: Vec::new() })
    }

    /// Starts a new answer: takes the settings, restarts the random sequence, marks the prompt's tokens as occurred.
    pub fn restart(&mut self, sampling: Sampling, prompt: &[u32], bias: &[(u32, f32)]) {
        self.sampling = sampling;
        self.random = sampling.seed;
        self.occurred.as_bytes_mut().fill(0);
        for &id in prompt {
            if let Some(count) = self.occurred.as_mut_slice_of::<u16>().get_mut(id as usize) {
                *count |= IN_PROMPT;
            }
        }
        self.bias.clear();
        self.bias.extend_from_slice(bias);
    }

    fn mark(&mut self, id: u32) {
        if let Some(count) = self.occurred.as_mut_slice_of::<u16>().get_mut(id as usize)
            && *count & !IN_PROMPT < IN_PROMPT - 1
        {
            *count += 1;
        }
    }

    /// Applies bias and penalties.
    fn adjust(&self, logits: &mut [f32]) {
        for &(id, bias) in &self.bias {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit += bias;
            }
        }
        let Sampling { repetition_penalty, frequency_penalty, presence_penalty, .. } = self.sampling;
        if repetition_penalty == 1.0 && frequency_penalty == 0.0 && presence_penalty == 0.0 {
            return;
        }
        let occurred = logits.iter_mut().zip(self.occurred.as_slice_of::<u16>());
        for (logit, &count) in occurred.filter(|&(_, &count)| count != 0) {
            *logit = if *logit > 0.0 { *logit / repetition_penalty } else { *logit * repetition_penalty };
            let in_answer = count & !IN_PROMPT;
            if in_answer > 0 {
                *logit -= frequency_penalty * f32::from(in_answer) + presence_penalty;
            }
        }
    }
}

/// Working memory for choosing tokens.
pub struct Sampler {
    candidates: Buffer,
    /// A copy of some logits, where log probabilities are asked for.
    kept: Buffer,
    kept_len: usize,
    log_of_sum: f64,
}

impl Sampler {
    /// Bytes that [`Sampler::new`] takes from the ledger.
    pub fn bytes(vocabulary: usize) -> u64 {
        let page = sys::page_size();
        let candidates = (vocabulary * size_of::<Candidate>()).next_multiple_of(page);
        (candidates + (vocabulary * size_of::<f32>()).next_multiple_of(page)) as u64
    }

    /// A sampler for logits of `vocabulary` entries.
    ///
    /// # Errors
    /// The ledger has no room.
    pub fn new(ledger: &Ledger, vocabulary: usize) -> Result<Self, MemoryError> {
        let buffer =
            |element: usize| Buffer::new(ledger, Purpose::Scratch, Bytes((vocabulary * element) as u64));
        let (candidates, kept) = (buffer(size_of::<Candidate>())?, buffer(size_of::<f32>())?);
        Ok(Self { candidates, kept, kept_len: 0, log_of_sum: 0.0 })
    }

    /// Chooses the next token of `answer` and marks it as occurred. `logits` is overwritten.
    pub fn sample(&mut self, answer: &mut AnswerSampler, logits: &mut [f32]) -> u32 {
        answer.adjust(logits);
        let greedily = answer.sampling.temperature == 0.0;
        let id = if greedily { greedy(logits) } else { self.draw(answer, logits) };
        answer.mark(id);
        id
    }

    /// Keeps a copy of `logits`, for [`Sampler::log_probability`] and [`Sampler::most_likely`]: choosing overwrites them.
    pub fn keep(&mut self, logits: &[f32]) {
        self.kept.as_mut_slice_of::<f32>()[..logits.len()].copy_from_slice(logits);
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|&logit| f64::from(logit - largest).exp()).sum();
        self.log_of_sum = f64::from(largest) + sum.ln();
        self.kept_len = logits.len();
    }

    /// Natural logarithm of a token's probability under the logits kept last.
    pub fn log_probability(&self, id: u32) -> f32 {
        let kept = &self.kept.as_slice_of::<f32>()[..self.kept_len];
        kept.get(id as usize).map_or(f32::NEG_INFINITY, |&logit| (f64::from(logit) - self.log_of_sum) as f32)
    }

    /// The `count` most likely tokens under the logits kept last with the logarithms of their probabilities, most likely
    /// first.
    pub fn most_likely(&mut self, count: usize) -> Vec<(u32, f32)> {
        let count = count.min(self.kept_len);
        if count == 0 {
            return Vec::new();
        }
        let candidates = &mut self.candidates.as_mut_slice_of::<Candidate>()[..self.kept_len];
        let kept = self.kept.as_slice_of::<f32>();
        for ((id, &weight), candidate) in (0u32..).zip(kept).zip(candidates.iter_mut()) {
            *candidate = Candidate { id, weight };
        }
        candidates.select_nth_unstable_by(count - 1, Candidate::by_weight);
        let best = &mut candidates[..count];
        best.sort_unstable_by(Candidate::by_weight);
        let log_of = |weight: f32| (f64::from(weight) - self.log_of_sum) as f32;
        best.iter().map(|candidate| (candidate.id, log_of(candidate.weight))).collect()
    }

    fn draw(&mut self, answer: &mut AnswerSampler, logits: &[f32]) -> u32 {
        let Sampling { temperature, top_k, top_p, min_p, .. } = answer.sampling;
        let candidates = &mut self.candidates.as_mut_slice_of::<Candidate>()[..logits.len()];
        let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        for ((id, &logit), candidate) in (0u32..).zip(logits).zip(candidates.iter_mut()) {
            *candidate = Candidate { id, weight: ((logit - top) / temperature).exp() };
        }
        let mut kept = candidates.len();
        if top_k > 0 && top_k < kept {
            candidates.select_nth_unstable_by(top_k - 1, Candidate::by_weight);
            kept = top_k;
        }
        let candidates = &mut candidates[..kept];
        candidates.sort_unstable_by(Candidate::by_weight);
        let kept = nucleus(candidates, top_p);
        // The most likely token has weight 1 before normalisation.
        let kept = candidates[..kept].iter().take_while(|candidate| candidate.weight >= min_p).count().max(1);
        let candidates = &candidates[..kept];
        let total: f64 = candidates.iter().map(|candidate| f64::from(candidate.weight)).sum();
        let mut left = unit_interval(&mut answer.random) * total;
        for candidate in candidates {
            left -= f64::from(candidate.weight);
            if left < 0.0 {
                return candidate.id;
            }
        }
        candidates[kept - 1].id
    }
}

/// Number of leading candidates (sorted by weight) that hold the fraction `top_p` of the weight.
fn nucleus(candidates: &[Candidate], top_p: f32) -> usize {
    if top_p >= 1.0 {
        return candidates.len();
    }
    let total: f64 = candidates.iter().map(|candidate| f64::from(candidate.weight)).sum();
    let mut sum = 0.0;
    let before = candidates.iter().take_while(|candidate| {
        let enough = sum >= f64::from(top_p) * total;
        sum += f64::from(candidate.weight);
        !enough
    });
    before.count().max(1)
}

/// The largest logit; ties go to the lower id.
pub fn greedy(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (id, &logit) in logits.iter().enumerate() {
        if logit > logits[best] {
            best = id;
        }
    }
    best as u32
}

/// The next number of the SplitMix64 sequence, in [0, 1).
fn unit_interval(state: &mut u64) -> f64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut bits = *state;
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^= bits >> 31;
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Drawing(Sampler, AnswerSampler);

    impl Drawing {
        fn sample(&mut self, logits: &mut [f32]) -> u32 {
            self.0.sample(&mut self.1, logits)
        }
    }

    fn drawing(sampling: Sampling, vocabulary: usize, prompt: &[u32], bias: &[(u32, f32)]) -> Drawing {
        let ledger = Ledger::new(Bytes(1 << 20));
        let sampler = Sampler::new(&ledger, vocabulary).expect("one MiB is enough");
        let mut answer = AnswerSampler::new(&ledger, vocabulary).expect("one MiB is enough");
        answer.restart(sampling, prompt, bias);
        Drawing(sampler, answer)
    }

    fn draws(sampling: Sampling, logits: &[f32], count: usize) -> Vec<u32> {
        let mut drawing = drawing(sampling, logits.len(), &[], &[]);
        (0..count).map(|_| drawing.sample(&mut logits.to_vec())).collect()
    }

    #[test]
    fn splitmix_matches_its_published_sequence() {
        // First outputs for seed 1234567, as listed with the reference implementation.
        let mut state = 1_234_567;
        let expected = [6_457_827_717_110_365_317u64, 3_203_168_211_198_807_973];
        for want in expected {
            assert_eq!(unit_interval(&mut state), (want >> 11) as f64 / (1u64 << 53) as f64);
        }
    }

    #[test]
    fn a_seed_repeats_and_another_differs() {
        let logits: Vec<f32> = (0..50).map(|i| (i as f32 * 0.7).sin()).collect();
        let sampling = |seed| Sampling { temperature: 1.0, seed, ..Sampling::default() };
        assert_eq!(draws(sampling(7), &logits, 40), draws(sampling(7), &logits, 40));
        assert_ne!(draws(sampling(7), &logits, 40), draws(sampling(8), &logits, 40));
    }

    #[test]
    fn frequencies_follow_the_softmax() {
        let logits = [0.0f32, 1.0, 2.0];
        let total: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
        let sampling = Sampling { temperature: 1.0, ..Sampling::default() };
        let drawn = draws(sampling, &logits, 20_000);
        for (id, &logit) in logits.iter().enumerate() {
            let got = drawn.iter().filter(|&&d| d as usize == id).count() as f64 / 20_000.0;
            let want = f64::from(logit).exp() / total;
            // Five standard deviations of a binomial share.
            assert!(
                (got - want).abs() < 5.0 * (want * (1.0 - want) / 20_000.0).sqrt(),
                "{id}: {got} for {want}"
            );
        }
    }

    #[test]
    fn filters_keep_what_they_name() {
        let logits = [3.0f32, 2.0, 1.0, 0.0, -1.0];
        let base = Sampling { temperature: 1.0, ..Sampling::default() };
        let most = |sampling| draws(sampling, &logits, 2_000).into_iter().max().expect("draws");
        assert_eq!(most(Sampling { top_k: 2, ..base }), 1);
        // Probabilities are .636 .234 .086 .032 .012: two tokens hold 0.87, three hold 0.956.
        assert_eq!(most(Sampling { top_p: 0.86, ..base }), 1);
        assert_eq!(most(Sampling { top_p: 0.95, ..base }), 2);
        // e^-2 = 0.135 of the best is kept, e^-3 = 0.0498 is not.
        assert_eq!(most(Sampling { min_p: 0.1, ..base }), 2);
    }

    #[test]
    fn the_penalty_lowers_what_occurred() {
        let penalised = Sampling { repetition_penalty: 2.0, ..Sampling::default() };
        let mut drawing = drawing(penalised, 3, &[], &[]);
        assert_eq!(drawing.sample(&mut [4.0, 3.0, -1.0]), 0);
        assert_eq!(drawing.sample(&mut [4.0, 3.0, -1.0]), 1);
        assert_eq!(drawing.sample(&mut [-1.0, -1.0, -1.5]), 2);
    }

    #[test]
    fn additive_penalties_count_the_answer_and_not_the_prompt() {
        let frequency = Sampling { frequency_penalty: 1.0, ..Sampling::default() };
        let mut each = drawing(frequency, 2, &[0, 0, 0], &[]);
        // 2.5, then 1.5, then 0.5 against 1.
        let chosen: Vec<u32> = (0..4).map(|_| each.sample(&mut [2.5, 1.0])).collect();
        assert_eq!(chosen, [0, 0, 1, 0]);
        let presence = Sampling { presence_penalty: 1.0, ..Sampling::default() };
        let mut once = drawing(presence, 2, &[0], &[]);
        let chosen: Vec<u32> = (0..4).map(|_| once.sample(&mut [2.5, 1.0])).collect();
        assert_eq!(chosen, [0; 4]);
    }

    #[test]
    fn a_bias_is_added_to_its_token_alone() {
        let mut biased = drawing(Sampling::default(), 3, &[], &[(2, 5.0), (99, 1.0)]);
        assert_eq!(biased.sample(&mut [4.0, 3.0, 0.0]), 2);
        let mut banned = drawing(Sampling::default(), 3, &[], &[(0, -100.0)]);
        assert_eq!(banned.sample(&mut [4.0, 3.0, 0.0]), 1);
    }

    #[test]
    fn log_probabilities_are_those_of_the_softmax() {
        let mut drawing = drawing(Sampling::default(), 4, &[], &[]);
        drawing.0.keep(&[0.0, 2.0, 1.0, 2.0]);
        let total: f64 = [0.0, 2.0, 1.0, 2.0].iter().map(|x: &f64| x.exp()).sum();
        let log_of = |logit: f64| (logit - total.ln()) as f32;
        assert_eq!(drawing.0.log_probability(0), log_of(0.0));
        assert_eq!(drawing.0.log_probability(9), f32::NEG_INFINITY);
        assert_eq!(drawing.0.most_likely(3), [(1, log_of(2.0)), (3, log_of(2.0)), (2, log_of(1.0))]);
        assert_eq!(drawing.0.most_likely(99).len(), 4);
        assert_eq!(drawing.0.most_likely(0), []);
    }

    #[test]
    fn greedy_ties_go_to_the_lower_id() {
        assert_eq!(greedy(&[1.0, 2.0, 2.0]), 1);
    }
}
