//! Quantising with a search: closer to trained weights than llama.cpp's own quantisers, no block further than by the rule, the same bytes
//! on every machine, and nothing that is not a number from values at the edges.
//!
//! What could go wrong: six-bit scales in the wrong bits, a minimum with the wrong sign, an error that is computed with a scale that is
//! then rounded, a scale that overflows f16, sums in an order that depends on the machine. The fixtures are made by
//! `fixtures/make_searched.py`; `tools/quantiser_error.py` compares whole models.

use std::path::Path;

use coldpress_kernels::WeightFormat::{self, Mxfp4, Q4_0, Q4K, Q5_0, Q5K, Q6K, Q8_0};
use coldpress_kernels::blocks::{SEARCHED_MAGNITUDE_MAX, dequantize, quantize, quantize_with_search};
use half::f16;

/// Format, and CRC-32 of what the fixture becomes.
const SEARCHED: [(WeightFormat, u32); 7] = [
    (Q4K, 0x0d13_29c1),
    (Q5K, 0x5e77_2006),
    (Q6K, 0x9616_7b77),
    (Q4_0, 0xa2e0_f8c8),
    (Q5_0, 0xb895_8e21),
    (Q8_0, 0xcf3d_ea33),
    (Mxfp4, 0xc2f8_39eb),
];

fn fixture(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn trained_weights() -> Vec<f32> {
    let bytes = fixture("searched.values");
    bytes.as_chunks::<2>().0.iter().map(|bytes| f16::from_le_bytes(*bytes).to_f32()).collect()
}

fn searched(format: WeightFormat, values: &[f32]) -> Vec<u8> {
    let mut out = vec![0xaa; format.row_bytes(values.len())];
    quantize_with_search(format, values, &mut out).expect("the format has a quantiser");
    out
}

/// Squared error of each block.
fn errors(format: WeightFormat, values: &[f32], bytes: &[u8]) -> Vec<f64> {
    let mut found = vec![f32::NAN; values.len()];
    dequantize(format, bytes, &mut found);
    let square = |(value, found): (&f32, &f32)| (f64::from(*value) - f64::from(*found)).powi(2);
    let size = format.block_elements();
    let blocks = values.chunks(size).zip(found.chunks(size));
    blocks.map(|(values, found)| values.iter().zip(found).map(square).sum()).collect()
}

#[test]
fn trained_weights_lose_less_than_by_llama_cpp() {
    let values = trained_weights();
    for (format, _) in SEARCHED {
        let ours: f64 = errors(format, &values, &searched(format, &values)).iter().sum();
        let theirs: f64 = errors(format, &values, &fixture(&format!("{format}.llama_cpp"))).iter().sum();
        assert!(ours < theirs, "{format}: squared error {ours}, by llama.cpp {theirs}");
    }
}

#[test]
fn no_block_is_further_than_by_the_rule() {
    let mut values = trained_weights();
    values.iter_mut().step_by(97).for_each(|value| *value *= 30.0);
    for format in [Q4_0, Q5_0, Q8_0, Mxfp4] {
        let mut by_rule = vec![0; format.row_bytes(values.len())];
        quantize(format, &values, &mut by_rule).expect("the format has a rule");
        let ours = errors(format, &values, &searched(format, &values));
        for (index, (ours, rule)) in ours.iter().zip(errors(format, &values, &by_rule)).enumerate() {
            // Errors are compared in f32 while searching.
            assert!(
                *ours <= rule * 1.0001,
                "{format}, block {index}: squared error {ours}, by the rule {rule}"
            );
        }
    }
}

#[test]
fn bytes_are_those_of_every_other_machine() {
    let values = trained_weights();
    let found = SEARCHED.map(|(format, _)| (format, crc32(&searched(format, &values))));
    assert!(found == SEARCHED, "checksums are {found:x?}");
    for (format, _) in SEARCHED {
        // A block alone is what it is among others.
        let size = format.block_elements();
        let alone: Vec<u8> = values.chunks(size).flat_map(|block| searched(format, block)).collect();
        assert!(alone == searched(format, &values), "{format}");
    }
}

/// Checksum as zlib computes it (reflected polynomial 0xedb88320).
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| sum >> 1 ^ if sum & 1 == 1 { 0xedb8_8320 } else { 0 })
    })
}

#[test]
fn values_at_the_edges_stay_numbers_near_their_own() {
    let edge = SEARCHED_MAGNITUDE_MAX;
    let cases: [(&str, Vec<f32>); 7] = [
        ("zeros", vec![0.0; 256]),
        ("one value", vec![0.37; 256]),
        ("one negative value", vec![-0.37; 256]),
        ("the largest", (0..256).map(|index| if index % 2 == 0 { edge } else { -edge }).collect()),
        ("one large value", (0..256).map(|index| if index == 77 { -edge } else { 1e-3 }).collect()),
        ("tiny", (0..256).map(|index| 1e-30 * (index as f32 - 128.0)).collect()),
        ("subnormal", vec![f32::from_bits(1); 256]),
    ];
    for (format, _) in SEARCHED {
        for (case, values) in &cases {
            let bytes = searched(format, values);
            let mut found = vec![f32::NAN; 256];
            dequantize(format, &bytes, &mut found);
            let largest = values.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
            // A step of the coarsest format, and what f16 scales cannot hold.
            let bound = largest * 0.17 + 1e-5;
            for (value, found) in values.iter().zip(&found) {
                assert!((value - found).abs() <= bound, "{format}, {case}: {value} came back as {found}");
            }
        }
    }
}

#[test]
fn formats_without_a_search_are_as_by_the_rule() {
    let values = trained_weights();
    for format in [WeightFormat::F32, WeightFormat::F16, WeightFormat::BF16, WeightFormat::Q4_1] {
        let mut by_rule = vec![0; format.row_bytes(values.len())];
        quantize(format, &values, &mut by_rule).expect("the format has a rule");
        assert!(searched(format, &values) == by_rule, "{format}");
    }
    let refused = quantize_with_search(WeightFormat::Iq4Nl, &values, &mut [0; 24 * 144]);
    assert!(refused.expect_err("no quantiser").to_string().contains("no quantiser for IQ4_NL"));
}
