//! The scalar definition of a product agrees with f64 arithmetic on the dequantised weights and activations.
//!
//! What could go wrong: a definition that every instruction set follows faithfully and that is wrong, for example a minimum
//! with the wrong sign or a sub-scale of the next sub-block. The only difference allowed is f32 rounding: a relative
//! 2^-24 of the sum of magnitudes for each of the roundings in the chain.

use crate::common::{Random, column_counts, random_rows};
use coldpress_kernels::{
    ActivationBlock, InputRows, Isa, Kernels, MatmulJob, MatrixRef, WeightFormat, blocks::dequantize, matmul,
    pack_rows, packed_bytes,
};
use coldpress_workers::Workers;

const ROWS: usize = 21;
const INPUT_ROWS: usize = 3;

/// Product, and sum of the magnitudes of all that is added up: scaled quants and minimums each for themselves.
fn reference(weights: &[f32], minimums: &[f32], activations: &[f64]) -> (f64, f64) {
    let mut sums = (0.0, 0.0);
    for ((&weight, &minimum), &activation) in weights.iter().zip(minimums).zip(activations) {
        let (weight, minimum) = (f64::from(weight), f64::from(minimum));
        sums.0 += weight * activation;
        sums.1 += ((weight - minimum).abs() + minimum.abs()) * activation.abs();
    }
    sums
}

/// The minimums of a row: its values when all quants are zero; zeros for formats without a minimum.
fn row_minimums(format: WeightFormat, source: &[u8], columns: usize) -> Vec<f32> {
    let mut minimums = vec![0.0; columns];
    let quants = match format {
        WeightFormat::Q4_1 | WeightFormat::Q5_1 => 4..format.block_bytes(),
        WeightFormat::Q4K | WeightFormat::Q5K => 16..format.block_bytes(),
        WeightFormat::Q2K => 16..80,
        _ => return minimums,
    };
    let mut source = source.to_vec();
    source.chunks_exact_mut(format.block_bytes()).for_each(|block| block[quants.clone()].fill(0));
    dequantize(format, &source, &mut minimums);
    minimums
}

#[test]
fn scalar_products_match_f64() {
    let workers = Workers::new(1);
    let kernels = Kernels::for_isa(Isa::Scalar).expect("scalar code runs everywhere");
    let mut random = Random::new(21);
    for format in WeightFormat::ALL {
        for columns in column_counts(format) {
            let source = random_rows(&mut random, format, ROWS, columns);
            let mut packed = vec![0; packed_bytes(format, ROWS, columns)];
            pack_rows(format, ROWS, columns, &source, &mut packed);
            let floats = random.floats(INPUT_ROWS * columns);
            let blocks: Vec<ActivationBlock> =
                floats.as_chunks::<32>().0.iter().map(ActivationBlock::quantize).collect();
            let input = if format.takes_int8() {
                InputRows::from_blocks(columns, &blocks)
            } else {
                InputRows::from_floats(columns, &floats)
            };
            let used = activations_as_f64(format, &floats, &blocks);
            let mut output = vec![f32::NAN; INPUT_ROWS * ROWS];
            let weights = MatrixRef::new(format, ROWS, columns, &packed).expect("shape fits");
            workers.enter(|team| matmul(team, kernels, &mut [MatmulJob::new(weights, input, &mut output)]));

            let mut row_weights = vec![0.0; columns];
            for (row, source) in source.chunks_exact(format.row_bytes(columns)).enumerate() {
                dequantize(format, source, &mut row_weights);
                let minimums = row_minimums(format, source, columns);
                for (input_row, activations) in used.chunks_exact(columns).enumerate() {
                    let (expected, magnitude) = reference(&row_weights, &minimums, activations);
                    let found = f64::from(output[input_row * ROWS + row]);
                    // A product of scales below the normal numbers is off by half of their distance; a column adds 12 * 127 of them at most.
                    let subnormal =
                        if format == WeightFormat::Mxfp4 { columns as f64 * 12.0 * 127.0 } else { 0.0 };
                    let allowed = roundings(format, columns) * magnitude * 2_f64.powi(-24)
                        + subnormal * 2_f64.powi(-150);
                    assert!(
                        (expected - found).abs() <= allowed,
                        "{format}, {columns} columns, row {row}: {expected} and {found}, allowed {allowed:e}"
                    );
                }
            }
        }
    }
}

/// Roundings in the chain of a result: one per float weight, or up to three (scale, factor, addition) for each of the two
/// parts of a step.
fn roundings(format: WeightFormat, columns: usize) -> f64 {
    if format.takes_int8() { (columns / 32 * 6) as f64 } else { columns as f64 }
}

/// What the kernels really multiply with: the f32 values, or the dequantised int8 values.
fn activations_as_f64(format: WeightFormat, floats: &[f32], blocks: &[ActivationBlock]) -> Vec<f64> {
    if format.takes_int8() {
        let block_values = |block: &ActivationBlock| {
            let scale = f64::from(block.scale);
            block.values.map(|value| scale * f64::from(value))
        };
        blocks.iter().flat_map(block_values).collect()
    } else {
        floats.iter().map(|&value| f64::from(value)).collect()
    }
}
