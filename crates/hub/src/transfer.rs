//! One file: from what has arrived of it to a verified blob.
//!
//! Bytes are hashed as they come and written at their own offsets, so a part is always a beginning of the file, and a second program that got
//! past the lock (some network file systems grant it to everybody) writes the same bytes to the same places. The blob appears by
//! renaming, after the hash was right and the bytes are on the disk. A part with a wrong hash is removed; if it began in an
//! earlier pull, the file begins anew once. When the hub says that the file has changed, its part is removed and the new one is fetched.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use coldpress_memory::Bytes;
use coldpress_memory::sys::sync_folder;

use crate::address;
use crate::cache::RepoCache;
use crate::client::{Answer, Client, Head};
use crate::digest::{Digest, Hasher};
use crate::listing::{FILE_BYTES_MAX, RemoteFile};
use crate::lock::{Lock, is_at};
use crate::retry::{Attempts, Failure};
use crate::{HubError, Observer, Settings, refusal};

/// Times that a file may change under a download.
const CHANGES_MAX: u32 = 3;
/// Bytes of a part that are read at once to go on with its hash.
const READ_BYTES: usize = 1 << 20;

/// Fetches files of one commit.
pub(crate) struct Transfer<'a> {
    pub(crate) client: &'a Client,
    pub(crate) settings: &'a Settings,
    pub(crate) cache: &'a RepoCache,
    pub(crate) repo: &'a str,
    pub(crate) revision: &'a str,
    pub(crate) commit: &'a str,
}

/// Counts the bytes of all files for the observer.
pub(crate) struct Meter<'a> {
    pub(crate) observer: &'a mut dyn Observer,
    /// Bytes of the files that are complete.
    pub(crate) before: u64,
    pub(crate) total: u64,
}

impl Meter<'_> {
    fn file_at(&mut self, bytes: u64) {
        self.observer.progress((self.before + bytes).min(self.total), self.total);
    }
}

/// How an attempt ended.
enum Ended {
    /// The part goes up to the end of what was asked for.
    Arrived,
    /// The file at the hub is another one.
    Changed(RemoteFile),
}

impl Transfer<'_> {
    /// Makes the blob of a file, whatever of it is there; what it is in the end differs from `file` where the hub changed it.
    ///
    /// # Errors
    /// The hub does not give what it announced, the cache cannot be written, or the observer stops.
    pub(crate) fn fetch(&self, file: &RemoteFile, meter: &mut Meter<'_>) -> Result<RemoteFile, HubError> {
        let mut file = file.clone();
        for _ in 0..CHANGES_MAX {
            let _lock = Lock::take(&self.cache.lock(&file.digest), &file.path, meter.observer)?;
            if self.cache.has_blob(&file) {
                return Ok(file);
            }
            match self.fetch_locked(&file, meter)? {
                None => return Ok(file),
                Some(changed) => {
                    meter.observer.note(&format!("{} has changed at the hub; beginning anew", file.path));
                    let _ = fs::remove_file(self.cache.part(&file.digest));
                    self.cache.check_space(Bytes(changed.size))?;
                    file = changed;
                }
            }
        }
        Err(HubError::KeepsChanging { repo: self.repo.to_owned(), file: file.path, times: CHANGES_MAX })
    }

    /// The file as bytes, verified, with nothing written; for small ones.
    ///
    /// # Errors
    /// As [`Transfer::fetch`].
    pub(crate) fn in_memory(
        &self,
        file: &RemoteFile,
        observer: &mut dyn Observer,
    ) -> Result<Vec<u8>, HubError> {
        let url = self.url(file);
        let mut attempts = Attempts::new(self.settings, &url, false);
        loop {
            let mut once = || -> Result<Vec<u8>, Failure> {
                let mut answer = self.client.get(&url, None, observer)?;
                refusal::check(&answer.head, self.client, self.repo, self.revision)?;
                let bytes = answer.whole(file.size, observer)?;
                let mut hasher = file.digest.hasher(bytes.len() as u64);
                hasher.update(&bytes);
                self.verify(file, hasher).map_err(Failure::Contradiction)?;
                Ok(bytes)
            };
            match once() {
                Ok(bytes) => return Ok(bytes),
                Err(failure) => attempts.wait(failure, observer)?,
            }
        }
    }

    fn url(&self, file: &RemoteFile) -> String {
        self.client.endpoint.url(&[self.repo, "resolve", self.commit, &address::path(&file.path)])
    }

    /// `Some` when the hub says that the file is another one.
    fn fetch_locked(&self, file: &RemoteFile, meter: &mut Meter<'_>) -> Result<Option<RemoteFile>, HubError> {
        let url = self.url(file);
        let mut attempts = Attempts::new(self.settings, &url, true);
        let mut part = Part::open(self.cache.part(&file.digest), file, meter)?;
        loop {
            while part.bytes < file.size {
                match self.attempt(&url, file, &mut part, &mut attempts, meter) {
                    Ok(Ended::Arrived) => {}
                    Ok(Ended::Changed(changed)) => return Ok(Some(changed)),
                    Err(failure) => attempts.wait(failure, meter.observer)?,
                }
            }
            match self.verify(file, part.take_hasher(file)) {
                Ok(()) => break,
                Err(error) => {
                    fs::remove_file(&part.path)
                        .map_err(|source| HubError::io(&part.path, "remove", source))?;
                    if part.resumed_bytes == 0 {
                        return Err(error);
                    }
                    meter
                        .observer
                        .note(&format!("what was there of {} is damaged; beginning anew", file.path));
                    part = Part::open(part.path, file, meter)?;
                }
            }
        }
        part.become_blob(&self.cache.blob(&file.digest), file)?;
        Ok(None)
    }

    fn verify(&self, file: &RemoteFile, hasher: Hasher) -> Result<(), HubError> {
        let (found, expected) = (hasher.finish(), file.digest.digits().to_owned());
        if found == expected {
            return Ok(());
        }
        let (repo, path, bytes) = (self.repo.to_owned(), file.path.clone(), Bytes(file.size));
        Err(HubError::WrongChecksum { repo, file: path, kind: file.digest.kind(), expected, found, bytes })
    }

    fn attempt(
        &self,
        url: &str,
        file: &RemoteFile,
        part: &mut Part,
        attempts: &mut Attempts<'_>,
        meter: &mut Meter<'_>,
    ) -> Result<Ended, Failure> {
        let from = part.bytes;
        let to = file.size.min(from.saturating_add(self.settings.request_bytes));
        let range = (from > 0 || to < file.size).then_some((from, to));
        let mut answer = self.client.get(url, range, meter.observer)?;
        if answer.head.status == 416 && from > 0 {
            part.restart(file);
            return Err(Failure::Passing("the server has no such range; beginning anew".to_owned()));
        }
        refusal::check(&answer.head, self.client, self.repo, self.revision)?;
        if let Some(changed) = self.changed(file, &answer.head)? {
            return Ok(Ended::Changed(changed));
        }
        let end = self.begin(file, part, to, &answer.head)?;
        self.receive(file, part, end, &mut answer, attempts, meter)?;
        Ok(Ended::Arrived)
    }

    /// The file that the hub now has in this place, where it is another one.
    fn changed(&self, file: &RemoteFile, head: &Head) -> Result<Option<RemoteFile>, Failure> {
        let digest = head.etag.as_deref().and_then(Digest::of_etag);
        let same_kind = |digest: &Digest| digest.kind() == file.digest.kind() && *digest != file.digest;
        let Some(digest) = digest.filter(same_kind) else { return Ok(None) };
        let total = match head.status {
            206 => head.content_range.as_deref().and_then(ContentRange::parse).and_then(|range| range.total),
            _ => head.content_length,
        };
        match head.linked_size.or(total).filter(|&size| size <= FILE_BYTES_MAX) {
            Some(size) => Ok(Some(RemoteFile { path: file.path.clone(), size, digest })),
            None => {
                Err(self
                    .contradiction(head, "the file has changed, and the answer does not say how large it is"))
            }
        }
    }

    /// Where the body of an answer ends; the part is set to where it begins.
    fn begin(&self, file: &RemoteFile, part: &mut Part, to: u64, head: &Head) -> Result<u64, Failure> {
        if head.encoded {
            return Err(self.contradiction(head, "the file comes compressed, which was not asked for"));
        }
        if head.status != 206 {
            // The server gives the whole file, whether or not a range was asked for.
            if part.bytes > 0 {
                part.restart(file);
            }
            return match head.content_length {
                Some(found) if found != file.size => Err(self.wrong_length(file, found)),
                _ => Ok(file.size),
            };
        }
        let range = head.content_range.as_deref().and_then(ContentRange::parse);
        let Some(range) = range else {
            return Err(self.contradiction(head, "a part comes without saying which"));
        };
        if let Some(total) = range.total.filter(|&total| total != file.size) {
            return Err(self.wrong_length(file, total));
        }
        if range.from != part.bytes || range.to > to {
            let problem = format!(
                "bytes {} to {} were asked for, bytes {} to {} come",
                part.bytes, to, range.from, range.to
            );
            return Err(self.contradiction(head, &problem));
        }
        Ok(range.to)
    }

    fn receive(
        &self,
        file: &RemoteFile,
        part: &mut Part,
        end: u64,
        answer: &mut Answer,
        attempts: &mut Attempts<'_>,
        meter: &mut Meter<'_>,
    ) -> Result<(), Failure> {
        while let Some(piece) = answer.piece(meter.observer)? {
            let bytes = piece.len() as u64;
            if bytes > end - part.bytes {
                return Err(self.wrong_length(file, part.bytes + bytes));
            }
            part.write(&piece)?;
            attempts.progress(bytes);
            meter.file_at(part.bytes);
        }
        if part.bytes < end {
            return Err(Failure::Passing(format!(
                "the connection ended at byte {} of {}",
                part.bytes, file.size
            )));
        }
        Ok(())
    }

    fn contradiction(&self, head: &Head, problem: &str) -> Failure {
        Failure::Contradiction(HubError::BadAnswer { url: head.url.clone(), problem: problem.to_owned() })
    }

    fn wrong_length(&self, file: &RemoteFile, found: u64) -> Failure {
        let (repo, path) = (self.repo.to_owned(), file.path.clone());
        Failure::Contradiction(HubError::WrongLength { repo, file: path, expected: file.size, found })
    }
}

/// The beginning of a file on the disk, and the hash of it.
struct Part {
    path: PathBuf,
    file: File,
    bytes: u64,
    /// Bytes that an earlier pull left.
    resumed_bytes: u64,
    hasher: Hasher,
}

impl Part {
    fn open(path: PathBuf, file: &RemoteFile, meter: &mut Meter<'_>) -> Result<Self, HubError> {
        let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let opened = opened.map_err(|source| HubError::io(&path, "open", source))?;
        let there = opened.metadata().map_err(|source| HubError::io(&path, "open", source))?.len();
        let resumed_bytes = if there <= file.size { there } else { 0 };
        let hasher = file.digest.hasher(file.size);
        let mut part = Self { path, file: opened, bytes: 0, resumed_bytes, hasher };
        let mut buffer = vec![0; READ_BYTES];
        while part.bytes < resumed_bytes {
            if meter.observer.should_stop() {
                return Err(HubError::Stopped);
            }
            let left = usize::try_from(resumed_bytes - part.bytes).unwrap_or(READ_BYTES).min(READ_BYTES);
            let read = part.file.read_exact_at(&mut buffer[..left], part.bytes);
            read.map_err(|source| HubError::io(&part.path, "read", source))?;
            part.hasher.update(&buffer[..left]);
            part.bytes += left as u64;
            meter.file_at(part.bytes);
        }
        Ok(part)
    }

    /// The next bytes come from the beginning. The file keeps its length: somebody may be reading.
    fn restart(&mut self, file: &RemoteFile) {
        (self.bytes, self.resumed_bytes, self.hasher) = (0, 0, file.digest.hasher(file.size));
    }

    fn write(&mut self, piece: &[u8]) -> Result<(), HubError> {
        let written = self.file.write_all_at(piece, self.bytes);
        written.map_err(|source| HubError::io(&self.path, "write", source))?;
        self.hasher.update(piece);
        self.bytes += piece.len() as u64;
        Ok(())
    }

    fn take_hasher(&mut self, file: &RemoteFile) -> Hasher {
        std::mem::replace(&mut self.hasher, file.digest.hasher(file.size))
    }

    fn become_blob(self, blob: &Path, file: &RemoteFile) -> Result<(), HubError> {
        let durable = self.file.set_len(file.size).and_then(|()| self.file.sync_all());
        durable.map_err(|source| HubError::io(&self.path, "write", source))?;
        if !is_at(&self.file, &self.path) {
            let source = std::io::Error::other("another program replaced it; run the command again");
            return Err(HubError::io(&self.path, "finish", source));
        }
        let folder = blob.parent().unwrap_or(Path::new("."));
        let renamed = fs::rename(&self.path, blob).and_then(|()| sync_folder(folder));
        renamed.map_err(|source| HubError::io(blob, "write", source))
    }
}

/// `bytes FROM-LAST/TOTAL`.
#[derive(Debug, PartialEq, Eq)]
struct ContentRange {
    from: u64,
    /// First byte that does not come.
    to: u64,
    total: Option<u64>,
}

impl ContentRange {
    fn parse(text: &str) -> Option<Self> {
        let (range, total) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
        let (from, last) = range.split_once('-')?;
        let (from, last): (u64, u64) = (from.parse().ok()?, last.parse().ok()?);
        let total = if total == "*" { None } else { Some(total.parse().ok()?) };
        let to = last.checked_add(1)?;
        (from < to && total.is_none_or(|total| to <= total)).then_some(Self { from, to, total })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_content_range_makes_sense_or_is_none() {
        let parse = ContentRange::parse;
        assert_eq!(parse("bytes 5-9/20"), Some(ContentRange { from: 5, to: 10, total: Some(20) }));
        assert_eq!(parse("bytes 0-0/*"), Some(ContentRange { from: 0, to: 1, total: None }));
        for wrong in [
            "",
            "bytes */20",
            "bytes 9-5/20",
            "bytes 5-20/20",
            "items 0-1/2",
            "bytes 0-18446744073709551615/*",
            "bytes -1-2/3",
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
