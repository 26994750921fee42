//! A damaged or hostile file is refused with its own error: quickly, in bounded memory, and never with a
//! panic.
//!
//! What could go wrong: a length that wraps or is believed, a product of dimensions that wraps to a small
//! size, a zero used as a divisor, a file of a few bytes (or a hole of many GiB) that keeps the reader busy.

use std::fs::File;
use std::io::Write;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::support::cases::{self, Case, Expected};
use crate::support::tensor_type::F32;
use crate::support::value_type::{ARRAY, FLOAT64, STRING};
use crate::support::{Raw, variant_name};
use coldpress_formats::{FormatError, ModelFile, limits};

const LONGEST: Duration = Duration::from_millis(100);
/// For headers as long as the limits allow: about 90 ms on the machine of the author, with room for slower
/// ones.
const LONGEST_AT_THE_LIMITS: Duration = Duration::from_millis(500);
/// The machine may be busy with other things; the fastest of some tries counts.
const TRIES: usize = 5;

/// Time since some moment: processor time of this thread where the system tells it, so that other programs do
/// not count.
fn now() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    let start = START.get_or_init(Instant::now);
    let on_processor = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanoseconds = on_processor.and_then(|text| text.split(' ').next()?.parse().ok());
    nanoseconds.map_or_else(|| start.elapsed(), Duration::from_nanos)
}

fn timed<T>(mut run: impl FnMut() -> T) -> (T, Duration) {
    let mut best: Option<(T, Duration)> = None;
    for _ in 0..TRIES {
        let start = now();
        let result = run();
        let taken = now().saturating_sub(start);
        if best.as_ref().is_none_or(|(_, least)| taken < *least) {
            best = Some((result, taken));
        }
        if taken < LONGEST {
            break;
        }
    }
    best.expect("at least one try")
}

fn check(case: &Case, result: &Result<ModelFile, FormatError>, file_name: &str) {
    let name = case.name;
    match (&case.expected, result) {
        (Expected::Opens, Ok(_)) => {}
        (Expected::Opens, Err(error)) => panic!("{name} must open: {error}"),
        (Expected::Refused(..), Ok(_)) => panic!("{name} must be refused"),
        (Expected::Refused(variant, message), Err(error)) => {
            assert_eq!(&variant_name(error), variant, "{name}: {error}");
            let text = error.to_string();
            assert!(text.contains(message), "{name}: {message:?} is not in {text:?}");
            assert!(text.contains(file_name), "{name}: the file is not named in {text:?}");
        }
    }
}

#[test]
fn every_case_gets_its_own_error() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for case in cases::all() {
        let path = folder.path().join(format!("{}.gguf", case.name));
        let mut file = File::create(&path).expect("a new file");
        file.write_all(&case.bytes).expect("a written file");
        file.set_len(case.file_len).expect("a file with a hole");
        let (result, taken) = timed(|| ModelFile::open(&path));
        check(&case, &result, case.name);
        assert!(taken < LONGEST, "{} took {taken:?}", case.name);
    }
}

#[test]
fn case_names_are_unique() {
    let mut names: Vec<&str> = cases::all().iter().map(|case| case.name).collect();
    names.sort_unstable();
    let count = names.len();
    names.dedup();
    assert_eq!(names.len(), count);
}

/// The most work that the limits allow before the last byte of the header turns out wrong.
#[test]
fn the_longest_headers_do_not_keep_the_reader_busy() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("long.gguf");
    let worst = |name: &str, raw: Raw, variant: &str| {
        let mut file = File::create(&path).expect("a new file");
        file.write_all(&raw.bytes).expect("a written file");
        file.set_len(8 << 30).expect("a file with a hole");
        let (result, taken) = timed(|| ModelFile::open(&path));
        let error = result.expect_err(name);
        assert_eq!(variant_name(&error), variant, "{name}: {error}");
        assert!(taken < LONGEST_AT_THE_LIMITS, "{name} took {taken:?}");
    };
    let key = |raw: Raw, name: &str| raw.key(name, ARRAY);
    let strings = key(Raw::new(0, 9), "a").array(STRING, limits::MAX_ARRAY_ELEMENTS);
    worst("the longest array of strings", strings, "BadName");
    let filled = key(Raw::new(0, 9), "a").array(STRING, limits::MAX_ARRAY_STRINGS);
    let filled = filled.data(1, 8 * limits::MAX_ARRAY_STRINGS as usize);
    worst("the most strings", key(filled, "b").array(STRING, 1).u64(0), "OverLimit");
    let numbers = key(Raw::new(0, 9), "a").array(FLOAT64, limits::MAX_ARRAY_ELEMENTS);
    worst("the longest array of numbers", numbers, "BadName");
    let text = Raw::new(0, 9).key("a", STRING).u64(limits::MAX_STRING_BYTES);
    worst("the longest string", text.clone(), "BadName");
    let text = text.data(1, limits::MAX_STRING_BYTES as usize).key("b", STRING).u64(limits::MAX_STRING_BYTES);
    worst("the longest header", text, "OverLimit");

    let count = limits::MAX_TENSORS;
    let directory = (0..count).fold(Raw::new(count, 0), |raw, index| {
        let distinct = if index + 1 == count { 0 } else { index };
        raw.tensor(&format!("blk.{distinct}.weight"), &[8], F32, index * 32)
    });
    worst("the most tensors, two with one name", directory, "DuplicateTensor");
}

#[cfg(unix)]
#[test]
fn a_path_that_is_no_file_is_refused_at_once() {
    let refused = |path: &str, variant: &str| {
        let error = ModelFile::open(path).expect_err("not a model");
        assert_eq!(variant_name(&error), variant, "{error}");
        assert!(error.to_string().contains(path), "{error}");
    };
    refused("/dev/zero", "NotAFile");
    refused("/nowhere/at/all.gguf", "Io");
}
