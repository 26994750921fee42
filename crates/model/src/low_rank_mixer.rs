//! The stream mixer of Qwen4-Exp: each element of each stream has a weight of its own, a sigmoid of a product of low rank of all
//! streams; what a half returns goes into every stream with a factor from 0 to 2, and streams are otherwise left alone.
//!
//! Streams are normed one by one before anything is computed from them. Rows pass in pieces of [`MIXER_ROWS`].
//! Reference: `Qwen4ExpTextGatedResidual` of transformers. Next: `streams.rs` (who calls it).

use coldpress_kernels::{InputRows, Kernels, MatmulJob, matmul};
use coldpress_memory::{Buffer, Ledger};
use coldpress_workers::Team;

use crate::error::ModelError;
use crate::latent::for_rows;
use crate::scratch::{Need, scratch_buffer};
use crate::sinkhorn::{inverse_root_mean_square, sigmoid};
use crate::spec::{MatrixHandle, VectorHandle};
use crate::weights::DenseWeights;

/// Rows that are mixed together.
pub(crate) const MIXER_ROWS: usize = 64;

/// The mixer around a half of a layer or before the head, for `n` streams.
#[derive(Clone, Copy, Debug)]
pub struct LowRankMixer {
    /// RMSNorm of each stream, `[n, hidden]`.
    pub norm: VectorHandle,
    /// `[rank, n * hidden]`, float.
    pub down: MatrixHandle,
    /// `[n * hidden, rank]`, float.
    pub up: MatrixHandle,
    /// `[n, n * hidden]`, float; absent where nothing is put back.
    pub inject: Option<MatrixHandle>,
    /// Rank of the product.
    pub rank: usize,
}

/// What mixing takes for [`MIXER_ROWS`] rows.
pub(crate) struct LowRankScratch {
    /// Normed streams `[rows, n, hidden]`.
    normed: Buffer,
    /// Inner products `[rows, rank]`.
    inner: Buffer,
    /// Weights `[rows, n, hidden]`.
    weights: Buffer,
}

impl LowRankScratch {
    /// Sizes of the buffers for mixers of at most this rank, over `carried` elements of all streams.
    pub fn needs(carried: usize, rank: usize) -> [Need; 3] {
        [carried, rank, carried].map(|width| Need::fixed(MIXER_ROWS * width * size_of::<f32>()))
    }

    pub fn new(ledger: &Ledger, needs: [Need; 3]) -> Result<Self, ModelError> {
        let [normed, inner, weights] = needs.map(|need| scratch_buffer(ledger, need, 0));
        Ok(Self { normed: normed?, inner: inner?, weights: weights? })
    }
}

/// Norms every stream of every row by itself: `[rows, n, hidden]`, `weight` `[n, hidden]`.
pub(crate) fn norm_streams(
    team: &Team<'_>,
    streams: &[f32],
    weight: &[f32],
    hidden: usize,
    epsilon: f32,
    out: &mut [f32],
) {
    let carried = weight.len();
    for_rows(team, out, carried, |row, out| {
        let streams = streams[row * carried..][..carried].chunks_exact(hidden);
        let weights = weight.chunks_exact(hidden);
        for ((stream, weight), out) in streams.zip(weights).zip(out.chunks_exact_mut(hidden)) {
            norm_stream(stream, weight, epsilon, out);
        }
    });
}

/// RMSNorm of one stream of one row.
pub(crate) fn norm_stream(stream: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    let factor = inverse_root_mean_square(stream, epsilon);
    for ((out, value), weight) in out.iter_mut().zip(stream).zip(weight) {
        *out = value * factor * weight;
    }
}

impl LowRankMixer {
    /// One row of each row's streams into `mixed`, and into `numbers` the factor of each stream, `[rows, n]`, where something is put
    /// back.
    pub(crate) fn take(
        &self,
        (team, kernels): (&Team<'_>, Kernels),
        (weights, epsilon): (&DenseWeights, f32),
        scratch: &mut LowRankScratch,
        streams: &[f32],
        mixed: &mut [f32],
        numbers: &mut [f32],
    ) {
        let norm = weights.vector(self.norm);
        let carried = norm.len();
        let rows = streams.len() / carried;
        let hidden = mixed.len() / rows.max(1);
        let count = carried / hidden.max(1);
        for first in (0..rows).step_by(MIXER_ROWS) {
            let rows = first..rows.min(first + MIXER_ROWS);
            let streams = &streams[rows.start * carried..rows.end * carried];
            let normed = &mut scratch.normed.as_mut_slice_of::<f32>()[..rows.len() * carried];
            norm_streams(team, streams, norm, hidden, epsilon, normed);
            let input = InputRows::from_floats(carried, normed);
            let inner = &mut scratch.inner.as_mut_slice_of::<f32>()[..rows.len() * self.rank];
            let numbers = &mut numbers[rows.start * count..rows.end * count];
            let down = MatmulJob::new(weights.matrix(self.down), input, &mut *inner);
            match self.inject {
                Some(inject) => {
                    let inject = MatmulJob::new(weights.matrix(inject), input, &mut *numbers);
                    matmul(team, kernels, &mut [down, inject]);
                    numbers.iter_mut().for_each(|value| *value = 2.0 * sigmoid(*value / count as f32));
                }
                None => matmul(team, kernels, &mut [down]),
            }
            inner.iter_mut().for_each(|value| {
                let product = *value / count as f32;
                *value = product * sigmoid(product);
            });
            let factors = &mut scratch.weights.as_mut_slice_of::<f32>()[..rows.len() * carried];
            let inner = InputRows::from_floats(self.rank, inner);
            matmul(team, kernels, &mut [MatmulJob::new(weights.matrix(self.up), inner, &mut *factors)]);
            let (normed, factors) = (&*normed, &*factors);
            for_rows(team, &mut mixed[rows.start * hidden..rows.end * hidden], hidden, |row, mixed| {
                mixed.fill(0.0);
                let values = normed[row * carried..][..carried].chunks_exact(hidden);
                for (values, factors) in values.zip(factors[row * carried..].chunks_exact(hidden)) {
                    for ((mixed, value), factor) in mixed.iter_mut().zip(values).zip(factors) {
                        *mixed += sigmoid(*factor) * value;
                    }
                }
                mixed.iter_mut().for_each(|value| *value /= count as f32);
            });
        }
    }

    /// `stream[i] += factor[i] * result`.
    pub(crate) fn put(numbers: &[f32], result: &[f32], streams: &mut [f32]) {
        for (factor, stream) in numbers.iter().zip(streams.chunks_exact_mut(result.len())) {
            stream.iter_mut().zip(result).for_each(|(value, result)| *value += factor * result);
        }
    }
}
