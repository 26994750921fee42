//! Kimi Delta Attention (Kimi Team, arXiv 2510.26692): a decay for each channel of a key, a short convolution each for queries, keys and
//! values, and gates that may have a low rank.

use std::ops::Range;

use coldpress_kernels::recurrent::{Columns, DeltaRows};
use coldpress_kernels::{MatmulJob, matmul};

use super::{ConvolutionTaps, DeltaRuleSpec, Mixer, ROW_BUFFERS, Widths, Work};
use crate::spec::LinearSpec;

const QUERY: usize = 0;
const KEY: usize = 1;
const VALUE: usize = 2;
const DECAY: usize = 3;
const GATE: usize = 4;
const BETA: usize = 5;

/// A projection that may pass through fewer dimensions.
#[derive(Clone, Copy, Debug)]
pub enum GateProjection {
    /// In one product.
    Direct(LinearSpec),
    /// Through `rank` dimensions.
    LowRank {
        /// To them.
        down: LinearSpec,
        /// How many.
        rank: usize,
        /// From them.
        up: LinearSpec,
    },
}

impl GateProjection {
    fn rank(&self) -> usize {
        match self {
            Self::Direct(_) => 0,
            Self::LowRank { rank, .. } => *rank,
        }
    }
}

/// A layer with Kimi Delta Attention.
#[derive(Clone, Copy, Debug)]
pub struct KimiDeltaSpec {
    /// The recurrence.
    pub rule: DeltaRuleSpec,
    /// To queries.
    pub query: LinearSpec,
    /// To keys.
    pub key: LinearSpec,
    /// To values.
    pub value: LinearSpec,
    /// Of queries, keys and values.
    pub filters: [ConvolutionTaps; 3],
    /// To what decays are made of.
    pub decay: GateProjection,
    /// To the gates on results.
    pub gate: GateProjection,
    /// To betas, one per head.
    pub beta: LinearSpec,
    /// Output projection.
    pub output: LinearSpec,
}

impl KimiDeltaSpec {
    fn multiply_gate(
        &self,
        work: &mut Work<'_, '_>,
        projection: GateProjection,
        at: usize,
        width: usize,
        rows: usize,
    ) {
        let hidden = work.model.spec.hidden;
        let (down, rank, up) = match projection {
            GateProjection::Direct(linear) => {
                return work.multiply_input([(linear, at, width)], rows, hidden);
            }
            GateProjection::LowRank { down, rank, up } => (down, rank, up),
        };
        let (model, team, kernels) = (work.model, work.team, work.kernels);
        for (linear, last) in [(down, false), (up, true)] {
            let weights = model.weights.matrix(linear.weight);
            let out = if last {
                let out = &mut work.rows[at].as_mut_slice_of::<f32>()[..rows * width];
                matmul(
                    team,
                    kernels,
                    &mut [MatmulJob::new(weights, work.inner.rows(0, rows, rank), &mut *out)],
                );
                out
            } else {
                let input = work.input.rows(0, rows, hidden);
                let out = work.inner.floats_mut(rows * rank);
                matmul(team, kernels, &mut [MatmulJob::new(weights, input, &mut *out)]);
                out
            };
            if let Some(bias) = linear.bias {
                model.add_bias(team, bias, out);
            }
            if !last {
                work.inner.quantize(team, kernels, rows, rank);
            }
        }
    }
}

impl Mixer for KimiDeltaSpec {
    fn state_len(&self) -> usize {
        self.filters.iter().map(ConvolutionTaps::tail_len).sum::<usize>() + self.rule.matrices_len()
    }

    fn result_len(&self) -> usize {
        self.rule.values_len()
    }

    fn widths(&self) -> Widths {
        let (keys, values) = (self.rule.keys_len(), self.rule.values_len());
        let mut rows = [0; ROW_BUFFERS];
        rows[QUERY] = keys;
        rows[KEY] = keys;
        rows[VALUE] = values;
        rows[DECAY] = self.rule.decays_len();
        rows[GATE] = values;
        rows[BETA] = self.rule.shape.heads;
        let inner = self.decay.rank().max(self.gate.rank());
        Widths { rows, inner, fixed: self.rule.decays_len() }
    }

    fn project(&self, work: &mut Work<'_, '_>, rows: usize) {
        let hidden = work.model.spec.hidden;
        let (keys, values) = (self.rule.keys_len(), self.rule.values_len());
        let inputs = [
            (self.query, QUERY, keys),
            (self.key, KEY, keys),
            (self.value, VALUE, values),
            (self.beta, BETA, self.rule.shape.heads),
        ];
        work.multiply_input(inputs, rows, hidden);
        self.multiply_gate(work, self.decay, DECAY, self.rule.decays_len(), rows);
        self.multiply_gate(work, self.gate, GATE, values, rows);
        self.rule.prepare(work, rows, DECAY, BETA);
    }

    fn advance(&self, work: &mut Work<'_, '_>, rows: Range<usize>, state: &mut [f32]) {
        let rule = &self.rule;
        let (keys, values, heads) = (rule.keys_len(), rule.values_len(), rule.shape.heads);
        let (model, team, kernels) = (work.model, work.team, work.kernels);
        let mut rest = state;
        for (at, filter) in self.filters.iter().enumerate() {
            let (tail, behind) = rest.split_at_mut(filter.tail_len());
            rest = behind;
            let place = rows.start * filter.channels..rows.end * filter.channels;
            let x = &mut work.rows[at].as_mut_slice_of::<f32>()[place];
            filter.convolve(model, (team, kernels), x, (filter.channels, 0), tail);
            match at {
                QUERY => rule.unit_heads(team, kernels, x, keys, 0, rule.query_scale()),
                KEY => rule.unit_heads(team, kernels, x, keys, 0, 1.0),
                _ => {}
            }
        }
        let part = |at: usize, width: usize| {
            &work.rows[at].as_slice_of::<f32>()[rows.start * width..rows.end * width]
        };
        let input = DeltaRows {
            rows: rows.len(),
            query: Columns::whole(part(QUERY, keys), keys),
            key: Columns::whole(part(KEY, keys), keys),
            value: Columns::whole(part(VALUE, values), values),
            decay: rule.decay_columns(part(DECAY, rule.decays_len())),
            beta: Columns::whole(part(BETA, heads), heads),
        };
        let out = &mut work.input.floats_mut(rows.end * values)[rows.start * values..];
        rule.follow(team, kernels, input, rest, out);
    }

    fn finish(&self, work: &mut Work<'_, '_>, rows: usize) {
        self.rule.finish(work, rows, GATE);
    }

    fn output(&self) -> LinearSpec {
        self.output
    }
}
