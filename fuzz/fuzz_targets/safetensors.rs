//! Any bytes, as the start of a safetensors file and as a configuration: reading ends with a directory or an error, and a
//! directory keeps its promises. Time and memory are bounded by the options of libFuzzer, see README.md.

#![no_main]

use std::path::Path;

use coldpress_formats::{SafetensorsHeader, config_metadata};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let (length, path) = (bytes.len() as u64, Path::new("fuzz.safetensors"));
    if let Ok(header) = SafetensorsHeader::read(bytes, length, path) {
        assert_eq!(header.data_end, length);
        check(&header);
    }
    // The end of the file may be missing, or its length be a lie.
    for length in [length, u64::MAX / 2] {
        if let Ok(header) = SafetensorsHeader::read_incomplete(bytes, length, path) {
            check(&header);
        }
    }
    // What follows the length is JSON of the kind that a configuration is.
    if let Ok(metadata) = config_metadata(Path::new("config.json"), bytes.get(8..).unwrap_or_default()) {
        for (key, value) in metadata.iter() {
            assert_eq!(metadata.get(key).expect("a listed key is found").describe(), value.describe());
        }
    }
});

/// Tensors lie behind each other and fill the file.
fn check(header: &SafetensorsHeader) {
    let mut end = header.header_len;
    for tensor in &header.tensors {
        assert_eq!(tensor.offset, end);
        assert!(tensor.byte_len > 0 && tensor.row_bytes() * tensor.rows() == tensor.byte_len);
        end += tensor.byte_len;
    }
    assert_eq!(end, header.data_end);
}
