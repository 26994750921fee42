//! Every vector operation gives the same bits on every instruction set and for every number of threads.
//!
//! What could go wrong: a reduction tree in another order, a fused operation on one side only, min or max
//! with the operands of a NaN swapped, a cut over threads that moves the last lanes.

use crate::vector_support::{LENGTHS, all_kernels, all_magnitudes, bits, noise};
use coldpress_kernels::{Isa, Kernels, vector};
use coldpress_workers::{Team, Workers};
use half::f16;

/// Runs `operation` with every kernel and 1 to 3 threads and compares with the scalar kernels on one thread.
fn assert_same(name: &str, operation: impl Fn(&Team<'_>, Kernels) -> Vec<f32>) {
    let scalar = Kernels::for_isa(Isa::Scalar).expect("plain Rust runs everywhere");
    let expected = Workers::new(1).enter(|team| bits(&operation(team, scalar)));
    for threads in [1, 2, 3] {
        let workers = Workers::new(threads);
        for kernels in all_kernels() {
            let found = workers.enter(|team| bits(&operation(team, kernels)));
            assert!(found == expected, "{name} differs on {} with {threads} threads", kernels.isa());
        }
    }
}

type Function = fn(Kernels, &mut [f32]);

#[test]
fn functions_of_one_element() {
    let x = all_magnitudes(200_003);
    let functions: [(&str, Function); 4] = [
        ("exp", vector::exp),
        ("sigmoid", vector::sigmoid),
        ("silu", vector::silu),
        ("softplus", vector::softplus),
    ];
    for (name, function) in functions {
        for len in [x.len(), 1, 17] {
            assert_same(name, |_, kernels| {
                let mut x = x[x.len() - len..].to_vec();
                function(kernels, &mut x);
                x
            });
        }
    }
}

#[test]
fn functions_of_two_slices() {
    for len in LENGTHS {
        let (a, b) = (noise(len, 9.0, 1), noise(len, 9.0, 2));
        assert_same("add_assign", |team, kernels| {
            let mut out = a.clone();
            vector::add_assign(team, kernels, &mut out, &b);
            out
        });
        assert_same("scale_add", |_, kernels| {
            let mut out = a.clone();
            vector::scale_add(kernels, &mut out, 0.3, &b);
            out
        });
        assert_same("swiglu", |_, kernels| {
            let mut out = a.clone();
            vector::swiglu_in_place(kernels, &mut out, &b);
            out
        });
        assert_same("geglu", |_, kernels| {
            let mut out = a.clone();
            vector::geglu_in_place(kernels, &mut out, &b);
            out
        });
        assert_same("clamped swiglu", |_, kernels| {
            let mut out = a.clone();
            vector::clamped_swiglu_in_place(kernels, &mut out, &b, 1.702, 0.7, 1.0);
            out
        });
        assert_same("dot and max", |_, kernels| vec![vector::dot(kernels, &a, &b), vector::max(kernels, &a)]);
    }
}

#[test]
fn operations_on_rows() {
    for (rows, columns) in [(1, 1), (3, 24), (7, 128), (40, 2048), (5, 1000), (2, 40_000)] {
        let (x, weight) = (noise(rows * columns, 4.0, 3), noise(columns, 2.0, 4));
        assert_same("rms_norm", |team, kernels| {
            let mut out = vec![f32::NAN; x.len()];
            vector::rms_norm(team, kernels, &x, &weight, 1e-6, &mut out);
            let mut in_place = x.clone();
            vector::rms_norm_in_place(team, kernels, &mut in_place, &weight, 1e-6);
            assert_eq!(bits(&out), bits(&in_place));
            out
        });
        assert_same("softmax", |team, kernels| {
            let mut x = x.clone();
            vector::softmax(team, kernels, &mut x, columns);
            x
        });
    }
}

#[test]
fn rotations() {
    for (rows, heads, head_dim, rotary_dims) in
        [(1, 3, 24, 24), (5, 2, 128, 64), (130, 8, 128, 128), (4, 1, 10, 6)]
    {
        let frequencies = vector::rope_inverse_frequencies(1e6, rotary_dims, 1.0, None);
        let (mut cosines, mut sines) = (vec![0.0; rows * rotary_dims / 2], vec![0.0; rows * rotary_dims / 2]);
        vector::rope_table(&frequencies, 1.0, 77, &mut cosines, &mut sines);
        let x = noise(rows * heads * head_dim, 3.0, 5);
        let rope = vector::RopeRows { head_dim, rotary_dims, cosines: &cosines, sines: &sines };
        assert_same("half split", |team, kernels| {
            let mut x = x.clone();
            vector::rope_half_split(team, kernels, &mut x, rope);
            x
        });
        assert_same("interleaved", |team, kernels| {
            let mut x = x.clone();
            vector::rope_interleaved(team, kernels, &mut x, rope);
            x
        });
    }
}

#[test]
fn narrowing_to_f16_is_what_half_does() {
    let x = all_magnitudes(9_973);
    // Ties between neighbours, also of subnormal numbers, and the edge of infinity.
    let ties = (0..0x7c00_u16).flat_map(|bits| {
        let (low, high) = (f16::from_bits(bits).to_f32(), f16::from_bits(bits + 1).to_f32());
        let middle = if high.is_finite() { (low + high) / 2.0 } else { 65_520.0 };
        [middle, -middle, middle.next_down(), middle.next_up()]
    });
    let x: Vec<f32> = x.into_iter().chain(ties).collect();
    let expected: Vec<u16> = x.iter().map(|&x| f16::from_f32_const(x).to_bits()).collect();
    for threads in [1, 2] {
        let workers = Workers::new(threads);
        for kernels in all_kernels() {
            let mut found = vec![f16::ZERO; x.len()];
            workers.enter(|team| vector::convert_to_f16(team, kernels, &x, &mut found));
            for ((x, found), expected) in x.iter().zip(&found).zip(&expected) {
                assert_eq!(found.to_bits(), *expected, "{x:e} ({:08x}) on {}", x.to_bits(), kernels.isa());
            }
        }
    }
}
