//! A product of random weights and activations, for tests that compare instruction sets.

#![allow(dead_code)] // each test file uses its part

use coldpress_kernels::{
    ActivationBlock, InputRows, Kernels, MatmulJob, MatrixRef, WeightFormat, matmul, pack_rows, packed_bytes,
};
use coldpress_workers::Workers;

use super::{Random, random_rows};

/// Weights and activations of one product.
pub struct Case {
    pub format: WeightFormat,
    pub rows: usize,
    pub columns: usize,
    pub packed: Vec<u8>,
    pub input: Vec<f32>,
    pub blocks: Vec<ActivationBlock>,
}

impl Case {
    pub fn random(
        random: &mut Random,
        format: WeightFormat,
        rows: usize,
        columns: usize,
        input_rows: usize,
    ) -> Case {
        let source = random_rows(random, format, rows, columns);
        let mut packed = vec![0; packed_bytes(format, rows, columns)];
        pack_rows(format, rows, columns, &source, &mut packed);
        let input = random.floats(input_rows * columns);
        let blocks = extreme_blocks(random, input.len() / 32);
        Case { format, rows, columns, packed, input, blocks }
    }

    pub fn run(&self, workers: &Workers, kernels: Kernels) -> Vec<f32> {
        self.run_rows(workers, kernels, 0, self.input.len() / self.columns)
    }

    pub fn run_rows(&self, workers: &Workers, kernels: Kernels, first: usize, count: usize) -> Vec<f32> {
        let weights = MatrixRef::new(self.format, self.rows, self.columns, &self.packed).expect("shape fits");
        let floats = &self.input[first * self.columns..(first + count) * self.columns];
        let input = if self.format.takes_int8() {
            let row_blocks = self.columns / 32;
            InputRows::new(
                self.columns,
                floats,
                &self.blocks[first * row_blocks..(first + count) * row_blocks],
            )
        } else {
            InputRows::from_floats(self.columns, floats)
        };
        let mut output = vec![f32::NAN; count * self.rows];
        workers.enter(|team| matmul(team, kernels, &mut [MatmulJob::new(weights, input, &mut output)]));
        output
    }
}

/// Activation blocks of random bytes, among them blocks of only -127 or 127.
pub fn extreme_blocks(random: &mut Random, count: usize) -> Vec<ActivationBlock> {
    (0..count)
        .map(|_| {
            let kind = random.below(4);
            let mut values = [0; 32];
            for value in &mut values {
                *value = match kind {
                    0 => 127,
                    1 => -127,
                    _ => (random.below(255) as i32 - 127) as i8,
                };
            }
            ActivationBlock::from_values(values, random.float().abs())
        })
        .collect()
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}
