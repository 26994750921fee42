//! The fingerprint that ties a pack to the model it was made from.

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use coldpress_formats::SourceFile;
use coldpress_memory::sys;

use crate::error::ExpertError;
use crate::geometry::{LayerExperts, format_number};
use crate::source::aligned;
use crate::stored::Stored;

const SAMPLE_BYTES: u64 = 4096;
const PIECE_BYTES: usize = 64 << 10;

/// BLAKE3 over, for each file, its length and its whole header (metadata and tensor directory), and for gate, up and down of
/// each layer a 4 KiB sample of the first, the middle and the last expert; then, where experts are quantised, the formats they get, and where they have codebooks or rotated inputs, those.
///
/// It tells models, quantisations and fine-tunes apart, and costs a few megabytes of reading. It is **not** a checksum of the
/// weights: an edit that misses every sample goes unseen. `coldpress pack --verify` compares every byte.
/// Names and dates of files do not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// The fingerprint of the model in `files`. `layers` must have passed [`Geometry::new`](crate::Geometry::new).
    ///
    /// # Errors
    /// When a file cannot be read or ends too early.
    pub fn of(files: &[SourceFile], layers: &[LayerExperts]) -> Result<Self, ExpertError> {
        let mut hasher = blake3::Hasher::new();
        let mut opened = Vec::with_capacity(files.len());
        for source in files {
            let failed = |source_error| io_error("open", &source.path, 0, source_error);
            let file = File::open(&source.path).map_err(failed)?;
            // Advice: read ahead would stay in the page cache behind what is dropped below.
            let _ = sys::expect_random_reads(&file);
            let length = file.metadata().map_err(failed)?.len();
            hasher.update(&length.to_le_bytes());
            hasher.update(&source.header_len.to_le_bytes());
            hash_range(&mut hasher, &file, &source.path, 0..source.header_len)?;
            opened.push((file, &source.path));
        }
        for (layer, experts) in layers.iter().enumerate() {
            for part in (0..experts.part_count()).map(|index| experts.part(index)) {
                let bytes = part.bytes as u64;
                let last = experts.expert_count - 1;
                let sample = SAMPLE_BYTES.min(bytes);
                let samples = [(0, 0), (last / 2, (bytes - sample) / 2), (last, bytes - sample)];
                for (expert, at) in samples {
                    let bad = |detail| ExpertError::Geometry { layer, detail };
                    let place = part.place(expert);
                    let start = place.and_then(|place| Some((place.file, place.offset.checked_add(at)?)));
                    let (number, start) =
                        start.ok_or_else(|| bad(format!("no valid offset for expert {expert}")))?;
                    let opened = opened.get(number);
                    let (file, path) =
                        opened.ok_or_else(|| bad(format!("file {number} of {} files", files.len())))?;
                    hash_range(&mut hasher, file, path, start..start.saturating_add(sample))?;
                }
            }
        }
        hash_quantised(&mut hasher, layers);
        hash_arrays(&mut hasher, layers);
        Ok(Self(*hasher.finalize().as_bytes()))
    }

    /// The 32 bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// From 32 bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl fmt::Display for Fingerprint {
    /// The first 16 bytes in hexadecimal: enough for a file name.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..16].iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

/// Records with other formats than those of the file are records of another model.
fn hash_quantised(hasher: &mut blake3::Hasher, layers: &[LayerExperts]) {
    for (layer, experts) in layers.iter().enumerate().filter(|(_, experts)| experts.quantised.is_some()) {
        hasher.update(b"quantised");
        hasher.update(&(layer as u64).to_le_bytes());
        experts.record_formats().iter().for_each(|format| {
            hasher.update(&format_number(*format).to_le_bytes());
        });
    }
}

/// What codes stand for and what inputs go through may come from a file beside those of the model.
fn hash_arrays(hasher: &mut blake3::Hasher, layers: &[LayerExperts]) {
    for experts in layers {
        let Stored::WithScales(matrices) = &experts.stored else { continue };
        for scaled in matrices.iter().flatten() {
            let codebook = scaled.codebook.iter().flat_map(|codebook| codebook.iter().copied());
            let rotation = scaled.rotation.iter().flat_map(|rotation| rotation.words());
            codebook.chain(rotation).for_each(|word| {
                hasher.update(&word.to_le_bytes());
            });
        }
    }
}

fn hash_range(
    hasher: &mut blake3::Hasher,
    file: &File,
    path: &Path,
    range: std::ops::Range<u64>,
) -> Result<(), ExpertError> {
    let mut piece = [0; PIECE_BYTES];
    let mut at = range.start;
    while at < range.end {
        let length = (range.end - at).min(PIECE_BYTES as u64) as usize;
        file.read_exact_at(&mut piece[..length], at).map_err(|source| io_error("read", path, at, source))?;
        hasher.update(&piece[..length]);
        at += length as u64;
    }
    // Advice: a refusal changes no result.
    let _ = sys::drop_page_cache(file, aligned(range));
    Ok(())
}

fn io_error(action: &'static str, path: &Path, offset: u64, source: std::io::Error) -> ExpertError {
    ExpertError::Io { action, path: path.to_owned(), offset, source }
}
