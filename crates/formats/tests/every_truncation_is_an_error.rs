//! A file cut off at any byte is refused with an error that says so.
//!
//! What could go wrong: a reader that believes a short read, or that accepts a file whose last tensor is not
//! complete.

use std::path::Path;

use crate::support::variant_name;
use coldpress_formats::GgufHeader;

fn check(name: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    let bytes = std::fs::read(&path).expect("a fixture");
    let whole = GgufHeader::read(bytes.as_slice(), bytes.len() as u64, &path).expect("a valid file");
    // Padding behind the last tensor may be missing.
    let needed = whole.tensors.iter().map(|tensor| tensor.offset + tensor.byte_len).max().expect("tensors");
    for length in 0..bytes.len() as u64 {
        let result = GgufHeader::read(&bytes[..length as usize], length, &path);
        if length >= needed {
            result.unwrap_or_else(|error| panic!("{name} cut at {length} of {needed} must open: {error}"));
            continue;
        }
        let variant = variant_name(&result.expect_err("a cut file"));
        let expected = match length {
            0..4 => "NotGguf",
            _ if length < whole.header_len => "Truncated",
            _ => "TensorPastEnd",
        };
        assert_eq!(variant, expected, "{name} cut at {length}");
    }
}

#[test]
fn little_endian_cut_at_every_byte() {
    check("little_endian.gguf");
}

#[test]
fn big_endian_cut_at_every_byte() {
    check("big_endian.gguf");
}

#[test]
fn a_file_that_shrinks_while_it_is_read_is_an_error() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/little_endian.gguf");
    let bytes = std::fs::read(&path).expect("a fixture");
    let whole = GgufHeader::read(bytes.as_slice(), bytes.len() as u64, &path).expect("a valid file");
    for length in 0..whole.header_len as usize {
        let error =
            GgufHeader::read(&bytes[..length], bytes.len() as u64, &path).expect_err("a short reader");
        assert_eq!(variant_name(&error), "Io", "cut at {length}: {error}");
    }
}
