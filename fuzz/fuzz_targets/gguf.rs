//! Any bytes, as the start of a GGUF file: reading the header ends with a header or an error, and a header
//! keeps its promises. Time and memory are bounded by the options of libFuzzer, see README.md.

#![no_main]

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::path::Path;

use coldpress_formats::GgufHeader;
use libfuzzer_sys::fuzz_target;

/// Zeros behind the input, as in a sparse file. Long enough for every array that a small input can make
/// plausible.
const HOLE_BYTES: u64 = 1 << 20;

fuzz_target!(|bytes: &[u8]| {
    let length = bytes.len() as u64;
    check(bytes, length);
    check(bytes.chain(io::repeat(0).take(HOLE_BYTES)), length + HOLE_BYTES);
    // A length that is claimed, but not there: what is allocated before the read fails is bounded.
    check(bytes, u64::MAX / 2);
});

fn check(reader: impl Read, file_len: u64) {
    let Ok(header) = GgufHeader::read(reader, file_len, Path::new("fuzz.gguf")) else { return };
    assert!(header.header_len <= file_len && header.header_len <= header.data_start);
    let mut names = BTreeSet::new();
    let mut total = 0_u64;
    for tensor in &header.tensors {
        assert!(names.insert(&tensor.name));
        assert!(tensor.offset >= header.data_start && tensor.offset + tensor.byte_len <= file_len);
        assert!(tensor.byte_len > 0 && tensor.row_bytes() * tensor.rows() == tensor.byte_len);
        total += tensor.byte_len;
    }
    assert!(total <= file_len);
    for (key, value) in header.metadata.iter() {
        let found = header.metadata.get(key).expect("a listed key is found");
        assert_eq!(found.describe(), value.describe());
    }
}
