//! Causal convolution over positions, one filter per channel: the result of a row depends on it and the few rows before it.
//!
//! The rows before the first one of a call come from the tail, which a sequence's state holds: `[taps - 1, channels]`, the
//! oldest row first, all zeros before the first position. Each result is a sum in the order of taps, so it does not matter which rows
//! come in one call.

use coldpress_workers::Team;

use crate::forward::Model;
use crate::scratch::rows_per_part;
use crate::spec::VectorHandle;

/// A filter per channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvolutionSpec {
    /// `[channels, taps]`; the last tap meets the row itself.
    pub weight: VectorHandle,
    /// Added per channel.
    pub bias: Option<VectorHandle>,
    /// Elements of a row.
    pub channels: usize,
    /// Rows that a result depends on, at least 1.
    pub taps: usize,
}

impl ConvolutionSpec {
    /// f32 numbers of the tail.
    pub fn tail_len(&self) -> usize {
        (self.taps - 1) * self.channels
    }

    /// Writes the convolution of `input`, `[rows, channels]`, into `out`, and each row of it once more through `last(row, values)`;
    /// then the tail is that of the next row.
    pub(crate) fn convolve(
        &self,
        model: &Model,
        team: &Team<'_>,
        input: &[f32],
        tail: &mut [f32],
        out: &mut [f32],
        last: impl Fn(usize, &mut [f32]) + Sync,
    ) {
        let Self { channels, taps, .. } = *self;
        let weights = model.weights.vector(self.weight);
        let bias = self.bias.map(|bias| model.weights.vector(bias));
        let rows = input.len() / channels;
        let before = &*tail;
        let per_part = rows_per_part(team, rows, channels * taps * size_of::<f32>());
        team.for_each_part_mut(out, per_part * channels, |part, out, _worker| {
            for (row, out) in out.chunks_exact_mut(channels).enumerate() {
                let row = part * per_part + row;
                match bias {
                    Some(bias) => out.copy_from_slice(bias),
                    None => out.fill(0.0),
                }
                for tap in 0..taps {
                    let from = if row + tap + 1 < taps {
                        &before[(row + tap) * channels..][..channels]
                    } else {
                        &input[(row + tap + 1 - taps) * channels..][..channels]
                    };
                    for ((out, from), weights) in out.iter_mut().zip(from).zip(weights.chunks_exact(taps)) {
                        *out += from * weights[tap];
                    }
                }
                last(row, out);
            }
        });
        let kept = (taps - 1).saturating_sub(rows);
        let new = taps - 1 - kept;
        tail.copy_within(new * channels.., 0);
        tail[kept * channels..].copy_from_slice(&input[(rows - new) * channels..]);
    }
}
