//! The one error type of this crate.
//!
//! Each variant is one thing that a user can do something about. The message says which repository and file, the numbers, and the
//! way out. Text of the hub is shown through [`printable`], so that it can do nothing to a terminal.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use coldpress_memory::{Bytes, apart};

/// Letters of a foreign text in a message.
const SHOWN_LETTERS: usize = 200;

/// Why a model could not be pulled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "variants are documented, and their fields are the figures of their messages")]
pub enum HubError {
    /// What the user typed, or set, names nothing that can be asked for.
    #[error("{what} {given:?} {problem}")]
    BadName { what: &'static str, given: String, problem: String },

    /// The repository is not there for this user.
    #[error("{repo}: the hub at {endpoint} answers {status}: {way_out}")]
    Refused { repo: String, endpoint: String, status: u16, way_out: String },

    /// A request failed as often as it may.
    #[error(
        "{url}: {problem}; tried {tries} times{kept}",
        kept = if *part_kept { "; what has arrived is kept, run the command again to go on" } else { "" }
    )]
    Unreachable { url: String, problem: String, tries: u32, part_kept: bool },

    /// Nobody whom this program trusts vouches for the server.
    #[error(
        "{url}: {problem}; where a proxy of your network answers instead, set SSL_CERT_FILE to a file with its certificates"
    )]
    Untrusted { url: String, problem: String },

    /// The hub asks to wait longer than anybody does.
    #[error(
        "{url}: the hub asks to wait {wait} s before the next request, at most {longest} s are waited; what has arrived \
         is kept, run the command again then",
        wait = wait.as_secs(),
        longest = longest.as_secs()
    )]
    AskedToWait { url: String, wait: Duration, longest: Duration },

    /// A redirect that is not followed.
    #[error("{url} redirects to {target}: {problem}")]
    BadRedirect { url: String, target: String, problem: &'static str },

    /// An answer that does not mean anything.
    #[error("{url}: {problem}; is HF_ENDPOINT a Hugging Face-compatible hub?")]
    BadAnswer { url: String, problem: String },

    /// The hub lists a file whose name is no path inside a folder.
    #[error(
        "{repo} lists a file named {name:?}, which {problem}; nothing of it is downloaded: ask its owner to rename it"
    )]
    HostileName { repo: String, name: String, problem: &'static str },

    /// The repository has nothing that is a model.
    #[error("{repo} holds no model that can be pulled: {problem}; it has {list}")]
    NoModel { repo: String, problem: String, list: String },

    /// The repository holds several models, and none was chosen.
    #[error("{repo} holds {count} models; choose one as {repo}:QUANT\n{list}")]
    SeveralModels { repo: String, count: usize, list: String },

    /// No model of the repository, or several, answer to this name.
    #[error("{repo} holds {number} called {quant:?}; it has\n{list}")]
    NoSuchQuant { repo: String, quant: String, number: &'static str, list: String },

    /// Parts of a set are not in the repository, or in the cache when nothing may be fetched.
    #[error("{repo}: {missing} of {set} {verb} missing {place}", verb = if *one { "is" } else { "are" })]
    MissingParts { repo: String, set: String, missing: String, one: bool, place: String },

    /// The disk has no room for what is to be fetched.
    #[error(
        "{path}: {needed} are to be fetched and {free} are free; free {lacking}, or choose another disk with --cache-dir",
        path = path.display(),
        needed = apart([*needed, *free])[0],
        free = apart([*needed, *free])[1],
        lacking = needed.saturating_sub(*free)
    )]
    NoSpace { path: PathBuf, needed: Bytes, free: Bytes },

    /// The server gives more or fewer bytes than the hub announced.
    #[error(
        "{repo}: {file} is to have {expected} bytes, the server gives {found}; the part is removed: run the command again, \
         later if this comes back"
    )]
    WrongLength { repo: String, file: String, expected: u64, found: u64 },

    /// What arrived is not what the hub announced.
    #[error(
        "{repo}: {file} has the {kind} {found}, the hub announced {expected}; the {bytes} that arrived are removed: run the command \
         again, and if this comes back the file at the hub is damaged"
    )]
    WrongChecksum {
        repo: String,
        file: String,
        kind: &'static str,
        expected: String,
        found: String,
        bytes: Bytes,
    },

    /// The file at the hub changes faster than it can be downloaded.
    #[error(
        "{repo}: {file} changed {times} times while it was downloaded; run the command again when the hub is at rest"
    )]
    KeepsChanging { repo: String, file: String, times: u32 },

    /// Nothing may be fetched, and the cache does not have it.
    #[error("{repo} at {revision} is not in {cache}{detail}, and HF_HUB_OFFLINE forbids to fetch it: unset it", cache = cache.display())]
    NotInCache { repo: String, revision: String, cache: PathBuf, detail: String },

    /// The operating system refused an operation.
    #[error("cannot {action} {path}: {source}", path = path.display())]
    Io { path: PathBuf, action: &'static str, source: io::Error },

    /// The observer asked to stop.
    #[error("stopped; what has arrived is kept, run the command again to go on")]
    Stopped,
}

impl HubError {
    /// Whether the user must type or set something else.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::BadName { .. } | Self::SeveralModels { .. } | Self::NoSuchQuant { .. })
    }

    pub(crate) fn io(path: &Path, action: &'static str, source: io::Error) -> Self {
        Self::Io { path: path.to_owned(), action, source }
    }
}

/// A foreign text that is safe and short enough to show.
pub(crate) fn printable(text: &str) -> String {
    let letters = text.chars().map(|letter| if letter.is_control() { ' ' } else { letter });
    let mut shown: String = letters.take(SHOWN_LETTERS).collect();
    if text.chars().nth(SHOWN_LETTERS).is_some() {
        shown.push('…');
    }
    shown
}
