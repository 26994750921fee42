//! Rows that a matrix was made for: signs and a Walsh-Hadamard transform in blocks, as in f64, on every instruction set alike.
//!
//! What could go wrong: a row of 6144 cut at 4096 only, signs that begin again in the second block, a factor of the whole row.

use std::sync::Arc;

use coldpress_kernels::vector::{Blocks, Rotation};
use coldpress_workers::Workers;

use crate::attention_support::{all_kernels, bits, noise};

/// By the definition, element by element.
fn exact(row: &[f32], lengths: &[usize], signs: &[f32]) -> Vec<f64> {
    let mut out = Vec::new();
    let mut start = 0;
    for &length in lengths {
        for place in 0..length {
            let term = |at: usize| {
                let sign = signs.get(start + at).map_or(1.0, |&sign| f64::from(sign));
                let flips = (place & at).count_ones() % 2 == 1;
                f64::from(row[start + at]) * sign * if flips { -1.0 } else { 1.0 }
            };
            out.push((0..length).map(term).sum::<f64>() / (length as f64).sqrt());
        }
        start += length;
    }
    out
}

#[test]
fn every_instruction_set_rotates_as_f64_does() {
    let shapes: [(Blocks, usize, &[usize]); 6] = [
        (Blocks::Descending, 64, &[64]),
        (Blocks::Descending, 192, &[128, 64]),
        (Blocks::Descending, 2880, &[2048, 512, 256, 64]),
        (Blocks::Descending, 6144, &[4096, 2048]),
        (Blocks::Descending, 48, &[32, 16]),
        (Blocks::Of32, 96, &[32, 32, 32]),
    ];
    for (blocks, columns, lengths) in shapes {
        let rows = noise(3 * columns, columns as u64);
        let signs = match blocks {
            Blocks::Of32 => Vec::new(),
            Blocks::Descending => noise(columns, 7).iter().map(|value| value.signum()).collect(),
        };
        let rotation = Rotation::new(blocks, columns, Arc::from(signs.clone())).expect("a rotation");
        let mut all = Vec::new();
        for kernels in all_kernels() {
            for threads in [1, 3] {
                let mut rotated = rows.clone();
                Workers::new(threads).enter(|team| rotation.apply(team, kernels, &mut rotated, columns));
                all.push(bits(&rotated));
            }
        }
        assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "rows of {columns}: other bits");
        let found = all[0].iter().map(|&bits| f64::from(f32::from_bits(bits)));
        let expected = rows.chunks(columns).flat_map(|row| exact(row, lengths, &signs));
        for (found, expected) in found.zip(expected) {
            assert!((found - expected).abs() < 1e-5, "rows of {columns}: {found}, not {expected}");
        }
    }
}

#[test]
fn rows_that_cannot_be_cut_are_refused() {
    let none = || Arc::from([]);
    assert!(Rotation::new(Blocks::Descending, 40, none()).is_none());
    assert!(Rotation::new(Blocks::Of32, 48, none()).is_none());
    assert!(Rotation::new(Blocks::Descending, 64, Arc::from([1.0; 32])).is_none());
    assert!(Rotation::new(Blocks::Descending, 32, Arc::from([0.5; 32])).is_none());
}
