//! The header of a pack file and the offsets of its records. See the drawing in the module above.

use coldpress_formats::TensorType;
use coldpress_kernels::WeightFormat;

use crate::error::PackFault;
use crate::geometry::{ExpertKey, Geometry, LAYERS_MAX, RECORD_ALIGNMENT, format_number, weight_format};
use crate::record::{FORMAT_VERSION, LAYOUT_ROWS16};

use super::Fingerprint;

/// The first bytes of every pack file.
pub const PACK_MAGIC: &[u8; 8] = b"COLDPACK";
const LAYERS_AT: usize = 96;
const LAYER_BYTES: usize = 64;
const CRC_BYTES: usize = 4;
const STATE_AT: usize = 40;
const FINGERPRINT_AT: usize = 48;

/// Longest header: what [`LAYERS_MAX`] layers take.
pub(super) const HEADER_BYTES_MAX: usize =
    (LAYERS_AT + LAYERS_MAX * LAYER_BYTES + CRC_BYTES).next_multiple_of(RECORD_ALIGNMENT);

/// Whether all records of a pack are on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PackState {
    /// Some may be missing.
    Unfinished = 0,
    /// All are there and were synced before this was written.
    Complete = 1,
}

/// Where everything lies in the pack of a model, and the header that says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackLayout {
    geometry: Geometry,
    /// Offset of the first record of each layer.
    first_offset: Vec<u64>,
    header_bytes: usize,
    file_bytes: u64,
}

impl PackLayout {
    /// The layout of the pack of a model with these records.
    pub fn new(geometry: &Geometry) -> Self {
        let header_bytes =
            (LAYERS_AT + geometry.layer_count() * LAYER_BYTES + CRC_BYTES).next_multiple_of(RECORD_ALIGNMENT);
        let mut end = header_bytes as u64;
        let mut first_offset = Vec::with_capacity(geometry.layer_count());
        for layer in 0..geometry.layer_count() {
            first_offset.push(end);
            end += (geometry.expert_count(layer) * geometry.layer(layer).record_bytes) as u64;
        }
        Self { geometry: geometry.clone(), first_offset, header_bytes, file_bytes: end }
    }

    /// Layout and numbering of the records.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Bytes of the whole file.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Bytes of the header, and offset of the first record.
    pub fn header_bytes(&self) -> usize {
        self.header_bytes
    }

    /// First byte of the record of `key`.
    pub fn offset(&self, key: ExpertKey) -> u64 {
        let layer = key.layer as usize;
        self.first_offset[layer] + u64::from(key.expert) * self.geometry.layer(layer).record_bytes as u64
    }

    /// The header for a pack of these records.
    pub(super) fn encode(&self, fingerprint: &Fingerprint, state: PackState) -> Vec<u8> {
        let mut header = Vec::with_capacity(self.header_bytes);
        let put_u32 = |header: &mut Vec<u8>, value: u32| header.extend_from_slice(&value.to_le_bytes());
        header.extend_from_slice(PACK_MAGIC);
        put_u32(&mut header, FORMAT_VERSION);
        put_u32(&mut header, LAYOUT_ROWS16);
        for value in [self.header_bytes as u64, 0, self.file_bytes] {
            header.extend_from_slice(&value.to_le_bytes());
        }
        debug_assert_eq!(header.len(), STATE_AT);
        put_u32(&mut header, state as u32);
        put_u32(&mut header, 0);
        header.extend_from_slice(fingerprint.as_bytes());
        put_u32(&mut header, self.geometry.layer_count() as u32);
        header.resize(LAYERS_AT, 0);
        for layer in 0..self.geometry.layer_count() {
            let start = header.len();
            for number in self.layer_numbers(layer) {
                put_u32(&mut header, number);
            }
            header.extend_from_slice(&self.first_offset[layer].to_le_bytes());
            header.resize(start + LAYER_BYTES, 0);
        }
        header.resize(self.header_bytes - CRC_BYTES, 0);
        let checksum = crc32c::crc32c(&header);
        put_u32(&mut header, checksum);
        header
    }

    /// What the header says of a layer: expert count, record bytes, then format, rows and columns of each matrix.
    fn layer_numbers(&self, layer: usize) -> [u32; 11] {
        let record = self.geometry.layer(layer);
        let mut numbers = [0; 11];
        numbers[0] = self.geometry.expert_count(layer) as u32;
        numbers[1] = record.record_bytes as u32;
        for (matrix, numbers) in record.matrices.iter().zip(numbers[2..].chunks_exact_mut(3)) {
            numbers.copy_from_slice(&[
                format_number(matrix.format),
                matrix.rows as u32,
                matrix.columns as u32,
            ]);
        }
        numbers
    }

    /// Compares the header of a file with the one that belongs to these records and `fingerprint`.
    pub(super) fn check(&self, header: &[u8], fingerprint: &Fingerprint) -> Result<(), PackFault> {
        let found = checked_prefix(header)?;
        if found.layer_count != self.geometry.layer_count() {
            let detail = format!(
                "{} routed layers, this model has {}",
                found.layer_count,
                self.geometry.layer_count()
            );
            return Err(PackFault::Geometry { detail });
        }
        for layer in 0..found.layer_count {
            let at = LAYERS_AT + layer * LAYER_BYTES;
            let wanted = self.layer_numbers(layer);
            let numbers: Vec<u32> = (0..wanted.len()).map(|index| read_u32(header, at + 4 * index)).collect();
            if numbers != wanted {
                let detail = format!(
                    "routed layer {layer}: experts, record bytes and format/rows/columns of gate, up, down are {numbers:?}, \
                     this model has {wanted:?}"
                );
                return Err(PackFault::Geometry { detail });
            }
        }
        if found.fingerprint != *fingerprint {
            return Err(PackFault::Fingerprint {
                found: found.fingerprint.to_string(),
                wanted: fingerprint.to_string(),
            });
        }
        if found.state != PackState::Complete as u32 {
            return Err(PackFault::Unfinished);
        }
        // Same shapes, same fingerprint, right checksum: what differs now is a header that no version writes.
        if header != self.encode(fingerprint, PackState::Complete) {
            return Err(PackFault::Geometry { detail: "fields that must be zero are not".into() });
        }
        Ok(())
    }
}

/// Fields of a header whose checksum is right.
struct Prefix {
    fingerprint: Fingerprint,
    state: u32,
    layer_count: usize,
}

/// Length of the header that starts with `start` (at least 96 bytes, unless the file is shorter).
pub(super) fn header_bytes(start: &[u8]) -> Result<usize, PackFault> {
    if start.len() < LAYERS_AT || start[..PACK_MAGIC.len()] != *PACK_MAGIC {
        return Err(PackFault::NotAPack);
    }
    let version = read_u32(start, 8);
    if version != FORMAT_VERSION {
        return Err(PackFault::Version { found: version, supported: FORMAT_VERSION });
    }
    let bytes = u64::from(read_u32(start, 16)) | u64::from(read_u32(start, 20)) << 32;
    match usize::try_from(bytes) {
        Ok(bytes) if bytes <= HEADER_BYTES_MAX && bytes > 0 && bytes.is_multiple_of(RECORD_ALIGNMENT) => {
            Ok(bytes)
        }
        _ => Err(PackFault::Geometry { detail: format!("its header claims {bytes} bytes") }),
    }
}

/// The formats of gate, up and down in each layer, as a header says whose checksum is right.
pub(super) fn matrix_formats(header: &[u8]) -> Result<Vec<[Option<WeightFormat>; 3]>, PackFault> {
    let layers = checked_prefix(header)?.layer_count;
    let known = header[LAYERS_AT..].chunks_exact(LAYER_BYTES).take(layers);
    let format =
        |layer: &[u8], matrix: usize| weight_format(TensorType::from_id(read_u32(layer, 8 + 12 * matrix))?);
    Ok(known.map(|layer| std::array::from_fn(|matrix| format(layer, matrix))).collect())
}

fn checked_prefix(header: &[u8]) -> Result<Prefix, PackFault> {
    let end = header_bytes(header)?;
    if header.len() != end {
        return Err(PackFault::Length { found: header.len() as u64, wanted: end as u64 });
    }
    let wanted = read_u32(header, end - CRC_BYTES);
    let found = crc32c::crc32c(&header[..end - CRC_BYTES]);
    if found != wanted {
        return Err(PackFault::HeaderChecksum { found, wanted });
    }
    let layout = read_u32(header, 12);
    if layout != LAYOUT_ROWS16 {
        return Err(PackFault::Layout { found: layout, supported: LAYOUT_ROWS16 });
    }
    let fingerprint: [u8; 32] =
        header[FINGERPRINT_AT..FINGERPRINT_AT + 32].try_into().expect("the header is longer than its prefix");
    Ok(Prefix {
        fingerprint: Fingerprint::from_bytes(fingerprint),
        state: read_u32(header, STATE_AT),
        layer_count: read_u32(header, 80) as usize,
    })
}

fn read_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
