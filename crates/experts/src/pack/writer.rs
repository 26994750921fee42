//! Writing a pack: bounded memory, resumable after being killed at any moment, never half-visible.
//!
//! Records go to `NAME.partial` at their final offsets, in any order. What is there already is found by checking every
//! record, so nothing but the file itself has to survive. When all are on disk the final header is written, synced, and
//! the file gets its name. A lock on the partial file keeps a second writer out.
//! The bytes come from an [`ExpertStore`](crate::ExpertStore) without a pack: the same reads, the same `arrange`.

use std::fs::{File, OpenOptions, TryLockError};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use coldpress_formats::SourceFile;
use coldpress_memory::{Buffer, Bytes, Ledger, Purpose, sys};
use coldpress_workers::Team;

use crate::error::{ExpertError, PackFault};
use crate::geometry::{ExpertKey, Geometry, LayerExperts};
use crate::reader::ReaderChoice;
use crate::record;

use super::format::PackState;
use super::{Fingerprint, PackFile, PackLayout, VerifyConfig};

/// Bytes written before they are synced and dropped from the page cache, which counts towards the budget.
pub const WRITE_WINDOW_BYTES: u64 = 16 << 20;

/// Bytes read at a time when an unfinished pack is checked.
const SCAN_BYTES: usize = 256 << 10;

/// What a pack is made of.
pub struct PackConfig<'a> {
    /// The experts of each routed layer.
    pub layers: &'a [LayerExperts],
    /// The model files.
    pub files: &'a [SourceFile],
    /// Where the pack goes. Its folder is created if need be.
    pub destination: &'a Path,
    /// Pays for the memory: `read_ahead + 1` records and the read ring.
    pub ledger: &'a Ledger,
    /// How to read the model files.
    pub reader: ReaderChoice,
    /// Experts in flight at the same time.
    pub read_ahead: usize,
}

/// What [`write_pack`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackReport {
    /// Bytes of the pack file.
    pub file_bytes: u64,
    /// Records written now.
    pub records_written: usize,
    /// Records that were there and whole.
    pub records_kept: usize,
}

/// Where an unfinished pack lies while it is written.
pub fn partial_path(destination: &Path) -> PathBuf {
    let mut name = destination.as_os_str().to_owned();
    name.push(".partial");
    PathBuf::from(name)
}

/// Writes the pack of a model, or the rest of it, or nothing when it is complete. `progress` gets bytes of records done
/// and in total. A pack of another model at `destination` is replaced.
///
/// # Errors
/// [`ExpertError::Pack`] with `Busy` or `DiskFull`; [`ExpertError::Cancelled`] once `cancel` is true; read and write errors.
/// The partial file stays, and the next call continues with it.
pub fn write_pack(
    config: PackConfig<'_>,
    team: &Team<'_>,
    cancel: &AtomicBool,
    mut progress: impl FnMut(u64, u64),
) -> Result<PackReport, ExpertError> {
    let PackConfig { layers, files, destination, ledger, reader, read_ahead } = config;
    let geometry = Geometry::new(layers)?;
    let fingerprint = Fingerprint::of(files, layers)?;
    let mut partial = PartialPack::lock(destination, PackLayout::new(&geometry), fingerprint)?;
    let file_bytes = partial.layout.file_bytes();
    if PackFile::open(destination, &geometry, &fingerprint).is_ok() {
        partial.remove()?;
        return Ok(PackReport { file_bytes, records_written: 0, records_kept: geometry.record_count() });
    }
    let total = geometry.records_bytes();
    let mut done = 0;
    let missing = partial.missing_records(ledger, cancel, |bytes| {
        done += bytes;
        progress(done, total);
    })?;
    partial.check_disk(total - done)?;
    let mut store = VerifyConfig { layers, files, ledger, read_ahead }.store(reader, None)?;
    for (layer, experts) in missing.iter().enumerate() {
        let mut visit = store.begin(layer, experts)?;
        while let Some(ready) = visit.next_ready(team)? {
            for (position, record) in ready.iter() {
                stop_if(cancel)?;
                let key = ExpertKey { layer: layer as u32, expert: experts[position] };
                partial.write(key, record.bytes())?;
                done += record.bytes().len() as u64;
                progress(done, total);
            }
        }
    }
    partial.finish()?;
    let records_written = missing.iter().map(Vec::len).sum();
    Ok(PackReport { file_bytes, records_written, records_kept: geometry.record_count() - records_written })
}

fn stop_if(cancel: &AtomicBool) -> Result<(), ExpertError> {
    if cancel.load(Ordering::Relaxed) { Err(ExpertError::Cancelled) } else { Ok(()) }
}

/// The locked file that becomes the pack.
pub(super) struct PartialPack {
    destination: PathBuf,
    pub(super) path: PathBuf,
    pub(super) file: File,
    pub(super) layout: PackLayout,
    fingerprint: Fingerprint,
    /// Written since the last sync.
    unsynced: Range<u64>,
    unsynced_bytes: u64,
}

impl PartialPack {
    /// Opens or creates the partial file and takes its lock.
    pub(super) fn lock(
        destination: &Path,
        layout: PackLayout,
        fingerprint: Fingerprint,
    ) -> Result<Self, ExpertError> {
        let path = partial_path(destination);
        let failed = |source| io_error("open", &path, 0, source);
        std::fs::create_dir_all(folder_of(destination)).map_err(failed)?;
        loop {
            let mut options = OpenOptions::new();
            let file =
                options.read(true).write(true).create(true).truncate(false).open(&path).map_err(failed)?;
            // Advice: what is read ahead would stay in the page cache.
            let _ = sys::expect_random_reads(&file);
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    return Err(ExpertError::Pack { path, fault: PackFault::Busy });
                }
                Err(TryLockError::Error(source)) => return Err(io_error("lock", &path, 0, source)),
            }
            // Another writer may have finished in between: then this file has its final name and must not be touched.
            if is_same_file(&file, &path) {
                let destination = destination.to_owned();
                let unsynced = 0..0;
                return Ok(Self {
                    destination,
                    path,
                    file,
                    layout,
                    fingerprint,
                    unsynced,
                    unsynced_bytes: 0,
                });
            }
        }
    }

    /// Empties a partial file of something else. Returns the state that the header of one of this pack names.
    pub(super) fn claim(&self) -> Result<Option<PackState>, ExpertError> {
        let state = header_state(&self.file, &self.layout, &self.fingerprint);
        if state.is_none() {
            self.file.set_len(0).map_err(|source| io_error("empty", &self.path, 0, source))?;
            self.write_draft()?;
        }
        Ok(state)
    }

    /// Writes the header that says that records may be missing.
    pub(super) fn write_draft(&self) -> Result<(), ExpertError> {
        self.write_at(&self.layout.encode(&self.fingerprint, PackState::Unfinished), 0)
    }

    /// The experts of each layer whose record is not there or not whole. A partial file of something else is emptied.
    /// `found` gets the bytes of each record that is whole.
    fn missing_records(
        &mut self,
        ledger: &Ledger,
        cancel: &AtomicBool,
        mut found: impl FnMut(u64),
    ) -> Result<Vec<Vec<u32>>, ExpertError> {
        self.claim()?;
        let geometry = self.layout.geometry();
        let all = |layer| (0..geometry.expert_count(layer) as u32).collect();
        let mut missing: Vec<Vec<u32>> = (0..geometry.layer_count()).map(all).collect();
        let length = self
            .file
            .metadata()
            .map_err(|source| io_error("ask for the length of", &self.path, 0, source))?
            .len();
        if geometry.keys().all(|key| self.layout.offset(key) >= length) {
            return Ok(missing);
        }
        missing.iter_mut().for_each(Vec::clear);
        let mut piece = Buffer::new(ledger, Purpose::ReadRing, Bytes(SCAN_BYTES as u64))?;
        for key in geometry.keys() {
            stop_if(cancel)?;
            if self.is_whole(key, piece.as_bytes_mut())? {
                found(geometry.layer(key.layer as usize).record_bytes as u64);
            } else {
                missing[key.layer as usize].push(key.expert);
            }
        }
        Ok(missing)
    }

    /// Whether the record of `key` is on disk as it must be.
    pub(super) fn is_whole(&self, key: ExpertKey, piece: &mut [u8]) -> Result<bool, ExpertError> {
        let start = self.layout.offset(key);
        let end = start + self.layout.geometry().layer(key.layer as usize).record_bytes as u64;
        let result = self.check_record(key, start..end, piece);
        // Advice: a refusal changes no result.
        let _ = sys::drop_page_cache(&self.file, start..end);
        result
    }

    fn check_record(
        &self,
        key: ExpertKey,
        Range { start, end }: Range<u64>,
        piece: &mut [u8],
    ) -> Result<bool, ExpertError> {
        let mut check = record::RunningCheck::new(key, (end - start) as usize);
        let mut at = start;
        while at < end {
            let length = (end - at).min(piece.len() as u64) as usize;
            match self.file.read_exact_at(&mut piece[..length], at) {
                Ok(()) => {}
                Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(false),
                Err(source) => return Err(io_error("read", &self.path, at, source)),
            }
            if check.feed(&piece[..length]).is_err() {
                return Ok(false);
            }
            at += length as u64;
        }
        Ok(check.finish().is_ok())
    }

    fn check_disk(&self, record_bytes: u64) -> Result<(), ExpertError> {
        let needed = Bytes(record_bytes);
        let free = sys::free_disk_space(folder_of(&self.path));
        let free = free.map_err(|source| io_error("ask for the free space at", &self.path, 0, source))?;
        if free >= needed {
            return Ok(());
        }
        Err(ExpertError::Pack { path: self.path.clone(), fault: PackFault::DiskFull { needed, free } })
    }

    fn write(&mut self, key: ExpertKey, record: &[u8]) -> Result<(), ExpertError> {
        let at = self.layout.offset(key);
        self.write_at(record, at)?;
        let end = at + record.len() as u64;
        self.unsynced = match self.unsynced_bytes {
            0 => at..end,
            _ => self.unsynced.start.min(at)..self.unsynced.end.max(end),
        };
        self.unsynced_bytes += record.len() as u64;
        if self.unsynced_bytes >= WRITE_WINDOW_BYTES { self.sync() } else { Ok(()) }
    }

    /// Puts what was written on the medium and out of the page cache.
    fn sync(&mut self) -> Result<(), ExpertError> {
        sys::sync_file(&self.file)
            .map_err(|source| io_error("sync", &self.path, self.unsynced.start, source))?;
        // Advice: a refusal changes no result.
        let _ = sys::drop_page_cache(&self.file, self.unsynced.clone());
        self.unsynced_bytes = 0;
        Ok(())
    }

    /// All records are written: makes the file complete and gives it its name.
    pub(super) fn finish(mut self) -> Result<(), ExpertError> {
        let end = self.layout.file_bytes();
        self.file.set_len(end).map_err(|source| io_error("set the length of", &self.path, end, source))?;
        self.sync()?;
        self.write_at(&self.layout.encode(&self.fingerprint, PackState::Complete), 0)?;
        self.unsynced = 0..(self.layout.header_bytes() as u64).next_multiple_of(sys::page_size() as u64);
        self.sync()?;
        std::fs::rename(&self.path, &self.destination)
            .map_err(|source| io_error("give its name to", &self.path, 0, source))?;
        sys::sync_folder(folder_of(&self.destination))
            .map_err(|source| io_error("sync the folder of", &self.destination, 0, source))
    }

    /// The pack is complete without this file.
    pub(super) fn remove(self) -> Result<(), ExpertError> {
        std::fs::remove_file(&self.path).map_err(|source| io_error("remove", &self.path, 0, source))
    }

    pub(super) fn write_at(&self, bytes: &[u8], at: u64) -> Result<(), ExpertError> {
        self.file.write_all_at(bytes, at).map_err(|source| io_error("write", &self.path, at, source))
    }
}

/// What the header of `file` says of the pack of these records; `None` when it is of something else.
pub(super) fn header_state(file: &File, layout: &PackLayout, fingerprint: &Fingerprint) -> Option<PackState> {
    let mut header = vec![0; layout.header_bytes()];
    file.read_exact_at(&mut header, 0).ok()?;
    [PackState::Unfinished, PackState::Complete]
        .into_iter()
        .find(|state| header == layout.encode(fingerprint, *state))
}

fn is_same_file(file: &File, path: &Path) -> bool {
    match (file.metadata(), std::fs::metadata(path)) {
        (Ok(open), Ok(named)) => (open.dev(), open.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

pub(super) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

fn io_error(action: &'static str, path: &Path, offset: u64, source: std::io::Error) -> ExpertError {
    ExpertError::Io { action, path: path.to_owned(), offset, source }
}
