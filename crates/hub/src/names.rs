//! Names that come from outside: repositories and revisions that a user types, files that a hub lists, hashes that become file names.
//!
//! Whatever passes here can be joined to a folder of the cache and stays below it. Everything else is refused, on every
//! platform alike, because the cache may lie on a disk that others mount.

use std::fmt;
use std::str::FromStr;

use crate::HubError;

/// Longest name of a repository, as at the hub.
const REPO_LETTERS_MAX: usize = 96;
/// Longest revision.
const REVISION_BYTES_MAX: usize = 250;
/// Longest path of a file in a repository; what file systems take.
const PATH_BYTES_MAX: usize = 1024;
/// Longest part of a path between two slashes.
const COMPONENT_BYTES_MAX: usize = 255;
/// Letters of a commit: SHA-1 in hexadecimal.
const COMMIT_LETTERS: usize = 40;

/// A repository, and which of its models: `ORGANISATION/NAME[:QUANT]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelName {
    /// `ORGANISATION/NAME`, or an old `NAME` alone.
    pub repo: String,
    /// What is to be pulled where the repository holds several models.
    pub quant: Option<String>,
}

impl FromStr for ModelName {
    type Err = HubError;

    fn from_str(text: &str) -> Result<Self, HubError> {
        let (repo, quant) = match text.split_once(':') {
            Some((repo, quant)) => (repo, Some(quant.to_owned())),
            None => (text, None),
        };
        let refuse = |problem: &str| {
            let problem = format!("{problem}; it is ORGANISATION/NAME or ORGANISATION/NAME:QUANT");
            Err(HubError::BadName { what: "the repository", given: text.to_owned(), problem })
        };
        let component = |part: &str| {
            let letters = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
            !part.is_empty()
                && part.chars().all(letters)
                && !part.starts_with(['-', '.'])
                && !part.ends_with(['-', '.'])
        };
        if repo.len() > REPO_LETTERS_MAX {
            return refuse("is longer than the 96 letters that the hub allows");
        }
        if repo.split('/').count() > 2 || !repo.split('/').all(component) {
            return refuse("is no name at the hub");
        }
        if repo.contains("--") || repo.contains("..") || repo.ends_with(".git") {
            return refuse("has a part that the hub does not allow (--, .. or .git at the end)");
        }
        if quant.as_deref().is_some_and(|quant| quant.is_empty() || path_problem(quant).is_some()) {
            return refuse("names no quant after the colon");
        }
        Ok(Self { repo: repo.to_owned(), quant })
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.quant {
            Some(quant) => write!(formatter, "{}:{quant}", self.repo),
            None => formatter.write_str(&self.repo),
        }
    }
}

/// A branch, tag or commit that a user names.
///
/// # Errors
/// It could not lie below the folder `refs` of the cache.
pub(crate) fn check_revision(revision: &str) -> Result<(), HubError> {
    let problem = match path_problem(revision) {
        None if revision.len() <= REVISION_BYTES_MAX => return Ok(()),
        None => "is too long",
        Some(problem) => problem,
    };
    Err(HubError::BadName { what: "the revision", given: revision.to_owned(), problem: problem.to_owned() })
}

/// Whether this is a commit as a whole.
pub(crate) fn is_commit(text: &str) -> bool {
    is_hexadecimal(text, COMMIT_LETTERS)
}

/// Whether this is a hash with this many lower-case hexadecimal digits.
pub(crate) fn is_hexadecimal(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// What keeps a name from being a path of a file inside a folder.
pub(crate) fn path_problem(name: &str) -> Option<&'static str> {
    let drive =
        |name: &str| name.as_bytes().get(1) == Some(&b':') && name.as_bytes()[0].is_ascii_alphabetic();
    // Letters that reorder what a terminal shows.
    let turns = |letter: char| matches!(letter, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    match name {
        "" => Some("is empty"),
        _ if name.chars().any(char::is_control) => Some("has control characters"),
        _ if name.chars().any(turns) => Some("has letters that change the direction of text"),
        _ if name.contains('\\') => Some("has a backslash"),
        _ if name.starts_with('/') || drive(name) => Some("is an absolute path"),
        _ if name.split('/').any(|part| part == "..") => Some("leaves its folder"),
        _ if name.split('/').any(|part| part.is_empty() || part == ".") => Some("has an empty part"),
        _ if name.len() > PATH_BYTES_MAX || name.split('/').any(|part| part.len() > COMPONENT_BYTES_MAX) => {
            Some("is longer than file systems allow")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_a_repository_with_or_without_a_quant() {
        let name: ModelName = "unsloth/Qwen3-30B-A3B-GGUF:Q4_K_M".parse().expect("a name");
        assert_eq!(
            (name.repo.as_str(), name.quant.as_deref()),
            ("unsloth/Qwen3-30B-A3B-GGUF", Some("Q4_K_M"))
        );
        assert_eq!("gpt2".parse::<ModelName>().expect("an old name").quant, None);
        for wrong in [
            "",
            "a/b/c",
            "/a",
            "a/",
            "../a",
            "a/..",
            "a--b/c",
            "a/b.git",
            ".a/b",
            "a/b-",
            "a b/c",
            "a/b:",
            "a\\b",
            "a/b:../x",
            "a\0b",
            &format!("a/{}", "b".repeat(96)),
        ] {
            assert!(wrong.parse::<ModelName>().is_err_and(|error| error.is_usage()), "{wrong:?}");
        }
    }

    #[test]
    fn names_that_leave_their_folder_are_refused() {
        for wrong in [
            "../a",
            "a/../b",
            "/a",
            "a//b",
            "./a",
            "a/.",
            "..",
            "a\\b",
            "C:a",
            "a\0b",
            "a\nb",
            "a\u{1b}[2Jb",
            "a\u{85}",
            "a\u{202e}b",
            "",
            "a/",
            &"a".repeat(256),
            &"abc/".repeat(300),
        ] {
            assert!(path_problem(wrong).is_some(), "{wrong:?}");
        }
        for right in [
            "config.json",
            "Q4_K_M/model-00001-of-00002.gguf",
            "a..b",
            "ümlaut",
            "with space",
            ".gitattributes",
        ] {
            assert_eq!(path_problem(right), None, "{right}");
        }
    }

    #[test]
    fn a_commit_is_forty_small_digits() {
        assert!(is_commit(&"0a".repeat(20)));
        for wrong in ["", "main", &"0A".repeat(20), &"0a".repeat(21), &"../".repeat(14)] {
            assert!(!is_commit(wrong), "{wrong}");
        }
    }
}
