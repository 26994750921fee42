//! A short causal convolution in place, with SiLU. The weights of a tap lie together, as the kernels read them.

use coldpress_kernels::Kernels;
use coldpress_kernels::recurrent::{
    CONVOLUTION_TAPS_MAX, ConvolutionActivation, ShortConvolution, short_convolution,
};
use coldpress_workers::Team;

use crate::forward::Model;
use crate::spec::VectorHandle;

/// A filter per channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvolutionTaps {
    /// The weights of the oldest position, one per channel. Those of the later ones follow in
    /// [`crate::ModelSpec::tensors`].
    pub(crate) first: VectorHandle,
    /// Added per channel.
    pub bias: Option<VectorHandle>,
    /// Columns that are convolved.
    pub channels: usize,
    /// Rows that a result depends on, its own included: between 1 and 8.
    pub taps: usize,
}

impl ConvolutionTaps {
    /// f32 numbers of the tail: the last inputs.
    pub fn tail_len(&self) -> usize {
        (self.taps - 1) * self.channels
    }

    /// Convolves the columns from `first_column` on of the rows of `x`, `[rows, row_stride]`, and advances the tail.
    pub(crate) fn convolve(
        &self,
        model: &Model,
        (team, kernels): (&Team<'_>, Kernels),
        x: &mut [f32],
        (row_stride, first_column): (usize, usize),
        tail: &mut [f32],
    ) {
        let mut taps: [&[f32]; CONVOLUTION_TAPS_MAX] = [&[]; CONVOLUTION_TAPS_MAX];
        for (tap, weights) in taps.iter_mut().take(self.taps).enumerate() {
            *weights = model.weights.vector(VectorHandle(self.first.0 + tap));
        }
        let bias = self.bias.map(|bias| model.weights.vector(bias));
        let activation = ConvolutionActivation::Silu;
        let convolution = ShortConvolution { taps: &taps[..self.taps], bias, activation };
        short_convolution(team, kernels, convolution, x, row_stride, first_column, tail);
    }
}
