//! Rotary position embeddings (RoPE, Su et al. 2021, arXiv:2104.09864): tables of cosines and sines, and the
//! rotation.
//!
//! Tables are a pure function of inverse frequencies and a magnitude scale; a scaling method changes those
//! two and nothing else. Angles are rounded to f32 as in the reference implementation (transformers,
//! `modeling_rope_utils.py`), then cosine and sine are taken in f64.

use coldpress_workers::Team;

use super::dispatch::instantiate;
use super::simd::{LANES, Simd, padded};
use super::spans::for_each_row_span;
use crate::Kernels;

/// Inverse frequencies in radians per position: `base^(-2i / rotary_dims) / (position_divisor *
/// frequency_factors[i])` for `i` below `rotary_dims / 2`, rounded once to f32.
///
/// `position_divisor` is the factor of linear scaling (1 for none). `frequency_factors`, the tensor
/// `rope_freqs.weight` of Llama 3 files, holds one divisor per frequency. Panics when `rotary_dims` is odd or
/// the factors have another length.
pub fn rope_inverse_frequencies(
    base: f64,
    rotary_dims: usize,
    position_divisor: f64,
    frequency_factors: Option<&[f32]>,
) -> Vec<f32> {
    assert!(rotary_dims.is_multiple_of(2), "{rotary_dims} rotary dimensions are not pairs");
    if let Some(factors) = frequency_factors {
        assert_eq!(factors.len(), rotary_dims / 2, "one frequency factor per pair of rotary dimensions");
    }
    let inverse_frequency = |pair: usize| {
        let exponent = 2.0 * pair as f64 / rotary_dims as f64;
        let factor = frequency_factors.map_or(1.0, |factors| f64::from(factors[pair]));
        (1.0 / (base.powf(exponent) * position_divisor * factor)) as f32
    };
    (0..rotary_dims / 2).map(inverse_frequency).collect()
}

/// Fills `cosines` and `sines`, `[positions, inverse_frequencies.len()]`, for positions from `first_position`
/// on, times `magnitude_scale` (YaRN's attention factor; 1 otherwise).
///
/// Panics when the tables are not whole rows of equal number.
pub fn rope_table(
    inverse_frequencies: &[f32],
    magnitude_scale: f32,
    first_position: usize,
    cosines: &mut [f32],
    sines: &mut [f32],
) {
    let pairs = inverse_frequencies.len();
    assert!(pairs > 0 && cosines.len().is_multiple_of(pairs), "table of {} for {pairs} pairs", cosines.len());
    assert_eq!(cosines.len(), sines.len(), "cosine and sine tables of different length");
    let rows = cosines.chunks_exact_mut(pairs).zip(sines.chunks_exact_mut(pairs));
    for (row, (cosines, sines)) in rows.enumerate() {
        let position = (first_position + row) as f32;
        for ((cosine, sine), frequency) in cosines.iter_mut().zip(sines).zip(inverse_frequencies) {
            let (s, c) = f64::from(position * frequency).sin_cos();
            *cosine = (c * f64::from(magnitude_scale)) as f32;
            *sine = (s * f64::from(magnitude_scale)) as f32;
        }
    }
}

/// `(a cos - b sin, b cos + a sin)`.
#[inline(always)]
fn rotate<S: Simd>(
    s: S,
    a: &mut [f32; LANES],
    b: &mut [f32; LANES],
    cosine: &[f32; LANES],
    sine: &[f32; LANES],
) {
    let (x, y) = (s.load(a), s.load(b));
    let (c, t) = (s.load(cosine), s.load(sine));
    let minus_y = s.sub(s.splat(0.0), y);
    s.store(s.fma(x, c, s.mul(minus_y, t)), a);
    s.store(s.fma(y, c, s.mul(x, t)), b);
}

#[inline(always)]
fn half_split_body<S: Simd>(
    s: S,
    x: &mut [f32],
    head_dim: usize,
    cosines: &[f32],
    sines: &[f32],
    pairs: usize,
) {
    let row_len = x.len() / (cosines.len() / pairs);
    let (cosine_rows, sine_rows) = (cosines.chunks_exact(pairs), sines.chunks_exact(pairs));
    for ((row, cosines), sines) in x.chunks_exact_mut(row_len).zip(cosine_rows).zip(sine_rows) {
        let (cosines, cosines_rest) = cosines.as_chunks::<LANES>();
        let (sines, sines_rest) = sines.as_chunks::<LANES>();
        for head in row.chunks_exact_mut(head_dim) {
            let (first, second) = head[..2 * pairs].split_at_mut(pairs);
            let (first, first_rest) = first.as_chunks_mut::<LANES>();
            let (second, second_rest) = second.as_chunks_mut::<LANES>();
            for (((a, b), cosine), sine) in first.iter_mut().zip(second).zip(cosines).zip(sines) {
                rotate(s, a, b, cosine, sine);
            }
            if !first_rest.is_empty() {
                let (mut a, mut b) = (padded(first_rest), padded(second_rest));
                rotate(s, &mut a, &mut b, &padded(cosines_rest), &padded(sines_rest));
                first_rest.copy_from_slice(&a[..first_rest.len()]);
                second_rest.copy_from_slice(&b[..second_rest.len()]);
            }
        }
    }
}

#[inline(always)]
fn interleaved_body<S: Simd>(
    _: S,
    x: &mut [f32],
    head_dim: usize,
    cosines: &[f32],
    sines: &[f32],
    pairs: usize,
) {
    let row_len = x.len() / (cosines.len() / pairs);
    let (cosine_rows, sine_rows) = (cosines.chunks_exact(pairs), sines.chunks_exact(pairs));
    for ((row, cosines), sines) in x.chunks_exact_mut(row_len).zip(cosine_rows).zip(sine_rows) {
        for head in row.chunks_exact_mut(head_dim) {
            let (head, _) = head[..2 * pairs].as_chunks_mut::<2>();
            for (([a, b], c), t) in head.iter_mut().zip(cosines).zip(sines) {
                let (x, y) = (*a, *b);
                *a = x.mul_add(*c, (0.0 - y) * t);
                *b = y.mul_add(*c, x * t);
            }
        }
    }
}

instantiate! {
    fn half_split(x: &mut [f32], head_dim: usize, cosines: &[f32], sines: &[f32], pairs: usize) => half_split_body
}
instantiate! {
    fn interleaved(x: &mut [f32], head_dim: usize, cosines: &[f32], sines: &[f32], pairs: usize) => interleaved_body
}

/// The rotation of some rows; what the two public orders share.
#[derive(Clone, Copy)]
pub struct RopeRows<'a> {
    /// Elements of one head.
    pub head_dim: usize,
    /// Leading elements of each head that are rotated; the rest stays.
    pub rotary_dims: usize,
    /// `[rows, rotary_dims / 2]`, from [`rope_table`].
    pub cosines: &'a [f32],
    /// `[rows, rotary_dims / 2]`, from [`rope_table`].
    pub sines: &'a [f32],
}

type RotateRows = fn(Kernels, &mut [f32], usize, &[f32], &[f32], usize);

impl RopeRows<'_> {
    fn run(&self, team: &Team<'_>, kernels: Kernels, x: &mut [f32], rotate_rows: RotateRows) {
        let pairs = self.rotary_dims / 2;
        assert!(
            pairs > 0 && self.rotary_dims.is_multiple_of(2) && self.rotary_dims <= self.head_dim,
            "{} rotary dimensions in heads of {}",
            self.rotary_dims,
            self.head_dim
        );
        assert!(
            self.cosines.len() == self.sines.len() && self.cosines.len().is_multiple_of(pairs),
            "tables of {} and {} for {pairs} pairs",
            self.cosines.len(),
            self.sines.len()
        );
        let rows = self.cosines.len() / pairs;
        if rows == 0 && x.is_empty() {
            return;
        }
        assert!(
            rows > 0 && x.len().is_multiple_of(rows * self.head_dim),
            "{} elements are not {rows} rows of heads of {}",
            x.len(),
            self.head_dim
        );
        let row_len = x.len() / rows;
        if row_len == 0 {
            return;
        }
        for_each_row_span(team, x, row_len, |rows, x| {
            let table = rows.start * pairs..rows.end * pairs;
            rotate_rows(kernels, x, self.head_dim, &self.cosines[table.clone()], &self.sines[table], pairs);
        });
    }
}

/// Rotates each head of `x`, `[rows, heads * head_dim]`, pairing element `i` with `i + rotary_dims / 2`
/// ("neox" order, as in transformers). Panics on lengths that do not fit each other.
pub fn rope_half_split(team: &Team<'_>, kernels: Kernels, x: &mut [f32], rope: RopeRows<'_>) {
    rope.run(team, kernels, x, half_split);
}

/// Rotates each head of `x`, `[rows, heads * head_dim]`, pairing element `2i` with `2i + 1` ("normal" order,
/// as in the RoPE paper and llama.cpp's llama files). Panics on lengths that do not fit each other.
pub fn rope_interleaved(team: &Team<'_>, kernels: Kernels, x: &mut [f32], rope: RopeRows<'_>) {
    rope.run(team, kernels, x, interleaved);
}
