//! Files of 64 GiB that consist of claims and a hole take little memory, whatever they claim.
//!
//! What could go wrong: a length is believed because the file is long enough for it. The figure is the peak
//! of this process, so this file has one test only.

#![cfg(target_os = "linux")]

mod support;

use std::fs::File;
use std::io::Write;

use coldpress_formats::{ModelFile, limits};
use support::Raw;
use support::value_type::{ARRAY, FLOAT64, STRING, UINT8};

fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("a Linux kernel");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("the peak");
    line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number of KiB")
}

#[test]
fn the_peak_is_below_one_header() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("sparse.gguf");
    let key = || Raw::new(0, 9).key("a", ARRAY);
    let mut files = vec![
        Raw::new(limits::MAX_TENSORS, limits::MAX_KEYS),
        Raw::new(0, 9).key("a", STRING).u64(limits::MAX_STRING_BYTES),
        Raw::new(0, 9).key("a", STRING).u64(60 << 30),
        key().array(ARRAY, limits::MAX_INNER_ARRAYS),
        key().array(ARRAY, 1 << 32),
    ];
    for element_type in [UINT8, STRING, FLOAT64] {
        files.extend(
            [limits::MAX_ARRAY_ELEMENTS, 1 << 24, 1 << 32].map(|count| key().array(element_type, count)),
        );
    }
    let before = peak_kib();
    for raw in &files {
        let mut file = File::create(&path).expect("a new file");
        file.write_all(&raw.bytes).expect("a written file");
        file.set_len(64 << 30).expect("a file with a hole");
        ModelFile::open(&path).expect_err("no file of zeros is a model");
    }
    let grown = peak_kib() - before;
    assert!(grown << 10 < limits::MAX_HEADER_BYTES, "the peak grew by {grown} KiB");
}
