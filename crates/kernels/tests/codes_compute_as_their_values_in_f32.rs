//! Codes with scales give the bits that the same values as F32 weights give, on every instruction set, and unpack to these values.
//!
//! What could go wrong: a code that straddles two words loses its upper bits, a lane gets the scale of its neighbour or of the next
//! group, the last step or the last group of a row is cut short, a bias is added before it should be.

use coldpress_kernels::layout::{CodeOrder, ScalePart, ScaleRows, pack_codebook, pack_codes, pack_scales};
use coldpress_kernels::{
    Coding, InputRows, Isa, Kernels, Levels, MatmulJob, MatrixRef, ScaleFormat, ScaleSource, WeightFormat,
    matmul, pack_rows, packed_bytes, unpack_row,
};
use coldpress_workers::Workers;

use crate::common::Random;

const ROWS: usize = 37;

/// A matrix of codes with the values that they stand for, worked out one by one.
struct Case {
    format: WeightFormat,
    columns: usize,
    packed: Vec<u8>,
    values: Vec<f32>,
}

fn level(levels: Levels, bits: u32, code: u32, codebook: &[f32]) -> f32 {
    let magnitudes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    match levels {
        Levels::Unsigned => code as f32,
        Levels::OffsetBinary => code as f32 - 2f32.powi(bits as i32 - 1),
        Levels::E2m1 => magnitudes[code as usize % 8] * if code < 8 { 1.0 } else { -1.0 },
        Levels::E4m3 => {
            let (exponent, mantissa) = (code >> 3 & 15, (code & 7) as f32);
            let magnitude = match exponent {
                0 => mantissa * 2f32.powi(-9),
                _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent as i32 - 7),
            };
            if code < 128 { magnitude } else { -magnitude }
        }
        Levels::Codebook => codebook[code as usize],
    }
}

/// The number of a scale and what the file holds for it.
fn scale(random: &mut Random, source: ScaleSource) -> (f32, Vec<u8>) {
    let value = random.float() / 16.0;
    match source {
        ScaleSource::F32 => (value, value.to_le_bytes().to_vec()),
        ScaleSource::F16 => {
            let value = half::f16::from_f32(value);
            (value.to_f32(), value.to_le_bytes().to_vec())
        }
        ScaleSource::Bf16 => {
            let value = half::bf16::from_f32(value);
            (value.to_f32(), value.to_le_bytes().to_vec())
        }
        ScaleSource::E8m0 => {
            let exponent = random.below(20) as u8 + 110;
            (2f32.powi(i32::from(exponent) - 127), vec![exponent])
        }
        ScaleSource::E4m3 => {
            let byte = random.below(127) as u8;
            (level(Levels::E4m3, 8, u32::from(byte), &[]), vec![byte])
        }
    }
}

impl Case {
    fn random(
        random: &mut Random,
        (bits, levels, source): (u32, Levels, ScaleSource),
        (group, has_bias, rows_per_scale): (Option<usize>, bool, usize),
        (columns, order): (usize, CodeOrder),
    ) -> Case {
        let coding = Coding::new(bits, levels, group, source.held(), has_bias).expect("a coding");
        let format = WeightFormat::Codes(coding);
        let codebook = random.floats(coding.codebook_len());
        let row_bytes = order.row_bytes(bits as usize, columns);
        let mut codes = vec![0u8; ROWS * row_bytes];
        let mut values = vec![0.0; ROWS * columns];
        let groups = columns.div_ceil(group.unwrap_or(columns));
        let mut numbers = || -> (Vec<f32>, Vec<u8>) {
            let all: Vec<_> =
                (0..ROWS.div_ceil(rows_per_scale) * groups).map(|_| scale(random, source)).collect();
            (all.iter().map(|one| one.0).collect(), all.into_iter().flat_map(|one| one.1).collect())
        };
        let (scales, scale_bytes) = numbers();
        let (biases, bias_bytes) = numbers();
        for row in 0..ROWS {
            for column in 0..columns {
                let code = loop {
                    let code = random.below(1 << bits) as u32;
                    if levels != Levels::E4m3 || code & 0x7f != 0x7f {
                        break code;
                    }
                };
                let bit = match order {
                    CodeOrder::Stream => column * bits as usize,
                    CodeOrder::Words => {
                        let per_word = 32 / bits as usize;
                        column / per_word * 32 + column % per_word * bits as usize
                    }
                };
                for index in 0..bits as usize {
                    codes[row * row_bytes + (bit + index) / 8] |=
                        ((code >> index & 1) as u8) << ((bit + index) % 8);
                }
                let at = row / rows_per_scale * groups + column / group.unwrap_or(columns);
                let scaled = level(levels, bits, code, &codebook) * scales[at];
                values[row * columns + column] = if has_bias { scaled + biases[at] } else { scaled };
            }
        }
        let mut packed = vec![0xa5; packed_bytes(format, ROWS, columns)];
        let shape = (ROWS, columns);
        let rows = |bytes| ScaleRows { bytes, source, rows_per_scale, rows_before: 0 };
        if !codebook.is_empty() {
            pack_codebook(coding, columns, &codebook, &mut packed);
        }
        if has_bias {
            pack_scales(coding, shape, ScalePart::Biases, rows(&bias_bytes), &mut packed);
        }
        pack_scales(coding, shape, ScalePart::Scales, rows(&scale_bytes), &mut packed);
        pack_codes(coding, shape, order, &codes, &mut packed);
        Case { format, columns, packed, values }
    }
}

/// Every kind of codes that a checkpoint has, with widths and groups that end in the middle of steps, words and groups.
fn cases(random: &mut Random) -> Vec<Case> {
    use {CodeOrder as O, Levels as L, ScaleSource as S};
    let mut cases = Vec::new();
    for bits in [2, 3, 4, 5, 6, 8] {
        for (source, group, columns) in
            [(S::Bf16, 64, 192), (S::F16, 32, 96), (S::F16, 128, 320), (S::F32, 32, 32)]
        {
            let shape = (columns, O::Stream);
            cases.push(Case::random(random, (bits, L::Unsigned, source), (Some(group), true, 1), shape));
        }
        let shape = (210, if bits == 3 || bits == 5 { O::Words } else { O::Stream });
        let shape = if bits == 2 || bits == 6 { (208, O::Stream) } else { shape };
        cases.push(Case::random(random, (bits, L::Codebook, S::F16), (None, false, 1), shape));
    }
    cases.push(Case::random(random, (4, L::OffsetBinary, S::Bf16), (Some(32), false, 1), (128, O::Stream)));
    cases.push(Case::random(random, (4, L::E2m1, S::E8m0), (Some(32), false, 1), (64, O::Stream)));
    cases.push(Case::random(random, (4, L::E2m1, S::E4m3), (Some(16), false, 1), (96, O::Stream)));
    cases.push(Case::random(random, (8, L::E4m3, S::E8m0), (Some(32), false, 1), (64, O::Stream)));
    for columns in [48, 128, 192, 203] {
        let shape = (columns, O::Stream);
        cases.push(Case::random(random, (8, L::E4m3, S::F32), (Some(128), false, 16), shape));
    }
    assert!(
        cases
            .iter()
            .any(|case| matches!(case.format, WeightFormat::Codes(c) if c.scales() == ScaleFormat::F32))
    );
    cases
}

#[test]
fn codes_unpack_to_their_values() {
    for case in cases(&mut Random::new(5)) {
        let matrix = MatrixRef::new(case.format, ROWS, case.columns, &case.packed).expect("shape fits");
        let mut row = vec![f32::NAN; case.columns];
        for (index, wanted) in case.values.chunks_exact(case.columns).enumerate() {
            unpack_row(&matrix, index, &mut row);
            assert_eq!(row, wanted, "{} with {} columns, row {index}", case.format, case.columns);
        }
    }
}

#[test]
fn products_of_codes_are_those_of_their_values() {
    let workers = Workers::new(2);
    let mut random = Random::new(6);
    let instruction_sets: Vec<Kernels> = Isa::ALL.into_iter().filter_map(Kernels::for_isa).collect();
    for case in cases(&mut random) {
        let bytes: Vec<u8> = case.values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let mut plain = vec![0; packed_bytes(WeightFormat::F32, ROWS, case.columns)];
        pack_rows(WeightFormat::F32, ROWS, case.columns, &bytes, &mut plain);
        for count in [1, 2, 7] {
            let floats = random.floats(count * case.columns);
            let product = |format, packed: &[u8], kernels| {
                let weights = MatrixRef::new(format, ROWS, case.columns, packed).expect("shape fits");
                let input = InputRows::from_floats(case.columns, &floats);
                let mut output = vec![f32::NAN; count * ROWS];
                workers
                    .enter(|team| matmul(team, kernels, &mut [MatmulJob::new(weights, input, &mut output)]));
                output
            };
            for kernels in &instruction_sets {
                let (found, wanted) = (
                    product(case.format, &case.packed, *kernels),
                    product(WeightFormat::F32, &plain, *kernels),
                );
                assert!(
                    found.iter().zip(&wanted).all(|(found, wanted)| found.to_bits() == wanted.to_bits()),
                    "{} with {} columns, {count} rows, {kernels:?}",
                    case.format,
                    case.columns
                );
            }
        }
    }
}
