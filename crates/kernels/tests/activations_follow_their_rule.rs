//! Activation blocks are what their documented rule says, computed here value by value.
//!
//! What could go wrong: rounding that fuses the product with the rounding step, ties away from even, a sum over the wrong
//! half, an infinite inverse for tiny blocks, a NaN that disappears.

use crate::common::Random;
use coldpress_kernels::ActivationBlock;
use coldpress_kernels::activations::SMALLEST_MAGNITUDE;

#[test]
fn values_scale_and_sums_follow_the_rule() {
    let mut random = Random::new(11);
    for _ in 0..40_000 {
        let size = 10_f32.powi(random.below(60) as i32 - 30);
        let values: [f32; 32] = std::array::from_fn(|_| random.float() * size);
        let largest = values.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
        let inverse = 127.0 / largest;
        let block = ActivationBlock::quantize(&values);
        assert_eq!(block.scale.to_bits(), (largest / 127.0).to_bits());
        for (value, quant) in values.iter().zip(block.values) {
            assert_eq!((value * inverse).round_ties_even(), f32::from(quant), "{value} of at most {largest}");
        }
        let sums: Vec<i16> =
            block.values.chunks(16).map(|half| half.iter().map(|&q| i16::from(q)).sum()).collect();
        assert_eq!(block.half_sums.as_slice(), sums);
        let sum = i32::from(sums[0]) + i32::from(sums[1]);
        assert_eq!(block.start_of_offset_8, -8 * sum);
        assert_eq!(block.scaled_sum.to_bits(), (block.scale * sum as f32).to_bits());
    }
}

#[test]
fn ties_go_to_the_even_neighbour() {
    let mut values = [0.0; 32];
    values[..6].copy_from_slice(&[127.0, 0.5, 1.5, 2.5, -0.5, -1.5]);
    let block = ActivationBlock::quantize(&values);
    assert_eq!(block.values[..6], [127, 0, 2, 2, 0, -2]);
    assert_eq!(block.scale, 1.0);
}

#[test]
fn zero_and_tiny_blocks_are_zero() {
    for size in [0.0, -0.0, f32::from_bits(1), -f32::MIN_POSITIVE, SMALLEST_MAGNITUDE * 0.99] {
        assert_eq!(ActivationBlock::quantize(&[size; 32]), ActivationBlock::ZERO, "{size:e}");
    }
    let smallest = ActivationBlock::quantize(&[SMALLEST_MAGNITUDE; 32]);
    assert_eq!(smallest.values, [127; 32]);
    assert!(smallest.scale >= f32::MIN_POSITIVE);
    assert_eq!(ActivationBlock::quantize(&[f32::MAX; 32]).values, [127; 32]);
}

#[test]
fn a_broken_value_marks_its_block() {
    for broken in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut values = [1.0; 32];
        values[17] = broken;
        let block = ActivationBlock::quantize(&values);
        assert!(block.scale.is_nan());
        assert_eq!(block.values, [0; 32]);
        assert_eq!(block.half_sums, [0; 2]);
    }
}
