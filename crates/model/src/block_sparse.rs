//! Sparse attention over blocks of positions, as Qwen4-Exp has it: an indexer scores every complete block of positions for a row, the
//! row attends to the best blocks and to the positions behind the last complete block.
//!
//! A position's index key is cached with its keys and values. When a block becomes complete, the mean of its index keys, normed and
//! rotated as at the block's first position, takes the place of the last one: no later block needs that one, and a sequence that
//! is cut inside a block still has what it needs. It is made from what is stored, so it does not matter which rows come in one call.
//! Chosen positions are gathered in order and attended to like a short sequence; a row that chooses all blocks attends as usual.
//! Reference: `Qwen4ExpTextQSAIndexer` of transformers. Next: `attend.rs`.

use std::ops::Range;

use coldpress_kernels::attention::{
    Attention, AttentionShape, KvElements, KvRows, PAGE_POSITIONS, attention,
};
use coldpress_kernels::vector::{self, RopeRows};
use coldpress_kernels::{MatmulJob, matmul};
use coldpress_memory::{Buffer, Ledger};
use coldpress_workers::Team;

use crate::attend::follow_memory;
use crate::error::ModelError;
use crate::forward::{ForwardEngine, Model};
use crate::kv::Sequence;
use crate::low_rank_mixer::norm_stream;
use crate::scratch::{Need, Scratch, scratch_buffer};
use crate::spec::{AttentionKind, AttentionSpec, MatrixHandle, ModelSpec, VectorHandle};

/// Blocks that are scored between two looks at the best ones so far.
const BLOCKS_AT_ONCE: usize = 1024;
/// Blocks that one thread scores at a time.
const BLOCKS_PER_PART: usize = 64;

/// The indexer of a layer.
#[derive(Clone, Copy, Debug)]
pub struct BlockIndexSpec {
    /// Heads of the index query; there is one index key.
    pub heads: usize,
    /// Elements of an index query and of an index key.
    pub head_dim: usize,
    /// Query product, `heads * head_dim` rows.
    pub query: MatrixHandle,
    /// Key product, `head_dim` rows.
    pub key: MatrixHandle,
    /// RMSNorm of each query head.
    pub query_norm: VectorHandle,
    /// RMSNorm of the mean of a block.
    pub key_norm: VectorHandle,
    /// Positions of a block.
    pub block: usize,
    /// Blocks that a row attends to at most.
    pub chosen: usize,
    /// Index into [`ModelSpec::ropes`].
    pub rope: usize,
}

impl BlockIndexSpec {
    /// Of `rows` rows, the first at `position`, how many attend to every position before them.
    pub(crate) fn dense_rows(&self, rows: usize, position: usize) -> usize {
        // The first position that has more complete blocks than are chosen.
        let sparse_from = (self.chosen + 1) * self.block - 1;
        sparse_from.saturating_sub(position).min(rows)
    }

    /// Positions that a row attends to at most.
    fn positions(&self) -> usize {
        self.chosen * self.block + self.block - 1
    }
}

/// Sizes of the buffers of [`BlockSparseScratch`].
#[derive(Clone, Copy)]
pub(crate) struct BlockSparseNeeds {
    all: [Need; 6],
    pages: usize,
}

impl BlockSparseNeeds {
    /// `None` for a model without such layers.
    pub fn of(spec: &ModelSpec) -> Option<Self> {
        let grouped = spec.layers.iter().filter_map(|layer| match &layer.attention {
            AttentionKind::Grouped(grouped) => Some((grouped.sparse?, grouped.shape)),
            _ => None,
        });
        let most = |of: &dyn Fn(BlockIndexSpec, AttentionShape) -> usize| {
            grouped.clone().map(|(index, shape)| of(index, shape)).max()
        };
        let float = size_of::<f32>();
        let pages = most(&|index, _| index.positions().div_ceil(PAGE_POSITIONS))?;
        let gathered = most(&|_, shape| 2 * shape.kv_row_len())? * pages * PAGE_POSITIONS * float;
        let chosen = most(&|index, _| index.chosen)?;
        let head_dim = most(&|index, _| index.head_dim)?;
        let angles = spec.ropes.iter().map(|rope| rope.dimensions).max().unwrap_or(0);
        Some(Self {
            all: [
                Need::block_rows(most(&|index, _| index.heads * index.head_dim)? * float),
                Need::block_rows(head_dim * float),
                Need::fixed(BLOCKS_AT_ONCE * float),
                Need::fixed((chosen + BLOCKS_AT_ONCE) * size_of::<u64>()),
                Need::fixed((2 * head_dim + angles) * float),
                Need::fixed(gathered + pages * size_of::<u32>()),
            ],
            pages,
        })
    }

    pub fn all(self) -> impl Iterator<Item = Need> {
        self.all.into_iter()
    }
}

/// Working memory of indexers.
pub(crate) struct BlockSparseScratch {
    /// Index queries [rows of a block, heads, head_dim].
    query: Buffer,
    /// Index keys [rows of a block, head_dim].
    key: Buffer,
    scores: Buffer,
    /// Best blocks so far and those that were scored since, as sort keys; see [`sort_key`].
    candidates: Buffer,
    /// Mean and key of one block, and the angles of its position.
    block: Buffer,
    /// Keys and values of the chosen positions, in pages.
    gathered: Buffer,
    /// Numbers of these pages.
    pages: Vec<u32>,
}

impl BlockSparseScratch {
    pub fn new(ledger: &Ledger, needs: BlockSparseNeeds, rows: usize) -> Result<Self, ModelError> {
        let [query, key, scores, candidates, block, gathered] =
            needs.all.map(|need| scratch_buffer(ledger, need, rows));
        Ok(Self {
            query: query?,
            key: key?,
            scores: scores?,
            candidates: candidates?,
            block: block?,
            gathered: gathered?,
            pages: (0..needs.pages as u32).collect(),
        })
    }
}

/// Orders blocks by score, the best first, and among equals by number. Scores are not negative, so their bits are in their order.
fn sort_key(score: f32, block: usize) -> u64 {
    u64::from(!score.to_bits()) << 32 | block as u64
}

impl Model {
    /// Index queries and keys of the rows of a block, from the normed input of the layer.
    pub(crate) fn index_products(
        &self,
        engine: &mut ForwardEngine<'_, '_>,
        index: &BlockIndexSpec,
        call_rows: usize,
        block: &Range<usize>,
    ) {
        let (team, kernels, rows) = (engine.team, engine.kernels, block.len());
        let angles = self.angles(index.rope, call_rows, block);
        let Scratch { input, cosines, sines, block_sparse, .. } = &mut *engine.scratch;
        let scratch = block_sparse.as_mut().expect("a model with sparse attention has its scratch");
        let input = input.rows(0, rows, self.spec.hidden);
        let query = &mut scratch.query.as_mut_slice_of::<f32>()[..rows * index.heads * index.head_dim];
        let key = &mut scratch.key.as_mut_slice_of::<f32>()[..rows * index.head_dim];
        let jobs = &mut [
            MatmulJob::new(self.weights.matrix(index.query), input, &mut *query),
            MatmulJob::new(self.weights.matrix(index.key), input, &mut *key),
        ];
        matmul(team, kernels, jobs);
        let norm = self.weights.vector(index.query_norm);
        vector::rms_norm_in_place(team, kernels, query, norm, self.spec.norm_epsilon);
        let rotation = self.rotation(index.rope, index.head_dim, angles, (&*cosines, &*sines));
        rotation.apply(team, kernels, query);
    }

    /// Stores the index keys of rows `rows` of a block, the first of them at `position`, and makes keys of the blocks that they
    /// complete.
    pub(crate) fn write_index_keys(
        &self,
        engine: &mut ForwardEngine<'_, '_>,
        index: &BlockIndexSpec,
        layer: usize,
        sequence: &Sequence,
        rows: &Range<usize>,
        position: usize,
    ) {
        let (team, kernels, width) = (engine.team, engine.kernels, index.head_dim);
        let ForwardEngine { pool, scratch, .. } = engine;
        let scratch = scratch.block_sparse.as_mut().expect("a model with sparse attention has its scratch");
        let keys = &scratch.key.as_slice_of::<f32>()[rows.start * width..rows.end * width];
        pool.write_index(team, kernels, layer, sequence, position, keys);
        let (mean, rest) = scratch.block.as_mut_slice_of::<f32>().split_at_mut(width);
        let (key, angles) = rest.split_at_mut(width);
        let frequencies = &self.inverse_frequencies[index.rope];
        let rope = &self.spec.ropes[index.rope];
        let (cosines, sines) = angles[..2 * frequencies.len()].split_at_mut(frequencies.len());
        for number in position / index.block..(position + rows.len()) / index.block {
            let first = number * index.block;
            mean.fill(0.0);
            let stored = pool.index_rows(layer, sequence);
            for position in first..first + index.block {
                add_row(&stored, position, mean);
            }
            mean.iter_mut().for_each(|value| *value /= index.block as f32);
            norm_stream(mean, self.weights.vector(index.key_norm), self.spec.norm_epsilon, key);
            vector::rope_table(frequencies, rope.magnitude, first, cosines, sines);
            let table = RopeRows {
                head_dim: width,
                rotary_dims: rope.dimensions,
                cosines: &*cosines,
                sines: &*sines,
            };
            vector::rope_half_split(team, kernels, key, table);
            pool.write_index(team, kernels, layer, sequence, first + index.block - 1, key);
        }
    }

    /// Attends from one row at `position` to the positions that it chooses.
    pub(crate) fn attend_chosen(
        &self,
        engine: &mut ForwardEngine<'_, '_>,
        (spec, index): (&AttentionSpec, &BlockIndexSpec),
        layer: usize,
        sequence: &Sequence,
        row: usize,
        position: usize,
    ) {
        let (team, kernels) = (engine.team, engine.kernels);
        let width = spec.shape.query_row_len();
        let ForwardEngine { pool, scratch, .. } = &mut *engine;
        let Scratch { input, query, attention: attention_scratch, block_sparse, .. } = &mut **scratch;
        let scratch = block_sparse.as_mut().expect("a model with sparse attention has its scratch");
        let index_query = &scratch.query.as_slice_of::<f32>()[row * index.heads * index.head_dim..];
        let blocks = (position + 1) / index.block;
        let candidates = best_blocks(
            team,
            index,
            &pool.index_rows(layer, sequence),
            index_query,
            blocks,
            scratch.scores.as_mut_slice_of::<f32>(),
            scratch.candidates.as_mut_slice_of::<u64>(),
        );
        candidates.iter_mut().for_each(|candidate| *candidate &= u64::from(u32::MAX));
        candidates.sort_unstable();
        let tail = blocks * index.block..position + 1;
        let chosen = candidates.iter().flat_map(|block| {
            let first = *block as usize * index.block;
            first..first + index.block
        });
        let kv_width = spec.shape.kv_row_len();
        let from = pool.rows(layer, sequence);
        let cache = gather(&from, kv_width, chosen.chain(tail), &mut scratch.gathered, &scratch.pages);
        let queries = row * width..(row + 1) * width;
        let (cache, count) = cache;
        attention(
            team,
            kernels,
            Attention {
                shape: spec.shape,
                query: &query.as_slice_of::<f32>()[queries.clone()],
                first_position: count - 1,
                cache,
                window: None,
                chunk: None,
                sinks: spec.sinks.map(|sinks| self.weights.vector(sinks)),
                scale: spec.scale,
                out: &mut input.floats_mut(queries.end)[queries],
                scratch: attention_scratch.as_mut_slice_of::<f32>(),
            },
        );
    }

    /// Attends from rows `rows` of a block, the first of them at `position`, that choose among blocks.
    pub(crate) fn attend_sparse_rows(
        &self,
        engine: &mut ForwardEngine<'_, '_>,
        (spec, index): (&AttentionSpec, &BlockIndexSpec),
        layer: usize,
        sequence: &Sequence,
        rows: Range<usize>,
        position: usize,
    ) {
        for (number, row) in rows.enumerate() {
            if number.is_multiple_of(PAGE_POSITIONS) {
                follow_memory(engine);
            }
            self.attend_chosen(engine, (spec, index), layer, sequence, row, position + number);
        }
    }
}

/// The best of the first `blocks` blocks for an index query `[heads, head_dim]`, as sort keys in no order.
fn best_blocks<'a>(
    team: &Team<'_>,
    index: &BlockIndexSpec,
    keys: &KvRows<'_>,
    query: &[f32],
    blocks: usize,
    scores: &mut [f32],
    candidates: &'a mut [u64],
) -> &'a mut [u64] {
    let mut kept = 0;
    for first in (0..blocks).step_by(BLOCKS_AT_ONCE) {
        let count = (blocks - first).min(BLOCKS_AT_ONCE);
        let scores = &mut scores[..count];
        team.for_each_part_mut(scores, BLOCKS_PER_PART, |part, scores, _worker| {
            for (block, score) in scores.iter_mut().enumerate() {
                let block = first + part * BLOCKS_PER_PART + block;
                *score = index.score(keys, query, (block + 1) * index.block - 1);
            }
        });
        for (block, score) in scores.iter().enumerate() {
            candidates[kept + block] = sort_key(*score, first + block);
        }
        kept += count;
        if kept > index.chosen {
            candidates[..kept].select_nth_unstable(index.chosen);
            kept = index.chosen;
        }
    }
    &mut candidates[..kept]
}

impl BlockIndexSpec {
    /// `sum over heads of max(0, query . key) / sqrt(head_dim)` with the block's key, which lies at `position`.
    fn score(&self, keys: &KvRows<'_>, query: &[f32], position: usize) -> f32 {
        let sum: f32 = match keys.pool {
            KvElements::F32(elements) => {
                let key = row_of(elements, keys, self.head_dim, position);
                self.heads_of(query).map(|query| dot(query, key, |value| value).max(0.0)).sum()
            }
            KvElements::F16(elements) => {
                let key = row_of(elements, keys, self.head_dim, position);
                self.heads_of(query).map(|query| dot(query, key, half::f16::to_f32).max(0.0)).sum()
            }
            KvElements::Q8(_) | KvElements::Q4(_) => unreachable!("index keys are floats under any type"),
        };
        sum / (self.head_dim as f32).sqrt()
    }

    fn heads_of<'a>(&self, query: &'a [f32]) -> impl Iterator<Item = &'a [f32]> {
        query[..self.heads * self.head_dim].chunks_exact(self.head_dim)
    }
}

/// Elements of one position.
fn row_of<'a, T>(elements: &'a [T], rows: &KvRows<'_>, width: usize, position: usize) -> &'a [T] {
    let page = rows.pages[position / PAGE_POSITIONS] as usize * rows.page_elements;
    &elements[page + rows.keys_offset + position % PAGE_POSITIONS * width..][..width]
}

/// Sums that run beside each other, so that they need not wait for one another.
const SUMS: usize = 16;

fn dot<T: Copy>(a: &[f32], b: &[T], widen: impl Fn(T) -> f32) -> f32 {
    let mut sums = [0.0f32; SUMS];
    for (a, b) in a.chunks(SUMS).zip(b.chunks(SUMS)) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * widen(*b);
        }
    }
    sums.iter().sum()
}

/// `sum += the stored index key of a position`.
fn add_row(rows: &KvRows<'_>, position: usize, sum: &mut [f32]) {
    match rows.pool {
        KvElements::F32(elements) => {
            let row = row_of(elements, rows, sum.len(), position);
            sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
        }
        KvElements::F16(elements) => {
            let row = row_of(elements, rows, sum.len(), position);
            sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += value.to_f32());
        }
        KvElements::Q8(_) | KvElements::Q4(_) => unreachable!("index keys are floats under any type"),
    }
}

/// Copies keys and values of `positions` into pages, and returns these and how many positions they hold.
fn gather<'a>(
    from: &KvRows<'_>,
    width: usize,
    positions: impl Iterator<Item = usize>,
    to: &'a mut Buffer,
    pages: &'a [u32],
) -> (KvRows<'a>, usize) {
    let (pool, row, count) = match from.pool {
        KvElements::F32(elements) => {
            let to = to.as_mut_slice_of::<f32>();
            let count = copy_positions(elements, from, width, positions, to);
            (KvElements::F32(&*to), width, count)
        }
        KvElements::F16(elements) => {
            let to = to.as_mut_slice_of::<half::f16>();
            let count = copy_positions(elements, from, width, positions, to);
            (KvElements::F16(&*to), width, count)
        }
        KvElements::Q8(blocks) => {
            let (to, row) = (to.as_mut_slice_of(), width / coldpress_kernels::attention::BLOCK_NUMBERS);
            let count = copy_positions(blocks, from, row, positions, to);
            (KvElements::Q8(&*to), row, count)
        }
        KvElements::Q4(blocks) => {
            let (to, row) = (to.as_mut_slice_of(), width / coldpress_kernels::attention::BLOCK_NUMBERS);
            let count = copy_positions(blocks, from, row, positions, to);
            (KvElements::Q4(&*to), row, count)
        }
    };
    let values_offset = PAGE_POSITIONS * row;
    let rows = KvRows { pool, pages, page_elements: 2 * values_offset, keys_offset: 0, values_offset };
    (rows, count)
}

/// The copy of [`gather`] for elements of one type, `row` of them per position.
fn copy_positions<T: Copy>(
    elements: &[T],
    from: &KvRows<'_>,
    row: usize,
    positions: impl Iterator<Item = usize>,
    to: &mut [T],
) -> usize {
    let half = PAGE_POSITIONS * row;
    let mut count = 0;
    for position in positions {
        let page = from.pages[position / PAGE_POSITIONS] as usize * from.page_elements;
        let place = position % PAGE_POSITIONS * row;
        let target = count / PAGE_POSITIONS * 2 * half + count % PAGE_POSITIONS * row;
        for (offset, half) in [(from.keys_offset, 0), (from.values_offset, half)] {
            let source = &elements[page + offset + place..][..row];
            to[target + half..][..row].copy_from_slice(source);
        }
        count += 1;
    }
    count
}
