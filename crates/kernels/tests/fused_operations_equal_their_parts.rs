//! A fused operation gives the bits of the operations it stands for.
//!
//! What could go wrong: columns cut inside an activation block, a thread that reads columns another one has not written,
//! the last unit of a width that is no multiple of 32, an activation applied to the wrong factor.

use crate::common::{Random, random_rows};
use coldpress_kernels::{
    Activation, ActivationBlock, GatedJob, InputRows, Isa, Kernels, MatmulJob, MatrixRef, WeightFormat,
    gated, matmul, pack_rows, packed_bytes, quantize_rows, rms_norm_and_quantize, vector,
};
use coldpress_workers::Workers;

fn packed(random: &mut Random, format: WeightFormat, rows: usize, columns: usize) -> Vec<u8> {
    let source = random_rows(random, format, rows, columns);
    let mut packed = vec![0; packed_bytes(format, rows, columns)];
    pack_rows(format, rows, columns, &source, &mut packed);
    packed
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn gated_jobs_equal_products_then_activation_then_quantisation() {
    let mut random = Random::new(21);
    let columns = 256;
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_supported()) {
        let kernels = Kernels::for_isa(isa).expect("supported");
        for (gate_format, up_format, width, rows) in [
            (WeightFormat::Q4_0, WeightFormat::Q4_0, 96, 1),
            (WeightFormat::Q4K, WeightFormat::Q6K, 768, 5),
            (WeightFormat::Q8_0, WeightFormat::Q8_0, 64, 70),
            (WeightFormat::F32, WeightFormat::Q5_1, 40, 3),
            (WeightFormat::BF16, WeightFormat::F16, 2048, 2),
            (WeightFormat::Mxfp4, WeightFormat::Mxfp4, 96, 5),
            (WeightFormat::Q8_0, WeightFormat::Q8_0, 32, 0),
        ] {
            let gate = packed(&mut random, gate_format, width, columns);
            let up = packed(&mut random, up_format, width, columns);
            let gate = MatrixRef::new(gate_format, width, columns, &gate).expect("shape fits");
            let up = MatrixRef::new(up_format, width, columns, &up).expect("shape fits");
            let floats: Vec<f32> = random.floats(rows * columns).iter().map(|value| value / 64.0).collect();
            let row_blocks = if width % 32 == 0 { width / 32 } else { 0 };
            for threads in [1, 2] {
                Workers::new(threads).enter(|team| {
                    let mut blocks = vec![ActivationBlock::ZERO; floats.len() / 32];
                    quantize_rows(team, kernels, &floats, &mut blocks);
                    let input = InputRows::new(columns, &floats, &blocks);

                    let mut expected = vec![f32::NAN; rows * width];
                    let mut other = expected.clone();
                    let mut result = expected.clone();
                    let mut scratch = expected.clone();
                    matmul(
                        team,
                        kernels,
                        &mut [
                            MatmulJob::new(gate, input, &mut expected),
                            MatmulJob::new(up, input, &mut other),
                        ],
                    );
                    let activation = match (threads, rows % 2) {
                        (2, _) => Activation::GeluTanh,
                        (_, 0) => Activation::Silu,
                        _ => Activation::ClampedSwiglu { slope: 1.702, limit: 0.5, offset: 1.0 },
                    };
                    let biases = [random.floats(width), random.floats(width)];
                    let biased = rows % 3 != 0;
                    for (out, bias) in [(&mut expected, &biases[0]), (&mut other, &biases[1])] {
                        let rows = out.chunks_exact_mut(width).filter(|_| biased);
                        rows.for_each(|row| {
                            row.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias)
                        });
                    }
                    match activation {
                        Activation::Silu => vector::swiglu_in_place(kernels, &mut expected, &other),
                        Activation::GeluTanh => vector::geglu_in_place(kernels, &mut expected, &other),
                        Activation::ClampedSwiglu { slope, limit, offset } => {
                            let (gate, up) = (&mut expected, &other);
                            vector::clamped_swiglu_in_place(kernels, gate, up, slope, limit, offset);
                        }
                    }
                    let mut expected_blocks = vec![ActivationBlock::ZERO; rows * row_blocks];
                    if row_blocks > 0 {
                        quantize_rows(team, kernels, &expected, &mut expected_blocks);
                    }

                    let mut result_blocks = vec![ActivationBlock::ZERO; rows * row_blocks];
                    let job = GatedJob::new(gate, up, input, &mut result, &mut scratch, &mut result_blocks);
                    let job = job.with_activation(activation);
                    let job = if biased { job.with_biases(&biases[0], &biases[1]) } else { job };
                    gated(team, kernels, &mut [job]);
                    let case = format!("{isa} {gate_format} {up_format} {width} x {rows}, {threads} threads");
                    assert_eq!(bits(&expected), bits(&result), "{case}");
                    assert_eq!(expected_blocks, result_blocks, "{case}");
                });
            }
        }
    }
}

#[test]
fn rms_norm_and_quantize_equals_both() {
    let mut random = Random::new(22);
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_supported()) {
        let kernels = Kernels::for_isa(isa).expect("supported");
        for (rows, columns) in [(1, 32), (3, 96), (65, 2048)] {
            let (x, weight) = (random.floats(rows * columns), random.floats(columns));
            Workers::new(2).enter(|team| {
                let mut expected = vec![0.0; x.len()];
                let mut expected_blocks = vec![ActivationBlock::ZERO; x.len() / 32];
                vector::rms_norm(team, kernels, &x, &weight, 1e-6, &mut expected);
                quantize_rows(team, kernels, &expected, &mut expected_blocks);
                let mut floats = vec![f32::NAN; x.len()];
                let mut blocks = vec![ActivationBlock::ZERO; x.len() / 32];
                rms_norm_and_quantize(team, kernels, &x, &weight, 1e-6, &mut floats, &mut blocks);
                assert_eq!(bits(&expected), bits(&floats), "{isa} {rows} x {columns}");
                assert_eq!(expected_blocks, blocks, "{isa} {rows} x {columns}");
            });
        }
    }
}
