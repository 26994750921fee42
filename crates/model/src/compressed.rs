//! Attention over a window of positions and compressed groups of all positions before (DeepSeek-V4): one key head, whose keys
//! are its values, for many query heads.
//!
//! The cache holds per position its key and, in layers that compress, what the compressors read of it (as an index row of
//! floats) and a share of the compressed row of its group. When the last position of a group has been written, its row is
//! computed from the cached ones, so that chunks, copies of pages and a sequence that was cut change no bit. A query row attends
//! to the keys that it sees, gathered in order: its window, then compressed rows, all or those that an indexer chooses.
//! Refuses: cache types of few bits, rates that do not go with pages.
//! Next: `compressed/compressor.rs` (groups), `compressed/indexer.rs` (the choice), `latent.rs` (DeepSeek-V3).

mod buffers;
mod compressor;
mod indexer;

use std::ops::Range;

use coldpress_kernels::attention::{
    Attention, AttentionShape, KvElements, KvRows, PAGE_POSITIONS, attention,
};
use coldpress_kernels::{MatmulJob, matmul, vector};
use coldpress_workers::Team;

use crate::attend::follow_memory;
use crate::forward::{ForwardEngine, Model, Segment};
use crate::latent::{HeadMatrices, Heads, for_rows};
use crate::query_key;
use crate::scratch::Scratch;
use crate::segments::rows_of_segments;
use crate::spec::{CacheRow, MatrixHandle, VectorHandle};
use crate::streams::Half;

pub(crate) use buffers::{CompressedNeeds, CompressedScratch};
pub use compressor::{CompressorSpec, GroupIndexerSpec};

/// Rows that are attended together: enough to share the reading of the matrices.
const COMPRESSED_ROWS: usize = 32;

/// Attention over a window and, where `compression` says how, compressed groups of positions.
#[derive(Clone, Debug)]
pub struct CompressedSpec {
    /// Query heads.
    pub heads: usize,
    /// Elements of a head, of the key and of a compressed row.
    pub head_dim: usize,
    /// Elements at the end of each that are rotated, in pairs of neighbours.
    pub rotary_dim: usize,
    /// Index into [`crate::ModelSpec::ropes`].
    pub rope: usize,
    /// To the latent of the queries.
    pub query_down: MatrixHandle,
    /// Elements of that latent.
    pub query_rank: usize,
    /// Its RMSNorm.
    pub query_norm: VectorHandle,
    /// From the latent to `heads * head_dim`.
    pub query_up: MatrixHandle,
    /// The key, `head_dim` rows.
    pub key: MatrixHandle,
    /// Its RMSNorm.
    pub key_norm: VectorHandle,
    /// One logit per head that takes part in the softmax without a value.
    pub sinks: VectorHandle,
    /// Positions that a query sees, its own included.
    pub window: usize,
    /// Groups of heads in the output projection.
    pub output_groups: usize,
    /// Elements that each becomes.
    pub output_rank: usize,
    /// Per group `[output_rank, heads * head_dim / output_groups]`.
    pub output_down: HeadMatrices,
    /// From `output_groups * output_rank`.
    pub output_up: MatrixHandle,
    /// Factor on the dot products.
    pub scale: f32,
    /// What a query sees beyond its window.
    pub compression: Option<CompressionSpec>,
}

/// One row for every group of positions.
#[derive(Clone, Debug)]
pub struct CompressionSpec {
    /// Positions of a group: a divisor of the positions of a page, or a multiple of them.
    pub rate: usize,
    /// Most compressed rows that one query sees.
    pub rows_max: usize,
    /// Most groups of a sequence.
    pub groups_max: usize,
    /// Makes the rows.
    pub rows: CompressorSpec,
    /// Chooses among them; without it a query sees all.
    pub indexer: Option<GroupIndexerSpec>,
}

impl CompressedSpec {
    /// The heads as attention sees them.
    pub fn shape(&self) -> AttentionShape {
        AttentionShape { heads: self.heads, kv_heads: 1, head_dim: self.head_dim }
    }

    /// What one position takes in the cache.
    pub fn cache_row(&self) -> CacheRow {
        let index = self.compression.as_ref().map_or(0, |compression| compression.layout().width);
        CacheRow::shared(self.head_dim).with_index(index)
    }

    fn query_len(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Elements that the last product of the layer reads.
    pub fn result_len(&self) -> usize {
        self.output_groups * self.output_rank
    }
}

/// Where things are in the index row of a position.
#[derive(Clone, Copy)]
pub(crate) struct IndexLayout {
    /// What the indexer's compressor reads.
    indexer_inputs: usize,
    /// The position's share of the compressed row.
    share: usize,
    /// That of the indexer's row.
    indexer_share: usize,
    /// Elements in all.
    width: usize,
}

impl CompressionSpec {
    /// Positions at the end of a group that hold its compressed row: in one page, which nobody else has while it is written.
    fn holders(&self) -> usize {
        self.rate.min(PAGE_POSITIONS)
    }

    fn share_len(&self, dim: usize) -> usize {
        dim.div_ceil(self.holders())
    }

    fn layout(&self) -> IndexLayout {
        let indexer_dim = self.indexer.as_ref().map_or(0, |indexer| indexer.compressor.dim);
        let indexer_inputs = self.rows.inputs();
        let share = indexer_inputs + self.indexer.as_ref().map_or(0, |indexer| indexer.compressor.inputs());
        let indexer_share = share + self.share_len(self.rows.dim);
        let width = indexer_share + if indexer_dim == 0 { 0 } else { self.share_len(indexer_dim) };
        IndexLayout { indexer_inputs, share, indexer_share, width }
    }
}

/// Copies elements `first..` of the row of a position out of the cache; `width` is that of a row.
fn read(rows: &KvRows<'_>, width: usize, position: usize, first: usize, out: &mut [f32]) {
    let page = rows.pages[position / PAGE_POSITIONS] as usize * rows.page_elements + rows.keys_offset;
    let at = page + position % PAGE_POSITIONS * width + first;
    let place = at..at + out.len();
    match rows.pool {
        KvElements::F32(elements) => out.copy_from_slice(&elements[place]),
        KvElements::F16(elements) => {
            out.iter_mut().zip(&elements[place]).for_each(|(out, element)| *out = element.to_f32());
        }
        // Types of few bits are refused before anything is computed.
        KvElements::Q8(_) | KvElements::Q4(_) => out.fill(f32::NAN),
    }
}

/// Which way elements are turned.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    Forward,
    Back,
}

/// Rotates pairs of neighbours in `values`, one per angle.
fn turn(values: &mut [f32], cosines: &[f32], sines: &[f32], way: Turn) {
    for ((pair, cosine), sine) in values.chunks_exact_mut(2).zip(cosines).zip(sines) {
        let sine = if way == Turn::Back { -sine } else { *sine };
        (pair[0], pair[1]) = (pair[0] * cosine - pair[1] * sine, pair[1] * cosine + pair[0] * sine);
    }
}

/// Rotates the last elements of every head of `rows`, each `[heads, head_dim]`, by the angles of the row.
fn turn_heads(
    team: &Team<'_>,
    rows: &mut [f32],
    (heads, head_dim): (usize, usize),
    (cosines, sines): (&[f32], &[f32]),
    way: Turn,
) {
    let pairs = cosines.len() / (rows.len() / (heads * head_dim));
    for_rows(team, rows, heads * head_dim, |row, values| {
        let angles = row * pairs..(row + 1) * pairs;
        for head in values.chunks_exact_mut(head_dim) {
            let rotated = &mut head[head_dim - 2 * pairs..];
            turn(rotated, &cosines[angles.clone()], &sines[angles.clone()], way);
        }
    });
}

impl Model {
    /// Adds the attention of a layer to the residual streams of the rows of a block and fills the KV cache.
    pub(crate) fn attend_compressed(
        &self,
        engine: &mut ForwardEngine<'_, '_>,
        spec: &CompressedSpec,
        segments: &mut [Segment<'_>],
        layer: usize,
        block: &Range<usize>,
    ) {
        let call_rows = segments.iter().map(|segment| segment.tokens.len()).sum();
        for first in block.clone().step_by(COMPRESSED_ROWS) {
            let rows = first..block.end.min(first + COMPRESSED_ROWS);
            self.norm_half(engine, self.spec.layers[layer].attention_norm, block, &rows);
            self.compressed_projections(engine, spec, rows.len());
            self.turn_compressed(engine, spec, call_rows, &rows);
            self.attend_compressed_segments(engine, spec, segments, layer, &rows);
            self.compressed_output(engine, spec, call_rows, &rows, rows.start - block.start);
            follow_memory(engine);
        }
        self.add_result(engine, layer, Half::Attention, block);
    }

    /// Queries, keys and what the compressors read, of `count` rows of normed input.
    fn compressed_projections(
        &self,
        engine: &mut ForwardEngine<'_, '_>,
        spec: &CompressedSpec,
        count: usize,
    ) {
        let hidden = self.spec.hidden;
        let epsilon = self.spec.norm_epsilon;
        let (team, kernels) = (engine.team, engine.kernels);
        let Scratch { input, compressed, .. } = &mut *engine.scratch;
        let buffers = compressed.as_mut().expect("a model with compressed attention has its scratch");
        let input = input.rows(0, count, hidden);
        let matrix = |handle| self.weights.matrix(handle);
        let down = &mut buffers.query_down.as_mut_slice_of::<f32>()[..count * spec.query_rank];
        let key = &mut buffers.key.as_mut_slice_of::<f32>()[..count * spec.head_dim];
        matmul(
            team,
            kernels,
            &mut [
                MatmulJob::new(matrix(spec.query_down), input, &mut *down),
                MatmulJob::new(matrix(spec.key), input, &mut *key),
            ],
        );
        let latent = &mut buffers.query_latent;
        latent.norm(team, kernels, down, self.weights.vector(spec.query_norm), epsilon);
        let latent = latent.rows(0, count, spec.query_rank);
        let query = &mut buffers.query.as_mut_slice_of::<f32>()[..count * spec.query_len()];
        matmul(team, kernels, &mut [MatmulJob::new(matrix(spec.query_up), latent, &mut *query)]);
        query_key::unit_heads(team, query, spec.head_dim, epsilon);
        vector::rms_norm_in_place(team, kernels, key, self.weights.vector(spec.key_norm), epsilon);

        let Some(compression) = &spec.compression else { return };
        let width = compression.layout().width;
        let index = &mut buffers.index_rows.as_mut_slice_of::<f32>()[..count * width];
        index.fill(0.0);
        let compressors =
            [Some(&compression.rows), compression.indexer.as_ref().map(|indexer| &indexer.compressor)];
        let mut first = 0;
        for compressor in compressors.into_iter().flatten() {
            let columns = compressor.columns();
            let products = &mut buffers.products.as_mut_slice_of::<f32>()[..2 * count * columns];
            let (values, gates) = products.split_at_mut(count * columns);
            matmul(
                team,
                kernels,
                &mut [
                    MatmulJob::new(matrix(compressor.value), input, &mut *values),
                    MatmulJob::new(matrix(compressor.gate), input, &mut *gates),
                ],
            );
            for products in [&*values, &*gates] {
                for (row, products) in index.chunks_exact_mut(width).zip(products.chunks_exact(columns)) {
                    row[first..first + columns].copy_from_slice(products);
                }
                first += columns;
            }
        }
        if let Some(indexer) = &compression.indexer {
            let queries = &mut buffers.index_query.as_mut_slice_of::<f32>()[..count * indexer.query_len()];
            let weights = &mut buffers.index_weights.as_mut_slice_of::<f32>()[..count * indexer.heads];
            matmul(team, kernels, &mut [MatmulJob::new(matrix(indexer.query), latent, queries)]);
            matmul(team, kernels, &mut [MatmulJob::new(matrix(indexer.weights), input, weights)]);
        }
    }

    fn turn_compressed(
        &self,
        engine: &mut ForwardEngine<'_, '_>,
        spec: &CompressedSpec,
        call_rows: usize,
        rows: &Range<usize>,
    ) {
        let (team, count) = (engine.team, rows.len());
        let angles = self.angles(spec.rope, call_rows, rows);
        let Scratch { compressed, cosines, sines, .. } = &mut *engine.scratch;
        let buffers = compressed.as_mut().expect("a model with compressed attention has its scratch");
        let angles = (&cosines.as_slice_of::<f32>()[angles.clone()], &sines.as_slice_of::<f32>()[angles]);
        let query = &mut buffers.query.as_mut_slice_of::<f32>()[..count * spec.query_len()];
        turn_heads(team, query, (spec.heads, spec.head_dim), angles, Turn::Forward);
        let key = &mut buffers.key.as_mut_slice_of::<f32>()[..count * spec.head_dim];
        turn_heads(team, key, (1, spec.head_dim), angles, Turn::Forward);
        if let Some(indexer) = spec.compression.as_ref().and_then(|compression| compression.indexer.as_ref())
        {
            let query = &mut buffers.index_query.as_mut_slice_of::<f32>()[..count * indexer.query_len()];
            turn_heads(team, query, (indexer.heads, indexer.compressor.dim), angles, Turn::Forward);
        }
    }

    /// Writes keys and compressed rows to the cache and attends, sequence by sequence.
    fn attend_compressed_segments(
        &self,
        engine: &mut ForwardEngine<'_, '_>,
        spec: &CompressedSpec,
        segments: &[Segment<'_>],
        layer: usize,
        rows: &Range<usize>,
    ) {
        for part in rows_of_segments(segments, rows) {
            let (segment, position) = (part.segment, part.first_position);
            let part = part.rows.start - rows.start..part.rows.end - rows.start;
            let place = Place { layer, position, rows: part };
            let Scratch { compressed, .. } = &mut *engine.scratch;
            let buffers = compressed.as_mut().expect("a model with compressed attention has its scratch");
            let key_place = place.rows.start * spec.head_dim..place.rows.end * spec.head_dim;
            let keys = &buffers.key.as_slice_of::<f32>()[key_place];
            let sequence = &*segment.sequence;
            engine.pool.write(engine.team, engine.kernels, layer, sequence, position, keys, keys);
            match &spec.compression {
                None => self.attend_window(engine, spec, segment, &place),
                Some(compression) => {
                    let width = compression.layout().width;
                    let index = &buffers.index_rows.as_slice_of::<f32>()
                        [place.rows.start * width..place.rows.end * width];
                    engine.pool.write_index(engine.team, engine.kernels, layer, sequence, position, index);
                    self.close_groups(engine, spec, compression, segment, &place);
                    for row in place.rows.clone() {
                        let position = position + row - place.rows.start;
                        self.attend_gathered(engine, spec, compression, segment, layer, row, position);
                    }
                }
            }
        }
    }

    /// Rows that see their window alone.
    fn attend_window(
        &self,
        engine: &mut ForwardEngine<'_, '_>,
        spec: &CompressedSpec,
        segment: &Segment<'_>,
        place: &Place,
    ) {
        let Scratch { compressed, attention: scratch, .. } = &mut *engine.scratch;
        let buffers = compressed.as_mut().expect("a model with compressed attention has its scratch");
        let queries = place.rows.start * spec.query_len()..place.rows.end * spec.query_len();
        attention(
            engine.team,
            engine.kernels,
            Attention {
                shape: spec.shape(),
                query: &buffers.query.as_slice_of::<f32>()[queries.clone()],
                first_position: place.position,
                cache: engine.pool.rows(place.layer, segment.sequence),
                window: Some(spec.window),
                chunk: None,
                sinks: Some(self.weights.vector(spec.sinks)),
                scale: spec.scale,
                out: &mut buffers.attended.as_mut_slice_of::<f32>()[queries],
                scratch: scratch.as_mut_slice_of::<f32>(),
            },
        );
    }

    /// One row: gathers what it sees and attends to that as if it were all there is.
    #[allow(clippy::too_many_arguments)]
    fn attend_gathered(
        &self,
        engine: &mut ForwardEngine<'_, '_>,
        spec: &CompressedSpec,
        compression: &CompressionSpec,
        segment: &Segment<'_>,
        layer: usize,
        row: usize,
        position: usize,
    ) {
        let groups = (position + 1) / compression.rate;
        let chosen = self.choose_groups(engine, compression, segment, layer, row, groups);
        let dim = spec.head_dim;
        let Scratch { compressed, attention: scratch, .. } = &mut *engine.scratch;
        let buffers = compressed.as_mut().expect("a model with compressed attention has its scratch");
        let order = &buffers.order.as_slice_of::<u32>()[..chosen];
        let window = (position + 1).saturating_sub(spec.window)..position + 1;
        let count = window.len() + chosen;
        let keys = engine.pool.rows(layer, segment.sequence);
        let index = engine.pool.index_rows(layer, segment.sequence);
        let gathered =
            &mut buffers.gathered.as_mut_slice_of::<f32>()[..count.next_multiple_of(PAGE_POSITIONS) * dim];
        let first_group = window.start;
        for_rows(engine.team, &mut gathered[..count * dim], dim, |at, out| {
            match at.checked_sub(window.len()) {
                None => read(&keys, dim, first_group + at, 0, out),
                Some(at) => compression.read_row(&index, order[at] as usize, out),
            }
        });
        let queries = row * spec.query_len()..(row + 1) * spec.query_len();
        attention(
            engine.team,
            engine.kernels,
            Attention {
                shape: spec.shape(),
                query: &buffers.query.as_slice_of::<f32>()[queries.clone()],
                first_position: count - 1,
                cache: KvRows {
                    pool: KvElements::F32(gathered),
                    pages: &buffers.pages.as_slice_of::<u32>()[..count.div_ceil(PAGE_POSITIONS)],
                    page_elements: PAGE_POSITIONS * dim,
                    keys_offset: 0,
                    values_offset: 0,
                },
                window: None,
                chunk: None,
                sinks: Some(self.weights.vector(spec.sinks)),
                scale: spec.scale,
                out: &mut buffers.attended.as_mut_slice_of::<f32>()[queries],
                scratch: scratch.as_mut_slice_of::<f32>(),
            },
        );
    }

    /// From sums of keys to what is added to the residual streams, into rows `first..` of the block's result.
    fn compressed_output(
        &self,
        engine: &mut ForwardEngine<'_, '_>,
        spec: &CompressedSpec,
        call_rows: usize,
        rows: &Range<usize>,
        first: usize,
    ) {
        let (hidden, count) = (self.spec.hidden, rows.len());
        let (team, kernels) = (engine.team, engine.kernels);
        let angles = self.angles(spec.rope, call_rows, rows);
        let Scratch { compressed, input, block_out, cosines, sines, .. } = &mut *engine.scratch;
        let buffers = compressed.as_mut().expect("a model with compressed attention has its scratch");
        let angles = (&cosines.as_slice_of::<f32>()[angles.clone()], &sines.as_slice_of::<f32>()[angles]);
        // Keys are values, so the sum is turned like them; back by the row's own position it depends on distances alone.
        let attended = &mut buffers.attended.as_mut_slice_of::<f32>()[..count * spec.query_len()];
        turn_heads(team, attended, (spec.heads, spec.head_dim), angles, Turn::Back);
        let attended = &*attended;
        let (groups, rank) = (spec.output_groups, spec.output_rank);
        let columns = spec.query_len() / groups;
        let group_input = &mut buffers.group_input;
        for_rows(team, group_input.floats_mut(groups * count * columns), columns, |at, out| {
            let (group, row) = (at / count, at % count);
            out.copy_from_slice(&attended[(row * groups + group) * columns..][..columns]);
        });
        group_input.quantize(team, kernels, groups * count, columns);
        let results = &mut buffers.group_output.as_mut_slice_of::<f32>()[..groups * count * rank];
        let matrices =
            Heads { weights: &self.weights, matrices: spec.output_down, count: groups, rows: count };
        matrices.multiply(team, kernels, group_input, columns, results, rank);
        let results = &*results;
        for_rows(team, input.floats_mut(count * groups * rank), rank, |at, out| {
            let (row, group) = (at / groups, at % groups);
            out.copy_from_slice(&results[(group * count + row) * rank..][..rank]);
        });
        input.quantize(team, kernels, count, groups * rank);
        let out = &mut block_out.as_mut_slice_of::<f32>()[first * hidden..(first + count) * hidden];
        let weights = self.weights.matrix(spec.output_up);
        matmul(team, kernels, &mut [MatmulJob::new(weights, input.rows(0, count, groups * rank), out)]);
    }
}

/// Rows of one sequence in one layer.
struct Place {
    layer: usize,
    /// Position of the first one.
    position: usize,
    /// Where they are in the buffers.
    rows: Range<usize>,
}
