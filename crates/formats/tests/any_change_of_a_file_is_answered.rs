//! A valid file with any bytes changed, added or cut off opens or is refused; what opens keeps its promises.
//!
//! What could go wrong: a panic or an endless loop on input that no one thought of, a tensor outside of its
//! file.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use coldpress_formats::GgufHeader;
use proptest::prelude::*;

/// One change. Positions are taken modulo the length.
#[derive(Debug, Clone)]
enum Change {
    Byte(usize, u8),
    Word(usize, u64),
    Cut(usize),
    Repeat(usize, usize),
}

fn words() -> impl Strategy<Value = u64> {
    prop_oneof![
        (0_u32..64, -2_i64..3).prop_map(|(bit, near)| (1_u64 << bit).wrapping_add_signed(near)),
        0_u64..300,
        any::<u64>(),
    ]
}

fn changes() -> impl Strategy<Value = Change> {
    prop_oneof![
        4 => (any::<usize>(), any::<u8>()).prop_map(|(at, byte)| Change::Byte(at, byte)),
        4 => (any::<usize>(), words()).prop_map(|(at, word)| Change::Word(at, word)),
        1 => any::<usize>().prop_map(Change::Cut),
        1 => (any::<usize>(), 1_usize..64).prop_map(|(at, length)| Change::Repeat(at, length)),
    ]
}

fn apply(bytes: &mut Vec<u8>, change: &Change) {
    let length = bytes.len().max(1);
    match *change {
        Change::Byte(at, byte) => bytes.iter_mut().skip(at % length).take(1).for_each(|place| *place = byte),
        Change::Word(at, word) => {
            let places = bytes.iter_mut().skip(at % length);
            places.zip(word.to_le_bytes()).for_each(|(place, byte)| *place = byte);
        }
        Change::Cut(at) => bytes.truncate(at % length),
        Change::Repeat(at, count) => {
            let start = at % length;
            let piece: Vec<u8> = bytes.iter().skip(start).take(count).copied().collect();
            bytes.splice(start..start, piece);
        }
    }
}

fn check(bytes: &[u8], file_len: u64) {
    let start = Instant::now();
    let result = GgufHeader::read(bytes, file_len, Path::new("changed.gguf"));
    assert!(start.elapsed() < Duration::from_secs(1), "took {:?}", start.elapsed());
    let Ok(header) = result else { return };
    let mut names = BTreeSet::new();
    for tensor in &header.tensors {
        assert!(names.insert(&tensor.name), "{} is there twice", tensor.name);
        assert!(tensor.offset >= header.header_len && tensor.offset + tensor.byte_len <= file_len);
        assert!(tensor.byte_len > 0 && tensor.row_bytes() * tensor.rows() == tensor.byte_len);
    }
    let total: u64 = header.tensors.iter().map(|tensor| tensor.byte_len).sum();
    assert!(total <= file_len);
    header.metadata.iter().for_each(|(_, value)| assert!(!value.describe().is_empty()));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_fixtures_are_answered(
        big in any::<bool>(),
        changes in prop::collection::vec(changes(), 1..6),
        hole in prop_oneof![Just(0_u64), 1_u64..(1 << 33), Just(u64::MAX >> 2)],
    ) {
        let name = if big { "big_endian.gguf" } else { "little_endian.gguf" };
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
        let mut bytes = std::fs::read(path).expect("a fixture");
        changes.iter().for_each(|change| apply(&mut bytes, change));
        check(&bytes, bytes.len() as u64 + hole);
    }
}
