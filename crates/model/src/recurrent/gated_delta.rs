//! Gated DeltaNet (Yang, Kautz and Hatamizadeh, arXiv 2412.06464) as Qwen3-Next and Qwen3.5 have it: queries, keys and values pass one
//! short convolution, each head has one decay.
//!
//! Checkpoints of Qwen3-Next project everything at once, key head by key head; rows are put in order behind the product.

use std::ops::Range;

use coldpress_kernels::recurrent::{Columns, DeltaRows};

use super::{ConvolutionTaps, DeltaRuleSpec, Mixer, ROW_BUFFERS, Widths, Work};
use crate::latent::for_rows;
use crate::spec::LinearSpec;

/// Queries, keys and values of a row, one after the other.
const MIXED: usize = 0;
const GATE: usize = 1;
const BETA: usize = 2;
const DECAY: usize = 3;
/// What comes out of joined projections.
const JOINED: usize = 4;
const JOINED_FACTORS: usize = 5;

/// Two projections, or both in one, key head by key head.
#[derive(Clone, Copy, Debug)]
pub enum Projections {
    /// A matrix for each.
    Apart(LinearSpec, LinearSpec),
    /// For each key head first its rows of the one, then of the other.
    Joined(LinearSpec),
}

/// A layer with Gated DeltaNet.
#[derive(Clone, Copy, Debug)]
pub struct GatedDeltaSpec {
    /// The recurrence.
    pub rule: DeltaRuleSpec,
    /// To queries, keys and values together, and to gates.
    pub mixed_and_gate: Projections,
    /// To betas and what decays are made of, a number per head each.
    pub beta_and_decay: Projections,
    /// Of queries, keys and values.
    pub filter: ConvolutionTaps,
    /// Output projection.
    pub output: LinearSpec,
}

impl GatedDeltaSpec {
    fn mixed_len(&self) -> usize {
        2 * self.rule.keys_len() + self.rule.values_len()
    }

    /// Puts queries, keys, values and gates of key heads where they belong.
    fn sort_rows(&self, work: &mut Work<'_, '_>, rows: usize) {
        let shape = self.rule.shape;
        let (key, value) = (shape.key_dim, shape.heads / shape.key_heads * shape.value_dim);
        let (keys, values) = (self.rule.keys_len(), self.rule.values_len());
        let (mixed_len, group) = (self.mixed_len(), 2 * key + 2 * value);
        let [mixed, gate, .., joined, _] = &mut *work.rows;
        let joined = &joined.as_slice_of::<f32>()[..rows * (mixed_len + values)];
        let groups =
            |row: usize| joined[row * (mixed_len + values)..][..mixed_len + values].chunks_exact(group);
        let mixed = &mut mixed.as_mut_slice_of::<f32>()[..rows * mixed_len];
        for_rows(work.team, mixed, mixed_len, |row, out| {
            for (head, from) in groups(row).enumerate() {
                out[head * key..][..key].copy_from_slice(&from[..key]);
                out[keys + head * key..][..key].copy_from_slice(&from[key..2 * key]);
                out[2 * keys + head * value..][..value].copy_from_slice(&from[2 * key..2 * key + value]);
            }
        });
        let gate = &mut gate.as_mut_slice_of::<f32>()[..rows * values];
        for_rows(work.team, gate, values, |row, out| {
            for (out, from) in out.chunks_exact_mut(value).zip(groups(row)) {
                out.copy_from_slice(&from[2 * key + value..]);
            }
        });
    }

    /// Puts betas and decays of key heads where they belong.
    fn sort_factors(&self, work: &mut Work<'_, '_>, rows: usize) {
        let heads = self.rule.shape.heads;
        let group = heads / self.rule.shape.key_heads;
        let [_, _, beta, decay, _, joined] = &mut *work.rows;
        let joined = &joined.as_slice_of::<f32>()[..rows * 2 * heads];
        for (buffer, at) in [(beta, 0), (decay, group)] {
            let out = buffer.as_mut_slice_of::<f32>()[..rows * heads].chunks_exact_mut(group);
            for (out, from) in out.zip(joined.chunks_exact(2 * group)) {
                out.copy_from_slice(&from[at..at + group]);
            }
        }
    }
}

impl Mixer for GatedDeltaSpec {
    fn state_len(&self) -> usize {
        self.filter.tail_len() + self.rule.matrices_len()
    }

    fn result_len(&self) -> usize {
        self.rule.values_len()
    }

    fn widths(&self) -> Widths {
        let joined =
            |projections, width| if matches!(projections, Projections::Joined(_)) { width } else { 0 };
        let (mixed, values, heads) = (self.mixed_len(), self.rule.values_len(), self.rule.shape.heads);
        let mut rows = [0; ROW_BUFFERS];
        rows[MIXED] = mixed;
        rows[GATE] = values;
        rows[BETA] = heads;
        rows[DECAY] = self.rule.decays_len();
        rows[JOINED] = joined(self.mixed_and_gate, mixed + values);
        rows[JOINED_FACTORS] = joined(self.beta_and_decay, 2 * heads);
        Widths { rows, inner: 0, fixed: self.rule.decays_len() }
    }

    fn project(&self, work: &mut Work<'_, '_>, rows: usize) {
        let hidden = work.model.spec.hidden;
        let (mixed, values, heads) = (self.mixed_len(), self.rule.values_len(), self.rule.shape.heads);
        match self.mixed_and_gate {
            Projections::Apart(first, second) => {
                work.multiply_input([(first, MIXED, mixed), (second, GATE, values)], rows, hidden);
            }
            Projections::Joined(joined) => {
                work.multiply_input([(joined, JOINED, mixed + values)], rows, hidden);
                self.sort_rows(work, rows);
            }
        }
        match self.beta_and_decay {
            Projections::Apart(first, second) => {
                work.multiply_input([(first, BETA, heads), (second, DECAY, heads)], rows, hidden);
            }
            Projections::Joined(joined) => {
                work.multiply_input([(joined, JOINED_FACTORS, 2 * heads)], rows, hidden);
                self.sort_factors(work, rows);
            }
        }
        self.rule.prepare(work, rows, DECAY, BETA);
    }

    fn advance(&self, work: &mut Work<'_, '_>, rows: Range<usize>, state: &mut [f32]) {
        let (rule, width) = (&self.rule, self.mixed_len());
        let (keys, values) = (rule.keys_len(), rule.values_len());
        let (tail, matrices) = state.split_at_mut(self.filter.tail_len());
        let [mixed, _, beta, decay, ..] = &mut *work.rows;
        let mixed = &mut mixed.as_mut_slice_of::<f32>()[rows.start * width..rows.end * width];
        let (model, team, kernels) = (work.model, work.team, work.kernels);
        self.filter.convolve(model, (team, kernels), mixed, (width, 0), tail);
        rule.unit_heads(team, kernels, mixed, width, 0, rule.query_scale());
        rule.unit_heads(team, kernels, mixed, width, keys, 1.0);
        let columns = |first_column| Columns { data: &*mixed, row_stride: width, first_column };
        let heads = rule.shape.heads;
        let decays = &decay.as_slice_of::<f32>()[rows.start * heads..rows.end * heads];
        let betas = &beta.as_slice_of::<f32>()[rows.start * heads..rows.end * heads];
        let input = DeltaRows {
            rows: rows.len(),
            query: columns(0),
            key: columns(keys),
            value: columns(2 * keys),
            decay: rule.decay_columns(decays),
            beta: Columns::whole(betas, heads),
        };
        let out = &mut work.input.floats_mut(rows.end * values)[rows.start * values..];
        rule.follow(team, kernels, input, matrices, out);
    }

    fn finish(&self, work: &mut Work<'_, '_>, rows: usize) {
        self.rule.finish(work, rows, GATE);
    }

    fn output(&self) -> LinearSpec {
        self.output
    }
}
