//! One file of the snapshot folder: its name and its bytes.
//!
//! A file holds one page of keys and values: up to [`PAGE_POSITIONS`] consecutive tokens of a conversation. Its name says what
//! comes before the page (a hash over all tokens there), what the page ends (a hash over those and its own), and how many tokens
//! it has. So all pages that could follow on a beginning are found by name, also those that agree with a conversation only for
//! a while. The bytes count only if length, header and checksum are right. Read next: `snapshots.rs`.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

use coldpress_memory::sys;
use coldpress_model::PAGE_POSITIONS;

const MAGIC: [u8; 8] = *b"cpKVpage";
/// Part of the folder's name too: files of another version are never seen.
pub(super) const VERSION: u32 = 2;
/// Magic, version, checksum, length of the page, number of tokens, tokens.
const HEADER_BYTES: usize = 8 + 4 + 4 + 8 + 8 + PAGE_POSITIONS * 4;
const EXTENSION: &str = ".kvpage";

/// A hash over the tokens of a beginning; zeros for none.
pub(super) type Hash = [u8; 16];

/// See the module header. Sorted by what comes before, so that pages with the same beginning lie together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name {
    pub parent: Hash,
    pub own: Hash,
    /// Tokens of the page, at least one.
    pub count: u8,
}

impl Name {
    /// All names that follow on `parent`.
    pub fn after(parent: Hash) -> std::ops::RangeInclusive<Self> {
        let least = Self { parent, own: [0; 16], count: 0 };
        least..=Self { own: [0xff; 16], count: u8::MAX, ..least }
    }

    pub fn is_whole(&self) -> bool {
        usize::from(self.count) == PAGE_POSITIONS
    }

    pub fn file_name(&self) -> String {
        let digits = |hash: &Hash| hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        format!("{}-{}-{:02x}{EXTENSION}", digits(&self.parent), digits(&self.own), self.count)
    }

    pub fn parse(file_name: &str) -> Option<Self> {
        let mut parts = file_name.strip_suffix(EXTENSION)?.split('-');
        let parent = parse_hash(parts.next()?)?;
        let own = parse_hash(parts.next()?)?;
        let count = parts.next().filter(|count| count.len() == 2)?;
        let count = u8::from_str_radix(count, 16).ok()?;
        let fits = (1..=PAGE_POSITIONS).contains(&usize::from(count)) && parts.next().is_none();
        fits.then_some(Self { parent, own, count })
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
        let name = Name { parent: std::mem::replace(&mut parent, own), own, count: tokens.len() as u8 };
        (name, tokens)
    })
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

fn header(tokens: &[u32], page: &[u8]) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header[16..24].copy_from_slice(&(page.len() as u64).to_le_bytes());
    header[24..32].copy_from_slice(&(tokens.len() as u64).to_le_bytes());
    for (place, token) in header[32..].chunks_exact_mut(4).zip(tokens) {
        place.copy_from_slice(&token.to_le_bytes());
    }
    let checksum = crc32c::crc32c_append(crc32c::crc32c(&header), page);
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

/// Writes a page to a temporary name and renames it; returns the bytes of the file.
pub(super) fn write(folder: &Path, name: &Name, tokens: &[u32], page: &[u8]) -> io::Result<u64> {
    let bytes = (HEADER_BYTES + page.len()) as u64;
    write_whole(&folder.join(name.file_name()), &[&header(tokens, page), page])?;
    Ok(bytes)
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

/// Fills `page` from a file, and returns the tokens that it holds.
pub(super) fn read(path: &Path, page: &mut [u8]) -> io::Result<Vec<u32>> {
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
    let tokens = tokens_in(&found);
    if !tokens.is_empty() && found == header(&tokens, page) { Ok(tokens) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_comes_back_as_it_was_and_any_changed_byte_is_noticed() {
        let folder = tempfile::tempdir().expect("a folder");
        let page: Vec<u8> = (0..500).map(|byte| (byte * 7) as u8).collect();
        for count in [64, 1, 37] {
            let tokens: Vec<u32> = (100..100 + count).collect();
            let (name, _) = chain(&tokens).next().expect("one page");
            let bytes = write(folder.path(), &name, &tokens, &page).expect("written");
            let path = folder.path().join(name.file_name());
            assert_eq!(fs::read_dir(folder.path()).expect("there").count(), 1);
            let mut back = vec![0; page.len()];
            assert_eq!(read(&path, &mut back).expect("whole"), tokens);
            assert_eq!(peek(&path).expect("whole"), tokens);
            assert_eq!(back, page);
            let whole = fs::read(&path).expect("there");
            assert_eq!(whole.len() as u64, bytes);
            for at in 0..whole.len() {
                let mut damaged = whole.clone();
                damaged[at] ^= 1;
                fs::write(&path, &damaged).expect("written");
                assert!(read(&path, &mut back).is_err(), "byte {at}");
            }
            fs::write(&path, &whole[..whole.len() - 1]).expect("written");
            assert!(read(&path, &mut back).is_err());
            fs::remove_file(&path).expect("there");
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
