//! One file of the snapshot folder: its name and its bytes.
//!
//! A file holds one page of keys and values: up to [`PAGE_POSITIONS`] consecutive tokens of a conversation. Its name says what
//! comes before the page (a hash over all tokens there), what the page ends (a hash over those and its own), and how many tokens
//! it has. So all pages that could follow on a beginning are found by name, also those that agree with a conversation only for
//! a while. For models with recurrent layers there are states as well: a file of the other [`Kind`], named like the page that its
//! last tokens would make. The bytes count only if length, header and checksum are right. Read next: `snapshots.rs`.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use coldpress_memory::sys;
use coldpress_model::PAGE_POSITIONS;

/// Part of the folder's name too: files of another version are never seen.
pub(super) const VERSION: u32 = 2;
/// Magic, version, checksum, length of the page, number of tokens, tokens.
const HEADER_BYTES: usize = 8 + 4 + 4 + 8 + 8 + PAGE_POSITIONS * 4;

/// What a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// A page of keys and values.
    Page,
    /// The recurrent state after the tokens of the page.
    State,
}

impl Kind {
    const fn extension(self) -> &'static str {
        match self {
            Self::Page => ".kvpage",
            Self::State => ".kvstate",
        }
    }

    const fn magic(self) -> [u8; 8] {
        match self {
            Self::Page => *b"cpKVpage",
            Self::State => *b"cpKVstat",
        }
    }
}

/// A hash over the tokens of a beginning; zeros for none.
pub(super) type Hash = [u8; 16];

/// See the module header. Sorted by what comes before, so that pages with the same beginning lie together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name {
    pub parent: Hash,
    pub own: Hash,
    /// Tokens of the page, at least one.
    pub count: u8,
    pub kind: Kind,
}

impl Name {
    /// All names that follow on `parent`.
    pub fn after(parent: Hash) -> std::ops::RangeInclusive<Self> {
        let least = Self { parent, own: [0; 16], count: 0, kind: Kind::Page };
        least..=Self { own: [0xff; 16], count: u8::MAX, kind: Kind::State, ..least }
    }

    pub fn is_whole(&self) -> bool {
        usize::from(self.count) == PAGE_POSITIONS
    }

    pub fn file_name(&self) -> String {
        let digits = |hash: &Hash| hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let (parent, own, extension) = (digits(&self.parent), digits(&self.own), self.kind.extension());
        format!("{parent}-{own}-{:02x}{extension}", self.count)
    }

    pub fn parse(file_name: &str) -> Option<Self> {
        let stem = |kind: Kind| Some((kind, file_name.strip_suffix(kind.extension())?));
        let (kind, stem) = stem(Kind::Page).or_else(|| stem(Kind::State))?;
        let mut parts = stem.split('-');
        let parent = parse_hash(parts.next()?)?;
        let own = parse_hash(parts.next()?)?;
        let count = parts.next().filter(|count| count.len() == 2)?;
        let count = u8::from_str_radix(count, 16).ok()?;
        let fits = (1..=PAGE_POSITIONS).contains(&usize::from(count)) && parts.next().is_none();
        fits.then_some(Self { parent, own, count, kind })
    }
}

fn parse_hash(digits: &str) -> Option<Hash> {
    let mut hash = Hash::default();
    if digits.len() != 2 * hash.len() || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (index, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * index..2 * index + 2], 16).ok()?;
    }
    Some(hash)
}

/// The names of the pages of `tokens`, one after the other; the last one may be partial.
pub(super) fn chain(tokens: &[u32]) -> impl Iterator<Item = (Name, &[u32])> {
    let mut hasher = blake3::Hasher::new();
    let mut parent = Hash::default();
    tokens.chunks(PAGE_POSITIONS).map(move |tokens| {
        for token in tokens {
            hasher.update(&token.to_le_bytes());
        }
        let own = cut(&hasher);
        let count = tokens.len() as u8;
        let name = Name { parent: std::mem::replace(&mut parent, own), own, count, kind: Kind::Page };
        (name, tokens)
    })
}

/// The name of the state after all of `tokens`, which are not empty, and the tokens of its last page.
pub(super) fn state_name(tokens: &[u32]) -> (Name, &[u32]) {
    let before = (tokens.len() - 1) / PAGE_POSITIONS * PAGE_POSITIONS;
    let (beginning, last) = tokens.split_at(before);
    let parent = if before == 0 { Hash::default() } else { hash(beginning) };
    let (own, count) = (hash(tokens), last.len() as u8);
    (Name { parent, own, count, kind: Kind::State }, last)
}

/// The hash over a whole beginning.
pub(super) fn hash(tokens: &[u32]) -> Hash {
    let mut hasher = blake3::Hasher::new();
    for token in tokens {
        hasher.update(&token.to_le_bytes());
    }
    cut(&hasher)
}

fn cut(hasher: &blake3::Hasher) -> Hash {
    let mut hash = Hash::default();
    hash.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    hash
}

/// The header without its checksum.
fn header(kind: Kind, tokens: &[u32], length: u64) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&kind.magic());
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header[16..24].copy_from_slice(&length.to_le_bytes());
    header[24..32].copy_from_slice(&(tokens.len() as u64).to_le_bytes());
    for (place, token) in header[32..].chunks_exact_mut(4).zip(tokens) {
        place.copy_from_slice(&token.to_le_bytes());
    }
    header
}

fn with_checksum(mut header: [u8; HEADER_BYTES], checksum: u32) -> [u8; HEADER_BYTES] {
    header[12..16].copy_from_slice(&checksum.to_le_bytes());
    header
}

/// The tokens of a header, which nobody has checked.
fn tokens_in(header: &[u8; HEADER_BYTES]) -> Vec<u32> {
    let mut count = [0; 8];
    count.copy_from_slice(&header[24..32]);
    let count = usize::try_from(u64::from_le_bytes(count)).unwrap_or(0).min(PAGE_POSITIONS);
    let token = |four: &[u8]| u32::from_le_bytes([four[0], four[1], four[2], four[3]]);
    header[32..].chunks_exact(4).take(count).map(token).collect()
}

/// A file that is written in pieces, under a temporary name until it is whole. Dropped before, it leaves nothing.
pub(super) struct Writing {
    file: File,
    partial: PathBuf,
    path: PathBuf,
    header: [u8; HEADER_BYTES],
    checksum: u32,
    /// Bytes that are still to come.
    left: u64,
    bytes: u64,
    renamed: bool,
}

impl Writing {
    /// Begins a file of `length` bytes beside its header.
    pub fn begin(folder: &Path, name: &Name, tokens: &[u32], length: u64) -> io::Result<Self> {
        let path = folder.join(name.file_name());
        let partial = path.with_extension(format!("{}.partial", std::process::id()));
        let header = header(name.kind, tokens, length);
        let bytes = HEADER_BYTES as u64 + length;
        let file = File::create(&partial)?;
        let checksum = crc32c::crc32c(&header);
        let mut writing = Self { file, partial, path, header, checksum, left: length, bytes, renamed: false };
        // The checksum is known at the end.
        writing.file.write_all(&header)?;
        Ok(writing)
    }

    /// Appends a piece; returns the bytes of the file when it was the last.
    pub fn push(&mut self, piece: &[u8]) -> io::Result<Option<u64>> {
        self.file.write_all(piece)?;
        self.checksum = crc32c::crc32c_append(self.checksum, piece);
        self.left = self.left.saturating_sub(piece.len() as u64);
        if self.left > 0 {
            return Ok(None);
        }
        self.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(&with_checksum(self.header, self.checksum))?;
        sys::sync_file(&self.file)?;
        // What the system keeps of it would count as ours.
        let _ = sys::drop_page_cache(&self.file, 0..self.bytes);
        fs::rename(&self.partial, &self.path)?;
        self.renamed = true;
        Ok(Some(self.bytes))
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        if !self.renamed {
            let _ = fs::remove_file(&self.partial);
        }
    }
}

/// Writes a file that is there as a whole or as it was before, and leaves nothing of it in the page cache.
pub(super) fn write_whole(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let partial = path.with_extension(format!("{}.partial", std::process::id()));
    let result = (|| {
        let mut file = File::create(&partial)?;
        let mut bytes = 0;
        for part in parts {
            file.write_all(part)?;
            bytes += part.len() as u64;
        }
        sys::sync_file(&file)?;
        // What the system keeps of it would count as ours.
        let _ = sys::drop_page_cache(&file, 0..bytes);
        fs::rename(&partial, path)
    })();
    if result.is_err() {
        let _ = fs::remove_file(&partial);
    }
    result
}

/// The tokens that a file says it has, to choose by; [`read`] checks them.
pub(super) fn peek(path: &Path) -> io::Result<Vec<u32>> {
    let mut found = [0; HEADER_BYTES];
    let mut file = File::open(path)?;
    file.read_exact(&mut found)?;
    let _ = sys::drop_page_cache(&file, 0..file.metadata()?.len());
    Ok(tokens_in(&found))
}

/// Fills `page`, or a state, from a file, and returns the tokens of the page.
pub(super) fn read(folder: &Path, name: &Name, page: &mut [u8]) -> io::Result<Vec<u32>> {
    let wrong = || io::Error::new(io::ErrorKind::InvalidData, "not the snapshot it should be");
    let mut file = File::open(folder.join(name.file_name()))?;
    let bytes = (HEADER_BYTES + page.len()) as u64;
    if file.metadata()?.len() != bytes {
        return Err(wrong());
    }
    let mut found = [0; HEADER_BYTES];
    file.read_exact(&mut found)?;
    file.read_exact(page)?;
    let _ = sys::drop_page_cache(&file, 0..bytes);
    let tokens = tokens_in(&found);
    let expected = header(name.kind, &tokens, page.len() as u64);
    let checksum = crc32c::crc32c_append(crc32c::crc32c(&expected), page);
    let is_whole = !tokens.is_empty() && found == with_checksum(expected, checksum);
    if is_whole { Ok(tokens) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_comes_back_as_it_was_and_any_changed_byte_is_noticed() {
        let folder = tempfile::tempdir().expect("a folder");
        let page: Vec<u8> = (0..500).map(|byte| (byte * 7) as u8).collect();
        for (count, piece) in [(64, 500), (1, 499), (37, 7)] {
            let tokens: Vec<u32> = (100..100 + count).collect();
            let (page_name, _) = chain(&tokens).next().expect("one page");
            let name = if piece == 7 { state_name(&tokens).0 } else { page_name };
            let mut writing = Writing::begin(folder.path(), &name, &tokens, 500).expect("begun");
            let pieces: Vec<_> =
                page.chunks(piece).map(|piece| writing.push(piece).expect("written")).collect();
            let (last, others) = pieces.split_last().expect("pieces");
            assert!(others.iter().all(Option::is_none));
            let bytes = last.expect("whole");
            let path = folder.path().join(name.file_name());
            assert_eq!(fs::read_dir(folder.path()).expect("there").count(), 1);
            let mut back = vec![0; page.len()];
            let read = |back: &mut [u8]| read(folder.path(), &name, back);
            assert_eq!(read(&mut back).expect("whole"), tokens);
            assert_eq!(peek(&path).expect("whole"), tokens);
            assert_eq!(back, page);
            let whole = fs::read(&path).expect("there");
            assert_eq!(whole.len() as u64, bytes);
            for at in 0..whole.len() {
                let mut damaged = whole.clone();
                damaged[at] ^= 1;
                fs::write(&path, &damaged).expect("written");
                assert!(read(&mut back).is_err(), "byte {at}");
            }
            fs::write(&path, &whole[..whole.len() - 1]).expect("written");
            assert!(read(&mut back).is_err());
            fs::remove_file(&path).expect("there");
            drop(Writing::begin(folder.path(), &name, &tokens, 500).expect("begun"));
            assert_eq!(
                fs::read_dir(folder.path()).expect("there").count(),
                0,
                "a file that was not finished"
            );
        }
    }

    #[test]
    fn names_say_what_comes_before_and_what_the_page_ends() {
        let tokens: Vec<u32> = (0..200).collect();
        let all: Vec<Name> = chain(&tokens).map(|(name, _)| name).collect();
        assert_eq!(all.iter().map(|name| name.count).collect::<Vec<_>>(), [64, 64, 64, 8]);
        assert_eq!(all[0].parent, Hash::default());
        assert!(all.windows(2).all(|pair| pair[1].parent == pair[0].own));
        assert_eq!(chain(&tokens[..128]).map(|(name, _)| name).collect::<Vec<_>>(), all[..2]);
        assert_eq!(hash(&tokens[..200]), all[3].own);
        assert!(Name::after(all[2].own).contains(&all[3]) && !Name::after(all[2].own).contains(&all[2]));
        for length in [1, 63, 64, 65, 200] {
            let (state, last) = state_name(&tokens[..length]);
            let (page, page_tokens) = chain(&tokens[..length]).last().expect("a page");
            assert_eq!((state, last), (Name { kind: Kind::State, ..page }, page_tokens));
            assert_eq!(Name::parse(&state.file_name()), Some(state));
        }
        let mut other = tokens.clone();
        other[0] = 7;
        assert!(chain(&other).zip(&all).all(|((other, _), name)| other.own != name.own));
        for name in &all {
            assert_eq!(Name::parse(&name.file_name()), Some(*name));
        }
        let good = all[0].file_name();
        for wrong in [
            "",
            "x.kvpage",
            "00.kvpage",
            &"é".repeat(16),
            &good[1..],
            &good.replace("-40", "-41"),
            &good.replace("-40", "-00"),
        ] {
            assert_eq!(Name::parse(wrong), None, "{wrong}");
        }
    }
}
