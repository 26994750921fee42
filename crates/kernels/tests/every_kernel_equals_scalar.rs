//! Every row of the kernel table gives the bits of the scalar definition.
//!
//! What could go wrong: saturating 16-bit sums, a wrong offset, a tile size that mixes rows, lanes of the zero rows that fill
//! up the last group, the last chunk. Random bits reach the extreme quants; results are compared as bits. A row's result is
//! also computed alone and must be the same as among its neighbours.

use crate::common::product::{Case, bits};
use crate::common::{Random, column_counts};
use coldpress_kernels::{
    ActivationBlock, InputRows, Isa, Kernels, MatmulJob, MatrixRef, WeightFormat, matmul, matmul::entries,
    quantize_rows,
};
use coldpress_workers::Workers;

fn kernels(isa: Isa) -> Kernels {
    Kernels::for_isa(isa).expect("the tests ask for supported instruction sets")
}

fn supported_entries() -> Vec<(WeightFormat, Isa)> {
    entries().filter(|(_, isa)| *isa != Isa::Scalar && isa.is_supported()).collect()
}

#[test]
fn every_kernel_gives_the_bits_of_the_scalar_definition() {
    let workers = Workers::new(2);
    let mut random = Random::new(1);
    for (format, isa) in supported_entries() {
        for columns in column_counts(format) {
            for (rows, input_rows) in
                [(16, 1), (37, 2), (1, 3), (130, 4), (16, 5), (33, 6), (31, 7), (48, 8), (65, 9), (80, 33)]
            {
                let case = Case::random(&mut random, format, rows, columns, input_rows);
                let scalar = case.run(&workers, kernels(Isa::Scalar));
                assert!(scalar.iter().all(|value| value.is_finite()), "{format}: every output is written");
                let found = case.run(&workers, kernels(isa));
                assert_eq!(
                    bits(&scalar),
                    bits(&found),
                    "{format} {isa}: {rows} x {columns}, {input_rows} inputs"
                );
            }
        }
    }
}

#[test]
fn a_row_does_not_depend_on_its_neighbours_or_on_threads() {
    let (one, two) = (Workers::new(1), Workers::new(2));
    let mut random = Random::new(2);
    for (format, isa) in entries().filter(|(_, isa)| isa.is_supported()) {
        let columns = column_counts(format)[1];
        let case = Case::random(&mut random, format, 530, columns, 19);
        let together = case.run(&two, kernels(isa));
        for row in [0, 1, 7, 8, 15, 18] {
            let alone = case.run_rows(&one, kernels(isa), row, 1);
            let expected = &together[row * case.rows..(row + 1) * case.rows];
            assert_eq!(bits(expected), bits(&alone), "{format} {isa}: row {row}");
        }
    }
}

#[test]
fn many_jobs_of_one_region_equal_the_jobs_alone() {
    let workers = Workers::new(2);
    let isa = Kernels::detect().isa();
    let mut random = Random::new(3);
    let cases: Vec<Case> = WeightFormat::ALL
        .into_iter()
        .zip([1, 4, 0, 9, 2, 1, 3, 1, 5, 1, 8])
        .map(|(format, input_rows)| Case::random(&mut random, format, 70 + 40 * input_rows, 256, input_rows))
        .collect();
    let mut outputs: Vec<Vec<f32>> =
        cases.iter().map(|case| vec![f32::NAN; case.input.len() / case.columns * case.rows]).collect();
    let mut jobs: Vec<MatmulJob<'_>> = cases
        .iter()
        .zip(&mut outputs)
        .map(|(case, output)| {
            let weights =
                MatrixRef::new(case.format, case.rows, case.columns, &case.packed).expect("shape fits");
            MatmulJob::new(weights, InputRows::new(case.columns, &case.input, &case.blocks), output)
        })
        .collect();
    workers.enter(|team| matmul(team, Kernels::detect(), &mut jobs));
    drop(jobs);
    for (case, output) in cases.iter().zip(&outputs) {
        assert_eq!(bits(&case.run(&workers, kernels(isa))), bits(output), "{}", case.format);
    }
}

#[test]
fn activation_quantisation_has_the_same_bits_everywhere() {
    let workers = Workers::new(2);
    let mut random = Random::new(4);
    let mut input = random.floats(32 * 700);
    for (index, value) in input.iter_mut().enumerate() {
        *value *= 10_f32.powi((index / 32 % 70) as i32 - 38);
    }
    input[5] = f32::NAN;
    input[40] = f32::NEG_INFINITY;
    let quantize = |isa: Isa| {
        let mut out = vec![ActivationBlock::ZERO; input.len() / 32];
        workers.enter(|team| quantize_rows(team, kernels(isa), &input, &mut out));
        out
    };
    let scalar = quantize(Isa::Scalar);
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_supported()) {
        for (expected, found) in scalar.iter().zip(quantize(isa)) {
            assert_eq!(expected.values, found.values, "{isa}");
            assert_eq!(expected.half_sums, found.half_sums, "{isa}");
            assert_eq!(expected.scale.to_bits(), found.scale.to_bits(), "{isa}");
        }
    }
}
