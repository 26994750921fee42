//! A file of which only the header is there opens for planning, says how much is missing, and is refused for everything else.
//!
//! What could go wrong: a download that cannot be planned until its last byte is there; a cut file that passes for a whole
//! one; a header that is itself cut and read to its end all the same; tensor sizes that no file can have.

use std::fs;
use std::path::Path;

use crate::support::variant_name;
use coldpress_formats::{GgufHeader, ModelFile};

fn fixture(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    fs::read(path).expect("a fixture")
}

#[test]
fn a_file_cut_behind_its_header_opens_and_lacks_what_was_cut() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["little_endian.gguf", "big_endian.gguf"] {
        let bytes = fixture(name);
        let path = folder.path().join(name);
        let whole = GgufHeader::read(bytes.as_slice(), bytes.len() as u64, &path).expect("a valid file");
        fs::write(&path, &bytes).expect("a file");
        let complete = ModelFile::open_headers(&path).expect("a whole file opens as well");
        assert_eq!(complete.missing_bytes(), 0);
        for length in [whole.header_len, whole.header_len + 1, whole.data_end - 1] {
            fs::write(&path, &bytes[..length as usize]).expect("a file");
            assert_eq!(variant_name(&ModelFile::open(&path).expect_err("it is cut")), "TensorPastEnd");
            let cut = ModelFile::open_headers(&path).expect("its header is whole");
            assert_eq!(cut.missing_bytes(), whole.data_end - length, "{name} cut at {length}");
            assert!(cut.tensors().eq(complete.tensors()));
        }
        fs::write(&path, &bytes[..whole.header_len as usize - 1]).expect("a file");
        assert_eq!(variant_name(&ModelFile::open_headers(&path).expect_err("cut header")), "Truncated");
    }
}

#[test]
fn sizes_that_no_file_has_are_refused() {
    let bytes = fixture("little_endian.gguf");
    let path = Path::new("x.gguf");
    let header = GgufHeader::read(bytes.as_slice(), bytes.len() as u64, path).expect("a valid file");
    // The offset of the last tensor is the last field of the header.
    let mut far = bytes[..header.header_len as usize].to_vec();
    let at = far.len() - 8;
    for (offset, opens) in [(1_u64 << 40, true), (1 << 46, false), (u64::MAX / 64 * 64, false)] {
        far[at..].copy_from_slice(&offset.to_le_bytes());
        let result = GgufHeader::read_incomplete(far.as_slice(), far.len() as u64, path);
        assert_eq!(result.is_ok(), opens, "{offset}: {result:?}");
    }
}
