//! The gated short convolution of LFM2 (Liquid AI, arXiv 2511.23404): three products of a row, `b`, `c` and `x`; the convolution of
//! `b * x` over the last few positions, times `c`. Its state is the last rows of `b * x`.
//!
//! Reference: `modeling_lfm2_moe.py` of transformers.

use std::ops::Range;

use super::{ConvolutionSpec, Mixer, Widths, Work};
use crate::latent::for_rows;
use crate::spec::LinearSpec;

/// See the module header.
#[derive(Clone, Copy, Debug)]
pub struct ShortConvolutionSpec {
    /// From the hidden size to `b`, `c` and `x`, `3 * channels` rows.
    pub input: LinearSpec,
    /// Over `b * x`.
    pub convolution: ConvolutionSpec,
    /// Back to the hidden size.
    pub output: LinearSpec,
    /// Elements of the residual stream.
    pub hidden: usize,
}

impl Mixer for ShortConvolutionSpec {
    fn state_len(&self) -> usize {
        self.convolution.tail_len()
    }

    fn result_len(&self) -> usize {
        self.convolution.channels
    }

    fn widths(&self) -> Widths {
        let channels = self.convolution.channels;
        Widths { rows: [3 * channels, channels, 0, 0, 0, 0], ..Widths::default() }
    }

    fn project(&self, work: &mut Work<'_, '_>, rows: usize) {
        let channels = self.convolution.channels;
        work.multiply_input([(self.input, 0, 3 * channels)], rows, self.hidden);
        let [projected, products, ..] = &mut *work.rows;
        let projected = projected.as_slice_of::<f32>();
        let products = &mut products.as_mut_slice_of::<f32>()[..rows * channels];
        for_rows(work.team, products, channels, |row, out| {
            let (b, rest) = projected[row * 3 * channels..][..3 * channels].split_at(channels);
            for ((out, b), x) in out.iter_mut().zip(b).zip(&rest[channels..]) {
                *out = b * x;
            }
        });
    }

    fn advance(&self, work: &mut Work<'_, '_>, rows: Range<usize>, state: &mut [f32]) {
        let channels = self.convolution.channels;
        let [projected, products, ..] = &*work.rows;
        let projected = &projected.as_slice_of::<f32>()[rows.start * 3 * channels..];
        let values = rows.start * channels..rows.end * channels;
        let products = &products.as_slice_of::<f32>()[values.clone()];
        let out = &mut work.input.floats_mut(values.end)[values];
        self.convolution.convolve(work.model, work.team, products, state, out, |row, out| {
            let c = &projected[row * 3 * channels + channels..][..channels];
            out.iter_mut().zip(c).for_each(|(out, c)| *out *= c);
        });
    }

    fn output(&self) -> LinearSpec {
        self.output
    }
}
