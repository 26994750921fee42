//! exp, sigmoid, SiLU and softplus against f64, over all magnitudes of f32.
//!
//! What could go wrong: a wrong constant, a cut-off that flushes subnormal results or overflows early, NaN
//! lost in a clamp, the last lanes of a slice treated otherwise than the first.

use crate::vector_support::{all_kernels, all_magnitudes, ulps};
use coldpress_kernels::{Kernels, vector};

/// Halfway between the largest f32 and the next power of two: from here on results round to infinity.
const ROUNDS_TO_INFINITY: f64 = 3.402_823_567_797_336_6e38;

fn assert_close(function: fn(Kernels, &mut [f32]), exact: impl Fn(f64) -> f64, ulps_max: f64) {
    assert_close_or_tiny(function, exact, ulps_max, 0.0);
}

/// An error below `tiny` is no error.
fn assert_close_or_tiny(
    function: fn(Kernels, &mut [f32]),
    exact: impl Fn(f64) -> f64,
    ulps_max: f64,
    tiny: f64,
) {
    let x = all_magnitudes(10_007);
    let mut found = x.clone();
    function(Kernels::detect(), &mut found);
    for (&x, &found) in x.iter().zip(&found) {
        let exact = exact(f64::from(x));
        if exact.is_nan() {
            assert!(found.is_nan(), "{found} at {x:e}");
        } else if exact.abs() >= ROUNDS_TO_INFINITY {
            assert_eq!(f64::from(found), exact.signum() * f64::INFINITY, "at {x:e}");
        } else {
            let error = ulps(found, exact);
            let close = error <= ulps_max || (f64::from(found) - exact).abs() < tiny;
            assert!(close, "{error} units in the last place at {x:e}: {found:e}, not {exact:e}");
        }
    }
}

#[test]
fn exp_is_within_about_one_unit() {
    assert_close(vector::exp, f64::exp, 1.01);
}

#[test]
fn sigmoid_is_within_three_units() {
    assert_close(vector::sigmoid, |x| 1.0 / (1.0 + (-x).exp()), 3.0);
}

#[test]
fn silu_is_within_three_units() {
    // Where exp(x) is subnormal, its last place times x is what the result can be off.
    let tiny = 104.0 * 2f64.powi(-149);
    assert_close_or_tiny(vector::silu, |x| x * (1.0 / (1.0 + (-x).exp())), 3.0, tiny);
}

#[test]
fn softplus_is_within_four_units() {
    assert_close(vector::softplus, |x| x.max(0.0) + (-x.abs()).exp().ln_1p(), 4.0);
}

/// Relative to the argument: the argument of the sigmoid is a cubic in f32, whose rounding grows with it.
#[test]
fn gelu_is_within_a_millionth() {
    for kernels in all_kernels() {
        for at in -6000..=6000 {
            let x = at as f32 / 500.0;
            let mut found = [x];
            vector::geglu_in_place(kernels, &mut found, &[2.0]);
            let x = f64::from(x);
            let z = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            let exact = x * (1.0 + z.tanh());
            let error = (f64::from(found[0]) - exact).abs();
            assert!(error <= 1e-6 * x.abs(), "gelu of {x}: {} instead of {exact}", found[0]);
        }
    }
}

#[test]
fn clamped_swiglu_is_within_a_millionth_and_clamps_both_sides() {
    let (slope, limit) = (1.702_f32, 7.0_f32);
    for kernels in all_kernels() {
        for at in -1000..=1000 {
            let (gate, up) = (at as f32 / 50.0, (at * 7 % 1000) as f32 / 60.0);
            let offset = (at & 1) as f32;
            let mut found = [gate];
            vector::clamped_swiglu_in_place(kernels, &mut found, &[up], slope, limit, offset);
            let gate = f64::from(gate).min(7.0);
            let up = f64::from(up).clamp(-7.0, 7.0);
            let exact = (up + f64::from(offset)) * gate / (1.0 + (-f64::from(slope) * gate).exp());
            let error = (f64::from(found[0]) - exact).abs();
            assert!(error <= 2e-6 * (1.0 + exact.abs()), "{gate} and {up}: {} instead of {exact}", found[0]);
        }
        let mut nan = [f32::NAN, 1.0];
        vector::clamped_swiglu_in_place(kernels, &mut nan, &[1.0, f32::NAN], slope, limit, 1.0);
        assert!(nan.iter().all(|value| value.is_nan()), "{nan:?}");
    }
}

#[test]
fn exp_is_exact_where_it_can_be() {
    for kernels in all_kernels() {
        let mut x = [
            0.0,
            -0.0,
            f32::NEG_INFINITY,
            f32::INFINITY,
            -104.0,
            89.0,
            f32::NAN,
            -f32::NAN,
            f32::MIN,
            f32::MAX,
        ];
        vector::exp(kernels, &mut x);
        assert_eq!(x[..6], [1.0, 1.0, 0.0, f32::INFINITY, 0.0, f32::INFINITY]);
        assert!(x[6].is_nan() && x[7].is_nan());
        assert_eq!(x[8..], [0.0, f32::INFINITY]);
        assert!(x[2].is_sign_positive() && x[4].is_sign_positive());
    }
}

#[test]
fn exp_reaches_the_largest_and_the_smallest_number() {
    for kernels in all_kernels() {
        // The last arguments before overflow and before zero: ln(2^128) and ln(2^-150).
        let mut x = [88.722_83, -103.972_07, -87.336_55];
        let exact = x.map(|x| f64::from(x).exp());
        vector::exp(kernels, &mut x);
        for (found, exact) in x.into_iter().zip(exact) {
            assert!(
                found.is_finite() && found > 0.0 && ulps(found, exact) <= 1.01,
                "{found:e}, not {exact:e}"
            );
        }
    }
}
