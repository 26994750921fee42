//! Which files make up a model: one file, all parts of a split set, or the only model in a folder.
//!
//! Parts are named `NAME-00001-of-00003.gguf`, counted from 1. Inside, `split.no` counts from 0,
//! `split.count` is the number of parts and `split.tensors.count` the number of tensors in all parts
//! together. Only part 1 describes the model; keys of later parts are ignored, unless they contradict part 1.
//! Refused: a missing part, and a part that contradicts its name or the others. Nothing is guessed and no
//! part is skipped.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::FormatError;
use crate::gguf::{ALIGNMENT_KEY, GgufHeader, round_up};
use crate::limits;
use crate::metadata::Metadata;
use crate::ranges::Ranges;

const NUMBER_KEY: &str = "split.no";
const COUNT_KEY: &str = "split.count";
const TENSOR_COUNT_KEY: &str = "split.tensors.count";
const EXTENSION: &str = ".gguf";
const DIGITS: usize = 5;
/// Missing parts whose names are shown.
const NAMES_SHOWN: usize = 4;

/// The name of one part, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PartName {
    stem: String,
    /// Counted from 1, at most `count`.
    number: u64,
    count: u64,
}

impl PartName {
    /// `None` for a name that is not of the form `NAME-00001-of-00003.gguf`, or whose numbers make no sense.
    pub(crate) fn parse(file_name: &OsStr) -> Option<PartName> {
        let name = file_name.to_str()?.strip_suffix(EXTENSION)?;
        let (rest, count) = strip_number(name)?;
        let (stem, number) = strip_number(rest.strip_suffix("-of")?)?;
        let sensible = !stem.is_empty() && (1..=count).contains(&number);
        sensible.then(|| PartName { stem: stem.to_owned(), number, count })
    }

    fn file_name(&self, number: u64) -> String {
        format!("{}{}", self.stem, suffix(number, self.count))
    }

    /// A name for the whole set in messages: `NAME-*-of-00003.gguf`.
    fn pattern(&self) -> String {
        format!("{}-*-of-{:0DIGITS$}{EXTENSION}", self.stem, self.count)
    }
}

fn suffix(number: u64, count: u64) -> String {
    format!("-{number:0DIGITS$}-of-{count:0DIGITS$}{EXTENSION}")
}

/// Splits `text-00012` into `text` and 12.
fn strip_number(text: &str) -> Option<(&str, u64)> {
    let (rest, digits) = text.rsplit_once('-')?;
    let is_number = digits.len() == DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().ok()).flatten().map(|number| (rest, number))
}

/// All files of the model at `path`, part 1 first. A folder must hold exactly one model.
pub(crate) fn files_of(path: &Path) -> Result<Vec<PathBuf>, FormatError> {
    let kind = fs::metadata(path).map_err(|source| io_error(path, "open", source))?;
    let chosen = if kind.is_dir() { only_model_in(path)? } else { path.to_owned() };
    match chosen.file_name().and_then(PartName::parse) {
        Some(name) if name.count > 1 => parts_of(&chosen, &name),
        _ => Ok(vec![chosen]),
    }
}

pub(crate) fn io_error(path: &Path, action: &'static str, source: std::io::Error) -> FormatError {
    FormatError::Io { path: path.to_owned(), action, source }
}

/// The paths of all parts, each of which exists.
fn parts_of(any_part: &Path, name: &PartName) -> Result<Vec<PathBuf>, FormatError> {
    if name.count > limits::MAX_PARTS {
        let problem = format!("its name states {} parts; at most {} are read", name.count, limits::MAX_PARTS);
        return Err(FormatError::BadPart { path: any_part.to_owned(), problem });
    }
    let mut paths = Vec::new();
    let mut missing = Vec::new();
    for number in 1..=name.count {
        let path = any_part.with_file_name(name.file_name(number));
        if path.try_exists().map_err(|source| io_error(&path, "open", source))? {
            paths.push(path);
        } else {
            missing.push(number);
        }
    }
    if missing.is_empty() {
        return Ok(paths);
    }
    let noun = if missing.len() == 1 { "part" } else { "parts" };
    let shown: Vec<String> = missing.iter().take(NAMES_SHOWN).map(|&number| name.file_name(number)).collect();
    let more = missing.len() - shown.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    Err(FormatError::MissingParts {
        pattern: any_part.with_file_name(name.pattern()),
        missing: format!("{noun} {}", Ranges::of(missing.iter().copied())),
        count: name.count,
        numbers: missing,
        names: shown.join(", ") + &more,
    })
}

/// The only model in a folder: a file, or any part of a set. Hidden files are passed over.
fn only_model_in(folder: &Path) -> Result<PathBuf, FormatError> {
    let mut files = BTreeSet::new();
    let entries = fs::read_dir(folder).map_err(|source| io_error(folder, "list", source))?;
    for (seen, entry) in entries.enumerate() {
        let entry = entry.map_err(|source| io_error(folder, "list", source))?;
        if seen >= limits::MAX_FOLDER_ENTRIES {
            let problem = std::io::Error::other("it has too many entries; name the model file itself");
            return Err(io_error(folder, "list", problem));
        }
        let name = entry.file_name();
        let bytes = name.as_encoded_bytes();
        if bytes.ends_with(EXTENSION.as_bytes()) && !bytes.starts_with(b".") {
            files.insert(name);
        }
    }
    // One line per model: a set counts once, whichever of its parts are there.
    let models: BTreeSet<String> = files
        .iter()
        .map(|name| match PartName::parse(name) {
            Some(part) => part.pattern(),
            None => name.to_string_lossy().into_owned(),
        })
        .collect();
    match (models.len(), files.first()) {
        (1, Some(name)) => Ok(folder.join(name)),
        (0, _) | (_, None) => Err(FormatError::EmptyFolder { path: folder.to_owned() }),
        _ => {
            Err(FormatError::SeveralModels { path: folder.to_owned(), models: models.into_iter().collect() })
        }
    }
}

/// Checks that the headers, in the order of the parts, are one set (or one whole file).
pub(crate) fn check_set(paths: &[PathBuf], headers: &[GgufHeader]) -> Result<(), FormatError> {
    if let [header] = headers {
        return check_single(&paths[0], header);
    }
    let tensor_total: u64 = headers.iter().map(|header| header.tensors.len() as u64).sum();
    let count = headers.len() as u64;
    for (index, (path, header)) in paths.iter().zip(headers).enumerate() {
        let number = index as u64 + 1;
        let name = format!("its name says part {number} of {count}");
        check_number(path, &header.metadata, COUNT_KEY, count, &name)?;
        check_number(path, &header.metadata, NUMBER_KEY, number - 1, &name)?;
        let sum = format!("the {count} parts hold {tensor_total} tensors");
        check_number(path, &header.metadata, TENSOR_COUNT_KEY, tensor_total, &sum)?;
        check_against_first(path, header, &headers[0])?;
    }
    Ok(())
}

/// A file that stands alone must not be a part of a larger set.
fn check_single(path: &Path, header: &GgufHeader) -> Result<(), FormatError> {
    let count = header.metadata.opt_u64(COUNT_KEY)?.unwrap_or(1);
    let index = header.metadata.opt_u64(NUMBER_KEY)?.unwrap_or(0);
    if count > 1 {
        let number = index.saturating_add(1);
        return Err(FormatError::PartNotNamed {
            path: path.to_owned(),
            number,
            count,
            expected: suffix(number, count),
        });
    }
    if index > 0 {
        let problem = format!("{NUMBER_KEY} is {index} although the file is the only part");
        return Err(FormatError::BadPart { path: path.to_owned(), problem });
    }
    Ok(())
}

fn check_number(
    path: &Path,
    metadata: &Metadata,
    key: &str,
    expected: u64,
    reason: &str,
) -> Result<(), FormatError> {
    let problem = match metadata.opt_u64(key)? {
        Some(found) if found == expected => return Ok(()),
        Some(found) => format!("{key} is {found}, but {reason}"),
        None => format!("it has no key {key}, but {reason}"),
    };
    Err(FormatError::BadPart { path: path.to_owned(), problem })
}

fn check_against_first(path: &Path, header: &GgufHeader, first: &GgufHeader) -> Result<(), FormatError> {
    let bad = |problem: String| Err(FormatError::BadPart { path: path.to_owned(), problem });
    if header.byte_order != first.byte_order {
        return bad("its byte order differs from that of part 1".to_owned());
    }
    // Writers disagree whether the alignment of part 1 holds for parts that state none. The format says no,
    // which is followed where both readings give the same bytes.
    let other_start = round_up(header.header_len, first.alignment);
    if !header.alignment_is_stated && !header.tensors.is_empty() && other_start != header.data_start {
        return bad(format!(
            "it states no {ALIGNMENT_KEY}, part 1 states {}, and the two give different places for the tensors",
            first.alignment
        ));
    }
    for (key, value) in header.metadata.iter() {
        let differs = first.metadata.get(key).is_some_and(|in_first| in_first != value);
        if differs && key != NUMBER_KEY && key != ALIGNMENT_KEY {
            let detail = ", with another value in part 1";
            return Err(FormatError::DuplicateKey { path: path.to_owned(), key: key.to_owned(), detail });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_names_are_recognised_only_in_full() {
        let parse = |name: &str| PartName::parse(OsStr::new(name));
        let name = parse("a-b-00002-of-00010.gguf").expect("a part name");
        assert_eq!((name.stem.as_str(), name.number, name.count), ("a-b", 2, 10));
        assert_eq!(name.file_name(10), "a-b-00010-of-00010.gguf");
        for other in [
            "a.gguf",
            "a-00002-of-00010.bin",
            "a-2-of-10.gguf",
            "a-00000-of-00003.gguf",
            "a-00004-of-00003.gguf",
            "-00001-of-00003.gguf",
            "a-+0001-of-00003.gguf",
            "a-00001-of-00000.gguf",
        ] {
            assert_eq!(parse(other), None, "{other}");
        }
    }
}
