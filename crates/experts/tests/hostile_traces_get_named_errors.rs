//! A trace file is input like any other: cut short, changed or made up, it gives an error that names file and byte, and never
//! a panic or memory beyond its own size.

use std::path::Path;

use coldpress_experts::{ExpertError, Fingerprint, RoutingTrace};

fn sample() -> Vec<u8> {
    let mut trace = RoutingTrace::new(Fingerprint::from_bytes([3; 32]), vec![4, 6], 2, 1 << 20);
    for _ in 0..3 {
        trace.record(0, [3, 1].into_iter());
        trace.record(1, [5, 0].into_iter());
    }
    trace.to_bytes()
}

fn refused(bytes: &[u8]) -> String {
    match RoutingTrace::from_bytes(bytes, Path::new("some.cptrace")) {
        Err(error @ ExpertError::Trace { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

/// The bytes with a checksum that fits them.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let end = bytes.len() - 4;
    let check = crc32c::crc32c(&bytes[..end]);
    bytes[end..].copy_from_slice(&check.to_le_bytes());
    bytes
}

#[test]
fn every_cut_and_every_flipped_bit() {
    let bytes = sample();
    assert!(RoutingTrace::from_bytes(&bytes, Path::new("some.cptrace")).is_ok());
    for length in 0..bytes.len() {
        assert!(refused(&bytes[..length]).contains("some.cptrace"));
    }
    for bit in 0..bytes.len() * 8 {
        let mut changed = bytes.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        refused(&changed);
    }
    refused(&[bytes.as_slice(), &[0]].concat());
}

/// Figures that promise more than there is, with a good checksum.
#[test]
fn lies_are_found_before_memory_is_asked_for() {
    for (at, value, wanted) in [
        (8, 2, "version 2"),
        (12, u32::MAX, "layers"),
        (16, 5, "experts in a layer"),
        (16, 0, "experts per token"),
        (20, 3, "bytes per choice"),
        (24, u32::MAX, "are left"),
        (64, 2, "cut"),
        (68, 3, "expert 3 of 3"),
        (76, 0, "rows"),
        (76, u32::MAX, "are left"),
    ] {
        let mut bytes = sample();
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        let message = refused(&sealed(bytes));
        assert!(message.contains(wanted), "{message}");
    }
    let mut twice = sample();
    twice[81] = twice[80];
    assert!(refused(&sealed(twice)).contains("cannot be chosen"));
}
