//! The short causal convolution of recurrent layers: each channel is a filter over its own last few positions.

#![allow(unsafe_code)]

use std::ops::Range;

use coldpress_workers::Team;

use crate::Kernels;
use crate::vector::dispatch::instantiate;
use crate::vector::exponential;
use crate::vector::simd::{LANES, Simd, padded};
use crate::vector::spans::SharedSlice;

/// Positions that one output may depend on.
pub const CONVOLUTION_TAPS_MAX: usize = 8;

/// Channels of one piece of work: the rows in use stay in the nearest cache.
const SPAN_CHANNELS: usize = 256;
/// Elements below which a second thread costs more than it saves.
const SPAN_ELEMENTS: usize = 8 * 1024;

/// What is applied to a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConvolutionActivation {
    /// Nothing.
    Identity,
    /// SiLU.
    Silu,
}

/// A filter over the last few positions for each channel.
#[derive(Clone, Copy, Debug)]
pub struct ShortConvolution<'a> {
    /// For each of the positions, the oldest first, one weight per channel: the columns of the tensor in checkpoints.
    pub taps: &'a [&'a [f32]],
    /// Added to each sum, one number per channel.
    pub bias: Option<&'a [f32]>,
    /// What is applied to the sums.
    pub activation: ConvolutionActivation,
}

impl ShortConvolution<'_> {
    /// Columns that are convolved, each by itself.
    pub fn channels(&self) -> usize {
        self.taps.first().map_or(0, |tap| tap.len())
    }

    /// Elements of the state: the last inputs, one position less than there are taps.
    pub fn state_len(&self) -> usize {
        self.taps.len().saturating_sub(1) * self.channels()
    }
}

/// `x[row] = activation(bias + sum over t of taps[t] * input[row - (T - 1) + t])`, with `T` taps, in place and channel by
/// channel.
///
/// `x` is `[rows, row_stride]` with the channels in columns `first_column..first_column + channels`; other columns are not
/// touched. Inputs before the first row are in `state`, `[T - 1, channels]`, the oldest first (zeros at the beginning
/// of a sequence), which then holds the last inputs. Each sum is a chain of fused multiply-adds from the bias (or zero)
/// and the oldest position on. Panics when lengths do not match or there are more than [`CONVOLUTION_TAPS_MAX`] taps.
pub fn short_convolution(
    team: &Team<'_>,
    kernels: Kernels,
    convolution: ShortConvolution<'_>,
    x: &mut [f32],
    row_stride: usize,
    first_column: usize,
    state: &mut [f32],
) {
    let ShortConvolution { taps, bias, .. } = convolution;
    let channels = convolution.channels();
    assert!(
        channels > 0 && taps.iter().all(|tap| tap.len() == channels),
        "taps of different lengths, or none"
    );
    assert!(taps.len() <= CONVOLUTION_TAPS_MAX, "a convolution over {} positions", taps.len());
    assert!(bias.is_none_or(|bias| bias.len() == channels), "biases for another number of channels");
    assert_eq!(state.len(), convolution.state_len(), "state of another convolution");
    assert!(
        first_column + channels <= row_stride && x.len().is_multiple_of(row_stride),
        "{} elements are not rows of {row_stride} with {channels} channels from column {first_column} on",
        x.len()
    );
    let rows = x.len() / row_stride;
    if rows == 0 {
        return;
    }
    let spans = channels.div_ceil(SPAN_CHANNELS);
    // Little work stays together, because a region costs more.
    let per_chunk = if rows * channels < SPAN_ELEMENTS { spans } else { 1 };
    let job = Job { convolution, rows, row_stride, first_column };
    let (x, state) = (SharedSlice::new(x), SharedSlice::new(state));
    team.for_each_chunk(spans.div_ceil(per_chunk), |chunk, _| {
        for span in chunk * per_chunk..spans.min((chunk + 1) * per_chunk) {
            let channels = span * SPAN_CHANNELS..channels.min((span + 1) * SPAN_CHANNELS);
            // SAFETY: chunks run once and have channels of their own, of rows and of the state.
            unsafe { job.run(kernels, channels, &x, &state) };
        }
    });
}

struct Job<'a> {
    convolution: ShortConvolution<'a>,
    rows: usize,
    row_stride: usize,
    first_column: usize,
}

impl Job<'_> {
    /// All rows of some channels, from the last to the first: an output takes the place of its own input, which earlier
    /// rows do not need.
    ///
    /// # Safety
    /// Nobody else uses these channels of `x` and `state` meanwhile.
    unsafe fn run(
        &self,
        kernels: Kernels,
        channels: Range<usize>,
        x: &SharedSlice<'_, f32>,
        state: &SharedSlice<'_, f32>,
    ) {
        let convolution = self.convolution;
        let before = convolution.taps.len() - 1;
        let (all, count) = (convolution.channels(), channels.len());
        let old_at = |position: usize| position * all + channels.start..position * all + channels.end;
        let row_at = |row: usize| {
            let start = row * self.row_stride + self.first_column + channels.start;
            start..start + count
        };
        // SAFETY: these channels are the caller's alone, and parts that are in use together are of different rows.
        let input_of = |row: usize| unsafe { x.part(row_at(row)) };
        // SAFETY: as for the rows; no two positions of the state are in use together while one of them is written.
        let input_before = |position: usize| unsafe { state.part(old_at(position)) };
        let mut last_inputs = [[0.0; SPAN_CHANNELS]; CONVOLUTION_TAPS_MAX - 1];
        for (position, input) in last_inputs.iter_mut().enumerate().take(before) {
            let position = position + self.rows;
            let from = match position.checked_sub(before) {
                Some(row) => input_of(row),
                None => input_before(position),
            };
            input[..count].copy_from_slice(from);
        }
        for row in (0..self.rows).rev() {
            let mut earlier: [&[f32]; CONVOLUTION_TAPS_MAX - 1] = [&[]; CONVOLUTION_TAPS_MAX - 1];
            for (position, input) in earlier.iter_mut().enumerate().take(before) {
                *input = match (row + position).checked_sub(before) {
                    Some(row) => input_of(row),
                    None => input_before(row + position),
                };
            }
            convolve(kernels, input_of(row), &earlier[..before], convolution, channels.start);
        }
        for (position, input) in last_inputs.iter().enumerate().take(before) {
            input_before(position).copy_from_slice(&input[..count]);
        }
    }
}

instantiate! {
    fn convolve(
        current: &mut [f32],
        earlier: &[&[f32]],
        convolution: ShortConvolution<'_>,
        first_channel: usize,
    ) => convolve_body
}

#[inline(always)]
fn convolve_body<S: Simd>(
    s: S,
    current: &mut [f32],
    earlier: &[&[f32]],
    convolution: ShortConvolution<'_>,
    first_channel: usize,
) {
    let ShortConvolution { taps, bias, activation } = convolution;
    let mut channel = 0;
    while channel < current.len() {
        let count = LANES.min(current.len() - channel);
        let at = first_channel + channel;
        let mut sum = match bias {
            Some(bias) => load_some(s, &bias[at..at + count]),
            None => s.splat(0.0),
        };
        for (input, tap) in earlier.iter().zip(taps) {
            let input = load_some(s, &input[channel..channel + count]);
            sum = s.fma(load_some(s, &tap[at..at + count]), input, sum);
        }
        let input = load_some(s, &current[channel..channel + count]);
        sum = s.fma(load_some(s, &taps[earlier.len()][at..at + count]), input, sum);
        if activation == ConvolutionActivation::Silu {
            sum = exponential::silu(s, sum);
        }
        store_some(s, sum, &mut current[channel..channel + count]);
        channel += count;
    }
}

/// Up to sixteen values, zeros behind them.
#[inline(always)]
pub(super) fn load_some<S: Simd>(s: S, values: &[f32]) -> S::Lanes {
    match values.first_chunk::<LANES>() {
        Some(values) => s.load(values),
        None => s.load(&padded(values)),
    }
}

/// The first lanes into up to sixteen places.
#[inline(always)]
pub(super) fn store_some<S: Simd>(s: S, lanes: S::Lanes, to: &mut [f32]) {
    if let Some(to) = to.first_chunk_mut::<LANES>() {
        s.store(lanes, to);
        return;
    }
    let mut all = [0.0; LANES];
    s.store(lanes, &mut all);
    to.copy_from_slice(&all[..to.len()]);
}
