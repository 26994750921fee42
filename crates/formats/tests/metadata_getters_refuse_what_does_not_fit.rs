//! A getter gives the value, or says which file and key hold what instead of what was wanted. It never
//! guesses.
//!
//! What could go wrong: a negative count that becomes a huge one, a default in place of a wrong type, a token
//! list that loses raw bytes.

use std::path::Path;

use crate::support::variant_name;
use coldpress_formats::{Array, FormatError, Metadata, Value};

fn metadata() -> Metadata {
    let raw_tokens: [&[u8]; 3] = [b"ok", b"\xc3", b""];
    let entries: Vec<(&str, Value)> = vec![
        ("u8", Value::Uint8(7)),
        ("i64", Value::Int64(7)),
        ("minus", Value::Int32(-1)),
        ("large", Value::Uint64(1 << 40)),
        ("f32", Value::Float32(1.5)),
        ("f64", Value::Float64(0.1)),
        ("yes", Value::Bool(true)),
        ("text", Value::from("Grüße")),
        ("raw", Value::String(coldpress_formats::ByteString(b"ab\xff".to_vec()))),
        ("tokens", Value::Array(Array::String(raw_tokens.into_iter().collect()))),
        ("words", Value::from(["a".to_owned(), "b".to_owned()].as_slice())),
        ("i16s", Value::from(vec![1_i16, -2])),
        ("u64s", Value::from(vec![1_u64, 1 << 33])),
        ("f32s", Value::from(vec![0.5_f32, 2.0])),
        ("f64s", Value::from(vec![0.5_f64])),
        ("bools", Value::from(vec![true, false])),
    ];
    let entries = entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    Metadata::new(Path::new("model.gguf"), entries).expect("distinct keys")
}

fn refused<T: std::fmt::Debug>(result: Result<T, FormatError>, variant: &str, message: &str) {
    let error = result.expect_err(message);
    assert_eq!(variant_name(&error), variant, "{error}");
    let text = error.to_string();
    assert!(text.starts_with("model.gguf: metadata key"), "{text}");
    assert!(text.contains(message), "{message:?} is not in {text:?}");
}

#[test]
fn integers_come_from_any_integer_type_that_holds_them() {
    let metadata = metadata();
    assert_eq!(metadata.u32("u8").expect("fits"), 7);
    assert_eq!(metadata.u32("i64").expect("fits"), 7);
    assert_eq!(metadata.i32("minus").expect("fits"), -1);
    assert_eq!(metadata.u64("large").expect("fits"), 1 << 40);
    assert_eq!(metadata.i64("large").expect("fits"), 1 << 40);
    refused(
        metadata.u32("minus"),
        "ValueOutOfRange",
        "\"minus\" is int32 -1, which does not fit an integer from 0",
    );
    refused(metadata.u64("minus"), "ValueOutOfRange", "int32 -1");
    refused(metadata.u32("large"), "ValueOutOfRange", "uint64 1099511627776");
    refused(metadata.u32("f32"), "WrongValueType", "\"f32\" is float32 1.5, expected an integer");
    refused(metadata.u32("yes"), "WrongValueType", "bool true");
    refused(metadata.u32("text"), "WrongValueType", "string \"Grüße\"");
    refused(metadata.u32("i16s"), "WrongValueType", "array of 2 int16");
}

#[test]
fn absent_keys_are_errors_or_none() {
    let metadata = metadata();
    refused(metadata.u32("gone"), "MissingKey", "\"gone\" is missing");
    assert_eq!(metadata.opt_u32("gone").expect("absent"), None);
    assert_eq!(metadata.opt_string("gone").expect("absent"), None);
    assert_eq!(metadata.opt_string_array("gone").expect("absent"), None);
    assert_eq!(metadata.opt_u32_per_layer("gone", 3).expect("absent"), None);
    refused(metadata.opt_u32("text"), "WrongValueType", "expected an integer");
    assert!(metadata.get("").is_none());
}

#[test]
fn floats_and_bools_are_not_integers() {
    let metadata = metadata();
    assert_eq!(metadata.f32("f32").expect("a float"), 1.5);
    assert_eq!(metadata.f32("f64").expect("a float"), 0.1_f32);
    refused(metadata.f32("u8"), "WrongValueType", "uint8 7, expected a float");
    assert!(metadata.bool("yes").expect("a bool"));
    refused(metadata.bool("u8"), "WrongValueType", "expected a bool");
}

#[test]
fn text_is_utf8_and_bytes_are_always_there() {
    let metadata = metadata();
    assert_eq!(metadata.string("text").expect("text"), "Grüße");
    refused(metadata.string("raw"), "NotUtf8", "\"raw\" is not UTF-8 text (first bad byte at 2)");
    assert_eq!(metadata.byte_string("raw").expect("bytes"), b"ab\xff");
    refused(metadata.string("u8"), "WrongValueType", "expected a string");
    assert_eq!(metadata.string_array("words").expect("text"), ["a", "b"]);
    refused(metadata.string_array("tokens"), "NotUtf8", "\"tokens\", element 1, is not UTF-8");
    assert_eq!(metadata.string_array_lossy("tokens").expect("lossy"), ["ok", "\u{fffd}", ""]);
    let bytes: Vec<&[u8]> = metadata.byte_string_array("tokens").expect("bytes").iter().collect();
    assert_eq!(bytes, [b"ok".as_slice(), b"\xc3", b""]);
    refused(metadata.string_array("text"), "WrongValueType", "expected an array of string");
}

#[test]
fn arrays_check_every_element() {
    let metadata = metadata();
    assert_eq!(metadata.i32_array("i16s").expect("fits"), [1, -2]);
    refused(metadata.u32_array("i16s"), "ValueOutOfRange", "-2 in element 1");
    refused(metadata.u32_array("u64s"), "ValueOutOfRange", "8589934592 in element 1");
    assert_eq!(metadata.f32_array("f32s").expect("floats"), [0.5, 2.0]);
    assert_eq!(metadata.f32_array("f64s").expect("floats"), [0.5]);
    refused(metadata.f32_array("i16s"), "WrongValueType", "array of 2 int16, expected an array of floats");
    assert_eq!(metadata.bool_array("bools").expect("bools"), [true, false]);
    refused(metadata.i32_array("u8"), "WrongValueType", "uint8 7");
}

#[test]
fn one_value_or_one_per_layer() {
    let metadata = metadata();
    assert_eq!(metadata.u32_per_layer("u8", 3).expect("one for all"), [7, 7, 7]);
    assert_eq!(metadata.f32_per_layer("f32s", 2).expect("one each"), [0.5, 2.0]);
    assert_eq!(metadata.bool_per_layer("bools", 2).expect("one each"), [true, false]);
    refused(
        metadata.bool_per_layer("bools", 3),
        "ValueOutOfRange",
        "an array of 2 elements, which does not fit the number",
    );
    refused(metadata.u32_per_layer("text", 3), "WrongValueType", "expected an integer");
}
