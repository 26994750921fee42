//! Inputs and measures for the tests of vector operations.
#![allow(dead_code)]

use coldpress_kernels::{Isa, Kernels};
use coldpress_workers::{Team, Workers};

/// Lengths around the sixteen lanes and beyond the size that is cut over threads.
pub const LENGTHS: [usize; 11] = [1, 2, 15, 16, 17, 31, 33, 64, 100, 1023, 70_001];

/// The kernels of every instruction set of this machine; `scalar` is the first.
pub fn all_kernels() -> Vec<Kernels> {
    Isa::ALL.into_iter().filter_map(Kernels::for_isa).collect()
}

/// Numbers in `-size..size`, the same for the same seed.
pub fn noise(len: usize, size: f32, mut seed: u64) -> Vec<f32> {
    seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        ((seed >> 40) as f32 / (1_u64 << 23) as f32 - 1.0) * size
    };
    (0..len).map(|_| next()).collect()
}

/// Every `step`-th bit pattern of f32: all magnitudes, infinities and NaNs.
pub fn all_magnitudes(step: usize) -> Vec<f32> {
    (0..=u32::MAX)
        .step_by(step)
        .map(f32::from_bits)
        .chain([f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0])
        .collect()
}

/// Distance in units of the last place that f32 has at the true value.
pub fn ulps(found: f32, exact: f64) -> f64 {
    let exponent = if exact.abs() < 2f64.powi(-126) { -126 } else { exact.abs().log2().floor() as i32 };
    (f64::from(found) - exact).abs() / 2f64.powi(exponent - 23)
}

/// Bits with all NaNs alike: the payload of a NaN is not part of any promise.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| if value.is_nan() { f32::NAN.to_bits() } else { value.to_bits() }).collect()
}

/// Runs `operation` with every kernel and 1 to 3 threads; returns what plain Rust on one thread gives.
pub fn same_everywhere(name: &str, operation: impl Fn(&Team<'_>, Kernels) -> Vec<f32>) -> Vec<f32> {
    let scalar = Kernels::for_isa(Isa::Scalar).expect("plain Rust runs everywhere");
    let expected = Workers::new(1).enter(|team| operation(team, scalar));
    for threads in 1..=3 {
        let workers = Workers::new(threads);
        for kernels in all_kernels() {
            let found = workers.enter(|team| bits(&operation(team, kernels)));
            assert!(found == bits(&expected), "{name} differs on {} with {threads} threads", kernels.isa());
        }
    }
    expected
}

/// Whether every number lies within `bound` of the exact one.
pub fn assert_close(found: &[f32], exact: &[f64], bound: f64, place: &str) {
    assert_eq!(found.len(), exact.len());
    for (index, (found, exact)) in found.iter().zip(exact).enumerate() {
        assert!((f64::from(*found) - exact).abs() <= bound, "{place} {index}: {found:e}, not {exact:e}");
    }
}
