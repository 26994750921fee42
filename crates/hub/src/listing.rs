//! What a repository holds: its commit, and its files with sizes and hashes.
//!
//! Two questions of the hub's API, the same that `huggingface_hub` asks: `/api/models/REPO/revision/REVISION` for the commit, then
//! `/api/models/REPO/tree/COMMIT?recursive=true`, page by page, so that all answers are about one commit. Every answer is bounded, and every name
//! is checked before anybody sees it.

use std::collections::HashSet;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::address::{self, part};
use crate::client::Client;
use crate::digest::Digest;
use crate::error::{HubError, printable};
use crate::names::{is_commit, path_problem};
use crate::retry::{Attempts, Failure};
use crate::{Observer, Settings, refusal};

/// Longest answer about a repository: a list of its files comes with it.
const INFO_BYTES_MAX: u64 = 16 << 20;
/// Longest page of a listing.
const PAGE_BYTES_MAX: u64 = 16 << 20;
/// Most files of a repository.
const FILES_MAX: usize = 100_000;
/// Most pages of a listing.
const PAGES_MAX: usize = 1_000;
/// No file is larger; a sum of sizes stays far below 64 bits.
pub(crate) const FILE_BYTES_MAX: u64 = 1 << 44;

/// A file of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RemoteFile {
    /// Path below the repository, checked.
    pub(crate) path: String,
    pub(crate) size: u64,
    pub(crate) digest: Digest,
}

/// A repository at one commit.
#[derive(Debug)]
pub(crate) struct Listing {
    pub(crate) commit: String,
    pub(crate) files: Vec<RemoteFile>,
}

#[derive(Deserialize)]
struct Info {
    sha: Option<String>,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    size: u64,
    #[serde(default)]
    oid: String,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    oid: String,
    size: u64,
}

/// Lists a repository.
///
/// # Errors
/// The hub refuses or does not answer, or its answers do not add up.
pub(crate) fn list(
    client: &Client,
    settings: &Settings,
    repo: &str,
    revision: &str,
    observer: &mut dyn Observer,
) -> Result<Listing, HubError> {
    let mut ask = Questions { client, settings, repo, revision, observer };
    let url = client.endpoint.url(&["api/models", repo, "revision", &part(revision)]);
    let (info, _): (Info, _) = ask.json(&url, INFO_BYTES_MAX)?;
    let commit = info.sha.filter(|sha| is_commit(sha));
    let commit = commit.ok_or_else(|| bad(&url, "the answer names no commit".to_owned()))?;
    if is_commit(revision) && commit != revision {
        return Err(bad(&url, format!("the answer is about the commit {commit}")));
    }
    let mut next = Some(client.endpoint.url(&["api/models", repo, "tree", &commit]) + "?recursive=true");
    let (mut files, mut names) = (Vec::new(), HashSet::new());
    for page in 0.. {
        let Some(url) = next else { break };
        if page == PAGES_MAX {
            return Err(bad(&url, format!("the list of files has more than {PAGES_MAX} pages")));
        }
        let (entries, further): (Vec<Entry>, _) = ask.json(&url, PAGE_BYTES_MAX)?;
        for entry in entries.into_iter().filter(|entry| entry.kind == "file") {
            let file = entry.checked(repo, &url)?;
            if !names.insert(file.path.clone()) {
                return Err(bad(&url, format!("{} is listed twice", printable(&file.path))));
            }
            files.push(file);
        }
        if files.len() > FILES_MAX {
            return Err(bad(&url, format!("the repository has more than {FILES_MAX} files")));
        }
        // Somebody else's page could list anything under the repository's name.
        let ours = |next: &String| address::origin(next).is_ok_and(|origin| origin == client.endpoint.origin);
        if let Some(next) = further.as_ref().filter(|next| !ours(next)) {
            return Err(bad(&url, format!("the next page is at another host: {}", printable(next))));
        }
        next = further;
    }
    Ok(Listing { commit, files })
}

fn bad(url: &str, problem: String) -> HubError {
    HubError::BadAnswer { url: url.to_owned(), problem }
}

impl Entry {
    /// The entry as a file, if that is what it can be.
    fn checked(self, repo: &str, url: &str) -> Result<RemoteFile, HubError> {
        if let Some(problem) = path_problem(&self.path) {
            return Err(HubError::HostileName {
                repo: repo.to_owned(),
                name: printable(&self.path),
                problem,
            });
        }
        let (size, digest) = match self.lfs {
            // The hub writes the hash bare, git-lfs writes its kind before it.
            Some(lfs) => (lfs.size, Digest::of_etag(lfs.oid.trim_start_matches("sha256:"))),
            None => (self.size, Digest::of_etag(&self.oid)),
        };
        let digest = digest.ok_or_else(|| bad(url, format!("{} has no hash", printable(&self.path))))?;
        if size > FILE_BYTES_MAX {
            return Err(bad(url, format!("{} is to have {size} bytes", printable(&self.path))));
        }
        Ok(RemoteFile { path: self.path, size, digest })
    }
}

/// Asks until there is an answer or no hope of one.
struct Questions<'a> {
    client: &'a Client,
    settings: &'a Settings,
    repo: &'a str,
    revision: &'a str,
    observer: &'a mut dyn Observer,
}

impl Questions<'_> {
    /// The object at `url`, and the address of the next page.
    fn json<T: DeserializeOwned>(&mut self, url: &str, limit: u64) -> Result<(T, Option<String>), HubError> {
        let mut attempts = Attempts::new(self.settings, url, false);
        loop {
            match self.once(url, limit) {
                Ok(answer) => return Ok(answer),
                Err(failure) => attempts.wait(failure, self.observer)?,
            }
        }
    }

    fn once<T: DeserializeOwned>(&mut self, url: &str, limit: u64) -> Result<(T, Option<String>), Failure> {
        let mut answer = self.client.get(url, None, self.observer)?;
        refusal::check(&answer.head, self.client, self.repo, self.revision)?;
        let body = answer.whole(limit, self.observer)?;
        let value = serde_json::from_slice(&body)
            .map_err(|error| bad(url, format!("the answer is not what it is to be: {error}")))?;
        Ok((value, answer.head.next_page))
    }
}
