//! Pages of keys and values on disk, so that a restart or another session goes on without computing them again.
//!
//! A conversation is a chain of pages that anybody with the same tokens finds by name (`snapshot_file.rs`), and common beginnings
//! are stored once. The end of a conversation is a page that is not full; a longer one takes its place. Where a conversation parts
//! from what is stored in the middle of a page, the rows before that are used. The folder of a model is named by a hash over
//! the weights' fingerprint, the KV type, what else is lossy, the size of a page and the version of this format: other weights have
//! another folder, and so have other ways to compute with them.
//! Files are written to a temporary name by a thread of their own and renamed, so a crash, a full disk or a foreign file costs a
//! computation and nothing else. How the model wrote its answers lies beside them (`answer_memory.rs`). When the folder is
//! larger than its bound, what was not used for longest goes, ends of chains before their beginnings. Staging buffers come from
//! the ledger; pages that wait for one are owned by this file until then, and given up when requests need them.
//! Models with recurrent layers go on only from states. Those that the prefix tree keeps of a conversation are written too, each in
//! pieces of a page, and pages are read up to the longest state that fits.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::SystemTime;

use coldpress_memory::{Buffer, Bytes, Purpose};
use coldpress_model::{KvPool, PAGE_POSITIONS};

use super::answer_memory::AnswerMemory;
use super::keeping::{evict_state, remember};
use super::prefix::{PrefixTree, common};
use super::snapshot_file::{
    Hash, Kind, Name, VERSION, Writing, chain, hash, peek, read, state_name, write_whole,
};
use crate::error::EngineError;
use crate::runtime::Runtime;

/// How the model wrote its answers; the name sorts and parses as no page's.
const ANSWERS: &str = "answers.remembered";
/// A longer one is not ours.
const ANSWERS_BYTES_MAX: usize = 2 * super::answer_memory::BYTES_MAX;
/// What a recurrent state looks like; another number for another layout of any kind of mixer.
const STATE_VERSION: u32 = 1;
/// Pieces on their way to the disk.
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

/// A page or a state that is to be written; this file is one of its owners.
struct Pending {
    name: Name,
    /// The tokens of the page.
    tokens: Vec<u32>,
    /// The page, or the slot of the state.
    place: u32,
    /// Bytes that the writer has.
    sent: usize,
}

impl Pending {
    fn bytes<'a>(&self, pool: &'a KvPool) -> &'a [u8] {
        match self.name.kind {
            Kind::Page => pool.page(self.place),
            Kind::State => pool.state(self.place),
        }
    }

    fn retain(&self, pool: &mut KvPool) {
        match self.name.kind {
            Kind::Page => pool.retain(self.place),
            Kind::State => pool.retain_state(self.place),
        }
    }

    fn release(&self, pool: &mut KvPool) {
        match self.name.kind {
            Kind::Page => pool.release_page(self.place),
            Kind::State => pool.release_state(self.place),
        }
    }
}

/// One piece for the writer.
struct Job {
    name: Name,
    tokens: Vec<u32>,
    /// Bytes of the whole, and those before the piece.
    length: usize,
    before: usize,
    staging: Buffer,
    /// Bytes of the piece.
    bytes: usize,
}

/// What became of it: the buffer comes back, and the bytes of the file if it is whole.
struct Done {
    name: Name,
    staging: Buffer,
    written: io::Result<Option<u64>>,
}

/// Writes pieces as they come. A file of which a piece cannot be written is given up.
fn write_pieces(folder: &Path, jobs: Receiver<Job>, told: &Sender<Done>) {
    let mut open: Option<(Name, Writing)> = None;
    for Job { name, tokens, length, before, staging, bytes } in jobs {
        let mut write = || {
            if before == 0 {
                // What is there of another one goes first: it may have the same temporary name.
                open = None;
                open = Some((name, Writing::begin(folder, &name, &tokens, length as u64)?));
            }
            match &mut open {
                Some((opened, writing)) if *opened == name => writing.push(&staging.as_bytes()[..bytes]),
                _ => Err(io::Error::other("an earlier piece is missing")),
            }
        };
        let written = write();
        if !matches!(written, Ok(None)) {
            open = None;
        }
        if told.send(Done { name, staging, written }).is_err() {
            return;
        }
    }
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
    pending: VecDeque<Pending>,
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
        let mut identity = format!(
            "coldpress keys and values {VERSION} {} {} {page_bytes} {PAGE_POSITIONS} {}",
            runtime.fingerprint()?,
            runtime.report.kv_type,
            runtime.report.lossy.join(", ")
        );
        if runtime.has_states() {
            identity += &format!(" states {STATE_VERSION} {}", runtime.state_bytes());
        }
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
            write_pieces(&target, theirs, &told);
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

    /// Lets the pages of a conversation, and its states, be written as staging buffers come free. The tree has them.
    pub fn keep(&mut self, tokens: &[u32], prefix: &PrefixTree, pool: &mut KvPool) {
        let mut names = Vec::new();
        // A state is of no use without all rows before it.
        let least = if prefix.has_states() { 1 } else { TAIL_TOKENS_MIN };
        for (index, ((name, page_tokens), page)) in chain(tokens).zip(prefix.pages_of(tokens)).enumerate() {
            if page_tokens.len() < least {
                break;
            }
            names.push(name);
            if !self.is_kept(&name) {
                self.forget_beginnings(&tokens[..index * PAGE_POSITIONS + page_tokens.len()], &name, pool);
                self.wait(Pending { name, tokens: page_tokens.to_vec(), place: page, sent: 0 }, pool);
            }
        }
        for (length, slot) in prefix.states_of(tokens) {
            let (name, page_tokens) = state_name(&tokens[..length]);
            // One that fills most of the folder would only push out pages that it needs.
            if !self.is_kept(&name) && 2 * pool.state_bytes() as u64 <= self.bytes_max {
                self.wait(Pending { name, tokens: page_tokens.to_vec(), place: slot, sent: 0 }, pool);
            }
            names.push(name);
        }
        self.touch(&names);
        self.step(pool);
    }

    /// Whether a file is there or will be.
    fn is_kept(&self, name: &Name) -> bool {
        self.files.contains_key(name) || self.pending.iter().any(|pending| pending.name == *name)
    }

    fn wait(&mut self, pending: Pending, pool: &mut KvPool) {
        pending.retain(pool);
        self.pending.push_back(pending);
    }

    /// Removes shorter pages of the same tokens as `name`'s, which ends `tokens`.
    fn forget_beginnings(&mut self, tokens: &[u32], name: &Name, pool: &mut KvPool) {
        let before = tokens.len() - usize::from(name.count);
        let begins = |shorter: &Name| {
            shorter.kind == Kind::Page
                && shorter.parent == name.parent
                && shorter.count < name.count
                && shorter.own == hash(&tokens[..before + usize::from(shorter.count)])
        };
        let files = self.files.range(Name::after(name.parent)).map(|(name, _)| *name);
        let gone: Vec<Name> = files.filter(begins).collect();
        gone.iter().for_each(|name| self.remove(name));
        self.pending.retain(|pending| {
            let stays = !begins(&pending.name);
            if !stays {
                pending.release(pool);
            }
            stays
        });
    }

    /// Takes back staging buffers and fills them again, without waiting.
    pub fn step(&mut self, pool: &mut KvPool) {
        while let Ok(done) = self.done.try_recv() {
            self.written(done);
        }
        while let (Some(pending), Some(jobs)) = (self.pending.front_mut(), &self.jobs) {
            let Some(mut staging) = self.staging.pop() else { return };
            let (name, before) = (pending.name, pending.sent);
            let all = pending.bytes(pool);
            let (length, bytes) = (all.len(), self.page_bytes.min(all.len() - before));
            staging.as_bytes_mut()[..bytes].copy_from_slice(&all[before..before + bytes]);
            pending.sent += bytes;
            let tokens = if before == 0 { pending.tokens.clone() } else { Vec::new() };
            if pending.sent == length {
                pending.release(pool);
                self.pending.pop_front();
            }
            if jobs.send(Job { name, tokens, length, before, staging, bytes }).is_ok() {
                self.in_flight += 1;
            }
        }
    }

    fn written(&mut self, done: Done) {
        self.in_flight -= 1;
        self.staging.push(done.staging);
        // A full or broken disk means that this page will be computed again.
        if let Ok(Some(bytes)) = done.written {
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

    /// Gives up the pages and states that wait to be written; requests need them. Returns how many there were.
    pub fn give_up_pending(&mut self, pool: &mut KvPool) -> usize {
        let count = self.pending.len();
        self.pending.drain(..).for_each(|pending| pending.release(pool));
        count
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

    /// Reads what the folder has of `tokens` beyond what the tree has into free pages, and a state into a free slot, and tells the tree.
    pub fn bring(&mut self, tokens: &[u32], prefix: &mut PrefixTree, pool: &mut KvPool) {
        if !prefix.has_states() {
            return self.bring_pages(tokens, prefix, pool);
        }
        let Some((length, name)) = self.longest_state(tokens, prefix.peek(tokens)) else { return };
        let tokens = &tokens[..length];
        self.bring_pages(tokens, prefix, pool);
        if prefix.peek_pages(tokens) < length || (pool.state_slots_free() == 0 && !evict_state(prefix, pool))
        {
            return;
        }
        let Ok(slot) = pool.take_state() else { return };
        let given_back = match read(&self.folder, &name, pool.state_mut(slot)) {
            Ok(last) if tokens.ends_with(&last) => prefix.attach(tokens, slot),
            _ => {
                self.remove(&name);
                Some(slot)
            }
        };
        given_back.into_iter().for_each(|slot| pool.release_state(slot));
        self.touch(&[name]);
    }

    /// The longest beginning of `tokens`, longer than `beyond`, of which the folder has the state.
    fn longest_state(&self, tokens: &[u32], beyond: usize) -> Option<(usize, Name)> {
        let pages: Vec<Name> = chain(tokens).map(|(name, _)| name).collect();
        for (index, page) in pages.iter().enumerate().rev() {
            let before = index * PAGE_POSITIONS;
            let fits = |name: &&Name| {
                let length = before + usize::from(name.count);
                name.kind == Kind::State
                    && (beyond + 1..=tokens.len()).contains(&length)
                    && name.own == hash(&tokens[..length])
            };
            let files = self.files.range(Name::after(page.parent)).map(|(name, _)| name);
            if let Some(name) = files.filter(fits).max_by_key(|name| name.count) {
                return Some((before + usize::from(name.count), *name));
            }
        }
        None
    }

    /// Reads the pages that follow on those of the tree into free pages and tells the tree about them.
    fn bring_pages(&mut self, tokens: &[u32], prefix: &mut PrefixTree, pool: &mut KvPool) {
        let there = prefix.peek_pages(tokens);
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
        let mut pages = prefix.pages_of(&tokens[..first * PAGE_POSITIONS]);
        let (mut brought, mut used) = (Vec::new(), names[..first].to_vec());
        let mut covered = first * PAGE_POSITIONS;
        for name in wanted {
            let Ok(page) = pool.take() else { break };
            let Ok(found) = read(&self.folder, &name, pool.page_mut(page)) else {
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
        candidates
            .retain(|(name, _)| name.kind == Kind::Page && usize::from(name.count).min(tokens.len()) > known);
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
