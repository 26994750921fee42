//! Shapes: where the routed experts of a model lie in its files, and how large their records are.
//!
//! Owns the numbers only. Everything here is computed once from the tensor directory, checked against overflow and
//! against absurd sizes, and never changes afterwards. It opens no file and knows no slot.
//! Read next: `record` (the bytes behind a [`RecordGeometry`]), `pack::format` (records in one file).

use std::fmt;

use coldpress_formats::TensorType;
use coldpress_kernels::{WeightFormat, layout};

use crate::error::ExpertError;
use crate::record::HEADER_BYTES;
use crate::stored::Stored;

/// Records start and end at multiples of this, in the pack file and in memory: the largest block size of common disks.
pub const RECORD_ALIGNMENT: usize = 4096;
/// Matrices inside a record start at multiples of this: one cache line, one 512-bit vector.
pub const MATRIX_ALIGNMENT: usize = 64;
/// Largest record accepted. One read call moves less than 2 GiB on Linux and macOS.
pub const RECORD_BYTES_MAX: usize = 1 << 30;
/// Most routed layers accepted.
pub const LAYERS_MAX: usize = 4096;
/// Most experts of one layer accepted.
pub const EXPERTS_PER_LAYER_MAX: usize = 65_536;
const DIMENSION_MAX: usize = 1 << 24;

/// One routed expert of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExpertKey {
    /// Index among the layers that have routed experts, from 0 (not the layer number of the model).
    pub layer: u32,
    /// Index of the expert in its layer, from 0.
    pub expert: u32,
}

impl fmt::Display for ExpertKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "routed layer {} expert {}", self.layer, self.expert)
    }
}

/// Where the experts of one projection start in their file, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExpertOffsets {
    /// Expert `e` starts at `first + e * stride`: one stacked tensor.
    Stride {
        /// Offset of expert 0.
        first: u64,
        /// Bytes from one expert to the next.
        stride: u64,
    },
    /// One offset per expert: separate tensors.
    Each(Vec<u64>),
    /// One place per expert: separate tensors that may lie in several files.
    Places(Vec<ExpertPlace>),
}

/// Where one matrix of one expert starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertPlace {
    /// Index into the list of model files.
    pub file: usize,
    /// First byte in that file.
    pub offset: u64,
}

impl ExpertOffsets {
    /// Offset of `expert` in bytes; `None` where the list is too short or the sum overflows.
    pub fn offset(&self, expert: usize) -> Option<u64> {
        match self {
            Self::Stride { first, stride } => stride.checked_mul(expert as u64)?.checked_add(*first),
            Self::Each(offsets) => offsets.get(expert).copied(),
            Self::Places(places) => places.get(expert).map(|place| place.offset),
        }
    }

    /// Place of `expert`, in `file` where the list names no files.
    pub(crate) fn place(&self, file: usize, expert: usize) -> Option<ExpertPlace> {
        match self {
            Self::Places(places) => places.get(expert).copied(),
            offsets => offsets.offset(expert).map(|offset| ExpertPlace { file, offset }),
        }
    }
}

/// One of the three matrices of the experts of a layer, as stored in the model file: row-major, `rows` rows of
/// `columns` weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Projection {
    /// Block format of the weights.
    pub format: WeightFormat,
    /// Output size of one expert.
    pub rows: usize,
    /// Input size of one expert.
    pub columns: usize,
    /// Index into the list of model files; of the first expert where they lie in several.
    pub file: usize,
    /// Where each expert starts in that file.
    pub offsets: ExpertOffsets,
    /// Whether the file stores multi-byte values with the high byte first.
    pub big_endian: bool,
}

impl Projection {
    /// Where the matrix of `expert` starts; `None` where the list is too short or a sum overflows.
    pub fn place(&self, expert: usize) -> Option<ExpertPlace> {
        self.offsets.place(self.file, expert)
    }

    /// Source bytes of one expert. Only for shapes that [`Geometry::new`] accepted.
    pub fn expert_bytes(&self) -> usize {
        self.format.row_bytes(self.columns) * self.rows
    }
}

/// The routed experts of one layer: `down(swiglu(gate(x), up(x)))`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerExperts {
    /// Number of experts.
    pub expert_count: usize,
    /// Gate projection `[inner, hidden]`.
    pub gate: Projection,
    /// Up projection `[inner, hidden]`.
    pub up: Projection,
    /// Down projection `[hidden, inner]`.
    pub down: Projection,
    /// How the three are stored.
    pub stored: Stored,
    /// The formats that they have in records where they are quantised on the way there; `None` where records keep those of the file.
    pub quantised: Option<[WeightFormat; 3]>,
}

impl LayerExperts {
    /// Gate, up and down, in the order in which records hold them.
    pub fn projections(&self) -> [&Projection; 3] {
        [&self.gate, &self.up, &self.down]
    }

    /// The formats of the three in records.
    pub fn record_formats(&self) -> [WeightFormat; 3] {
        self.quantised.unwrap_or(self.projections().map(|projection| projection.format))
    }
}

/// Names of the projections in record order, for messages.
pub(crate) const PROJECTION_NAMES: [&str; 3] = ["gate", "up", "down"];

/// The kernel format for a tensor type of a model file; `None` where no kernel reads that type.
///
/// Both sides carry ggml's names, so the name is the link.
pub fn weight_format(tensor_type: TensorType) -> Option<WeightFormat> {
    WeightFormat::ALL.into_iter().find(|format| format.name() == tensor_type.name())
}

/// The number of `format` in pack files: the ggml type number, or that of the coding.
pub(crate) fn format_number(format: WeightFormat) -> u32 {
    if let WeightFormat::Codes(coding) = format {
        return coding.number();
    }
    TensorType::from_name(format.name()).expect("every weight format is a tensor type of ggml").id()
}

/// One packed matrix inside a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixPlace {
    /// Block format of the weights.
    pub format: WeightFormat,
    /// Output size.
    pub rows: usize,
    /// Input size.
    pub columns: usize,
    /// First byte inside the record, a multiple of [`MATRIX_ALIGNMENT`].
    pub offset: usize,
    /// Packed bytes.
    pub bytes: usize,
}

/// The layout of every record of one layer: header, gate, up, down, zero padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordGeometry {
    /// Gate, up and down.
    pub matrices: [MatrixPlace; 3],
    /// Bytes up to the end of the last matrix, header included.
    pub used_bytes: usize,
    /// Bytes of the record, a multiple of [`RECORD_ALIGNMENT`].
    pub record_bytes: usize,
}

impl RecordGeometry {
    /// The layout of records with the formats of the file.
    pub(crate) fn as_stored(layer: usize, experts: &LayerExperts) -> Result<Self, ExpertError> {
        Self::with_formats(layer, experts, experts.projections().map(|projection| projection.format))
    }

    fn new(layer: usize, experts: &LayerExperts) -> Result<Self, ExpertError> {
        if experts.quantised.is_some() {
            Self::as_stored(layer, experts)?;
        }
        Self::with_formats(layer, experts, experts.record_formats())
    }

    fn with_formats(
        layer: usize,
        experts: &LayerExperts,
        formats: [WeightFormat; 3],
    ) -> Result<Self, ExpertError> {
        let bad = |detail: String| ExpertError::Geometry { layer, detail };
        if let Some(misfit) = experts.misfit() {
            return Err(bad(misfit));
        }
        let [gate, up, down] = experts.projections();
        if (gate.rows, gate.columns) != (up.rows, up.columns)
            || (down.columns, down.rows) != (gate.rows, gate.columns)
        {
            return Err(bad(format!(
                "gate is {}x{}, up {}x{}, down {}x{}; gate and up must agree and down must be their transpose",
                gate.rows, gate.columns, up.rows, up.columns, down.rows, down.columns
            )));
        }
        let mut end = HEADER_BYTES;
        let mut matrices = Vec::with_capacity(3);
        let named = experts.projections().into_iter().zip(formats).zip(PROJECTION_NAMES);
        for ((projection, format), name) in named {
            let Projection { rows, columns, .. } = *projection;
            if rows == 0
                || rows > DIMENSION_MAX
                || columns > DIMENSION_MAX
                || !format.accepts_columns(columns)
            {
                return Err(bad(format!(
                    "{name} is {rows}x{columns} {format}; wanted 1 to {DIMENSION_MAX} rows and a multiple of {} columns",
                    format.block_elements()
                )));
            }
            let offset = end.next_multiple_of(MATRIX_ALIGNMENT);
            // At most 2^24 x 2^24 weights of a few bytes: fits in 64 bits, and is refused right below.
            let bytes = layout::packed_bytes(format, rows, columns);
            end = offset + bytes;
            matrices.push(MatrixPlace { format, rows, columns, offset, bytes });
        }
        let record_bytes = end.next_multiple_of(RECORD_ALIGNMENT);
        if record_bytes > RECORD_BYTES_MAX {
            return Err(bad(format!(
                "one expert takes {record_bytes} bytes, more than the limit of {RECORD_BYTES_MAX}"
            )));
        }
        let matrices = [matrices[0], matrices[1], matrices[2]];
        Ok(Self { matrices, used_bytes: end, record_bytes })
    }
}

/// Layout and numbering of all records of a model: layer by layer, expert by expert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    layers: Vec<RecordGeometry>,
    /// Number of the first record of each layer, and at the end the record count.
    first_record: Vec<usize>,
}

impl Geometry {
    /// Computes and checks the layout of every record.
    ///
    /// # Errors
    /// [`ExpertError::Geometry`] names the layer and what does not fit together.
    pub fn new(layers: &[LayerExperts]) -> Result<Self, ExpertError> {
        if layers.is_empty() || layers.len() > LAYERS_MAX {
            let detail = format!("{} layers with routed experts; wanted 1 to {LAYERS_MAX}", layers.len());
            return Err(ExpertError::Geometry { layer: 0, detail });
        }
        let mut records = Vec::with_capacity(layers.len());
        let mut first_record = vec![0];
        for (layer, experts) in layers.iter().enumerate() {
            let count = experts.expert_count;
            if count == 0 || count > EXPERTS_PER_LAYER_MAX {
                let detail = format!("{count} experts; wanted 1 to {EXPERTS_PER_LAYER_MAX}");
                return Err(ExpertError::Geometry { layer, detail });
            }
            records.push(RecordGeometry::new(layer, experts)?);
            first_record.push(first_record[layer] + count);
        }
        Ok(Self { layers: records, first_record })
    }

    /// Number of layers with routed experts.
    pub fn layer_count(&self) -> usize {
        self.layers.len()
    }

    /// Number of experts of `layer`.
    pub fn expert_count(&self, layer: usize) -> usize {
        self.first_record[layer + 1] - self.first_record[layer]
    }

    /// Number of records of the model.
    pub fn record_count(&self) -> usize {
        self.first_record[self.layers.len()]
    }

    /// The layout of the records of `layer`.
    pub fn layer(&self, layer: usize) -> &RecordGeometry {
        &self.layers[layer]
    }

    /// Number of the record of `key`, counted layer by layer.
    pub fn record_index(&self, key: ExpertKey) -> usize {
        debug_assert!((key.expert as usize) < self.expert_count(key.layer as usize));
        self.first_record[key.layer as usize] + key.expert as usize
    }

    /// Every expert in record order.
    pub fn keys(&self) -> impl Iterator<Item = ExpertKey> + '_ {
        (0..self.layers.len()).flat_map(|layer| {
            (0..self.expert_count(layer))
                .map(move |expert| ExpertKey { layer: layer as u32, expert: expert as u32 })
        })
    }

    /// Bytes of the largest record.
    pub fn record_bytes_max(&self) -> usize {
        self.layers.iter().map(|record| record.record_bytes).max().unwrap_or(0)
    }

    /// Bytes of all records.
    pub fn records_bytes(&self) -> u64 {
        (0..self.layers.len())
            .map(|layer| (self.expert_count(layer) * self.layers[layer].record_bytes) as u64)
            .sum()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Small records: `layers` layers of `experts` experts.
    pub(crate) fn geometry(layers: usize, experts: usize) -> Geometry {
        let projection = |rows, columns| Projection {
            file: 0,
            format: WeightFormat::F32,
            rows,
            columns,
            offsets: ExpertOffsets::Stride { first: 0, stride: 4096 },
            big_endian: false,
        };
        let layer = LayerExperts {
            expert_count: experts,
            gate: projection(32, 32),
            up: projection(32, 32),
            down: projection(32, 32),
            stored: Stored::Apart,
            quantised: None,
        };
        Geometry::new(&vec![layer; layers]).expect("fits together")
    }

    #[test]
    fn every_weight_format_is_a_tensor_type_with_the_same_blocks() {
        for format in WeightFormat::ALL {
            let tensor_type = TensorType::from_id(format_number(format)).expect("a known number");
            assert_eq!(weight_format(tensor_type), Some(format));
            let blocks = (tensor_type.block_elements(), tensor_type.block_bytes());
            assert_eq!(blocks, (format.block_elements() as u64, format.block_bytes() as u64), "{format}");
        }
    }
}
