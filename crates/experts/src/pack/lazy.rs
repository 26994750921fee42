//! A pack that fills while its model runs: each record that was arranged into a slot is also written to `NAME.partial`.
//!
//! ```text
//! 0           header, "unfinished"; records at their final places, the others are holes
//! file bytes  one byte per record, 1 once the record has been written; cut off when the pack is finished
//! ```
//!
//! A byte is a hint where to look, nothing more: a record is checked when it is used, and whatever fails is read from the
//! model file and written again. So neither a kill, a full disk nor a hostile file can do more than cost a read.
//! Writing has a thread of its own, a few staging buffers and a bounded rate; when all buffers are busy a record is not
//! written this time. A lock on the file keeps a second writer out; who does not get it reads what is there.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use coldpress_formats::SourceFile;
use coldpress_memory::{Ledger, Purpose, sys};
use coldpress_workers::start_thread;

use crate::error::{ExpertError, PackFault};
use crate::geometry::{ExpertKey, Geometry};
use crate::slots::SlotMemory;
use crate::source::{ReadFile, open_file};

use super::format::PackState;
use super::writer::{PartialPack, folder_of, header_state};
use super::{Fingerprint, PackFile, PackLayout, partial_path};

/// The thread calls the system and little else.
const STACK_BYTES: usize = 128 << 10;

/// The byte of a record that has been written.
const WRITTEN: u8 = 1;

/// Where a pack is filled, and at what cost.
#[derive(Clone, Debug)]
pub struct LazyConfig {
    /// Where the finished pack goes. Its folder is created if need be.
    pub destination: PathBuf,
    /// The fingerprint of the model.
    pub fingerprint: Fingerprint,
    /// Records that wait for being written at the same time; 0 writes nothing and only uses what is there.
    pub staged_records: usize,
    /// Bytes per second that are written, or checked before the pack is finished, at most.
    pub bytes_per_second: u64,
    /// Share of the disk, 0 to 1, that stays free.
    pub free_disk_share: f64,
}

impl LazyConfig {
    /// One record being written and one that waits, 64 MiB/s, a tenth of the disk free.
    pub fn new(destination: PathBuf, fingerprint: Fingerprint) -> Self {
        Self {
            destination,
            fingerprint,
            staged_records: Self::STAGED_RECORDS,
            bytes_per_second: 64 << 20,
            free_disk_share: 0.1,
        }
    }

    /// Staging buffers of [`LazyConfig::new`], each as long as the largest record.
    pub const STAGED_RECORDS: usize = 2;
}

/// What is known of a record in the file. Values above [`QUEUED`] can be read.
const ABSENT: u8 = 0;
/// Waits for being written.
const QUEUED: u8 = 1;
/// Its byte says that it was written, earlier or by another process.
const HINTED: u8 = 2;
/// Written by this process, or found whole by it.
const WHOLE: u8 = 3;

/// A record in a staging buffer.
struct Staged {
    key: ExpertKey,
    memory: SlotMemory,
}

/// What waits for the thread.
struct Queue {
    staged: VecDeque<Staged>,
    free: Vec<SlotMemory>,
    stop: bool,
}

/// What the store and the thread both see.
struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
    /// Whether records are taken.
    open: AtomicBool,
    written: AtomicU64,
    states: Vec<AtomicU8>,
    layout: PackLayout,
}

impl Shared {
    /// A thread that panicked holds no lock at that moment, so the queue is whole.
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self, key: ExpertKey) -> &AtomicU8 {
        &self.states[self.layout.geometry().record_index(key)]
    }

    fn all_are(&self, state_min: u8) -> bool {
        self.states.iter().all(|state| state.load(Ordering::Acquire) >= state_min)
    }

    fn record_bytes(&self, key: ExpertKey) -> usize {
        self.layout.geometry().layer(key.layer as usize).record_bytes
    }

    /// Takes no more records; those that wait are given up.
    fn close(&self) {
        self.open.store(false, Ordering::Release);
        let mut queue = self.queue();
        while let Some(Staged { key, memory }) = queue.staged.pop_front() {
            self.state(key).store(ABSENT, Ordering::Release);
            queue.free.push(memory);
        }
    }
}

/// See the module header.
pub(crate) struct LazyPack {
    shared: Arc<Shared>,
    file: Arc<ReadFile>,
    thread: Option<JoinHandle<()>>,
}

impl LazyPack {
    /// Opens or creates the partial file of a pack and starts to fill it. `None` when that is impossible; the run goes on
    /// without it. The text says in one line what happens, if there is anything to say. Staging buffers are reserved as
    /// [`Purpose::ReadRing`].
    ///
    /// # Errors
    /// The budget has no room for the staging buffers.
    pub(crate) fn open(
        config: &LazyConfig,
        geometry: &Geometry,
        files: &[SourceFile],
        ledger: &Ledger,
    ) -> Result<(Option<Self>, Option<String>), ExpertError> {
        let layout = PackLayout::new(geometry);
        let path = partial_path(&config.destination);
        let opened = if config.staged_records == 0 {
            read_hints(config, &layout).map(|hints| (None, hints))
        } else {
            claim(config, &layout)
        };
        let opened = opened.and_then(|(partial, hints)| Ok((partial, hints, ReadFile::open(&path)?)));
        let (partial, hints, file) = match opened {
            Ok(opened) => opened,
            Err(ExpertError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return Ok((None, None));
            }
            Err(error) => {
                return Ok((None, Some(format!("no pack is filled while the model runs: {error}"))));
            }
        };
        let hinted = hints.iter().filter(|hint| **hint == HINTED).count();
        let writes = partial.is_some();
        let lengths = vec![geometry.record_bytes_max(); if writes { config.staged_records } else { 0 }];
        let queue = Queue {
            staged: VecDeque::with_capacity(lengths.len()),
            free: SlotMemory::carve(ledger, Purpose::ReadRing, &lengths)?,
            stop: false,
        };
        let shared = Arc::new(Shared {
            queue: Mutex::new(queue),
            wake: Condvar::new(),
            open: AtomicBool::new(false),
            written: AtomicU64::new(0),
            states: hints.into_iter().map(AtomicU8::new).collect(),
            layout,
        });
        let thread = partial.and_then(|partial| Filler::start(config, partial, files, &shared));
        let there = format!("{hinted} of {} experts are there", shared.states.len());
        let notice = if thread.is_some() {
            format!(
                "experts are written to {} as they are first used ({there}; at most {} MB/s, while {:.0} % of the disk stay free)",
                path.display(),
                config.bytes_per_second / 1_000_000,
                100.0 * config.free_disk_share
            )
        } else {
            format!(
                "experts are read from {} where it has them ({there}), and not added to it",
                path.display()
            )
        };
        Ok((Some(Self { shared, file, thread }), Some(notice)))
    }

    /// Whether the record of `key` should be in the file. It must be checked before it is used.
    pub(crate) fn has(&self, key: ExpertKey) -> bool {
        self.shared.state(key).load(Ordering::Acquire) > QUEUED
    }

    /// The file.
    pub(crate) fn file(&self) -> &Arc<ReadFile> {
        &self.file
    }

    /// Where the record of `key` begins.
    pub(crate) fn offset(&self, key: ExpertKey) -> u64 {
        self.shared.layout.offset(key)
    }

    /// Length of the record of `key`.
    pub(crate) fn record_bytes(&self, key: ExpertKey) -> usize {
        self.shared.record_bytes(key)
    }

    /// The record of `key` was read and is whole.
    pub(crate) fn confirm(&self, key: ExpertKey) {
        let state = self.shared.state(key);
        let _ = state.compare_exchange(HINTED, WHOLE, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// The record of `key` is not there, or damaged.
    pub(crate) fn forget(&self, key: ExpertKey) {
        self.shared.state(key).store(ABSENT, Ordering::Release);
    }

    /// Takes a copy of a finished record if it is missing and a staging buffer is free. Waits for nothing, takes nothing
    /// from the heap.
    pub(crate) fn offer(&self, key: ExpertKey, record: &[u8]) {
        let shared = &*self.shared;
        if !shared.open.load(Ordering::Acquire) || shared.state(key).load(Ordering::Acquire) != ABSENT {
            return;
        }
        let Some(mut memory) = shared.queue().free.pop() else { return };
        memory[..record.len()].copy_from_slice(record);
        shared.state(key).store(QUEUED, Ordering::Release);
        shared.queue().staged.push_back(Staged { key, memory });
        shared.wake.notify_one();
    }

    /// Records written by this process.
    pub(crate) fn written(&self) -> u64 {
        self.shared.written.load(Ordering::Relaxed)
    }
}

impl Drop for LazyPack {
    fn drop(&mut self) {
        self.shared.open.store(false, Ordering::Release);
        self.shared.queue().stop = true;
        self.shared.wake.notify_all();
        if let Some(thread) = self.thread.take() {
            // After a panic of the thread there is a file that says what it holds, as after a kill.
            let _ = thread.join();
        }
    }
}

/// Locks the partial file, gives it its full length and finds what it holds. Without a file when another process has the
/// lock.
fn claim(config: &LazyConfig, layout: &PackLayout) -> Result<(Option<PartialPack>, Vec<u8>), ExpertError> {
    let partial = match PartialPack::lock(&config.destination, layout.clone(), config.fingerprint) {
        Ok(partial) => partial,
        Err(ExpertError::Pack { fault: PackFault::Busy, .. }) => {
            return Ok((None, read_hints(config, layout)?));
        }
        Err(error) => return Err(error),
    };
    if PackFile::open(&config.destination, layout.geometry(), &config.fingerprint).is_ok() {
        let failed =
            ExpertError::Configuration("the pack has just been finished; the next start uses it".into());
        return partial.remove().and(Err(failed));
    }
    let length = |error| io_error("set the length of", &partial.path, error);
    let state = partial.claim()?;
    let hints = hints(&partial.file, layout, state).map_err(length)?;
    if state == Some(PackState::Complete) {
        partial.write_draft()?;
    }
    partial.file.set_len(layout.file_bytes() + hints.len() as u64).map_err(length)?;
    let bytes: Vec<u8> = hints.iter().map(|hint| if *hint == HINTED { WRITTEN } else { 0 }).collect();
    partial.write_at(&bytes, layout.file_bytes())?;
    Ok((Some(partial), hints))
}

/// What a partial file holds that this process does not write to.
fn read_hints(config: &LazyConfig, layout: &PackLayout) -> Result<Vec<u8>, ExpertError> {
    let path = partial_path(&config.destination);
    let failed = |error| io_error("open", &path, error);
    let file = open_file(&path).map_err(failed)?;
    let state = header_state(&file, layout, &config.fingerprint);
    hints(&file, layout, state).map_err(failed)
}

/// For each record whether it should be there. A file without bytes for that was written from its start to its end, so
/// everything before its end should be.
fn hints(file: &File, layout: &PackLayout, state: Option<PackState>) -> io::Result<Vec<u8>> {
    let geometry = layout.geometry();
    let mut hints = vec![ABSENT; geometry.record_count()];
    let length = file.metadata()?.len();
    if state.is_none() {
        return Ok(hints);
    }
    if length > layout.file_bytes() {
        let mut bytes = vec![0; hints.len()];
        if file.read_exact_at(&mut bytes, layout.file_bytes()).is_ok() {
            for (hint, byte) in hints.iter_mut().zip(bytes) {
                *hint = if byte == WRITTEN { HINTED } else { ABSENT };
            }
        }
        return Ok(hints);
    }
    for key in geometry.keys() {
        let end = layout.offset(key) + geometry.layer(key.layer as usize).record_bytes as u64;
        if end <= length {
            hints[geometry.record_index(key)] = HINTED;
        }
    }
    Ok(hints)
}

/// The thread that writes.
struct Filler {
    shared: Arc<Shared>,
    partial: PartialPack,
    /// The same file, past the page cache; `None` where that is refused.
    direct: Option<File>,
    /// The model files, as they were when the run began.
    files: Vec<SourceFile>,
    bytes_per_second: u64,
    free_disk_share: f64,
    /// When the next bytes may be moved.
    next: Instant,
}

impl Filler {
    /// `None` when the disk is too full already, or the system gives no thread.
    fn start(
        config: &LazyConfig,
        partial: PartialPack,
        files: &[SourceFile],
        shared: &Arc<Shared>,
    ) -> Option<JoinHandle<()>> {
        // Should the device want larger blocks than records have, the first write is refused.
        let direct = sys::open_direct_for_writing(&partial.path).ok();
        let direct = direct.and_then(|(file, io)| io.is_direct().then_some(file));
        let filler = Self {
            shared: Arc::clone(shared),
            partial,
            direct,
            files: files.to_vec(),
            bytes_per_second: config.bytes_per_second.max(1),
            free_disk_share: config.free_disk_share,
            next: Instant::now(),
        };
        filler.check(0).ok()?;
        shared.open.store(true, Ordering::Release);
        let builder = std::thread::Builder::new().name("coldpress-pack".to_owned()).stack_size(STACK_BYTES);
        let started = start_thread(builder, move || {
            let shared = Arc::clone(&filler.shared);
            // What cannot be written now is not worth a second try in this run: the model file has it.
            let _ = filler.run();
            shared.close();
        });
        started.inspect_err(|_| shared.close()).ok()
    }

    /// Ends when the pack is finished, the store is dropped, or something cannot be written.
    fn run(mut self) -> Result<(), ExpertError> {
        while let Some(staged) = self.next_staged() {
            let Some(Staged { key, memory }) = staged else {
                if self.check_rest()? {
                    return self.partial.finish();
                }
                continue;
            };
            let length = self.shared.record_bytes(key);
            let result = self.write(key, &memory[..length]);
            let state = if result.is_ok() { WHOLE } else { ABSENT };
            self.shared.state(key).store(state, Ordering::Release);
            self.shared.queue().free.push(memory);
            result?;
            self.shared.written.fetch_add(1, Ordering::Relaxed);
            self.pace(length);
        }
        Ok(())
    }

    /// Waits for a record; `Some(None)` when none is missing any more, `None` at the end.
    fn next_staged(&self) -> Option<Option<Staged>> {
        let mut queue = self.shared.queue();
        loop {
            if queue.stop {
                return None;
            }
            if let Some(staged) = queue.staged.pop_front() {
                return Some(Some(staged));
            }
            if self.shared.all_are(HINTED) {
                return Some(None);
            }
            queue = self.shared.wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Keeps the rate after `bytes` were moved. Returns whether to go on.
    fn pace(&mut self, bytes: usize) -> bool {
        let time = Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64);
        self.next = self.next.max(Instant::now().checked_sub(time).unwrap_or(self.next)) + time;
        let mut queue = self.shared.queue();
        while !queue.stop {
            let left = self.next.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            let waited = self.shared.wake.wait_timeout(queue, left);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        false
    }

    fn write(&mut self, key: ExpertKey, record: &[u8]) -> Result<(), ExpertError> {
        self.check(record.len() as u64)?;
        let at = self.shared.layout.offset(key);
        self.write_record(record, at)?;
        let index = self.shared.layout.geometry().record_index(key) as u64;
        self.partial.write_at(&[WRITTEN], self.shared.layout.file_bytes() + index)
    }

    fn write_record(&mut self, record: &[u8], at: u64) -> Result<(), ExpertError> {
        if let Some(direct) = &self.direct {
            match direct.write_all_at(record, at) {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => self.direct = None,
                Err(error) => return Err(io_error("write", &self.partial.path, error)),
            }
        }
        self.partial.write_at(record, at)?;
        let file = &self.partial.file;
        sys::sync_file(file).map_err(|error| io_error("sync", &self.partial.path, error))?;
        // Advice: a refusal changes no result.
        let _ = sys::drop_page_cache(file, at..at + record.len() as u64);
        Ok(())
    }

    /// Whether `bytes` more leave the disk the room it is to keep, and the model is still the one of the fingerprint.
    fn check(&self, bytes: u64) -> Result<(), ExpertError> {
        for file in &self.files {
            let now =
                std::fs::metadata(&file.path).map_err(|error| io_error("look at", &file.path, error))?;
            let same_date = file.modified.is_none_or(|modified| now.modified().ok() == Some(modified));
            if now.len() != file.len || !same_date {
                return Err(io_error("pack", &file.path, io::Error::other("it has changed")));
            }
        }
        let failed = |error| io_error("ask for the free space at", &self.partial.path, error);
        let folder = folder_of(&self.partial.path);
        let free = sys::free_disk_space(folder).map_err(failed)?.0 as f64;
        let size = sys::disk_size(folder).map_err(failed)?.0 as f64;
        if free - bytes as f64 >= size * self.free_disk_share {
            return Ok(());
        }
        Err(failed(io::ErrorKind::StorageFull.into()))
    }

    /// No record is missing: checks those that neither were written nor have been used by this process. Whether the pack is
    /// complete.
    fn check_rest(&mut self) -> Result<bool, ExpertError> {
        let Some(mut piece) = self.shared.queue().free.pop() else { return Ok(false) };
        let geometry = self.shared.layout.geometry().clone();
        for key in geometry.keys() {
            let shared = Arc::clone(&self.shared);
            let state = shared.state(key);
            if state.load(Ordering::Acquire) != HINTED {
                continue;
            }
            let found = if self.partial.is_whole(key, &mut piece)? { WHOLE } else { ABSENT };
            let _ = state.compare_exchange(HINTED, found, Ordering::AcqRel, Ordering::Relaxed);
            if !self.pace(self.shared.record_bytes(key)) {
                break;
            }
        }
        self.shared.queue().free.push(piece);
        self.check(0)?;
        Ok(self.shared.all_are(WHOLE))
    }
}

fn io_error(action: &'static str, path: &std::path::Path, source: io::Error) -> ExpertError {
    ExpertError::Io { action, path: path.to_owned(), offset: 0, source }
}
