//! What all layers with a delta rule have in common: decays, the norms of queries and keys, the recurrence, the gated norm.
//!
//! Gated DeltaNet (`gated_delta.rs`) and Kimi Delta Attention (`kimi_delta.rs`) differ in their projections and in whether a head has
//! one decay or one per channel. The arithmetic is in `coldpress_kernels::recurrent`.

use coldpress_kernels::recurrent::{
    Columns, Decay, DecayRule, DeltaRows, DeltaShape, GateActivation, decay_in_place, delta_rule,
    delta_state_len, gated_rms_norm, l2_norm_in_place,
};
use coldpress_kernels::{Kernels, vector};
use coldpress_workers::Team;

use super::Work;
use crate::spec::VectorHandle;

/// Added to the sum of squares of queries and keys (`l2norm` in the references).
const UNIT_EPSILON: f32 = 1e-6;

/// What the sizes of decays follow from, one number per head.
#[derive(Clone, Copy, Debug)]
pub enum DecayRate {
    /// Logarithms of the magnitudes, as checkpoints have them.
    Logarithms(VectorHandle),
    /// The rates themselves, with the sign that their rule asks for (GGUF).
    Rates(VectorHandle),
}

/// The recurrence of a layer.
#[derive(Clone, Copy, Debug)]
pub struct DeltaRuleSpec {
    /// Heads and their sizes.
    pub shape: DeltaShape,
    /// Whether each channel of a key has a decay of its own.
    pub per_channel: bool,
    /// From what is projected to a decay.
    pub decay: DecayRule,
    /// Added before, one number per decay.
    pub decay_bias: VectorHandle,
    /// Factor within the rule.
    pub rate: DecayRate,
    /// RMSNorm of each head's result.
    pub norm: VectorHandle,
    /// Activation of the gate on the normed result.
    pub gate: GateActivation,
}

impl DeltaRuleSpec {
    /// Elements of all queries, or all keys, of a row.
    pub fn keys_len(&self) -> usize {
        self.shape.key_heads * self.shape.key_dim
    }

    /// Elements of all values of a row, and of its result.
    pub fn values_len(&self) -> usize {
        self.shape.heads * self.shape.value_dim
    }

    /// Decays of a row.
    pub fn decays_len(&self) -> usize {
        self.shape.heads * if self.per_channel { self.shape.key_dim } else { 1 }
    }

    /// f32 numbers of state: a matrix per head.
    pub fn matrices_len(&self) -> usize {
        delta_state_len(self.shape)
    }

    /// Turns what was projected for `rows` rows, in the buffers `decay` and `beta` of `work.rows`, into decays and betas.
    pub(crate) fn prepare(&self, work: &mut Work<'_, '_>, rows: usize, decay: usize, beta: usize) {
        let (heads, decays) = (self.shape.heads, self.decays_len());
        let betas = &mut work.rows[beta].as_mut_slice_of::<f32>()[..rows * heads];
        vector::sigmoid(work.kernels, betas);
        let rates = &mut work.fixed.as_mut_slice_of::<f32>()[..decays];
        let weights = &work.model.weights;
        match self.rate {
            DecayRate::Rates(handle) => rates[..heads].copy_from_slice(weights.vector(handle)),
            DecayRate::Logarithms(handle) => {
                let rates = &mut rates[..heads];
                rates.copy_from_slice(weights.vector(handle));
                vector::exp(work.kernels, rates);
                if self.decay == DecayRule::Softplus {
                    rates.iter_mut().for_each(|rate| *rate = -*rate);
                }
            }
        }
        // From the last head on, so that no rate is overwritten before it is used.
        let per_head = decays / heads;
        for head in (0..heads).rev() {
            let rate = rates[head];
            rates[head * per_head..(head + 1) * per_head].fill(rate);
        }
        let values = &mut work.rows[decay].as_mut_slice_of::<f32>()[..rows * decays];
        let bias = weights.vector(self.decay_bias);
        decay_in_place(work.team, work.kernels, values, bias, rates, self.decay);
    }

    /// Gives the queries or keys in columns `first..` of rows of `row_stride` elements unit length, times `scale`.
    pub(crate) fn unit_heads(
        &self,
        team: &Team<'_>,
        kernels: Kernels,
        x: &mut [f32],
        row_stride: usize,
        first: usize,
        scale: f32,
    ) {
        let (columns, dim) = ((first, self.keys_len()), self.shape.key_dim);
        l2_norm_in_place(team, kernels, x, row_stride, columns, dim, UNIT_EPSILON, scale);
    }

    /// Factor on queries.
    pub(crate) fn query_scale(&self) -> f32 {
        1.0 / (self.shape.key_dim as f32).sqrt()
    }

    /// The decays `[rows, decays]` as the kernel takes them.
    pub(crate) fn decay_columns<'a>(&self, decays: &'a [f32]) -> Decay<'a> {
        let columns = Columns::whole(decays, self.decays_len());
        if self.per_channel { Decay::PerChannel(columns) } else { Decay::PerHead(columns) }
    }

    /// Follows the recurrence through rows of one sequence.
    pub(crate) fn follow(
        &self,
        team: &Team<'_>,
        kernels: Kernels,
        input: DeltaRows<'_>,
        matrices: &mut [f32],
        out: &mut [f32],
    ) {
        delta_rule(team, kernels, self.shape, input, matrices, out);
    }

    /// Norms and gates the results of `rows` rows; the gates are in the buffer `gate` of `work.rows`.
    pub(crate) fn finish(&self, work: &mut Work<'_, '_>, rows: usize, gate: usize) {
        let width = self.values_len();
        let gates = Columns::whole(&work.rows[gate].as_slice_of::<f32>()[..rows * width], width);
        let (weight, epsilon) = (work.model.weights.vector(self.norm), work.model.spec.norm_epsilon);
        let results = work.input.floats_mut(rows * width);
        gated_rms_norm(work.team, work.kernels, results, width, gates, weight, epsilon, self.gate);
    }
}
