//! Manifold-constrained hyper-connections, the stream mixer of DeepSeek-V4 (Xie et al., arXiv 2512.24880).
//!
//! A product of all streams of a row, divided by their root mean square, gives weights for what a half reads, factors on
//! what it returns, and a matrix between old and new streams that Sinkhorn's iterations bring near a doubly stochastic one.
//! Reference: `modeling_deepseek_v4.py` of transformers. Next: `streams.rs` (who calls it).

use crate::spec::{MatrixHandle, VectorHandle};
use crate::streams::STREAMS_MAX;
use crate::weights::DenseWeights;

/// Columns of the streams that are put back together.
const COLUMNS_AT_ONCE: usize = 64;

/// The mixer around a half of a layer, for `n` streams.
#[derive(Clone, Copy, Debug)]
pub struct SinkhornMixer {
    /// `[2 n + n * n, n * hidden]`, float: rows for the weights of reading, of putting back, of the matrix.
    pub weight: MatrixHandle,
    /// Factors on the three kinds of products.
    pub scale: VectorHandle,
    /// Added to the products, one value per row.
    pub base: VectorHandle,
    /// Iterations, at least 1.
    pub iterations: usize,
    /// Added to the weights of reading, and to what is divided by.
    pub epsilon: f32,
}

/// Makes one row of the streams before the head, for `n` streams.
#[derive(Clone, Copy, Debug)]
pub struct SigmoidMixer {
    /// `[n, n * hidden]`, float.
    pub weight: MatrixHandle,
    /// Factor on the products, one value.
    pub scale: VectorHandle,
    /// Added to the products, one value per row.
    pub base: VectorHandle,
    /// Added to the weights.
    pub epsilon: f32,
}

impl SinkhornMixer {
    /// Products of a row, and numbers that come of them.
    pub(crate) fn numbers(streams: usize) -> usize {
        (2 + streams) * streams
    }

    /// Turns the products of a row into weights of reading `[n]`, of putting back `[n]`, and the matrix `[old, new]`.
    pub(crate) fn weigh(
        &self,
        weights: &DenseWeights,
        count: usize,
        norm_epsilon: f32,
        streams: &[f32],
        numbers: &mut [f32],
    ) {
        let factor = inverse_root_mean_square(streams, norm_epsilon);
        let (scale, base) = (weights.vector(self.scale), weights.vector(self.base));
        for (at, (number, base)) in numbers.iter_mut().zip(base).enumerate() {
            *number = *number * factor * scale[(at / count).min(2)] + base;
        }
        let (read, rest) = numbers.split_at_mut(count);
        let (put, matrix) = rest.split_at_mut(count);
        read.iter_mut().for_each(|value| *value = sigmoid(*value) + self.epsilon);
        put.iter_mut().for_each(|value| *value = 2.0 * sigmoid(*value));
        for row in matrix.chunks_exact_mut(count) {
            softmax(row);
            row.iter_mut().for_each(|value| *value += self.epsilon);
        }
        divide_columns(matrix, count, self.epsilon);
        for _ in 1..self.iterations {
            for row in matrix.chunks_exact_mut(count) {
                let sum = row.iter().sum::<f32>() + self.epsilon;
                row.iter_mut().for_each(|value| *value /= sum);
            }
            divide_columns(matrix, count, self.epsilon);
        }
    }

    /// `stream[new] = put[new] * result + sum over old of matrix[old, new] * stream[old]`.
    pub(crate) fn put(numbers: &[f32], result: &[f32], streams: &mut [f32]) {
        let hidden = result.len();
        let count = streams.len() / hidden;
        let (put, matrix) = numbers[count..].split_at(count);
        let mut old = [[0.0f32; COLUMNS_AT_ONCE]; STREAMS_MAX];
        for first in (0..hidden).step_by(COLUMNS_AT_ONCE) {
            let columns = first..hidden.min(first + COLUMNS_AT_ONCE);
            for (old, stream) in old.iter_mut().zip(streams.chunks_exact(hidden)) {
                old[..columns.len()].copy_from_slice(&stream[columns.clone()]);
            }
            for (new, stream) in streams.chunks_exact_mut(hidden).enumerate() {
                let stream = &mut stream[columns.clone()];
                for (value, result) in stream.iter_mut().zip(&result[columns.clone()]) {
                    *value = put[new] * result;
                }
                for (old, weights) in old.iter().zip(matrix.chunks_exact(count)) {
                    let weight = weights[new];
                    stream.iter_mut().zip(old).for_each(|(value, old)| *value += weight * old);
                }
            }
        }
    }
}

impl SigmoidMixer {
    /// Turns the products of a row into weights of reading `[n]`.
    pub(crate) fn weigh(
        &self,
        weights: &DenseWeights,
        norm_epsilon: f32,
        streams: &[f32],
        numbers: &mut [f32],
    ) {
        let factor = inverse_root_mean_square(streams, norm_epsilon);
        let (scale, base) = (weights.vector(self.scale)[0], weights.vector(self.base));
        for (number, base) in numbers.iter_mut().zip(base) {
            *number = sigmoid(*number * factor * scale + base) + self.epsilon;
        }
    }
}

/// Sums that run beside each other, so that they need not wait for one another.
const SUMS: usize = 8;

/// `1 / sqrt(mean of squares + epsilon)`; the sums are in f64 and always in the same order.
pub(crate) fn inverse_root_mean_square(values: &[f32], epsilon: f32) -> f32 {
    let mut sums = [0.0f64; SUMS];
    for values in values.chunks(SUMS) {
        for (sum, &value) in sums.iter_mut().zip(values) {
            *sum += f64::from(value) * f64::from(value);
        }
    }
    let mean = sums.iter().sum::<f64>() / values.len() as f64;
    (1.0 / (mean + f64::from(epsilon)).sqrt()) as f32
}

pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

fn softmax(row: &mut [f32]) {
    let largest = row.iter().fold(f32::NEG_INFINITY, |largest, &value| largest.max(value));
    row.iter_mut().for_each(|value| *value = (*value - largest).exp());
    let sum: f32 = row.iter().sum();
    row.iter_mut().for_each(|value| *value /= sum);
}

fn divide_columns(matrix: &mut [f32], count: usize, epsilon: f32) {
    for column in 0..count {
        let sum = matrix.iter().skip(column).step_by(count).sum::<f32>() + epsilon;
        matrix.iter_mut().skip(column).step_by(count).for_each(|value| *value /= sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_and_the_old_streams_go_into_the_new_ones() {
        // Two streams of three elements: reading weights are not used, then factors, then the matrix [old, new].
        let numbers = [9.0, 9.0, 2.0, -1.0, 1.0, 0.5, 0.0, 3.0];
        let mut streams = [1.0, 2.0, 3.0, 10.0, 20.0, 30.0];
        SinkhornMixer::put(&numbers, &[1.0, 0.0, -1.0], &mut streams);
        assert_eq!(streams, [3.0, 2.0, 1.0, 29.5, 61.0, 92.5]);
    }

    #[test]
    fn a_row_of_streams_is_divided_by_its_root_mean_square() {
        assert_eq!(inverse_root_mean_square(&[3.0; 20], 0.0), 1.0 / 3.0);
        assert_eq!(inverse_root_mean_square(&[0.0; 3], 0.25), 2.0);
    }
}
