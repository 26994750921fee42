//! Small model files with random expert weights, and the records they must become.
//!
//! The files are not GGUF: a random "header", then the matrices at 32-byte boundaries, as GGUF places them. Expected
//! records are built from the documented record layout with the kernels' packing; header and checksum are written here again.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use coldpress_experts::pack::PackConfig;
use coldpress_experts::{
    ExpertError, ExpertKey, ExpertOffsets, ExpertStore, FileAccess, Geometry, LayerExperts, Projection,
    READ_AHEAD_DEFAULT, ReadAheadMode, ReaderChoice, Residency, StoreConfig, Stored,
};
use coldpress_formats::SourceFile;
use coldpress_kernels::{WeightFormat, blocks, pack_rows, packed_bytes};
use coldpress_memory::Ledger;
use coldpress_workers::Team;

use crate::Random;

/// What a random expert source looks like.
#[derive(Clone, Debug)]
pub struct SourceShape {
    /// Formats of gate, up and down, one entry per layer.
    pub formats: Vec<[WeightFormat; 3]>,
    /// Experts per layer.
    pub experts: usize,
    /// Columns of gate and up, rows of down.
    pub hidden: usize,
    /// Rows of gate and up, columns of down.
    pub inner: usize,
    /// Number of files over which the matrices are spread.
    pub files: usize,
    /// One tensor per expert in shuffled order, instead of stacked tensors.
    pub separate: bool,
    /// Whether the files are big-endian.
    pub big_endian: bool,
    /// Seed of the bytes.
    pub seed: u64,
}

impl Default for SourceShape {
    /// Three layers of eight experts, two record sizes, rows that do not fill their last group of 16.
    fn default() -> Self {
        use WeightFormat::{Q4K, Q6K, Q8_0};
        Self {
            formats: vec![[Q4K, Q4K, Q6K], [Q4K, Q4K, Q4K], [Q8_0, Q8_0, Q8_0]],
            experts: 8,
            hidden: 256,
            inner: 256,
            files: 2,
            separate: false,
            big_endian: false,
            seed: 1,
        }
    }
}

impl SourceShape {
    /// One file, `layers` layers of `experts` experts in Q8_0, records of about `record_bytes` bytes.
    pub fn with_record_bytes(layers: usize, experts: usize, record_bytes: usize) -> Self {
        let hidden = 256;
        // Three matrices of `inner` times `hidden` weights with 34 bytes for 32 weights.
        let inner = (record_bytes / (3 * hidden / 32 * 34)).next_multiple_of(32).max(32);
        let formats = vec![[WeightFormat::Q8_0; 3]; layers];
        Self { formats, experts, hidden, inner, files: 1, ..Self::default() }
    }
}

/// Files on disk and their description.
#[derive(Clone, Debug)]
pub struct ExpertSource {
    /// The files.
    pub files: Vec<SourceFile>,
    /// The experts in them.
    pub layers: Vec<LayerExperts>,
}

const HEADER_BYTES: usize = 1000;
const TENSOR_ALIGNMENT: usize = 32;

impl ExpertSource {
    /// Writes the files into `folder` (the same bytes for the same shape) and describes them.
    ///
    /// # Panics
    /// When the disk refuses.
    pub fn create(folder: &Path, shape: &SourceShape) -> Self {
        let mut random = Random::new(shape.seed);
        let mut contents = vec![vec![0; HEADER_BYTES]; shape.files];
        contents.iter_mut().for_each(|bytes| random.fill(bytes));
        let mut layers = Vec::new();
        for (layer, formats) in shape.formats.iter().enumerate() {
            let mut projection = |part: usize| {
                let (rows, columns) =
                    if part == 2 { (shape.hidden, shape.inner) } else { (shape.inner, shape.hidden) };
                let file = (layer + part) % shape.files;
                let mut projection = Projection {
                    format: formats[part],
                    rows,
                    columns,
                    file,
                    offsets: ExpertOffsets::Each(Vec::new()),
                    big_endian: shape.big_endian,
                };
                let bytes = projection.expert_bytes();
                projection.offsets = place(&mut contents[file], shape, bytes, &mut random);
                projection
            };
            let (gate, up, down) = (projection(0), projection(1), projection(2));
            let (expert_count, stored) = (shape.experts, Stored::Apart);
            layers.push(LayerExperts { expert_count, gate, up, down, stored, quantised: None });
        }
        let files = contents.iter().enumerate().map(|(index, bytes)| {
            let path = folder.join(format!("source-{index}.bin"));
            if fs::read(&path).ok().as_ref() != Some(bytes) {
                fs::write(&path, bytes).expect("the test folder is writable");
            }
            SourceFile { path, len: bytes.len() as u64, modified: None, header_len: HEADER_BYTES as u64 }
        });
        Self { files: files.collect(), layers }
    }

    /// Layout of its records.
    pub fn geometry(&self) -> Geometry {
        Geometry::new(&self.layers).expect("the shape is valid")
    }

    /// The record of every expert, worked out from the files.
    ///
    /// # Panics
    /// When the files cannot be read.
    pub fn expected_records(&self) -> BTreeMap<ExpertKey, Vec<u8>> {
        let read = |file: &SourceFile| fs::read(&file.path).expect("the source was written");
        let contents: Vec<Vec<u8>> = self.files.iter().map(read).collect();
        self.geometry().keys().map(|key| (key, self.expected_record(&contents, key))).collect()
    }

    fn expected_record(&self, contents: &[Vec<u8>], key: ExpertKey) -> Vec<u8> {
        let layer = &self.layers[key.layer as usize];
        let mut record = vec![0; 64];
        for projection in [&layer.gate, &layer.up, &layer.down] {
            let Projection { format, rows, columns, file, .. } = *projection;
            let start = projection.offsets.offset(key.expert as usize).expect("the expert exists") as usize;
            let mut source = contents[file][start..start + projection.expert_bytes()].to_vec();
            if projection.big_endian {
                blocks::to_little_endian(format, &mut source);
            }
            let offset = record.len().next_multiple_of(64);
            record.resize(offset + packed_bytes(format, rows, columns), 0);
            pack_rows(format, rows, columns, &source, &mut record[offset..]);
        }
        record.resize(record.len().next_multiple_of(4096), 0);
        let body_bytes = record.len() as u64 - 64;
        let body_checksum = crc32c(&record[64..]);
        record[0..4].copy_from_slice(b"CPRC");
        for (at, value) in [(4, 1), (8, 1), (12, key.layer), (16, key.expert), (32, body_checksum)] {
            record[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        record[24..32].copy_from_slice(&body_bytes.to_le_bytes());
        let header_checksum = crc32c(&record[..60]);
        record[60..64].copy_from_slice(&header_checksum.to_le_bytes());
        record
    }

    /// A streamed store over the files with `slots` slots and an unlimited ledger.
    pub fn store_config(&self, slots: usize) -> StoreConfig {
        StoreConfig {
            layers: self.layers.clone(),
            files: self.files.clone(),
            pack: None,
            lazy: None,
            ledger: Ledger::unlimited(),
            residency: Residency::Streamed { slots },
            reader: ReaderChoice::Pread,
            policy: None,
            read_ahead: READ_AHEAD_DEFAULT,
            split: 1,
            prefetch: ReadAheadMode::Off,
            access: FileAccess::Direct,
        }
    }

    /// A pack of the files at `destination`, paid for by `ledger`.
    pub fn pack_config<'a>(&'a self, destination: &'a Path, ledger: &'a Ledger) -> PackConfig<'a> {
        PackConfig {
            layers: &self.layers,
            files: &self.files,
            destination,
            ledger,
            reader: ReaderChoice::Auto,
            read_ahead: 2,
        }
    }
}

/// Visits `experts` of `layer` to the end and copies the records handed out, by expert.
///
/// # Errors
/// The first error of the visit.
///
/// # Panics
/// When an expert is handed out twice, or not at all without an error.
pub fn visit_records(
    store: &mut ExpertStore,
    team: &Team<'_>,
    layer: usize,
    experts: &[u32],
) -> Result<BTreeMap<u32, Vec<u8>>, ExpertError> {
    let mut records = BTreeMap::new();
    let mut visit = store.begin(layer, experts)?;
    while let Some(ready) = visit.next_ready(team)? {
        for (position, record) in ready.iter() {
            let twice = records.insert(experts[position], record.bytes().to_vec());
            assert!(twice.is_none(), "expert {} was handed out twice", experts[position]);
        }
    }
    assert_eq!(records.len(), experts.len(), "every expert is handed out");
    Ok(records)
}

/// Appends one matrix per expert to a file: stacked, or apart and in random order.
fn place(
    content: &mut Vec<u8>,
    shape: &SourceShape,
    expert_bytes: usize,
    random: &mut Random,
) -> ExpertOffsets {
    let mut append = |bytes: usize| {
        let start = content.len().next_multiple_of(TENSOR_ALIGNMENT);
        content.resize(start + bytes, 0);
        random.fill(&mut content[start..]);
        start as u64
    };
    if !shape.separate {
        let first = append(expert_bytes * shape.experts);
        return ExpertOffsets::Stride { first, stride: expert_bytes as u64 };
    }
    let mut offsets: Vec<u64> = (0..shape.experts).map(|_| append(expert_bytes)).collect();
    offsets.reverse();
    ExpertOffsets::Each(offsets)
}

/// CRC-32C (Castagnoli, RFC 3720 appendix B.4), bit by bit.
pub fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0_u32, |register, byte| {
        (0..8).fold(register ^ u32::from(*byte), |register, _| {
            (register >> 1) ^ if register & 1 == 1 { 0x82f6_3b78 } else { 0 }
        })
    })
}

#[cfg(test)]
mod tests {
    /// The check value of the catalogue of parametrised CRC algorithms.
    #[test]
    fn the_checksum_is_crc_32c() {
        assert_eq!(super::crc32c(b"123456789"), 0xe306_9283);
    }
}
