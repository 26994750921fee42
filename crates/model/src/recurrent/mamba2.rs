//! The state space model of Mamba-2 (Dao and Gu 2024, arXiv:2405.21060): a matrix per head that forgets at a pace which each
//! position chooses.
//!
//! One product of a row brings its gate, what goes through a short convolution (values, keys `B` and queries `C`) and one number
//! per head for its step. The state holds the last inputs of the convolution, then the heads' matrices. The output is gated,
//! then normed.
//!
//! Reference: `modeling_mamba2.py` and `modeling_granitemoehybrid.py` of transformers.

use std::ops::Range;

use coldpress_kernels::recurrent::{
    Columns, DecayedRows, DecayedShape, DecayedSteps, HeadColumns, Rates, StepLimits, decayed_attention,
    decayed_state_len, gate_and_rms_norm, selective_steps,
};

use super::{ConvolutionTaps, Mixer, Widths, Work};
use crate::spec::{LinearSpec, VectorHandle};

/// Where a piece's projections and its steps are among the buffers.
const PROJECTED: usize = 0;
const STEPS: usize = 1;

/// See the module header.
#[derive(Clone, Copy, Debug)]
pub struct Mamba2Spec {
    /// From the hidden size to the gate, the channels of the convolution, and a number per head.
    pub input: LinearSpec,
    /// Over values, then the keys and the queries of all groups.
    pub convolution: ConvolutionTaps,
    /// Added to the number of each head before it becomes a step.
    pub step_bias: VectorHandle,
    /// How fast each head forgets.
    pub rates: VectorHandle,
    /// Whether they are stored as the logarithms of their negatives.
    pub rates_are_logarithms: bool,
    /// What a value adds to the output past the state, per head.
    pub skip: VectorHandle,
    /// RMSNorm of the gated output, over each group by itself.
    pub norm: VectorHandle,
    /// Its epsilon.
    pub norm_epsilon: f32,
    /// Back to the hidden size.
    pub output: LinearSpec,
    /// Elements of the residual stream.
    pub hidden: usize,
    /// Heads and their size; their key heads are the groups.
    pub shape: DecayedShape,
    /// Bounds of a step.
    pub limits: StepLimits,
}

impl Mamba2Spec {
    /// Elements of the values of a row, of its gate and of its output.
    pub fn inner_len(shape: DecayedShape) -> usize {
        shape.heads * shape.value_dim
    }

    /// Channels of the convolution.
    pub fn channels(shape: DecayedShape) -> usize {
        Self::inner_len(shape) + 2 * shape.key_heads * shape.key_dim
    }

    /// Rows of the input projection.
    pub fn projected_len(shape: DecayedShape) -> usize {
        Self::inner_len(shape) + Self::channels(shape) + shape.heads
    }
}

impl Mixer for Mamba2Spec {
    fn state_len(&self) -> usize {
        self.convolution.tail_len() + decayed_state_len(self.shape)
    }

    fn result_len(&self) -> usize {
        Self::inner_len(self.shape)
    }

    fn widths(&self) -> Widths {
        let mut widths = Widths::default();
        widths.rows[PROJECTED] = Self::projected_len(self.shape);
        widths.rows[STEPS] = 2 * self.shape.heads;
        widths
    }

    fn project(&self, work: &mut Work<'_, '_>, rows: usize) {
        let (width, heads) = (Self::projected_len(self.shape), self.shape.heads);
        work.multiply_input([(self.input, PROJECTED, width)], rows, self.hidden);
        let weights = &work.model.weights;
        let [projected, steps, ..] = &mut *work.rows;
        let data = &projected.as_slice_of::<f32>()[..rows * width];
        let raw = Columns { data, row_stride: width, first_column: width - heads };
        let rates = weights.vector(self.rates);
        let rates = if self.rates_are_logarithms { Rates::Logarithms(rates) } else { Rates::Values(rates) };
        let steps = &mut steps.as_mut_slice_of::<f32>()[..rows * 2 * heads];
        let bias = weights.vector(self.step_bias);
        selective_steps(work.team, work.kernels, raw, bias, rates, self.limits, steps);
    }

    fn advance(&self, work: &mut Work<'_, '_>, rows: Range<usize>, state: &mut [f32]) {
        let (width, inner) = (Self::projected_len(self.shape), Self::inner_len(self.shape));
        let DecayedShape { heads, key_heads, key_dim, value_dim } = self.shape;
        let (team, kernels, weights) = (work.team, work.kernels, &work.model.weights);
        let (tail, state) = state.split_at_mut(self.convolution.tail_len());
        let [projected, steps, ..] = &mut *work.rows;
        let projected = &mut projected.as_mut_slice_of::<f32>()[rows.start * width..rows.end * width];
        self.convolution.convolve(work.model, (team, kernels), projected, (width, inner), tail);

        let part = |first_column, head_stride| HeadColumns {
            columns: Columns { data: projected, row_stride: width, first_column },
            head_stride,
        };
        let steps = &steps.as_slice_of::<f32>()[rows.start * 2 * heads..rows.end * 2 * heads];
        let step = |first_column| Columns { data: steps, row_stride: 2 * heads, first_column };
        let input = DecayedRows {
            rows: rows.len(),
            value: part(inner, value_dim),
            key: part(2 * inner, key_dim),
            query: part(2 * inner + key_heads * key_dim, key_dim),
            steps: DecayedSteps::PerRow { factor: step(0), decay: step(heads) },
            skip: Some(weights.vector(self.skip)),
        };
        let out = &mut work.input.floats_mut(rows.end * inner)[rows.start * inner..];
        decayed_attention(team, kernels, self.shape, input, state, out);
    }

    fn finish(&self, work: &mut Work<'_, '_>, rows: usize) {
        let (width, inner) = (Self::projected_len(self.shape), Self::inner_len(self.shape));
        let data = &work.rows[PROJECTED].as_slice_of::<f32>()[..rows * width];
        let gate = Columns { data, row_stride: width, first_column: 0 };
        let weight = work.model.weights.vector(self.norm);
        let out = work.input.floats_mut(rows * inner);
        gate_and_rms_norm(
            work.team,
            work.kernels,
            out,
            gate,
            weight,
            self.shape.key_heads,
            self.norm_epsilon,
        );
    }

    fn output(&self) -> LinearSpec {
        self.output
    }
}
