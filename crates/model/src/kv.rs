//! The KV cache: a pool of pages that sequences share, in one buffer that the ledger knows.
//!
//! A page holds keys and values of all layers for [`PAGE_POSITIONS`] positions: per layer all keys
//! `[PAGE_POSITIONS, kv_heads * head_dim]`, then all values, unless these are the first elements of
//! the keys, then all index keys, by which a layer with sparse attention chooses positions. These are floats under any type
//! ([`KvType::index_element_bytes`]). A [`Sequence`] is a table of pages and a length; sequences with a
//! common beginning have pages in common, which are counted. A page with more than one owner is never written: whoever
//! appends to one gets a copy first ([`KvPool::extend`]). Rows past a sequence's length are scratch: a forward pass writes them
//! and commits them only when it succeeded. What is stored of a row depends on that row and the [`KvType`] alone: a type of a few bits
//! rounds blocks of one head of one position, so sharing, copying and cutting pages change no bit under any type.
//! Layers with a recurrent state instead of a row per position take nothing of a page; their states are in `states.rs`.
//! Refuses: growing, shifting, changing the type of what is stored, deciding who gives way when the pool is full, rotating heads (the
//! forward pass does, in `attend.rs`, for types that ask for it).

mod chosen;

use std::ops::Range;

use coldpress_kernels::attention::{
    BLOCK_NUMBERS, BlockQ4, BlockQ8, KvElements, KvRows, PAGE_POSITIONS, quantize_q4, quantize_q8,
};
use coldpress_kernels::{Kernels, vector};
use coldpress_memory::{Buffer, Bytes, Ledger, Purpose};
use coldpress_workers::Team;
use half::f16;

use crate::error::{ModelError, PoolFull, PoolPart};
use crate::spec::{CacheRow, ModelSpec};
use crate::states::{SequenceStates, StatePool};

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum KvType {
    /// Half precision, the usual choice.
    #[default]
    F16,
    /// Single precision, for comparison with references.
    F32,
    /// Blocks of 32 signed bytes with an f16 scale. Lossy.
    Q8,
    /// Blocks of 32 four-bit numbers with an f16 scale, of heads that were rotated. Lossy.
    Q4,
}

impl KvType {
    /// All types with their names on the command line.
    pub const ALL: [(&'static str, Self); 4] =
        [("f16", Self::F16), ("f32", Self::F32), ("q8", Self::Q8), ("q4", Self::Q4)];

    /// Numbers that are stored together, and the bytes they take.
    const fn element(self) -> (usize, usize) {
        match self {
            Self::F16 => (1, size_of::<f16>()),
            Self::F32 => (1, size_of::<f32>()),
            Self::Q8 => (BLOCK_NUMBERS, size_of::<BlockQ8>()),
            Self::Q4 => (BLOCK_NUMBERS, size_of::<BlockQ4>()),
        }
    }

    /// Bytes of a row of `numbers`, a multiple of what the type stores together.
    pub const fn row_bytes(self, numbers: usize) -> usize {
        let (together, bytes) = self.element();
        numbers.div_ceil(together) * bytes
    }

    /// Bytes of one element of an index key: single precision where keys have it, else half. Few bits would choose other positions, and
    /// an index key is small beside the keys and values of its position.
    pub const fn index_element_bytes(self) -> usize {
        match self {
            Self::F32 => size_of::<f32>(),
            Self::F16 | Self::Q8 | Self::Q4 => size_of::<f16>(),
        }
    }

    /// Elements of the type that the index key of one position takes: whole ones, so that layers follow each other without gaps.
    const fn index_elements(self, numbers: usize) -> usize {
        (numbers * self.index_element_bytes()).div_ceil(self.element().1)
    }

    /// Bytes of everything that one position takes in a layer.
    const fn position_bytes(self, row: CacheRow) -> usize {
        let index = self.index_elements(row.index) * self.element().1;
        self.row_bytes(row.keys) + self.row_bytes(row.values) + index
    }

    /// Whether it gives other logits than half precision at the price of the model's quality.
    pub const fn is_lossy(self) -> bool {
        matches!(self, Self::Q8 | Self::Q4)
    }

    /// Whether queries, keys and values are rotated ([`vector::rotate_heads`]) before they meet the cache.
    pub(crate) const fn rotates(self) -> bool {
        matches!(self, Self::Q4)
    }

    /// What the number of elements of a head must be a multiple of.
    pub(crate) const fn head_multiple(self) -> usize {
        self.element().0
    }

    /// Name as used on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::F32 => "f32",
            Self::Q8 => "q8",
            Self::Q4 => "q4",
        }
    }
}

/// Bytes that one position takes over all layers.
pub fn kv_bytes_per_token(spec: &ModelSpec, kv_type: KvType) -> usize {
    kv_rows(spec).map(|row| kv_type.position_bytes(row)).sum()
}

fn kv_rows(spec: &ModelSpec) -> impl Iterator<Item = CacheRow> {
    spec.layers.iter().map(|layer| layer.attention.cache_row())
}

/// Where the positions of one sequence lie in a pool, and how many are filled. It belongs to the pool whose pages it has
/// and must be given back to it ([`KvPool::release`]): dropping it leaves its pages taken.
#[derive(Debug)]
#[must_use = "its pages stay taken until it is released"]
pub struct Sequence {
    pages: Vec<u32>,
    pub(crate) length: usize,
    context: usize,
    pub(crate) states: SequenceStates,
}

impl Sequence {
    /// An empty sequence. Its page table never grows on the heap within `context` positions.
    pub fn new(context: usize) -> Self {
        let pages = Vec::with_capacity(context.div_ceil(PAGE_POSITIONS));
        Self { pages, length: 0, context, states: SequenceStates::default() }
    }

    /// Positions filled.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether nothing is cached.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Positions that the sequence may have.
    pub fn context(&self) -> usize {
        self.context
    }

    /// The page table: page `i` has the positions from `i * PAGE_POSITIONS` on. Pages may reach beyond the length.
    pub fn pages(&self) -> &[u32] {
        &self.pages
    }

    /// Where `count` rows from `position` on lie, page by page: the page, the place of the first of them in it, and which rows they are.
    fn rows_by_page(
        &self,
        position: usize,
        count: usize,
    ) -> impl Iterator<Item = (usize, usize, Range<usize>)> {
        let end = position + count;
        let pages = position / PAGE_POSITIONS..end.div_ceil(PAGE_POSITIONS);
        pages.map(move |index| {
            let first = position.max(index * PAGE_POSITIONS);
            let next = end.min((index + 1) * PAGE_POSITIONS);
            (self.pages[index] as usize, first % PAGE_POSITIONS, first - position..next - position)
        })
    }

    /// Makes `count` more written positions part of the sequence.
    pub(crate) fn commit(&mut self, count: usize) {
        assert!(self.length + count <= self.pages.len() * PAGE_POSITIONS, "commit within the pages");
        self.length += count;
        if count > 0 {
            self.states.commit();
        }
    }
}

/// Pages of keys and values, and who has them.
pub struct KvPool {
    buffer: Buffer,
    kv_type: KvType,
    /// Elements of one page: numbers, or blocks of them.
    page_elements: usize,
    layers: Vec<LayerPlace>,
    /// Owners of each page; 0 is a free page.
    owners: Vec<u32>,
    /// The pages that are free; the next one to be taken is the last.
    free: Vec<u32>,
    pub(crate) states: StatePool,
}

/// Where a layer is in each page, in elements.
#[derive(Clone, Copy)]
struct LayerPlace {
    /// Numbers of one position's keys.
    numbers: usize,
    /// Elements of one position's keys.
    row: usize,
    keys: usize,
    /// Where values begin; the same as `keys` where they are the first elements of the keys.
    values: usize,
    /// Where index keys begin, and the numbers of one position's; rows follow each other without gaps.
    index: usize,
    index_numbers: usize,
}

impl KvPool {
    /// Reserves and allocates `pages` pages, and `state_slots` slots where the model has recurrent layers. A sequence that computes
    /// needs two slots, one that rests one.
    ///
    /// # Errors
    /// The ledger has no room.
    ///
    /// # Panics
    /// The type does not suit the model's heads ([`crate::check_kv_type`]).
    pub fn new(
        ledger: &Ledger,
        spec: &ModelSpec,
        kv_type: KvType,
        pages: usize,
        state_slots: usize,
    ) -> Result<Self, ModelError> {
        let states = spec.state_lens();
        let states = StatePool::new(ledger, states, state_slots)?;
        Self::with_rows(ledger, kv_rows(spec), kv_type, pages, states)
    }

    /// As [`KvPool::new`], from what one position takes in each layer.
    fn with_rows(
        ledger: &Ledger,
        rows: impl Iterator<Item = impl Into<CacheRow>>,
        kv_type: KvType,
        pages: usize,
        states: StatePool,
    ) -> Result<Self, ModelError> {
        let mut page_elements = 0;
        let (together, element_bytes) = kv_type.element();
        let layers = rows
            .map(|row| {
                let CacheRow { keys: numbers, values, index: index_numbers } = row.into();
                assert!(numbers.is_multiple_of(together), "rows of {numbers} as {}", kv_type.name());
                let (row, keys) = (numbers / together, page_elements);
                let index = keys + PAGE_POSITIONS * (row + values / together);
                page_elements = index + PAGE_POSITIONS * kv_type.index_elements(index_numbers);
                let values = if values == 0 { keys } else { keys + PAGE_POSITIONS * row };
                LayerPlace { numbers, row, keys, values, index, index_numbers }
            })
            .collect();
        let bytes = (page_elements * element_bytes) as u64 * pages as u64;
        let buffer = Buffer::new(ledger, Purpose::KvCache, Bytes(bytes))?;
        let free = (0..pages as u32).rev().collect();
        Ok(Self { buffer, kv_type, page_elements, layers, owners: vec![0; pages], free, states })
    }

    /// All pages.
    pub fn pages(&self) -> usize {
        self.owners.len()
    }

    /// Pages that nobody has.
    pub fn pages_free(&self) -> usize {
        self.free.len()
    }

    /// Bytes of one page.
    pub fn page_bytes(&self) -> usize {
        self.page_elements * self.kv_type.element().1
    }

    /// How keys and values are stored.
    pub fn kv_type(&self) -> KvType {
        self.kv_type
    }

    /// Owners of a page; 0 for a free one.
    pub fn owners(&self, page: u32) -> usize {
        self.owners[page as usize] as usize
    }

    /// Takes what `sequence` needs to get `positions` more, so that a forward pass can append them: pages for them, and a copy of
    /// a last page that others have too. What it has already counts. Allocates nothing within the sequence's context.
    ///
    /// # Errors
    /// Too few pages are free; then nothing has changed.
    pub fn extend(&mut self, sequence: &mut Sequence, positions: usize) -> Result<(), PoolFull> {
        if positions == 0 {
            return Ok(());
        }
        self.extend_states(sequence)?;
        let first = sequence.length / PAGE_POSITIONS;
        let end = (sequence.length + positions).div_ceil(PAGE_POSITIONS);
        let there = sequence.pages.len().min(end);
        let shared = sequence.pages[first..there].iter().filter(|&&page| self.owners(page) > 1).count();
        let needed = shared + end - there;
        if needed > self.free.len() {
            return Err(PoolFull { part: PoolPart::Pages, needed, free: self.free.len() });
        }
        for index in first..there {
            let page = sequence.pages[index];
            if self.owners(page) > 1 {
                let own = self.take()?;
                self.copy_rows(page, own, sequence.length.saturating_sub(index * PAGE_POSITIONS));
                self.release_page(page);
                sequence.pages[index] = own;
            }
        }
        while sequence.pages.len() < end {
            let own = self.take()?;
            sequence.pages.push(own);
        }
        Ok(())
    }

    /// Whether a forward pass may append `positions`: [`KvPool::extend`] was called for them.
    pub(crate) fn is_extended(&self, sequence: &Sequence, positions: usize) -> bool {
        let end = (sequence.length + positions).div_ceil(PAGE_POSITIONS);
        let written = sequence.pages.get(sequence.length / PAGE_POSITIONS..end);
        positions == 0
            || self.has_next_state(sequence)
                && written.is_some_and(|written| written.iter().all(|&page| self.owners(page) == 1))
    }

    /// A sequence with the first `length` positions of another one, all of them if it has fewer: whole pages are shared, the rows of
    /// a partial last page are copied. Fewer positions where no state of that length is kept ([`KvPool::reachable`]).
    ///
    /// # Errors
    /// The copy needs a page and none is free; then nothing has changed.
    pub fn fork(&mut self, sequence: &Sequence, length: usize) -> Result<Sequence, PoolFull> {
        let length = self.reachable(sequence, length);
        let (whole, rest) = (length / PAGE_POSITIONS, length % PAGE_POSITIONS);
        let copy = if rest == 0 { None } else { Some(self.take()?) };
        let mut fork = self.sequence_of(&sequence.pages[..whole], sequence.context);
        if let Some(copy) = copy {
            self.copy_rows(sequence.pages[whole], copy, rest);
            fork.pages.push(copy);
            fork.length = length;
        }
        self.share_state_with(&mut fork, sequence);
        Ok(fork)
    }

    /// A sequence that begins with whole filled pages, of which it becomes one more owner.
    ///
    /// # Panics
    /// A page is free.
    pub fn sequence_of(&mut self, pages: &[u32], context: usize) -> Sequence {
        let mut sequence = Sequence::new(context.max(pages.len() * PAGE_POSITIONS));
        sequence.context = context;
        for &page in pages {
            self.retain(page);
            sequence.pages.push(page);
        }
        sequence.length = pages.len() * PAGE_POSITIONS;
        sequence
    }

    /// As [`KvPool::sequence_of`], with the first `length` positions of the pages and the state `slot` that they lead to, of which it
    /// becomes one more owner too. What is in the last page beyond them is forgotten.
    ///
    /// # Panics
    /// The pages hold fewer positions; a page or the slot is free; a model with recurrent layers and no slot.
    pub fn sequence_with_state(
        &mut self,
        pages: &[u32],
        length: usize,
        slot: Option<u32>,
        context: usize,
    ) -> Sequence {
        assert!(
            length.div_ceil(PAGE_POSITIONS) <= pages.len(),
            "{length} positions in {} pages",
            pages.len()
        );
        assert!(
            slot.is_some() || length == 0 || !self.has_states(),
            "{length} positions without their state"
        );
        let mut sequence = self.sequence_of(&pages[..length.div_ceil(PAGE_POSITIONS)], context);
        sequence.length = length;
        if length > 0 {
            self.set_state(&mut sequence, slot);
        }
        sequence
    }

    /// Forgets all positions from `length` on and gives back every page that has none of those before it. More positions go where no
    /// state of that length is kept ([`KvPool::reachable`]).
    pub fn truncate(&mut self, sequence: &mut Sequence, length: usize) {
        let length = self.reachable(sequence, length);
        if length < sequence.length {
            self.go_back(sequence, length);
        }
        sequence.length = length;
        while sequence.pages.len() > sequence.length.div_ceil(PAGE_POSITIONS) {
            if let Some(page) = sequence.pages.pop() {
                self.release_page(page);
            }
        }
    }

    /// Gives back all pages of a sequence.
    pub fn release(&mut self, sequence: Sequence) {
        self.release_states(sequence.states);
        for page in sequence.pages {
            self.release_page(page);
        }
    }

    /// Takes one free page. What it holds is whatever was in it.
    ///
    /// # Errors
    /// None is free.
    pub fn take(&mut self) -> Result<u32, PoolFull> {
        let page = self.free.pop().ok_or(PoolFull { part: PoolPart::Pages, needed: 1, free: 0 })?;
        self.owners[page as usize] = 1;
        Ok(page)
    }

    /// Adds an owner to a page.
    ///
    /// # Panics
    /// The page is free.
    pub fn retain(&mut self, page: u32) {
        let owners = &mut self.owners[page as usize];
        assert!(*owners > 0, "page {page} is free and cannot be shared");
        *owners += 1;
    }

    /// Takes an owner from a page; without one it is free.
    ///
    /// # Panics
    /// The page is free already.
    pub fn release_page(&mut self, page: u32) {
        let owners = &mut self.owners[page as usize];
        assert!(*owners > 0, "page {page} was given back before");
        *owners -= 1;
        if *owners == 0 {
            self.free.push(page);
        }
    }

    /// The bytes of a page, [`KvPool::page_bytes`] of them.
    pub fn page(&self, page: u32) -> &[u8] {
        let bytes = self.page_bytes();
        &self.buffer.as_bytes()[page as usize * bytes..][..bytes]
    }

    /// The bytes of a page, to fill it.
    ///
    /// # Panics
    /// It has not exactly one owner.
    pub fn page_mut(&mut self, page: u32) -> &mut [u8] {
        assert_eq!(self.owners(page), 1, "page {page} can be written by its only owner");
        let bytes = self.page_bytes();
        &mut self.buffer.as_bytes_mut()[page as usize * bytes..][..bytes]
    }

    /// Copies the first `rows` positions of all layers, at most a page of them.
    fn copy_rows(&mut self, from: u32, to: u32, rows: usize) {
        let (element, page) = (self.kv_type.element().1, self.page_bytes());
        let (from, to) = (from as usize * page, to as usize * page);
        let all = self.buffer.as_bytes_mut();
        for place in &self.layers {
            let bytes = rows.min(PAGE_POSITIONS) * place.row * element;
            for start in [place.keys * element, place.values * element] {
                all.copy_within(from + start..from + start + bytes, to + start);
            }
            let bytes = rows.min(PAGE_POSITIONS) * place.index_numbers * self.kv_type.index_element_bytes();
            let start = place.index * element;
            all.copy_within(from + start..from + start + bytes, to + start);
        }
    }

    /// Stores `keys` and `values` (rows of the layer's width; the keys again where values are a part of them) at positions from `position` on, which is not below the
    /// sequence's length. The sequence was extended for them.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn write(
        &mut self,
        team: &Team<'_>,
        kernels: Kernels,
        layer: usize,
        sequence: &Sequence,
        position: usize,
        keys: &[f32],
        values: &[f32],
    ) {
        let LayerPlace { numbers, row, keys: keys_at, values: values_at, .. } = self.layers[layer];
        for (page, first, rows) in sequence.rows_by_page(position, keys.len() / numbers) {
            let source = rows.start * numbers..rows.end * numbers;
            let from = page * self.page_elements + first * row;
            // Values that are a part of the keys are there with them.
            let stored = if values_at == keys_at { 1 } else { 2 };
            let both = [(&keys[source.clone()], keys_at), (&values[source.clone()], values_at)];
            for (values, at) in both.into_iter().take(stored) {
                let place = from + at..from + at + rows.len() * row;
                match self.kv_type {
                    KvType::F32 => self.buffer.as_mut_slice_of::<f32>()[place].copy_from_slice(values),
                    KvType::F16 => {
                        let place = &mut self.buffer.as_mut_slice_of::<f16>()[place];
                        vector::convert_to_f16(team, kernels, values, place);
                    }
                    KvType::Q8 => {
                        let place = &mut self.buffer.as_mut_slice_of::<BlockQ8>()[place];
                        quantize_q8(team, kernels, values, place);
                    }
                    KvType::Q4 => {
                        let place = &mut self.buffer.as_mut_slice_of::<BlockQ4>()[place];
                        quantize_q4(team, kernels, values, place);
                    }
                }
            }
        }
    }

    /// Keys and values of a layer where `sequence` has them.
    pub(crate) fn rows<'a>(&'a self, layer: usize, sequence: &'a Sequence) -> KvRows<'a> {
        let LayerPlace { keys, values, .. } = self.layers[layer];
        KvRows {
            pool: match self.kv_type {
                KvType::F32 => KvElements::F32(self.buffer.as_slice_of::<f32>()),
                KvType::F16 => KvElements::F16(self.buffer.as_slice_of::<f16>()),
                KvType::Q8 => KvElements::Q8(self.buffer.as_slice_of::<BlockQ8>()),
                KvType::Q4 => KvElements::Q4(self.buffer.as_slice_of::<BlockQ4>()),
            },
            pages: &sequence.pages,
            page_elements: self.page_elements,
            keys_offset: keys,
            values_offset: values,
        }
    }
}

#[cfg(test)]
mod tests;
