//! The whole of a pull: list, choose, compare with the cache, fetch, link.

use std::collections::HashSet;
use std::path::PathBuf;

use coldpress_memory::Bytes;
use serde::Serialize;

use crate::cache::RepoCache;
use crate::choose::{Candidate, Choice, choose, missing_parts, shards};
use crate::client::Client;
use crate::error::HubError;
use crate::listing::{self, Listing, RemoteFile};
use crate::names::{ModelName, check_revision};
use crate::transfer::{Meter, Transfer};
use crate::{Observer, Settings, local};

/// Largest index that is read; those of a thousand shards have 20 MB.
pub(crate) const INDEX_BYTES_MAX: u64 = 64 << 20;

/// What the cache had of a file before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FileState {
    /// All of it.
    Present,
    /// A beginning.
    Partial,
    /// Nothing.
    Absent,
}

/// A file of the model.
#[derive(Clone, Debug, Serialize)]
pub struct FileReport {
    /// Its path in the repository.
    pub path: String,
    /// Its size.
    pub bytes: Bytes,
    /// Bytes of it that were in the cache before.
    pub present_bytes: Bytes,
    /// The same in a word.
    pub state: FileState,
}

/// A model in the cache, or what would make it one.
#[derive(Clone, Debug, Serialize)]
pub struct PullReport {
    /// The repository.
    pub repo: String,
    /// The branch, tag or commit that was asked for.
    pub revision: String,
    /// The commit that it is at.
    pub commit: String,
    /// What other commands take: the GGUF file (its first part), or the folder of a checkpoint.
    pub path: PathBuf,
    /// Size of all files.
    pub bytes: Bytes,
    /// Of it what the cache lacked before.
    pub missing_bytes: Bytes,
    /// Room on the disk of the cache before, where the system tells.
    pub free_bytes: Option<Bytes>,
    /// The files, small ones of a checkpoint first.
    pub files: Vec<FileReport>,
}

/// Says what [`pull`] would do. Writes nothing; of the repository only an index is read.
///
/// # Errors
/// The model cannot be found, or the hub does not answer.
pub fn plan(
    name: &ModelName,
    revision: &str,
    settings: &Settings,
    observer: &mut dyn Observer,
) -> Result<PullReport, HubError> {
    work(name, revision, settings, false, observer)
}

/// Brings a model into the cache and says where it is.
///
/// # Errors
/// The model cannot be found, the hub does not give what it announced, the disk has no room, or the observer stops. What arrived
/// in good order is kept.
pub fn pull(
    name: &ModelName,
    revision: &str,
    settings: &Settings,
    observer: &mut dyn Observer,
) -> Result<PullReport, HubError> {
    work(name, revision, settings, true, observer)
}

fn work(
    name: &ModelName,
    revision: &str,
    settings: &Settings,
    fetch: bool,
    observer: &mut dyn Observer,
) -> Result<PullReport, HubError> {
    check_revision(revision)?;
    let cache = RepoCache::new(&settings.cache, &name.repo);
    if settings.offline {
        return local::find(name, revision, &cache);
    }
    let client = Client::new(settings)?;
    if settings.token.is_some() && !client.has_token() {
        observer.note("HF_TOKEN stays here: HF_ENDPOINT is not https, so others could read it on the way");
    }
    let listing = listing::list(&client, settings, &name.repo, revision, observer);
    if let (Err(HubError::Unreachable { .. }), Ok(there)) = (&listing, local::find(name, revision, &cache)) {
        let path = there.path.display();
        observer.note(&format!("the cache has it as it was at the last pull; HF_HUB_OFFLINE=1 takes {path}"));
    }
    let listing = listing?;
    let candidates = listing.files.iter().map(|file| Candidate { path: &file.path, size: file.size });
    let choice = choose(&name.repo, name.quant.as_deref(), &candidates.collect::<Vec<_>>())?;
    let (repo, commit) = (name.repo.as_str(), listing.commit.as_str());
    let transfer = Transfer { client: &client, settings, cache: &cache, repo, revision, commit };
    let model = Model { listing: &listing, transfer: &transfer };
    // Reading the index brings it into the cache; what was there before is asked before.
    let index = match &choice {
        Choice::Checkpoint { index: Some(index), .. } => model.listed(index).cloned(),
        _ => None,
    };
    let before = report(name, revision, commit, index.as_slice(), &cache);
    let files = model.files(&choice, fetch, observer)?;
    let first = match &choice {
        Choice::Gguf(parts) => parts.first().map(String::as_str),
        Choice::Checkpoint { .. } => None,
    };
    let mut report = report(name, revision, commit, &files, &cache);
    let to_fetch = report.missing_bytes;
    for index in before.files {
        if let Some(file) =
            report.files.iter_mut().find(|file| file.path == index.path && file.state != index.state)
        {
            *file = index;
            report.missing_bytes = report.missing_bytes.saturating_add(before.missing_bytes);
        }
    }
    report.path = first.map_or_else(|| cache.snapshot(commit), |first| cache.snapshot(commit).join(first));
    if let (Choice::Checkpoint { .. }, Some(other)) = (&choice, model.gguf_beside()) {
        let folder = report.path.display();
        observer.note(&format!("{other} is linked in {folder} too; remove that link to run the folder"));
    }
    if fetch {
        model.fetch(&files, to_fetch, observer)?;
        // The model is there whether or not this can be written.
        if let Err(error) = cache.remember(revision, commit) {
            observer.note(&error.to_string());
        }
    }
    Ok(report)
}

struct Model<'a> {
    listing: &'a Listing,
    transfer: &'a Transfer<'a>,
}

impl Model<'_> {
    /// The files of a choice; an index is fetched to know them.
    fn files(
        &self,
        choice: &Choice,
        fetch: bool,
        observer: &mut dyn Observer,
    ) -> Result<Vec<RemoteFile>, HubError> {
        let names: Vec<String> = match choice {
            Choice::Gguf(parts) => parts.clone(),
            Choice::Checkpoint { index: None, weights, side } => {
                side.iter().chain(weights).cloned().collect()
            }
            Choice::Checkpoint { index: Some(index), side, .. } => {
                let weights = self.shards(index, fetch, observer)?;
                side.iter().chain([index]).chain(&weights).cloned().collect()
            }
        };
        let mut seen = HashSet::new();
        let files =
            names.iter().filter(|name| seen.insert(name.as_str())).filter_map(|name| self.listed(name));
        Ok(files.cloned().collect())
    }

    fn listed(&self, name: &str) -> Option<&RemoteFile> {
        self.listing.files.iter().find(|file| file.path == name)
    }

    /// A GGUF file that an earlier pull linked into the folder of the checkpoint, which then holds two models.
    fn gguf_beside(&self) -> Option<&str> {
        let Transfer { cache, commit, .. } = *self.transfer;
        let beside = |file: &&RemoteFile| file.path.ends_with(".gguf") && !file.path.contains('/');
        self.listing
            .files
            .iter()
            .filter(beside)
            .find(|file| cache.is_linked(commit, file))
            .map(|file| file.path.as_str())
    }

    fn shards(&self, index: &str, fetch: bool, observer: &mut dyn Observer) -> Result<Vec<String>, HubError> {
        let repo = self.transfer.repo;
        let bad = |problem: String| {
            let url = self.transfer.client.endpoint.url(&[repo, "resolve", self.transfer.commit, index]);
            HubError::BadAnswer { url, problem }
        };
        let file = self.listed(index).expect("the index was chosen from the list");
        if file.size > INDEX_BYTES_MAX {
            return Err(bad(format!(
                "it has {} and at most {} are read",
                Bytes(file.size),
                Bytes(INDEX_BYTES_MAX)
            )));
        }
        let snapshot = self.transfer.cache.snapshot(self.transfer.commit).join(index);
        let linked = self.transfer.cache.is_linked(self.transfer.commit, file);
        let json = if linked || fetch {
            self.fetch(std::slice::from_ref(file), Bytes(file.size), observer)?;
            std::fs::read(&snapshot).map_err(|source| HubError::io(&snapshot, "read", source))?
        } else {
            self.transfer.in_memory(file, observer)?
        };
        let names = shards(&json).map_err(bad)?;
        let missing: Vec<String> = names.iter().filter(|name| self.listed(name).is_none()).cloned().collect();
        if missing.is_empty() {
            Ok(names)
        } else {
            Err(missing_parts(repo, index.to_owned(), &missing, "file"))
        }
    }

    fn fetch(
        &self,
        files: &[RemoteFile],
        needed: Bytes,
        observer: &mut dyn Observer,
    ) -> Result<(), HubError> {
        let Transfer { cache, commit, .. } = *self.transfer;
        if files.iter().all(|file| cache.is_linked(commit, file)) {
            return Ok(());
        }
        cache.check_space(needed)?;
        cache.prepare(commit)?;
        let total = files.iter().map(|file| file.size).sum();
        let mut meter = Meter { observer, before: 0, total };
        for file in files {
            if !cache.is_linked(commit, file) {
                let file = self.transfer.fetch(file, &mut meter)?;
                cache.link(commit, &file)?;
            }
            meter.before += file.size;
            meter.observer.progress(meter.before, total);
        }
        Ok(())
    }
}

/// A report whose path is still to be set.
fn report(
    name: &ModelName,
    revision: &str,
    commit: &str,
    files: &[RemoteFile],
    cache: &RepoCache,
) -> PullReport {
    let mut fetched = HashSet::new();
    let mut missing_bytes = 0;
    let mut file_report = |file: &RemoteFile| {
        let present = cache.is_linked(commit, file) || cache.has_blob(file);
        let present_bytes = if present { file.size } else { cache.part_bytes(file) };
        // Files with the same bytes are one blob.
        if fetched.insert(file.digest.clone()) {
            missing_bytes += file.size - present_bytes;
        }
        let state = match present_bytes {
            _ if present => FileState::Present,
            0 => FileState::Absent,
            _ => FileState::Partial,
        };
        FileReport {
            path: file.path.clone(),
            bytes: Bytes(file.size),
            present_bytes: Bytes(present_bytes),
            state,
        }
    };
    let reports: Vec<FileReport> = files.iter().map(&mut file_report).collect();
    PullReport {
        repo: name.repo.clone(),
        revision: revision.to_owned(),
        commit: commit.to_owned(),
        path: PathBuf::new(),
        bytes: Bytes(files.iter().map(|file| file.size).sum()),
        missing_bytes: Bytes(missing_bytes),
        free_bytes: cache.free(),
        files: reports,
    }
}
