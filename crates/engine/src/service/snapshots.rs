//! Pages of keys and values on disk, so that a restart or another session goes on without computing them again.
//!
//! A conversation is a chain of pages that anybody with the same tokens finds by name (`snapshot_file.rs`), and common beginnings
//! are stored once. The end of a conversation is a page that is not full; a longer one takes its place. Where a conversation parts
//! from what is stored in the middle of a page, the rows before that are used. The folder of a model is named by a hash over
//! the weights' fingerprint, the KV type, the size of a page and the version of this format: other weights have another folder.
//! Files are written to a temporary name by a thread of their own and renamed, so a crash, a full disk or a foreign file costs a
//! computation and nothing else. How the model wrote its answers lies beside them (`answer_memory.rs`). When the folder is
//! larger than its bound, what was not used for longest goes, ends of chains before their beginnings. Staging buffers come from
//! the ledger; pages that wait for one are owned by this file until then, and given up when requests need them.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::SystemTime;

use coldpress_memory::{Buffer, Bytes, Purpose};
use coldpress_model::{KvPool, PAGE_POSITIONS, Sequence};

use super::answer_memory::AnswerMemory;
use super::prefix::{PrefixTree, common};
use super::snapshot_file::{Hash, Name, VERSION, chain, hash, peek, read, write, write_whole};
use super::worker::remember;
use crate::error::EngineError;
use crate::runtime::Runtime;

/// How the model wrote its answers; the name sorts and parses as no page's.
const ANSWERS: &str = "answers.remembered";
/// A longer one is not ours.
const ANSWERS_BYTES_MAX: usize = 2 * super::answer_memory::BYTES_MAX;
/// Pages on their way to the disk.
pub(crate) const STAGING_BUFFERS: usize = 2;
/// Files of a folder that are known at a time; 64 bytes of memory each.
const FILES_MAX: usize = 1 << 16;
/// Fewer tokens at the end of a conversation are computed sooner than written and read.
const TAIL_TOKENS_MIN: usize = 8;
/// Pages with the same beginning that are looked into for one that agrees in part.
const LOOKED_INTO_MAX: usize = 16;

struct Known {
    bytes: u64,
    /// Larger means later.
    used: u64,
}

/// One page for the writer.
struct Job {
    name: Name,
    tokens: Vec<u32>,
    page: Buffer,
}

/// What became of it: the buffer comes back.
struct Done {
    name: Name,
    page: Buffer,
    bytes: io::Result<u64>,
}

/// See the module header.
pub(crate) struct Snapshots {
    folder: PathBuf,
    bytes_max: u64,
    bytes: u64,
    files: BTreeMap<Name, Known>,
    /// Bytes of the file with the remembered answers.
    answers_bytes: u64,
    now: u64,
    page_bytes: usize,
    staging: Vec<Buffer>,
    /// Pages that wait for a staging buffer, with their tokens; this file is one of their owners.
    pending: VecDeque<(Name, Vec<u32>, u32)>,
    in_flight: usize,
    jobs: Option<Sender<Job>>,
    done: Receiver<Done>,
    writer: Option<JoinHandle<()>>,
}

impl Snapshots {
    /// Opens the folder of `runtime`'s model in `folder`, which may hold `bytes_max`.
    ///
    /// # Errors
    /// The folder cannot be made or read, the ledger has no room for staging, the model file has no fingerprint.
    pub fn open(folder: &Path, bytes_max: Bytes, runtime: &Runtime) -> Result<Self, EngineError> {
        let page_bytes = runtime.page_bytes();
        let identity = format!(
            "coldpress keys and values {VERSION} {} {} {page_bytes} {PAGE_POSITIONS}",
            runtime.fingerprint()?,
            runtime.report.kv_type
        );
        let folder = folder.join(&blake3::hash(identity.as_bytes()).to_hex()[..32]);
        let unusable = |error: io::Error| EngineError::BadOutput {
            path: folder.clone(),
            reason: format!("keys and values cannot be kept there: {error}"),
        };
        fs::create_dir_all(&folder).map_err(unusable)?;
        let staging = (0..STAGING_BUFFERS)
            .map(|_| Buffer::new(&runtime.ledger, Purpose::Scratch, Bytes(page_bytes as u64)))
            .collect::<Result<_, _>>()?;
        let (jobs, theirs) = channel::<Job>();
        let (told, done) = channel();
        let target = folder.clone();
        let builder =
            std::thread::Builder::new().name("coldpress-snapshots".to_owned()).stack_size(256 << 10);
        let writer = builder.spawn(move || {
            for Job { name, tokens, page } in theirs {
                let bytes = write(&target, &name, &tokens, page.as_bytes());
                if told.send(Done { name, page, bytes }).is_err() {
                    return;
                }
            }
        });
        let mut snapshots = Self {
            folder: folder.clone(),
            bytes_max: bytes_max.0,
            bytes: 0,
            files: BTreeMap::new(),
            answers_bytes: 0,
            now: 0,
            page_bytes,
            staging,
            pending: VecDeque::new(),
            in_flight: 0,
            jobs: Some(jobs),
            done,
            writer: Some(writer.map_err(unusable)?),
        };
        snapshots.look().map_err(unusable)?;
        Ok(snapshots)
    }

    /// Reads which files are there, oldest first; removes what an interrupted write has left.
    fn look(&mut self) -> io::Result<()> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let file_name = entry.file_name();
            let Some(file_name) = file_name.to_str() else { continue };
            let facts = entry.metadata()?;
            match Name::parse(file_name) {
                Some(name) if facts.is_file() => {
                    found.push((facts.modified().unwrap_or(SystemTime::UNIX_EPOCH), name, facts.len()));
                }
                // Left by a process that ended in the middle of a write, perhaps by one that still runs.
                None if file_name.ends_with(".partial") && facts.is_file() => {
                    let _ = fs::remove_file(entry.path());
                }
                _ => {}
            }
        }
        found.sort_unstable();
        let skipped = found.len().saturating_sub(FILES_MAX);
        for (_, name, bytes) in found.into_iter().skip(skipped) {
            self.now += 1;
            self.files.insert(name, Known { bytes, used: self.now });
            self.bytes += bytes;
        }
        self.shrink();
        Ok(())
    }

    /// Bytes of the files.
    pub fn bytes(&self) -> Bytes {
        Bytes(self.bytes + self.answers_bytes)
    }

    /// The answers that were remembered before; none where the file is absent or damaged.
    pub fn answers(&mut self) -> AnswerMemory {
        let read = fs::read(self.folder.join(ANSWERS)).ok().filter(|bytes| bytes.len() <= ANSWERS_BYTES_MAX);
        self.answers_bytes = read.as_ref().map_or(0, |bytes| bytes.len() as u64);
        read.and_then(|bytes| AnswerMemory::from_bytes(&bytes)).unwrap_or_default()
    }

    /// Writes the remembered answers. Without room for them they are computed anew after a restart.
    pub fn keep_answers(&mut self, bytes: &[u8]) {
        let length = bytes.len() as u64;
        if length <= self.bytes_max && write_whole(&self.folder.join(ANSWERS), &[bytes]).is_ok() {
            self.answers_bytes = length;
            self.shrink();
        }
    }

    /// Marks the pages of a chain as used, its beginning last.
    fn touch(&mut self, chain: &[Name]) {
        for name in chain.iter().rev() {
            self.now += 1;
            if let Some(known) = self.files.get_mut(name) {
                known.used = self.now;
            }
        }
    }

    /// Lets the pages of a conversation be written, as staging buffers come free.
    pub fn keep(&mut self, tokens: &[u32], sequence: &Sequence, pool: &mut KvPool) {
        let mut names = Vec::new();
        for (index, ((name, page_tokens), &page)) in chain(tokens).zip(sequence.pages()).enumerate() {
            if page_tokens.len() < TAIL_TOKENS_MIN {
                break;
            }
            names.push(name);
            let waits =
                |pending: &VecDeque<(Name, Vec<u32>, u32)>| pending.iter().any(|(other, ..)| *other == name);
            if !self.files.contains_key(&name) && !waits(&self.pending) {
                self.forget_beginnings(&tokens[..index * PAGE_POSITIONS + page_tokens.len()], &name, pool);
                pool.retain(page);
                self.pending.push_back((name, page_tokens.to_vec(), page));
            }
        }
        self.touch(&names);
        self.step(pool);
    }

    /// Removes shorter pages of the same tokens as `name`'s, which ends `tokens`.
    fn forget_beginnings(&mut self, tokens: &[u32], name: &Name, pool: &mut KvPool) {
        let before = tokens.len() - usize::from(name.count);
        let begins = |shorter: &Name| {
            shorter.parent == name.parent
                && shorter.count < name.count
                && shorter.own == hash(&tokens[..before + usize::from(shorter.count)])
        };
        let files = self.files.range(Name::after(name.parent)).map(|(name, _)| *name);
        let gone: Vec<Name> = files.filter(begins).collect();
        gone.iter().for_each(|name| self.remove(name));
        self.pending.retain(|(pending, _, page)| {
            let stays = !begins(pending);
            if !stays {
                pool.release_page(*page);
            }
            stays
        });
    }

    /// Takes back staging buffers and fills them again, without waiting.
    pub fn step(&mut self, pool: &mut KvPool) {
        while let Ok(done) = self.done.try_recv() {
            self.written(done);
        }
        while let (Some(_), Some(jobs)) = (self.pending.front(), &self.jobs) {
            let Some(mut staging) = self.staging.pop() else { return };
            let Some((name, tokens, page)) = self.pending.pop_front() else { return };
            staging.as_bytes_mut()[..self.page_bytes].copy_from_slice(pool.page(page));
            pool.release_page(page);
            if jobs.send(Job { name, tokens, page: staging }).is_ok() {
                self.in_flight += 1;
            }
        }
    }

    fn written(&mut self, done: Done) {
        self.in_flight -= 1;
        self.staging.push(done.page);
        // A full or broken disk means that this page will be computed again.
        if let Ok(bytes) = done.bytes {
            self.now += 1;
            let known = Known { bytes, used: self.now };
            if self.files.insert(done.name, known).is_none() {
                self.bytes += bytes;
            }
            self.shrink();
        }
    }

    /// Removes files until the folder is within its bounds.
    fn shrink(&mut self) {
        while self.bytes + self.answers_bytes > self.bytes_max || self.files.len() > FILES_MAX {
            let Some(oldest) = self.files.iter().min_by_key(|(_, known)| known.used).map(|(name, _)| *name)
            else {
                return;
            };
            self.remove(&oldest);
        }
    }

    fn remove(&mut self, name: &Name) {
        if let Some(known) = self.files.remove(name) {
            self.bytes -= known.bytes;
            let _ = fs::remove_file(self.folder.join(name.file_name()));
        }
    }

    /// Gives up the pages that wait to be written; requests need them. Returns how many there were.
    pub fn give_up_pending(&mut self, pool: &mut KvPool) -> usize {
        let pages = self.pending.len();
        for (_, _, page) in self.pending.drain(..) {
            pool.release_page(page);
        }
        pages
    }

    /// Writes everything that waits; returns when it is done.
    pub fn flush(&mut self, pool: &mut KvPool) {
        loop {
            self.step(pool);
            if self.pending.is_empty() && self.in_flight == 0 {
                return;
            }
            match self.done.recv() {
                Ok(done) => self.written(done),
                Err(_) => return,
            }
        }
    }

    /// Reads the pages that follow on the first `there` of `tokens` into free pages and tells the tree about them.
    pub fn bring(&mut self, tokens: &[u32], there: usize, prefix: &mut PrefixTree, pool: &mut KvPool) {
        let first = there / PAGE_POSITIONS;
        let names: Vec<Name> = chain(tokens).map(|(name, _)| name).collect();
        let stored = |name: &&Name| name.is_whole() && self.files.contains_key(name);
        let mut wanted: Vec<Name> = names.iter().skip(first).take_while(stored).copied().collect();
        let next = first + wanted.len();
        let parent = if next == 0 { Some(Hash::default()) } else { names.get(next - 1).map(|name| name.own) };
        let rest = &tokens[(next * PAGE_POSITIONS).min(tokens.len())..];
        let known = there.saturating_sub(next * PAGE_POSITIONS);
        wanted.extend(parent.and_then(|parent| self.agreeing(parent, rest, known)));
        if wanted.is_empty() {
            return;
        }
        let mut pages = prefix.find(&tokens[..first * PAGE_POSITIONS]).pages;
        let (mut brought, mut used) = (Vec::new(), names[..first].to_vec());
        let mut covered = first * PAGE_POSITIONS;
        for name in wanted {
            let Ok(page) = pool.take() else { break };
            let Ok(found) = read(&self.folder.join(name.file_name()), pool.page_mut(page)) else {
                // Damaged, foreign, or removed by somebody: it will be computed, and written again.
                pool.release_page(page);
                self.remove(&name);
                break;
            };
            brought.push(page);
            used.push(name);
            let agree = common(&found, &tokens[covered..]);
            covered += agree;
            if agree < PAGE_POSITIONS {
                break;
            }
        }
        pages.extend(&brought);
        remember(prefix, pool, &tokens[..covered], &pages);
        brought.into_iter().for_each(|page| pool.release_page(page));
        self.touch(&used);
        if let Some(last) = used.last() {
            // So that the next start knows what was used last.
            let file = File::options().append(true).open(self.folder.join(last.file_name()));
            let _ = file.and_then(|file| file.set_modified(SystemTime::now()));
        }
    }

    /// The page after `parent` that agrees with `tokens` for longest, if that is for more than `known` tokens.
    fn agreeing(&self, parent: Hash, tokens: &[u32], known: usize) -> Option<Name> {
        let mut candidates: Vec<_> = self.files.range(Name::after(parent)).collect();
        candidates.retain(|(name, _)| usize::from(name.count).min(tokens.len()) > known);
        candidates.sort_unstable_by_key(|(_, known)| std::cmp::Reverse(known.used));
        let agree = |name: &Name| {
            let theirs = peek(&self.folder.join(name.file_name())).unwrap_or_default();
            common(&theirs, tokens)
        };
        let looked = candidates.into_iter().take(LOOKED_INTO_MAX).map(|(name, _)| (agree(name), *name));
        looked.max_by_key(|(agree, _)| *agree).filter(|(agree, _)| *agree > known).map(|(_, name)| name)
    }

    /// Ends the writer. What waits is not written: [`Snapshots::flush`] comes before.
    pub fn close(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.jobs = None;
        if let Some(writer) = self.writer.take() {
            // It has told what it wrote.
            let _ = writer.join();
        }
    }
}

impl Drop for Snapshots {
    fn drop(&mut self) {
        self.end();
    }
}
