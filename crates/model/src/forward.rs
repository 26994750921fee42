//! The forward pass: a batch of sequence segments through every layer, layer-major.
//!
//! All rows of a call pass layer L before any passes L + 1, in blocks of some hundred rows that share the experts in memory.
//! A row's result does not depend on the rows beside it: every operation is row-wise or visits keys in position order,
//! expert results are stored per (row, rank) and summed in router-rank order whatever order the experts arrived in.
//! Next: `attend.rs` and `feed_forward.rs` (the two halves of a layer).

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use coldpress_experts::{ExpertStore, RoutingTrace};
use coldpress_kernels::{Kernels, MatmulJob, matmul, unpack_row, vector};
use coldpress_workers::Team;

use crate::error::ModelError;
use crate::kv::{KvPool, Sequence};
use crate::route::Routing;
use crate::scratch::{BLOCK_ROWS, Prepared, Scratch, rows_per_part};
use crate::spec::{FrequencyDivisors, ModelSpec, NormSpec, RopeSpec, StreamFactors};
use crate::streams::Half;
use crate::times::{Phase, PhaseClock};
use crate::weights::DenseWeights;

/// Which positions of a segment get logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogitsWanted {
    /// None: the tokens only fill the KV cache.
    None,
    /// The last position.
    Last,
    /// Every position.
    All,
}

/// Consecutive tokens of one sequence, appended to it.
pub struct Segment<'a> {
    /// The tokens.
    pub tokens: &'a [u32],
    /// Where the sequence's keys and values are; its length is the position of the first token. It was extended by the
    /// tokens ([`KvPool::extend`]); segments may have pages before that in common.
    pub sequence: &'a mut Sequence,
    /// Positions to compute logits for.
    pub logits: LogitsWanted,
}

/// What a forward pass reports while it runs.
pub trait ForwardObserver {
    /// Called after each layer; `false` stops the pass with [`ModelError::Cancelled`].
    fn layer_done(&mut self, layer: usize, layers: usize) -> bool;

    /// Called after each layer for every segment that still has rows in the pass. `true` takes them out: nothing more is
    /// computed for them, the other rows go on with the same bits, and `sequence` may have been emptied. When no row is left
    /// the pass ends with [`ModelError::Cancelled`]. By default everybody stays.
    fn leaves(&mut self, _segment: usize, _pool: &mut KvPool, _sequence: &mut Sequence) -> bool {
        false
    }

    /// Logits of one position (`row` counts the segment's tokens). The slice may be changed freely.
    fn logits(&mut self, segment: usize, row: usize, logits: &mut [f32]);
}

/// What a forward pass computes with.
pub struct ForwardEngine<'a, 'team> {
    /// The entered thread pool.
    pub team: &'a Team<'team>,
    /// The instruction set in use.
    pub kernels: Kernels,
    /// The routed experts; `None` for dense models.
    pub experts: Option<&'a mut ExpertStore>,
    /// Keys and values of all sequences.
    pub pool: &'a mut KvPool,
    /// Working memory, large enough for the rows of the call.
    pub scratch: &'a mut Scratch,
    /// Counts where the time goes; what passed before the call is given to [`Phase::Host`].
    pub clock: &'a mut PhaseClock,
}

/// A model ready to compute: its spec and dense weights.
pub struct Model {
    pub(crate) spec: ModelSpec,
    pub(crate) weights: DenseWeights,
    /// Per rotary embedding, radians per position.
    pub(crate) inverse_frequencies: Vec<Vec<f32>>,
    pub(crate) routing: Routing,
    /// Per MoE block, the experts per token of the model as it was made.
    pub(crate) made_with_top_k: Vec<usize>,
}

impl Model {
    /// Joins a spec with its loaded weights.
    pub fn new(spec: ModelSpec, weights: DenseWeights) -> Self {
        let inverse_frequencies = spec.ropes.iter().map(|rope| inverse_frequencies(rope, &weights)).collect();
        let made_with_top_k = spec.moe_blocks().map(|moe| moe.router.top_k).collect();
        Self { spec, weights, inverse_frequencies, routing: Routing::default(), made_with_top_k }
    }

    /// Takes the dense weights out; the model cannot compute until they, or the same ones loaded again, are put back.
    pub fn take_weights(&mut self) -> DenseWeights {
        std::mem::replace(&mut self.weights, DenseWeights::stand_in())
    }

    /// Puts weights back that belong to this model's spec.
    pub fn put_weights(&mut self, weights: DenseWeights) {
        self.weights = weights;
    }

    /// The model's description.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// Runs the segments through the model and appends them to their sequences.
    ///
    /// # Errors
    /// A token outside the vocabulary, a full context, a failed expert read, a stop asked for by the observer, values
    /// that are not finite. After an error no sequence has changed its length, except those that the observer let leave.
    ///
    /// # Panics
    /// More rows than the scratch was made for; a sequence that was not extended by its tokens.
    pub fn forward(
        &mut self,
        engine: &mut ForwardEngine<'_, '_>,
        segments: &mut [Segment<'_>],
        observer: &mut dyn ForwardObserver,
    ) -> Result<(), ModelError> {
        let mut rows: usize = segments.iter().map(|segment| segment.tokens.len()).sum();
        assert!(
            rows <= engine.scratch.shape.rows,
            "{rows} rows in a scratch of {}",
            engine.scratch.shape.rows
        );
        self.check(engine.pool, segments)?;
        if let Some(store) = engine.experts.as_deref_mut() {
            store.begin_pass(rows);
        }
        self.note_tokens(segments.iter().map(|segment| segment.tokens));
        self.ask_ahead(engine);
        self.name_rows(engine, segments)?;
        self.embed(engine, segments);
        self.position_tables(engine.scratch, segments);
        self.routing.cache_bias.mark(segments);
        let layers = self.spec.layers.len();
        for layer in 0..layers {
            self.layer(engine, segments, layer, rows)?;
            if !observer.layer_done(layer, layers) {
                return Err(ModelError::Cancelled);
            }
            let staying = self.let_leave(engine, segments, observer);
            if staying == 0 && rows > 0 {
                return Err(ModelError::Cancelled);
            }
            if staying < rows {
                self.note_tokens(segments.iter().map(|segment| segment.tokens));
                self.routing.cache_bias.mark(segments);
            }
            rows = staying;
        }
        self.head(engine, segments, observer)?;
        for segment in segments {
            segment.sequence.commit(segment.tokens.len());
        }
        Ok(())
    }

    /// One layer for all rows, block by block: what a layer computes between its halves is held for one block only. The
    /// experts that one block has read stay for the next ones.
    fn layer(
        &mut self,
        engine: &mut ForwardEngine<'_, '_>,
        segments: &mut [Segment<'_>],
        layer: usize,
        rows: usize,
    ) -> Result<(), ModelError> {
        for first in (0..rows).step_by(BLOCK_ROWS) {
            let block = first..rows.min(first + BLOCK_ROWS);
            let more_blocks = block.end < rows;
            self.hold_experts(engine, layer, more_blocks);
            engine.clock.lap(Phase::Host);
            engine.clock.at_layer(Some(layer));
            self.add_ple(engine, segments, layer, &block, rows)?;
            self.take_from_streams(engine, layer, Half::Attention, &block);
            self.attend(engine, segments, layer, &block);
            if let Some(stream) = &self.spec.normed_stream {
                let norm = self.spec.layers[layer].attention_norm;
                self.add_to_normed(engine, norm, stream.attention[layer], &block);
            }
            self.check_finite(engine, &block, layer, "attention")?;
            engine.clock.lap(Phase::Attention);
            self.take_from_streams(engine, layer, Half::FeedForward, &block);
            self.feed_forward(engine, layer, &block, more_blocks)?;
            if let Some(stream) = &self.spec.normed_stream {
                let norm = self.spec.layers[layer].feed_forward_norm;
                self.add_to_normed(engine, norm, stream.feed_forward, &block);
            }
            self.check_finite(engine, &block, layer, "feed-forward")?;
            engine.clock.lap(Phase::Dense);
            engine.clock.at_layer(None);
        }
        Ok(())
    }

    /// Takes the rows of segments that leave out of the pass; returns how many rows stay. What a row carries from one layer to
    /// the next is its residual streams, what is still to be added to it, the positions that were chosen for it, and the angles of
    /// its position.
    fn let_leave(
        &self,
        engine: &mut ForwardEngine<'_, '_>,
        segments: &mut [Segment<'_>],
        observer: &mut dyn ForwardObserver,
    ) -> usize {
        let (hidden, carried) = (self.spec.hidden, self.carried());
        let (mut first, mut staying) = (0, 0);
        for (index, segment) in segments.iter_mut().enumerate() {
            let rows = first..first + segment.tokens.len();
            first = rows.end;
            if rows.is_empty() {
                continue;
            }
            if observer.leaves(index, engine.pool, segment.sequence) {
                segment.tokens = &[];
                segment.logits = LogitsWanted::None;
                continue;
            }
            if staying < rows.start {
                let Scratch { residual, shortcut, index, .. } = &mut *engine.scratch;
                let residual = residual.as_mut_slice_of::<f32>();
                residual.copy_within(rows.start * carried..rows.end * carried, staying * carried);
                let shortcut = shortcut.as_mut_slice_of::<f32>();
                if !shortcut.is_empty() {
                    shortcut.copy_within(rows.start * hidden..rows.end * hidden, staying * hidden);
                }
                if let Some(index) = index {
                    index.move_rows(&rows, staying);
                }
                self.move_names(engine.scratch, &rows, staying);
            }
            staying += rows.len();
        }
        if staying < first {
            self.position_tables(engine.scratch, segments);
        }
        staying
    }

    /// Lets the store know whether more blocks of this layer follow.
    fn hold_experts(&self, engine: &mut ForwardEngine<'_, '_>, layer: usize, more_blocks: bool) {
        let Some(moe) = self.spec.layers[layer].feed_forward.mixture() else { return };
        if let Some(store) = engine.experts.as_deref_mut() {
            store.hold_layer(more_blocks.then_some(moe.store_layer));
        }
    }

    fn check(&self, pool: &KvPool, segments: &[Segment<'_>]) -> Result<(), ModelError> {
        for segment in segments {
            let asked = segment.sequence.len() + segment.tokens.len();
            let context = segment.sequence.context();
            if asked > context {
                return Err(ModelError::ContextFull { asked, context });
            }
            let vocabulary = self.spec.vocabulary;
            if let Some(&id) = segment.tokens.iter().find(|&&id| id as usize >= vocabulary) {
                return Err(ModelError::UnknownToken { id, vocabulary });
            }
            assert!(
                pool.is_extended(segment.sequence, segment.tokens.len()),
                "a sequence was not extended by its {} tokens",
                segment.tokens.len()
            );
        }
        Ok(())
    }

    fn embed(&self, engine: &mut ForwardEngine<'_, '_>, segments: &[Segment<'_>]) {
        let table = self.weights.matrix(self.spec.embedding);
        let (hidden, scale) = (self.spec.hidden, self.spec.embedding_scale);
        let carried = self.carried();
        let mut first_row = 0;
        for segment in segments {
            let rows = first_row..first_row + segment.tokens.len();
            let residual = engine.scratch.residual.as_mut_slice_of::<f32>();
            let out = &mut residual[rows.start * carried..rows.end * carried];
            let rows_per_part = rows_per_part(engine.team, rows.len(), carried * size_of::<f32>());
            engine.team.for_each_part_mut(out, rows_per_part * carried, |part, out, _worker| {
                let tokens = &segment.tokens[part * rows_per_part..];
                for (&token, out) in tokens.iter().zip(out.chunks_exact_mut(carried)) {
                    let (first, others) = out.split_at_mut(hidden);
                    unpack_row(&table, token as usize, first);
                    if scale != 1.0 {
                        first.iter_mut().for_each(|value| *value *= scale);
                    }
                    others.chunks_exact_mut(hidden).for_each(|stream| stream.copy_from_slice(first));
                }
            });
            first_row = rows.end;
        }
    }

    /// Cosines and sines of every row's position: for each rotary embedding `[rows, dimensions / 2]`.
    fn position_tables(&self, scratch: &mut Scratch, segments: &[Segment<'_>]) {
        let mut cosines = scratch.cosines.as_mut_slice_of::<f32>();
        let mut sines = scratch.sines.as_mut_slice_of::<f32>();
        for (rope, frequencies) in self.spec.ropes.iter().zip(&self.inverse_frequencies) {
            for segment in segments {
                let angles = segment.tokens.len() * frequencies.len();
                let (cosine_rows, cosines_left) = cosines.split_at_mut(angles);
                let (sine_rows, sines_left) = sines.split_at_mut(angles);
                let first = segment.sequence.len();
                vector::rope_table(frequencies, rope.magnitude, first, cosine_rows, sine_rows);
                (cosines, sines) = (cosines_left, sines_left);
            }
        }
    }

    /// The angles of rows `block` of a call of `rows` rows, for rotary embedding `rope`, in the tables of
    /// `position_tables`.
    pub(crate) fn angles(&self, rope: usize, rows: usize, block: &Range<usize>) -> Range<usize> {
        let width = self.inverse_frequencies[rope].len();
        let before: usize = self.inverse_frequencies[..rope].iter().map(|other| other.len() * rows).sum();
        before + block.start * width..before + block.end * width
    }

    /// The norm of `x`, `[rows, hidden]`, into `input`.
    pub(crate) fn norm(
        &self,
        team: &Team<'_>,
        kernels: Kernels,
        norm: NormSpec,
        x: &[f32],
        input: &mut Prepared,
    ) {
        let epsilon = self.spec.norm_epsilon;
        match norm {
            NormSpec::None => {
                input.floats_mut(x.len()).copy_from_slice(x);
                input.quantize(team, kernels, x.len() / self.spec.hidden, self.spec.hidden);
            }
            NormSpec::Rms(weight) => input.norm(team, kernels, x, self.weights.vector(weight), epsilon),
            NormSpec::Layer { weight, bias } => {
                let (weight, bias) = (self.weights.vector(weight), self.weights.vector(bias));
                input.layer_norm(team, kernels, x, weight, bias, epsilon);
            }
        }
    }

    /// Adds the result of half a layer, in `block_out`, to the residual streams of the rows of a block.
    pub(crate) fn add_result(
        &self,
        engine: &mut ForwardEngine<'_, '_>,
        layer: usize,
        half: Half,
        block: &Range<usize>,
    ) {
        if self.spec.normed_stream.is_some() {
            return;
        }
        let hidden = self.spec.hidden;
        let norm = match half {
            Half::Attention => self.spec.layers[layer].attention_result_norm,
            Half::FeedForward => self.spec.layers[layer].feed_forward_result_norm,
        };
        let (team, kernels) = (engine.team, engine.kernels);
        let out = &mut engine.scratch.block_out.as_mut_slice_of::<f32>()[..block.len() * hidden];
        if let Some(norm) = norm {
            let weight = self.weights.vector(norm);
            vector::rms_norm_in_place(team, kernels, out, weight, self.spec.norm_epsilon);
        }
        scale(team, out, self.spec.residual_scale);
        if self.put_into_streams(engine, layer, half, block) {
            return;
        }
        let Scratch { residual, block_out, .. } = &mut *engine.scratch;
        let out = &block_out.as_slice_of::<f32>()[..block.len() * hidden];
        let residual = &mut residual.as_mut_slice_of::<f32>()[block.start * hidden..block.end * hidden];
        vector::add_assign(team, kernels, residual, out);
    }

    /// `x = kept * norm(x) + added * out` for the residual stream `x` of the rows of a block and the result of half a layer,
    /// `out`, in `block_out`.
    fn add_to_normed(
        &self,
        engine: &mut ForwardEngine<'_, '_>,
        norm: NormSpec,
        factors: StreamFactors,
        block: &Range<usize>,
    ) {
        let hidden = self.spec.hidden;
        let (team, kernels) = (engine.team, engine.kernels);
        let Scratch { residual, input, block_out, .. } = &mut *engine.scratch;
        let out = &block_out.as_slice_of::<f32>()[..block.len() * hidden];
        let residual = &mut residual.as_mut_slice_of::<f32>()[block.start * hidden..block.end * hidden];
        self.norm(team, kernels, norm, residual, input);
        let normed = &*input.floats_mut(block.len() * hidden);
        let rows_per_part = rows_per_part(team, block.len(), hidden * size_of::<f32>());
        team.for_each_part_mut(residual, rows_per_part * hidden, |part, residual, _worker| {
            let from = part * rows_per_part * hidden;
            let addends = normed[from..].iter().zip(&out[from..]);
            for (value, (normed, out)) in residual.iter_mut().zip(addends) {
                *value = factors.kept * normed + factors.added * out;
            }
        });
    }

    fn check_finite(
        &self,
        engine: &ForwardEngine<'_, '_>,
        block: &Range<usize>,
        layer: usize,
        stage: &'static str,
    ) -> Result<(), ModelError> {
        let carried = self.carried();
        let residual =
            &engine.scratch.residual.as_slice_of::<f32>()[block.start * carried..block.end * carried];
        let finite = all_finite(engine.team, residual);
        if finite { Ok(()) } else { Err(ModelError::NotFinite { layer, stage }) }
    }

    fn head(
        &self,
        engine: &mut ForwardEngine<'_, '_>,
        segments: &[Segment<'_>],
        observer: &mut dyn ForwardObserver,
    ) -> Result<(), ModelError> {
        let rows_max = engine.scratch.shape.logit_rows.max(1);
        let mut rest = wanted_rows(segments);
        loop {
            let run = rest.clone();
            let Some((_, _, first)) = rest.next() else { return Ok(()) };
            // Rows that lie together share the reading of the output matrix, whosever they are.
            let mut count = 1;
            while count < rows_max && rest.clone().next().is_some_and(|(_, _, next)| next == first + count) {
                rest.next();
                count += 1;
            }
            engine.clock.lap(Phase::Host);
            self.logits_of_rows(engine, first, count)?;
            engine.clock.lap(Phase::Head);
            let logits = engine.scratch.logits.as_mut_slice_of::<f32>();
            for ((segment, row, _), logits) in
                run.zip(logits.chunks_exact_mut(self.spec.vocabulary)).take(count)
            {
                observer.logits(segment, row, logits);
            }
        }
    }

    fn logits_of_rows(
        &self,
        engine: &mut ForwardEngine<'_, '_>,
        first: usize,
        rows: usize,
    ) -> Result<(), ModelError> {
        let hidden = self.spec.hidden;
        let taken = first..first + rows;
        self.take_for_head(engine, &taken);
        self.norm_half(engine, self.spec.output_norm, &taken, &taken);
        let Scratch { input, logits, .. } = &mut *engine.scratch;
        let output = &mut logits.as_mut_slice_of::<f32>()[..rows * self.spec.vocabulary];
        let weights = self.weights.matrix(self.spec.output);
        matmul(
            engine.team,
            engine.kernels,
            &mut [MatmulJob::new(weights, input.rows(0, rows, hidden), &mut *output)],
        );
        if let Some(bias) = self.spec.output_bias {
            self.add_bias(engine.team, bias, output);
        }
        scale(engine.team, output, self.spec.logit_scale);
        let finite = all_finite(engine.team, output);
        let layer = self.spec.layers.len();
        if finite { Ok(()) } else { Err(ModelError::NotFinite { layer, stage: "output head" }) }
    }

    /// Writes every choice of the router into `trace` from now on, and returns the trace that was written until now. Off by
    /// default.
    pub fn trace_routing(&mut self, trace: Option<RoutingTrace>) -> Option<RoutingTrace> {
        std::mem::replace(&mut self.routing.trace, trace)
    }

    /// The routing state, taken out for the time of a block so that `self` stays readable.
    pub(crate) fn take_routing(&mut self) -> Routing {
        std::mem::take(&mut self.routing)
    }

    pub(crate) fn routing_mut(&mut self) -> &mut Routing {
        &mut self.routing
    }

    /// Puts the routing state back, with the memory its vectors have grown to.
    pub(crate) fn put_routing(&mut self, routing: Routing) {
        self.routing = routing;
    }
}

fn inverse_frequencies(rope: &RopeSpec, weights: &DenseWeights) -> Vec<f32> {
    let divisors = match &rope.divisors {
        FrequencyDivisors::None => None,
        FrequencyDivisors::Tensor(handle) => Some(weights.vector(*handle)),
        FrequencyDivisors::Values(values) => Some(values.as_slice()),
    };
    let (base, linear_factor) = (f64::from(rope.base), f64::from(rope.linear_factor));
    vector::rope_inverse_frequencies(base, rope.dimensions, linear_factor, divisors)
}

/// Values that one chunk of a multiplication takes.
const SCALE_CHUNK: usize = 16 * 1024;

/// Multiplies every value by `factor`; 1 costs nothing.
fn scale(team: &Team<'_>, values: &mut [f32], factor: f32) {
    if factor != 1.0 {
        team.for_each_part_mut(values, SCALE_CHUNK, |_part, values, _worker| {
            values.iter_mut().for_each(|value| *value *= factor);
        });
    }
}

/// Positions that get logits, in order: the segment, the row of it, the row of the call.
fn wanted_rows<'a>(segments: &'a [Segment<'_>]) -> impl Iterator<Item = (usize, usize, usize)> + Clone + 'a {
    let firsts = segments.iter().scan(0, |rows, segment| {
        let first = *rows;
        *rows += segment.tokens.len();
        Some(first)
    });
    segments.iter().zip(firsts).enumerate().flat_map(|(index, (segment, first))| {
        let count = segment.tokens.len();
        let wanted = match segment.logits {
            LogitsWanted::None => 0..0,
            LogitsWanted::Last => count.saturating_sub(1)..count,
            LogitsWanted::All => 0..count,
        };
        wanted.map(move |row| (index, row, first + row))
    })
}

/// Values that one chunk of the check for NaN and infinity takes.
const FINITE_CHUNK: usize = 64 * 1024;

/// Whether no value is NaN or infinite.
fn all_finite(team: &Team<'_>, values: &[f32]) -> bool {
    let broken = AtomicBool::new(false);
    team.for_each_chunk(values.len().div_ceil(FINITE_CHUNK), |chunk, _worker| {
        let values = &values[chunk * FINITE_CHUNK..values.len().min((chunk + 1) * FINITE_CHUNK)];
        // A sum is not finite as soon as one term is not; it needs no branch per value.
        let finite = values.chunks(1024).all(|some| some.iter().map(|value| value * 0.0).sum::<f32>() == 0.0);
        if !finite {
            broken.store(true, Ordering::Relaxed);
        }
    });
    !broken.into_inner()
}
