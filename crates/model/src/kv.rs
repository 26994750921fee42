//! The KV cache: keys and values of every layer for one sequence, in one buffer that the ledger knows.
//!
//! Layout: per layer all keys `[context, kv_heads * head_dim]`, then all values, so that attention reads one dense
//! slice. Rows past [`KvCache::len`] are scratch: a forward pass writes them and commits them only when it succeeded.
//! Refuses: growing, shifting, quantising.

use coldpress_kernels::attention::KvRows;
use coldpress_kernels::{Kernels, vector};
use coldpress_memory::{Buffer, Bytes, Ledger, Purpose};
use coldpress_workers::Team;
use half::f16;

use crate::error::ModelError;
use crate::spec::ModelSpec;

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum KvType {
    /// Half precision, the usual choice.
    #[default]
    F16,
    /// Single precision, for comparison with references.
    F32,
}

impl KvType {
    /// All types with their names on the command line.
    pub const ALL: [(&'static str, Self); 2] = [("f16", Self::F16), ("f32", Self::F32)];

    /// Bytes of one element.
    pub fn element_bytes(self) -> usize {
        match self {
            Self::F16 => 2,
            Self::F32 => 4,
        }
    }

    /// Name as used on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::F32 => "f32",
        }
    }
}

/// Keys and values of one sequence.
pub struct KvCache {
    buffer: Buffer,
    kv_type: KvType,
    context: usize,
    length: usize,
    /// Elements of one position per layer, and where the layer's keys start, in elements.
    layers: Vec<LayerPlace>,
}

#[derive(Clone, Copy)]
struct LayerPlace {
    row: usize,
    start: usize,
}

/// Bytes that one position takes over all layers.
pub fn kv_bytes_per_token(spec: &ModelSpec, kv_type: KvType) -> usize {
    2 * kv_rows(spec).sum::<usize>() * kv_type.element_bytes()
}

fn kv_rows(spec: &ModelSpec) -> impl Iterator<Item = usize> {
    spec.layers.iter().map(|layer| layer.attention.shape.kv_row_len())
}

impl KvCache {
    /// Reserves and allocates `context` positions.
    ///
    /// # Errors
    /// The ledger has no room.
    pub fn new(
        ledger: &Ledger,
        spec: &ModelSpec,
        kv_type: KvType,
        context: usize,
    ) -> Result<Self, ModelError> {
        let bytes = kv_bytes_per_token(spec, kv_type) * context;
        let buffer = Buffer::new(ledger, Purpose::KvCache, Bytes(bytes as u64))?;
        let mut start = 0;
        let layers = kv_rows(spec)
            .map(|row| {
                let place = LayerPlace { row, start };
                start += 2 * row * context;
                place
            })
            .collect();
        Ok(Self { buffer, kv_type, context, length: 0, layers })
    }

    /// Positions filled.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether nothing is cached.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Positions the cache can hold.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Forgets all positions from `length` on.
    pub fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }

    /// Makes `count` more written positions part of the sequence.
    pub(crate) fn commit(&mut self, count: usize) {
        assert!(self.length + count <= self.context, "commit within the context");
        self.length += count;
    }

    /// Stores `keys` and `values` (rows of the layer's width) at positions from `position` on, which is not below
    /// [`Self::len`].
    pub(crate) fn write(
        &mut self,
        team: &Team<'_>,
        kernels: Kernels,
        layer: usize,
        position: usize,
        keys: &[f32],
        values: &[f32],
    ) {
        let LayerPlace { row, start } = self.layers[layer];
        let keys_at = start + position * row;
        let values_at = keys_at + self.context * row;
        match self.kv_type {
            KvType::F32 => {
                let all = self.buffer.as_mut_slice_of::<f32>();
                all[keys_at..keys_at + keys.len()].copy_from_slice(keys);
                all[values_at..values_at + values.len()].copy_from_slice(values);
            }
            KvType::F16 => {
                let all = self.buffer.as_mut_slice_of::<f16>();
                vector::convert_to_f16(team, kernels, keys, &mut all[keys_at..keys_at + keys.len()]);
                vector::convert_to_f16(team, kernels, values, &mut all[values_at..values_at + values.len()]);
            }
        }
    }

    /// Keys and values of the first `positions` positions of a layer.
    pub(crate) fn rows(&self, layer: usize, positions: usize) -> KvRows<'_> {
        let LayerPlace { row, start } = self.layers[layer];
        let keys = start..start + positions * row;
        let values = keys.start + self.context * row..keys.end + self.context * row;
        match self.kv_type {
            KvType::F32 => {
                let all = self.buffer.as_slice_of::<f32>();
                KvRows::F32 { keys: &all[keys], values: &all[values] }
            }
            KvType::F16 => {
                let all = self.buffer.as_slice_of::<f16>();
                KvRows::F16 { keys: &all[keys], values: &all[values] }
            }
        }
    }
}
