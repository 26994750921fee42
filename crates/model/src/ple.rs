//! Per-layer embeddings of n-grams: rows of a table on disk, named by the last tokens, are added to every residual stream before a
//! layer, gated by how well they match it, and once more after a convolution over the last positions.
//!
//! The rows of a whole pass are known before its first layer: [`Model::name_rows`] computes their numbers, and while layers are
//! computed [`Model::prefetch_rows`] keeps reads under way. The state of a sequence has the tail of the convolution and its last
//! tokens. Reference: `Qwen4ExpTextPLELayer` of transformers. Next: `ngram.rs` (numbers of rows), `rows` in `coldpress-experts`.

use std::ops::Range;

use coldpress_experts::RowStore;
use coldpress_kernels::{InputRows, MatmulJob, matmul};
use coldpress_memory::{Buffer, Ledger};
use coldpress_workers::Team;

use crate::error::ModelError;
use crate::forward::{ForwardEngine, Model, Segment};
use crate::latent::for_rows;
use crate::low_rank_mixer::norm_stream;
use crate::ngram::{NGRAM_MAX, NgramSpec};
use crate::scratch::{Need, Scratch, scratch_buffer};
use crate::segments::advance_states;
use crate::sinkhorn::sigmoid;
use crate::spec::{MatrixHandle, ModelSpec, VectorHandle};
use crate::weights::DenseWeights;

/// Rows that are looked up and added together.
const PLE_ROWS: usize = 64;
/// Gates nearer to zero count as this far from it.
const GATE_MIN: f32 = 1e-6;

/// The n-gram embedding before one layer, for `n` streams.
#[derive(Clone, Debug)]
pub struct PleSpec {
    /// The layer.
    pub layer: usize,
    /// Its table, by position in [`ModelSpec::row_tables`].
    pub table: usize,
    /// Which rows tokens name.
    pub ngram: NgramSpec,
    /// Values of the rows of one token together.
    pub width: usize,
    /// `[n * hidden, width]`, float.
    pub key: MatrixHandle,
    /// `[hidden, width]`, float.
    pub value: MatrixHandle,
    /// RMSNorms of keys, streams and what is convolved, `[n, hidden]` each.
    pub norms: PleNorms,
    /// Filters, `[n * hidden, taps]`.
    pub filters: VectorHandle,
    /// Values of a filter.
    pub taps: usize,
    /// Positions between two values.
    pub dilation: usize,
}

/// The RMSNorms of a [`PleSpec`].
#[derive(Clone, Copy, Debug)]
pub struct PleNorms {
    /// Of keys.
    pub key: VectorHandle,
    /// Of streams.
    pub query: VectorHandle,
    /// Of what is convolved.
    pub convolved: VectorHandle,
}

impl PleSpec {
    /// Rows of the convolution's tail.
    fn tail_rows(&self) -> usize {
        (self.taps - 1) * self.dilation
    }

    /// f32 numbers of state of one sequence: the tail, then the last tokens, each plus one so that zero is none.
    pub fn state_len(&self, carried: usize) -> usize {
        self.tail_rows() * carried + self.ngram.window()
    }
}

/// Sizes of the buffers of [`PleScratch`].
#[derive(Clone, Copy)]
pub(crate) struct PleNeeds {
    names: Need,
    parts: [Need; 5],
}

impl PleNeeds {
    /// `None` for a model without such embeddings.
    pub fn of(spec: &ModelSpec) -> Option<Self> {
        let (hidden, carried) = (spec.hidden, spec.hidden * spec.streams.as_ref()?.count);
        let width = spec.ple.iter().map(|ple| ple.width).max()?;
        let heads: usize = spec.ple.iter().map(|ple| ple.ngram.heads()).sum();
        let part = |width: usize| Need::fixed(PLE_ROWS * width * size_of::<f32>());
        Some(Self {
            names: Need::rows(heads * size_of::<u32>()),
            parts: [width, carried, hidden, carried, carried].map(part),
        })
    }

    pub fn all(self) -> impl Iterator<Item = Need> {
        [self.names].into_iter().chain(self.parts)
    }
}

/// Working memory of lookups.
pub(crate) struct PleScratch {
    /// Numbers of rows: for each embedding `[rows of the call, heads]`, at places for as many rows as the scratch is made for.
    names: Buffer,
    /// Embedding and row from which on reads are still to be begun.
    next: (usize, usize),
    embedded: Buffer,
    /// Keys, then what is convolved.
    key: Buffer,
    value: Buffer,
    gated: Buffer,
    convolved: Buffer,
}

impl PleScratch {
    pub fn new(ledger: &Ledger, needs: PleNeeds, rows: usize) -> Result<Self, ModelError> {
        let [embedded, key, value, gated, convolved] =
            needs.parts.map(|need| scratch_buffer(ledger, need, rows));
        Ok(Self {
            names: scratch_buffer(ledger, needs.names, rows)?,
            next: (0, 0),
            embedded: embedded?,
            key: key?,
            value: value?,
            gated: gated?,
            convolved: convolved?,
        })
    }
}

impl Model {
    /// Where the numbers of the rows of embedding `index` begin in [`PleScratch::names`], and how many each row of a call has.
    fn names_of(&self, index: usize, scratch_rows: usize) -> (usize, usize) {
        let heads = |ple: &crate::ple::PleSpec| ple.ngram.heads();
        let before: usize = self.spec.ple[..index].iter().map(heads).sum();
        (before * scratch_rows, heads(&self.spec.ple[index]))
    }

    /// At the beginning of a pass: which rows its tokens name, in all tables, and the first reads.
    ///
    /// # Errors
    /// The reader is broken.
    pub(crate) fn name_rows(
        &self,
        engine: &mut ForwardEngine<'_, '_>,
        segments: &[Segment<'_>],
    ) -> Result<(), ModelError> {
        let ForwardEngine { pool, scratch, .. } = &mut *engine;
        let capacity = scratch.shape.rows;
        let Some(ple_scratch) = &mut scratch.ple else { return Ok(()) };
        ple_scratch.next = (0, 0);
        for (index, ple) in self.spec.ple.iter().enumerate() {
            let (mut first, heads) = self.names_of(index, capacity);
            for segment in segments {
                let state = pool.committed_state(self.spec.layers.len() + index, segment.sequence);
                let mut earlier = [0; NGRAM_MAX];
                let earlier = recall(state, ple.ngram.window(), &mut earlier);
                let names = first..first + segment.tokens.len() * heads;
                first = names.end;
                let names = &mut ple_scratch.names.as_mut_slice_of::<u32>()[names];
                ple.ngram.rows_of(earlier, segment.tokens, names);
            }
        }
        let rows = segments.iter().map(|segment| segment.tokens.len()).sum();
        self.prefetch_rows(engine, rows)
    }

    /// Begins to read rows that are still to come in a pass of `rows` rows, as far as there is room. Never waits.
    ///
    /// # Errors
    /// The reader is broken.
    pub(crate) fn prefetch_rows(
        &self,
        engine: &mut ForwardEngine<'_, '_>,
        rows: usize,
    ) -> Result<(), ModelError> {
        let capacity = engine.scratch.shape.rows;
        let Some(scratch) = &mut engine.scratch.ple else { return Ok(()) };
        let Some(store) = engine.experts.as_deref_mut().and_then(|store| store.rows()) else { return Ok(()) };
        while let Some(ple) = self.spec.ple.get(scratch.next.0) {
            let (first, heads) = self.names_of(scratch.next.0, capacity);
            let names = first + scratch.next.1 * heads..first + rows * heads;
            let taken = store.prefetch(ple.table, &scratch.names.as_slice_of::<u32>()[names])?;
            scratch.next.1 += taken / heads;
            if scratch.next.1 < rows {
                return Ok(());
            }
            scratch.next = (scratch.next.0 + 1, 0);
        }
        Ok(())
    }

    /// Rows `from` of a call have become rows `to..`: others have left the pass.
    pub(crate) fn move_names(&self, scratch: &mut Scratch, from: &Range<usize>, to: usize) {
        let capacity = scratch.shape.rows;
        let Some(ple_scratch) = &mut scratch.ple else { return };
        for index in 0..self.spec.ple.len() {
            let (first, heads) = self.names_of(index, capacity);
            let names = ple_scratch.names.as_mut_slice_of::<u32>();
            names.copy_within(first + from.start * heads..first + from.end * heads, first + to * heads);
        }
        // What was begun is there or on its way.
        ple_scratch.next.1 = 0;
    }

    /// Adds the embeddings that come before `layer`, if any, to the streams of the rows of a block.
    ///
    /// # Errors
    /// A row cannot be read.
    pub(crate) fn add_ple(
        &self,
        engine: &mut ForwardEngine<'_, '_>,
        segments: &[Segment<'_>],
        layer: usize,
        block: &Range<usize>,
        rows: usize,
    ) -> Result<(), ModelError> {
        let Some(index) = self.spec.ple.iter().position(|ple| ple.layer == layer) else {
            return self.prefetch_rows(engine, rows);
        };
        let ple = &self.spec.ple[index];
        for first in block.clone().step_by(PLE_ROWS) {
            let piece = first..block.end.min(first + PLE_ROWS);
            self.fetch_rows(engine, index, &piece)?;
            self.prefetch_rows(engine, rows)?;
            self.gate(engine, ple, &piece);
            self.convolve(engine, segments, index, &piece);
        }
        Ok(())
    }

    fn fetch_rows(
        &self,
        engine: &mut ForwardEngine<'_, '_>,
        index: usize,
        piece: &Range<usize>,
    ) -> Result<(), ModelError> {
        let ple = &self.spec.ple[index];
        let (first, heads) = self.names_of(index, engine.scratch.shape.rows);
        let scratch = engine.scratch.ple.as_mut().expect("a model with n-gram embeddings has their scratch");
        if scratch.next.0 < index || (scratch.next.0 == index && scratch.next.1 < piece.end) {
            scratch.next = (index, piece.end);
        }
        let store: Option<&mut RowStore> = engine.experts.as_deref_mut().and_then(|store| store.rows());
        let store = store.expect("a model with row tables is opened with their store");
        let names =
            &scratch.names.as_slice_of::<u32>()[first + piece.start * heads..first + piece.end * heads];
        let out = &mut scratch.embedded.as_mut_slice_of::<f32>()[..piece.len() * ple.width];
        store.fetch(ple.table, names, out)?;
        Ok(())
    }

    /// Keys and values of the embeddings of a piece, and the values as the streams let them in: in `gated`, and normed in `key`.
    fn gate(&self, engine: &mut ForwardEngine<'_, '_>, ple: &PleSpec, piece: &Range<usize>) {
        let (hidden, carried, epsilon) = (self.spec.hidden, self.carried(), self.spec.norm_epsilon);
        let (team, rows) = (engine.team, piece.len());
        let Scratch { residual, ple: scratch, .. } = &mut *engine.scratch;
        let PleScratch { embedded, key, value, gated, .. } =
            scratch.as_mut().expect("a model with n-gram embeddings has their scratch");
        let input = InputRows::from_floats(ple.width, &embedded.as_slice_of::<f32>()[..rows * ple.width]);
        let key = &mut key.as_mut_slice_of::<f32>()[..rows * carried];
        let value = &mut value.as_mut_slice_of::<f32>()[..rows * hidden];
        let jobs = &mut [
            MatmulJob::new(self.weights.matrix(ple.key), input, &mut *key),
            MatmulJob::new(self.weights.matrix(ple.value), input, &mut *value),
        ];
        matmul(team, engine.kernels, jobs);
        let gated = &mut gated.as_mut_slice_of::<f32>()[..rows * carried];
        let residual = &residual.as_slice_of::<f32>()[piece.start * carried..piece.end * carried];
        let norms = [ple.norms.key, ple.norms.query].map(|norm| self.weights.vector(norm));
        let (keys, values) = (&*key, &*value);
        for_rows(team, gated, carried, |row, out| {
            let value = &values[row * hidden..][..hidden];
            for (stream, out) in out.chunks_exact_mut(hidden).enumerate() {
                let of_row = row * carried + stream * hidden;
                let [key_norm, query_norm] = norms.map(|norm| &norm[stream * hidden..][..hidden]);
                let (key, query) = (&keys[of_row..][..hidden], &residual[of_row..][..hidden]);
                // `out` holds the normed key until the gate is known.
                norm_stream(key, key_norm, epsilon, out);
                let gate = sigmoid(signed_root(match_of(out, query, query_norm, epsilon)));
                out.iter_mut().zip(value).for_each(|(out, value)| *out = gate * value);
            }
        });
        let weight = self.weights.vector(ple.norms.convolved);
        crate::low_rank_mixer::norm_streams(team, gated, weight, hidden, epsilon, key);
    }

    /// Adds what was let in, and its convolution over positions, to the streams; advances the states.
    fn convolve(
        &self,
        engine: &mut ForwardEngine<'_, '_>,
        segments: &[Segment<'_>],
        index: usize,
        piece: &Range<usize>,
    ) {
        let (ple, carried) = (&self.spec.ple[index], self.carried());
        let state_layer = self.spec.layers.len() + index;
        let ForwardEngine { team, pool, scratch, .. } = engine;
        let Scratch { residual, ple: scratch, .. } = &mut **scratch;
        let PleScratch { key, gated, convolved, .. } =
            scratch.as_mut().expect("a model with n-gram embeddings has their scratch");
        advance_states(pool, team, state_layer, segments, piece, |new_tokens, rows, state| {
            let values = rows.start * carried..rows.end * carried;
            let (tail, tokens) = state.split_at_mut(ple.tail_rows() * carried);
            let input = &key.as_slice_of::<f32>()[values.clone()];
            let out = &mut convolved.as_mut_slice_of::<f32>()[values];
            ple.filter(&self.weights, team, input, tail, out);
            remember(tokens, new_tokens);
        });
        let values = piece.len() * carried;
        let (gated, convolved) = (gated.as_slice_of::<f32>(), convolved.as_slice_of::<f32>());
        let residual = &mut residual.as_mut_slice_of::<f32>()[piece.start * carried..][..values];
        for_rows(team, residual, carried, |row, residual| {
            let values = row * carried..(row + 1) * carried;
            for ((value, gated), convolved) in
                residual.iter_mut().zip(&gated[values.clone()]).zip(&convolved[values])
            {
                *value += gated + convolved * sigmoid(*convolved);
            }
        });
    }
}

impl PleSpec {
    /// The dilated convolution of `input`, `[rows, channels]`, into `out`; then the tail is that of the next row.
    fn filter(
        &self,
        weights: &DenseWeights,
        team: &Team<'_>,
        input: &[f32],
        tail: &mut [f32],
        out: &mut [f32],
    ) {
        let filters = weights.vector(self.filters);
        let (taps, tail_rows) = (self.taps, self.tail_rows());
        let channels = filters.len() / taps;
        let before = &*tail;
        for_rows(team, out, channels, |row, out| {
            out.fill(0.0);
            for tap in 0..taps {
                // Counted from the tail's first row.
                let from = row + tap * self.dilation;
                let from = match from.checked_sub(tail_rows) {
                    Some(row) => &input[row * channels..][..channels],
                    None => &before[from * channels..][..channels],
                };
                for ((out, from), filter) in out.iter_mut().zip(from).zip(filters.chunks_exact(taps)) {
                    *out += from * filter[tap];
                }
            }
        });
        let rows = input.len() / channels;
        let kept = tail_rows.saturating_sub(rows);
        let new = tail_rows - kept;
        tail.copy_within(new * channels.., 0);
        tail[kept * channels..].copy_from_slice(&input[(rows - new) * channels..]);
    }
}

/// `key · norm(query) / sqrt(hidden)`; the sum is in f64, in order.
fn match_of(key: &[f32], query: &[f32], norm: &[f32], epsilon: f32) -> f32 {
    let factor = crate::sinkhorn::inverse_root_mean_square(query, epsilon);
    let products = key.iter().zip(query).zip(norm).map(|((key, query), norm)| key * (query * factor * norm));
    let sum: f64 = products.map(f64::from).sum();
    (sum / (key.len() as f64).sqrt()) as f32
}

/// The root of the magnitude with the sign kept.
fn signed_root(gate: f32) -> f32 {
    let root = gate.abs().max(GATE_MIN).sqrt();
    if gate == 0.0 { 0.0 } else { root.copysign(gate) }
}

/// The tokens that a state remembers, the oldest first.
fn recall<'a>(state: Option<&[f32]>, window: usize, tokens: &'a mut [u32; NGRAM_MAX]) -> &'a [u32] {
    let Some(state) = state else { return &[] };
    let remembered = state[state.len() - window..].iter().filter(|token| **token > 0.0);
    let mut count = 0;
    for (slot, token) in tokens.iter_mut().zip(remembered) {
        *slot = *token as u32 - 1;
        count += 1;
    }
    &tokens[..count]
}

/// Appends tokens to those that a state remembers. Numbers of tokens are below 2^24, so a float holds them.
fn remember(state: &mut [f32], tokens: &[u32]) {
    let window = state.len();
    let new = tokens.len().min(window);
    state.copy_within(new.., 0);
    for (slot, token) in state[window - new..].iter_mut().zip(&tokens[tokens.len() - new..]) {
        *slot = (*token + 1) as f32;
    }
}
