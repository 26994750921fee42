//! Pages of keys and values on disk, so that a restart or another session goes on without computing them again.
//!
//! A snapshot is one whole page. Its name is a hash over all tokens up to its end, so a conversation is a chain of names that
//! anybody with the same tokens finds, and common beginnings are stored once. The folder of a model is named by a hash over
//! the weights' fingerprint, the KV type, the size of a page and the version of this format: other weights have another folder.
//! Files are written to a temporary name by a thread of their own and renamed; a file counts only if header, tokens and
//! checksum are right, so a crash, a full disk or a foreign file costs a computation and nothing else. When the folder is
//! larger than its bound, what was not used for longest goes, ends of chains before their beginnings. Staging buffers come from
//! the ledger; pages that wait for one are owned by this file until then, and given up when requests need them.

use std::collections::{HashMap, VecDeque};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::SystemTime;

use coldpress_memory::{Buffer, Bytes, Purpose, sys};
use coldpress_model::{KvPool, PAGE_POSITIONS, Sequence};

use super::prefix::PrefixTree;
use super::worker::remember;
use crate::error::EngineError;
use crate::runtime::Runtime;

const MAGIC: [u8; 8] = *b"cpKVpage";
const VERSION: u32 = 1;
/// Magic, version, checksum, length of the page, tokens.
const HEADER_BYTES: usize = 8 + 4 + 4 + 8 + PAGE_POSITIONS * 4;
/// Pages on their way to the disk.
pub(crate) const STAGING_BUFFERS: usize = 2;
/// Files of a folder that are known at a time; 64 bytes of memory each.
const FILES_MAX: usize = 1 << 16;
const EXTENSION: &str = "kvpage";

type Name = [u8; 16];

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
    files: HashMap<Name, Known>,
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

/// The names of the whole pages of `tokens`, one after the other.
fn names(tokens: &[u32]) -> impl Iterator<Item = (Name, &[u32])> {
    let mut chain = blake3::Hasher::new();
    tokens.chunks_exact(PAGE_POSITIONS).map(move |tokens| {
        for token in tokens {
            chain.update(&token.to_le_bytes());
        }
        let mut name = Name::default();
        name.copy_from_slice(&chain.finalize().as_bytes()[..16]);
        (name, tokens)
    })
}

fn file_name(name: &Name) -> String {
    let digits: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{digits}.{EXTENSION}")
}

fn parse_name(file_name: &str) -> Option<Name> {
    let digits = file_name.strip_suffix(EXTENSION)?.strip_suffix('.')?;
    let mut name = Name::default();
    if digits.len() != 2 * name.len() || !digits.is_ascii() {
        return None;
    }
    for (index, byte) in name.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * index..2 * index + 2], 16).ok()?;
    }
    Some(name)
}

fn header(tokens: &[u32], page: &[u8]) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header[16..24].copy_from_slice(&(page.len() as u64).to_le_bytes());
    for (place, token) in header[24..].chunks_exact_mut(4).zip(tokens) {
        place.copy_from_slice(&token.to_le_bytes());
    }
    let checksum = crc32c::crc32c_append(crc32c::crc32c(&header), page);
    header[12..16].copy_from_slice(&checksum.to_le_bytes());
    header
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
            files: HashMap::new(),
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
            match parse_name(file_name) {
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
        Bytes(self.bytes)
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

    /// Lets the whole pages of a conversation be written, as staging buffers come free.
    pub fn keep(&mut self, tokens: &[u32], sequence: &Sequence, pool: &mut KvPool) {
        let mut chain = Vec::new();
        for ((name, tokens), &page) in names(tokens).zip(sequence.pages()) {
            chain.push(name);
            let waits = || self.pending.iter().any(|(pending, ..)| *pending == name);
            if !self.files.contains_key(&name) && !waits() {
                pool.retain(page);
                self.pending.push_back((name, tokens.to_vec(), page));
            }
        }
        self.touch(&chain);
        self.step(pool);
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
        while self.bytes > self.bytes_max || self.files.len() > FILES_MAX {
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
            let _ = fs::remove_file(self.folder.join(file_name(name)));
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
        let chain: Vec<(Name, &[u32])> = names(tokens).collect();
        let known = |(name, _): &&(Name, &[u32])| self.files.contains_key(name);
        let stored = chain.iter().skip(first).take_while(known).count();
        if stored == 0 {
            return;
        }
        let mut pages = prefix.find(&tokens[..first * PAGE_POSITIONS]).pages;
        let mut brought = Vec::new();
        for (name, tokens) in &chain[first..first + stored] {
            let Ok(page) = pool.take() else { break };
            let path = self.folder.join(file_name(name));
            if read(&path, tokens, pool.page_mut(page)).is_err() {
                // Damaged, foreign, or removed by somebody: it will be computed, and written again.
                pool.release_page(page);
                self.remove(name);
                break;
            }
            brought.push(page);
        }
        pages.extend(&brought);
        let whole = &tokens[..pages.len() * PAGE_POSITIONS];
        remember(prefix, pool, whole, &pages);
        brought.into_iter().for_each(|page| pool.release_page(page));
        let used: Vec<Name> = chain[..pages.len()].iter().map(|(name, _)| *name).collect();
        self.touch(&used);
        if let Some(last) = used.last() {
            // So that the next start knows what was used last.
            let file = File::options().append(true).open(self.folder.join(file_name(last)));
            let _ = file.and_then(|file| file.set_modified(SystemTime::now()));
        }
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

/// Writes a page to a temporary name and renames it; returns the bytes of the file.
fn write(folder: &Path, name: &Name, tokens: &[u32], page: &[u8]) -> io::Result<u64> {
    let path = folder.join(file_name(name));
    let partial = path.with_extension(format!("{}.partial", std::process::id()));
    let result = (|| {
        let mut file = File::create(&partial)?;
        file.write_all(&header(tokens, page))?;
        file.write_all(page)?;
        sys::sync_file(&file)?;
        // What the system keeps of it would count as ours.
        let bytes = (HEADER_BYTES + page.len()) as u64;
        let _ = sys::drop_page_cache(&file, 0..bytes);
        fs::rename(&partial, &path)?;
        Ok(bytes)
    })();
    if result.is_err() {
        let _ = fs::remove_file(&partial);
    }
    result
}

/// Fills `page` from a file that holds it for `tokens`.
fn read(path: &Path, tokens: &[u32], page: &mut [u8]) -> io::Result<()> {
    let wrong = || io::Error::new(io::ErrorKind::InvalidData, "not the snapshot it should be");
    let mut file = File::open(path)?;
    let bytes = (HEADER_BYTES + page.len()) as u64;
    if file.metadata()?.len() != bytes {
        return Err(wrong());
    }
    let mut found = [0; HEADER_BYTES];
    file.read_exact(&mut found)?;
    file.read_exact(page)?;
    let _ = sys::drop_page_cache(&file, 0..bytes);
    if found == header(tokens, page) { Ok(()) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_comes_back_as_it_was_and_any_changed_byte_is_noticed() {
        let folder = tempfile::tempdir().expect("a folder");
        let tokens: Vec<u32> = (100..164).collect();
        let page: Vec<u8> = (0..500).map(|byte| (byte * 7) as u8).collect();
        let (name, _) = names(&tokens).next().expect("one page");
        let bytes = write(folder.path(), &name, &tokens, &page).expect("written");
        let path = folder.path().join(file_name(&name));
        assert_eq!(fs::read_dir(folder.path()).expect("there").count(), 1);
        let mut back = vec![0; page.len()];
        read(&path, &tokens, &mut back).expect("whole");
        assert_eq!(back, page);
        let whole = fs::read(&path).expect("there");
        assert_eq!(whole.len() as u64, bytes);
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(&path, &damaged).expect("written");
            assert!(read(&path, &tokens, &mut back).is_err(), "byte {at}");
        }
        fs::write(&path, &whole[..whole.len() - 1]).expect("written");
        assert!(read(&path, &tokens, &mut back).is_err());
        fs::write(&path, &whole).expect("written");
        let others: Vec<u32> = (0..64).collect();
        assert!(read(&path, &others, &mut back).is_err());
    }

    #[test]
    fn names_are_those_of_everything_before() {
        let tokens: Vec<u32> = (0..200).collect();
        let all: Vec<Name> = names(&tokens).map(|(name, _)| name).collect();
        assert_eq!(all.len(), 3);
        assert_eq!(names(&tokens[..128]).map(|(name, _)| name).collect::<Vec<_>>(), all[..2]);
        let mut other = tokens.clone();
        other[0] = 7;
        assert!(names(&other).zip(&all).all(|((other, _), name)| other != *name));
        assert_eq!(parse_name(&file_name(&all[0])), Some(all[0]));
        for wrong in ["", "x.kvpage", "00.kvpage", "é".repeat(16).as_str()] {
            assert_eq!(parse_name(wrong), None);
        }
    }
}
