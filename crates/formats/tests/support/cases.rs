//! Files that must be refused, with the error they get, and unusual files that must open. The fuzz corpus is
//! written from this list, so the fuzzer starts at every edge that a test knows.

use super::Raw;
use super::tensor_type::{F32, F64, I8, MXFP4, Q4_K};
use super::value_type::{ARRAY, BOOL, FLOAT32, FLOAT64, INT32, STRING, UINT8, UINT16, UINT32, UINT64};

/// A file and what opening it must give.
pub struct Case {
    pub name: &'static str,
    pub bytes: Vec<u8>,
    /// Length of the file; what is behind `bytes` is a hole that reads as zeros.
    pub file_len: u64,
    pub expected: Expected,
}

pub enum Expected {
    Opens,
    /// Variant of `FormatError`, and a piece of its message.
    Refused(&'static str, &'static str),
}

fn good(name: &'static str, raw: Raw) -> Case {
    let file_len = raw.bytes.len() as u64;
    Case { name, bytes: raw.bytes, file_len, expected: Expected::Opens }
}

fn bad(name: &'static str, raw: Raw, variant: &'static str, message: &'static str) -> Case {
    let expected = Expected::Refused(variant, message);
    Case { expected, ..good(name, raw) }
}

/// A refused file that claims several GiB and has a hole for most of them.
fn sparse(name: &'static str, raw: Raw, variant: &'static str, message: &'static str) -> Case {
    Case { file_len: 8 << 30, ..bad(name, raw, variant, message) }
}

/// One key and no tensor.
fn one_key(key: &str, value_type: u32) -> Raw {
    Raw::new(0, 1).key(key, value_type)
}

/// One tensor `t` with 64 data bytes behind the header.
fn one_tensor(shape: &[u64], tensor_type: u32, offset: u64) -> Raw {
    Raw::new(1, 0).tensor("t", shape, tensor_type, offset).data(32, 64)
}

/// A tensor of 16 f32 in a file with this alignment key, its data where the alignment puts it.
fn aligned(value_type: u32, value: Raw, alignment: usize) -> Raw {
    let header = Raw::new(1, 1).key("general.alignment", value_type).raw(&value.bytes);
    header.tensor("t", &[16], F32, 0).data(alignment, 64)
}

fn bytes() -> Raw {
    Raw::default()
}

pub fn all() -> Vec<Case> {
    [starts(), lengths(), nesting(), values(), alignments(), shapes(), types(), ranges(), names(), holes()]
        .into_iter()
        .flatten()
        .collect()
}

fn starts() -> Vec<Case> {
    vec![
        bad("empty", bytes(), "NotGguf", "the file is empty"),
        bad(
            "only_magic",
            bytes().raw(b"GGUF"),
            "Truncated",
            "the version at offset 4 needs 4 bytes and 0 are left",
        ),
        bad("half_magic", bytes().raw(b"GG"), "NotGguf", "begins with \"GG\""),
        bad("swapped_magic", bytes().raw(b"FUGG").u32(3).u64(0).u64(0), "NotGguf", "byte-swapped"),
        bad("other_format", bytes().raw(b"PK\x03\x04 and so on"), "NotGguf", "not a GGUF file"),
        bad(
            "git_lfs_pointer",
            bytes().raw(b"version https://git-lfs.github.com/spec/v1\n"),
            "NotGguf",
            "git lfs pull",
        ),
        bad("version_1", Raw::with_version(1, false).u32(0).u32(0), "UnsupportedVersion", "GGUF version 1;"),
        bad(
            "version_1_big",
            Raw::with_version(1, true).u32(0).u32(0),
            "UnsupportedVersion",
            "GGUF version 1;",
        ),
        bad("version_0", Raw::with_version(0, false).u64(0).u64(0), "UnsupportedVersion", "GGUF version 0;"),
        bad("version_4", Raw::with_version(4, false).u64(0).u64(0), "UnsupportedVersion", "GGUF version 4;"),
        bad("version_3_and_more", Raw::with_version(0x30003, false), "UnsupportedVersion", "version 196611;"),
        good("version_2", Raw::with_version(2, false).u64(0).u64(1).key_u32("a", 1)),
        good("version_2_big", Raw::with_version(2, true).u64(0).u64(1).key_u32("a", 1)),
        good(
            "version_3_big",
            Raw::with_version(3, true).u64(1).u64(0).tensor("t", &[16], F32, 0).data(32, 64),
        ),
        good("nothing_inside", Raw::new(0, 0)),
    ]
}

fn lengths() -> Vec<Case> {
    const HUGE: u64 = 1 << 63;
    let text = "a metadata value at offset";
    let array = "a metadata array at offset";
    vec![
        bad("keys_2_63", Raw::new(0, HUGE), "OverLimit", "the number of metadata entries at offset 24 is"),
        bad("tensors_2_62", Raw::new(1 << 62, 0), "OverLimit", "the number of tensors at offset 16 is"),
        bad("keys_without_room", Raw::new(0, 60000), "Truncated", "needs 840000 bytes and 0 are left"),
        bad(
            "tensors_without_room",
            Raw::new(1 << 18, 0),
            "Truncated",
            "the list of metadata entries and tensors",
        ),
        bad(
            "key_2_63",
            Raw::new(0, 1).u64(HUGE).raw(b"abcdefgh"),
            "Truncated",
            "a metadata key at offset 32 needs",
        ),
        bad("key_2_64_minus_1", Raw::new(0, 1).u64(u64::MAX).raw(b"abcdefgh"), "Truncated", "a metadata key"),
        bad("string_2_63", one_key("a", STRING).u64(HUGE), "Truncated", text),
        bad("string_2_62", one_key("a", STRING).u64(1 << 62), "Truncated", text),
        bad(
            "string_one_too_long",
            one_key("a", STRING).u64(3).raw(b"xy"),
            "Truncated",
            "needs 3 bytes and 2 are left",
        ),
        bad("array_2_63", one_key("a", ARRAY).array(UINT8, HUGE), "Truncated", array),
        bad("array_2_62_strings", one_key("a", ARRAY).array(STRING, 1 << 62), "Truncated", array),
        // The bytes of these arrays are 0 modulo 2^64.
        bad("array_2_61_f64", one_key("a", ARRAY).array(FLOAT64, 1 << 61), "Truncated", array),
        bad("array_2_62_u32", one_key("a", ARRAY).array(UINT32, 1 << 62), "Truncated", array),
        bad(
            "string_in_array_2_63",
            one_key("a", ARRAY).array(STRING, 1).u64(HUGE),
            "Truncated",
            "a string in a metadata array at offset",
        ),
        bad("tensor_name_2_63", Raw::new(1, 0).u64(HUGE).data(1, 64), "Truncated", "a tensor name at offset"),
        good("empty_arrays", Raw::new(0, 2).key("a", ARRAY).array(STRING, 0).key("b", ARRAY).array(UINT8, 0)),
        good("empty_string", one_key("a", STRING).u64(0)),
    ]
}

fn nested(depth: u32) -> Raw {
    (1..depth).fold(one_key("a", ARRAY), |raw, _| raw.array(ARRAY, 1)).array(UINT8, 1).u8(7)
}

fn nesting() -> Vec<Case> {
    let deep = (0..60).fold(one_key("a", ARRAY), |raw, _| raw.array(ARRAY, 1));
    vec![
        good("nested_4", nested(4)),
        bad("nested_5", nested(5), "NestedTooDeep", "nests arrays deeper than 4"),
        bad("nested_60", deep, "NestedTooDeep", "nests arrays deeper than 4"),
        bad(
            "nested_length_2_62",
            one_key("a", ARRAY).array(ARRAY, 1).array(ARRAY, 1 << 62),
            "Truncated",
            "a metadata array",
        ),
    ]
}

fn values() -> Vec<Case> {
    vec![
        bad("bool_2", one_key("a", BOOL).u8(2), "BadBool", "holds the bool 2 at offset 37"),
        bad("bool_2_in_array", one_key("a", ARRAY).array(BOOL, 3).raw(&[1, 0, 2]), "BadBool", "at offset 51"),
        bad(
            "value_type_13",
            one_key("a", 13).u8(0),
            "UnknownValueType",
            "key \"a\" at offset 33 has the unknown value type 13",
        ),
        bad("element_type_13", one_key("a", ARRAY).array(13, 0), "UnknownValueType", "unknown value type 13"),
        good("string_of_raw_bytes", one_key("a", STRING).string(b"\xff\x00\xfe")),
        good("token_of_raw_bytes", one_key("a", ARRAY).array(STRING, 2).string(b"\xc3").string(b"ok")),
    ]
}

fn alignments() -> Vec<Case> {
    let refused = |name, value_type, value: Raw, message| {
        bad(name, aligned(value_type, value, 32), "BadAlignment", message)
    };
    let u32_of = |value| bytes().u32(value);
    vec![
        good("alignment_none", one_tensor(&[16], F32, 0)),
        good("alignment_8", aligned(UINT32, u32_of(8), 8)),
        good("alignment_24", aligned(UINT32, u32_of(24), 24)),
        good("alignment_32", aligned(UINT32, u32_of(32), 32)),
        good("alignment_64", aligned(UINT32, u32_of(64), 64)),
        good("alignment_u8", aligned(UINT8, bytes().u8(64), 64)),
        good("alignment_u16", aligned(UINT16, bytes().raw(&[64, 0]), 64)),
        good("alignment_u64", aligned(UINT64, bytes().u64(64), 64)),
        refused("alignment_0", UINT32, u32_of(0), "general.alignment is uint32 0;"),
        refused("alignment_7", UINT32, u32_of(7), "general.alignment is uint32 7;"),
        refused("alignment_4", UINT32, u32_of(4), "general.alignment is uint32 4;"),
        refused("alignment_i32", INT32, u32_of(32), "general.alignment is int32 32;"),
        refused(
            "alignment_minus_32",
            INT32,
            u32_of(32_u32.wrapping_neg()),
            "general.alignment is int32 -32;",
        ),
        refused(
            "alignment_f32",
            FLOAT32,
            bytes().raw(&32_f32.to_le_bytes()),
            "general.alignment is float32 32;",
        ),
        refused("alignment_string", STRING, bytes().string(b"32"), "general.alignment is string \"32\";"),
        bad(
            "alignment_2_63",
            aligned(UINT64, bytes().u64(1 << 63), 32),
            "TensorPastEnd",
            "finish the download",
        ),
    ]
}

fn shapes() -> Vec<Case> {
    let refused = |name, shape: &[u64], tensor_type, message| {
        bad(name, one_tensor(shape, tensor_type, 0), "BadShape", message)
    };
    let large = "is too large to address";
    vec![
        refused("shape_wraps_to_minus_2", &[u64::MAX, 2], F32, large),
        refused("shape_wraps_to_0", &[1 << 32, 1 << 32], F32, large),
        refused("shape_wraps_to_16", &[(1 << 63) + 8, 2], F32, large),
        refused("shape_2_63", &[1 << 63, 1], F32, large),
        refused("elements_2_63", &[1 << 63], I8, large),
        refused("bytes_wrap_to_0", &[1 << 62], F64, large),
        refused("dimensions_0", &[], F32, "has 0 dimensions"),
        refused("dimensions_5", &[1, 1, 1, 1, 1], F32, "has 5 dimensions"),
        refused("dimensions_9", &[1; 9], F32, "has 9 dimensions"),
        bad(
            "dimensions_2_32_minus_1",
            Raw::new(1, 0).string(b"t").u32(u32::MAX).data(32, 64),
            "BadShape",
            "has 4294967295 dimensions",
        ),
        refused("dimension_of_0", &[16, 0], F32, "has an empty dimension"),
        refused("row_of_0", &[0, 16], F32, "has an empty dimension"),
        good("dimensions_4", one_tensor(&[2, 2, 2, 2], F32, 0)),
    ]
}

fn types() -> Vec<Case> {
    let unknown =
        |name, number, message| bad(name, one_tensor(&[32], number, 0), "UnknownTensorType", message);
    vec![
        unknown("type_4", 4, "tensor \"t\" has the unknown type 4: it was Q4_2"),
        unknown("type_31", 31, "the unknown type 31: it was the repacked type Q4_0_4_4"),
        unknown("type_42", 42, "the unknown type 42: newer ggml uses it for Q2_0"),
        unknown(
            "type_139",
            139,
            "the unknown type 139: numbers from 97 to 399 belong to the fork ik_llama.cpp",
        ),
        unknown("type_255", 255, "the unknown type 255: numbers from 97"),
        unknown("type_2_32_minus_1", u32::MAX, "the unknown type 4294967295: it is not a number of ggml"),
        good("type_39", one_tensor(&[32, 3], MXFP4, 0)),
        bad(
            "row_896_of_256_blocks",
            one_tensor(&[896], Q4_K, 0),
            "RowNotWholeBlocks",
            "has rows of 896 elements, but Q4_K stores blocks of 256",
        ),
        bad(
            "row_16_of_32_blocks",
            one_tensor(&[16, 2], MXFP4, 0),
            "RowNotWholeBlocks",
            "rows of 16 elements",
        ),
    ]
}

fn two_tensors(first: (&str, u64), second: (&str, u64)) -> Raw {
    Raw::new(2, 0).tensor(first.0, &[16], F32, first.1).tensor(second.0, &[16], F32, second.1).data(32, 256)
}

fn ranges() -> Vec<Case> {
    let past = "but the file has";
    vec![
        bad(
            "offset_8_of_32",
            one_tensor(&[8], F32, 8),
            "MisalignedTensor",
            "data offset 8, which is not a multiple",
        ),
        bad("one_byte_short", Raw::new(1, 0).tensor("t", &[16], F32, 0).data(32, 63), "TensorPastEnd", past),
        bad("no_data", Raw::new(1, 0).tensor("t", &[16], F32, 0), "TensorPastEnd", "finish the download"),
        bad("offset_past_end", one_tensor(&[1], F32, 64), "TensorPastEnd", past),
        bad("offset_wraps", one_tensor(&[16], F32, u64::MAX - 31), "TensorPastEnd", past),
        bad("length_past_end", one_tensor(&[1 << 40], F32, 0), "TensorPastEnd", past),
        bad(
            "overlap",
            two_tensors(("a", 0), ("b", 32)),
            "TensorsOverlap",
            "tensors \"a\" and \"b\" share bytes",
        ),
        bad(
            "overlap_backwards",
            two_tensors(("a", 32), ("b", 0)),
            "TensorsOverlap",
            "tensors \"b\" and \"a\" share",
        ),
        bad("same_bytes", two_tensors(("a", 0), ("b", 0)), "TensorsOverlap", "share bytes"),
        good("any_order", two_tensors(("a", 64), ("b", 0))),
        good("gap_between", two_tensors(("a", 0), ("b", 128))),
    ]
}

fn names() -> Vec<Case> {
    let long_name = "n".repeat(1025);
    vec![
        bad(
            "key_twice",
            Raw::new(0, 2).key_u32("a", 1).key_u32("a", 1),
            "DuplicateKey",
            "\"a\" appears twice",
        ),
        bad(
            "tensor_twice",
            two_tensors(("a", 0), ("a", 64)),
            "DuplicateTensor",
            "tensor \"a\" appears twice",
        ),
        bad("key_empty", Raw::new(0, 1).key_u32("", 1), "BadName", "a metadata key at offset 24 is empty"),
        bad("key_not_utf8", Raw::new(0, 1).string(b"a\xff").u32(UINT8).u8(0), "BadName", "is not UTF-8 text"),
        bad(
            "tensor_name_empty",
            Raw::new(1, 0).tensor("", &[16], F32, 0).data(32, 64),
            "BadName",
            "is empty",
        ),
        bad(
            "tensor_name_not_utf8",
            Raw::new(1, 0).string(b"\xff").u32(1).u64(16).u32(F32).u64(0).data(32, 64),
            "BadName",
            "a tensor name at offset 24 is not UTF-8 text",
        ),
        bad(
            "tensor_name_too_long",
            Raw::new(1, 0).tensor(&long_name, &[16], F32, 0).data(32, 64),
            "OverLimit",
            "a tensor name at offset 32 is 1025, the limit is 1024",
        ),
    ]
}

/// Small files that claim to be large: the claimed bytes are there, as a hole.
fn holes() -> Vec<Case> {
    // Behind the array there are only zeros: the length 0 of the next key.
    let long_array = Raw::new(0, 2).key("a", ARRAY).array(FLOAT64, 1 << 21);
    vec![
        sparse("hole_of_keys", Raw::new(0, 1 << 16), "BadName", "a metadata key at offset 24 is empty"),
        sparse("hole_of_tensors", Raw::new(1 << 18, 0), "BadName", "a tensor name at offset 24 is empty"),
        sparse("hole_in_array", long_array, "BadName", "a metadata key at offset 16777265 is empty"),
        sparse(
            "array_over_limit",
            one_key("a", ARRAY).array(UINT8, (1 << 21) + 1),
            "OverLimit",
            "the limit is 2097152",
        ),
        sparse(
            "array_over_header",
            one_key("a", ARRAY).array(UINT8, 1 << 31),
            "OverLimit",
            "the end of the header",
        ),
        sparse(
            "string_over_limit",
            one_key("a", STRING).u64((32 << 20) + 1),
            "OverLimit",
            "a metadata value at offset 45 is 33554433, the limit is 33554432",
        ),
        sparse(
            "key_over_limit",
            Raw::new(0, 1).u64(1 << 16),
            "OverLimit",
            "a metadata key at offset 32 is 65536",
        ),
        sparse(
            "strings_over_limit",
            Raw::new(0, 2)
                .key("a", ARRAY)
                .array(ARRAY, 1 << 16)
                .array(STRING, 0)
                .array(STRING, (1 << 21) + 1),
            "OverLimit",
            "the length of a metadata array at offset 73 is 2097153",
        ),
        sparse(
            "arrays_in_arrays_over_limit",
            one_key("a", ARRAY).array(ARRAY, (1 << 16) + 1),
            "OverLimit",
            "the number of arrays in arrays",
        ),
    ]
}
