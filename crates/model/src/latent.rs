//! Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): one small vector per position instead of keys and values of
//! every head.
//!
//! The cache holds one row per position, `[latent, rotated key]`, which all heads share. It stays compressed because the
//! matrices that would expand it are applied to the other side: a query head is multiplied by its key matrix before it meets
//! the cache, and the sum of latents that it brings back by its value matrix. So attention is that of many query heads and one
//! key head whose values are the first elements of its keys. A prompt and a single token are computed alike, so chunks change
//! no bit; a prompt pays for it with wider dot products than expanded keys would have.
//! Rows pass in pieces of [`LATENT_ROWS`], because queries of this width are large.
//! Next: `attend.rs` (grouped queries), `scratch.rs` (who owns the memory).

use std::ops::Range;

use arrayvec::ArrayVec;
use coldpress_kernels::attention::{Attention, AttentionShape, attention};
use coldpress_kernels::{Kernels, MatmulJob, matmul, vector};
use coldpress_memory::{Buffer, Ledger};
use coldpress_workers::Team;

use crate::attend::follow_memory;
use crate::attention_gate::apply_gates;
use crate::error::ModelError;
use crate::forward::{ForwardEngine, Model, Segment};
use crate::indexer::{Selection, SparseRows};
use crate::scratch::{Need, Prepared, Scratch, rows_per_part, scratch_buffer};
use crate::segments::{SegmentRows, rows_of_segments};
use crate::spec::{AttentionKind, LinearSpec, MatrixHandle, ModelSpec, VectorHandle};
use crate::streams::Half;
use crate::weights::DenseWeights;

/// Rows that are attended together: enough to share the reading of the heads' matrices.
pub(crate) const LATENT_ROWS: usize = 32;
/// Heads whose products run in one parallel region.
const HEADS_AT_ONCE: usize = 16;

/// Latent attention with a causal mask.
#[derive(Clone, Debug)]
pub struct LatentSpec {
    /// Query heads.
    pub heads: usize,
    /// Elements of a head's query that meet the latent.
    pub key_dim: usize,
    /// Elements of a head's query that meet the rotated key.
    pub rotary_dim: usize,
    /// Elements of the latent.
    pub rank: usize,
    /// Elements of a head's value.
    pub value_dim: usize,
    /// Where queries come from, `heads * (key_dim + rotary_dim)` rows in the end.
    pub query: LatentQuery,
    /// From the residual stream to latent and key before its rotation, `rank + rotary_dim` rows.
    pub latent: LinearSpec,
    /// RMSNorm of the latent.
    pub latent_norm: VectorHandle,
    /// Per head `[rank, key_dim]`: applied to its query.
    pub keys: HeadMatrices,
    /// Per head `[value_dim, rank]`: applied to its sum of latents.
    pub values: HeadMatrices,
    /// Output projection from `heads * value_dim`.
    pub output: LinearSpec,
    /// Index into [`ModelSpec::ropes`]; absent where nothing is rotated.
    pub rope: Option<usize>,
    /// To a gate per head, whose sigmoid multiplies what the head returns.
    pub gate: Option<LinearSpec>,
    /// Factor on the dot products.
    pub scale: f32,
    /// Epsilon of the norms of latents.
    pub norm_epsilon: f32,
    /// Factor on the normed latent of a position.
    pub latent_scale: f32,
    /// Which positions a row sees; all before it where absent.
    pub selection: Option<Selection>,
}

/// How the queries of latent attention are made.
#[derive(Clone, Copy, Debug)]
pub enum LatentQuery {
    /// In one product.
    Direct(LinearSpec),
    /// Through a latent of their own.
    Compressed {
        /// To the latent.
        down: LinearSpec,
        /// Its RMSNorm.
        norm: VectorHandle,
        /// Elements of the latent.
        rank: usize,
        /// From the latent.
        up: LinearSpec,
    },
}

/// One matrix per head, which follow each other in [`ModelSpec::tensors`].
#[derive(Clone, Copy, Debug)]
pub struct HeadMatrices {
    pub(crate) first: MatrixHandle,
}

impl HeadMatrices {
    /// The matrix of a head.
    pub fn of(&self, head: usize) -> MatrixHandle {
        MatrixHandle(self.first.0 + head)
    }
}

impl LatentSpec {
    /// Elements of a row of the cache.
    pub fn row_len(&self) -> usize {
        self.rank + self.rotary_dim
    }

    /// The heads as attention over the cache sees them.
    pub fn shape(&self) -> AttentionShape {
        AttentionShape { heads: self.heads, kv_heads: 1, head_dim: self.row_len() }
    }

    fn query_dim(&self) -> usize {
        self.key_dim + self.rotary_dim
    }

    fn query_rank(&self) -> usize {
        match self.query {
            LatentQuery::Direct(_) => 0,
            LatentQuery::Compressed { rank, .. } => rank,
        }
    }

    /// Elements of the attention result that the output projection reads.
    pub fn result_len(&self) -> usize {
        self.heads * self.value_dim
    }
}

/// Sizes of the buffers of [`LatentScratch`].
#[derive(Clone, Copy)]
pub(crate) struct LatentNeeds {
    query_down: Need,
    query_latent: [Need; 2],
    query: Need,
    projected: Need,
    rotary: Need,
    key: Need,
    head_input: [Need; 2],
    head_output: Need,
    absorbed: Need,
    attended: Need,
    gate: Need,
}

impl LatentNeeds {
    /// `None` for a model without latent attention.
    pub fn of(spec: &ModelSpec) -> Option<Self> {
        let latents = || {
            spec.layers.iter().filter_map(|layer| match &layer.attention {
                AttentionKind::Latent(spec) => Some(spec),
                _ => None,
            })
        };
        latents().next()?;
        let most = |elements: fn(&LatentSpec) -> usize| latents().map(elements).max().unwrap_or(0);
        let floats =
            |elements: fn(&LatentSpec) -> usize| Need::fixed(LATENT_ROWS * most(elements) * size_of::<f32>());
        let heads = most(|spec| spec.heads);
        let head_columns = most(|spec| spec.key_dim.max(spec.rank));
        Some(Self {
            query_down: floats(LatentSpec::query_rank),
            query_latent: Prepared::needs(most(LatentSpec::query_rank)).map(|need| need.of_rows(LATENT_ROWS)),
            query: floats(|spec| spec.heads * spec.query_dim()),
            projected: floats(LatentSpec::row_len),
            rotary: floats(|spec| (spec.heads + 1) * spec.rotary_dim),
            key: floats(LatentSpec::row_len),
            head_input: Prepared::needs(head_columns).map(|need| need.of_rows(LATENT_ROWS * heads)),
            head_output: floats(|spec| spec.heads * spec.rank.max(spec.value_dim)),
            absorbed: floats(|spec| spec.heads * spec.row_len()),
            attended: floats(|spec| spec.heads * spec.row_len()),
            gate: floats(|spec| spec.gate.map_or(0, |_| spec.heads)),
        })
    }

    pub fn all(self) -> impl Iterator<Item = Need> {
        let plain = [
            self.query_down,
            self.query,
            self.projected,
            self.rotary,
            self.key,
            self.head_output,
            self.absorbed,
            self.attended,
            self.gate,
        ];
        plain.into_iter().chain(self.query_latent).chain(self.head_input)
    }
}

/// The buffers of latent attention, for [`LATENT_ROWS`] rows.
pub(crate) struct LatentScratch {
    /// Compressed queries [rows, query rank].
    query_down: Buffer,
    /// The same, normed.
    pub(crate) query_latent: Prepared,
    /// [rows, heads, key_dim + rotary_dim]
    query: Buffer,
    /// Latent and key before norm and rotation [rows, rank + rotary_dim].
    projected: Buffer,
    /// What is rotated: of each row all query heads, then the key [rows, heads + 1, rotary_dim].
    rotary: Buffer,
    /// Rows for the cache.
    key: Buffer,
    /// Inputs of the heads' matrices [heads, rows, columns].
    head_input: Prepared,
    /// Their results [heads, rows, columns].
    head_output: Buffer,
    /// Queries as the cache sees them [rows, heads, rank + rotary_dim].
    pub(crate) absorbed: Buffer,
    /// Attention results, of the same shape; the first `rank` elements of a head count.
    pub(crate) attended: Buffer,
    /// Gates of the heads [rows, heads].
    gate: Buffer,
}

impl LatentScratch {
    pub fn new(ledger: &Ledger, needs: LatentNeeds) -> Result<Self, ModelError> {
        let plain = |need: Need| scratch_buffer(ledger, need, 0);
        Ok(Self {
            query_down: plain(needs.query_down)?,
            query_latent: Prepared::new(ledger, needs.query_latent, 0)?,
            query: plain(needs.query)?,
            projected: plain(needs.projected)?,
            rotary: plain(needs.rotary)?,
            key: plain(needs.key)?,
            head_input: Prepared::new(ledger, needs.head_input, 0)?,
            head_output: plain(needs.head_output)?,
            absorbed: plain(needs.absorbed)?,
            attended: plain(needs.attended)?,
            gate: plain(needs.gate)?,
        })
    }
}

/// The latent buffers and the others that latent attention uses.
fn parts(scratch: &mut Scratch) -> (&mut LatentScratch, &mut Prepared) {
    let latent = scratch.latent.as_mut().expect("a model with latent attention has its scratch");
    (latent, &mut scratch.input)
}

impl Model {
    /// Adds the attention of a layer to the residual stream of the rows of a block and fills the KV cache.
    pub(crate) fn attend_latent(
        &self,
        engine: &mut ForwardEngine<'_, '_>,
        spec: &LatentSpec,
        segments: &mut [Segment<'_>],
        layer: usize,
        block: &Range<usize>,
    ) {
        let call_rows = segments.iter().map(|segment| segment.tokens.len()).sum();
        for first in block.clone().step_by(LATENT_ROWS) {
            let rows = first..block.end.min(first + LATENT_ROWS);
            self.norm_half(engine, self.spec.layers[layer].attention_norm, block, &rows);
            self.latent_projections(engine, spec, rows.len());
            if let Some(Selection::Own(indexer)) = &spec.selection {
                self.index_projections(engine, indexer, call_rows, &rows);
            }
            self.latent_rotation(engine, spec, call_rows, &rows);
            self.absorb(engine, spec, rows.len());
            self.attend_latent_segments(engine, spec, segments, layer, &rows);
            self.latent_output(engine, spec, rows.start - block.start, rows.len());
            follow_memory(engine);
        }
        self.add_result(engine, layer, Half::Attention, block);
    }

    /// Queries, and latent and key before norm and rotation, of `count` rows of normed input.
    fn latent_projections(&self, engine: &mut ForwardEngine<'_, '_>, spec: &LatentSpec, count: usize) {
        let hidden = self.spec.hidden;
        let (team, kernels) = (engine.team, engine.kernels);
        let Scratch { input, latent, .. } = &mut *engine.scratch;
        let latent = latent.as_mut().expect("a model with latent attention has its scratch");
        let input = input.rows(0, count, hidden);
        let query = &mut latent.query.as_mut_slice_of::<f32>()[..count * spec.heads * spec.query_dim()];
        let projected = &mut latent.projected.as_mut_slice_of::<f32>()[..count * spec.row_len()];
        let down = &mut latent.query_down.as_mut_slice_of::<f32>()[..count * spec.query_rank()];
        let (first, first_out) = match spec.query {
            LatentQuery::Direct(linear) => (linear, &mut *query),
            LatentQuery::Compressed { down: linear, .. } => (linear, &mut *down),
        };
        matmul(
            team,
            kernels,
            &mut [
                MatmulJob::new(self.weights.matrix(first.weight), input, &mut *first_out),
                MatmulJob::new(self.weights.matrix(spec.latent.weight), input, &mut *projected),
            ],
        );
        for (linear, out) in [(first, first_out), (spec.latent, projected)] {
            if let Some(bias) = linear.bias {
                self.add_bias(team, bias, out);
            }
        }
        if let Some(gate) = spec.gate {
            let out = &mut latent.gate.as_mut_slice_of::<f32>()[..count * spec.heads];
            let weights = self.weights.matrix(gate.weight);
            matmul(team, kernels, &mut [MatmulJob::new(weights, input, &mut *out)]);
            if let Some(bias) = gate.bias {
                self.add_bias(team, bias, out);
            }
        }
        if let LatentQuery::Compressed { norm, rank, up, .. } = spec.query {
            let query_latent = &mut latent.query_latent;
            query_latent.norm(team, kernels, down, self.weights.vector(norm), spec.norm_epsilon);
            let input = query_latent.rows(0, count, rank);
            let weights = self.weights.matrix(up.weight);
            matmul(team, kernels, &mut [MatmulJob::new(weights, input, &mut *query)]);
            if let Some(bias) = up.bias {
                self.add_bias(team, bias, query);
            }
        }
    }

    /// Rows for the cache, and the rotated parts of the queries.
    fn latent_rotation(
        &self,
        engine: &mut ForwardEngine<'_, '_>,
        spec: &LatentSpec,
        call_rows: usize,
        rows: &Range<usize>,
    ) {
        let (team, kernels, count) = (engine.team, engine.kernels, rows.len());
        let LatentSpec { heads, rank, rotary_dim, key_dim, .. } = *spec;
        let (query_dim, row_len) = (spec.query_dim(), spec.row_len());
        let angles = spec.rope.map(|rope| (rope, self.angles(rope, call_rows, rows)));
        let Scratch { latent, cosines, sines, .. } = &mut *engine.scratch;
        let latent = latent.as_mut().expect("a model with latent attention has its scratch");
        let query = &latent.query.as_slice_of::<f32>()[..count * heads * query_dim];
        let projected = &latent.projected.as_slice_of::<f32>()[..count * row_len];
        let rotary = &mut latent.rotary.as_mut_slice_of::<f32>()[..count * (heads + 1) * rotary_dim];
        for_rows(team, rotary, (heads + 1) * rotary_dim, |row, out| {
            let (queries, key) = out.split_at_mut(heads * rotary_dim);
            let query = query[row * heads * query_dim..][..heads * query_dim].chunks_exact(query_dim);
            for (query, out) in query.zip(queries.chunks_exact_mut(rotary_dim)) {
                out.copy_from_slice(&query[key_dim..]);
            }
            key.copy_from_slice(&projected[row * row_len + rank..][..rotary_dim]);
        });
        if let Some((rope, angles)) = angles {
            self.rotation(rope, rotary_dim, angles, (&*cosines, &*sines)).apply(team, kernels, rotary);
        }
        // Free until the heads compute.
        let normed = &mut latent.head_output.as_mut_slice_of::<f32>()[..count * rank];
        for (out, row) in normed.chunks_exact_mut(rank).zip(projected.chunks_exact(row_len)) {
            out.copy_from_slice(&row[..rank]);
        }
        let weight = self.weights.vector(spec.latent_norm);
        vector::rms_norm_in_place(team, kernels, normed, weight, spec.norm_epsilon);
        if spec.latent_scale != 1.0 {
            normed.iter_mut().for_each(|value| *value *= spec.latent_scale);
        }
        let keys = latent.key.as_mut_slice_of::<f32>()[..count * row_len].chunks_exact_mut(row_len);
        let rotated = rotary.chunks_exact((heads + 1) * rotary_dim);
        for ((key, normed), rotated) in keys.zip(normed.chunks_exact(rank)).zip(rotated) {
            key[..rank].copy_from_slice(normed);
            key[rank..].copy_from_slice(&rotated[heads * rotary_dim..]);
        }
    }

    /// Queries as the cache sees them.
    fn absorb(&self, engine: &mut ForwardEngine<'_, '_>, spec: &LatentSpec, rows: usize) {
        let (team, kernels) = (engine.team, engine.kernels);
        let LatentSpec { heads, rank, rotary_dim, key_dim, .. } = *spec;
        let (query_dim, row_len) = (spec.query_dim(), spec.row_len());
        let (latent, _) = parts(engine.scratch);
        let query = latent.query.as_slice_of::<f32>();
        for_rows(team, latent.head_input.floats_mut(heads * rows * key_dim), key_dim, |at, out| {
            let (head, row) = (at / rows, at % rows);
            out.copy_from_slice(&query[(row * heads + head) * query_dim..][..key_dim]);
        });
        latent.head_input.quantize(team, kernels, heads * rows, key_dim);
        let results = &mut latent.head_output.as_mut_slice_of::<f32>()[..heads * rows * rank];
        let heads_of = Heads { weights: &self.weights, matrices: spec.keys, count: heads, rows };
        heads_of.multiply(team, kernels, &latent.head_input, key_dim, results, rank);
        let rotary = latent.rotary.as_slice_of::<f32>();
        let absorbed = &mut latent.absorbed.as_mut_slice_of::<f32>()[..rows * heads * row_len];
        let results = &*results;
        for_rows(team, absorbed, row_len, |at, out| {
            let (row, head) = (at / heads, at % heads);
            out[..rank].copy_from_slice(&results[(head * rows + row) * rank..][..rank]);
            out[rank..].copy_from_slice(&rotary[(row * (heads + 1) + head) * rotary_dim..][..rotary_dim]);
        });
    }

    /// Writes the rows to the cache and attends, sequence by sequence.
    fn attend_latent_segments(
        &self,
        engine: &mut ForwardEngine<'_, '_>,
        spec: &LatentSpec,
        segments: &[Segment<'_>],
        layer: usize,
        rows: &Range<usize>,
    ) {
        let row_len = spec.row_len();
        for SegmentRows { segment, rows: part, first_position, .. } in rows_of_segments(segments, rows) {
            let (latent, _) = parts(engine.scratch);
            let local = part.start - rows.start..part.end - rows.start;
            let keys = &latent.key.as_slice_of::<f32>()[local.start * row_len..local.end * row_len];
            let sequence = &*segment.sequence;
            engine.pool.write(engine.team, engine.kernels, layer, sequence, first_position, keys, keys);
            let part = SparseRows { layer, sequence, first_position, rows: part, first_row: rows.start };
            if let Some(Selection::Own(indexer)) = &spec.selection {
                self.choose_positions(engine, indexer, &part);
            }
            let top_k = spec.selection.map_or(usize::MAX, |selection| selection.top_k());
            let all = part.rows.start + part.that_see_all(top_k);
            attend_to_all(engine, spec, &part, all);
            for row in all..part.rows.end {
                self.attend_to_chosen(engine, spec, &part, row, top_k);
            }
        }
    }

    /// From sums of latents to what is added to the residual stream, into rows `first..` of the block's result.
    fn latent_output(
        &self,
        engine: &mut ForwardEngine<'_, '_>,
        spec: &LatentSpec,
        first: usize,
        rows: usize,
    ) {
        let hidden = self.spec.hidden;
        let (team, kernels) = (engine.team, engine.kernels);
        let LatentSpec { heads, rank, value_dim, .. } = *spec;
        let row_len = spec.row_len();
        let (latent, input) = parts(engine.scratch);
        let attended = latent.attended.as_slice_of::<f32>();
        for_rows(team, latent.head_input.floats_mut(heads * rows * rank), rank, |at, out| {
            let (head, row) = (at / rows, at % rows);
            out.copy_from_slice(&attended[(row * heads + head) * row_len..][..rank]);
        });
        latent.head_input.quantize(team, kernels, heads * rows, rank);
        let results = &mut latent.head_output.as_mut_slice_of::<f32>()[..heads * rows * value_dim];
        let heads_of = Heads { weights: &self.weights, matrices: spec.values, count: heads, rows };
        heads_of.multiply(team, kernels, &latent.head_input, rank, results, value_dim);
        let results = &*results;
        for_rows(team, input.floats_mut(rows * heads * value_dim), value_dim, |at, out| {
            let (row, head) = (at / heads, at % heads);
            out.copy_from_slice(&results[(head * rows + row) * value_dim..][..value_dim]);
        });
        if spec.gate.is_some() {
            let gate = &latent.gate.as_slice_of::<f32>()[..rows * heads];
            let width = heads * value_dim;
            apply_gates(team, kernels, input.floats_mut(rows * width), width, gate, value_dim);
        }
        input.quantize(team, kernels, rows, heads * value_dim);
        let Scratch { input, block_out, .. } = &mut *engine.scratch;
        let out = &mut block_out.as_mut_slice_of::<f32>()[first * hidden..(first + rows) * hidden];
        let weights = self.weights.matrix(spec.output.weight);
        let input = input.rows(0, rows, spec.result_len());
        matmul(team, kernels, &mut [MatmulJob::new(weights, input, &mut *out)]);
        if let Some(bias) = spec.output.bias {
            self.add_bias(team, bias, out);
        }
    }
}

/// Attention to all positions that the rows up to row `end` of the call see.
fn attend_to_all(engine: &mut ForwardEngine<'_, '_>, spec: &LatentSpec, part: &SparseRows<'_>, end: usize) {
    let width = spec.shape().query_row_len();
    let Scratch { latent, attention: scratch, .. } = &mut *engine.scratch;
    let latent = latent.as_mut().expect("a model with latent attention has its scratch");
    let queries = (part.rows.start - part.first_row) * width..(end - part.first_row) * width;
    if queries.is_empty() {
        return;
    }
    attention(
        engine.team,
        engine.kernels,
        Attention {
            shape: spec.shape(),
            query: &latent.absorbed.as_slice_of::<f32>()[queries.clone()],
            first_position: part.first_position,
            cache: engine.pool.rows(part.layer, part.sequence),
            window: None,
            chunk: None,
            sinks: None,
            scale: spec.scale,
            out: &mut latent.attended.as_mut_slice_of::<f32>()[queries],
            scratch: scratch.as_mut_slice_of::<f32>(),
        },
    );
}

/// Runs `body(row, its elements)` for all rows of `width` elements.
pub(crate) fn for_rows(
    team: &Team<'_>,
    rows: &mut [f32],
    width: usize,
    body: impl Fn(usize, &mut [f32]) + Sync,
) {
    let count = rows.len() / width;
    let per_part = rows_per_part(team, count, width * size_of::<f32>());
    team.for_each_part_mut(rows, per_part * width, |part, rows, _worker| {
        for (row, out) in rows.chunks_exact_mut(width).enumerate() {
            body(part * per_part + row, out);
        }
    });
}

/// A matrix per head, and the rows that each is applied to.
pub(crate) struct Heads<'a> {
    pub weights: &'a DenseWeights,
    pub matrices: HeadMatrices,
    pub count: usize,
    pub rows: usize,
}

impl Heads<'_> {
    /// `out[head, row] = matrix of the head * input[head, row]`.
    pub fn multiply(
        &self,
        team: &Team<'_>,
        kernels: Kernels,
        input: &Prepared,
        columns: usize,
        out: &mut [f32],
        out_columns: usize,
    ) {
        let mut outputs = out.chunks_exact_mut(self.rows * out_columns).enumerate();
        for _ in (0..self.count).step_by(HEADS_AT_ONCE) {
            let job = |(head, output)| {
                let weights = self.weights.matrix(self.matrices.of(head));
                MatmulJob::new(weights, input.rows(head * self.rows, self.rows, columns), output)
            };
            let mut jobs: ArrayVec<MatmulJob<'_>, HEADS_AT_ONCE> =
                outputs.by_ref().take(HEADS_AT_ONCE).map(job).collect();
            matmul(team, kernels, &mut jobs);
        }
    }
}
