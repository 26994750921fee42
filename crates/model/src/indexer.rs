//! Sparse attention over latents (DeepSeek-V3.2): a small indexer scores every position, and a row attends to the best ones alone.
//!
//! The indexer has one key per position, kept in the cache beside the latent ([`crate::CacheRow::index`]), and some query heads,
//! made from the same latent as the queries of attention. A row that sees no more positions than are chosen attends to all of them,
//! as without an indexer and with the same bits. For the others the rows of the chosen positions are put together, in order, and
//! attention runs over them as over a cache of their own. A layer may take over what a layer before it chose.
//! What is chosen depends on the row and the keys it sees alone: chunks, threads and rows beside it change no bit.
//! Next: `latent.rs` (who calls this), `coldpress_kernels::attention` (scores, the choice).

use std::ops::Range;

use arrayvec::ArrayVec;
use coldpress_kernels::attention::{
    Attention, Chooser, IndexScores, PAGE_POSITIONS, attention, index_scores, index_scratch_len,
};
use coldpress_kernels::{MatmulJob, matmul};
use coldpress_memory::{Buffer, Ledger};

use crate::error::ModelError;
use crate::forward::{ForwardEngine, Model};
use crate::kv::Sequence;
use crate::latent::{LATENT_ROWS, LatentSpec, for_rows};
use crate::scratch::{Need, Scratch, layer_norm_row, scratch_buffer};
use crate::spec::{AttentionKind, MatrixHandle, ModelSpec, VectorHandle};

/// Scores that are in memory at a time.
const SCORES: usize = 1 << 17;

/// Which positions a layer with sparse attention sees.
#[derive(Clone, Copy, Debug)]
pub enum Selection {
    /// Those that its own indexer chooses.
    Own(IndexerSpec),
    /// Those that the last layer before it with an indexer of its own chose.
    Shared {
        /// Positions that are chosen.
        top_k: usize,
    },
}

impl Selection {
    /// Positions that a row attends to, if it sees as many.
    pub fn top_k(&self) -> usize {
        match self {
            Self::Own(indexer) => indexer.top_k,
            Self::Shared { top_k } => *top_k,
        }
    }

    /// Elements of the index key of a position.
    pub fn index_len(&self) -> usize {
        match self {
            Self::Own(indexer) => indexer.head_dim,
            Self::Shared { .. } => 0,
        }
    }
}

/// Scores positions: `sum over heads of weight * max(query . key, 0)`.
#[derive(Clone, Copy, Debug)]
pub struct IndexerSpec {
    /// Query heads.
    pub heads: usize,
    /// Elements of a head and of the key.
    pub head_dim: usize,
    /// Positions that are chosen.
    pub top_k: usize,
    /// From the latent of the queries, `heads * head_dim` rows.
    pub query: MatrixHandle,
    /// Elements of that latent.
    pub query_rank: usize,
    /// From the normed residual stream, `head_dim` rows.
    pub key: MatrixHandle,
    /// LayerNorm of keys, before their rotation.
    pub key_norm: VectorHandle,
    /// Its bias.
    pub key_norm_bias: VectorHandle,
    /// Its epsilon.
    pub norm_epsilon: f32,
    /// From the normed residual stream to what each head counts, `heads` rows.
    pub weights: MatrixHandle,
    /// Index into [`ModelSpec::ropes`]; the first elements of heads and keys are rotated.
    pub rope: usize,
}

/// Sizes of the buffers of [`IndexScratch`].
#[derive(Clone, Copy)]
pub(crate) struct IndexNeeds {
    query: Need,
    key: [Need; 2],
    weights: Need,
    scores: Need,
    work: Need,
    candidates: Need,
    gathered: Need,
    pages: Need,
    chosen: Need,
    top_k: usize,
    all_rows: bool,
}

impl IndexNeeds {
    /// `None` for a model without sparse attention.
    pub fn of(spec: &ModelSpec, threads: usize) -> Option<Self> {
        let mut needs: Option<Self> = None;
        let (mut heads, mut head_dim, mut width, mut row_len) = (0, 0, 0, 0);
        let (mut top_k, mut all_rows) = (0, false);
        for layer in &spec.layers {
            let AttentionKind::Latent(latent) = &layer.attention else { continue };
            let Some(selection) = &latent.selection else { continue };
            row_len = row_len.max(latent.row_len());
            top_k = top_k.max(selection.top_k());
            match selection {
                Selection::Own(indexer) => {
                    heads = heads.max(indexer.heads);
                    head_dim = head_dim.max(indexer.head_dim);
                    width = width.max(indexer.heads * indexer.head_dim);
                }
                Selection::Shared { .. } => all_rows = true,
            }
            let floats = |count: usize| Need::fixed(count * size_of::<f32>());
            let chosen = top_k * size_of::<u32>();
            let places = top_k.next_multiple_of(PAGE_POSITIONS);
            needs = Some(Self {
                query: floats(LATENT_ROWS * width),
                key: [floats(LATENT_ROWS * head_dim); 2],
                weights: floats(LATENT_ROWS * heads),
                scores: floats(SCORES),
                work: floats(index_scratch_len(head_dim, threads)),
                candidates: Need::fixed(LATENT_ROWS * Chooser::slot_len(top_k) * size_of::<u64>()),
                gathered: floats(places * row_len),
                pages: Need::fixed(places / PAGE_POSITIONS * size_of::<u32>()),
                chosen: if all_rows { Need::rows(chosen) } else { Need::fixed(LATENT_ROWS * chosen) },
                top_k,
                all_rows,
            });
        }
        needs
    }

    pub fn all(self) -> impl Iterator<Item = Need> {
        let choice = [self.scores, self.work, self.candidates, self.chosen];
        let plain = [self.query, self.weights, self.gathered, self.pages];
        plain.into_iter().chain(self.key).chain(choice)
    }
}

/// The buffers of sparse attention, for [`LATENT_ROWS`] rows.
pub(crate) struct IndexScratch {
    /// [rows, heads, head_dim]
    query: Buffer,
    /// Keys before their norm [rows, head_dim].
    key_before: Buffer,
    /// Rows for the cache.
    key: Buffer,
    /// [rows, heads]
    weights: Buffer,
    /// Some pages of scores [pages, rows, positions of a page].
    scores: Buffer,
    work: Buffer,
    /// What may be chosen for each row.
    candidates: Buffer,
    /// Rows of the cache at the positions that one row chose.
    gathered: Buffer,
    /// The numbers 0, 1, ...: the pages of `gathered`.
    pages: Buffer,
    /// What was chosen, in ascending order [rows, top_k]; of all rows of the call where later layers need it.
    chosen: Buffer,
    top_k: usize,
    all_rows: bool,
}

impl IndexScratch {
    pub fn new(ledger: &Ledger, needs: IndexNeeds, rows: usize) -> Result<Self, ModelError> {
        let plain = |need: Need| scratch_buffer(ledger, need, rows);
        let mut pages = plain(needs.pages)?;
        for (number, page) in (0..).zip(pages.as_mut_slice_of::<u32>()) {
            *page = number;
        }
        Ok(Self {
            query: plain(needs.query)?,
            key_before: plain(needs.key[0])?,
            key: plain(needs.key[1])?,
            weights: plain(needs.weights)?,
            scores: plain(needs.scores)?,
            work: plain(needs.work)?,
            candidates: plain(needs.candidates)?,
            gathered: plain(needs.gathered)?,
            pages,
            chosen: plain(needs.chosen)?,
            top_k: needs.top_k,
            all_rows: needs.all_rows,
        })
    }

    /// Moves what was chosen for `rows` of the call to row `to` on, where rows before them have left.
    pub fn move_rows(&mut self, rows: &Range<usize>, to: usize) {
        if self.all_rows {
            let (chosen, width) = (self.chosen.as_mut_slice_of::<u32>(), self.top_k);
            chosen.copy_within(rows.start * width..rows.end * width, to * width);
        }
    }

    /// Where the choice of a row lies; `first_row` is the first row of the call that is computed together with it.
    fn place(&self, row: usize, first_row: usize) -> Range<usize> {
        let row = if self.all_rows { row } else { row - first_row };
        row * self.top_k..(row + 1) * self.top_k
    }
}

/// Rows of one sequence that are attended together.
pub(crate) struct SparseRows<'a> {
    pub layer: usize,
    pub sequence: &'a Sequence,
    /// Position of the first row.
    pub first_position: usize,
    /// Rows of the call.
    pub rows: Range<usize>,
    /// The first row of the call whose projections are in the scratch.
    pub first_row: usize,
}

impl SparseRows<'_> {
    /// How many of the rows, from the first on, see no more positions than are chosen.
    pub fn that_see_all(&self, top_k: usize) -> usize {
        top_k.saturating_sub(self.first_position).min(self.rows.len())
    }
}

impl Model {
    /// Queries, keys and weights of the indexer, for rows whose normed residual stream and query latent are prepared.
    pub(crate) fn index_projections(
        &self,
        engine: &mut ForwardEngine<'_, '_>,
        indexer: &IndexerSpec,
        call_rows: usize,
        rows: &Range<usize>,
    ) {
        let (team, kernels, count) = (engine.team, engine.kernels, rows.len());
        let IndexerSpec { heads, head_dim, query_rank, .. } = *indexer;
        let angles = self.angles(indexer.rope, call_rows, rows);
        let Scratch { input, latent, index, cosines, sines, .. } = &mut *engine.scratch;
        let latent = latent.as_ref().expect("a model with latent attention has its scratch");
        let index = index.as_mut().expect("a model with sparse attention has its scratch");
        let query = &mut index.query.as_mut_slice_of::<f32>()[..count * heads * head_dim];
        let before = &mut index.key_before.as_mut_slice_of::<f32>()[..count * head_dim];
        let key = &mut index.key.as_mut_slice_of::<f32>()[..count * head_dim];
        let weights = &mut index.weights.as_mut_slice_of::<f32>()[..count * heads];
        let input = input.rows(0, count, self.spec.hidden);
        let query_latent = latent.query_latent.rows(0, count, query_rank);
        matmul(
            team,
            kernels,
            &mut [
                MatmulJob::new(self.weights.matrix(indexer.query), query_latent, &mut *query),
                MatmulJob::new(self.weights.matrix(indexer.key), input, &mut *before),
                MatmulJob::new(self.weights.matrix(indexer.weights), input, &mut *weights),
            ],
        );
        let factor = 1.0 / ((heads * head_dim) as f32).sqrt();
        weights.iter_mut().for_each(|weight| *weight *= factor);
        let (norm, bias) =
            (self.weights.vector(indexer.key_norm), self.weights.vector(indexer.key_norm_bias));
        let before = &*before;
        for_rows(team, key, head_dim, |row, out| {
            layer_norm_row(&before[row * head_dim..][..head_dim], norm, bias, indexer.norm_epsilon, out);
        });
        let rotation = self.rotation(indexer.rope, head_dim, angles, (&*cosines, &*sines));
        rotation.apply(team, kernels, query);
        rotation.apply(team, kernels, key);
    }

    /// Writes the index keys of some rows and chooses positions for those of them that see more than are chosen.
    pub(crate) fn choose_positions(
        &self,
        engine: &mut ForwardEngine<'_, '_>,
        indexer: &IndexerSpec,
        part: &SparseRows<'_>,
    ) {
        let (team, kernels) = (engine.team, engine.kernels);
        let IndexerSpec { heads, head_dim, top_k, .. } = *indexer;
        let index = engine.scratch.index.as_mut().expect("a model with sparse attention has its scratch");
        let local = part.rows.start - part.first_row..part.rows.end - part.first_row;
        let SparseRows { layer, sequence, first_position, .. } = *part;
        let keys = &index.key.as_slice_of::<f32>()[local.start * head_dim..local.end * head_dim];
        engine.pool.write_index(team, kernels, layer, sequence, first_position, keys);

        let skipped = part.that_see_all(top_k);
        let rows = local.start + skipped..local.end;
        if rows.is_empty() {
            return;
        }
        let first_position = first_position + skipped;
        let slot_len = Chooser::slot_len(top_k);
        let width = index.top_k;
        let place = index.place(part.first_row + rows.start, part.first_row).start;
        let place = place..place + rows.len() * width;
        let IndexScratch { query, weights, scores, work, candidates, chosen, .. } = index;
        let query = &query.as_slice_of::<f32>()[rows.start * heads * head_dim..rows.end * heads * head_dim];
        let weights = &weights.as_slice_of::<f32>()[rows.start * heads..rows.end * heads];
        let candidates = &mut candidates.as_mut_slice_of::<u64>()[..rows.len() * slot_len];
        for slot in candidates.chunks_exact_mut(slot_len) {
            Chooser::new(slot, top_k).clear();
        }
        let seen = first_position + rows.len();
        let pages_at_once = (SCORES / (rows.len() * PAGE_POSITIONS)).max(1);
        for first in (0..seen).step_by(pages_at_once * PAGE_POSITIONS) {
            let positions = first..seen.min(first + pages_at_once * PAGE_POSITIONS);
            let pages = positions.len().div_ceil(PAGE_POSITIONS);
            let out = &mut scores.as_mut_slice_of::<f32>()[..pages * rows.len() * PAGE_POSITIONS];
            let call = IndexScores {
                head_dim,
                query,
                weights,
                keys: engine.pool.index_rows(layer, sequence),
                positions,
                out: &mut *out,
                scratch: work.as_mut_slice_of::<f32>(),
            };
            index_scores(team, kernels, call);
            let out = &*out;
            team.for_each_part_mut(candidates, slot_len, |row, slot, _worker| {
                let seen = first_position + row + 1;
                let mut chooser = Chooser::new(slot, top_k);
                for (page, scores) in out.chunks_exact(rows.len() * PAGE_POSITIONS).enumerate() {
                    let position = first + page * PAGE_POSITIONS;
                    let count = seen.saturating_sub(position).min(PAGE_POSITIONS);
                    chooser.add(position, &scores[row * PAGE_POSITIONS..][..count]);
                }
            });
        }
        let slots = candidates.chunks_exact_mut(slot_len);
        let chosen = chosen.as_mut_slice_of::<u32>()[place].chunks_exact_mut(width);
        let mut choices: ArrayVec<(&mut [u64], &mut [u32]), LATENT_ROWS> = slots.zip(chosen).collect();
        team.for_each_part_mut(&mut choices, 1, |_row, choice, _worker| {
            for (slot, chosen) in choice {
                Chooser::new(slot, top_k).finish(&mut chosen[..top_k]);
            }
        });
    }

    /// Attention of row `row` of the call, which sees more positions than are chosen, to those alone.
    pub(crate) fn attend_to_chosen(
        &self,
        engine: &mut ForwardEngine<'_, '_>,
        spec: &LatentSpec,
        part: &SparseRows<'_>,
        row: usize,
        top_k: usize,
    ) {
        let (team, kernels) = (engine.team, engine.kernels);
        let width = spec.shape().query_row_len();
        let Scratch { latent, index, attention: scratch, .. } = &mut *engine.scratch;
        let latent = latent.as_mut().expect("a model with latent attention has its scratch");
        let index = index.as_mut().expect("a model with sparse attention has its scratch");
        let place = index.place(row, part.first_row);
        let chosen = &index.chosen.as_slice_of::<u32>()[place][..top_k];
        let gathered = index.gathered.as_bytes_mut();
        engine.pool.gather(team, part.layer, part.sequence, chosen, gathered);
        let pages = &index.pages.as_slice_of::<u32>()[..top_k.div_ceil(PAGE_POSITIONS)];
        let local = row - part.first_row;
        let queries = local * width..(local + 1) * width;
        attention(
            team,
            kernels,
            Attention {
                shape: spec.shape(),
                query: &latent.absorbed.as_slice_of::<f32>()[queries.clone()],
                first_position: top_k - 1,
                cache: engine.pool.rows_of_bytes(part.layer, index.gathered.as_bytes(), pages),
                window: None,
                chunk: None,
                sinks: None,
                scale: spec.scale,
                out: &mut latent.attended.as_mut_slice_of::<f32>()[queries],
                scratch: scratch.as_mut_slice_of::<f32>(),
            },
        );
    }
}
