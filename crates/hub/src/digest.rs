//! The hash by which a hub names a file, which is also the name of its blob in the cache.
//!
//! Large files have the SHA-256 of their bytes; small ones, which lie in git itself, the SHA-1 of a header with their length and of their
//! bytes, as `git hash-object` computes it.

use std::fmt::Write;

use sha1::Sha1;
use sha2::{Digest as _, Sha256};

use crate::names::is_hexadecimal;

const SHA256_DIGITS: usize = 64;
const SHA1_DIGITS: usize = 40;

/// A hash that the hub announces.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Digest {
    /// Of a large file.
    Sha256(String),
    /// Of a file in git.
    Git(String),
}

impl Digest {
    /// The hash that an etag is, if it is one; servers in between have etags of their own.
    pub(crate) fn of_etag(etag: &str) -> Option<Self> {
        if is_hexadecimal(etag, SHA256_DIGITS) {
            Some(Self::Sha256(etag.to_owned()))
        } else if is_hexadecimal(etag, SHA1_DIGITS) {
            Some(Self::Git(etag.to_owned()))
        } else {
            None
        }
    }

    /// The digits, which are also the name of the blob.
    pub(crate) fn digits(&self) -> &str {
        match self {
            Self::Sha256(digits) | Self::Git(digits) => digits,
        }
    }

    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Sha256(_) => "SHA-256",
            Self::Git(_) => "git SHA-1",
        }
    }

    /// Starts to compute a hash of this kind over `bytes` bytes.
    pub(crate) fn hasher(&self, bytes: u64) -> Hasher {
        match self {
            Self::Sha256(_) => Hasher::Sha256(Sha256::new()),
            Self::Git(_) => Hasher::Git(Sha1::new().chain_update(format!("blob {bytes}\0"))),
        }
    }
}

/// A hash on its way.
pub(crate) enum Hasher {
    Sha256(Sha256),
    Git(Sha1),
}

impl Hasher {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hasher) => hasher.update(bytes),
            Self::Git(hasher) => hasher.update(bytes),
        }
    }

    /// The digits of the hash.
    pub(crate) fn finish(self) -> String {
        match self {
            Self::Sha256(hasher) => hexadecimal(&hasher.finalize()),
            Self::Git(hasher) => hexadecimal(&hasher.finalize()),
        }
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a String takes text");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `printf hello | sha256sum` and `printf hello | git hash-object --stdin`.
    #[test]
    fn hashes_are_those_of_sha256sum_and_git() {
        let sha256 = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
        let git = "b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0";
        for digits in [sha256, git] {
            let digest = Digest::of_etag(digits).expect("a hash");
            let mut hasher = digest.hasher(5);
            hasher.update(b"he");
            hasher.update(b"llo");
            assert_eq!(hasher.finish(), digits);
        }
    }

    #[test]
    fn an_etag_of_somebody_else_is_no_hash() {
        for other in [
            "",
            "5d41402abc4b2a76b9719d911017c592",
            "../../x",
            "5d41402abc4b2a76b9719d911017c592-3",
            &"G".repeat(64),
        ] {
            assert_eq!(Digest::of_etag(other), None, "{other}");
        }
    }
}
