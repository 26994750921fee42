//! Operations with a sum or a maximum over a row: dot product, maximum, softmax, RMS norm.
//!
//! Sums run in sixteen lanes: lane `i` takes the elements `i, i + 16, ...` in order, then the lanes are added
//! by halving. The last, incomplete sixteen are filled with zeros. So the result depends on the row alone.

use coldpress_workers::Team;

use super::dispatch::instantiate;
use super::exponential;
use super::simd::{LANES, Simd, padded};
use super::spans::for_each_row_span;
use crate::Kernels;

#[inline(always)]
fn dot_body<S: Simd>(s: S, a: &[f32], b: &[f32]) -> f32 {
    let (a_full, a_rest) = a.as_chunks::<LANES>();
    let (b_full, b_rest) = b.as_chunks::<LANES>();
    let mut sum = s.splat(0.0);
    for (a, b) in a_full.iter().zip(b_full) {
        sum = s.fma(s.load(a), s.load(b), sum);
    }
    if !a_rest.is_empty() {
        sum = s.fma(s.load(&padded(a_rest)), s.load(&padded(b_rest)), sum);
    }
    s.reduce_add(sum)
}

#[inline(always)]
fn max_body<S: Simd>(s: S, x: &[f32]) -> f32 {
    let (full, rest) = x.as_chunks::<LANES>();
    let mut largest = s.splat(f32::NEG_INFINITY);
    for x in full {
        largest = s.larger(s.load(x), largest);
    }
    let mut result = s.reduce_larger(largest);
    for &x in rest {
        result = if x > result { x } else { result };
    }
    result
}

/// Lanes from `count` on set to `filler`.
#[inline(always)]
fn fill_behind(values: &[f32], filler: f32) -> [f32; LANES] {
    let mut full = [filler; LANES];
    full[..values.len()].copy_from_slice(values);
    full
}

#[inline(always)]
fn softmax_body<S: Simd>(s: S, row: &mut [f32]) {
    let largest = s.splat(max_body(s, row));
    let (full, rest) = row.as_chunks_mut::<LANES>();
    let mut sum = s.splat(0.0);
    for x in full.iter_mut() {
        let e = exponential::exp(s, s.sub(s.load(x), largest));
        sum = s.add(sum, e);
        s.store(e, x);
    }
    let mut last = fill_behind(rest, f32::NEG_INFINITY);
    if !rest.is_empty() {
        let e = exponential::exp(s, s.sub(s.load(&last), largest));
        sum = s.add(sum, e);
        s.store(e, &mut last);
    }
    let total = s.splat(s.reduce_add(sum));
    for x in full {
        s.store(s.div(s.load(x), total), x);
    }
    if !rest.is_empty() {
        s.store(s.div(s.load(&last), total), &mut last);
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

/// One over the root mean square of a row.
#[inline(always)]
fn inverse_rms<S: Simd>(s: S, row: &[f32], epsilon: f32) -> f32 {
    1.0 / (dot_body(s, row, row) / row.len() as f32 + epsilon).sqrt()
}

#[inline(always)]
fn rms_norm_body<S: Simd>(s: S, x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    let columns = weight.len();
    let (weight_full, weight_rest) = weight.as_chunks::<LANES>();
    for (x, out) in x.chunks_exact(columns).zip(out.chunks_exact_mut(columns)) {
        let factor = s.splat(inverse_rms(s, x, epsilon));
        let (x_full, x_rest) = x.as_chunks::<LANES>();
        let (out_full, out_rest) = out.as_chunks_mut::<LANES>();
        for ((x, weight), out) in x_full.iter().zip(weight_full).zip(out_full) {
            s.store(s.mul(s.mul(s.load(x), factor), s.load(weight)), out);
        }
        if !out_rest.is_empty() {
            let mut last = [0.0; LANES];
            s.store(s.mul(s.mul(s.load(&padded(x_rest)), factor), s.load(&padded(weight_rest))), &mut last);
            out_rest.copy_from_slice(&last[..out_rest.len()]);
        }
    }
}

#[inline(always)]
fn rms_norm_in_place_body<S: Simd>(s: S, x: &mut [f32], weight: &[f32], epsilon: f32) {
    let columns = weight.len();
    let (weight_full, weight_rest) = weight.as_chunks::<LANES>();
    for x in x.chunks_exact_mut(columns) {
        let factor = s.splat(inverse_rms(s, x, epsilon));
        let (full, rest) = x.as_chunks_mut::<LANES>();
        for (x, weight) in full.iter_mut().zip(weight_full) {
            s.store(s.mul(s.mul(s.load(x), factor), s.load(weight)), x);
        }
        if !rest.is_empty() {
            let mut last = padded(rest);
            s.store(s.mul(s.mul(s.load(&last), factor), s.load(&padded(weight_rest))), &mut last);
            rest.copy_from_slice(&last[..rest.len()]);
        }
    }
}

#[inline(always)]
fn softmax_rows_body<S: Simd>(s: S, x: &mut [f32], columns: usize) {
    for row in x.chunks_exact_mut(columns) {
        softmax_body(s, row);
    }
}

instantiate! { fn dot_unchecked(a: &[f32], b: &[f32]) -> f32 => dot_body }
instantiate! { fn softmax_rows(x: &mut [f32], columns: usize) => softmax_rows_body }
instantiate! { pub(crate) fn rms_norm_rows(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) => rms_norm_body }
instantiate! {
    fn rms_norm_in_place_rows(x: &mut [f32], weight: &[f32], epsilon: f32) => rms_norm_in_place_body
}

instantiate! {
    /// The largest element, -inf when there is none; NaNs are passed over.
    pub fn max(x: &[f32]) -> f32 => max_body
}

/// `sum(a[i] * b[i])` by fused multiply-adds in sixteen lanes. Panics when the lengths differ.
pub fn dot(kernels: Kernels, a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "dot product of slices of different length");
    dot_unchecked(kernels, a, b)
}

/// Softmax of every row of `x`, `[rows, columns]`, in place. A row with a NaN, with +inf, or of -inf alone
/// becomes NaN. Panics when `x` is not whole rows.
pub fn softmax(team: &Team<'_>, kernels: Kernels, x: &mut [f32], columns: usize) {
    assert_whole_rows(x.len(), columns);
    for_each_row_span(team, x, columns, |_, rows| softmax_rows(kernels, rows, columns));
}

/// RMS norm (Zhang and Sennrich 2019, arXiv:1910.07467) of every row of `x`, `[rows, weight.len()]`, into
/// `out`: `x / sqrt(mean(x^2) + epsilon) * weight`. For a norm per head the rows are the heads. Panics when
/// `x` is not whole rows or `out` has another length.
pub fn rms_norm(team: &Team<'_>, kernels: Kernels, x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    let columns = weight.len();
    assert_whole_rows(x.len(), columns);
    assert_eq!(x.len(), out.len(), "rms_norm into a slice of different length");
    for_each_row_span(team, out, columns, |rows, out| {
        rms_norm_rows(kernels, &x[rows.start * columns..rows.end * columns], weight, epsilon, out);
    });
}

/// [`rms_norm`] of `x` into itself.
pub fn rms_norm_in_place(team: &Team<'_>, kernels: Kernels, x: &mut [f32], weight: &[f32], epsilon: f32) {
    assert_whole_rows(x.len(), weight.len());
    for_each_row_span(team, x, weight.len(), |_, rows| {
        rms_norm_in_place_rows(kernels, rows, weight, epsilon)
    });
}

fn assert_whole_rows(elements: usize, columns: usize) {
    assert!(columns > 0 && elements.is_multiple_of(columns), "{elements} elements are not rows of {columns}");
}
