//! Norms, softmax, dot products and rotary embeddings against f64, with error bounds from the number of
//! roundings.
//!
//! What could go wrong: epsilon outside the mean, the weight of another column, a softmax without the maximum
//! taken off, the two orders of rotary pairs mixed up, a table for the wrong position, rotation of the
//! dimensions that should stay.

use crate::vector_support::{LENGTHS, noise};
use coldpress_kernels::{Kernels, vector};
use coldpress_workers::Workers;

/// Half a unit in the last place, relative.
const ROUNDING: f64 = 1.0 / (1 << 24) as f64;

fn with_team<R>(work: impl FnOnce(&coldpress_workers::Team<'_>) -> R) -> R {
    Workers::new(2).enter(work)
}

fn assert_within(found: f32, exact: f64, bound: f64, place: impl std::fmt::Debug) {
    assert!(
        (f64::from(found) - exact).abs() <= bound,
        "{found:e}, not {exact:e} (bound {bound:e}) at {place:?}"
    );
}

#[test]
fn dot_products() {
    for len in LENGTHS {
        let (a, b) = (noise(len, 3.0, 1), noise(len, 3.0, 2));
        let products = || a.iter().zip(&b).map(|(a, b)| f64::from(*a) * f64::from(*b));
        // A lane rounds once per product, the tree four times.
        let bound = (len.div_ceil(16) + 4) as f64 * ROUNDING * products().map(f64::abs).sum::<f64>();
        assert_within(vector::dot(Kernels::detect(), &a, &b), products().sum(), bound, len);
        let exact = a.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        assert_eq!(vector::max(Kernels::detect(), &a), exact);
    }
    assert_eq!(vector::max(Kernels::detect(), &[]), f32::NEG_INFINITY);
}

#[test]
fn rms_norms() {
    for (rows, columns, epsilon) in [(3, 24, 1e-6), (2, 128, 0.5), (64, 2048, 1e-5), (1, 5, 1e-6)] {
        let (x, weight) = (noise(rows * columns, 0.5, 3), noise(columns, 2.0, 4));
        let mut out = vec![0.0; x.len()];
        with_team(|team| vector::rms_norm(team, Kernels::detect(), &x, &weight, epsilon, &mut out));
        for (row, (x, out)) in x.chunks(columns).zip(out.chunks(columns)).enumerate() {
            let mean = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / columns as f64;
            let factor = 1.0 / (mean + f64::from(epsilon)).sqrt();
            for (column, ((x, weight), out)) in x.iter().zip(&weight).zip(out).enumerate() {
                let exact = f64::from(*x) * factor * f64::from(*weight);
                // Half the roundings of the sum (through the root), six of the other steps.
                let roundings = (columns.div_ceil(16) + 4) as f64 / 2.0 + 6.0;
                assert_within(*out, exact, roundings * ROUNDING * exact.abs(), (row, column));
            }
        }
    }
}

#[test]
fn softmax_rows() {
    for (rows, columns, size) in [(3, 8, 5.0), (2, 128, 200.0), (40, 1000, 3.0), (1, 1, 9.0)] {
        let x = noise(rows * columns, size, 5);
        let mut out = x.clone();
        with_team(|team| vector::softmax(team, Kernels::detect(), &mut out, columns));
        for (x, out) in x.chunks(columns).zip(out.chunks(columns)) {
            let largest = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let exps = || x.iter().map(|x| (f64::from(*x) - f64::from(largest)).exp());
            let sum: f64 = exps().sum();
            for (found, exact) in out.iter().zip(exps().map(|e| e / sum)) {
                // The rounded difference to the maximum moves exp by its size times the rounding; exp itself
                // is within one unit (two roundings), twice because of the sum.
                let roundings = 2.0 * f64::from(size) * 2.0 + (columns.div_ceil(16) + 4) as f64 + 5.0;
                assert_within(*found, exact, roundings * ROUNDING * exact + 1e-45, columns);
            }
        }
    }
}

#[test]
fn softmax_of_masked_rows_ignores_the_masked() {
    let mut x = [f32::NEG_INFINITY, 1000.0, f32::NEG_INFINITY, 1000.0];
    with_team(|team| vector::softmax(team, Kernels::detect(), &mut x, 4));
    assert_eq!(x, [0.0, 0.5, 0.0, 0.5]);
}

#[test]
fn rope_frequencies_follow_their_definition() {
    // inv_freq of transformers for dim 8, base 10000: 1, 0.1, 0.01, 0.001.
    assert_eq!(vector::rope_inverse_frequencies(10_000.0, 8, 1.0, None), [1.0, 0.1, 0.01, 0.001]);
    assert_eq!(vector::rope_inverse_frequencies(10_000.0, 8, 4.0, None), [0.25, 0.025, 0.0025, 0.000_25]);
    let factors = [1.0, 2.0, 8.0, 10.0];
    let divided = vector::rope_inverse_frequencies(10_000.0, 8, 1.0, Some(&factors));
    assert_eq!(divided, [1.0, 0.05, 0.00125, 0.0001]);
}

#[test]
fn rotations_follow_their_definition() {
    let (rows, heads, head_dim, rotary_dims, first_position) = (3, 2, 80, 48, 4000);
    let pairs = rotary_dims / 2;
    let frequencies = vector::rope_inverse_frequencies(500_000.0, rotary_dims, 1.0, None);
    let (mut cosines, mut sines) = (vec![0.0; rows * pairs], vec![0.0; rows * pairs]);
    let scale = 1.25;
    vector::rope_table(&frequencies, scale, first_position, &mut cosines, &mut sines);
    let rope = vector::RopeRows { head_dim, rotary_dims, cosines: &cosines, sines: &sines };
    let x = noise(rows * heads * head_dim, 2.0, 6);
    let (mut split, mut interleaved) = (x.clone(), x.clone());
    with_team(|team| {
        vector::rope_half_split(team, Kernels::detect(), &mut split, rope);
        vector::rope_interleaved(team, Kernels::detect(), &mut interleaved, rope);
    });
    for row in 0..rows {
        let position = (first_position + row) as f64;
        for head in 0..heads {
            let start = (row * heads + head) * head_dim;
            for pair in 0..pairs {
                let angle = position * 500_000_f64.powf(-2.0 * pair as f64 / rotary_dims as f64);
                // Frequency and angle are each rounded once; the rotation itself rounds a few times.
                let bound = 2.0 * 2.0 * f64::from(scale) * (2.0 * angle + 4.0) * ROUNDING;
                for (found, first, second) in [
                    (&split, start + pair, start + pair + pairs),
                    (&interleaved, start + 2 * pair, start + 2 * pair + 1),
                ] {
                    let (a, b) = (f64::from(x[first]), f64::from(x[second]));
                    let (sine, cosine) = angle.sin_cos();
                    let scale = f64::from(scale);
                    assert_within(found[first], scale * (a * cosine - b * sine), bound, (row, head, pair));
                    assert_within(found[second], scale * (b * cosine + a * sine), bound, (row, head, pair));
                }
            }
            let rest = start + rotary_dims..start + head_dim;
            assert_eq!(split[rest.clone()], x[rest.clone()]);
            assert_eq!(interleaved[rest.clone()], x[rest]);
        }
    }
}
