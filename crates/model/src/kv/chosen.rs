//! What sparse attention needs of the cache: index keys, by which positions are chosen, and the rows of the chosen positions put
//! together.
//!
//! Index keys are floats under any type of the cache (see `KvType::index_element_bytes`). Next: `indexer.rs`.

use coldpress_kernels::attention::{KvElements, KvRows, PAGE_POSITIONS};
use coldpress_kernels::{Kernels, vector};
use coldpress_workers::Team;
use half::f16;

use super::{KvPool, KvType, LayerPlace, Sequence};

/// Rows that one chunk of a copy takes.
const GATHER_ROWS: usize = 64;

impl KvPool {
    /// Stores index keys (rows of the layer's index width) at positions from `position` on, as [`KvPool::write`] does keys.
    pub(crate) fn write_index(
        &mut self,
        team: &Team<'_>,
        kernels: Kernels,
        layer: usize,
        sequence: &Sequence,
        position: usize,
        keys: &[f32],
    ) {
        let numbers = self.layers[layer].index_numbers;
        let (page_numbers, offset) = (self.index_place(self.page_elements), self.index_offset(layer));
        for (page, first, rows) in sequence.rows_by_page(position, keys.len() / numbers) {
            let start = page * page_numbers + offset + first * numbers;
            let rows = &keys[rows.start * numbers..rows.end * numbers];
            let place = start..start + rows.len();
            match self.kv_type {
                KvType::F32 => self.buffer.as_mut_slice_of::<f32>()[place].copy_from_slice(rows),
                KvType::F16 | KvType::Q8 | KvType::Q4 => {
                    let place = &mut self.buffer.as_mut_slice_of::<f16>()[place];
                    vector::convert_to_f16(team, kernels, rows, place);
                }
            }
        }
    }

    /// Changes the numbers from `first` on of one position's index key. The position is among those that the sequence was extended by,
    /// or lies before them in a page that nobody else has.
    pub(crate) fn write_index_part(
        &mut self,
        layer: usize,
        sequence: &Sequence,
        position: usize,
        first: usize,
        numbers: &[f32],
    ) {
        let width = self.layers[layer].index_numbers;
        let page = sequence.pages[position / PAGE_POSITIONS] as usize * self.index_place(self.page_elements);
        let start = page + self.index_offset(layer) + position % PAGE_POSITIONS * width + first;
        let place = start..start + numbers.len();
        match self.kv_type {
            KvType::F32 => self.buffer.as_mut_slice_of::<f32>()[place].copy_from_slice(numbers),
            KvType::F16 | KvType::Q8 | KvType::Q4 => {
                let place = &mut self.buffer.as_mut_slice_of::<f16>()[place];
                place.iter_mut().zip(numbers).for_each(|(place, number)| *place = f16::from_f32(*number));
            }
        }
    }

    /// Index keys of a layer where `sequence` has them; what is said there of values is the same as of keys.
    pub(crate) fn index_rows<'a>(&'a self, layer: usize, sequence: &'a Sequence) -> KvRows<'a> {
        let offset = self.index_offset(layer);
        KvRows {
            pool: match self.kv_type {
                KvType::F32 => KvElements::F32(self.buffer.as_slice_of::<f32>()),
                KvType::F16 | KvType::Q8 | KvType::Q4 => KvElements::F16(self.buffer.as_slice_of::<f16>()),
            },
            pages: &sequence.pages,
            page_elements: self.index_place(self.page_elements),
            keys_offset: offset,
            values_offset: offset,
        }
    }

    /// Copies the keys of some positions of a layer whose values are a part of them, one after the other.
    pub(crate) fn gather(
        &self,
        team: &Team<'_>,
        layer: usize,
        sequence: &Sequence,
        positions: &[u32],
        out: &mut [u8],
    ) {
        let LayerPlace { row, keys, .. } = self.layers[layer];
        let (row_bytes, start) = (row * self.kv_type.element().1, keys * self.kv_type.element().1);
        let (page_bytes, bytes) = (self.page_bytes(), self.buffer.as_bytes());
        team.for_each_part_mut(
            &mut out[..positions.len() * row_bytes],
            GATHER_ROWS * row_bytes,
            |part, out, _worker| {
                let positions = &positions[part * GATHER_ROWS..];
                for (&position, out) in positions.iter().zip(out.chunks_exact_mut(row_bytes)) {
                    let (page, within) =
                        (position as usize / PAGE_POSITIONS, position as usize % PAGE_POSITIONS);
                    let from = sequence.pages[page] as usize * page_bytes + start + within * row_bytes;
                    out.copy_from_slice(&bytes[from..from + row_bytes]);
                }
            },
        );
    }

    /// What [`KvPool::gather`] has put together, as a cache of its own; `pages` are the numbers from 0 on.
    pub(crate) fn rows_of_bytes<'a>(&self, layer: usize, bytes: &'a [u8], pages: &'a [u32]) -> KvRows<'a> {
        let LayerPlace { row, .. } = self.layers[layer];
        let page_elements = PAGE_POSITIONS * row;
        let bytes = &bytes[..pages.len() * page_elements * self.kv_type.element().1];
        KvRows {
            pool: match self.kv_type {
                KvType::F32 => KvElements::F32(bytemuck::cast_slice(bytes)),
                KvType::F16 => KvElements::F16(bytemuck::cast_slice(bytes)),
                KvType::Q8 => KvElements::Q8(bytemuck::cast_slice(bytes)),
                KvType::Q4 => KvElements::Q4(bytemuck::cast_slice(bytes)),
            },
            pages,
            page_elements,
            keys_offset: 0,
            values_offset: 0,
        }
    }

    /// A place in elements of the type as a place in elements of index keys. Both kinds of blocks are whole numbers of halves.
    fn index_place(&self, elements: usize) -> usize {
        elements * self.kv_type.element().1 / self.kv_type.index_element_bytes()
    }

    fn index_offset(&self, layer: usize) -> usize {
        self.index_place(self.layers[layer].index)
    }
}
