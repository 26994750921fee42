//! Dequantised values and quantised bytes equal those of the PyPI package gguf, bit for bit.
//!
//! What could go wrong: bit fields in the wrong order, a scale of the wrong sub-block, fused instead of separate rounding,
//! ties rounded the other way. The fixtures are made by `fixtures/make_blocks.py`.

use std::path::Path;

use coldpress_kernels::{
    KernelError, WeightFormat,
    blocks::{dequantize, has_big_endian_form, quantize, to_little_endian},
};

const QUANTIZERS: [WeightFormat; 9] = [
    WeightFormat::F32,
    WeightFormat::F16,
    WeightFormat::BF16,
    WeightFormat::Q8_0,
    WeightFormat::Q4_0,
    WeightFormat::Q4_1,
    WeightFormat::Q5_0,
    WeightFormat::Q5_1,
    WeightFormat::Mxfp4,
];

fn fixture(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn values(name: &str) -> Vec<f32> {
    fixture(name).as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// Checksum of the values as zlib computes it (CRC-32, reflected polynomial 0xedb88320).
fn crc32(values: &[f32]) -> u32 {
    let bytes = values.iter().flat_map(|value| value.to_le_bytes());
    !bytes.fold(!0, |sum, byte| {
        (0..8).fold(sum ^ u32::from(byte), |sum, _| sum >> 1 ^ if sum & 1 == 1 { 0xedb8_8320 } else { 0 })
    })
}

#[test]
fn dequantised_values_are_bit_equal() {
    for format in WeightFormat::ALL.into_iter().filter(|format| *format != WeightFormat::F32) {
        let expected = values(&format!("{format}.values"));
        let blocks = fixture(&format!("{format}.blocks"));
        let mut found = vec![f32::NAN; blocks.len() / format.block_bytes() * format.block_elements()];
        dequantize(format, &blocks, &mut found);
        for (index, (expected, found)) in expected.iter().zip(&found).enumerate() {
            assert_eq!(
                expected.to_bits(),
                found.to_bits(),
                "{format}: value {index}: {expected} and {found}"
            );
        }
        if expected.len() == found.len() {
            continue;
        }
        let sums = fixture(&format!("{format}.crc32"));
        let (sums, _) = sums.as_chunks::<4>();
        assert_eq!(sums.len() * format.block_elements(), found.len(), "{format}: a checksum for each block");
        for (index, (sum, values)) in sums.iter().zip(found.chunks(format.block_elements())).enumerate() {
            assert_eq!(u32::from_le_bytes(*sum), crc32(values), "{format}: values of block {index}");
        }
    }
}

#[test]
fn quantised_bytes_are_equal() {
    let input = values("quantize_input.values");
    for format in QUANTIZERS {
        let expected = fixture(&format!("{format}.quantized"));
        let mut found = vec![0xaa; format.row_bytes(input.len())];
        quantize(format, &input, &mut found).expect("the format has a quantiser");
        let size = format.block_bytes();
        for (index, (expected, found)) in expected.chunks(size).zip(found.chunks(size)).enumerate() {
            assert_eq!(expected, found, "{format}: block {index}");
        }
        assert_eq!(expected.len(), found.len(), "{format}");
    }
}

#[test]
fn formats_without_a_quantiser_say_so() {
    let format = WeightFormat::Q4K;
    let refusal = quantize(format, &[0.0; 256], &mut [0; 144]);
    assert_eq!(refusal, Err(KernelError::CannotQuantize { format }));
}

/// Offset and width of each field wider than a byte, from the block structs of ggml-common.h.
const WIDE_FIELDS: [(WeightFormat, &[(usize, usize)]); 21] = [
    (WeightFormat::F32, &[(0, 4)]),
    (WeightFormat::F16, &[(0, 2)]),
    (WeightFormat::BF16, &[(0, 2)]),
    (WeightFormat::Q8_0, &[(0, 2)]),
    (WeightFormat::Q4_0, &[(0, 2)]),
    (WeightFormat::Q4_1, &[(0, 2), (2, 2)]),
    (WeightFormat::Q5_0, &[(0, 2), (2, 4)]),
    (WeightFormat::Q5_1, &[(0, 2), (2, 2), (4, 4)]),
    (WeightFormat::Q4K, &[(0, 2), (2, 2)]),
    (WeightFormat::Q5K, &[(0, 2), (2, 2)]),
    (WeightFormat::Q6K, &[(208, 2)]),
    (WeightFormat::Mxfp4, &[]),
    (WeightFormat::Q2K, &[(80, 2), (82, 2)]),
    (WeightFormat::Q3K, &[(108, 2)]),
    (WeightFormat::Iq2S, &[(0, 2)]),
    (WeightFormat::Iq3S, &[(0, 2)]),
    (WeightFormat::Iq4Nl, &[(0, 2)]),
    (WeightFormat::Iq4Xs, &[(0, 2), (2, 2)]),
    (WeightFormat::Tq1_0, &[(52, 2)]),
    (WeightFormat::Tq2_0, &[(64, 2)]),
    (WeightFormat::Nvfp4, &[]),
];

#[test]
fn formats_without_a_big_endian_form_are_the_others() {
    for format in WeightFormat::ALL {
        let listed = WIDE_FIELDS.iter().any(|(known, _)| *known == format);
        assert_eq!(has_big_endian_form(format), listed, "{format}");
    }
}

#[test]
fn byte_order_changes_exactly_the_wide_fields() {
    for (format, fields) in WIDE_FIELDS {
        let size = format.block_bytes();
        let original: Vec<u8> = (0..2 * size).map(|index| index as u8).collect();
        let mut turned = original.clone();
        to_little_endian(format, &mut turned);
        let mut expected = original.clone();
        for (offset, width) in fields {
            for block in [0, size] {
                expected[block + offset..block + offset + width].reverse();
            }
        }
        assert_eq!(expected, turned, "{format}");
        to_little_endian(format, &mut turned);
        assert_eq!(original, turned, "{format}: twice is nothing");
    }
}
