//! A model that is in the cache, without the hub: what `HF_HUB_OFFLINE` asks for.

use std::fs;
use std::path::Path;

use coldpress_memory::Bytes;

use crate::cache::RepoCache;
use crate::choose::{Candidate, Choice, choose, shards};
use crate::error::HubError;
use crate::names::ModelName;
use crate::pull::{FileReport, FileState, INDEX_BYTES_MAX, PullReport};

/// Folders inside folders that are looked into.
const DEPTH_MAX: usize = 8;
/// Entries that are looked at.
const ENTRIES_MAX: usize = 100_000;

/// Finds a model in the snapshot that `revision` was last seen at.
///
/// # Errors
/// It is not there as a whole, or several are.
pub(crate) fn find(name: &ModelName, revision: &str, cache: &RepoCache) -> Result<PullReport, HubError> {
    let absent = |detail: String| {
        let (repo, revision) = (name.repo.clone(), revision.to_owned());
        HubError::NotInCache { repo, revision, cache: cache.cache.clone(), detail }
    };
    let commit = cache.commit_of(revision).ok_or_else(|| absent(String::new()))?;
    let snapshot = cache.snapshot(&commit);
    let mut found = Vec::new();
    let mut entries_left = ENTRIES_MAX;
    walk(&snapshot, "", DEPTH_MAX, &mut entries_left, &mut found);
    found.sort();
    let candidates: Vec<Candidate<'_>> =
        found.iter().map(|(path, size)| Candidate { path, size: *size }).collect();
    let choice = choose(&name.repo, name.quant.as_deref(), &candidates).map_err(|error| match error {
        HubError::NoModel { .. } => absent(String::new()),
        HubError::MissingParts { missing, set, .. } => {
            absent(format!(" as a whole: {missing} of {set} not there"))
        }
        other => other,
    })?;
    let (path, names) = match choice {
        Choice::Gguf(parts) => (snapshot.join(&parts[0]), parts),
        Choice::Checkpoint { index: None, weights, side } => (snapshot, [side, weights].concat()),
        Choice::Checkpoint { index: Some(index), side, .. } => {
            let weights = shards_of(&snapshot.join(&index))
                .map_err(|problem| absent(format!(": {index}: {problem}")))?;
            (snapshot, [side, vec![index], weights].concat())
        }
    };
    let size = |name: &str| found.iter().find(|(path, _)| path == name).map(|&(_, size)| Bytes(size));
    let file = |path: String| match size(&path) {
        Some(bytes) => Ok(FileReport { path, bytes, present_bytes: bytes, state: FileState::Present }),
        None => Err(absent(format!(" as a whole: {path} is missing"))),
    };
    let files: Vec<FileReport> = names.into_iter().map(file).collect::<Result<_, _>>()?;
    Ok(PullReport {
        repo: name.repo.clone(),
        revision: revision.to_owned(),
        commit,
        path,
        bytes: files.iter().map(|file| file.bytes).sum(),
        missing_bytes: Bytes::ZERO,
        free_bytes: cache.free(),
        files,
    })
}

fn shards_of(index: &Path) -> Result<Vec<String>, String> {
    let bytes = fs::metadata(index).map_err(|error| error.to_string())?.len();
    if bytes > INDEX_BYTES_MAX {
        return Err(format!("it has {} and at most {} are read", Bytes(bytes), Bytes(INDEX_BYTES_MAX)));
    }
    shards(&fs::read(index).map_err(|error| error.to_string())?)
}

/// Regular files below a folder, links followed. What cannot be read is not there.
fn walk(folder: &Path, prefix: &str, depth: usize, entries_left: &mut usize, found: &mut Vec<(String, u64)>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        if *entries_left == 0 {
            return;
        }
        *entries_left -= 1;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let Ok(data) = fs::metadata(entry.path()) else { continue };
        let path = format!("{prefix}{name}");
        if data.is_file() {
            found.push((path, data.len()));
        } else if data.is_dir() && depth > 0 {
            walk(&entry.path(), &format!("{path}/"), depth - 1, entries_left, found);
        }
    }
}
