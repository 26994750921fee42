//! Working memory of a forward pass: every intermediate of a chunk, allocated once from the ledger.
//!
//! [`scratch_cost`] is the planner's formula and [`Scratch::new`] allocates by the same list, so the two cannot drift
//! apart. Sizes depend on the chunk length, never on the prompt.

use coldpress_kernels::blocks::STEP_COLUMNS;
use coldpress_kernels::{
    ActivationBlock, InputRows, Kernels, blocks_per_row, quantize_rows, rms_norm_and_quantize, vector,
};
use coldpress_memory::{Buffer, Bytes, Ledger, Purpose, sys};
use coldpress_workers::Team;

use crate::block_sparse::{BlockSparseNeeds, BlockSparseScratch};
use crate::compressed::{CompressedNeeds, CompressedScratch};
use crate::error::ModelError;
use crate::indexer::{IndexNeeds, IndexScratch};
use crate::latent::{LatentNeeds, LatentScratch};
use crate::ple::{PleNeeds, PleScratch};
use crate::recurrent::{RecurrentNeeds, RecurrentScratch};
use crate::spec::{AttentionKind, LayerSpec, ModelSpec, MoeSpec};
use crate::streams::{StreamNeeds, StreamScratch};

/// Rows that pass one operation together. The buffers of a layer are made for this many; more rows of a call come after
/// each other, layer by layer. Enough for the kernels to compute rather than to read.
pub const BLOCK_ROWS: usize = 512;

/// How much work one forward call may bring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScratchShape {
    /// Rows (tokens of all sequences) of one call.
    pub rows: usize,
    /// Rows whose logits are computed at a time.
    pub logit_rows: usize,
    /// Threads of the pool.
    pub threads: usize,
}

/// Bytes of scratch: a part that is always there and parts for every row. Never less than [`Scratch::new`] takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScratchCost {
    /// Independent of the number of rows.
    pub fixed: u64,
    /// For every row of a call.
    pub per_row: u64,
    /// For every row of a block: the rows of a call, at most [`BLOCK_ROWS`].
    pub per_block_row: u64,
}

/// Size of one buffer in bytes: `fixed + per_row * rows + per_block_row * rows of a block`.
#[derive(Clone, Copy)]
pub(crate) struct Need {
    fixed: usize,
    per_row: usize,
    per_block_row: usize,
}

impl Need {
    const NONE: Self = Self { fixed: 0, per_row: 0, per_block_row: 0 };

    pub fn fixed(bytes: usize) -> Self {
        Self { fixed: bytes, ..Self::NONE }
    }

    /// For this many rows at any time, whatever a block has.
    pub fn of_rows(self, rows: usize) -> Self {
        Self::fixed(self.per_block_row * rows)
    }

    /// For every row of a call.
    pub fn rows(bytes_per_row: usize) -> Self {
        Self { per_row: bytes_per_row, ..Self::NONE }
    }

    pub fn block_rows(bytes_per_row: usize) -> Self {
        Self { per_block_row: bytes_per_row, ..Self::NONE }
    }

    fn at(self, rows: usize) -> usize {
        self.fixed + self.per_row * rows + self.per_block_row * rows.min(BLOCK_ROWS)
    }
}

/// Enough rows for attention scratch to have stopped growing.
const MANY_ROWS: usize = 1 << 16;

/// The list of buffers: one entry per field of [`Scratch`].
struct Needs {
    residual: Need,
    input: [Need; 2],
    query: Need,
    gate: Need,
    key: Need,
    value: Need,
    block_out: Need,
    cosines: Need,
    sines: Need,
    attention: Need,
    latent: Option<LatentNeeds>,
    recurrent: Option<RecurrentNeeds>,
    index: Option<IndexNeeds>,
    shortcut: Need,
    compressed: Option<CompressedNeeds>,
    streams: Option<StreamNeeds>,
    ple: Option<PleNeeds>,
    block_sparse: Option<BlockSparseNeeds>,
    router: Need,
    guess: Need,
    gathered: [Need; 2],
    up: Need,
    inner: [Need; 2],
    pairs: Need,
    logits: Need,
}

impl Needs {
    fn of(spec: &ModelSpec, logit_rows: usize, threads: usize) -> Self {
        let shapes = || spec.layers.iter().filter_map(|layer| layer.attention.shape());
        let (mut query, mut gate, mut kv, mut result) = (0, 0, 0, 0);
        for layer in &spec.layers {
            match &layer.attention {
                AttentionKind::Grouped(grouped) => {
                    query = query.max(grouped.projected_len());
                    gate = gate.max(grouped.projected_len() - grouped.shape.query_row_len());
                    result = result.max(grouped.shape.query_row_len());
                    kv = kv.max(grouped.shape.kv_row_len());
                }
                AttentionKind::Latent(latent) => result = result.max(latent.result_len()),
                AttentionKind::Recurrent(recurrent) => result = result.max(recurrent.result_len()),
                AttentionKind::Compressed(compressed) => result = result.max(compressed.result_len()),
            }
        }
        let attention_scratch =
            shapes().map(|shape| shape.scratch_len(MANY_ROWS, threads)).max().unwrap_or(0);
        let angles = spec.ropes.iter().map(|rope| rope.dimensions / 2).sum();
        let inner = spec.layers.iter().map(|layer| {
            let shared = |moe: &MoeSpec| moe.shared.map_or(0, |shared| shared.feed_forward.width);
            let mixture = layer.feed_forward.mixture().map_or(0, |moe| moe.width.max(shared(moe)));
            mixture.max(layer.feed_forward.dense().map_or(0, |dense| dense.width))
        });
        let inner = inner.max().unwrap_or(0);
        let experts = spec.moe_blocks().map(|moe| moe.router.experts).max().unwrap_or(0);
        let top_k = spec.experts_per_token();
        let hidden = spec.hidden;
        let floats = |count: usize| Need::block_rows(count * size_of::<f32>());
        let call_floats = |count: usize| Need::rows(count * size_of::<f32>());
        // A batch of experts works on the pairs of one expert at least, and on all experts of a single row.
        let expert_rows = |need: Need| Need { fixed: need.per_block_row * top_k, ..need };
        let gathered = if top_k == 0 { 0 } else { hidden };
        Self {
            residual: call_floats(hidden * spec.streams.as_ref().map_or(1, |streams| streams.count)),
            input: Prepared::needs(hidden.max(result)),
            query: floats(query),
            gate: floats(gate),
            key: floats(kv),
            value: floats(kv),
            block_out: floats(hidden),
            cosines: call_floats(angles),
            sines: call_floats(angles),
            attention: Need { fixed: attention_scratch * size_of::<f32>(), ..Need::NONE },
            latent: LatentNeeds::of(spec),
            recurrent: RecurrentNeeds::of(spec),
            index: IndexNeeds::of(spec, threads),
            shortcut: call_floats(if spec.layers.iter().any(LayerSpec::has_shortcut) { hidden } else { 0 }),
            compressed: CompressedNeeds::of(spec),
            streams: StreamNeeds::of(spec),
            ple: PleNeeds::of(spec),
            block_sparse: BlockSparseNeeds::of(spec),
            router: floats(experts),
            guess: Need { fixed: gathered * size_of::<f32>(), ..Need::NONE },
            gathered: Prepared::needs(gathered).map(expert_rows),
            up: expert_rows(floats(inner)),
            inner: Prepared::needs(inner).map(expert_rows),
            pairs: floats(top_k * hidden),
            logits: Need { fixed: logit_rows * spec.vocabulary * size_of::<f32>(), ..Need::NONE },
        }
    }

    fn all(&self) -> impl Iterator<Item = Need> {
        let plain = [
            self.residual,
            self.query,
            self.gate,
            self.key,
            self.value,
            self.block_out,
            self.cosines,
            self.sines,
            self.attention,
            self.shortcut,
            self.router,
            self.guess,
            self.up,
            self.pairs,
            self.logits,
        ];
        let latent = self.latent.into_iter().flat_map(LatentNeeds::all);
        let index = self.index.into_iter().flat_map(IndexNeeds::all);
        let recurrent = self.recurrent.iter().flat_map(RecurrentNeeds::all);
        let streams = self.streams.into_iter().flat_map(StreamNeeds::all);
        let ple = self.ple.into_iter().flat_map(PleNeeds::all);
        let block_sparse = self.block_sparse.into_iter().flat_map(BlockSparseNeeds::all);
        let compressed = self.compressed.into_iter().flat_map(CompressedNeeds::all);
        plain
            .into_iter()
            .chain(latent)
            .chain(index)
            .chain(recurrent)
            .chain(streams)
            .chain(ple)
            .chain(block_sparse)
            .chain(compressed)
            .chain(self.input)
            .chain(self.gathered)
            .chain(self.inner)
    }
}

/// What scratch costs for a model; the planner's formula.
pub fn scratch_cost(spec: &ModelSpec, logit_rows: usize, threads: usize) -> ScratchCost {
    let needs = Needs::of(spec, logit_rows, threads);
    // The ledger charges whole pages, so a buffer whose size depends on the rows can take up to one more.
    let page = sys::page_size();
    let fixed = |need: Need| match need.per_row + need.per_block_row {
        0 => need.fixed.next_multiple_of(page),
        _ => need.fixed + page,
    };
    let fixed: usize = needs.all().map(fixed).sum();
    let per_row: usize = needs.all().map(|need| need.per_row).sum();
    let per_block_row: usize = needs.all().map(|need| need.per_block_row).sum();
    ScratchCost { fixed: fixed as u64, per_row: per_row as u64, per_block_row: per_block_row as u64 }
}

/// Activations of some rows as f32 and, where a quantised matrix needs them, as int8 blocks.
pub(crate) struct Prepared {
    floats: Buffer,
    blocks: Buffer,
}

impl Prepared {
    pub(crate) fn needs(columns: usize) -> [Need; 2] {
        let blocks = columns.div_ceil(STEP_COLUMNS) * size_of::<ActivationBlock>();
        [Need::block_rows(columns * size_of::<f32>()), Need::block_rows(blocks)]
    }

    pub(crate) fn new(ledger: &Ledger, needs: [Need; 2], rows: usize) -> Result<Self, ModelError> {
        let [floats, blocks] = needs.map(|need| scratch_buffer(ledger, need, rows));
        Ok(Self { floats: floats?, blocks: blocks? })
    }

    /// The f32 values of the first `elements`.
    pub fn floats_mut(&mut self, elements: usize) -> &mut [f32] {
        &mut self.floats.as_mut_slice_of::<f32>()[..elements]
    }

    /// The f32 values of the first `elements`, to read.
    pub fn floats(&self, elements: usize) -> &[f32] {
        &self.floats.as_slice_of::<f32>()[..elements]
    }

    /// Fills the int8 blocks from the f32 values, where the width allows blocks at all.
    pub fn quantize(&mut self, team: &Team<'_>, kernels: Kernels, rows: usize, columns: usize) {
        if columns.is_multiple_of(STEP_COLUMNS) {
            let blocks =
                &mut self.blocks.as_mut_slice_of::<ActivationBlock>()[..rows * blocks_per_row(columns)];
            quantize_rows(team, kernels, &self.floats.as_slice_of::<f32>()[..rows * columns], blocks);
        }
    }

    /// Fills the f32 values with the RMS norm of `x`, `[rows, weight.len()]`, and the int8 blocks from them.
    pub fn norm(&mut self, team: &Team<'_>, kernels: Kernels, x: &[f32], weight: &[f32], epsilon: f32) {
        let columns = weight.len();
        let (floats, blocks) = self.parts_mut(x.len() / columns, columns);
        if columns.is_multiple_of(STEP_COLUMNS) {
            rms_norm_and_quantize(team, kernels, x, weight, epsilon, floats, blocks);
        } else {
            vector::rms_norm(team, kernels, x, weight, epsilon, floats);
        }
    }

    /// Fills the f32 values with the layer norm of `x`, `[rows, weight.len()]`, and the int8 blocks from them.
    pub fn layer_norm(
        &mut self,
        team: &Team<'_>,
        kernels: Kernels,
        x: &[f32],
        weight: &[f32],
        bias: &[f32],
        epsilon: f32,
    ) {
        let columns = weight.len();
        let rows = x.len() / columns;
        let rows_per_part = rows_per_part(team, rows, size_of_val(weight));
        let floats = &mut self.floats.as_mut_slice_of::<f32>()[..x.len()];
        team.for_each_part_mut(floats, rows_per_part * columns, |part, out, _worker| {
            let x = &x[part * rows_per_part * columns..];
            for (x, out) in x.chunks_exact(columns).zip(out.chunks_exact_mut(columns)) {
                layer_norm_row(x, weight, bias, epsilon, out);
            }
        });
        self.quantize(team, kernels, rows, columns);
    }

    /// The f32 values and the int8 blocks (none where the width allows no blocks) of the first `rows` rows.
    pub fn parts_mut(&mut self, rows: usize, columns: usize) -> (&mut [f32], &mut [ActivationBlock]) {
        let row_blocks = if columns.is_multiple_of(STEP_COLUMNS) { blocks_per_row(columns) } else { 0 };
        let floats = &mut self.floats.as_mut_slice_of::<f32>()[..rows * columns];
        (floats, &mut self.blocks.as_mut_slice_of::<ActivationBlock>()[..rows * row_blocks])
    }

    /// Rows `from..from + count` as matrix input.
    pub fn rows(&self, from: usize, count: usize, columns: usize) -> InputRows<'_> {
        let floats = &self.floats.as_slice_of::<f32>()[from * columns..(from + count) * columns];
        if !columns.is_multiple_of(STEP_COLUMNS) {
            return InputRows::from_floats(columns, floats);
        }
        let row_blocks = blocks_per_row(columns);
        let blocks =
            &self.blocks.as_slice_of::<ActivationBlock>()[from * row_blocks..(from + count) * row_blocks];
        InputRows::new(columns, floats, blocks)
    }

    /// Copies the rows `wanted` of `from` to the rows `at..` of `self`: the int8 blocks where the width allows them, and
    /// the f32 values where it does not or `floats` asks for them.
    pub fn gather(
        &mut self,
        team: &Team<'_>,
        from: &Self,
        columns: usize,
        at: usize,
        wanted: &[u32],
        floats: bool,
    ) {
        let has_blocks = columns.is_multiple_of(STEP_COLUMNS);
        if floats || !has_blocks {
            let target = &mut self.floats.as_mut_slice_of::<f32>()[at * columns..];
            copy_rows(team, from.floats.as_slice_of(), target, columns, wanted);
        }
        if has_blocks {
            let width = blocks_per_row(columns);
            let target = &mut self.blocks.as_mut_slice_of::<ActivationBlock>()[at * width..];
            copy_rows(team, from.blocks.as_slice_of(), target, width, wanted);
        }
    }
}

/// `(x - mean) / sqrt(variance + epsilon) * weight + bias`; sums in f64, in order.
pub(crate) fn layer_norm_row(x: &[f32], weight: &[f32], bias: &[f32], epsilon: f32, out: &mut [f32]) {
    let count = x.len() as f64;
    let mean = x.iter().fold(0.0, |sum, &value| sum + f64::from(value)) / count;
    let square = |value: f32| (f64::from(value) - mean) * (f64::from(value) - mean);
    let variance = x.iter().fold(0.0, |sum, &value| sum + square(value)) / count;
    let factor = 1.0 / (variance + f64::from(epsilon)).sqrt();
    for (((out, &x), weight), bias) in out.iter_mut().zip(x).zip(weight).zip(bias) {
        *out = ((f64::from(x) - mean) * factor) as f32 * weight + bias;
    }
}

/// Copies the rows `wanted` of `from` to the beginning of `to`; rows of `width` elements.
fn copy_rows<T: Copy + Send + Sync>(team: &Team<'_>, from: &[T], to: &mut [T], width: usize, wanted: &[u32]) {
    let rows_per_part = rows_per_part(team, wanted.len(), width * size_of::<T>());
    let to = &mut to[..wanted.len() * width];
    team.for_each_part_mut(to, rows_per_part * width, |part, rows, _worker| {
        for (row, target) in rows.chunks_exact_mut(width).enumerate() {
            let source = wanted[part * rows_per_part + row] as usize * width;
            target.copy_from_slice(&from[source..source + width]);
        }
    });
}

/// Bytes of rows below which a second thread costs more than it saves.
const PART_BYTES_MIN: usize = 64 * 1024;

/// Rows of one part when `rows` rows of `row_bytes` each are cut over the team.
pub(crate) fn rows_per_part(team: &Team<'_>, rows: usize, row_bytes: usize) -> usize {
    let parts = (rows * row_bytes / PART_BYTES_MIN).clamp(1, 4 * team.threads());
    rows.div_ceil(parts).max(1)
}

/// The buffers of a forward pass. Row counts in brackets.
pub struct Scratch {
    pub(crate) shape: ScratchShape,
    /// Residual streams [rows, streams, hidden].
    pub(crate) residual: Buffer,
    /// Normed input of a block [rows, hidden], also the attention result [rows, query].
    pub(crate) input: Prepared,
    /// Queries, at first each head's with its gate where attention has gates.
    pub(crate) query: Buffer,
    /// Gates on the result of attention.
    pub(crate) gate: Buffer,
    pub(crate) key: Buffer,
    pub(crate) value: Buffer,
    /// Result of a block [rows, hidden].
    pub(crate) block_out: Buffer,
    pub(crate) cosines: Buffer,
    pub(crate) sines: Buffer,
    pub(crate) attention: Buffer,
    pub(crate) latent: Option<LatentScratch>,
    pub(crate) recurrent: Option<RecurrentScratch>,
    pub(crate) index: Option<IndexScratch>,
    /// What a mixture adds after the next layer [rows, hidden].
    pub(crate) shortcut: Buffer,
    pub(crate) compressed: Option<CompressedScratch>,
    pub(crate) streams: Option<StreamScratch>,
    pub(crate) ple: Option<PleScratch>,
    pub(crate) block_sparse: Option<BlockSparseScratch>,
    /// Router logits [rows, experts].
    pub(crate) router: Buffer,
    /// Hidden state that the next layer's experts are guessed from [hidden].
    pub(crate) guess: Buffer,
    /// Inputs of a batch of experts, regrouped [expert rows, hidden].
    pub(crate) gathered: Prepared,
    pub(crate) up: Buffer,
    /// The gate product, then `silu(gate) * up` [expert rows, inner].
    pub(crate) inner: Prepared,
    /// Results of all (row, rank) pairs, grouped by expert [rows * top_k, hidden].
    pub(crate) pairs: Buffer,
    pub(crate) logits: Buffer,
}

pub(crate) fn scratch_buffer(ledger: &Ledger, need: Need, rows: usize) -> Result<Buffer, ModelError> {
    Ok(Buffer::new(ledger, Purpose::Scratch, Bytes(need.at(rows) as u64))?)
}

impl Scratch {
    /// Allocates the buffers for calls of at most `shape`.
    ///
    /// # Errors
    /// The ledger has no room.
    pub fn new(ledger: &Ledger, spec: &ModelSpec, shape: ScratchShape) -> Result<Self, ModelError> {
        let needs = Needs::of(spec, shape.logit_rows, shape.threads);
        let plain = |need: Need| scratch_buffer(ledger, need, shape.rows);
        let prepared = |needs: [Need; 2]| Prepared::new(ledger, needs, shape.rows);
        Ok(Self {
            shape,
            residual: plain(needs.residual)?,
            input: prepared(needs.input)?,
            query: plain(needs.query)?,
            gate: plain(needs.gate)?,
            key: plain(needs.key)?,
            value: plain(needs.value)?,
            block_out: plain(needs.block_out)?,
            cosines: plain(needs.cosines)?,
            sines: plain(needs.sines)?,
            attention: plain(needs.attention)?,
            latent: needs.latent.map(|needs| LatentScratch::new(ledger, needs)).transpose()?,
            recurrent: needs.recurrent.map(|needs| RecurrentScratch::new(ledger, &needs)).transpose()?,
            index: needs.index.map(|needs| IndexScratch::new(ledger, needs, shape.rows)).transpose()?,
            shortcut: plain(needs.shortcut)?,
            compressed: needs.compressed.map(|needs| CompressedScratch::new(ledger, needs)).transpose()?,
            streams: needs.streams.map(|needs| StreamScratch::new(ledger, needs, shape.rows)).transpose()?,
            ple: needs.ple.map(|needs| PleScratch::new(ledger, needs, shape.rows)).transpose()?,
            block_sparse: needs
                .block_sparse
                .map(|needs| BlockSparseScratch::new(ledger, needs, shape.rows))
                .transpose()?,
            router: plain(needs.router)?,
            guess: plain(needs.guess)?,
            gathered: prepared(needs.gathered)?,
            up: plain(needs.up)?,
            inner: prepared(needs.inner)?,
            pairs: plain(needs.pairs)?,
            logits: plain(needs.logits)?,
        })
    }

    /// The shape it was allocated for.
    pub fn shape(&self) -> ScratchShape {
        self.shape
    }
}
